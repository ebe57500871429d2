"""The switch under every kill: real journal, real pointer, real recovery; only processes are played.

Each effect (a service defined, started, stopped, removed; a journal line; the pointer) is a place where the
host can die, before or after it happens. After each death the job is started again, or the host reboots.
"""

from __future__ import annotations

import functools
import itertools
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from draftgate import files, headroom, host, journal, judge, launch, recovery, spec, switch, verdicts
from draftgate.backend.base import ENGINE_PREFIX, Job, JobState, Service, ServiceState
from draftgate.clocks import Clocks
from draftgate.errors import HostError, InputError, LaunchError
from draftgate.front import Drained
from draftgate.layout import Home
from draftgate.progress import Report

SERVE = {
    "engine": {"name": "vllm", "version": "0.32.0"},
    "runtime": {"lock": "a" * 64},
    "target": {"source": "local", "digest": "b" * 64},
    "drafter": {"source": "local", "digest": "c" * 64, "config": {"mask_token_id": 512}},
    "num_speculative_tokens": 7,
    "served_model_name": "tiny",
    "args": {},
    "environment": {},
}
GATE = {
    "prompts": {"digest": "d" * 64},
    "sampling": {},
    "template": {},
    "workloads": None,
    "concurrency": 1,
    "thresholds": {"acceptance_min_mean_length": 2.0},
}


def wish(home: Home, **serve: Any) -> dict[str, Any]:
    place = {
        "host": "127.0.0.1",
        "port": 8000,
        "candidate_port": 8001,
        "home": home.root,
        "runtimes": "/r",
        "python": "/usr/bin/python3",
        "backend": "supervisord",
        "gpus": [],
        "secrets": {},
    }
    options = {"strategy": "auto", "on_failure": "restore", "retry": False, "time_limit": 100.0}
    return {"spec": {"serve": {**SERVE, **serve}, "place": place, "gate": GATE}, "options": options}


class Killed(BaseException):
    """The host job dies here. No handler of the product may catch it."""


@dataclass
class World:
    """What survives a kill: services, the clock, the boot id; and the countdown to the next kill."""

    defined: set[str] = field(default_factory=set)
    up: set[str] = field(default_factory=set)
    front: int | None = None
    refused: set[int] = field(default_factory=set)
    ports: dict[str, int] = field(default_factory=dict)
    room_for: int = 1
    clients: bool = False
    streams: int = 0
    seconds: float = 1000.0
    skew: float = 0.0
    jumps: Iterator[float] = field(default_factory=lambda: itertools.repeat(0.0))
    boot: str = "boot-1"
    kill_at: int | None = None
    effects: int = 0
    launch_error: set[str] = field(default_factory=set)
    hung: set[str] = field(default_factory=set)
    verdict: str = "pass"

    def effect(self, change: Callable[[], None]) -> None:
        """One durable change; the kill may strike just before it or just after it."""
        self._strike()
        change()
        assert not self.clients or self.front in {self.ports[name] for name in self.up}, "a client is refused"
        self._strike()

    def _strike(self) -> None:
        self.effects += 1
        self.skew += next(self.jumps)
        if self.kill_at is not None and self.effects == self.kill_at:
            raise Killed

    def answers(self, deployment: str) -> bool:
        name = host.service_name(deployment)
        return name in self.up - self.hung

    def reboot(self) -> None:
        self.up.clear()
        self.boot += "'"


class PlayedBackend:
    """A service manager whose services start and stop at once."""

    name = "supervisord"

    def __init__(self, world: World) -> None:
        self.world = world

    def ensure(self) -> bool:
        return False

    def define(self, service: Service) -> bool:
        self.world.ports[service.name] = int(service.argv[-1])
        self.world.effect(lambda: self.world.defined.add(service.name))
        return True

    def start(self, name: str) -> None:
        self.world.hung.discard(name)
        assert name in self.world.defined
        assert len(self.world.up | {name}) <= self.world.room_for, "so many engines do not fit on the GPUs"
        self.world.effect(lambda: self.world.up.add(name))

    def stop(self, name: str, deadline_seconds: float) -> None:
        self.world.effect(lambda: self.world.up.discard(name))

    def remove(self, name: str) -> None:
        self.world.up.discard(name)
        self.world.effect(lambda: self.world.defined.discard(name))

    def state(self, name: str) -> ServiceState:
        return ServiceState("running" if name in self.world.up else "stopped", pid=1, start_ticks=1)

    def services(self) -> list[str]:
        return sorted(self.world.defined)

    def start_job(self, job: Job) -> None: ...

    def job_state(self, name: str) -> JobState:
        return JobState("absent")

    def remove_job(self, name: str) -> None: ...

    def log_offset(self, name: str) -> int:
        return 0

    def log_tail(self, name: str, lines: int, since_offset: int | None = None) -> list[str]:
        return []

    def log_path(self, name: str) -> str:
        return ""

    def shutdown(self) -> None: ...


