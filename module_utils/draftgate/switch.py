"""The switch: carries out what :func:`recovery.next_action` names, one fsynced step after the other.

Runs on the host as a named job. It needs no controller, no hub and no DNS, and it may be killed anywhere:
started again with the same attempt it goes on where its journal ends.
"""

from __future__ import annotations

import fcntl
import os
import signal
import sys
import traceback
from contextlib import contextmanager, suppress
from dataclasses import asdict
from types import FrameType
from typing import Any, Callable, Dict, Iterator, List, Mapping, Optional, Tuple

from . import headroom, host, judge, launch, recovery
from .backend.base import Backend
from .clocks import Clocks
from .engine_client import client_for
from .errors import DraftgateError, HostError, InputError, LaunchError, TimeLimitError
from .files import is_no_room, make_directory, read_json, write_atomic, write_json
from .front import Front, front_of
from .journal import (
    ACTIVATED,
    FAILED,
    FALLBACK,
    GATED,
    PREPARED,
    PREVIOUS_STOPPED,
    RESTORED,
    STARTED,
    STOPPED,
    UNRESTORED,
    Entry,
    Journal,
    finished,
    last,
)
from .layout import Home
from .plan import IN_PLACE, NONE, REFUSE, SIDE_BY_SIDE, START, Facts, Plan
from .progress import Report
from .spec import beside, deployment, without_speculation
from .verdicts import (
    EXIT_FAILED,
    EXIT_INTERRUPTED,
    EXIT_PASS,
    EXIT_REFUSED,
    EXIT_RESTORED,
    EXIT_UNRESTORED,
    result_path,
)

RESTORE_TIME_LIMIT = 900.0  # seconds for one attempt to bring a proven release back
RESTORE_ATTEMPTS = 3
_LOOKS = 3
_HANGS_SECONDS = 30.0
"""How long an engine that answered once may give no answer before it is started again."""
STOP_TIME_LIMIT = 60.0
_ROOM_BYTES = 1 << 18
"""More than one line of the journal: evidence and the result are written too."""
_ROOM_SECONDS = 2.0

Deployment = Mapping[str, Any]


