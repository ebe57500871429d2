from __future__ import annotations

from dataclasses import dataclass
from typing import Callable


@dataclass(frozen=True)
class Headroom:
    fits: bool
    sentence: str


@dataclass(frozen=True)
class Choice:
    strategy: str
    why: str


def choose(wished: str, front: bool, serving: bool, headroom: Callable[[], Headroom]) -> Choice:
    if wished == "in_place" or not front or not serving:
        return Choice("in_place", "x")
    h = headroom()
    if not h.fits:
        return Choice("in_place", h.sentence)
    return Choice("side_by_side", "")


def measured(home: object, candidate: object, active: object) -> Headroom:
    return Headroom(False, "two engines were not measured")
