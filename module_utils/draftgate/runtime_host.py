"""Whether a host can build and run a runtime, judged before the first byte is fetched."""

from __future__ import annotations

import contextlib
import json
import os
from dataclasses import dataclass
from typing import Any, Dict, FrozenSet, Iterator, List, Tuple

from .findings import ERROR, Finding
from .runtime_lock import Lock
from .streaming import Runner, collector


@dataclass(frozen=True)
class HostFacts:
    """What :func:`host_problems` judges.

    :param python_version: ``3.11``; empty when ``python`` could not be run.
    :param platform: ``linux_x86_64``, of that interpreter.
    :param glibc: ``2.36``; empty on another libc.
    :param cpu_features: flags of the first processor in /proc/cpuinfo.
    :param disk_free_bytes: room for this user at ``disk_path``, the destination or its nearest parent.
    """

    python: str
    python_version: str
    platform: str
    glibc: str
    can_make_environments: bool
    missing_libraries: Tuple[str, ...]
    cpu_features: FrozenSet[str]
    shared_memory_bytes: int
    disk_path: str
    disk_free_bytes: int


# Debian's names. Without libnuma the engine logs one warning, and its worker then dies with
# "'_C' object has no attribute 'init_cpu_memory_env'".
_SYSTEM_PACKAGES = {"libnuma.so.1": "libnuma1", "libstdc++.so.6": "libstdc++6"}
_BYTECODE = 1.3  # measured: an installed runtime takes 1.24 times its unpacked wheels on ext4

_PROBE = """
import ctypes, importlib.util, json, platform, sys
missing = []
for library in sys.argv[1:]:
    try:
        ctypes.CDLL(library)
    except OSError:
        missing.append(library)
libc, version = platform.libc_ver()
print(json.dumps({
    "python_version": "%d.%d" % sys.version_info[:2],
    "platform": "%s_%s" % (sys.platform, platform.machine()),
    "glibc": version if libc == "glibc" else "",
    "can_make_environments": all(importlib.util.find_spec(name) for name in ("venv", "ensurepip")),
    "missing_libraries": missing,
}))
"""


def gather_facts(lock: Lock, root: str, python: str, runner: Runner) -> HostFacts:
    """Look at this host; reads /proc and asks ``python`` one question. Changes nothing."""
    lines: List[str] = []
    probed: Dict[str, Any] = {}
    with contextlib.suppress(OSError, ValueError):
        if runner([python, "-I", "-c", _PROBE, *lock.libraries], os.environ, collector(lines), ()) == 0:
            probed = json.loads(lines[-1])
    existing = _existing_parent(root)
    return HostFacts(
        python=python,
        python_version=str(probed.get("python_version", "")),
        platform=str(probed.get("platform", "")),
        glibc=str(probed.get("glibc", "")),
        can_make_environments=bool(probed.get("can_make_environments")),
        missing_libraries=tuple(probed.get("missing_libraries", ())),
        cpu_features=_cpu_features(),
        shared_memory_bytes=_room("/dev/shm"),
        disk_path=existing,
        disk_free_bytes=_room(existing),
    )


def host_problems(lock: Lock, facts: HostFacts) -> List[Finding]:
    """Why this host cannot build or run the lock, all at once; empty = it can.

    Without a working interpreter only that is said: the other answers would come from it.
    """
    if not facts.python_version:
        return [
            _problem(
                "DG501",
                "runtime.python",
                facts.python,
                f"Python {lock.python}",
                f"{facts.python} could not be run.",
                f"Name an interpreter of Python {lock.python}.",
            )
        ]
    return [
        *_interpreter_problems(lock, facts),
        *_processor_problems(lock, facts),
        *_system_problems(lock, facts),
    ]


def disk_needed(lock: Lock) -> int:
    """Bytes: the environment with its bytecode, the wheels beside it, and as much again for pip's cache."""
    return int(lock.installed_bytes * _BYTECODE) + 2 * lock.download_bytes


