"""What a service manager must do for us, whichever it is.

A name is everything here: one name is one service or one job, a job's name in use is a lock, and
``start_ticks`` beside a pid tells a process from another that got the same number later.
"""

from __future__ import annotations

import os
import re
import subprocess
from dataclasses import dataclass, field
from typing import Callable, Dict, List, Optional, Protocol, Sequence, Tuple

from ..errors import HostError, InputError

ENGINE_PREFIX = "engine-"

QUICK_DEATH_SECONDS = 600
"""An engine that ends within this time of its start has failed to start or is about to fail again."""
QUICK_DEATHS = 5
"""So many in a row and it is left down, as failed. Both managers follow this one rule: a bad start
takes seconds or minutes to die, would be repeated for ever otherwise, and each time holds the GPUs."""

PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

Runner = Callable[[Sequence[str], float], Tuple[int, str, str]]
"""``run(argv, timeout in seconds) -> (exit code, stdout, stderr)``; 124 when the time was up."""


@dataclass(frozen=True)
class Service:
    """One engine.

    :param secret_files: environment name -> path of a file with mode 0600 that holds the bare value.
    :param stop_seconds: between SIGTERM and SIGKILL.
    :param user: whom it runs as where the manager can choose; empty = as the manager itself.
    :param cache: the one directory that it may write to, made for it and given to ``user``.
    :param traits: what decides what it may do, where the manager can restrict it; see ``hardening``.
    """

    name: str
    argv: Tuple[str, ...]
    environment: Dict[str, str]
    secret_files: Dict[str, str]
    working_directory: str
    stop_seconds: int = 30
    user: str = ""
    cache: str = ""
    traits: Tuple[str, ...] = ()


@dataclass(frozen=True)
class Job:
    """One run of a command that must come to an end.

    :param verdict_exit_codes: the exit codes that are an answer. Any other end is an interruption, and
        the job is run again (a few times): it goes on where its journal says.
    """

    name: str
    argv: Tuple[str, ...]
    environment: Dict[str, str] = field(default_factory=dict)
    working_directory: str = "/"
    verdict_exit_codes: Tuple[int, ...] = (0,)


@dataclass(frozen=True)
class ServiceState:
    """What the manager knows of a service. Nothing here says that it answers: see ``launch``.

    :param status: ``running`` a process is there; ``starting`` it ended and the manager is about to
        start it again; ``failed`` the manager has given up; ``stopped``; ``absent`` never defined.
    :param pid: of the process the manager started.
    :param start_ticks: its start, in clock ticks since boot; with the pid it names one process.
    :param exit_code: of the last process, where the manager still knows it.
    :param since: epoch seconds of the last start or end, None when unknown.
    """

    status: str
    pid: Optional[int] = None
    start_ticks: Optional[int] = None
    exit_code: Optional[int] = None
    since: Optional[float] = None

    @property
    def identity(self) -> Tuple[Optional[int], Optional[int]]:
        return self.pid, self.start_ticks


@dataclass(frozen=True)
class JobState:
    """:param status: ``running`` | ``finished`` | ``absent`` (never started, or lost with its manager)."""

    status: str
    exit_code: Optional[int] = None
    pid: Optional[int] = None
    since: Optional[float] = None


class Backend(Protocol):
    """A service manager. Every call raises :class:`HostError` when the manager refuses or is silent."""

    name: str

    def ensure(self) -> bool:
        """Make sure that the manager is up and comes back after a boot; True when that changed anything."""

    def define(self, service: Service) -> bool:
        """Write the service down without starting it; True when that changed anything.
        A running service keeps what it was started with until its next start."""

    def start(self, name: str) -> None:
        """Start a defined service, nothing when it runs. Returns once its process is there."""

    def stop(self, name: str, deadline_seconds: float) -> None:
        """Stop it. Returns when no descendant is left; SIGKILL for those that outlast the deadline."""

    def state(self, name: str) -> ServiceState: ...

    def remove(self, name: str) -> None:
        """Stop a service and forget it; its log stays. Nothing when it is absent."""

    def services(self) -> List[str]:
        """Names of the defined engines, sorted."""

    def start_job(self, job: Job) -> None:
        """Start a job. A finished one of that name is replaced.

        :raises HostError: one of that name runs; ``details["held"]`` is True.
        """

    def job_state(self, name: str) -> JobState: ...

    def remove_job(self, name: str) -> None:
        """Stop a job and forget it. Nothing when it is absent."""

    def log_offset(self, name: str) -> int:
        """Where the log ends now, for ``log_tail(since_offset=)``. Only this backend can read the number."""

    def log_tail(self, name: str, lines: int, since_offset: Optional[int] = None) -> List[str]:
        """The last lines, none older than ``since_offset``. Empty when there is no log."""

    def log_path(self, name: str) -> str:
        """The file, or the command that shows the log where there is no file."""

    def shutdown(self) -> None:
        """Teardown: every service, every job, everything the manager needed, the manager's daemon too."""


def base_environment() -> Dict[str, str]:
    """What every service gets. The caller's own environment never reaches one: it may hold secrets."""
    return {"PATH": PATH, "HOME": os.path.expanduser("~"), "LANG": "C.UTF-8"}


def run_command(argv: Sequence[str], timeout: float) -> Tuple[int, str, str]:
    """The real :data:`Runner`."""
    try:
        done = subprocess.run(
            list(argv),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=timeout,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return 124, "", f"no answer within {timeout:.0f} s"
    except OSError as exc:
        return 127, "", f"{argv[0]}: {exc.strerror}"
    return done.returncode, done.stdout, done.stderr


def require_name(name: str) -> None:
    """Refuse a name that a manager would read as something else (a pattern, a path, a second setting).

    :raises InputError: with the name.
    """
    if not re.fullmatch(r"[a-z0-9][a-z0-9_.-]*", name):
        raise InputError("naming a service", f"{name!r}", "lower-case letters, digits, '-', '_' and '.'")


def held(job: str, pid: Optional[int]) -> HostError:
    """The error for a job whose name is in use."""
    return HostError(
        f"starting the job {job!r}",
        f"one of that name is running (pid {pid})",
        "none: the name is the lock",
        "Wait for it, or look at it with draftgate status.",
        details={"held": True, "job": job, "pid": pid},
    )


def left_over(name: str, pids: Sequence[int]) -> HostError:
    """The error for processes that outlive SIGKILL."""
    return HostError(
        f"stopping {name}",
        f"processes {list(pids)} do not end after SIGKILL",
        "no process of the service left",
        "They hang in the kernel, usually on a GPU: see dmesg; a reboot ends them.",
        details={"pids": list(pids)},
    )
