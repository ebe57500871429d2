"""Waiting for a named job on its host, in slices that a controller can show between."""

from __future__ import annotations

import os
from typing import Any, Dict, Optional

from . import progress
from .backend.base import Backend
from .host import Clocks

_LOOK_EVERY = 0.2  # seconds


def follow(
    backend: Backend, name: str, path: str, wait_seconds: Optional[float], seen: str, clocks: Clocks
) -> Optional[Dict[str, Any]]:
    """Wait until the job ends, enters a stage other than ``seen``, or ``wait_seconds`` pass.

    :param path: the job's progress file.
    :param wait_seconds: None waits for the end.
    :returns: the progress of a job that still runs; None once it has ended.
    """
    until = None if wait_seconds is None else clocks.now() + wait_seconds
    while backend.job_state(name).status == "running":
        state = progress.read(path)
        if until is not None and (clocks.now() >= until or state.get("stage", seen) != seen):
            return state
        clocks.sleep(_LOOK_EVERY)
    return None


def still_running(state: Dict[str, Any], attempt: str) -> Dict[str, Any]:
    """The module result that tells the action plugin to call again."""
    return {"changed": False, "attempt": attempt, "job": {"running": True, "progress": state}}


def forget(path: str) -> None:
    """Remove an old progress or result file, so that it is not taken for the new job's."""
    if os.path.exists(path):
        os.unlink(path)
