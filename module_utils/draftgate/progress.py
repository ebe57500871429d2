"""Progress of a named job: written by the job, read by whoever watches, one line when it changes."""

from __future__ import annotations

import contextlib
from typing import Any, Callable, Dict, List, Mapping, Optional

from .errors import InputError
from .files import read_json, write_json

Report = Callable[[str, int, int, str], None]
"""``report(stage, done, total, detail)``; ``total`` 0 = not countable."""

_WRITE_EVERY = 0.5  # seconds; a stage change is always written


def silent(stage: str, done: int, total: int, detail: str) -> None:
    """For callers that nobody watches."""


class ProgressFile:
    """A :data:`Report` that keeps the newest state in a file, with what remains by last time's durations.

    :param path: the progress file.
    :param plan: the stages to come, in order; others are shown as they appear.
    :param durations: seconds each stage took last time (missing: not known).
    :param clock: epoch seconds.
    """

    def __init__(
        self, path: str, plan: List[str], durations: Mapping[str, float], clock: Callable[[], float]
    ) -> None:
        self.path = path
        self.taken: Dict[str, float] = {}
        self._plan, self._durations, self._clock = plan, dict(durations), clock
        self._started = self._stage_started = clock()
        self._stage = ""
        self._written = 0.0

    def __call__(self, stage: str, done: int, total: int, detail: str) -> None:
        now = self._clock()
        if stage != self._stage:
            if self._stage:
                self.taken[self._stage] = self.taken.get(self._stage, 0.0) + now - self._stage_started
            self._stage, self._stage_started = stage, now
        elif now - self._written < _WRITE_EVERY and done != total:
            return
        self._written = now
        state = {
            "stage": stage,
            "done": done,
            "total": total,
            "detail": detail,
            "started": self._started,
            "updated": now,
            "remaining": self._remaining(now, done, total),
        }
        with contextlib.suppress(OSError):  # a full disk must not end the work that is being watched
            write_json(self.path, state)

    def close(self) -> Dict[str, float]:
        """Seconds per stage, the last one included."""
        self("done", 1, 1, "")
        return dict(self.taken)

    def _remaining(self, now: float, done: int, total: int) -> Optional[float]:
        """Seconds left: this stage by its count where it has one, the later ones by last time."""
        elapsed = now - self._stage_started
        known = self._durations.get(self._stage)
        if total and done and elapsed > 1:
            this: Optional[float] = elapsed / done * (total - done)
        else:
            this = None if known is None else max(0.0, known - elapsed)
        later = self._plan[self._plan.index(self._stage) + 1 :] if self._stage in self._plan else []
        rest = [self._durations.get(stage) for stage in later]
        if this is None or any(seconds is None for seconds in rest):
            return None
        return this + sum(seconds for seconds in rest if seconds is not None)


def read(path: str) -> Dict[str, Any]:
    """The newest state, or ``{}`` where no job has reported yet."""
    try:
        return read_json(path, "reading a job's progress")
    except InputError:
        return {}


def seen_at(state: Mapping[str, Any], now: float) -> Dict[str, Any]:
    """The state as of ``now``: time passes for who watches while a job waits and has nothing to report."""
    if not state:
        return {}
    passed, remaining = now - state["updated"], state["remaining"]
    return {
        **state,
        "updated": now,
        "remaining": None if remaining is None else max(0.0, remaining - passed),
    }


def span(seconds: float) -> str:
    """``74`` → ``1m14s``."""
    whole = int(round(seconds))
    hours, minutes = divmod(whole // 60, 60)
    if hours:
        return f"{hours}h{minutes:02d}m"
    return f"{minutes}m{whole % 60:02d}s" if minutes else f"{whole}s"


def line(host: str, job: str, state: Mapping[str, Any]) -> str:
    """One line for a person: ``gpu1 | switch | gate | 41 % | prose 12/40 | 1m12s, ~2m left``."""
    parts = [host, job, str(state.get("stage", "starting"))]
    total, done = state.get("total") or 0, state.get("done") or 0
    if total:
        parts.append(f"{100 * done // total} %")
    if state.get("detail"):
        parts.append(str(state["detail"]))
    elapsed = span(float(state.get("updated", 0.0)) - float(state.get("started", 0.0)))
    remaining = state.get("remaining")
    parts.append(elapsed if remaining is None else f"{elapsed}, ~{span(remaining)} left")
    return " | ".join(parts)
