"""The reaper as the script it is, around processes that behave as badly as vLLM's do."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, Callable, Dict, Iterator, List

import pytest
from draftgate import reaper

SCRIPT = Path(reaper.__file__)

# An API server with an EngineCore in a session of its own and a worker below that: each writes its pid.
ENGINE = """
import os, signal, subprocess, sys, time
role, directory = sys.argv[1], sys.argv[2]
below = {"api": "core", "core": "worker"}.get(role)
if "deaf" in sys.argv:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
if below:
    subprocess.Popen([sys.executable, *sys.argv[:1], below, *sys.argv[2:]], start_new_session=True)
open(os.path.join(directory, role), "w").write(str(os.getpid()))
time.sleep(600)
"""


class Running:
    """One reaper, its engine's pids by role, and all it wrote."""

    def __init__(self, tmp_path: Path, mark: str) -> None:
        self.directory, self.mark = tmp_path, mark
        self.log = tmp_path / "log"
        self.process: subprocess.Popen[bytes]

    def start(self, argv: List[str], prelude: str = "", **description: Any) -> None:
        full: Dict[str, Any] = {
            "argv": argv,
            "environment": {"PATH": os.environ["PATH"], "LANG": "C.UTF-8"},
            "secret_files": {},
            "working_directory": "/",
            "temporary": str(self.directory / "private"),
            "stop_seconds": 1,
            "verdicts": None,
            **description,
        }
        path = self.directory / "service.json"
        path.write_text(json.dumps(full))
        command = [sys.executable, "-I", "-S", str(SCRIPT), str(path)]
        if prelude:
            code = f"import sys; sys.path.insert(0, {str(SCRIPT.parent)!r}); import reaper; {prelude}; "
            command = [sys.executable, "-c", code + f"sys.exit(reaper.main({str(path)!r}))"]
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                command, env={reaper.MARK: self.mark}, stdout=log, stderr=log, start_new_session=True
            )

    def start_engine(self, *options: str, **description: Any) -> Dict[str, int]:
        script = self.directory / "engine.py"
        script.write_text(ENGINE)
        self.start([sys.executable, str(script), "api", str(self.directory), *options], **description)
        return {role: self.pid_of(role) for role in ("api", "core", "worker")}

    def pid_of(self, role: str) -> int:
        path = self.directory / role
        until(lambda: path.exists() and path.read_text() != "")
        return int(path.read_text())

    def ended(self, seconds: float = 10) -> int:
        return self.process.wait(seconds)


def until(condition: Callable[[], Any], seconds: float = 10) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it did not happen in time"
        time.sleep(0.02)


def gone(pids: Dict[str, int]) -> bool:
    return all(reaper.start_ticks(pid) is None for pid in pids.values())


@pytest.fixture
def running(tmp_path: Path) -> Iterator[Running]:
    one = Running(tmp_path, f"engine-test@{os.getpid():012x}"[:40])
    yield one
    if hasattr(one, "process") and one.process.poll() is None:
        one.process.kill()
        one.process.wait()
    assert reaper.sweep(one.mark) == []


@pytest.mark.parametrize(("victim", "code"), [("api", 137), ("core", None), ("worker", None)])
def test_a_killed_process_leaves_nothing_behind(running: Running, victim: str, code: int | None) -> None:
    pids = running.start_engine()
    os.kill(pids[victim], signal.SIGKILL)
    if victim != "api":  # as vLLM does: a dead worker ends its API server with exit code 0
        os.kill(pids["api"], signal.SIGTERM)
        code = 128 + signal.SIGTERM
    assert running.ended() == code
    assert gone(pids)
    assert "processes left behind and killed" in running.log.read_text()


@pytest.mark.parametrize(("script", "code"), [("exit 0", 1), ("exit 7", 7), ("kill -9 $$", 137)])
def test_a_service_never_ends_with_0_by_itself(running: Running, script: str, code: int) -> None:
    running.start(["/bin/sh", "-c", script])
    assert running.ended() == code


