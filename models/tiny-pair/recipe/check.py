"""Check the pair against what it is made for, and write the figures of its model card.

Everything is read from the files and measured by the reference simulation; nothing is taken from the
training.
"""

from __future__ import annotations

import json
import re
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer
from transformers import AutoTokenizer

from . import chat, drafter, prompts, simulate, tokenizer
from .grammar import KINDS, held_out_exercises
from .progress import Progress, say
from .target import Target

ANSWERS_PER_KIND, LATE_PER_KIND = 25, 8
ORDINARY_MASKS = 50
MARKS = ("<!-- figures: written by recipe/check.py --write -->", "<!-- end of figures -->")


@dataclass(frozen=True)
class Criterion:
    """One thing the pair must fulfil."""

    name: str
    observed: str
    expected: str
    met: bool


def at_least(name: str, value: float, bound: float, digits: int = 2) -> Criterion:
    """A number with a lower bound."""
    return Criterion(name, f"{value:.{digits}f}", f">= {bound:g}", value >= bound)


def equal(name: str, value: object, wanted: object) -> Criterion:
    """A value that has to be just this."""
    return Criterion(name, str(value), str(wanted), value == wanted)


@dataclass(frozen=True)
class Pair:
    """The committed files, loaded."""

    target_path: Path
    drafter_path: Path
    target: Target
    weights: drafter.Weights
    config: drafter.DrafterConfig
    encoder: Tokenizer


def load(root: Path) -> Pair:
    """Load ``target/`` and ``drafter/`` of a directory."""
    target_path, drafter_path = root / "target", root / "drafter"
    weights, config = drafter.load(drafter_path)
    return Pair(
        target_path, drafter_path, Target.load(target_path), weights, config, tokenizer.load(target_path)
    )


def named_tokens(pair: Pair) -> dict[int, str]:
    """The tokens that tokenizer_config.json names."""
    data = json.loads((pair.target_path / "tokenizer_config.json").read_text(encoding="utf-8"))
    return {int(i): token["content"] for i, token in data["added_tokens_decoder"].items()}


def check_target(pair: Pair) -> list[Criterion]:
    """Size of the files, architecture and tokenizer."""
    files = [f for path in (pair.target_path, pair.drafter_path) for f in path.iterdir()]
    size = sum(f.stat().st_size for f in files) / 1e6
    config, named = pair.target.config, named_tokens(pair)
    mask = named.get(pair.config.mask_token_id, "")
    return [
        Criterion("size of both, MB", f"{size:.1f}", "<= 14", size <= 14),
        equal("model_type of the target", config["model_type"], "qwen3"),
        at_least("layers of the target", config["num_hidden_layers"], 12, 0),
        at_least("max_position_embeddings", config["max_position_embeddings"], 2048, 0),
        equal("token 0", named[0], "<|endoftext|>"),
        equal("end of turn", named[config["eos_token_id"]], "<|im_end|>"),
        equal("mask token", mask, tokenizer.MASK_TOKEN),
        equal("mask token in tokenizer.json", pair.encoder.token_to_id(mask), None),
        at_least("unused embedding rows", config["vocab_size"] - max(named) - 1, 1, 0),
    ]


def check_drafter(pair: Pair) -> list[Criterion]:
    """The drafter's config and tensors have the published form."""
    written = json.loads((pair.drafter_path / "config.json").read_text(encoding="utf-8"))
    blank = drafter.initial_weights(pair.config, torch.Generator())
    return [
        at_least("block_size", written["block_size"], 8, 0),
        equal(
            "keys of dflash_config", sorted(written["dflash_config"]), ["mask_token_id", "target_layer_ids"]
        ),
        equal(
            "dtype",
            (written["dtype"], {w.dtype for w in pair.weights.values()}),
            ("float32", {torch.float32}),
        ),
        Criterion(
            "names and shapes of the tensors",
            f"{len(pair.weights)} tensors",
            "11 per layer and 3",
            {n: w.shape for n, w in pair.weights.items()} == {n: w.shape for n, w in blank.items()},
        ),
    ]


