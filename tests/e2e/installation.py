"""One real installation under test: its playbooks, its processes and its files, seen from outside.

Nothing here is a double. A playbook has a session of its own, because tests kill it with all its children.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import shlex
import signal
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml
from draftgate import processes
from draftgate.journal import Journal, finished
from draftgate.layout import Home

from tests.cache import RUNTIMES

REPO = Path(__file__).resolve().parents[2]
PLAYBOOK = REPO / ".venv" / "bin" / "ansible-playbook"

# A start takes 30 s on a quiet machine of two cores and 150 s on a busy one; a restore starts again.
START_SECONDS = 300.0
DEPLOY_SECONDS = 1500.0  # the first one may install the runtime

Process = tuple[int, int]
"""A process that no other one can be taken for: pid and start time."""


def until(condition: Callable[[], Any], seconds: float, what: str, every: float = 0.1) -> Any:
    """The first true value of ``condition``, asked ``every`` so many seconds; fails with ``what``."""
    end = time.monotonic() + seconds
    while True:
        value = condition()
        if value:
            return value
        assert time.monotonic() < end, f"not within {seconds:.0f} s: {what}"
        time.sleep(every)


@dataclass(frozen=True, repr=False)
class Done:
    """A playbook that has ended.

    :param lines: ``(seconds since its start, line)`` of stdout and stderr together.
    """

    code: int
    lines: list[tuple[float, str]]

    @property
    def output(self) -> str:
        return "\n".join(line for _, line in self.lines)

    @property
    def told(self) -> str:
        """The output with Ansible's line breaks folded."""
        return " ".join(self.output.split())

    @property
    def seconds(self) -> float:
        return self.lines[-1][0] if self.lines else 0.0

    def recap(self, host: str = "localhost") -> dict[str, int]:
        """``{"ok": 9, "changed": 0, ...}`` of the PLAY RECAP."""
        found = re.search(rf"^{re.escape(host)}\s+: (ok=.*)$", self.output, re.MULTILINE)
        assert found, self
        return {name: int(count) for name, count in re.findall(r"(\w+)=(\d+)", found.group(1))}

    def error(self, host: str = "localhost") -> str:
        """The message of the one task that failed on ``host``."""
        fatal = rf"^fatal: \[{re.escape(host)}\]: FAILED! => *\n((?: .*\n)+)"
        failed = re.findall(fatal, self.output + "\n", re.MULTILINE)
        assert self.code != 0 and len(failed) == 1, f"{len(failed)} failures of {host}: {self}"
        return str(yaml.safe_load(failed[0])["msg"])

    def diff(self) -> list[str]:
        """Added and removed lines of all diffs, in order."""
        return [line for _, line in self.lines if re.match(r"[-+](?![-+]{2} )", line)]

    def __repr__(self) -> str:
        return f"exit code {self.code} after {self.seconds:.1f} s (its output is in the captured stdout)"


class Playbook:
    """A running ``ansible-playbook``."""

    def __init__(self, arguments: list[str], environment: Mapping[str, str]) -> None:
        assert PLAYBOOK.exists(), f"{PLAYBOOK} is missing; make .venv puts it there"
        self._arguments = arguments
        self._process = subprocess.Popen(
            [str(PLAYBOOK), *arguments],
            cwd=REPO,
            env={
                **os.environ,
                "ANSIBLE_CONFIG": str(REPO / "ansible.cfg"),
                "ANSIBLE_NOCOLOR": "1",
                "LC_ALL": "C.UTF-8",
                "PYTHONUNBUFFERED": "1",
                **environment,
            },
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            start_new_session=True,
        )
        self._began = time.monotonic()
        self.lines: list[tuple[float, str]] = []
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self._process.stdout
        for line in self._process.stdout:
            self.lines.append((time.monotonic() - self._began, line.rstrip("\n")))

    @property
    def output(self) -> str:
        return "\n".join(line for _, line in self.lines)

    def wait_for_line(self, beginning: str, seconds: float = 120.0) -> None:
        until(lambda: any(line.startswith(beginning) for _, line in self.lines), seconds, beginning)

    def pids(self) -> set[int]:
        """The controller and everything it has started, modules on the local host included."""
        return {self._process.pid, *processes.descendants(self._process.pid)}

    def kill(self) -> set[int]:
        """SIGKILL the controller and all its children; who that was.

        Stopped first: a child that is born between the look and the kill would escape.
        """
        killed: set[int] = set()
        while True:
            found = self.pids() - killed
            if not found:
                break
            for pid in found:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGSTOP)
            killed |= found
        for pid in killed:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self._process.wait()
        self._reader.join()
        return killed

    def wait(self, seconds: float = DEPLOY_SECONDS) -> Done:
        done = self.follow(lambda _: None, seconds)
        # pytest shows it when the test fails.
        sys.stdout.write(f"$ ansible-playbook {shlex.join(self._arguments)}\n{done.output}\n{done}\n")
        return done

    def follow(self, show: Callable[[str], object], seconds: float = DEPLOY_SECONDS) -> Done:
        """Wait for its end; each of its lines is shown when it comes."""
        shown = 0
        while True:
            ended = self._process.poll() is not None
            if ended:
                self._reader.join()
            for _, line in self.lines[shown:]:
                show(line)
                shown += 1
            if ended:
                return Done(self._process.returncode, self.lines)
            if time.monotonic() - self._began > seconds:
                self.kill()
                raise AssertionError(f"killed after {seconds:.0f} s\n{Done(-9, self.lines)}")
            time.sleep(0.05)