@pytest.mark.parametrize("options", [(), ("deaf",)], ids=["obedient", "deaf to SIGTERM"])
def test_asked_to_stop_it_ends_with_0_and_takes_everything_along(
    running: Running, options: tuple[str, ...]
) -> None:
    pids = running.start_engine(*options)
    began = time.monotonic()
    running.process.terminate()
    assert running.ended() == 0
    assert gone(pids)
    assert (time.monotonic() - began > 1) == bool(options), (
        "SIGKILL comes after stop_seconds, and only when needed"
    )


def test_a_killed_reaper_takes_its_child_along_and_its_successor_the_rest(running: Running) -> None:
    pids = running.start_engine()
    running.process.kill()
    until(lambda: reaper.start_ticks(pids["api"]) is None)
    assert reaper.start_ticks(pids["worker"]), "nobody is left to kill it: that is the successor's part"
    running.start(["/bin/sh", "-c", "exit 7"])
    assert running.ended() == 7
    assert gone(pids)


def test_a_dead_supervisor_ends_the_service(running: Running, tmp_path: Path) -> None:
    script = tmp_path / "engine.py"
    script.write_text(ENGINE)
    description = {
        "argv": [sys.executable, str(script), "api", str(tmp_path)],
        "environment": {}, "secret_files": {}, "working_directory": "/",
        "temporary": str(tmp_path / "private"), "stop_seconds": 1, "verdicts": None,
    }  # fmt: skip
    (tmp_path / "service.json").write_text(json.dumps(description))
    code = f"""if True:
        import os, subprocess, sys
        environment = {{{reaper.MARK!r}: {running.mark!r}, {reaper.SUPERVISOR_PID!r}: str(os.getpid())}}
        command = [sys.executable, "-I", "-S", {str(SCRIPT)!r}, {str(tmp_path / "service.json")!r}]
        subprocess.Popen(command, env=environment).wait()"""
    supervisor = subprocess.Popen([sys.executable, "-c", code])
    pids = {role: running.pid_of(role) for role in ("api", "core", "worker")}
    supervisor.kill()
    supervisor.wait()
    until(lambda: gone(pids) and not reaper.marked(running.mark))


def test_it_does_not_start_below_another_parent_than_its_supervisor(running: Running) -> None:
    running.start(["/bin/true"], prelude=f"import os; os.environ[reaper.SUPERVISOR_PID] = '{2**22 - 1}'")
    assert running.ended() == 1
    assert running.log.read_text() == ""


def test_the_child_has_the_given_environment_and_the_secrets_and_nothing_else(
    running: Running, tmp_path: Path
) -> None:
    secret = tmp_path / "key"
    secret.write_text("s3cret\n")
    around = "cat /proc/$PPID/cmdline /proc/$PPID/environ"
    running.start(
        ["/bin/sh", "-c", f"env -0 > {tmp_path}/env; ({around}) > {tmp_path}/around"],
        environment={"A": "1 % ; # '\"\n2"},
        secret_files={"VLLM_API_KEY": str(secret)},
    )
    running.ended()
    values = dict(entry.split("=", 1) for entry in (tmp_path / "env").read_text().split("\0") if entry)
    assert {name: values[name] for name in ("A", "VLLM_API_KEY")} == {
        "A": "1 % ; # '\"\n2",
        "VLLM_API_KEY": "s3cret",
    }
    assert set(values) - {"PWD", "SHLVL", "_", "OLDPWD"} == {
        "A", "VLLM_API_KEY", "TMPDIR", "SPT_NOENV", reaper.MARK,
    }  # fmt: skip
    assert "reaper.py" in (tmp_path / "around").read_text()
    assert "s3cret" not in (tmp_path / "around").read_text() + running.log.read_text()


@pytest.mark.parametrize("broken", ["secret", "file"])
def test_what_cannot_be_read_is_said_and_not_started(running: Running, tmp_path: Path, broken: str) -> None:
    if broken == "secret":
        running.start(["/bin/true"], secret_files={"KEY": str(tmp_path / "absent")})
    else:
        running.start(["/bin/true"], prelude=f"open({str(tmp_path / 'service.json')!r}, 'w').close()")
    assert running.ended() == reaper.EXIT_CONFIGURATION
    assert "cannot be read" in running.log.read_text()


