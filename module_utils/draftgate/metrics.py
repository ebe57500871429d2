"""Acceptance from vLLM's counters and from a response's own metrics.

Words: a *draft* is one verified step of one request; it proposes up to k *draft tokens*; the first
rejected one ends it. ``per_position[i]`` counts the drafts whose token i was accepted, so it never
rises with i, its sum is the accepted tokens, and mean acceptance length = 1 + accepted / drafts.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from typing import Any, Dict, Iterator, List, Mapping, Tuple

from .errors import MeasureError

_DRAFTS = "vllm:spec_decode_num_drafts_total"
_DRAFT_TOKENS = "vllm:spec_decode_num_draft_tokens_total"
_ACCEPTED = "vllm:spec_decode_num_accepted_tokens_total"
_PER_POSITION = "vllm:spec_decode_num_accepted_tokens_per_pos_total"
_GENERATED = "vllm:generation_tokens_total"
_REQUESTS = "vllm:request_success_total"
_REQUIRED = (_DRAFTS, _DRAFT_TOKENS, _ACCEPTED, _PER_POSITION, _GENERATED)

_DOING = "reading the engine's speculative counters"
# A label's value may hold braces, spaces and escaped quotes: vLLM puts the served model name there.
_LABEL_VALUE = r'"(?:[^"\\]|\\.)*"'
_SAMPLE = re.compile(
    rf'([a-zA-Z_:][\w:]*)(?:\{{((?:[^"}}]|{_LABEL_VALUE})*)\}})?[ \t]+(\S+)(?:[ \t]+-?\d+)?\s*'
)
_LABEL = re.compile(rf"([a-zA-Z_]\w*)\s*=\s*({_LABEL_VALUE})")
_ESCAPE = re.compile(r"\\(.)")


@dataclass(frozen=True)
class Acceptance:
    """Counts of drafting: of one request, of one workload, or of a whole measurement."""

    drafts: int = 0
    draft_tokens: int = 0
    accepted_tokens: int = 0
    per_position: Tuple[int, ...] = ()

    def __add__(self, other: Acceptance) -> Acceptance:
        return Acceptance(
            self.drafts + other.drafts,
            self.draft_tokens + other.draft_tokens,
            self.accepted_tokens + other.accepted_tokens,
            _added(self.per_position, other.per_position),
        )

    def violations(self, num_speculative_tokens: int) -> List[str]:
        """What cannot be true of counters of one engine with this k; empty when all is well."""
        k, per_position = num_speculative_tokens, self.per_position
        rules = [
            (len(per_position) == k, f"{len(per_position)} positions are counted and k is {k}"),
            (
                sum(per_position) == self.accepted_tokens,
                f"the positions add up to {sum(per_position)}, accepted were {self.accepted_tokens}",
            ),
            (
                all(a >= b for a, b in zip((self.drafts,) + per_position, per_position)),
                f"a later position is accepted more often than an earlier one: {list(per_position)}",
            ),
            (
                self.accepted_tokens <= self.draft_tokens <= self.drafts * k,
                f"{self.accepted_tokens} accepted, {self.draft_tokens} drafted, {self.drafts} drafts of {k}",
            ),
        ]
        return [message for holds, message in rules if not holds]

    def as_dict(self) -> Dict[str, Any]:
        """With the rates: per-position ones are unconditional. Without drafts there are none (null)."""
        drafts = self.drafts
        return {
            "drafts": drafts,
            "draft_tokens": self.draft_tokens,
            "accepted_tokens": self.accepted_tokens,
            "rate": self.accepted_tokens / self.draft_tokens if self.draft_tokens else None,
            "mean_acceptance_length": 1 + self.accepted_tokens / drafts if drafts else None,
            "per_position": [count / drafts for count in self.per_position] if drafts else [],
        }


@dataclass(frozen=True)
class Counters:
    """The engine's cumulative counters (or what was added to them), summed over its engines and models."""

    drafts: int
    draft_tokens: int
    accepted_tokens: int
    per_position: Tuple[int, ...]
    generation_tokens: int
    requests: int = 0

    def __sub__(self, before: Counters) -> Counters:
        """What was counted since ``before``.

        :raises MeasureError: a counter went backwards, or there are other positions: the engine restarted.
        """
        delta = Counters(
            self.drafts - before.drafts,
            self.draft_tokens - before.draft_tokens,
            self.accepted_tokens - before.accepted_tokens,
            tuple(new - old for new, old in zip(self.per_position, before.per_position)),
            self.generation_tokens - before.generation_tokens,
            self.requests - before.requests,
        )
        counts = (
            delta.drafts,
            delta.draft_tokens,
            delta.accepted_tokens,
            delta.generation_tokens,
            delta.requests,
        )
        if (
            len(self.per_position) != len(before.per_position)
            or min(counts + delta.per_position, default=0) < 0
        ):
            raise MeasureError(
                "comparing the engine's counters",
                "a counter went backwards: the engine restarted in between",
                "counters that only grow",
                "Its log says why it died; then measure again.",
                code="DG824",
            )
        return delta

    @property
    def acceptance(self) -> Acceptance:
        return Acceptance(self.drafts, self.draft_tokens, self.accepted_tokens, self.per_position)