class PlayedFront:
    """The front of the host, where the world has one."""

    def __init__(self, world: World) -> None:
        self.world = world

    def routed(self) -> int | None:
        return self.world.front

    def open(self, port: int) -> None:
        self._lead(port)

    def close(self) -> None:
        self._lead(0)

    def _lead(self, port: int) -> None:
        if self.world.front in (None, port):
            return
        if port in self.world.refused:
            raise HostError("leading the front", "nginx refuses its configuration")

        def lead() -> None:
            self.world.front = port

        self.world.effect(lead)

    def drain(self, seconds: float | None, report: Report) -> Drained:
        self.world.effect(lambda: None)
        return Drained(1.5, self.world.streams)


def _strategy(
    world: Callable[[], World], _home: Home, wished: str, front: int | None, facts: Any, _candidate: Any
) -> headroom.Choice:
    room = headroom.Headroom(world().room_for > 1, "two do not fit")
    return headroom.choose(wished, front is not None, facts.answers, lambda: room)


@pytest.fixture(autouse=True)
def no_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    """Thousands of homes; that each line is on the disk before the next step is tested apart.

    Nor does one wait for this machine's memory.
    """
    monkeypatch.setattr(files, "fsync_directory", lambda _path: None)
    monkeypatch.setattr(journal, "fsync_directory", lambda _path: None)
    monkeypatch.setattr(os, "fsync", lambda _descriptor: None)
    monkeypatch.setattr(headroom, "wait_until_free", lambda *_: 0.0)


@pytest.fixture
def stage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[], tuple[Home, World]]]:
    """Fresh homes with the played parts in place; every durable write of the product passes ``effect``."""
    worlds: list[World] = []
    append, write_json = journal.Journal.append, files.write_json

    def world() -> World:
        return worlds[-1]

    def played_append(self: journal.Journal, state: str, **fields: Any) -> dict[str, Any]:
        world().effect(lambda: None)
        entry = append(self, state, **fields)
        world().effect(lambda: None)
        return entry

    def played_pointer(home: Home, record: dict[str, Any]) -> None:
        world().effect(lambda: write_json(home.active, record))

    def ready(_client: Any, _backend: Any, name: str, **_rest: Any) -> Any:
        world().seconds += 10
        if name in world().launch_error | world().hung:
            raise LaunchError("starting the engine", "it died", details={"cause": "contract", "log_tail": []})
        return SimpleNamespace(pid=1, version="0.32.0", seconds=10.0)

    def gate(*_: Any) -> tuple[str, dict[str, Any]]:
        world().seconds += 10
        return "evidence.json", {"verdict": world().verdict, "reasons": [{"message": "τ 1.02"}]}

    monkeypatch.setattr(journal.Journal, "append", played_append)
    monkeypatch.setattr(host, "write_active", played_pointer)
    monkeypatch.setattr(host, "boot_id", lambda: world().boot)
    monkeypatch.setattr(host, "answers", lambda _home, deployed: world().answers(deployed["id"]))
    monkeypatch.setattr(launch, "wait_ready", ready)
    monkeypatch.setattr(launch, "require_port", lambda *_: None)
    monkeypatch.setattr(
        launch,
        "service_for",
        lambda deployed, _home: Service(
            host.service_name(deployed["id"]), ("vllm", str(deployed["place"]["port"])), {}, {}, "/"
        ),
    )
    monkeypatch.setattr(judge, "gate_candidate", gate)
    monkeypatch.setattr(host, "strategy", functools.partial(_strategy, world))
    monkeypatch.setattr(judge, "record_launch_failure", lambda *_: "evidence.json")
    count = itertools.count()

    def fresh() -> tuple[Home, World]:
        worlds.append(World())
        return Home(str(tmp_path / str(next(count)))), worlds[-1]

    yield fresh


def machine(home: Home, world: World, attempt: str = "") -> switch.Switch:
    return switch.Switch(
        home, PlayedBackend(world), clocks(world), lambda *_: None, attempt=attempt, front=PlayedFront(world)
    )


def clocks(world: World) -> Clocks:
    return Clocks(
        now=lambda: world.seconds + world.skew, boottime=lambda: world.seconds, sleep=lambda _s: None
    )


def converged(home: Home, world: World, attempt: str, wished: dict[str, Any]) -> dict[str, Any]:
    return switch.converge(machine(home, world, attempt), {**wished, "attempt": attempt})


def first(home: Home, world: World) -> str:
    """A green first deploy; the id of what it activated."""
    result = converged(home, world, "first", wish(home))
    assert result["ended"] == journal.ACTIVATED
    return str(spec.deployment(wish(home)["spec"])["id"])


OUTCOMES = ("pass", "fail", "inconclusive", "launch")
AFTERMATHS = ("job restarted", "rebooted", "too late")


def aftermath(world: World, kind: str) -> None:
    world.kill_at = None
    if kind == "rebooted":
        world.reboot()
    if kind == "too late":
        world.seconds += 1000


@dataclass(frozen=True)
class Host:
    """What the host has: a front or none, and room for so many engines."""

    front: int | None
    room_for: int

    def furnish(self, world: World) -> None:
        world.front, world.room_for = self.front, self.room_for


NO_FRONT, ROOM_FOR_ONE, ROOM_FOR_TWO = Host(None, 1), Host(0, 1), Host(0, 2)
HOSTS = {"no front": NO_FRONT, "in place": ROOM_FOR_ONE, "side by side": ROOM_FOR_TWO}