@pytest.mark.parametrize(("command", "directory"), [("/nowhere/vllm", "/"), ("/bin/true", "/nowhere/vllm")])
def test_a_command_or_directory_that_is_not_there_is_said(
    running: Running, command: str, directory: str
) -> None:
    running.start([command], working_directory=directory)
    assert running.ended() == reaper.EXIT_NOT_STARTED
    assert "cannot be started: /nowhere/vllm: No such file" in running.log.read_text()


def test_a_killed_engines_shared_memory_is_unlinked(running: Running, tmp_path: Path) -> None:
    code = f"""if True:
        import os, time
        from multiprocessing import shared_memory
        segment = shared_memory.SharedMemory(create=True, size=2**20)
        open({str(tmp_path / "segment.new")!r}, "w").write(segment.name)
        os.rename({str(tmp_path / "segment.new")!r}, {str(tmp_path / "segment")!r})
        time.sleep(600)"""
    running.start(["/bin/sh", "-c", f'"{sys.executable}" -c "$0" & wait', code])
    until((tmp_path / "segment").exists)
    segment = Path("/dev/shm") / (tmp_path / "segment").read_text().lstrip("/")
    assert segment.exists()
    os.kill(reaper.descendants(running.process.pid)[0], signal.SIGKILL)
    assert running.ended() == 137
    assert not segment.exists()


def test_the_private_directory_is_fresh_and_goes_with_the_run(running: Running, tmp_path: Path) -> None:
    private = tmp_path / "private"
    private.mkdir()
    (private / "left-over").touch()
    running.start(["/bin/sh", "-c", f"ls -A $TMPDIR > {tmp_path}/seen; touch $TMPDIR/mine; exit 7"])
    assert running.ended() == 7
    assert (tmp_path / "seen").read_text() == ""
    assert not private.exists()


@pytest.mark.parametrize(
    ("script", "code", "runs"),
    [
        ("exit 3", 3, 1),  # a verdict
        ("test $(wc -l < runs) -ge 3 && exit 0; kill -9 $$", 0, 3),  # interrupted twice
        ("exit 9", 9, 1 + reaper.JOB_RESTARTS),  # never a verdict: it must end all the same
    ],
)
def test_a_job_is_run_until_it_gives_a_verdict(
    running: Running, tmp_path: Path, script: str, code: int, runs: int
) -> None:
    fast = "reaper.JOB_PAUSE_SECONDS = 0.01"
    command = ["/bin/sh", "-c", f"echo run >> runs; {script}"]
    running.start(command, prelude=fast, verdicts=[0, 3], working_directory=str(tmp_path))
    assert running.ended() == code
    assert len((tmp_path / "runs").read_text().splitlines()) == runs


def test_a_job_can_be_stopped_between_two_runs(running: Running) -> None:
    running.start(["/bin/sh", "-c", "exit 9"], prelude="reaper.JOB_PAUSE_SECONDS = 60", verdicts=[0])
    until(lambda: "run again" in running.log.read_text())
    running.process.terminate()
    assert running.ended() == 0


@pytest.mark.parametrize(
    ("wanted", "found"),
    [
        ("engine-a@0123456789ab", True),
        ("@0123456789ab", True),
        ("engine-b@0123456789ab", False),
        ("@ab", False),
    ],
)
def test_a_mark_means_one_service_or_all_of_a_home(wanted: str, found: bool) -> None:
    process = subprocess.Popen(["/bin/sleep", "60"], env={reaper.MARK: "engine-a@0123456789ab"})
    try:
        # from its exec on it has its own environment
        until(lambda: b"sleep" in Path(f"/proc/{process.pid}/cmdline").read_bytes())
        assert (process.pid in reaper.marked(wanted)) == found
    finally:
        process.kill()
        process.wait()


def test_start_ticks_tell_processes_apart_and_end_with_them() -> None:
    process = subprocess.Popen(["/bin/sleep", "60"])
    ticks = reaper.start_ticks(process.pid)
    assert ticks is not None and ticks >= (reaper.start_ticks(os.getpid()) or 0)
    process.kill()
    until(lambda: reaper.start_ticks(process.pid) is None)  # a zombie by now
    process.wait()