class Switch:
    """One host's switch.

    :param hold: called with a journal state after it is durable (fault injection; does nothing otherwise).
    :param attempt: whose switch this is. Only its own goes forward; what another left open is restored.
    """

    def __init__(
        self,
        home: Home,
        backend: Backend,
        clocks: Clocks,
        progress: Report,
        hold: Callable[[str], None] = lambda state: None,
        attempt: str = "",
        front: Optional[Front] = None,
    ) -> None:
        self.home, self.backend, self.clocks, self.progress, self.hold = home, backend, clocks, progress, hold
        self.front = front_of(home) if front is None else front
        self.attempt = attempt
        self.journal = Journal(home.journal, clocks.now)
        self._steps: Dict[str, Callable[[List[Entry], recovery.Action], None]] = {
            recovery.STOP_PREVIOUS: self._stop_previous,
            recovery.START_CANDIDATE: self._start_candidate,
            recovery.GATE: self._gate,
            recovery.ACTIVATE: self._activate,
            recovery.START_FALLBACK: self._start_fallback,
            recovery.RESTORE: self._restore,
            recovery.STOP_ALL: self._stop_all,
            recovery.FINISH: self._finish,
            recovery.START_ACTIVE: self._start_active,
            recovery.STOP_STRAYS: self._stop_strays,
            recovery.LEAD_FRONT: self._lead_front,
        }

    # The loop

    def walk(self) -> None:
        """Carry the open switch to its end."""
        while not finished(self.journal.entries()):
            self._next()

    def settle(self) -> bool:
        """End the open switch and see to it that what is activated runs, and nothing else.

        :returns: whether there was anything to do.
        """
        acted = False
        while self._next():
            acted = True
        return acted

    def _next(self) -> bool:
        entries = self.journal.entries()
        action = recovery.next_action(entries, self._observed())
        if action.name == recovery.NOTHING:
            return False
        self._perform(entries, action)
        return True

    def _observed(self) -> recovery.Observed:
        return host.observe(self.home, self.backend, self.clocks, self.attempt, self.front.routed())

    def _perform(self, entries: List[Entry], action: recovery.Action) -> None:
        forward = action.name in (recovery.STOP_PREVIOUS, recovery.START_CANDIDATE, recovery.GATE)
        if not forward:
            self._steps[action.name](entries, action)
            return
        try:
            with self._deadline(entries[0]["deadline"] - self.clocks.boottime()):
                self._steps[action.name](entries, action)
                self.hold(self.journal.entries()[-1]["state"])
        except TimeLimitError:
            limit = entries[0]["time_limit"]
            self._failed("time_limit", f"the time limit of {limit:.0f} s passed during {action.name}")
        except LaunchError as exc:
            self._failed("launch", str(exc), error=exc.as_dict(), evidence=self._recorded(entries[0], exc))
        except DraftgateError as exc:
            self._failed("error", str(exc), error=exc.as_dict())
        except Exception as exc:  # noqa: BLE001 - whatever it is, what served before has to come back
            if is_no_room(exc):
                self._failed("error", f"there is no room on the disk of {self.home.root}")
                return
            traceback.print_exc()
            self._failed("error", f"{action.name} ended with {type(exc).__name__}: {exc}")

    def _recorded(self, opened: Entry, exc: LaunchError) -> Optional[str]:
        """The evidence of a candidate that did not come up, where there is room for it."""
        try:
            return judge.record_launch_failure(self.home, opened, exc, self.clocks.now())
        except OSError as full:
            if not is_no_room(full):
                raise
            return None

    def _failed(self, cause: str, reason: str, **fields: Any) -> None:
        """What served before comes back at once, whether there is room for the line or not."""
        self.journal.append_or_keep(FAILED, cause=cause, reason=reason, **fields)

    @contextmanager
    def _deadline(self, seconds: float) -> Iterator[None]:
        """An alarm, so that no call below can wait longer than the switch may take."""

        def expire(_number: int, _frame: Optional[FrameType]) -> None:
            raise TimeLimitError("switching", "the time limit passed")

        previous = signal.signal(signal.SIGALRM, expire)
        signal.setitimer(signal.ITIMER_REAL, max(seconds, 0.01))
        try:
            yield
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
            signal.signal(signal.SIGALRM, previous)

    # Opening

    def open(self, wish: Mapping[str, Any], plan: Plan) -> None:
        """Write the first entry: from here on a kill is ended by :func:`recovery.next_action`."""
        self.journal.archive(self.home.finished_journals)
        active = host.read_active(self.home)
        options = wish["options"]
        previous = active["deployment"] if active else None
        strategy = SIDE_BY_SIDE if previous and plan.strategy == SIDE_BY_SIDE else IN_PLACE
        aside = previous if strategy == SIDE_BY_SIDE else None
        candidate = deployment(beside(wish["spec"], aside["place"]) if aside else wish["spec"])
        self.journal.append(
            PREPARED,
            switch=self.attempt,
            candidate=candidate,
            previous=previous,
            action=plan.action,
            strategy=strategy,
            differs=plan.differs,
            on_failure=options["on_failure"],
            fallback=without_speculation(candidate) if options["on_failure"] == "fallback" else None,
            findings=wish.get("findings", []),
            drafter_overrides=wish.get("drafter_overrides", {}),
            time_limit=float(options["time_limit"]),
            deadline=self.clocks.boottime() + float(options["time_limit"]),
            evidence_max_age=options.get("evidence_max_age"),
            boot_id=host.boot_id(),
        )
        self.hold(PREPARED)

    # Steps

    def _stop_previous(self, entries: List[Entry], _action: recovery.Action) -> None:
        previous, candidate = entries[0]["previous"], entries[0]["candidate"]
        began = self.clocks.now()
        address = candidate["place"]["host"], candidate["place"]["port"]
        if not previous or address != (previous["place"]["host"], previous["place"]["port"]):
            launch.require_port(*address)  # before anything is stopped for it
        kept = bool(previous) and previous["id"] == candidate["id"]
        drained = None if kept else self._close_front()
        self._stop_others(candidate["id"])
        self.journal.append(PREVIOUS_STOPPED, kept=kept, drained=drained, seconds=self._since(began))

    def _start_candidate(self, entries: List[Entry], _action: recovery.Action) -> None:
        opened = entries[0]
        began = self.clocks.now()
        ready = self._start(opened["candidate"], opened["deadline"])
        self.journal.append(STARTED, pid=ready.pid, version=ready.version, seconds=self._since(began))

    def _gate(self, entries: List[Entry], _action: recovery.Action) -> None:
        began = self.clocks.now()
        name, clocks = host.service_name(entries[0]["candidate"]["id"]), self.clocks
        watch = launch.Watch(self.backend, name, entries[0]["deadline"], clocks.boottime, clocks.sleep)
        path, result = judge.gate_candidate(self.home, entries, clocks, self.progress, watch)
        reasons = result.get("reasons") or [{"message": ""}]
        self.journal.append(
            GATED,
            verdict=result["verdict"],
            reason="" if result["verdict"] == "pass" else reasons[0]["message"],
            evidence=path,
            seconds=self._since(began),
        )

    def _activate(self, entries: List[Entry], action: recovery.Action) -> None:
        opened = entries[0]
        fallback = last(entries, FALLBACK)
        chosen = fallback["deployment"] if fallback else opened["candidate"]
        gated: Mapping[str, Any] = last(entries, GATED) or {}
        before = host.read_active(self.home) or {}
        if not self._still_answers(chosen):
            self._failed("died", f"release {chosen['release']} was measured and does not answer any more")
            return
        try:
            self.front.open(chosen["place"]["port"])  # before the pointer: a front that refuses is a failure
        except DraftgateError as exc:
            self._failed("front", str(exc), error=exc.as_dict())
            return
        previous = opened["previous"]
        if previous and previous["release"] == chosen["release"]:
            previous = before.get("previous")  # gated anew or at another place: what it replaced stays known
        host.write_active(
            self.home,
            {
                "deployment": chosen,
                "activated": self.clocks.now(),
                "evidence": None if fallback else gated.get("evidence"),
                "previous": previous,
                "fallback_of": opened["candidate"]["release"] if fallback else None,
                "switch": opened["switch"],
                "time_limit": opened["time_limit"],
            },
        )
        self._finish(entries, action)

    def _still_answers(self, deployed: Deployment) -> bool:
        """Looked at once more before clients are led to it, for what happened since its last answer."""
        name = host.service_name(deployed["id"])
        for _look in range(_LOOKS):
            # its own process: what served before may answer at the same port again
            if self.backend.state(name).status == "running" and host.answers(self.home, deployed):
                return True
            self.clocks.sleep(2.0)
        return False

    def _finish(self, entries: List[Entry], action: recovery.Action) -> None:
        active = host.read_active(self.home) or {}
        serving = active["deployment"]
        self.front.open(serving["place"]["port"])
        drained = self._drain() if self._running_others(serving["id"]) else None
        self._remove_others(serving["id"])
        self.journal.append(
            ACTIVATED,
            serving=serving["release"],
            drained=drained,
            fallback=active.get("fallback_of"),
            reason=action.reason,
            cause=action.cause,
        )
        self.hold(ACTIVATED)

    def _start_fallback(self, entries: List[Entry], action: recovery.Action) -> None:
        opened = entries[0]
        fallback, previous = opened["fallback"], opened["previous"]
        try:
            if opened.get("strategy") == SIDE_BY_SIDE:
                self._stop_others(fallback["id"], previous["id"])  # it serves until the front is flipped
            else:
                self._close_front()
                self._stop_others(fallback["id"])
            self._start(fallback, self.clocks.boottime() + max(RESTORE_TIME_LIMIT, opened["time_limit"]))
        except DraftgateError as exc:
            self._failed("fallback", f"{action.reason}; and without speculation: {exc}", error=exc.as_dict())
            return
        self.journal.append(FALLBACK, deployment=fallback, reason=action.reason)

    def _restore(self, entries: List[Entry], action: recovery.Action) -> None:
        """Bring back what was activated; with nothing before, leave nothing and say so."""
        previous = entries[0]["previous"]
        began = self.clocks.now()
        self._lead_away_from_the_candidate(previous)
        self._remove_others(previous["id"] if previous else None)
        if previous:
            problem = self._bring_back(previous) or self._reopen(previous)
            if problem:
                self.journal.append(
                    UNRESTORED, serving=None, reason=f"{action.reason}; {problem}", cause=action.cause
                )
                return
        self.journal.append(
            RESTORED,
            serving=previous["release"] if previous else None,
            reason=action.reason,
            cause=action.cause,
            seconds=self._since(began),
        )
        self.hold(RESTORED)

    def _bring_back(self, deployed: Deployment) -> str:
        """Empty once ``deployed`` answers; otherwise why it does not after several attempts."""
        problem = ""
        for attempt in range(RESTORE_ATTEMPTS):
            self.progress("restore", attempt, RESTORE_ATTEMPTS, f"starting release {deployed['release']}")
            try:
                self._start(deployed, self.clocks.boottime() + self._patience(deployed))
                return ""
            except DraftgateError as exc:
                problem = f"release {deployed['release']} did not come back: {exc}"
                self.backend.stop(host.service_name(deployed["id"]), STOP_TIME_LIMIT)
                self.clocks.sleep(2.0 * attempt)
        return problem

    def _lead_away_from_the_candidate(self, previous: Optional[Deployment]) -> None:
        """Before it is stopped. A front that refuses is told at the end of the restore, which goes on."""
        with suppress(DraftgateError):
            if previous and host.answers(self.home, previous):
                self.front.open(previous["place"]["port"])
            else:
                self._close_front()

    def _reopen(self, deployed: Deployment) -> str:
        """Empty once the front leads to ``deployed``; otherwise why it does not."""
        try:
            self.front.open(deployed["place"]["port"])
        except DraftgateError as exc:
            return f"release {deployed['release']} answers, but the front does not lead to it: {exc}"
        return ""

    def _stop_all(self, entries: List[Entry], action: recovery.Action) -> None:
        told = ""
        try:
            self._close_front()
        except (
            DraftgateError
        ) as exc:  # its clients get 503 from nginx all the same, once nothing answers behind it
            told = f"; the front is still open: {exc}"
        self._remove_others(None)
        if os.path.exists(self.home.active):
            os.unlink(self.home.active)  # "stop" was asked for: a reboot must not bring it back
        self.journal.append(STOPPED, serving=None, reason=f"{action.reason}{told}", cause=action.cause)

    def _start_active(self, _entries: List[Entry], _action: recovery.Action) -> None:
        active = host.read_active(self.home)
        if active is not None:
            self._start(active["deployment"], self.clocks.boottime() + self._patience(active["deployment"]))

    def revive(self) -> None:
        """Make the activated release answer: one that loads is waited for, one that hangs is started again.

        :raises LaunchError: it does not come up.
        """
        active = host.read_active(self.home)
        if active is None or host.answers(self.home, active["deployment"]):
            return
        deployed = active["deployment"]
        try:
            self._start(deployed, self.clocks.boottime() + self._patience(deployed))
        except LaunchError:
            self.backend.stop(host.service_name(deployed["id"]), STOP_TIME_LIMIT)
            self._start(deployed, self.clocks.boottime() + self._patience(deployed))

    def _patience(self, deployed: Deployment) -> float:
        """Seconds to wait until a proven release answers: as long as it may load, less if it has answered."""
        active = host.read_active(self.home) or {}
        limit = max(RESTORE_TIME_LIMIT, active.get("time_limit") or 0.0)
        state = self.backend.state(host.service_name(deployed["id"]))
        if state.status != "running":
            return limit
        if state.since is None or state.since <= active.get("activated", 0.0):
            return _HANGS_SECONDS  # it has answered before: it does not load
        return max(_HANGS_SECONDS, limit - (self.clocks.now() - state.since))

    def _stop_strays(self, _entries: List[Entry], _action: recovery.Action) -> None:
        active = host.read_active(self.home)
        self._remove_others(active["deployment"]["id"] if active else None)

    def _lead_front(self, _entries: List[Entry], _action: recovery.Action) -> None:
        active = host.read_active(self.home)
        if active is None:
            self.front.close()
        else:
            self.front.open(active["deployment"]["place"]["port"])

    # The front

    def _close_front(self) -> Optional[Dict[str, Any]]:
        self.front.close()
        return self._drain()

    def _drain(self) -> Optional[Dict[str, Any]]:
        """What was accepted before ends, within the front's limit; None where there is no front."""
        if self.front.routed() is None:
            return None
        return asdict(self.front.drain(None, self.progress))

    # Processes

    def _start(self, deployed: Deployment, deadline: float) -> launch.Ready:
        """Define, start and wait until ``deployed`` answers; a running one is only waited for."""
        name = host.service_name(deployed["id"])
        if self.backend.state(name).status not in ("running", "starting"):
            headroom.wait_until_free(self.home, deployed, self.clocks)
            launch.require_port(deployed["place"]["host"], deployed["place"]["port"])
            self.backend.define(launch.service_for(dict(deployed), self.home))
            self.backend.start(name)
        client = client_for(self.home, deployed)
        return launch.wait_ready(
            client,
            self.backend,
            name,
            served_model_name=deployed["serve"]["served_model_name"],
            deadline=deadline,
            clock=self.clocks.boottime,
            sleep=self.clocks.sleep,
            progress=self.progress,
        )

    def _stop_others(self, *keep: Optional[str]) -> None:
        for name in self._others(*keep):
            self.progress("stop", 0, 0, name)
            self.backend.stop(name, STOP_TIME_LIMIT)

    def _remove_others(self, *keep: Optional[str]) -> None:
        self._stop_others(*keep)  # all of them, before the first is forgotten
        for name in self._others(*keep):
            self.backend.remove(name)

    def _running_others(self, *keep: Optional[str]) -> List[str]:
        return [n for n in self._others(*keep) if self.backend.state(n).status in ("running", "starting")]

    def _others(self, *keep: Optional[str]) -> List[str]:
        """The services of this home but those of the deployments ``keep`` (None: there is none to keep)."""
        kept = {host.service_name(deployment_id) for deployment_id in keep if deployment_id}
        return [name for name in self.backend.services() if name not in kept]

    def _since(self, began: float) -> float:
        return round(self.clocks.now() - began, 2)