@pytest.mark.parametrize("on", HOSTS.values(), ids=HOSTS)
@pytest.mark.parametrize("after", AFTERMATHS)
@pytest.mark.parametrize("on_failure", ["restore", "fallback", "stop"])
@pytest.mark.parametrize("outcome", OUTCOMES)
@pytest.mark.parametrize("earlier", [True, False], ids=["previous", "first deploy"])
def test_killed_anywhere_exactly_one_activated_release_serves(
    stage: Callable[[], tuple[Home, World]],
    outcome: str,
    on_failure: str,
    earlier: bool,
    after: str,
    on: Host,
) -> None:
    number = 0
    killed = True
    while killed:
        number += 1
        home, world = stage()
        on.furnish(world)
        before = first(home, world) if earlier else None
        wished = wish(home, num_speculative_tokens=5)
        wished["options"]["on_failure"] = on_failure
        candidate = spec.deployment(aside(wished, earlier and on is ROOM_FOR_TWO))
        world.verdict = "pass" if outcome == "launch" else outcome
        world.launch_error = {host.service_name(candidate["id"])} if outcome == "launch" else set()
        world.effects, world.kill_at = 0, number
        # Beside a release that serves, nothing but a reboot or "stop" may cost a client a request.
        world.clients = earlier and on is ROOM_FOR_TWO and on_failure != "stop"
        killed = _attempt(home, world, wished)
        world.clients = world.clients and not (killed and after == "rebooted")
        aftermath(world, after if killed else AFTERMATHS[0])
        # The job is started again by its manager; after a reboot or by hand it is ``recover``.
        if killed and after == "job restarted":
            converged(home, world, "second", wished)
        else:
            machine(home, world).settle()
        ids = {spec.deployment(aside(wished, there and on is ROOM_FOR_TWO))["id"] for there in (True, False)}
        _assert_sound(home, world, {before, *ids, _fallback(candidate, on_failure)}, number)
        if on_failure != "stop" and earlier:
            assert world.up, f"killed at effect {number}: nothing serves though something did before"
        world.verdict, world.launch_error = "pass", set()
        result = converged(home, world, "again", wished)
        assert result["exit"] == verdicts.EXIT_PASS, (number, result)
        _assert_sound(home, world, ids, number)
    assert number > 10, "the walk has at least that many places to die"


def _attempt(home: Home, world: World, wished: dict[str, Any]) -> bool:
    """Whether the kill struck before the switch ended."""
    try:
        converged(home, world, "second", wished)
    except Killed:
        return True
    world.kill_at = None
    return False


def aside(wished: dict[str, Any], there: bool) -> dict[str, Any]:
    """The spec of a candidate that starts beside a release on the wished port, or in its place."""
    whole: dict[str, Any] = wished["spec"]
    return spec.beside(whole, whole["place"]) if there else whole


def _fallback(candidate: dict[str, Any], on_failure: str) -> str | None:
    return spec.without_speculation(candidate)["id"] if on_failure == "fallback" else None


def _assert_sound(home: Home, world: World, allowed: set[str | None], number: int) -> None:
    """The pointer and the processes say the same, and nothing is left open or over."""
    active = host.read_active(home)
    serving = active["deployment"]["id"] if active else None
    running = {name[len(ENGINE_PREFIX) :] for name in world.up}
    assert running == ({serving} if serving else set()), (
        f"killed at effect {number}: {running} beside {serving}"
    )
    assert serving is None or serving in allowed
    if world.front is not None:
        leads_to = active["deployment"]["place"]["port"] if active else 0
        assert world.front == leads_to, f"killed at effect {number}: the front leads elsewhere"
    assert journal.finished(journal.Journal(home.journal, lambda: 0.0).entries())


@pytest.mark.parametrize("on", HOSTS.values(), ids=HOSTS)
@pytest.mark.parametrize(
    ("outcome", "on_failure", "ended", "serving"),
    [
        ("pass", "restore", journal.ACTIVATED, "candidate"),
        ("fail", "restore", journal.RESTORED, "previous"),
        ("inconclusive", "restore", journal.RESTORED, "previous"),
        ("launch", "restore", journal.RESTORED, "previous"),
        ("fail", "fallback", journal.ACTIVATED, "fallback"),
        ("launch", "fallback", journal.ACTIVATED, "fallback"),
        ("fail", "stop", journal.STOPPED, None),
    ],
)
def test_how_a_switch_ends(
    stage: Callable[[], tuple[Home, World]],
    outcome: str,
    on_failure: str,
    ended: str,
    serving: str | None,
    on: Host,
) -> None:
    home, world = stage()
    on.furnish(world)
    before = first(home, world)
    wished = wish(home, num_speculative_tokens=5)
    wished["options"]["on_failure"] = on_failure
    candidate = spec.deployment(aside(wished, on is ROOM_FOR_TWO))
    world.verdict = "pass" if outcome == "launch" else outcome
    world.launch_error = {host.service_name(candidate["id"])} if outcome == "launch" else set()
    result = converged(home, world, "second", wished)
    ids = {
        "candidate": candidate["id"],
        "previous": before,
        "fallback": spec.without_speculation(candidate)["id"],
        None: None,
    }
    active = host.read_active(home)
    assert result["ended"] == ended
    assert (active["deployment"]["id"] if active else None) == ids[serving]
    assert result["exit"] == (verdicts.EXIT_PASS if ended == journal.ACTIVATED else verdicts.EXIT_RESTORED)
    assert result["fallback"] == (serving == "fallback")
    assert result["strategy"] == ("side_by_side" if on is ROOM_FOR_TWO else "in_place")


