"""A real supervisord under a home of its own, with engines that die as badly as vLLM's processes do."""

from __future__ import annotations

import multiprocessing
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, Callable, Dict, Iterator, List

import pytest
from draftgate import processes
from draftgate.backend import base
from draftgate.backend.base import Job, Service
from draftgate.backend.supervisord import Down, SupervisordBackend
from draftgate.errors import HostError
from draftgate.layout import Home

REPO = Path(__file__).resolve().parents[2]
LOCK = (REPO / "locks" / "supervisor.txt").read_text()
AGENT = str(REPO / "module_utils")

# As vLLM's: core and worker are not in the API server's session, the API server exits 0 when one dies.
ENGINE = """
import os, signal, subprocess, sys, time
role, directory = sys.argv[1], sys.argv[2]
if "deaf" in sys.argv:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
below = {"api": "core", "core": "worker"}.get(role)
argv = [sys.executable, sys.argv[0], below, *sys.argv[2:]]
child = below and subprocess.Popen(argv, start_new_session=True)
with open(os.path.join(directory, role + ".new"), "w") as out:
    out.write(str(os.getpid()))
os.rename(os.path.join(directory, role + ".new"), os.path.join(directory, role))
print(role, "is up", flush=True)
while not child or child.poll() is None:
    time.sleep(0.05)
"""


def until(condition: Callable[[], Any], seconds: float = 20) -> float:
    began = time.monotonic()
    while not condition():
        assert time.monotonic() - began < seconds, "it did not happen in time"
        time.sleep(0.02)
    return time.monotonic() - began


def make(home: Path) -> SupervisordBackend:
    return SupervisordBackend(Home(str(home)), agent=AGENT, lock=LOCK)


def lend_environment(installed: SupervisordBackend, home: str) -> None:
    """A copy of the daemon's environment saves ten seconds; `python -I -m` does not mind where it lies."""
    parts = ("supervisor", "venv")
    shutil.copytree(installed.home.path(*parts), os.path.join(home, *parts), symlinks=True)


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SupervisordBackend]:
    """One daemon for all tests that do not kill it. ``HF_TOKEN`` is in the environment that starts it."""
    one = make(
        tmp_path_factory.mktemp("home") / "a home with a long name so that its sockets do not fit 100%"
    )
    os.environ["HF_TOKEN"] = "s3cret"
    try:
        assert one.ensure() is True
        yield one
    finally:
        del os.environ["HF_TOKEN"]
        one.shutdown()


@pytest.fixture
def fresh(installed: SupervisordBackend, tmp_path: Path) -> Iterator[SupervisordBackend]:
    """A daemon to kill."""
    one = make(tmp_path / "home")
    lend_environment(installed, one.home.root)
    assert one.ensure() is True
    yield one
    one.shutdown()


class Engine:
    """A defined service and its processes by role."""

    def __init__(
        self, backend: SupervisordBackend, directory: Path, *options: str, stop_seconds: int = 2
    ) -> None:
        self.backend, self.directory, self.name = (
            backend,
            directory,
            f"engine-{directory.name[-24:].strip('_')}",
        )
        script = directory / "engine.py"
        script.write_text(ENGINE)
        argv = (sys.executable, str(script), "api", str(directory), *options)
        self.service = Service(self.name, argv, {"A": "% ; #"}, {}, str(directory), stop_seconds)
        backend.define(self.service)

    def start(self) -> Dict[str, int]:
        for role in ("api", "core", "worker"):
            (self.directory / role).unlink(missing_ok=True)
        self.backend.start(self.name)
        return self.pids()

    def pids(self) -> Dict[str, int]:
        roles = ("api", "core", "worker")
        until(lambda: all((self.directory / role).exists() for role in roles))
        return {role: int((self.directory / role).read_text()) for role in roles}

    def owned(self) -> List[int]:
        return processes.owned(self.name, self.backend.home.root)


@pytest.fixture
def engine(installed: SupervisordBackend, tmp_path: Path) -> Iterator[Engine]:
    one = Engine(installed, tmp_path)
    yield one
    installed.remove(one.name)
    assert one.owned() == []