@contextmanager
def exclusive(home: Home, holder: str, clocks: Clocks, wait_seconds: float = 0.0) -> Iterator[None]:
    """One switch per host. The lock dies with its process; its file names the holder for people.

    :param wait_seconds: how long to wait for the holder (after a boot it may be starting a large engine).
    :raises HostError: it is still held; ``details["held"]``.
    """
    make_directory(os.path.dirname(home.switch_lock))
    descriptor = os.open(home.switch_lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        _take(descriptor, home, clocks, clocks.boottime() + wait_seconds)
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, holder.encode(), 0)
        yield
    finally:
        os.close(descriptor)


def _take(descriptor: int, home: Home, clocks: Clocks, deadline: float) -> None:
    while True:
        try:
            return fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if clocks.boottime() >= deadline:
                raise HostError(
                    "starting a switch",
                    f"the host's lock is held by {os.pread(descriptor, 200, 0).decode(errors='replace')}",
                    "one switch at a time",
                    f"Watch it with {home.command} status and run again when it has ended.",
                    details={"held": True},
                ) from None
        clocks.sleep(0.5)


def converge(switch: Switch, wish: Mapping[str, Any]) -> Dict[str, Any]:
    """Make the host equal the wish; a dict for ``state/result.json``.

    Run again with the same attempt after a kill it finishes what is open and reports that.

    :raises InputError: the wish on the host is another attempt's.
    """
    entries = switch.journal.entries()
    resumed = bool(entries) and entries[0].get("switch") == switch.attempt
    acted = _settled(switch, wish)
    if not resumed:
        if wish["attempt"] != switch.attempt:
            raise InputError("reading the wish", f"it is of attempt {wish['attempt']}", switch.attempt)
        wish = {**wish, "spec": host.seated(switch.home, wish["spec"])}  # settling may have moved it
        facts, plan = _plan(switch, wish)
        if plan.action == START:
            switch.revive()
            acted = True
            facts, plan = _plan(switch, wish)
        if plan.action in (NONE, REFUSE):
            return _unchanged(plan, facts.active, acted)
        switch.open(wish, plan)
        switch.walk()
    return result_of(switch.journal.entries(), switch.attempt)