@pytest.mark.parametrize(
    ("on", "refused", "stops"),
    [(ROOM_FOR_TWO, {8001}, True), (ROOM_FOR_ONE, {0}, False), (ROOM_FOR_ONE, {8000}, True)],
    ids=["the flip", "closing", "opening again"],
)
def test_a_front_that_refuses_is_a_failed_switch(
    stage: Callable[[], tuple[Home, World]],
    monkeypatch: pytest.MonkeyPatch,
    on: Host,
    refused: set[int],
    stops: bool,
) -> None:
    home, world = stage()
    on.furnish(world)
    before = first(home, world)
    world.refused = refused
    stopped: list[str] = []
    stop = PlayedBackend.stop

    def stopping(self: PlayedBackend, name: str, seconds: float) -> None:
        stopped.append(name)
        stop(self, name, seconds)

    monkeypatch.setattr(PlayedBackend, "stop", stopping)
    result = converged(home, world, "second", wish(home, num_speculative_tokens=5))
    assert "nginx refuses" in result["reason"] and bool(stopped) is stops
    assert world.up == {host.service_name(before)}
    active = host.read_active(home)
    assert active and active["deployment"]["id"] == before
    # Where the front stays closed, that is said: nobody is served.
    opened = world.front == 8000
    assert result["ended"] == (journal.RESTORED if opened else journal.UNRESTORED)
    world.refused = set()
    machine(home, world).settle()
    assert world.front == 8000


@pytest.mark.parametrize(
    ("on_failure", "ended", "said"),
    [
        ("stop", journal.STOPPED, "the front is still open"),
        ("fallback", journal.RESTORED, "without speculation"),
    ],
)
def test_a_front_that_cannot_be_closed_after_a_red_gate_is_a_sentence(
    stage: Callable[[], tuple[Home, World]],
    monkeypatch: pytest.MonkeyPatch,
    on_failure: str,
    ended: str,
    said: str,
) -> None:
    """Not an exception that ends the job: its manager would start it again, into the same exception."""
    home, world = stage()
    ROOM_FOR_ONE.furnish(world)
    first(home, world)
    world.verdict = "fail"
    gate = judge.gate_candidate

    def then_full(*arguments: Any) -> Any:
        world.front, world.refused = 8000, {0, 8000}  # the disk is full from here on
        return gate(*arguments)

    monkeypatch.setattr(judge, "gate_candidate", then_full)
    wished = wish(home, num_speculative_tokens=5)
    wished["options"]["on_failure"] = on_failure
    result = converged(home, world, "second", wished)
    assert result["ended"] == ended and said in result["reason"] and "nginx refuses" in result["reason"]
    assert (world.up == set()) is (on_failure == "stop")


def test_a_candidate_that_hangs_after_its_gate_is_never_shown_to_a_client(
    stage: Callable[[], tuple[Home, World]], monkeypatch: pytest.MonkeyPatch
) -> None:
    home, world = stage()
    ROOM_FOR_TWO.furnish(world)
    before = first(home, world)
    gate = judge.gate_candidate

    def then_hangs(*arguments: Any) -> Any:
        world.hung = world.up - {host.service_name(before)}
        return gate(*arguments)

    monkeypatch.setattr(judge, "gate_candidate", then_hangs)
    led: list[int] = []
    monkeypatch.setattr(PlayedFront, "open", lambda _self, port: led.append(port))
    result = converged(home, world, "second", wish(home, num_speculative_tokens=5))
    assert result["ended"] == journal.RESTORED and "does not answer any more" in result["reason"]
    assert world.up == {host.service_name(before)} and set(led) == {8000}


@pytest.mark.parametrize(
    ("began", "limit", "patience"),
    [(-600.0, 100.0, 30.0), (-5.0, 7200.0, 30.0), (100.0, 100.0, 800.0), (100.0, 7200.0, 7100.0)],
    ids=["it answered", "a moment ago", "started again 100 s ago", "and it may load for two hours"],
)
def test_what_answered_before_is_not_waited_for_as_if_it_loaded(
    stage: Callable[[], tuple[Home, World]],
    monkeypatch: pytest.MonkeyPatch,
    began: float,
    limit: float,
    patience: float,
) -> None:
    home, world = stage()
    name = host.service_name(first(home, world))
    active = host.read_active(home)
    assert active
    files.write_json(home.active, {**active, "time_limit": limit})
    world.hung = {name}
    world.seconds = active["activated"] + 200
    state = ServiceState("running", pid=1, start_ticks=1, since=active["activated"] + began)
    monkeypatch.setattr(PlayedBackend, "state", lambda *_: state)
    waited: list[float] = []

    def ready(*_: Any, deadline: float, **_rest: Any) -> None:
        waited.append(deadline - world.seconds)

    monkeypatch.setattr(launch, "wait_ready", ready)
    machine(home, world).revive()
    assert waited == [patience]


