"""What the rules share: how a finding is made, and words that several of them say."""

from __future__ import annotations

from functools import partial
from typing import Callable, Iterator

from ..contract_facts import Facts
from ..findings import ERROR, INFO, WARNING, Finding

Rule = Callable[[Facts], Iterator[Finding]]

error = partial(Finding, severity=ERROR)
warning = partial(Finding, severity=WARNING)
info = partial(Finding, severity=INFO)

FROM_THE_REVISION = "to the value in the config.json of the drafter's revision"
