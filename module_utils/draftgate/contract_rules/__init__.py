"""The rules of the contract. A rule takes the facts and yields findings about one field.

A new one is a public function ``(facts: Facts) -> Iterator[Finding]`` in the file of its subject.
"""

from __future__ import annotations

from typing import Callable, Iterator, Tuple

from ..contract_facts import Facts
from ..findings import Finding
from . import attention, config, engine, layers, mask, record, weights

Rule = Callable[[Facts], Iterator[Finding]]
_SIGNATURE = {"facts": "Facts", "return": "Iterator[Finding]"}

# In the order of their files, config first: what it notes as a wrong type is not judged again.
RULES: Tuple[Rule, ...] = tuple(
    rule
    for module in (config, mask, layers, weights, attention, record, engine)
    for name, rule in vars(module).items()
    if getattr(rule, "__annotations__", None) == _SIGNATURE and not name.startswith("_")
)