def test_a_front_that_leads_elsewhere_is_settled(stage: Callable[[], tuple[Home, World]]) -> None:
    home, world = stage()
    ROOM_FOR_TWO.furnish(world)
    first(home, world)
    world.front = 0
    assert machine(home, world).settle()
    assert world.front == 8000


def test_after_a_switch_beside_it_the_same_wish_is_no_difference(
    stage: Callable[[], tuple[Home, World]],
) -> None:
    home, world = stage()
    ROOM_FOR_TWO.furnish(world)
    first(home, world)
    wished = wish(home, num_speculative_tokens=5)
    assert converged(home, world, "second", wished)["strategy"] == "side_by_side"
    assert world.front == 8001
    converged(home, world, "third", wished)  # no evidence is stored here: it is measured again
    opened = journal.Journal(home.journal, lambda: 0.0).entries()[0]
    assert (opened["action"], opened["differs"], world.front) == ("measure", [], 8001)
    assert converged(home, world, "fourth", wish(home))["strategy"] == "side_by_side"
    assert world.front == 8000


def test_a_previous_that_does_not_come_back_is_said_and_not_hidden(
    stage: Callable[[], tuple[Home, World]],
) -> None:
    home, world = stage()
    before = first(home, world)
    world.verdict = "fail"
    world.launch_error = {host.service_name(before)}
    result = converged(home, world, "second", wish(home, num_speculative_tokens=5))
    assert (result["ended"], result["exit"]) == (journal.UNRESTORED, verdicts.EXIT_UNRESTORED)
    assert "did not come back" in result["reason"] and "τ 1.02" in result["reason"]


@pytest.mark.parametrize("on", [ROOM_FOR_ONE, ROOM_FOR_TWO], ids=["in place", "side by side"])
def test_requests_that_a_drain_cut_off_are_counted(stage: Callable[[], tuple[Home, World]], on: Host) -> None:
    home, world = stage()
    on.furnish(world)
    first(home, world)
    world.streams = 3
    assert converged(home, world, "second", wish(home, num_speculative_tokens=5))["cut_off"] == 3


def test_what_two_engines_lack_refuses_the_wish_with_its_arithmetic(
    stage: Callable[[], tuple[Home, World]],
) -> None:
    home, world = stage()
    ROOM_FOR_ONE.furnish(world)
    before = first(home, world)
    wished = wish(home, num_speculative_tokens=5)
    wished["options"]["strategy"] = "side_by_side"
    result = converged(home, world, "second", wished)
    assert (result["exit"], result["error"]["code"]) == (verdicts.EXIT_REFUSED, "DG156")
    assert "two do not fit" in result["reason"] and world.up == {host.service_name(before)}


@pytest.mark.parametrize("days", [1, -1, 4000], ids=["ahead", "back", "ten years"])
@pytest.mark.parametrize("outcome", ["pass", "fail"])
def test_a_clock_that_jumps_at_every_step_decides_nothing(
    stage: Callable[[], tuple[Home, World]], outcome: str, days: int
) -> None:
    """Time limits are of the boot clock: NTP, or a flat battery, neither restores nor keeps a switch."""
    home, world = stage()
    before = first(home, world)
    world.verdict = outcome
    world.skew = days * 86400.0
    world.jumps = itertools.cycle([days * 86400.0, 0.0, -days * 86400.0 / 2])
    result = converged(home, world, "second", wish(home, num_speculative_tokens=5))
    assert result["ended"] == (journal.ACTIVATED if outcome == "pass" else journal.RESTORED)
    assert result["cause"] == ("" if outcome == "pass" else "gate")
    assert (world.up == {host.service_name(before)}) is (outcome == "fail")


def test_a_gate_change_measures_the_same_process_again(stage: Callable[[], tuple[Home, World]]) -> None:
    home, world = stage()
    before = first(home, world)
    wished = wish(home)
    wished["spec"]["gate"] = {**GATE, "concurrency": 2}
    result = converged(home, world, "second", wished)
    active = host.read_active(home)
    assert active and active["deployment"]["gate"]["concurrency"] == 2 and active["switch"] == "second"

    wished["spec"]["gate"] = {**GATE, "concurrency": 3}
    world.verdict = "fail"
    result = converged(home, world, "third", wished)
    assert result["ended"] == journal.RESTORED and result["exit"] == verdicts.EXIT_RESTORED
    assert world.up == {host.service_name(before)}, "a red gate of the serving release leaves it serving"


def test_what_hangs_is_started_again(stage: Callable[[], tuple[Home, World]]) -> None:
    home, world = stage()
    before = first(home, world)
    world.hung = {host.service_name(before)}
    result = converged(home, world, "second", wish(home))
    assert result["exit"] == verdicts.EXIT_PASS
    assert world.answers(before)