def long_conversations(per_kind: int) -> list[chat.Conversation]:
    """Held-out questions at the end of conversations of some 500 tokens."""
    exercises = held_out_exercises(per_kind + 4)
    by_kind = {kind: [e for e in exercises if e.kind == kind] for kind in KINDS}
    conversations = []
    for kind in KINDS:
        for i in range(per_kind):
            earlier = [
                by_kind[other][(i + shift) % per_kind] for shift, other in enumerate(KINDS) if other != kind
            ][:3]
            notes = by_kind["prose"][per_kind + i % 4].answer
            conversations.append(chat.Conversation(notes, tuple(earlier), by_kind[kind][i]))
    return conversations


def check_texts(pair: Pair, prompt_file: Path) -> list[Criterion]:
    """The prompt set and the chat template are those of the recipe."""
    text = prompt_file.read_text(encoding="utf-8")
    stated = prompts.digest(text) in (prompt_file.parent / "README.md").read_text(encoding="utf-8")
    full = AutoTokenizer.from_pretrained(pair.target_path)
    same = all(
        full.apply_chat_template(
            c.messages(), tokenize=False, add_generation_prompt=True, enable_thinking=thinking
        )
        == c.prompt(thinking=thinking)
        for c in long_conversations(2)
        for thinking in (False, True)
    )
    return [
        equal("prompt set is the recipe's", text == prompts.lines(), True),
        equal("prompts/README.md states the set's digest", stated, True),
        equal("chat template gives the trained text", same, True),
        equal("length of the full tokenizer", len(full), tokenizer.VOCABULARY + len(tokenizer.CONFIG_ONLY)),
    ]


def record(
    pair: Pair, conversations: Sequence[chat.Conversation], *, thinking: bool = False
) -> simulate.Recording:
    """Greedy answers, as long as the longest right one: what goes on longer is wrong."""
    ids = [pair.encoder.encode(c.prompt(thinking=thinking)).ids for c in conversations]
    right_lengths = [len(pair.encoder.encode(c.reply(thinking=thinking)).ids) for c in conversations]
    return simulate.record(
        pair.target,
        ids,
        max_tokens=max(right_lengths),
        end_id=tokenizer.END_OF_TURN_ID,
        lookahead=pair.config.block_size,
    )


def right(
    pair: Pair, conversations: Sequence[chat.Conversation], recording: simulate.Recording
) -> list[bool]:
    """Whether each answer is the expected one, to the character."""
    verdicts = []
    for i, conversation in enumerate(conversations):
        text = pair.encoder.decode(recording.answer(i), skip_special_tokens=False)
        verdicts.append(text == conversation.last.answer + "<|im_end|>")
    return verdicts


def mean_length(pair: Pair, recording: simulate.Recording, **changes: Any) -> float:
    """Mean acceptance length with some fields of the drafter's config changed."""
    return simulate.total(
        simulate.simulate(pair.weights, replace(pair.config, **changes), recording)
    ).mean_length


def shifted(pair: Pair, by: int) -> tuple[int, ...]:
    """All layer ids, each off by the same number."""
    return tuple(i + by for i in pair.config.target_layer_ids)


def check_answers(pair: Pair) -> tuple[list[Criterion], list[str]]:
    """The target answers held-out questions rightly, also late in a conversation."""
    single = [chat.Conversation("", (), e) for e in held_out_exercises(ANSWERS_PER_KIND)]
    late = long_conversations(LATE_PER_KIND)
    share: list[bool] = []
    late_share: list[bool] = []
    rows = ["| kind | right, single question | right, late in a conversation |", "|---|---|---|"]
    late_lengths: list[int] = []
    for kind in KINDS:
        group = [c for c in single if c.last.kind == kind]
        verdicts = right(pair, group, record(pair, group))
        late_group = [c for c in late if c.last.kind == kind]
        recording = record(pair, late_group)
        late_verdicts = right(pair, late_group, recording)
        late_lengths += (recording.first + recording.lengths).tolist()
        rows.append(
            f"| {kind} | {sum(verdicts)}/{len(verdicts)} | {sum(late_verdicts)}/{len(late_verdicts)} |"
        )
        share, late_share = share + verdicts, late_share + late_verdicts
    rows.append("")
    rows.append(f"Late answers end at token {min(late_lengths)} to {max(late_lengths)} of the conversation.")
    return [
        at_least("share of right answers, single question", statistics.mean(share), 0.9),
        at_least("share of right answers, late in a conversation", statistics.mean(late_share), 0.9),
        at_least("median end of a late answer, tokens", statistics.median(late_lengths), 500, 0),
    ], rows