def gone(pids: Dict[str, int]) -> bool:
    return all(processes.start_ticks(pid) is None for pid in pids.values())


def daemon_pid(backend: SupervisordBackend) -> int:
    return int(backend._call("getPID"))


# The daemon


def test_the_daemon_is_nobodys_child_and_knows_no_secret(installed: SupervisordBackend) -> None:
    pid = daemon_pid(installed)
    assert os.getsid(pid) not in (os.getsid(0), pid), "its own session, and not its leader"
    assert pid not in processes.descendants(os.getpid())
    environment = Path(f"/proc/{pid}/environ").read_bytes()
    assert b"s3cret" not in environment
    assert {entry.split(b"=")[0] for entry in environment.split(b"\0") if entry} == {
        b"PATH", b"HOME", b"LANG", b"DRAFTGATE_SUPERVISOR_PID",
    }  # fmt: skip
    assert {int(fd) for fd in os.listdir(f"/proc/{pid}/fd")} & set(range(3)) == {0, 1, 2}
    assert installed.ensure() is False


def test_killing_the_controller_and_all_its_children_does_not_touch_it(installed: SupervisordBackend) -> None:
    home = Path(installed.home.root).parent / "h2"
    lend_environment(installed, str(home))
    code = (
        f"import sys, time; sys.path.insert(0, {AGENT!r})\n"
        "from draftgate.backend.supervisord import SupervisordBackend\n"
        "from draftgate.layout import Home\n"
        f"print(SupervisordBackend(Home({str(home)!r}), agent='', lock={LOCK!r}).ensure(), flush=True)\n"
        "time.sleep(60)"
    )
    controller = subprocess.Popen(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, start_new_session=True
    )
    assert controller.stdout is not None and controller.stdout.readline() == b"True\n"
    for pid in processes.descendants(controller.pid):
        os.kill(pid, signal.SIGKILL)
    os.killpg(controller.pid, signal.SIGKILL)
    controller.wait()
    one = make(home)
    assert one.ensure() is False
    one.shutdown()


def _ensure(home: str, results: Any) -> None:
    results.put(make(Path(home)).ensure())


def test_two_at_once_start_one_daemon(installed: SupervisordBackend, fresh: SupervisordBackend) -> None:
    fresh.shutdown()
    lend_environment(installed, fresh.home.root)
    results: Any = multiprocessing.Queue()
    both = [multiprocessing.Process(target=_ensure, args=(fresh.home.root, results)) for _ in range(2)]
    for one in both:
        one.start()
    assert sorted([results.get(timeout=30), results.get(timeout=30)]) == [False, True]
    for one in both:
        one.join()


def test_shutdown_leaves_nothing(fresh: SupervisordBackend, tmp_path: Path) -> None:
    engine = Engine(fresh, tmp_path)
    pids = engine.start()
    fresh.start_job(Job("switch", ("/bin/sleep", "600")))
    fresh.shutdown()
    assert gone(pids)
    assert processes.owned_by_home(fresh.home.root) == []
    assert not os.path.exists(fresh.home.supervisor) and not os.path.exists(fresh.run_directory)
    with pytest.raises(Down):
        daemon_pid(fresh)
    fresh.shutdown()


# Engines


def test_a_service_is_defined_started_stopped_and_forgotten(engine: Engine) -> None:
    backend = engine.backend
    assert backend.define(engine.service) is False
    assert backend.state(engine.name).status == "stopped"
    assert engine.name in backend.services()
    pids = engine.start()
    state = backend.state(engine.name)
    assert state.status == "running" and state.pid and state.start_ticks == processes.start_ticks(state.pid)
    assert set(pids.values()) < set(engine.owned())
    backend.start(engine.name)
    assert backend.state(engine.name).identity == state.identity, "starting a running one changes nothing"
    until(lambda: "worker is up" in backend.log_tail(engine.name, 5))
    backend.stop(engine.name, 10)
    assert engine.owned() == [] and gone(pids)
    assert backend.state(engine.name).status == "stopped"
    backend.stop(engine.name, 10)
    backend.remove(engine.name)
    assert backend.state(engine.name).status == "absent" and engine.name not in backend.services()