def test_what_another_attempt_left_open_is_restored_first(stage: Callable[[], tuple[Home, World]]) -> None:
    """``recover`` and a new wish must not push an unproven candidate forward."""
    home, world = stage()
    before = first(home, world)
    world.effects, world.kill_at = 0, 3
    with pytest.raises(Killed):
        converged(home, world, "second", wish(home, num_speculative_tokens=5))
    world.kill_at = None
    machine(home, world).settle()
    assert world.up == {host.service_name(before)}
    ended = journal.Journal(home.journal, lambda: 0.0).entries()[-1]
    assert (ended["state"], ended["cause"]) == (journal.RESTORED, "interrupted")


@pytest.mark.parametrize("state", [journal.PREVIOUS_STOPPED, journal.STARTED, journal.GATED])
def test_a_bug_or_a_full_disk_brings_back_what_served(
    stage: Callable[[], tuple[Home, World]], monkeypatch: pytest.MonkeyPatch, state: str
) -> None:
    home, world = stage()
    before = first(home, world)
    append = journal.Journal.append
    failed: list[str] = []

    def full(self: journal.Journal, wanted: str, **fields: Any) -> dict[str, Any]:
        if wanted == state and not failed:
            failed.append(wanted)
            raise OSError(28, "No space left on device")
        return append(self, wanted, **fields)

    monkeypatch.setattr(journal.Journal, "append", full)
    result = converged(home, world, "second", wish(home, num_speculative_tokens=5))
    assert result["ended"] == journal.RESTORED and "no room on the disk" in result["reason"]
    assert world.up == {host.service_name(before)}


@pytest.mark.parametrize("on", [NO_FRONT, ROOM_FOR_ONE, ROOM_FOR_TWO], ids=["no front", "one", "two"])
def test_a_release_that_cannot_start_any_more_does_not_block_the_next(
    stage: Callable[[], tuple[Home, World]], on: Host
) -> None:
    home, world = stage()
    on.furnish(world)
    broken = host.service_name(first(home, world))
    world.up.clear()
    world.launch_error = {broken}
    with pytest.raises(LaunchError):  # the same wish again is this very release: its own error is the answer
        converged(home, world, "again", wish(home))
    result = converged(home, world, "second", wish(home, num_speculative_tokens=5))
    assert result["ended"] == journal.ACTIVATED and broken not in world.up


@pytest.mark.parametrize("on_failure", ["stop", "fallback"])
@pytest.mark.parametrize("code", ["inconclusive", "DG701", "DG704"])
def test_what_was_proven_is_given_up_only_for_what_is_proven_bad(
    stage: Callable[[], tuple[Home, World]], monkeypatch: pytest.MonkeyPatch, code: str, on_failure: str
) -> None:
    home, world = stage()
    ROOM_FOR_TWO.furnish(world)
    before = host.service_name(first(home, world))
    wished = wish(home, num_speculative_tokens=5)
    wished["options"]["on_failure"] = on_failure
    world.verdict = "inconclusive"
    bad = host.service_name(spec.deployment(aside(wished, True))["id"])
    ready = launch.wait_ready

    def refuses(client: Any, backend: Any, name: str, **rest: Any) -> Any:
        if name == bad and code != "inconclusive":
            raise LaunchError("starting", "it does not", code=code)
        return ready(client, backend, name, **rest)

    monkeypatch.setattr(launch, "wait_ready", refuses)
    result = converged(home, world, "second", wished)
    if code == "DG704":  # a wrong argument stays wrong
        assert result["ended"] == (journal.STOPPED if on_failure == "stop" else journal.ACTIVATED)
    else:
        assert result["ended"] == journal.RESTORED and world.up == {before}


@pytest.mark.parametrize("moment", [journal.STARTED, journal.GATED])
def test_a_restore_whose_line_was_lost_is_not_taken_forward(
    stage: Callable[[], tuple[Home, World]], monkeypatch: pytest.MonkeyPatch, moment: str
) -> None:
    """A full disk, so that what served is back without a line; then the job is killed, and there is room."""
    home, world = stage()
    ROOM_FOR_ONE.furnish(world)
    before = host.service_name(first(home, world))
    monkeypatch.setattr(  # whoever has the port says that it is healthy
        host, "answers", lambda _home, seen: any(world.ports[up] == seen["place"]["port"] for up in world.up)
    )
    with monkeypatch.context() as full:
        disk = FullDisk(world, journal.FAILED, 1e9)
        full.setattr(journal.Journal, "_write", disk.written(journal.Journal._write))
        broken = {journal.STARTED: (judge, "gate_candidate"), journal.GATED: (PlayedFront, "open")}[moment]
        real = getattr(*broken)

        def fails(*arguments: Any) -> Any:
            if disk.until is None:
                raise HostError("doing it", "it does not work")
            return real(*arguments)

        full.setattr(*broken, fails)
        with pytest.raises(OSError):
            converged(home, world, "second", wish(home, num_speculative_tokens=5))
    assert (
        world.up == {before} and journal.Journal(home.journal, lambda: 0.0).entries()[-1]["state"] == moment
    )
    result = converged(home, world, "second", wish(home, num_speculative_tokens=5))
    assert result["ended"] == journal.RESTORED and world.up == {before}