class Deployed(ABC):
    """What can be asked of an installation wherever it is; a subclass says how."""

    LOOK_EVERY = 0.1  # seconds between two looks at its journal
    _switch_before = ""

    @abstractmethod
    def start(self, playbook: str, wish: Mapping[str, Any], *options: str) -> Playbook:
        """Begin one of the playbooks."""

    @abstractmethod
    def journal(self) -> list[dict[str, Any]]:
        """The entries of the last switch."""

    def deploy(self, wish: Mapping[str, Any] | None = None, *options: str) -> Done:
        return self.start("deploy.yml", wish or {}, *options).wait()

    def playbook(self, name: str, wish: Mapping[str, Any] | None = None, *options: str) -> Done:
        return self.start(f"playbooks/{name}.yml", wish or {}, *options).wait()

    def wait_for(self, state: str, seconds: float = START_SECONDS) -> None:
        """Until the switch that began after :meth:`hold` is held in ``state``."""

        def held() -> bool:
            entries = self.journal()  # empty for a moment, between two switches
            return (
                bool(entries)
                and entries[0]["switch"] != self._switch_before
                and entries[-1]["state"] == state
            )

        until(held, seconds, f"a switch held in state {state}", self.LOOK_EVERY)

    def _switch(self) -> str:
        return str((self.journal() or [{"switch": ""}])[0]["switch"])