def parse_spec_decode(text: str) -> Counters:
    """The speculative counters of a ``/metrics`` text (vLLM >= 0.9: ``vllm:spec_decode_*_total``).

    :raises MeasureError: one of them is missing, or has a value that no counter has.
    """
    sums: Dict[str, int] = {}
    positions: Dict[int, int] = {}
    for name, labels, value in _samples(text):
        if name == _PER_POSITION:
            position = _position(labels)
            positions[position] = positions.get(position, 0) + value
        sums[name] = sums.get(name, 0) + value
    missing = [name for name in _REQUIRED if name not in sums]
    if missing:
        raise MeasureError(
            _DOING,
            f"/metrics has no {missing[0]}"
            + (f" and {len(missing) - 1} others are missing" if missing[1:] else ""),
            "all speculative counters",
            "The engine runs without a speculative config, or with disable_log_stats: see its log.",
            code="DG821",
            details={"missing": missing},
        )
    if sorted(positions) != list(range(len(positions))):
        raise _unreadable(f"the positions counted are {sorted(positions)}")
    return Counters(
        sums[_DRAFTS],
        sums[_DRAFT_TOKENS],
        sums[_ACCEPTED],
        tuple(positions[index] for index in range(len(positions))),
        sums[_GENERATED],
        sums.get(_REQUESTS, 0),
    )


def request_acceptance(metrics: Mapping[str, Any]) -> Acceptance:
    """One request's own acceptance, from its response's ``metrics``.

    vLLM >= 0.32 with ``--per-request-spec-decode-metrics summary|detailed`` puts
    ``speculative_decoding.acceptance_histogram`` there: entry j counts the steps that accepted exactly
    j draft tokens (vllm/v1/metrics/stats.py, "experimental": hence the cross-check of its sums).

    :raises MeasureError: the object is absent or contradicts itself.
    """
    own = metrics.get("speculative_decoding")
    if not isinstance(own, Mapping):
        raise _unreadable("the response's metrics have no speculative_decoding")
    histogram = own.get("acceptance_histogram")
    if not isinstance(histogram, list) or not histogram or not all(_is_count(count) for count in histogram):
        raise _unreadable(f"acceptance_histogram is {histogram!r}")
    drafts, accepted = sum(histogram), sum(j * count for j, count in enumerate(histogram))
    draft_tokens: Any = own.get("num_draft_tokens")
    said = (own.get("num_spec_steps"), own.get("num_accepted_draft_tokens"))
    if not _is_count(draft_tokens) or said != (drafts, accepted):
        raise _unreadable(
            f"num_draft_tokens is {draft_tokens!r}, steps and accepted are {said}, not {(drafts, accepted)}"
        )
    per_position = tuple(sum(histogram[index:]) for index in range(1, len(histogram)))
    return Acceptance(drafts, int(draft_tokens), accepted, per_position)


def _samples(text: str) -> Iterator[Tuple[str, Dict[str, str], int]]:
    wanted = _REQUIRED + (_REQUESTS,)
    for line in text.splitlines():
        if not line.startswith(wanted):
            continue
        match = _SAMPLE.fullmatch(line)
        if match is None:
            raise _unreadable(f"the line {line[:200]!r} is no sample")
        name, labels, value = match.groups()
        if name in wanted:
            pairs = {
                key: _ESCAPE.sub(_unescape, quoted[1:-1]) for key, quoted in _LABEL.findall(labels or "")
            }
            yield name, pairs, _count(name, value)


def _unescape(match: re.Match[str]) -> str:
    return "\n" if match.group(1) == "n" else match.group(1)


def _position(labels: Mapping[str, str]) -> int:
    text = labels.get("position", "")
    if not (text.isascii() and text.isdigit()):
        raise _unreadable(f"{_PER_POSITION} has position={text!r}")
    return int(text)


def _count(name: str, text: str) -> int:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not math.isfinite(value) or value < 0 or value != int(value):
        raise _unreadable(f"{name} is {text!r}")
    return int(value)


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def _added(left: Tuple[int, ...], right: Tuple[int, ...]) -> Tuple[int, ...]:
    size = max(len(left), len(right))
    padded = (values + (0,) * (size - len(values)) for values in (left, right))
    return tuple(a + b for a, b in zip(*padded))


def _unreadable(observed: str) -> MeasureError:
    return MeasureError(
        _DOING,
        observed,
        "whole numbers that only grow",
        "Compare the engine's version with the supported ones.",
        code="DG822",
    )