class FullDisk:
    """There is no room from one durable write on, for so many seconds; ``seen``: what ran meanwhile."""

    def __init__(self, world: World, at: str, seconds: float) -> None:
        self.world, self.at, self.lasts = world, at, seconds
        self.until: float | None = None
        self.seen: set[frozenset[str]] = set()

    def has_room(self, *_: Any) -> bool:
        return self.until is None or self.world.seconds >= self.until

    def sleep(self, seconds: float) -> None:
        self.world.seconds += max(1.0, seconds)
        self.seen.add(frozenset(self.world.up))

    def written(self, write: Callable[..., Any], moment: str = "") -> Callable[..., Any]:
        """``write`` on this disk; the moment is its own, or the state of the journal's new line."""

        def tried(*arguments: Any, **fields: Any) -> Any:
            if self.at == (moment or arguments[1]["state"]) and self.until is None:
                self.until = self.world.seconds + self.lasts
            if not self.has_room():
                raise OSError(28, "No space left on device")
            return write(*arguments, **fields)

        return tried


@pytest.mark.parametrize("seconds", [18, 18000])
@pytest.mark.parametrize(
    "moment",
    [
        journal.PREPARED,
        journal.PREVIOUS_STOPPED,
        journal.STARTED,
        journal.GATED,
        "pointer",
        journal.ACTIVATED,
        "end",
    ],
)
@pytest.mark.parametrize("on", [ROOM_FOR_ONE, ROOM_FOR_TWO], ids=["in place", "side by side"])
def test_on_a_full_disk_what_served_is_back_at_once_and_the_journal_follows(
    stage: Callable[[], tuple[Home, World]],
    monkeypatch: pytest.MonkeyPatch,
    on: Host,
    moment: str,
    seconds: float,
) -> None:
    home, world = stage()
    on.furnish(world)
    before = host.service_name(first(home, world))
    files.write_json(home.wish, {**wish(home, num_speculative_tokens=5), "attempt": "second"})
    disk = FullDisk(world, moment, seconds)
    monkeypatch.setattr(journal.Journal, "_write", disk.written(journal.Journal._write))
    monkeypatch.setattr(host, "write_active", disk.written(host.write_active, "pointer"))
    monkeypatch.setattr(switch, "write_json", disk.written(files.write_json, "end"))
    monkeypatch.setattr(switch, "_has_room", disk.has_room)
    job = machine(home, world, "second")
    job.clocks = replace(job.clocks, sleep=disk.sleep)
    assert switch.run(job) in verdicts.VERDICT_EXIT_CODES
    told = files.read_json(verdicts.result_path(home), "reading the result")
    # Before the first line nothing is touched; once it is gated, the candidate serves.
    untouched = moment == journal.PREPARED or (on is ROOM_FOR_TWO and moment == journal.PREVIOUS_STOPPED)
    if untouched or moment in ("pointer", journal.ACTIVATED, "end"):
        assert told["ended"] == journal.ACTIVATED
        assert not untouched or disk.seen <= {frozenset({before})}
    else:
        assert told["ended"] == journal.RESTORED and "no room on the disk" in told["reason"]
        assert world.up == {before} and disk.seen == {frozenset({before})}, "it does not wait for a line"
        states = [entry["state"] for entry in job.journal.entries()]
        assert states[-2:] == [journal.FAILED, journal.RESTORED]


def test_no_verdict_is_an_exception_that_nobody_caught() -> None:
    assert 1 not in verdicts.VERDICT_EXIT_CODES


