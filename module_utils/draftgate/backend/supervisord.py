"""supervisord for hosts without systemd or without root: an ordinary user's daemon under ``home``.

The daemon lives in a small environment of its own, so that a new engine runtime or a prune never pulls
it from under what runs. It is spoken to by XML-RPC over a unix socket in a 0700 directory.

A program's command is ``reaper.py SERVICE.json``: arguments and environment stand in a JSON file, not in
supervisord's configuration, where ``%``, ``;``, ``#``, quotes and line ends all mean something. The
reaper makes what is below it die with it and with the daemon; see there.
"""

from __future__ import annotations

import contextlib
import fcntl
import glob
import hashlib
import http.client
import json
import os
import re
import shlex
import shutil
import signal
import socket
import stat
import time
import xmlrpc.client
from typing import Any, Callable, Dict, Iterator, List, Mapping, Optional, Sequence, Tuple

from ..errors import HostError, InputError
from ..files import make_directory, write_atomic, write_changed
from ..layout import Home
from ..processes import home_digest, mark, owned, start_ticks
from ..reaper import MARK, SUPERVISOR_PID, send, sweep
from . import base
from .base import Job, JobState, Runner, Service, ServiceState

_RPC_SECONDS = 20.0
_START_SECONDS = 20.0
_REMOVE_SECONDS = 60.0
_INSTALL_SECONDS = 300.0
_INSTALL_BYTES = 48 * 1024**2
"""The environment has 29 MB. Where they do not fit, pip says only that ensurepip has failed."""
_REAPER_MARGIN_SECONDS = 20
"""supervisord's own SIGKILL comes after the reaper's, which takes the descendants along."""
_LONGEST_RUN_DIRECTORY = 40
"""A unix socket's path has 107 bytes, and the engine puts its own (a name of 40) below
``<run directory>/<service>``."""
_LOG_BYTES = "50MB"
_LOG_BACKUPS = 3
_TAIL_BYTES = 512 * 1024

# Faults of supervisord's XML-RPC (supervisor/xmlrpc.py).
_BAD_NAME, _ALREADY_STARTED, _NOT_RUNNING, _ALREADY_ADDED = 10, 60, 70, 90

_UP = ("STARTING", "RUNNING", "STOPPING")
_SERVICE_STATUS = {
    **dict.fromkeys(_UP, "running"),  # STARTING lasts QUICK_DEATH_SECONDS, with the process there
    "BACKOFF": "starting",
    "EXITED": "starting",  # an engine is always started again
    "STOPPED": "stopped",
    "FATAL": "failed",
    "UNKNOWN": "failed",
}


class Down(HostError):
    """No daemon listens on this home's socket."""


