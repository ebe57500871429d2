from __future__ import annotations

from dataclasses import dataclass
from typing import Optional, Protocol

from . import progress
from .layout import Home


@dataclass(frozen=True)
class Drained:
    seconds: float
    left: int


class Front(Protocol):
    def routed(self) -> Optional[int]: ...
    def open(self, port: int) -> None: ...
    def close(self) -> None: ...
    def drain(self, seconds: Optional[float], report: progress.Report) -> Drained: ...


class NoFront:
    def routed(self) -> Optional[int]:
        return None

    def open(self, port: int) -> None: ...
    def close(self) -> None: ...
    def drain(self, seconds: Optional[float], report: progress.Report) -> Drained:
        return Drained(0.0, 0)


def front_of(home: Home) -> Front:
    return NoFront()
