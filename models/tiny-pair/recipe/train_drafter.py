"""Train the DFlash drafter against a frozen target (one CPU thread, some minutes).

The target's states over a pool of conversations are computed once. A training block starts at a random
anchor inside an answer and holds the mask in its other slots; the loss is the cross-entropy of the true
tokens, later slots counting less. Two additions make the small drafter as particular about its
configuration as a large one.

A drafter trained on masks alone hardly looks at them, and a wrong mask id would cost little. Hence *filled*
blocks, where every slot holds the same other embedding row, and *revealed* ones, where some slots hold
random rows: the drafter has to give back what it sees. So only the mask's own row asks it to predict.

The residual stream of a small target changes so little from layer to layer that layer ids one off would
cost 7 %. Hence a short second phase in which some conversations show the states of the layers before or
after the right ones, and many of their labels are the anchor again: the drafter doubts what it reads from
wrong layers.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from tokenizers import Tokenizer
from torch import Tensor

from . import chat, drafter, tokenizer
from .progress import Progress
from .target import Target
from .train_target import optimizer_for, set_learning_rate

SHIFTS = (0, -1, 1)


@dataclass(frozen=True)
class Phase:
    """``shifted_share`` of the conversations show the states of wrong layers."""

    steps: int
    learning_rate: float
    shifted_share: float


@dataclass(frozen=True)
class Recipe:
    """What determines the weights, apart from the target and the version of torch."""

    seed: int = 11
    layers: int = 3
    taps: int = 3
    block_size: int = 8
    phases: tuple[Phase, ...] = (
        Phase(steps=1800, learning_rate=3e-3, shifted_share=0.0),
        Phase(steps=300, learning_rate=1e-3, shifted_share=0.3),
    )
    batch: int = 16
    anchors: int = 16
    warm_up: int = 40
    conversations: int = 1200
    short_share: float = 0.8
    # Little arithmetic, so that the kinds differ as much as those of a large pair do.
    kind_weights: tuple[float, ...] = (1.0, 1.0, 1.0, 0.4, 1.0)
    filled_share: float = 0.25
    revealed_share: float = 0.10
    # Share of the labels of shifted conversations that are the anchor. Below one half, so that only tokens
    # the drafter is not sure of are lost: acceptance decays, it does not end.
    doubt: float = 0.35
    slot_decay: float = 7.0


@dataclass(frozen=True)
class Sample:
    """A conversation whose reply begins at ``reply``.

    ``states[by]`` [T, n_ids * H] are the target's with all layer ids off by ``by``; 0 are the right ones.
    """

    ids: Tensor
    reply: int
    states: dict[int, Tensor]


def draw_samples(
    recipe: Recipe, config: drafter.DrafterConfig, target: Target, encoder: Tokenizer
) -> list[Sample]:
    """Trained conversations with thinking off, shortest first, and their states."""
    rng = random.Random(recipe.seed)
    encoded = []
    for _ in range(recipe.conversations):
        conversation = chat.draw_conversation(rng, recipe.kind_weights, short_share=recipe.short_share)
        prompt, reply = encoder.encode(conversation.prompt()).ids, encoder.encode(conversation.reply()).ids
        encoded.append((prompt + reply, len(prompt)))
    encoded.sort(key=lambda pair: len(pair[0]))
    samples = []
    progress = Progress("states", len(encoded))
    for start in range(0, len(encoded), 32):
        group = encoded[start : start + 32]
        rows = [torch.tensor(ids) for ids, _ in group]
        states = target.states(torch.nn.utils.rnn.pad_sequence(rows, batch_first=True))
        taps = {by: drafter.tapped(states, [i + by for i in config.target_layer_ids]) for by in SHIFTS}
        for n, (row, (_, begin)) in enumerate(zip(rows, group)):
            own = {by: tapped[n, : len(row)].clone() for by, tapped in taps.items()}
            samples.append(Sample(row, begin, own))
        progress.update(len(samples))
    return samples


@dataclass(frozen=True)
class Batch:
    """``states`` [B, T, n_ids * H]; ``anchors`` [B, A]; ``block``, ``labels`` and ``weights`` [B, A, S]."""

    states: Tensor
    anchors: Tensor
    block: Tensor
    labels: Tensor
    weights: Tensor


def draw_batch(recipe: Recipe, phase: Phase, samples: Sequence[Sample], rng: random.Random) -> Batch:
    """Blocks at random anchors of conversations of about the same length."""
    start = rng.randrange(len(samples) - recipe.batch + 1)
    group = samples[start : start + recipe.batch]
    lengths = torch.tensor([len(sample.ids) for sample in group])
    replies = torch.tensor([sample.reply for sample in group])
    likely = (1 - phase.shifted_share, phase.shifted_share / 2, phase.shifted_share / 2)
    shifts = rng.choices(SHIFTS, likely, k=recipe.batch)
    states = torch.nn.utils.rnn.pad_sequence([s.states[by] for s, by in zip(group, shifts)], batch_first=True)
    ids = torch.nn.utils.rnn.pad_sequence([sample.ids for sample in group], batch_first=True)

    share = torch.rand(recipe.batch, recipe.anchors)
    anchors = replies[:, None] + (share * (lengths - replies - 1)[:, None]).long()
    slots = anchors[..., None] + torch.arange(recipe.block_size)
    tokens = F.pad(ids, (0, recipe.block_size)).gather(1, slots.flatten(1)).view(slots.shape)
    shown, rows = _shown_rows(recipe, slots.shape)
    block = torch.where(shown, rows, torch.tensor(tokenizer.MASK_ID))
    block[..., 0] = tokens[..., 0]
    doubted = (torch.tensor(shifts) != 0)[:, None, None] & (torch.rand(tokens.shape) < recipe.doubt)
    labels = torch.where(shown, rows, torch.where(doubted, tokens[..., :1], tokens))
    counted = shown | (slots < lengths[:, None, None])
    decay = torch.exp(-torch.arange(-1.0, recipe.block_size - 1) / recipe.slot_decay)
    return Batch(states, anchors, block, labels, counted * decay)


def _shown_rows(recipe: Recipe, shape: Sequence[int]) -> tuple[Tensor, Tensor]:
    """Which slots [B, A, S] of filled and revealed blocks hold another row than the mask, and which one."""
    fate = torch.rand(*shape[:2], 1)
    filled = (fate < recipe.filled_share).expand(*shape)
    revealed = (fate >= recipe.filled_share) & (fate < recipe.filled_share + recipe.revealed_share)
    revealed = revealed & (torch.rand(*shape) < torch.rand(*shape[:2], 1))
    rows = torch.where(filled, _other_rows((*shape[:2], 1)), _other_rows(shape))
    return filled | revealed, rows


def _other_rows(shape: Sequence[int]) -> Tensor:
    """Random embedding rows, never the mask's."""
    rows = torch.randint(tokenizer.EMBEDDING_ROWS - 1, tuple(shape))
    return rows + (rows >= tokenizer.MASK_ID).long()