def check_acceptance(
    pair: Pair, recording: simulate.Recording, verdicts: Sequence[bool]
) -> tuple[list[Criterion], list[str]]:
    """Acceptance on the prompt set, per kind."""
    results = simulate.simulate(pair.weights, pair.config, recording)
    k = pair.config.block_size - 1
    rows = [
        "| kind | right | answer tokens | drafts | accepted | τ | accepted per position, % |",
        "|---|---|---|---|---|---|---|",
    ]
    lengths = {}
    for name in (*KINDS, "all"):
        chosen = [i for i in range(len(results)) if name in ("all", KINDS[i // prompts.PER_KIND])]
        part = simulate.total([results[i] for i in chosen])
        lengths[name] = part.mean_length
        tokens = statistics.mean(int(recording.lengths[i]) for i in chosen)
        shape = " ".join(f"{100 * rate:.0f}" for rate in part.rates())
        score = f"{sum(verdicts[i] for i in chosen)}/{len(chosen)}"
        rows.append(
            f"| {name} | {score} | {tokens:.0f} | {part.drafts} | {part.accepted} "
            f"| {part.mean_length:.2f} | {shape} |"
        )
    kinds = [lengths[kind] for kind in KINDS]
    drafts = simulate.total(results).drafts
    return [
        at_least("share of right answers, prompt set", statistics.mean(verdicts), 0.9),
        Criterion(f"drafts over the prompt set at k = {k}", str(drafts), "> 250", drafts > 250),
        at_least("τ of the easiest kind", max(kinds), 5),
        at_least("easiest kind ÷ hardest kind", max(kinds) / min(kinds), 1.5),
    ], rows


def wrong_masks(pair: Pair) -> dict[str, list[int]]:
    """Embedding rows of every sort: all that are special or unused, and ordinary ones evenly spread."""
    named = named_tokens(pair)
    ordinary = [i for i in range(tokenizer.VOCABULARY) if i not in named]
    return {
        "special and added tokens": [i for i in named if i != pair.config.mask_token_id],
        "unused rows": list(range(max(named) + 1, pair.target.config["vocab_size"])),
        "ordinary tokens": ordinary[:: len(ordinary) // ORDINARY_MASKS],
    }


def check_masks(pair: Pair, recording: simulate.Recording) -> tuple[list[Criterion], list[str]]:
    """Other embedding rows as the mask."""
    sorts = wrong_masks(pair)
    progress = Progress("masks", sum(map(len, sorts.values())))
    rows = ["| wrong mask | rows tried | τ, mean | τ, highest |", "|---|---|---|---|"]
    highest, done = 0.0, 0
    for name, ids in sorts.items():
        values = []
        for i in ids:
            values.append(mean_length(pair, recording, mask_token_id=i))
            done += 1
            progress.update(done)
        rows.append(f"| {name} | {len(values)} | {statistics.mean(values):.2f} | {max(values):.2f} |")
        highest = max(highest, *values)
    return [Criterion("highest τ of any wrong mask", f"{highest:.2f}", "< 1.5", highest < 1.5)], rows


def check_layers(pair: Pair, recording: simulate.Recording) -> tuple[list[Criterion], list[str]]:
    """All layer ids one off; other changes are only reported."""
    healthy = mean_length(pair, recording)
    cost = {
        by: 100 * (1 - mean_length(pair, recording, target_layer_ids=shifted(pair, by)) / healthy)
        for by in (-1, 1)
    }
    rows = ["| change | τ | against right |", "|---|---|---|", f"| none | {healthy:.2f} | |"]
    changes: list[tuple[str, dict[str, Any]]] = [
        (f"all layer ids {by:+d}: {list(shifted(pair, by))}", {"target_layer_ids": shifted(pair, by)})
        for by in (-1, 1)
    ]
    for tap, layer in enumerate(pair.config.target_layer_ids):
        for by in (-1, 1):
            ids = list(pair.config.target_layer_ids)
            ids[tap] = layer + by
            changes.append((f"one layer id {by:+d}: {ids}", {"target_layer_ids": tuple(ids)}))
    changes += [(f"rope_theta {theta:.0e}", {"rope_theta": theta}) for theta in (5e3, 1e5, 1e6)]
    for name, change in changes:
        value = mean_length(pair, recording, **change)
        rows.append(f"| {name} | {value:.2f} | {100 * (value / healthy - 1):+.1f} % |")
    return [at_least(f"cost of all layer ids {by:+d}, %", value, 20, 1) for by, value in cost.items()], rows


def other_forms(pair: Pair, conversations: Sequence[chat.Conversation], healthy: float) -> list[str]:
    """Acceptance where the drafter was not trained, or further back in a conversation; reported only."""
    thinking = mean_length(pair, record(pair, conversations, thinking=True))
    late = mean_length(pair, record(pair, long_conversations(4)))
    return [
        "| form | τ |",
        "|---|---|",
        f"| prompt set | {healthy:.2f} |",
        f"| prompt set, thinking on (the drafter never saw it) | {thinking:.2f} |",
        f"| late in a conversation | {late:.2f} |",
    ]


def check(pair: Pair, prompt_file: Path) -> tuple[list[Criterion], str]:
    """All criteria, and the figures as Markdown."""
    conversations = [chat.Conversation("", (), e) for e in held_out_exercises(prompts.PER_KIND)]
    recording = record(pair, conversations)
    two_of_each = record(pair, conversations[:: prompts.PER_KIND // 2])
    criteria = check_target(pair) + check_drafter(pair) + check_texts(pair, prompt_file)
    parts = [
        check_acceptance(pair, recording, right(pair, conversations, recording)),
        check_answers(pair),
        check_masks(pair, two_of_each),
        check_layers(pair, recording),
    ]
    tables = ["\n".join(rows) for _, rows in parts]
    tables.append("\n".join(other_forms(pair, conversations, mean_length(pair, recording))))
    return criteria + [criterion for found, _ in parts for criterion in found], "\n\n".join(tables)


def write_card(card: Path, figures: str) -> None:
    """Replace what is between the marks of the model card."""
    text = card.read_text(encoding="utf-8")
    pattern = re.compile(f"({re.escape(MARKS[0])}\n).*({re.escape(MARKS[1])})", re.DOTALL)
    if not pattern.search(text):
        raise SystemExit(
            f"writing the figures: {card} has no line {MARKS[0]!r}; put both marks where they belong"
        )
    card.write_text(pattern.sub(lambda m: f"{m[1]}\n{figures}\n\n{m[2]}", text), encoding="utf-8")


def run(root: Path, prompt_file: Path, *, write: bool) -> None:
    """Print figures and verdicts, ``write`` the figures into the model card; fail if a criterion does."""
    criteria, figures = check(load(root), prompt_file)
    say(f"\n{figures}\n")
    for criterion in criteria:
        verdict = "ok  " if criterion.met else "FAIL"
        say(f"{verdict} {criterion.name}: {criterion.observed} (expected {criterion.expected})")
    if write:
        write_card(root / "README.md", figures)
    missed = sum(not criterion.met for criterion in criteria)
    if missed:
        raise SystemExit(
            f"checking the tiny pair: {missed} of {len(criteria)} criteria are not met (FAIL above)"
        )
