"""Waiting for a named job on its host, in slices that a controller can show between."""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass
from typing import Any, Dict, Optional, Tuple

from . import agent, progress
from .backend.base import Backend, Job
from .clocks import Clocks
from .layout import Home

_LOOK_EVERY = 0.2  # seconds


@dataclass(frozen=True)
class Wait:
    """How a caller waits for the job.

    :param seconds: return after this long with ``job.running`` true; None waits for the end.
    :param seen: the stage that the caller has shown; another one returns at once.
    :param attempt: the attempt that an earlier call began; empty = begin.
    """

    seconds: Optional[float] = None
    seen: str = ""
    attempt: str = ""


def follow(backend: Backend, name: str, path: str, wait: Wait, clocks: Clocks) -> Optional[Dict[str, Any]]:
    """Wait until the job ends, enters another stage, or the time is up.

    :param path: the job's progress file.
    :returns: the progress of a job that still runs; None once it has ended.
    """
    until = None if wait.seconds is None else clocks.now() + wait.seconds
    while backend.job_state(name).status == "running":
        state, now = progress.read(path), clocks.now()
        if until is not None and (now >= until or state.get("stage", wait.seen) != wait.seen):
            return progress.seen_at(state, now)
        clocks.sleep(_LOOK_EVERY)
    return None


def command(home: Home, name: str, arguments: Tuple[str, ...], verdicts: Tuple[int, ...]) -> Job:
    """The host's own command as a named job, run by the agent that is current now: an upgrade of the agent
    must not change the code under a job that is started again.

    :param verdicts: the exit codes that are an answer.
    """
    return Job(
        name=name,
        argv=(sys.executable, "-m", agent.PACKAGE, "--home", home.root, *arguments),
        environment={"PYTHONPATH": os.path.realpath(home.agent_current)},
        working_directory=home.root,
        verdict_exit_codes=verdicts,
    )


def still_running(state: Dict[str, Any], attempt: str) -> Dict[str, Any]:
    """The module result that tells the action plugin to call again."""
    return {"changed": False, "attempt": attempt, "job": {"running": True, "progress": state}}


def forget(path: str) -> None:
    """Remove an old progress or result file, so that it is not taken for the new job's."""
    if os.path.exists(path):
        os.unlink(path)
