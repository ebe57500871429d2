"""Greedy acceptance of a DFlash drafter without a server.

The target's greedy text does not depend on the drafter, so it is written once, and the states that went
with it are kept. How many draft tokens are accepted at an anchor is then a function of the drafter alone,
and any mask, layer ids or rope base can be judged without running the target again.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from .drafter import DrafterConfig, Weights, context_cache, draft_states, tapped
from .target import Target

CHUNK = 10
"""Prompts whose blocks are computed together; bounds the memory."""


@dataclass(frozen=True)
class Recording:
    """Greedy answers to n prompts, and the target's states while it wrote them.

    ``ids`` [n, T] prompts and answers, right-padded; ``first`` [n] position of the first generated token;
    ``lengths`` [n] generated tokens, the end of the turn included; ``states`` the output [n, T, H] of every
    target layer; ``embedding`` and ``head`` [rows, H] of the target.
    """

    ids: Tensor
    first: Tensor
    lengths: Tensor
    states: tuple[Tensor, ...]
    embedding: Tensor
    head: Tensor

    def answer(self, i: int) -> list[int]:
        """Generated ids of prompt i, end of turn included."""
        start = int(self.first[i])
        return [int(token) for token in self.ids[i, start : start + int(self.lengths[i])]]

    def part(self, rows: slice) -> Recording:
        """The same for some of the prompts, without the padding that only the others need."""
        end = int((self.first[rows] + self.lengths[rows]).max()) + self.lookahead
        states = tuple(layer[rows, :end] for layer in self.states)
        return Recording(
            self.ids[rows, :end], self.first[rows], self.lengths[rows], states, self.embedding, self.head
        )

    @property
    def lookahead(self) -> int:
        """Tokens recorded after the end of the longest sequence: the last block reaches beyond the answer."""
        return self.ids.shape[1] - int((self.first + self.lengths).max())


def record(
    target: Target, prompts: Sequence[Sequence[int]], *, max_tokens: int, end_id: int, lookahead: int
) -> Recording:
    """Answer the prompts greedily (``max_tokens`` at most) and keep every layer's output."""
    rows = [torch.tensor(prompt) for prompt in prompts]
    written = target.write(rows, max_tokens + lookahead)
    ends = (written[:, :max_tokens] == end_id).int()
    lengths = torch.where(ends.any(1), ends.argmax(1) + 1, torch.tensor(max_tokens))
    first = torch.tensor([len(row) for row in rows])
    answered = [
        torch.cat((row, text[: int(length) + lookahead])) for row, text, length in zip(rows, written, lengths)
    ]
    ids = torch.nn.utils.rnn.pad_sequence(answered, batch_first=True)
    return Recording(ids, first, lengths, target.states(ids), target.embedding, target.head)


def _accepted(weights: Weights, config: DrafterConfig, recording: Recording) -> Tensor:
    anchors = recording.first[:, None] + torch.arange(int(recording.lengths.max()))
    slots = anchors[..., None] + torch.arange(config.block_size)
    # Anchors after the end of a short answer are never visited; they only have to stay inside the tensor.
    wanted = recording.ids.gather(1, slots.flatten(1).clamp(max=recording.ids.shape[1] - 1)).view(slots.shape)
    block = torch.full_like(wanted, config.mask_token_id)
    block[..., 0] = wanted[..., 0]
    cache = context_cache(weights, config, tapped(recording.states, config.target_layer_ids))
    states = draft_states(weights, config, cache, F.embedding(block, recording.embedding), anchors)
    drafted = F.linear(states[:, :, 1:].contiguous(), recording.head).argmax(-1)
    return (drafted == wanted[..., 1:]).int().cumprod(-1).sum(-1)


@dataclass(frozen=True)
class Acceptance:
    """Counts as an engine keeps them: ``per_position[i]`` drafts were accepted at least up to position i."""

    drafts: int
    accepted: int
    per_position: tuple[int, ...]

    @property
    def mean_length(self) -> float:
        """Mean acceptance length: tokens per verification step, the target's own token included."""
        return 1 + self.accepted / self.drafts

    def rates(self) -> list[float]:
        """Share of drafts that were accepted at least up to each position."""
        return [count / self.drafts for count in self.per_position]


def total(parts: Sequence[Acceptance]) -> Acceptance:
    """Sum of several counts."""
    per_position = tuple(sum(column) for column in zip(*(part.per_position for part in parts)))
    return Acceptance(sum(p.drafts for p in parts), sum(p.accepted for p in parts), per_position)


def simulate(weights: Weights, config: DrafterConfig, recording: Recording) -> list[Acceptance]:
    """Acceptance of each prompt in a greedy run with ``block_size`` - 1 draft tokens per step.

    As in vLLM the first token comes from the prefill, and the last block counts in full even where it reaches
    beyond the end of the answer.
    """
    results = []
    for start in range(0, len(recording.ids), CHUNK):
        part = recording.part(slice(start, start + CHUNK))
        with torch.no_grad():
            accepted = _accepted(weights, config, part).tolist()
        for at_anchor, length in zip(accepted, part.lengths.tolist()):
            results.append(_walk(at_anchor, length, config.block_size - 1))
    return results


def _walk(at_anchor: Sequence[int], length: int, draft_tokens: int) -> Acceptance:
    steps = []
    written = 1
    while written < length:
        steps.append(at_anchor[written - 1])
        written += steps[-1] + 1
    per_position = tuple(sum(step > i for step in steps) for i in range(draft_tokens))
    return Acceptance(len(steps), sum(steps), per_position)
