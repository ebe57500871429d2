"""What this version of the engine does with this pair, and what is not to blame for it."""

from __future__ import annotations

from typing import Dict, Iterable, Iterator, Mapping

from ..contract_facts import Facts
from ..engine_features import features
from ..engine_support import MIXED_WINDOWS, RECORDED_WINDOWS, WINDOWS, judge_engine
from ..findings import INFO, Finding, info
from .record import alike


def engine_reads_it_right(facts: Facts) -> Iterator[Finding]:
    found = features(facts)
    yield from judge_engine(facts.engine, {**_recorded(facts, found), **found})


def _recorded(facts: Facts, found: Mapping[str, str]) -> Dict[str, str]:
    """Windows that a config by hand left out: the engine that they need is said at once."""
    windowed = [entry for entry in alike(facts) if "S" in entry.windows]
    if not windowed or WINDOWS in found or MIXED_WINDOWS in found:
        return {}
    entry = windowed[0]
    return {RECORDED_WINDOWS: f"{entry.repo} has {entry.windows}, and the config does not say windows"}


def tree_is_not_the_cause(engine: str, found: Iterable[Finding]) -> Iterator[Finding]:
    """The guess that costs days: said where there is something else to blame, and only there."""
    if any(finding.severity != INFO and finding.code != "DG401" for finding in found):
        yield info(
            code="DG420",
            field="engine.verification",
            observed="a linear chain of drafts",
            expected="a linear chain of drafts",
            message=(
                f"{engine} verifies DFlash's drafts as a linear chain, as the reference and all published "
                "numbers do: that there is no tree verification is not the cause of low acceptance."
            ),
            fix="Look at the other findings.",
            source="DFlash reference implementation",
        )
