"""What the rules share: how a finding is made, and words that several of them say."""

from __future__ import annotations

from functools import partial
from typing import Any, Callable, Iterator

from ..contract_facts import Facts
from ..findings import ERROR, INFO, WARNING, Finding

Rule = Callable[[Facts], Iterator[Finding]]

error = partial(Finding, severity=ERROR)
warning = partial(Finding, severity=WARNING)
info = partial(Finding, severity=INFO)

FROM_THE_REVISION = "to the value in the config.json of the drafter's revision"
COMPARE = "Compare with the drafter's own config.json"


def is_absent(facts: Facts, path: str) -> bool:
    """The config says nothing about ``path``, and that was not reported as a wrong type already."""
    return facts.has_config and facts.drafter.raw(path) is None and not facts.drafter.is_wrong(path)


def assumed(facts: Facts, key: str, proven: Any, prover: str) -> Iterator[Finding]:
    """DG236, an info: the engine's silent default for an absent ``key`` is what ``prover`` shows."""
    path = facts.at(key)
    yield info(
        code="DG236",
        field=f"drafter.{path}",
        observed=None,
        expected=proven,
        message=f"{path} is absent: the engine takes {written(facts.default(key))}, as {prover}.",
        fix=f"Nothing; set {path} to {written(proven)} to have it said.",
        source="transformers Qwen3Config",
    )


def written(value: Any) -> str:
    """As JSON has it, and large numbers without an exponent."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, float) and value.is_integer():
        return str(int(value))
    return str(value)
