"""What this version of the engine does with this pair."""

from __future__ import annotations

from typing import Iterator

from ..contract_facts import Facts
from ..engine_support import judge_engine
from ..findings import Finding
from .attention import windows_of


def engine_reads_it_right(facts: Facts) -> Iterator[Finding]:
    yield from judge_engine(facts.engine, windows_of(facts.drafter))
