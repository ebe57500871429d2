"""Run one service so that nothing of it outlives it: the process between supervisord and the engine.

vLLM's EngineCore and workers survive their API server (vllm#55510), its API server exits 0 when a
worker dies, and supervisord's own children survive supervisord. So:

- this process is a sub-reaper: whatever the engine leaves behind becomes its child and is killed;
- it asks for SIGTERM when supervisord dies, and its child asks for SIGTERM when this process dies;
- what even that misses (this process and the API server killed in one stroke) carries a mark in its
  environment, and the next start kills everything that carries it before it runs anything;
- it exits 0 only when it was asked to stop.

Runs as a script, from any Python >= 3.9 and without its package: ``python -I -S reaper.py SERVICE.json``.
The file holds ``argv``, ``environment`` (complete: nothing is inherited but the mark), ``secret_files``
(variable -> path of a 0600 file, read here so that no secret is on a command line or in a
configuration), ``working_directory``, ``temporary`` (a private TMPDIR, emptied around each run: an
engine start leaves about ten sockets), ``stop_seconds``, and ``verdicts``: null for a service; for a job
the exit codes that are an answer. A job that ends in another way was interrupted and is run again.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from typing import Any, Callable, Dict, Iterable, List, Mapping, Optional, Set, Tuple

MARK = "DRAFTGATE_SERVICE"
SUPERVISOR_PID = "DRAFTGATE_SUPERVISOR_PID"

JOB_RESTARTS = 5
"""Interrupted runs of one job before its last exit code counts: a job that crashes by itself must end."""
JOB_PAUSE_SECONDS = 2.0
KILL_SECONDS = 10.0
"""How long SIGKILL may take. Longer means uninterruptible sleep, which no signal ends."""
TRACKER_SECONDS = 2.0
EXIT_CONFIGURATION = 78
EXIT_NOT_STARTED = 127

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36
_ASKED = {signal.SIGTERM, signal.SIGINT, signal.SIGHUP}
_LIBC = ctypes.CDLL(None, use_errno=True)


def start_ticks(pid: int) -> Optional[int]:
    """Clock ticks between boot and the process's start, None when there is none (or only a zombie).

    A pid and its start ticks name one process for as long as the host is up. Source: proc(5), field 22.
    """
    fields = _stat(pid)
    return None if fields is None or fields[0] == "Z" else int(fields[19])


def _stat(pid: int) -> Optional[List[str]]:
    """Fields of /proc/<pid>/stat from the state on; the command before may hold spaces and parentheses."""
    try:
        with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as handle:
            return handle.read().rpartition(")")[2].split()
    except OSError:
        return None


def all_pids() -> List[int]:
    return [int(name) for name in os.listdir("/proc") if name.isdigit()]


def marked(mark: str) -> List[int]:
    """Living processes that were started with ``DRAFTGATE_SERVICE=<mark>``, this one excepted.

    A mark is ``<service>@<digest of the home>``; ``@<digest>`` alone means every service of that home.
    """
    wanted = mark.encode()
    return [pid for pid in all_pids() if pid != os.getpid() and _carries(pid, wanted)]


def _carries(pid: int, wanted: bytes) -> bool:
    try:
        with open(f"/proc/{pid}/environ", "rb") as handle:
            variables = handle.read().split(b"\0")
    except OSError:
        return False
    prefix = f"{MARK}=".encode()
    values = [variable[len(prefix) :] for variable in variables if variable.startswith(prefix)]
    return any(value == wanted or (wanted[:1] == b"@" and value.endswith(wanted)) for value in values)


def descendants(root: int) -> List[int]:
    """Every living process below ``root``."""
    children: Dict[int, List[int]] = {}
    for pid in all_pids():
        fields = _stat(pid)
        if fields is not None and fields[0] != "Z":
            children.setdefault(int(fields[1]), []).append(pid)
    found: List[int] = []
    waiting = [root]
    while waiting:
        below = children.get(waiting.pop(), [])
        found += below
        waiting += below
    return found


def send(pids: Iterable[int], number: int) -> None:
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)


def sweep(mark: str, seconds: float = KILL_SECONDS) -> List[int]:
    """SIGKILL everything that carries ``mark`` and wait until it is gone; what is left after ``seconds``."""
    return end_all(lambda: marked(mark), seconds)[1]


def end_all(find: Callable[[], List[int]], seconds: float) -> Tuple[Set[int], List[int]]:
    """SIGKILL what ``find`` gives until it gives nothing: all there ever were, and who outlasted ``seconds``.

    Python's resource trackers come last. When those they work for have gone they end by themselves, and
    unlink first what these left in /dev/shm: two segments of 160 and 240 MB for each killed vLLM.
    """
    began = time.monotonic()
    seen: Set[int] = set()
    left = find()
    while left and time.monotonic() - began < seconds:
        seen.update(left)
        patient = time.monotonic() - began < TRACKER_SECONDS
        send([pid for pid in left if not (patient and _is_tracker(pid))], signal.SIGKILL)
        time.sleep(0.02)
        reap()
        left = find()
    return seen, left


def _is_tracker(pid: int) -> bool:
    try:
        with open(f"/proc/{pid}/cmdline", "rb") as handle:
            return b"multiprocessing.resource_tracker" in handle.read()
    except OSError:
        return False


class Tree:
    """The service's processes: one child and whatever it leaves behind."""

    def __init__(self, description: Mapping[str, Any], mark: str) -> None:
        self.description = description
        self.mark = mark
        self.asked = False

    def run(self) -> int:
        """Once for a service; for a job until it gives a verdict. The exit code for supervisord."""
        verdicts = self.description["verdicts"]
        for attempt in range(JOB_RESTARTS + 1):
            code = self._run_once()
            if self.asked:
                return 0
            if verdicts is None:
                return code or 1
            if code in verdicts or attempt == JOB_RESTARTS:
                break
            say(f"interrupted (exit code {code}), run again {attempt + 1}/{JOB_RESTARTS}")
            if self._pause():
                return 0
        return code

    def _pause(self) -> bool:
        self.asked = signal.sigtimedwait(_ASKED, JOB_PAUSE_SECONDS) is not None
        return self.asked

    def _run_once(self) -> int:
        _empty(self.description["temporary"])
        say(f"start: {self.description['argv'][0]}")
        try:
            child = self._spawn()
        except OSError as exc:
            # the file name is the working directory's when that is what is missing
            say(f"{self.description['argv'][0]} cannot be started: {exc.filename}: {exc.strerror}")
            return EXIT_NOT_STARTED
        status = self._watch(child.pid)
        behind, _hung = end_all(lambda: descendants(os.getpid()), KILL_SECONDS)
        # Held until here and told here: a Popen that is dropped reaps its pid and takes the status from us
        child.returncode = -1 if status is None else exit_code(status)
        shutil.rmtree(self.description["temporary"], ignore_errors=True)
        code = EXIT_NOT_STARTED if status is None else exit_code(status)
        how = "stopped" if self.asked else "ended"
        say(f"{how}, {ending(status)}, {len(behind)} processes left behind and killed")
        return code

    def _spawn(self) -> subprocess.Popen[bytes]:
        parent = os.getpid()

        def prepare() -> None:
            signal.pthread_sigmask(signal.SIG_SETMASK, set())
            die_with_parent(parent)

        return subprocess.Popen(
            self.description["argv"],
            cwd=self.description["working_directory"],
            env=child_environment(self.description, self.mark),
            stdin=subprocess.DEVNULL,
            preexec_fn=prepare,
        )

    def _watch(self, child: int) -> Optional[int]:
        """Until the child has ended, by itself or because we were asked; its wait status."""
        end: Optional[float] = None
        while True:
            received = signal.sigtimedwait(_ASKED | {signal.SIGCHLD}, 1.0)
            status = reap().get(child)
            if status is not None:
                return status
            if received is not None and received.si_signo in _ASKED and end is None:
                self.asked = True
                end = time.monotonic() + float(self.description["stop_seconds"])
                send([child], signal.SIGTERM)
            if end is not None and time.monotonic() > end:
                return None