def test_a_service_nobody_defined_cannot_be_started(installed: SupervisordBackend) -> None:
    with pytest.raises(HostError, match="never defined"):
        installed.start("engine-nobody")


def test_a_changed_definition_holds_from_the_next_start_on(engine: Engine, tmp_path: Path) -> None:
    backend = engine.backend
    engine.start()
    identity = backend.state(engine.name).identity
    changed = Service(engine.name, ("/bin/sh", "-c", "echo $B; sleep 600"), {"B": "new 100% ; #"}, {}, "/", 2)
    assert backend.define(changed) is True
    assert backend.state(engine.name).identity == identity
    backend.stop(engine.name, 10)
    backend.start(engine.name)
    until(lambda: "new 100% ; #" in backend.log_tail(engine.name, 5))


@pytest.mark.parametrize("victim", ["api", "core", "worker", "reaper"])
def test_whichever_process_is_killed_all_go_and_the_service_comes_back(engine: Engine, victim: str) -> None:
    pids = engine.start()
    before = engine.backend.state(engine.name)
    assert before.pid
    os.kill(before.pid if victim == "reaper" else pids[victim], signal.SIGKILL)
    until(lambda: gone(pids))
    until(lambda: engine.backend.state(engine.name).identity not in (before.identity, (None, None)))
    until(lambda: len(engine.owned()) == 4)
    assert not set(engine.owned()) & {before.pid, *pids.values()}


def test_reaper_and_api_server_killed_in_one_stroke_leave_nothing_beside_the_next(engine: Engine) -> None:
    pids = engine.start()
    before = engine.backend.state(engine.name)
    assert before.pid
    os.kill(before.pid, signal.SIGSTOP)
    os.kill(pids["api"], signal.SIGKILL)
    os.kill(before.pid, signal.SIGKILL)
    assert processes.start_ticks(pids["worker"]), "nothing but the mark connects it with the service now"
    until(lambda: gone(pids) and len(engine.owned()) == 4)


def test_a_killed_supervisord_takes_everything_along_and_the_next_starts_clean(
    fresh: SupervisordBackend, tmp_path: Path
) -> None:
    engine = Engine(fresh, tmp_path)
    pids = engine.start()
    fresh.start_job(Job("switch", ("/bin/sleep", "600")))
    os.kill(daemon_pid(fresh), signal.SIGKILL)
    until(lambda: processes.owned_by_home(fresh.home.root) == [])
    assert gone(pids)
    assert fresh.state(engine.name).status == "stopped"
    assert fresh.services() == [engine.name]
    assert fresh.ensure() is True
    assert fresh.state(engine.name).status == "stopped", "no service starts by itself"
    assert fresh.job_state("switch").status == "absent"
    engine.start()
    assert len(engine.owned()) == 4


def test_processes_of_a_killed_daemon_that_will_not_go_are_swept_by_the_next_start(
    fresh: SupervisordBackend, tmp_path: Path
) -> None:
    engine = Engine(fresh, tmp_path, "deaf", stop_seconds=60)
    pids = engine.start()
    os.kill(daemon_pid(fresh), signal.SIGKILL)
    assert fresh.ensure() is True
    assert fresh.state(engine.name).status == "stopped"
    assert not gone(pids), "they would take a minute"
    engine.start()
    assert gone(pids)
    assert len(engine.owned()) == 4
    fresh.stop(engine.name, 1)


def test_a_deaf_engine_is_killed_at_the_deadline(engine: Engine, tmp_path: Path) -> None:
    deaf = Engine(engine.backend, tmp_path, "deaf", stop_seconds=60)
    pids = deaf.start()
    began = time.monotonic()
    deaf.backend.stop(deaf.name, 1)
    assert gone(pids) and deaf.owned() == []
    assert 1 <= time.monotonic() - began < 8
    assert deaf.backend.state(deaf.name).status == "stopped"