def _settled(switch: Switch, wish: Mapping[str, Any]) -> bool:
    """See :meth:`Switch.settle`. A release that cannot start any more does not block what replaces it."""
    try:
        return switch.settle()
    except LaunchError:
        active = host.read_active(switch.home)
        wished = deployment(host.seated(switch.home, wish["spec"]))
        if active is None or active["deployment"]["id"] == wished["id"]:
            raise
        traceback.print_exc()
        switch.backend.stop(host.service_name(active["deployment"]["id"]), STOP_TIME_LIMIT)
        return True


def _plan(switch: Switch, wish: Mapping[str, Any]) -> Tuple[Facts, Plan]:
    front, now = switch.front.routed(), switch.clocks.now()
    return host.plan(switch.home, switch.backend, front, wish["spec"], wish["options"], now)


def _unchanged(plan: Plan, active: Optional[Mapping[str, Any]], acted: bool) -> Dict[str, Any]:
    """Settling alone made the host right (``ended`` says whether it had to), or the wish is refused."""
    return {
        "exit": EXIT_REFUSED if plan.action == REFUSE else EXIT_PASS,
        "ended": START if acted and plan.action == NONE else plan.action,
        "reason": plan.reason if plan.action == REFUSE else "",
        "error": plan.error.as_dict() if plan.error else None,
        "warning": plan.warning,
        "serving": active["deployment"]["release"] if active else None,
        "evidence": active.get("evidence") if active else None,
    }


