"""The engine's runtime as a named job on the host: it goes on when the link is cut, a second run joins it."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Any, Dict, Mapping, Optional, Tuple

from . import jobs, runtime
from .backend.base import Backend
from .clocks import Clocks
from .errors import DraftgateError, HostError
from .files import read_json, write_atomic, write_json
from .jobs import Wait
from .layout import Home
from .progress import ProgressFile
from .runtime_host import gather_facts, host_problems, mib
from .runtime_lock import Lock, parse_lock
from .streaming import run_process

EXIT_DONE, EXIT_FAILED = 0, 1


@dataclass(frozen=True)
class Wish:
    """Which runtime and how to make it.

    :param lock_text: the lock file's content.
    :param root: the directory that holds runtimes, one below it per lock.
    """

    lock_text: str
    root: str
    options: runtime.Options = runtime.Options()

    @property
    def lock(self) -> Lock:
        return parse_lock(self.lock_text)


def job_name(lock: Lock) -> str:
    return f"runtime-{lock.runtime_id}"


def inspect(wish: Wish) -> Dict[str, Any]:
    """Whether the runtime is complete; if not, what of the host speaks against it (before a byte moves)."""
    lock = wish.lock
    known = runtime.installed(lock, wish.root)
    problems = (
        [] if known else host_problems(lock, gather_facts(lock, wish.root, wish.options.python, run_process))
    )
    return {
        "changed": known is None,
        "path": os.path.join(wish.root, lock.runtime_id),
        "findings": [problem.as_dict() for problem in problems if problem.code not in wish.options.accept],
        "download_bytes": 0 if known else lock.download_bytes,
    }


def needs(lock: Lock) -> str:
    """What is about to happen and what it stands on, in one line: said before anything moves."""
    found = [f"Python {lock.python}", f"glibc {lock.glibc}", *lock.cpu_features]
    return (
        f"{lock.engine} {lock.engine_version} for {lock.platform}: fetching {mib(lock.download_bytes)}, "
        f"installing {mib(lock.installed_bytes)}; it needs {', '.join(found)}: all found"
    )


def checked(wish: Wish) -> Dict[str, Any]:
    """Check mode: :func:`inspect`, and the refusal that a real run would end with."""
    state = inspect(wish)
    _refuse(state)
    return state


def present(home: Home, backend: Backend, wish: Wish, wait: Wait, clocks: Clocks) -> Dict[str, Any]:
    """Make it complete through the job, and wait.

    :raises DraftgateError: what the job ended with.
    """
    name, announce = job_name(wish.lock), ""
    if not wait.attempt:
        state = checked(wish)
        if not state["changed"]:
            return state
        announce = needs(wish.lock)
        _start(home, backend, wish, name)
    left = jobs.follow(backend, name, home.progress_of(name), wait, clocks)
    if left is not None:
        return {**jobs.still_running(left, name), "announce": announce}
    return _ended(home, backend, name, inspect(wish))


def _refuse(state: Mapping[str, Any]) -> None:
    if state["findings"]:
        first = state["findings"][0]
        more = f" and {len(state['findings']) - 1} more" if len(state["findings"]) > 1 else ""
        raise HostError(
            "looking at the host before the runtime is fetched",
            first["message"].rstrip(".") + more,
            "",
            first["fix"],
            code=first["code"],
            details={"findings": state["findings"]},
        )


def _paths(home: Home, name: str) -> Tuple[str, str, str]:
    return (
        home.path("run", f"{name}.json"),
        home.path("run", f"{name}.lock.txt"),
        home.path("run", f"{name}.result.json"),
    )


def _start(home: Home, backend: Backend, wish: Wish, name: str) -> None:
    """Start the job, or leave the one that runs: its name is the lock's digest, so it is the same work."""
    if backend.job_state(name).status == "running":
        return
    request, lock_path, result = _paths(home, name)
    jobs.forget(result)
    jobs.forget(home.progress_of(name))
    write_atomic(lock_path, wish.lock_text.encode("utf-8"))
    options = wish.options
    # 0600: the extra index may carry credentials.
    write_json(
        request,
        {
            "root": wish.root,
            "python": options.python,
            "extra_index": options.extra_index,
            "find_links": list(options.find_links),
            "accept": sorted(options.accept),
        },
        0o600,
    )
    arguments = ("install-runtime", "--name", name)
    backend.start_job(jobs.command(home, name, arguments, (EXIT_DONE, EXIT_FAILED)))


def _ended(home: Home, backend: Backend, name: str, state: Dict[str, Any]) -> Dict[str, Any]:
    result = _paths(home, name)[2]
    known: Mapping[str, Any] = (
        read_json(result, "reading the installation's result") if os.path.exists(result) else {}
    )
    if known.get("installed"):
        return {
            **state,
            "changed": True,
            "installed": known["installed"],
            "job": {"running": False, "progress": {}},
        }
    error: Optional[Mapping[str, Any]] = known.get("error")
    if error:
        fields = {
            key: error[key] for key in ("doing", "observed", "expected", "next_step", "code", "details")
        }
        raise HostError(**fields)
    raise HostError(
        "installing the runtime",
        f"the job ended (exit code {backend.job_state(name).exit_code}) without a result",
        "a result",
        f"Run the deploy again: it begins anew. The job's log: {backend.log_path(name)}",
    )


def run(home: Home, name: str, clocks: Clocks) -> int:
    """The job's body."""
    request_path, lock_path, result = _paths(home, name)
    request = read_json(request_path, "reading what to install")
    with open(lock_path, encoding="utf-8") as handle:
        lock = parse_lock(handle.read())
    options = runtime.Options(
        python=request["python"],
        extra_index=request["extra_index"],
        find_links=tuple(request["find_links"]),
        accept=frozenset(request["accept"]),
    )
    report = ProgressFile(home.progress_of(name), list(runtime.STAGES), {}, clocks.now)
    try:
        done = runtime.install(lock, request["root"], options, progress=report)
        summary = {
            "path": done.path,
            "packages": done.packages,
            "bytes": done.size_bytes,
            "seconds": done.seconds,
        }
        ended: Dict[str, Any] = {"installed": summary}
    except DraftgateError as exc:
        ended = {"error": exc.as_dict()}
    write_json(result, ended)
    jobs.forget(request_path)  # last: a killed job is started again and reads it again
    return EXIT_DONE if "installed" in ended else EXIT_FAILED
