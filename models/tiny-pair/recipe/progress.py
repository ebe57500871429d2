"""Progress of long work: one line now and then, with the elapsed and the remaining time."""

from __future__ import annotations

import sys
import time


def say(text: str) -> None:
    """Print a line at once, also into a pipe."""
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def _clock(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes}m{rest:02d}s" if minutes else f"{rest}s"


class Progress:
    """Prints at most one line every ``interval`` seconds, and one at the end."""

    def __init__(self, name: str, total: int, interval: float = 15.0) -> None:
        self.name, self.total, self.interval = name, total, interval
        self.started = self.printed = time.monotonic()

    def update(self, done: int, note: str = "") -> None:
        """Report ``done`` of ``total`` units."""
        now = time.monotonic()
        if done < self.total and now - self.printed < self.interval:
            return
        self.printed = now
        elapsed = now - self.started
        left = elapsed / done * (self.total - done) if done else float("nan")
        parts = [self.name, f"{100 * done // self.total} %", f"{done}/{self.total}"] + (
            [note] if note else []
        )
        parts.append(f"{_clock(elapsed)}, ~{_clock(left)} left" if done and left else _clock(elapsed))
        say(" | ".join(parts))

    @property
    def seconds(self) -> float:
        return time.monotonic() - self.started