def result_of(entries: List[Entry], attempt: str) -> Dict[str, Any]:
    """The journal's end as a result with an exit code."""
    summary = recovery.summary(entries)
    codes = {
        ACTIVATED: EXIT_PASS,
        RESTORED: EXIT_RESTORED,
        STOPPED: EXIT_RESTORED,
        UNRESTORED: EXIT_UNRESTORED,
    }
    failed: Mapping[str, Any] = last(entries, FAILED) or {}
    return {
        **summary,
        "exit": codes[summary["ended"]] if finished(entries) else EXIT_FAILED,
        "attempt": attempt,
        "evidence": summary["evidence"] or failed.get("evidence"),
        "error": failed.get("error"),
        "release": entries[0]["candidate"]["release"],
        "previous": (entries[0]["previous"] or {}).get("release"),
    }


def run(switch: Switch) -> int:
    """The job's body: lock, converge, write the result, give the exit code.

    An end with an open journal is no verdict: the job's manager starts it again, and it goes on. A full disk
    is no end: what served is back, and the lines that say so wait for room.
    """
    while True:
        try:
            result = {**_ended(switch), "attempt": switch.attempt}
            write_json(result_path(switch.home), result)
            return int(result["exit"])
        except OSError as exc:
            if not is_no_room(exc):
                raise
            _wait_for_room(switch)