@dataclass
class Installation(Deployed):
    """A home, a port and the variables that every one of its playbooks gets.

    :param environment: planted into every playbook's environment.
    :param runs: every playbook so far.
    :param secret_files: where this side keeps secrets for them.
    """

    root: Path
    port: int
    reports: Path
    secrets: Mapping[str, str] = field(default_factory=dict)
    environment: Mapping[str, str] = field(default_factory=dict)
    runs: list[Playbook] = field(default_factory=list)
    secret_files: set[Path] = field(default_factory=set)

    @property
    def home(self) -> Home:
        return Home(str(self.root))

    # Playbooks

    def start(self, playbook: str, wish: Mapping[str, Any], *options: str) -> Playbook:
        common = {
            "draftgate_home": str(self.root),
            "vllm_port": self.port,
            "vllm_runtime_root": str(RUNTIMES),
            "draftgate_reports_dir": str(self.reports),
            # What systemd runs for root is on hosts of its own: it would not see a home in /tmp (DG160).
            "draftgate_service_backend": "supervisord",
        }
        arguments = [playbook, "-e", json.dumps({**common, **wish}), *options]
        if self.secrets:
            arguments[1:1] = ["-e", f"@{self.write_secrets('own', self.secrets)}"]
        running = Playbook(arguments, self.environment)
        self.runs.append(running)
        return running

    def write_secrets(self, name: str, values: Mapping[str, str]) -> Path:
        """A file for ``-e @file``: every user of the host can read a command line."""
        path = self.reports / f"{name}-secrets.json"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch(0o600)
        path.write_text(json.dumps(values), "utf-8")
        self.secret_files.add(path)
        return path

    def remove(self) -> None:
        """Teardown by its playbook, and the proof that nothing is left."""
        if self.root.exists():
            done = self.playbook("teardown", {"draftgate_purge": True})
            assert done.code == 0, done
        self.assert_nothing_left()

    def assert_nothing_left(self) -> None:
        left = {pid: processes.command(pid) for pid in processes.owned_by_home(str(self.root))}
        assert left == {}
        assert processes.port_free("127.0.0.1", self.port)
        assert not self.root.exists() or os.listdir(self.root) == []
        assert not os.path.exists(f"/tmp/draftgate-{os.geteuid()}-{processes.home_digest(str(self.root))}")

    # What the host says

    def command(self, *arguments: str, seconds: float = 60.0) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [self.home.command, *arguments], capture_output=True, text=True, check=False, timeout=seconds
        )

    def status(self) -> dict[str, Any]:
        done = self.command("status", "--json")
        state: dict[str, Any] = json.loads(done.stdout)
        assert done.returncode == (0 if state["serving"] else 1), done
        return state

    def journal(self) -> list[dict[str, Any]]:
        return Journal(self.home.journal, time.time).entries()

    def active(self) -> dict[str, Any]:
        active: dict[str, Any] = json.loads(Path(self.home.active).read_text("utf-8"))
        return active

    def evidence(self, name: str) -> dict[str, Any]:
        """``current`` or ``last_attempt``, as fetched to the controller."""
        stored: dict[str, Any] = json.loads((self.reports / "localhost" / f"{name}.json").read_text("utf-8"))
        return stored

    def evidence_at(self, path: str) -> dict[str, Any]:
        """As stored on the host."""
        stored: dict[str, Any] = json.loads(Path(path).read_text("utf-8"))
        return stored

    # What really runs

    def engine(self) -> Process:
        """The process that listens."""
        holder = processes.port_holder("127.0.0.1", self.port)
        assert holder and holder["pid"], f"nobody listens on port {self.port}"
        ticks = processes.start_ticks(holder["pid"])
        assert ticks is not None
        return holder["pid"], ticks

    def engines(self) -> set[str]:
        """Deployments of which a process lives, however it was started."""
        found = set()
        for pid in processes.owned_by_home(str(self.root)):
            try:
                environment = Path(f"/proc/{pid}/environ").read_bytes()
            except OSError:
                continue
            marked = re.search(rb"DRAFTGATE_SERVICE=engine-([0-9a-f]+)@", environment)
            if marked:
                found.add(marked.group(1).decode())
        return found

    def job(self) -> set[int]:
        """The switch job's processes: its reaper and itself."""
        return set(processes.owned("switch", str(self.root)))

    def assert_one_serves(self, *releases: str) -> dict[str, Any]:
        """Exactly one engine runs, it is the activated one of ``releases``, and it answers."""
        state, active = self.status(), self.active()
        assert state["serving"] and state["healthy"], state
        assert state["release"] == active["deployment"]["release"]
        assert state["release"] in releases, state
        assert self.engines() == {active["deployment"]["id"]}
        assert self.ask()["choices"][0]["message"]["content"]
        return state

    def ask(self, key: str | None = None) -> dict[str, Any]:
        """A chat completion, with the installation's own key unless another is given."""
        key = self.secrets.get("vllm_api_key", "") if key is None else key
        body = {
            "model": "tiny",
            "messages": [{"role": "user", "content": "Hello"}],
            "temperature": 0,
            "max_tokens": 16,
        }
        request = urllib.request.Request(
            f"http://127.0.0.1:{self.port}/v1/chat/completions",
            data=json.dumps(body).encode(),
            headers={
                "Content-Type": "application/json",
                **({"Authorization": f"Bearer {key}"} if key else {}),
            },
        )
        with urllib.request.urlopen(request, timeout=120) as response:
            answer: dict[str, Any] = json.load(response)
        return answer

    def refusal(self, key: str) -> int:
        """The HTTP status of a request that is refused."""
        try:
            self.ask(key)
        except urllib.error.HTTPError as exc:
            return exc.code
        return 200

    # Fault injection

    def hold(self, *states: str) -> None:
        """Make the next switch wait in these states."""
        self._switch_before = self._switch()
        for state in states:
            path = self.root / "run" / f"hold.{state}"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.touch()

    def release_hold(self, state: str) -> None:
        (self.root / "run" / f"hold.{state}").unlink()

    def wait_settled(self, seconds: float = DEPLOY_SECONDS) -> None:
        """Until no switch is open and no job runs."""
        until(lambda: finished(self.journal()) and not self.job(), seconds, "the end of the switch")