class SupervisordBackend:
    """:param agent: directory that holds the package ``draftgate`` (its ``reaper.py`` is run by path).
    :param lock: text of the hash-pinned requirements of the daemon's environment; empty means those of the
        last start, which lie beside it.
    :param python: makes that environment.
    """

    name = "supervisord"

    def __init__(
        self,
        home: Home,
        *,
        agent: str,
        lock: str,
        python: str = "/usr/bin/python3",
        run: Runner = base.run_command,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self.home = home
        self.agent = agent
        self.lock = lock
        self.python = python
        self._run = run
        self._clock = clock
        self._sleep = sleep
        self.run_directory = run_directory(home)
        self.socket = os.path.join(self.run_directory, "rpc")

    # The daemon

    def ensure(self) -> bool:
        if self._answers():
            return False
        make_directory(self.home.supervisor, 0o700)
        with self._exclusive():
            if self._answers():
                return False
            private_directory(self.run_directory)
            self._install()
            self._start_daemon()
        return True

    def _answers(self) -> bool:
        try:
            self._call("getPID")
        except Down:
            return False
        return True

    @property
    def _venv(self) -> str:
        return os.path.join(self.home.supervisor, "venv")

    def _install(self) -> None:
        """The daemon's environment, made anew when the lock is not the one it was made from.

        Only ever called while no daemon runs.
        """
        requirements = self._path("requirements.txt")
        lock = self.lock or _read(requirements)
        if not lock:
            raise HostError(
                "making supervisord's environment",
                f"{requirements} is not there and no lock was given",
                "what a deploy has put there",
                "Deploy once: it installs the host's agent and its service manager.",
            )
        stamp = os.path.join(self._venv, "lock.sha256")
        wanted = hashlib.sha256(lock.encode()).hexdigest()
        if _read(stamp) == wanted:
            return
        shutil.rmtree(self._venv, ignore_errors=True)
        self._require_room()
        write_atomic(requirements, lock.encode())
        self._must([self.python, "-m", "venv", self._venv], "On Debian: apt install python3-venv.")
        pip = [os.path.join(self._venv, "bin", "python"), "-I", "-m", "pip", "install", "--quiet"]
        flags = ["--disable-pip-version-check", "--no-deps", "--require-hashes", "--only-binary=:all:"]
        self._must([*pip, *flags, "-r", requirements], "Is the package index reachable from this host?")
        write_atomic(stamp, wanted.encode())

    def _require_room(self) -> None:
        free = shutil.disk_usage(self.home.supervisor).free
        if free < _INSTALL_BYTES:
            raise HostError(
                "making supervisord's environment",
                f"{self.home.supervisor!r} has {free >> 20} MiB free",
                f"{_INSTALL_BYTES >> 20} MiB",
                "Free some, or set draftgate_home to a larger file system.",
            )

    def _must(self, argv: Sequence[str], next_step: str) -> None:
        code, out, err = self._run(argv, _INSTALL_SECONDS)
        if code != 0:
            last = (err.strip() or out.strip()).splitlines()[-3:]
            raise HostError(
                "making supervisord's environment",
                f"{shlex.join(argv)} ended with {code}: {' | '.join(last)}",
                "exit code 0",
                next_step,
            )

    def _start_daemon(self) -> None:
        for path in (self._path("conf.d"), self._path("services"), self.home.logs):
            make_directory(path, 0o700)
        config = self._path("supervisord.conf")
        write_atomic(config, daemon_config(self.home, self.socket).encode())
        log = os.path.join(self.home.logs, "supervisord.log")
        python = os.path.join(self._venv, "bin", "python")
        detach([python, "-I", "-m", "supervisor.supervisord", "-c", config], base.base_environment(), log)
        end = self._clock() + _START_SECONDS
        while not self._answers():
            if self._clock() > end:
                raise HostError(
                    "starting supervisord",
                    f"it does not answer after {_START_SECONDS:.0f} s: {' | '.join(_tail(log, 3, 0))}",
                    "an answer on its socket",
                    f"Read {log}.",
                )
            self._sleep(0.1)

    def shutdown(self) -> None:
        with contextlib.suppress(Down):
            pid = int(self._call("getPID"))
            ticks = start_ticks(pid)
            self._call("shutdown")
            self._wait(lambda: start_ticks(pid) != ticks, _REMOVE_SECONDS)
            if start_ticks(pid) == ticks:
                send([pid], signal.SIGKILL)
        left = sweep(f"@{home_digest(self.home.root)}")
        if left:
            raise base.left_over("supervisord and its services", left)
        shutil.rmtree(self.home.supervisor, ignore_errors=True)
        shutil.rmtree(self.run_directory, ignore_errors=True)

    # Services

    def define(self, service: Service) -> bool:
        argv = self._reaper(service.name)
        with self._exclusive():
            program = engine_program(service, argv, self._mark(service.name), self.log_path(service.name))
            description = service_description(service, self._temporary(service.name))
            return self._write(service.name, description, program)

    def start(self, name: str) -> None:
        with self._exclusive():
            if self._state_name(name) in _UP:
                return
            if not os.path.exists(self._config_of(name)):
                raise HostError(f"starting {name}", "it was never defined", "a defined service")
            self._load(name)
            self._start_process(name)

    def stop(self, name: str, deadline_seconds: float) -> None:
        self._stop(name, deadline_seconds, final=("STOPPED", "FATAL"))

    def state(self, name: str) -> ServiceState:
        info = self._info(name)
        if info is None:
            return self._state_without_daemon(name)
        return ServiceState(
            status=_SERVICE_STATUS[info["statename"]],
            pid=info["pid"] or None,
            start_ticks=start_ticks(info["pid"]) if info["pid"] else None,
            exit_code=info["exitstatus"] if info["statename"] == "EXITED" else None,
            since=_since(info),
        )

    def _state_without_daemon(self, name: str) -> ServiceState:
        """Nothing of a service outlives the daemon for long: what is still there is on its way out."""
        if not os.path.exists(self._config_of(name)):
            return ServiceState("absent")
        return ServiceState("failed" if owned(name, self.home.root) else "stopped")

    def remove(self, name: str) -> None:
        if os.path.exists(self._config_of(name)):
            self.stop(name, _REMOVE_SECONDS)
            self._forget(name)

    def services(self) -> List[str]:
        names = (os.path.basename(path)[: -len(".conf")] for path in glob.glob(self._config_of("*")))
        return sorted(name for name in names if name.startswith(base.ENGINE_PREFIX))

    # Jobs

    def start_job(self, job: Job) -> None:
        with self._exclusive():
            state = self.job_state(job.name)
            if state.status == "running":
                raise base.held(job.name, state.pid)
            description = job_description(job, self._temporary(job.name))
            program = job_program(job, self._reaper(job.name), self._mark(job.name), self.log_path(job.name))
            self._write(job.name, description, program)
            self._load(job.name)
            self._start_process(job.name)

    def job_state(self, name: str) -> JobState:
        info = self._info(name)
        if info is None or not info["start"]:
            return JobState("absent")
        since = _since(info)
        interrupted = info["statename"] == "EXITED" and info["exitstatus"] < 0
        if info["statename"] in (*_UP, "BACKOFF") or interrupted:
            return JobState("running", pid=info["pid"] or None, since=since)
        code = 127 if info["statename"] == "FATAL" else info["exitstatus"]
        return JobState("finished", exit_code=code, since=since)

    def remove_job(self, name: str) -> None:
        if os.path.exists(self._config_of(name)):
            self._stop(name, _REMOVE_SECONDS, final=("STOPPED", "FATAL", "EXITED"))
            self._forget(name)

    # Logs

    def log_path(self, name: str) -> str:
        return os.path.join(self.home.logs, f"{name}.log")

    def log_offset(self, name: str) -> int:
        with contextlib.suppress(OSError):
            return os.stat(self.log_path(name)).st_size
        return 0

    def log_tail(self, name: str, lines: int, since_offset: Optional[int] = None) -> List[str]:
        return _tail(self.log_path(name), lines, since_offset or 0)

    # Below: one step each

    def _path(self, *parts: str) -> str:
        return os.path.join(self.home.supervisor, *parts)

    def _config_of(self, name: str) -> str:
        return self._path("conf.d", f"{name}.conf")

    def _description_of(self, name: str) -> str:
        return self._path("services", f"{name}.json")

    def _temporary(self, name: str) -> str:
        return os.path.join(self.run_directory, name)

    def _mark(self, name: str) -> str:
        return mark(name, self.home.root)

    def _reaper(self, name: str) -> List[str]:
        base.require_name(name)
        script = os.path.join(self.agent, "draftgate", "reaper.py")
        # -I -S: no PYTHONPATH, no site-packages; the daemon's Python because it stays while the daemon does.
        return [os.path.join(self._venv, "bin", "python"), "-I", "-S", script, self._description_of(name)]

    def _write(self, name: str, description: Mapping[str, Any], program: str) -> bool:
        text = json.dumps(description, indent=1, sort_keys=True) + "\n"
        changed = write_changed(self._description_of(name), text, 0o600)
        return write_changed(self._config_of(name), program, 0o600) or changed

    def _forget(self, name: str) -> None:
        with self._exclusive():
            with contextlib.suppress(Down):
                self._tolerate("removeProcessGroup", name, fault=_BAD_NAME)
            for path in (self._config_of(name), self._description_of(name)):
                with contextlib.suppress(FileNotFoundError):
                    os.unlink(path)

    def _load(self, name: str) -> None:
        """Make the daemon read the program anew, which also clears what it remembers of earlier runs."""
        self._call("reloadConfig")
        self._tolerate("removeProcessGroup", name, fault=_BAD_NAME)
        self._tolerate("addProcessGroup", name, fault=_ALREADY_ADDED)

    def _start_process(self, name: str) -> None:
        self._tolerate("startProcess", name, False, fault=_ALREADY_STARTED)

    def _stop(self, name: str, deadline_seconds: float, final: Tuple[str, ...]) -> None:
        end = self._clock() + deadline_seconds
        while self._clock() < end:
            state = self._state_name(name)
            if state is None or state in final:
                break
            # EXITED of an engine is the moment before its restart: asked again until it stays down.
            if state not in ("STOPPING", "EXITED"):
                self._tolerate("stopProcess", name, False, fault=_NOT_RUNNING)
            self._sleep(0.05)
        left = sweep(self._mark(name))
        self._wait(lambda: self._state_name(name) in (None, *final), 5.0)
        left = left and owned(name, self.home.root)
        if left:
            raise base.left_over(name, left)

    def _wait(self, done: Callable[[], bool], seconds: float) -> None:
        end = self._clock() + seconds
        while not done() and self._clock() < end:
            self._sleep(0.05)

    def _state_name(self, name: str) -> Optional[str]:
        info = self._info(name)
        return None if info is None else str(info["statename"])

    def _info(self, name: str) -> Optional[Dict[str, Any]]:
        """None when the daemon is down or does not know the name."""
        try:
            info: Dict[str, Any] = self._call("getProcessInfo", name)
        except Down:
            return None
        except xmlrpc.client.Fault as fault:
            if fault.faultCode == _BAD_NAME:
                return None
            raise _refused("getProcessInfo", fault) from fault
        return info

    def _tolerate(self, method: str, *arguments: Any, fault: int) -> None:
        """Call, and take ``fault`` for "it is already so"."""
        try:
            self._call(method, *arguments)
        except xmlrpc.client.Fault as exc:
            if exc.faultCode != fault:
                raise _refused(method, exc) from exc

    def _call(self, method: str, *arguments: Any) -> Any:
        proxy = xmlrpc.client.ServerProxy("http://supervisord", transport=_UnixTransport(self.socket))
        try:
            return getattr(proxy.supervisor, method)(*arguments)
        except (FileNotFoundError, ConnectionRefusedError):
            raise Down(
                "asking supervisord",
                f"nothing listens on {self.socket}",
                "this home's daemon",
                "A deploy or `draftgate recover` starts it.",
            ) from None
        except xmlrpc.client.Fault:
            raise
        except (OSError, http.client.HTTPException, xmlrpc.client.Error) as exc:
            doing = f"asking supervisord to {method}"
            raise HostError(doing, f"{exc}", "an answer", "Is its process stopped?") from exc

    @contextlib.contextmanager
    def _exclusive(self) -> Iterator[None]:
        """One change of this home's services at a time, over all processes."""
        make_directory(self.home.supervisor, 0o700)
        with open(self._path("lock"), "a", encoding="ascii") as handle:
            fcntl.flock(handle, fcntl.LOCK_EX)
            yield


class _UnixConnection(http.client.HTTPConnection):
    def __init__(self, path: str) -> None:
        super().__init__("supervisord", timeout=_RPC_SECONDS)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(self.timeout)
        self.sock.connect(self._path)


class _UnixTransport(xmlrpc.client.Transport):
    def __init__(self, path: str) -> None:
        super().__init__()
        self._path = path

    def make_connection(self, host: Any) -> http.client.HTTPConnection:
        return _UnixConnection(self._path)


def run_directory(home: Home) -> str:
    """The directory of sockets and private TMPDIRs, short enough for unix socket paths.

    Not below $TMPDIR: the answer must be the same in every session and inside a job.
    """
    near = os.path.join(home.supervisor, "run")
    if len(os.fsencode(near)) <= _LONGEST_RUN_DIRECTORY:
        return near
    return f"/tmp/draftgate-{os.geteuid()}-{home_digest(home.root)}"


def private_directory(path: str) -> None:
    """Make ``path`` with mode 0700, or accept it when it is ours alone.

    :raises HostError: somebody else made it first (it may lie in /tmp), or it is no directory.
    """
    with contextlib.suppress(FileExistsError):
        make_directory(path, 0o700)
    found = os.lstat(path)
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid() or found.st_mode & 0o077:
        raise HostError(
            "making supervisord's socket directory",
            f"{path} is not a directory that only we can enter",
            f"a directory of user {os.geteuid()} with mode 0700",
            "Find out who made it, and remove it.",
        )


def daemon_config(home: Home, socket_path: str) -> str:
    """supervisord.conf. The daemon stays in the foreground: :func:`detach` has put it in the background."""
    return "\n".join(
        [
            "[supervisord]",
            "nodaemon=true",
            "identifier=draftgate",
            f"logfile={value(os.path.join(home.logs, 'supervisord.log'))}",
            "logfile_maxbytes=5MB",
            "logfile_backups=2",
            f"pidfile={value(os.path.join(home.supervisor, 'supervisord.pid'))}",
            "",
            "[unix_http_server]",
            f"file={value(socket_path)}",
            "chmod=0700",
            "",
            "[rpcinterface:supervisor]",
            "supervisor.rpcinterface_factory=supervisor.rpcinterface:make_main_rpcinterface",
            "",
            "[include]",
            "files=conf.d/*.conf",
            "",
        ]
    )


def service_description(service: Service, temporary: str) -> Dict[str, Any]:
    """What the reaper reads for an engine."""
    return {
        "argv": list(service.argv),
        "environment": {**base.base_environment(), **service.environment},
        "secret_files": dict(service.secret_files),
        "working_directory": service.working_directory,
        "temporary": temporary,
        "stop_seconds": service.stop_seconds,
        "verdicts": None,
    }


def job_description(job: Job, temporary: str) -> Dict[str, Any]:
    """What the reaper reads for a job."""
    return {
        "argv": list(job.argv),
        "environment": {**base.base_environment(), **job.environment},
        "secret_files": {},
        "working_directory": job.working_directory,
        "temporary": temporary,
        "stop_seconds": 10,
        "verdicts": sorted(job.verdict_exit_codes),
    }


def engine_program(service: Service, command: Sequence[str], service_mark: str, log: str) -> str:
    """Always started again, until it has died too often too quickly.

    ``startsecs`` is that "too quickly": supervisord counts only deaths within it against
    ``startretries``, and a bad engine takes 20 s (tiny) to minutes (27B) to die, so a short one would
    restart it for ever. SIGTERM goes to the reaper alone, which asks the API server first; with
    ``stopasgroup`` the workers would die under it and its log would end in their tracebacks.
    """
    lines = [
        f"startsecs={base.QUICK_DEATH_SECONDS}",
        f"startretries={base.QUICK_DEATHS - 1}",
        "autorestart=true",
        f"stopwaitsecs={service.stop_seconds + _REAPER_MARGIN_SECONDS}",
    ]
    return _program(service.name, command, service_mark, log, lines)


def job_program(job: Job, command: Sequence[str], service_mark: str, log: str) -> str:
    """Started again only when its reaper was killed: a reaper that exits has decided, with any code."""
    lines = [
        "startsecs=0",
        "startretries=0",
        "autorestart=unexpected",
        f"exitcodes={','.join(str(code) for code in range(256))}",
        f"stopwaitsecs={10 + _REAPER_MARGIN_SECONDS}",
    ]
    return _program(job.name, command, service_mark, log, lines)


def _program(name: str, command: Sequence[str], service_mark: str, log: str, lines: Sequence[str]) -> str:
    return "\n".join(
        [
            f"[program:{name}]",
            f"command={value(shlex.join(command))}",
            f'environment={MARK}="{service_mark}"',
            "directory=/",
            "autostart=false",
            *lines,
            "stopsignal=TERM",
            "killasgroup=true",
            "redirect_stderr=true",
            f"stdout_logfile={value(value(log))}",  # supervisord expands this one twice
            f"stdout_logfile_maxbytes={_LOG_BYTES}",
            f"stdout_logfile_backups={_LOG_BACKUPS}",
            "",
        ]
    )


def value(text: str) -> str:
    """``text`` as a value of supervisord's configuration.

    :raises InputError: it holds what no quoting can carry: a line end, or what starts a comment.
    """
    if re.search(r"[\r\n\0]|\s[;#]", text):
        expected = "a path without line ends, ' ;' or ' #'"
        raise InputError("writing supervisord's configuration", f"{text!r}", expected)
    return text.replace("%", "%%")


def detach(argv: Sequence[str], environment: Mapping[str, str], log: str) -> None:
    """Run ``argv`` as nobody's child, in a session of its own: killing the caller and all its children
    does not touch it. It has ``environment`` and its own pid in it, no open file and no controlling terminal.
    """
    intermediate = os.fork()
    if intermediate:
        os.waitpid(intermediate, 0)
        return
    try:
        os.setsid()
        if os.fork():
            os._exit(0)
        os.chdir("/")
        os.umask(0o077)
        descriptor = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        os.dup2(descriptor, 1)
        os.dup2(descriptor, 2)
        for name in os.listdir("/proc/self/fd"):
            with contextlib.suppress(OSError):
                os.close(int(name) if int(name) > 2 else -1)
        os.execve(argv[0], list(argv), {**environment, SUPERVISOR_PID: str(os.getpid())})
    finally:
        os._exit(127)


def _read(path: str) -> str:
    """The file's text, empty when there is none."""
    try:
        with open(path, encoding="utf-8") as handle:
            return handle.read()
    except FileNotFoundError:
        return ""


def _tail(path: str, lines: int, offset: int) -> List[str]:
    try:
        with open(path, "rb") as handle:
            size = handle.seek(0, os.SEEK_END)
            start = offset if offset <= size else 0  # the log was rotated since
            handle.seek(max(start, size - _TAIL_BYTES))
            text = handle.read().decode("utf-8", "replace")
    except OSError:
        return []
    return text.splitlines()[-lines:] if lines > 0 else []


def _since(info: Mapping[str, Any]) -> Optional[float]:
    moment = info["start"] if info["pid"] else info["stop"] or info["start"]
    return float(moment) if moment else None


def _refused(method: str, fault: xmlrpc.client.Fault) -> HostError:
    return HostError(
        f"asking supervisord to {method}",
        f"it refused: {fault.faultString} (fault {fault.faultCode})",
        next_step="Its log says more: supervisord.log beside the engine's.",
    )