def _interpreter_problems(lock: Lock, facts: HostFacts) -> Iterator[Finding]:
    if facts.python_version != lock.python:
        yield _problem(
            "DG501",
            "runtime.python",
            facts.python_version,
            lock.python,
            f"{facts.python} is Python {facts.python_version}; the lock holds wheels for {lock.python} only.",
            f"Name an interpreter of Python {lock.python}, or make a lock for {facts.python_version} "
            "(locks/README.md).",
        )
    if not facts.can_make_environments:
        package = f"python{facts.python_version}-venv"
        yield _problem(
            "DG502",
            "runtime.python",
            "no venv or ensurepip",
            "both",
            f"{facts.python} cannot make a virtual environment with pip.",
            f"Install {package} (Debian, Ubuntu: apt-get install {package}).",
        )


def _processor_problems(lock: Lock, facts: HostFacts) -> Iterator[Finding]:
    if facts.platform != lock.platform:
        yield _problem(
            "DG150",
            "host.platform",
            facts.platform,
            lock.platform,
            f"The lock holds wheels for {lock.platform}; this host is {facts.platform}.",
            f"Make a lock for {facts.platform} (locks/README.md).",
        )
        return
    missing = [name for name in lock.cpu_features if name not in facts.cpu_features]
    if missing:
        yield _problem(
            "DG151",
            "host.cpu_features",
            f"no {', '.join(missing)}",
            list(lock.cpu_features),
            f"The processor has no {', '.join(missing)}; the engine's kernels would die with SIGILL.",
            "Use a newer processor, or show the guest the host's own (QEMU, Proxmox: CPU type 'host').",
        )
    if _numbers(facts.glibc) < _numbers(lock.glibc):
        yield _problem(
            "DG152",
            "host.glibc",
            facts.glibc or "another libc",
            lock.glibc,
            f"The wheels are built for glibc {lock.glibc} or newer.",
            "Use a newer release of the distribution.",
        )


def _system_problems(lock: Lock, facts: HostFacts) -> Iterator[Finding]:
    for library in facts.missing_libraries:
        package = _SYSTEM_PACKAGES.get(library, f"what holds {library}")
        yield _problem(
            "DG153",
            "host.libraries",
            f"no {library}",
            library,
            f"{library} cannot be loaded; the engine would say so in one warning and die at its first step.",
            f"Install {package} (Debian, Ubuntu: apt-get install {package}).",
        )
    if facts.shared_memory_bytes < lock.shared_memory_bytes:
        yield _problem(
            "DG154",
            "host.shared_memory",
            facts.shared_memory_bytes,
            lock.shared_memory_bytes,
            f"/dev/shm has {mib(facts.shared_memory_bytes)} free; the engine refuses to start below "
            f"{mib(lock.shared_memory_bytes)}.",
            "Enlarge it (mount -o remount,size=1G /dev/shm; in a container --shm-size=1g).",
        )
    if facts.disk_free_bytes < disk_needed(lock):
        yield _problem(
            "DG155",
            "host.disk",
            facts.disk_free_bytes,
            disk_needed(lock),
            f"{facts.disk_path} has {mib(facts.disk_free_bytes)} free; the runtime needs "
            f"{mib(disk_needed(lock))} while it is made.",
            "Free some room, or name another directory for runtimes.",
        )


def _problem(code: str, field: str, observed: Any, expected: Any, message: str, fix: str) -> Finding:
    return Finding(code, ERROR, field, observed, expected, message, fix, source="the runtime lock's header")


def _cpu_features() -> FrozenSet[str]:
    with contextlib.suppress(OSError), open("/proc/cpuinfo", encoding="utf-8", errors="replace") as handle:
        for line in handle:
            key, _colon, value = line.partition(":")
            if key.strip() in ("flags", "Features"):  # x86, Arm
                return frozenset(value.split())
    return frozenset()


def _existing_parent(path: str) -> str:
    while not os.path.isdir(path):
        path = os.path.dirname(path)
    return path


def _room(path: str) -> int:
    try:
        figures = os.statvfs(path)
    except OSError:
        return 0
    return figures.f_bavail * figures.f_frsize


def _numbers(version: str) -> Tuple[int, ...]:
    return tuple(int(part) for part in version.split(".") if part.isdigit())


def mib(count: float) -> str:
    return f"{count / (1 << 20):.0f} MiB"
