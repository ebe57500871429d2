"""Train the target: a Qwen3 of 12 layers on generated conversations (one CPU thread, about 15 minutes)."""

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

from . import chat, target, tokenizer
from .progress import Progress


@dataclass(frozen=True)
class Stage:
    """``steps`` batches of ``batch`` rows of ``window`` tokens."""

    steps: int
    window: int
    batch: int


@dataclass(frozen=True)
class Recipe:
    """What determines the weights, apart from the version of torch."""

    seed: int = 1
    # Short windows first because they are cheap; the last stage teaches distances of several hundred tokens.
    stages: tuple[Stage, ...] = (
        Stage(steps=600, window=256, batch=16),
        Stage(steps=200, window=640, batch=6),
    )
    learning_rate: float = 3e-3
    warm_up: int = 50
    conversations: int = 12000
    short_share: float = 0.75
    thinking_share: float = 0.15
    # Carrying digits is the hardest thing to learn here, the memorised lists the easiest.
    kind_weights: tuple[float, ...] = (1.0, 1.0, 0.8, 2.5, 0.7)
    # A prompt cannot be foreseen; a little weight keeps its representation useful.
    prompt_weight: float = 0.05


Example = tuple[list[int], list[float]]


def encode(
    conversation: chat.Conversation, encoder: Tokenizer, *, thinking: bool, prompt_weight: float
) -> Example:
    """Token ids, and per token the weight of predicting it."""
    prompt = encoder.encode(conversation.prompt(thinking=thinking)).ids
    reply = encoder.encode(conversation.reply(thinking=thinking)).ids
    return prompt + reply, [prompt_weight] * len(prompt) + [1.0] * len(reply)


def draw_examples(recipe: Recipe, encoder: Tokenizer, rng: random.Random) -> list[Example]:
    """Conversations that fit the longest window, most of them a single question."""
    longest = max(stage.window for stage in recipe.stages)
    examples: list[Example] = []
    while len(examples) < recipe.conversations:
        conversation = chat.draw_conversation(rng, recipe.kind_weights, short_share=recipe.short_share)
        thinking = rng.random() < recipe.thinking_share
        example = encode(conversation, encoder, thinking=thinking, prompt_weight=recipe.prompt_weight)
        if len(example[0]) <= longest:
            examples.append(example)
    return examples


def pack(examples: Sequence[Example], stage: Stage, rng: random.Random) -> tuple[Tensor, Tensor]:
    """Random conversations one after another -> ids and weights [batch, window + 1]."""
    ids, weights = [], []
    for _ in range(stage.batch):
        row: list[int] = []
        row_weights: list[float] = []
        while len(row) <= stage.window:
            more, more_weights = rng.choice(examples)
            row, row_weights = row + more, row_weights + more_weights
        ids.append(row[: stage.window + 1])
        weights.append(row_weights[: stage.window + 1])
    return torch.tensor(ids), torch.tensor(weights)


def optimizer_for(parameters: Sequence[Tensor], learning_rate: float) -> torch.optim.AdamW:
    """AdamW with weight decay on matrices only."""
    matrices = [p for p in parameters if p.ndim == 2]
    vectors = [p for p in parameters if p.ndim != 2]
    groups = [{"params": matrices, "weight_decay": 0.01}, {"params": vectors, "weight_decay": 0.0}]
    return torch.optim.AdamW(groups, lr=learning_rate, betas=(0.9, 0.95), fused=True)


def set_learning_rate(optimizer: torch.optim.AdamW, peak: float, step: int, steps: int, warm_up: int) -> None:
    """Linear warm-up, then linear decay to 2 % of the peak."""
    for group in optimizer.param_groups:
        group["lr"] = peak * min(1.0, (step + 1) / warm_up) * max(0.02, 1 - step / steps)


def train(recipe: Recipe, encoder: Tokenizer) -> Any:
    """Train from scratch."""
    torch.manual_seed(recipe.seed)
    rng = random.Random(recipe.seed)
    model = target.new_model()
    examples = draw_examples(recipe, encoder, rng)
    parameters = list(model.parameters())
    optimizer = optimizer_for(parameters, recipe.learning_rate)
    plan = [stage for stage in recipe.stages for _ in range(stage.steps)]
    progress = Progress("target", len(plan))
    model.train()
    for step, stage in enumerate(plan):
        set_learning_rate(optimizer, recipe.learning_rate, step, len(plan), recipe.warm_up)
        ids, weights = pack(examples, stage, rng)
        logits = model(ids[:, :-1], use_cache=False).logits
        losses = F.cross_entropy(logits.flatten(0, 1), ids[:, 1:].flatten(), reduction="none")
        loss = (losses * weights[:, 1:].flatten()).sum() / weights[:, 1:].sum()
        optimizer.zero_grad()
        torch.autograd.backward(loss)
        torch.nn.utils.clip_grad_norm_(parameters, 1.0)
        optimizer.step()
        progress.update(step + 1, f"loss {loss.item():.4f}")
    return model


def run(directory: Path) -> None:
    """Train with the tokenizer in ``directory`` and write the weights beside it."""
    target.save(train(Recipe(), tokenizer.load(directory)), directory)
