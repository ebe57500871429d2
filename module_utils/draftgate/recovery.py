"""Recovery is one function: journal + what is observed → the next action.

The switch job asks it before every step, and so do a resumed job, the boot and a re-run of the playbook.
There is no second path: what a crash needs is what an ordinary switch does next.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Dict, FrozenSet, List, Mapping, Optional

from .decision import CURABLE, FAIL
from .journal import (
    ACTIVATED,
    FAILED,
    FALLBACK,
    GATED,
    PREPARED,
    PREVIOUS_STOPPED,
    STARTED,
    Entry,
    finished,
    last,
)
from .plan import SIDE_BY_SIDE

# Actions. Each is idempotent and ends with a journal entry, except the last three.
STOP_PREVIOUS = "stop_previous"
START_CANDIDATE = "start_candidate"
GATE = "gate"
ACTIVATE = "activate"
START_FALLBACK = "start_fallback"
RESTORE = "restore"
STOP_ALL = "stop_all"
FINISH = "finish"  # this switch has written the pointer already: only the last line is missing
START_ACTIVE = "start_active"  # no switch is open, and what is activated does not run
STOP_STRAYS = "stop_strays"  # no switch is open, and something else runs
LEAD_FRONT = "lead_front"  # no switch is open, and the front leads elsewhere than to what is activated
NOTHING = "nothing"


@dataclass(frozen=True)
class Observed:
    """What the host shows now.

    :param active: id of the deployment that ``active.json`` names, or None.
    :param written_by: the switch that wrote ``active.json``. The id alone does not tell: a gate change
        activates the deployment that is active already, with other evidence.
    :param attempt: the attempt that asks; empty for ``recover`` and the boot.
    :param running: ids of the deployments whose service runs.
    :param port: where the active deployment listens.
    :param front: the engine's port that the front leads to; 0 = it is closed; None = there is none.
    :param boot_id: the kernel's boot id.
    :param boottime: CLOCK_BOOTTIME in seconds: no clock jump moves it.
    """

    active: Optional[str] = None
    written_by: Optional[str] = None
    attempt: str = ""
    running: FrozenSet[str] = field(default_factory=frozenset)
    port: int = 0
    front: Optional[int] = None
    boot_id: str = ""
    boottime: float = 0.0


@dataclass(frozen=True)
class Action:
    """What to do next and why.

    :param reason: for RESTORE and STOP_ALL, the sentence that the operator reads.
    :param cause: machine-readable reason (``gate``, ``launch``, ``time_limit``, ``reboot``, ``error``).
    """

    name: str
    reason: str = ""
    cause: str = ""


def next_action(entries: List[Entry], observed: Observed) -> Action:
    """The next action of the host. Pure; total over every journal a kill can leave."""
    if finished(entries):
        return _settled(observed)
    opened = entries[0]
    if observed.written_by == opened["switch"]:
        return Action(FINISH)
    trouble = _trouble(entries, observed)
    if trouble:
        return _after(trouble, entries, opened, observed)
    return _forward(entries, observed)


def _settled(observed: Observed) -> Action:
    if observed.running - {observed.active}:
        return Action(STOP_STRAYS)
    if observed.active is not None and observed.active not in observed.running:
        return Action(START_ACTIVE)
    if observed.front is not None and observed.front != observed.port:
        return Action(LEAD_FRONT)
    return Action(NOTHING)


def _trouble(entries: List[Entry], observed: Observed) -> Optional[Action]:
    """Why this switch cannot go forward, as the cause and reason of its restore."""
    opened = entries[0]
    failed = last(entries, FAILED)
    if failed:
        return Action(RESTORE, failed["reason"], failed["cause"])
    if observed.boot_id != opened["boot_id"]:
        return Action(RESTORE, "the host was rebooted during the switch", "reboot")
    gated = last(entries, GATED)
    if gated and gated["verdict"] != "pass":
        return Action(RESTORE, gated["reason"], "gate")
    if observed.attempt != opened["switch"]:
        return Action(RESTORE, "the switch was interrupted and its job is gone", "interrupted")
    if _undone(entries, observed):
        return Action(RESTORE, "what served before serves again, and the line that says why is lost", "error")
    if observed.boottime >= opened["deadline"] and not gated:
        return Action(RESTORE, f"the time limit of {opened['time_limit']:.0f} s passed", "time_limit")
    return None


def _undone(entries: List[Entry], observed: Observed) -> bool:
    """Whether a job restored on a full disk and was killed before the line about it had room."""
    opened, previous = entries[0], entries[0]["previous"]
    stopped = opened.get("strategy") != SIDE_BY_SIDE and entries[-1]["state"] != PREPARED
    return bool(
        stopped
        and previous
        and previous["id"] in observed.running
        and opened["candidate"]["id"] not in observed.running
    )


def _after(trouble: Action, entries: List[Entry], opened: Entry, observed: Observed) -> Action:
    """Restore, unless the operator wished something else for a candidate that was measured and refused."""
    if opened["on_failure"] == "stop" and opened["previous"] and observed.active is None:
        return Action(STOP_ALL, trouble.reason, trouble.cause)  # begun: the pointer has been taken away
    if trouble.cause not in ("gate", "launch") or observed.boot_id != opened["boot_id"]:
        return trouble
    if opened["previous"] and not _proven_bad(entries):
        return trouble  # a stolen port or somebody else's traffic is no reason to give up what was proven
    if opened["on_failure"] == "stop":
        return Action(STOP_ALL, trouble.reason, trouble.cause)
    if opened["on_failure"] == "fallback" and opened.get("fallback"):
        fallback = last(entries, FALLBACK)
        name = START_FALLBACK if fallback is None else ACTIVATE
        return Action(name, trouble.reason, trouble.cause)
    return trouble


def _proven_bad(entries: List[Entry]) -> bool:
    gated, failed = last(entries, GATED), last(entries, FAILED)
    if gated:
        return bool(gated["verdict"] == FAIL)
    return ((failed or {}).get("error") or {}).get("code") not in CURABLE


def _forward(entries: List[Entry], observed: Observed) -> Action:
    state = entries[-1]["state"]
    if state == STARTED and entries[0]["candidate"]["id"] not in observed.running:
        return Action(START_CANDIDATE)  # it died with its service manager: a gate would measure nothing
    beside = entries[0].get("strategy") == SIDE_BY_SIDE
    following = {
        PREPARED: START_CANDIDATE if beside else STOP_PREVIOUS,
        PREVIOUS_STOPPED: START_CANDIDATE,
        STARTED: GATE,
        GATED: ACTIVATE,
    }
    return Action(following[state])


def summary(entries: List[Entry]) -> Dict[str, Any]:
    """How a switch ended, for the report: ``{ended, verdict, reason, cause, evidence, seconds}``."""
    if not entries:
        return {"ended": None}
    end = entries[-1]
    gated: Mapping[str, Any] = last(entries, GATED) or {}
    failed: Mapping[str, Any] = last(entries, FAILED) or {}
    return {
        "ended": end["state"] if finished(entries) else None,
        "candidate": entries[0]["candidate"]["release"],
        "verdict": gated.get("verdict"),
        "reason": end.get("reason") or gated.get("reason") or failed.get("reason") or "",
        "cause": end.get("cause") or failed.get("cause") or "",
        "evidence": gated.get("evidence"),
        "serving": end.get("serving") if finished(entries) else None,
        "fallback": end["state"] == ACTIVATED and bool(end.get("fallback")),
        "strategy": entries[0].get("strategy"),
        "cut_off": sum((entry.get("drained") or {}).get("left", 0) for entry in entries),
        "stages": stages(entries),
    }


def stages(entries: List[Entry]) -> Dict[str, float]:
    """Seconds that each step took, from the entries' own measurements."""
    return {entry["state"]: entry["seconds"] for entry in entries if "seconds" in entry}