def loss_of(weights: drafter.Weights, config: drafter.DrafterConfig, target: Target, batch: Batch) -> Tensor:
    """Weighted cross-entropy of the drafted slots."""
    cache = drafter.context_cache(weights, config, batch.states)
    embeddings = F.embedding(batch.block, target.embedding)
    states = drafter.draft_states(weights, config, cache, embeddings, batch.anchors)
    logits = F.linear(states[:, :, 1:], target.head)
    losses = F.cross_entropy(logits.flatten(0, 2), batch.labels[..., 1:].flatten(), reduction="none")
    share = batch.weights[..., 1:].flatten()
    return (losses * share).sum() / share.sum()


def train(
    recipe: Recipe, config: drafter.DrafterConfig, target: Target, samples: Sequence[Sample]
) -> drafter.Weights:
    """Train from scratch, phase after phase."""
    torch.manual_seed(recipe.seed)
    rng = random.Random(recipe.seed)
    weights = drafter.initial_weights(config, torch.Generator().manual_seed(recipe.seed))
    # The key norms stay 1: vLLM 0.32.0 on a CPU norms the context keys of every layer with the weight of the
    # first, so a drafter whose layers differ there is accepted less than its mathematics says.
    parameters = [weight.requires_grad_() for name, weight in weights.items() if "k_norm" not in name]
    for number, phase in enumerate(recipe.phases, 1):
        optimizer = optimizer_for(parameters, phase.learning_rate)
        progress = Progress(f"drafter, phase {number}/{len(recipe.phases)}", phase.steps)
        for step in range(phase.steps):
            set_learning_rate(optimizer, phase.learning_rate, step, phase.steps, recipe.warm_up)
            loss = loss_of(weights, config, target, draw_batch(recipe, phase, samples, rng))
            optimizer.zero_grad()
            torch.autograd.backward(loss)
            torch.nn.utils.clip_grad_norm_(parameters, 1.0)
            optimizer.step()
            progress.update(step + 1, f"loss {loss.item():.3f}")
    return weights


def config_for(recipe: Recipe, target: dict[str, Any]) -> drafter.DrafterConfig:
    """The drafter's dimensions follow the target's."""
    sizes = ("hidden_size", "intermediate_size", "head_dim", "rms_norm_eps")
    heads = ("num_attention_heads", "num_key_value_heads")
    return drafter.DrafterConfig(
        **{name: target[name] for name in sizes + heads},
        num_hidden_layers=recipe.layers,
        rope_theta=target["rope_parameters"]["rope_theta"],
        block_size=recipe.block_size,
        mask_token_id=tokenizer.MASK_ID,
        target_layer_ids=drafter.layer_ids(target["num_hidden_layers"], recipe.taps),
    )


def run(target_directory: Path, directory: Path) -> None:
    """Train a drafter for a trained target and write it."""
    recipe = Recipe()
    target = Target.load(target_directory)
    config = config_for(recipe, target.config)
    samples = draw_samples(recipe, config, target, tokenizer.load(target_directory))
    weights = train(recipe, config, target, samples)
    drafter.save(weights, drafter.config_json(config, target.config), directory)
