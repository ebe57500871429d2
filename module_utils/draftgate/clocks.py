"""Time as effects: passed in, so that tests and fault injection can put their own there."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Callable


@dataclass(frozen=True)
class Clocks:
    """:param now: epoch seconds, for people and for ages.
    :param boottime: CLOCK_BOOTTIME in seconds, for deadlines: no clock jump moves it.
    """

    now: Callable[[], float] = time.time
    boottime: Callable[[], float] = lambda: time.clock_gettime(time.CLOCK_BOOTTIME)
    sleep: Callable[[float], None] = time.sleep