def test_a_job_that_ends_with_an_open_switch_gives_no_verdict(
    stage: Callable[[], tuple[Home, World]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its manager starts it again then; a verdict's exit code would end it for good."""
    home, world = stage()
    first(home, world)
    wished = {**wish(home, num_speculative_tokens=5), "attempt": "second"}
    files.write_json(home.wish, wished)
    monkeypatch.setattr(PlayedBackend, "remove", _broken)
    code = switch.run(machine(home, world, "second"))
    assert code not in verdicts.VERDICT_EXIT_CODES
    monkeypatch.undo()


def _broken(*_: Any) -> None:
    raise HostError("stopping", "processes do not end after SIGKILL")


def test_a_wish_of_another_attempt_is_not_carried_out(stage: Callable[[], tuple[Home, World]]) -> None:
    home, world = stage()
    first(home, world)
    theirs = {**wish(home, num_speculative_tokens=5), "attempt": "theirs"}
    with pytest.raises(InputError, match="theirs"):
        switch.converge(machine(home, world, "mine"), theirs)


def test_a_fallback_that_is_wished_later_is_no_fallback_any_more(
    stage: Callable[[], tuple[Home, World]],
) -> None:
    home, world = stage()
    first(home, world)
    wished = wish(home, num_speculative_tokens=5)
    wished["options"]["on_failure"] = "fallback"
    world.verdict = "fail"
    assert converged(home, world, "second", wished)["fallback"]
    active = host.read_active(home)
    assert active and active["evidence"] is None, "the refused candidate's evidence is not what serves"
    world.verdict = "pass"
    converged(home, world, "third", wish(home, drafter=None, num_speculative_tokens=0))
    active = host.read_active(home)
    assert active and active["fallback_of"] is None and active["evidence"]


def test_another_port_keeps_the_release_before(stage: Callable[[], tuple[Home, World]]) -> None:
    home, world = stage()
    first(home, world)
    converged(home, world, "second", wish(home, num_speculative_tokens=5))
    moved = wish(home, num_speculative_tokens=5)
    moved["spec"]["place"]["port"] = 8010
    converged(home, world, "third", moved)
    active = host.read_active(home)
    assert active and active["previous"]["serve"]["num_speculative_tokens"] == 7


def test_a_taken_port_is_seen_before_anything_is_stopped(
    stage: Callable[[], tuple[Home, World]], monkeypatch: pytest.MonkeyPatch
) -> None:
    home, world = stage()
    before = first(home, world)
    stopped: list[str] = []
    monkeypatch.setattr(PlayedBackend, "stop", lambda _self, name, _seconds: stopped.append(name))

    def taken(_host: str, port: int) -> None:
        if port == 8010:
            raise LaunchError("binding", "port 8010 is taken by pid 7", details={"cause": "port_taken"})

    monkeypatch.setattr(launch, "require_port", taken)
    moved = wish(home)
    moved["spec"]["place"]["port"] = 8010
    result = converged(home, world, "second", moved)
    assert result["ended"] == journal.RESTORED and "port 8010 is taken" in result["reason"]
    assert stopped == [] and world.up == {host.service_name(before)}


def test_only_one_switch_at_a_time(stage: Callable[[], tuple[Home, World]]) -> None:
    home, world = stage()
    with (
        switch.exclusive(home, "attempt one, pid 1", clocks(world)),
        pytest.raises(HostError, match="attempt one"),
        switch.exclusive(home, "attempt two, pid 2", clocks(world)),
    ):
        pass


ENTRY: dict[str, Any] = {
    "state": journal.PREPARED,
    "switch": "this",
    "candidate": {"id": "new", "release": "new"},
    "previous": {"id": "old", "release": "old"},
    "on_failure": "restore",
    "fallback": None,
    "boot_id": "b",
    "deadline": 100.0,
    "time_limit": 60.0,
}


@pytest.mark.parametrize(
    ("states", "observed", "expected"),
    [
        ([], {}, recovery.NOTHING),
        ([], {"active": "old"}, recovery.START_ACTIVE),
        ([], {"active": "old", "running": frozenset({"old"})}, recovery.NOTHING),
        ([], {"active": "old", "running": frozenset({"old", "x"})}, recovery.STOP_STRAYS),
        ([], {"active": "old", "running": frozenset({"old"}), "port": 1, "front": 1}, recovery.NOTHING),
        ([], {"active": "old", "running": frozenset({"old"}), "port": 1, "front": 2}, recovery.LEAD_FRONT),
        ([], {"active": "old", "running": frozenset({"old"}), "port": 1, "front": 0}, recovery.LEAD_FRONT),
        ([], {"active": "old", "port": 1, "front": 0}, recovery.START_ACTIVE),
        ([], {"front": 0}, recovery.NOTHING),
        ([], {"front": 1}, recovery.LEAD_FRONT),
        ([{**ENTRY, "strategy": "side_by_side"}], {}, recovery.START_CANDIDATE),
        ([ENTRY], {}, recovery.STOP_PREVIOUS),
        ([ENTRY], {"attempt": "another"}, recovery.RESTORE),
        ([ENTRY], {"attempt": ""}, recovery.RESTORE),
        ([ENTRY], {"boottime": 101.0}, recovery.RESTORE),
        ([ENTRY], {"boot_id": "other"}, recovery.RESTORE),
        ([ENTRY, {"state": "previous_stopped"}], {}, recovery.START_CANDIDATE),
        ([ENTRY, {"state": "started"}], {"running": frozenset({"new"})}, recovery.GATE),
        ([ENTRY, {"state": "started"}], {}, recovery.START_CANDIDATE),
        ([ENTRY, {"state": "gated", "verdict": "pass"}], {"boottime": 101.0}, recovery.ACTIVATE),
        ([ENTRY, {"state": "gated", "verdict": "pass"}], {"written_by": "this"}, recovery.FINISH),
        (
            [ENTRY, {"state": "gated", "verdict": "pass"}],
            {"written_by": "this", "boot_id": "o"},
            recovery.FINISH,
        ),
        ([ENTRY, {"state": "gated", "verdict": "pass"}], {"active": "new"}, recovery.ACTIVATE),
        ([ENTRY, {"state": "gated", "verdict": "fail", "reason": "r"}], {}, recovery.RESTORE),
        ([ENTRY, {"state": "failed", "cause": "launch", "reason": "r"}], {}, recovery.RESTORE),
        ([ENTRY, {"state": "restored"}], {"active": "old", "running": frozenset({"old"})}, recovery.NOTHING),
    ],
)
def test_next_action(states: list[dict[str, Any]], observed: dict[str, Any], expected: str) -> None:
    seen = recovery.Observed(
        **{"active": "old", "boot_id": "b", "boottime": 50.0, "attempt": "this", **observed}
        if states
        else observed
    )
    assert recovery.next_action(states, seen).name == expected