def _ended(switch: Switch) -> Dict[str, Any]:
    """How the wish on the host ended.

    :raises OSError: there is no room for the journal.
    """
    home, attempt = switch.home, switch.attempt
    try:
        wish = read_json(home.wish, "reading the wish of this switch")
        limit = float(wish["options"]["time_limit"])
        with exclusive(home, f"attempt {attempt}, pid {os.getpid()}", switch.clocks, limit):
            return converge(switch, wish)
    except Exception as exc:  # who waits needs a result, whatever happened
        if is_no_room(exc):
            raise
        traceback.print_exc()
        error = exc.as_dict() if isinstance(exc, DraftgateError) else None
        result = {"exit": EXIT_FAILED, "ended": "error", "reason": _sentence(exc), "error": error}
        if not finished(switch.journal.entries()):
            result["exit"] = EXIT_INTERRUPTED
        return result


def _wait_for_room(switch: Switch) -> None:
    sys.stderr.write(f"There is no room on the disk of {switch.home.root}: waiting for it.\n")
    while not _has_room(switch.home):
        switch.clocks.sleep(_ROOM_SECONDS)


def _has_room(home: Home) -> bool:
    """Tried, because a quota and a file system without inodes have free bytes too."""
    path = home.path("run", "room")
    try:
        write_atomic(path, bytes(_ROOM_BYTES))
        os.unlink(path)
    except OSError:
        return False
    return True


def _sentence(exc: Exception) -> str:
    return str(exc) if isinstance(exc, DraftgateError) else f"{type(exc).__name__}: {exc}"


def hold_while_asked(home: Home, clocks: Clocks) -> Callable[[str], None]:
    """Fault injection for tests: wait after a state for as long as ``run/hold.<state>`` exists.

    Nothing in the product writes that file. Deadlines stay in force while waiting.
    """

    def hold(state: str) -> None:
        while os.path.exists(home.path("run", f"hold.{state}")):
            clocks.sleep(0.1)

    return hold