def child_environment(description: Mapping[str, Any], mark: str) -> Dict[str, str]:
    """The environment, the mark, the private TMPDIR and the secrets.

    SPT_NOENV: vLLM names its processes with setproctitle, which otherwise writes the name over
    /proc/<pid>/environ, and the mark with it.
    """
    environment = {**description["environment"], MARK: mark, "SPT_NOENV": "1"}
    environment["TMPDIR"] = description["temporary"]
    for name, path in description["secret_files"].items():
        with open(path, encoding="utf-8") as handle:
            environment[name] = handle.read().rstrip("\r\n")
    return environment


def _empty(path: str) -> None:
    shutil.rmtree(path, ignore_errors=True)
    os.makedirs(path, mode=0o700)


def reap() -> Dict[int, int]:
    """Wait statuses of all children that have ended."""
    ended: Dict[int, int] = {}
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return ended
        if pid == 0:
            return ended
        ended[pid] = status


def exit_code(status: int) -> int:
    """A shell's exit code for a wait status: 128 + n after signal n."""
    return 128 + os.WTERMSIG(status) if os.WIFSIGNALED(status) else os.WEXITSTATUS(status)


def ending(status: Optional[int]) -> str:
    if status is None:
        return "did not stop in time"
    if os.WIFSIGNALED(status):
        return f"killed by signal {os.WTERMSIG(status)}"
    return f"exit code {os.WEXITSTATUS(status)}"


def die_with_parent(parent: Optional[int]) -> None:
    """SIGTERM for this process when its parent ends, and at once when it has already ended.

    SIGTERM and not SIGKILL: whoever gets it still takes its own children along.
    """
    _LIBC.prctl(_PR_SET_PDEATHSIG, int(signal.SIGTERM), 0, 0, 0)
    if parent is not None and os.getppid() != parent:
        os._exit(1)


def say(text: str) -> None:
    """A line in the service's log, in an engine's own form so that it is found between its lines."""
    sys.stderr.write(f"INFO {time.strftime('%m-%d %H:%M:%S')} [draftgate] {text}\n")
    sys.stderr.flush()


def load(path: str) -> Tuple[Dict[str, Any], str]:
    """The description and the mark; ``KeyError``, ``OSError`` or ``ValueError`` when they are not there."""
    with open(path, encoding="utf-8") as handle:
        description: Dict[str, Any] = json.load(handle)
    for path_of_secret in description["secret_files"].values():
        with open(path_of_secret, encoding="utf-8"):
            pass
    return description, os.environ[MARK]


def main(path: str) -> int:
    signal.pthread_sigmask(signal.SIG_BLOCK, _ASKED | {signal.SIGCHLD})
    supervisor = os.environ.get(SUPERVISOR_PID)
    die_with_parent(int(supervisor) if supervisor else None)
    _LIBC.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    try:
        description, mark = load(path)
    except (KeyError, OSError, ValueError) as exc:
        say(f"the service cannot be read from {path}: {exc}")
        return EXIT_CONFIGURATION
    left = sweep(mark)
    if left:
        say(f"processes {left} of an earlier run do not end: not started beside them")
        return EXIT_CONFIGURATION
    return Tree(description, mark).run()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