def test_a_bad_start_is_tried_a_few_times_and_then_left_down(
    installed: SupervisordBackend, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(base, "QUICK_DEATHS", 2)
    name = "engine-bad"
    installed.define(Service(name, ("/bin/sh", "-c", "echo try; exit 0"), {}, {}, "/", 2))
    installed.start(name)
    until(lambda: installed.state(name).status == "failed")
    assert installed.log_tail(name, 99).count("try") == 2
    installed.start(name)
    until(lambda: installed.log_tail(name, 99).count("try") == 4)
    installed.remove(name)


def test_a_restart_loop_can_be_stopped(installed: SupervisordBackend) -> None:
    name = "engine-loop"
    installed.define(Service(name, ("/bin/false",), {}, {}, "/", 2))
    installed.start(name)
    until(lambda: installed.state(name).status == "starting")
    installed.stop(name, 10)
    assert installed.state(name).status == "stopped"
    offset = installed.log_offset(name)
    time.sleep(2.5)
    assert installed.log_tail(name, 9, offset) == []
    installed.remove(name)


def test_a_rotated_secret_is_read_at_the_next_start_and_is_nowhere_else(
    installed: SupervisordBackend, tmp_path: Path
) -> None:
    name, secret = "engine-secret", tmp_path / "key"
    show = ("/bin/sh", "-c", "echo length ${#VLLM_API_KEY}; sleep 600")
    installed.define(Service(name, show, {}, {"VLLM_API_KEY": str(secret)}, "/", 2))
    for value in ("s3cret-one", "s3cret"):
        secret.write_text(value + "\n")
        installed.start(name)
        until(lambda value=value: f"length {len(value)}" in installed.log_tail(name, 9))  # type: ignore[misc]
        written = subprocess.run(
            ["grep", "-r", "s3cret", installed.home.root], capture_output=True, check=False
        )
        assert written.stdout == b""
        installed.stop(name, 10)
    installed.remove(name)


# Jobs


def test_a_jobs_verdict_is_kept_and_a_finished_one_is_replaced(installed: SupervisordBackend) -> None:
    for code in (3, 0):
        installed.start_job(
            Job("verdict", ("/bin/sh", "-c", f"sleep 0.3; exit {code}"), verdict_exit_codes=(0, 3))
        )
        assert installed.job_state("verdict").status == "running"
        until(lambda: installed.job_state("verdict").status == "finished")
        assert installed.job_state("verdict").exit_code == code
    installed.remove_job("verdict")
    assert installed.job_state("verdict").status == "absent"


def _start_job(home: str, results: Any) -> None:
    try:
        make(Path(home)).start_job(Job("lock", ("/bin/sleep", "600")))
        results.put("started")
    except HostError as exc:
        results.put("held" if exc.details.get("held") else str(exc))


def test_a_jobs_name_is_a_lock(installed: SupervisordBackend) -> None:
    results: Any = multiprocessing.Queue()
    rivals = [
        multiprocessing.Process(target=_start_job, args=(installed.home.root, results)) for _ in range(4)
    ]
    for rival in rivals:
        rival.start()
    assert sorted(results.get(timeout=30) for _ in rivals) == ["held", "held", "held", "started"]
    for rival in rivals:
        rival.join()
    installed.remove_job("lock")
    assert processes.owned("lock", installed.home.root) == []


@pytest.mark.parametrize("victim", ["job", "reaper"])
def test_a_killed_job_goes_on_from_its_journal(
    installed: SupervisordBackend, tmp_path: Path, victim: str
) -> None:
    journal = tmp_path / "journal"
    code = f"echo $$ >> {journal}; test $(wc -l < {journal}) -ge 2 && exit 3; exec sleep 600"
    installed.start_job(Job("resumes", ("/bin/sh", "-c", code), {}, "/", (0, 3)))
    until(lambda: journal.exists() and journal.read_text().strip())
    pid = installed.job_state("resumes").pid
    assert pid
    os.kill(int(journal.read_text()) if victim == "job" else pid, signal.SIGKILL)
    until(lambda: installed.job_state("resumes").status == "finished")
    assert installed.job_state("resumes").exit_code == 3
    assert len(journal.read_text().splitlines()) == 2
    installed.remove_job("resumes")
