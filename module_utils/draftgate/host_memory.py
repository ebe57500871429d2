"""What memory a host has and what holds it: /proc, control groups, nvidia-smi. Reads, judges nothing."""

from __future__ import annotations

import contextlib
import os
from dataclasses import dataclass, field
from typing import Dict, FrozenSet, Iterator, List, Mapping, NamedTuple, Optional, Tuple

from . import processes
from .backend.base import Runner, run_command

_SMI_SECONDS = 30.0
"""It answers in one; a driver that lost a GPU can keep it for ever."""
_MIB = 1 << 20
_CARDS = "index,uuid,memory.total,memory.used,memory.free,mig.mode.current"
_HOLDERS = "gpu_uuid,pid,used_memory,process_name"


class Card(NamedTuple):
    """One GPU, in bytes. None: nvidia-smi does not tell (unified memory, or a container that may not know).

    :param divided: it is in MIG mode, where an engine gets a slice that these figures are not of.
    """

    number: str
    uuid: str
    total: Optional[int]
    used: Optional[int]
    free: Optional[int]
    divided: bool = False


class Holder(NamedTuple):
    """A process that holds memory of a GPU.

    :param pid: as nvidia-smi counts.
    :param here: whether such a process has that pid in this container too.
    """

    uuid: str
    pid: int
    held: Optional[int]
    name: str
    here: bool


@dataclass(frozen=True)
class HostMemory:
    """In bytes.

    :param total: of the host, or what a control group allows where that is less; :param available: of it.
    :param held: by the processes of the engine that serves; None: it cannot be read.
    :param shared: free in /dev/shm; None: each engine has its own.
    :param trouble: why nvidia-smi told nothing, where it was asked.
    :param on_cpu: ids of the deployments whose engine is vLLM's CPU build.
    :param models: size of the model with this digest, where it lies on the host.
    """

    total: int
    available: int
    held: Optional[int] = None
    shared: Optional[int] = None
    cards: Tuple[Card, ...] = ()
    trouble: str = ""
    on_cpu: FrozenSet[str] = frozenset()
    models: Mapping[str, int] = field(default_factory=dict)


# The GPUs


def cards(run: Runner = run_command) -> Tuple[Tuple[Card, ...], str]:
    """The GPUs as nvidia-smi lists them, and in a phrase why they are not known."""
    status, out, err = run(
        ["nvidia-smi", f"--query-gpu={_CARDS}", "--format=csv,noheader,nounits"], _SMI_SECONDS
    )
    lines = [line.strip() for line in out.splitlines() if line.strip()]
    rows = [[part.strip() for part in line.split(",")] for line in lines]
    odd = [
        line for line, row in zip(lines, rows) if len(row) != len(_CARDS.split(",")) or not row[0].isdigit()
    ]
    if status or odd or not rows:
        told = (odd or err.strip().splitlines() or [f"nvidia-smi ended with {status} and said nothing"])[0]
        return (), told[:200]
    return tuple(_card(row) for row in rows), ""


def _card(row: List[str]) -> Card:
    number, uuid, total, used, free, mode = row
    return Card(number, uuid, _mib(total), _mib(used), _mib(free), mode == "Enabled")


def _mib(text: str) -> Optional[int]:
    """``[N/A]`` (unified memory) and ``[Insufficient Permissions]`` (MIG in a container) are no numbers."""
    return int(text) * _MIB if text.isdigit() else None


def holders(run: Runner = run_command, proc: str = "/proc") -> List[Holder]:
    """Who holds GPU memory; empty where nvidia-smi does not say."""
    argv = ["nvidia-smi", f"--query-compute-apps={_HOLDERS}", "--format=csv,noheader,nounits"]
    status, out, _err = run(argv, _SMI_SECONDS)
    rows = [[part.strip() for part in line.split(",", 3)] for line in out.splitlines()]
    return [
        Holder(row[0], int(row[1]), _mib(row[2]), row[3], _uses_a_gpu(int(row[1]), proc))
        for row in rows
        if status == 0 and len(row) == 4 and row[1].isdigit()
    ]


def _uses_a_gpu(pid: int, proc: str) -> bool:
    """In a container nvidia-smi gives the host's pids, which are others' here (nvidia-docker#1483).

    A process that may not be looked into (another user's) is taken for the one that is meant.
    """
    directory = os.path.join(proc, str(pid), "fd")
    try:
        names = os.listdir(directory)
    except PermissionError:
        return True
    except OSError:
        return False
    for name in names:
        with contextlib.suppress(OSError):
            if os.readlink(os.path.join(directory, name)).startswith("/dev/nvidia"):
                return True
    return False


# The host's memory


def memory(root: str = "/") -> Tuple[int, int]:
    """Bytes in all and available, by /proc/meminfo and by every control group that we are in.

    :param root: where ``proc`` and ``sys`` lie.
    """
    told = _figures(os.path.join(root, "proc/meminfo"))
    total, available = told.get("MemTotal", 0) * 1024, told.get("MemAvailable", 0) * 1024
    for limit, used in _limits(root):
        total, available = min(total, limit), min(available, max(0, limit - used))
    return total, available


def _limits(root: str) -> Iterator[Tuple[int, int]]:
    """Limit and use of our control groups, from the innermost outwards, in both kinds of hierarchy."""
    paths = _own_groups(root)
    with (
        contextlib.suppress(OSError),
        open(os.path.join(root, "proc/self/mountinfo"), encoding="utf-8") as table,
    ):
        for line in table:
            mount, _dash, source = line.partition(" - ")
            kind, options = source.split()[0], source.split()[-1].split(",")
            start, point = mount.split()[3:5]
            if kind == "cgroup2":
                yield from _upwards(root, point, start, paths.get("", "/"), _UNIFIED)
            elif kind == "cgroup" and "memory" in options:
                yield from _upwards(root, point, start, paths.get("memory", "/"), _LEGACY)


class _Names(NamedTuple):
    limits: Tuple[str, ...]
    used: str
    reclaimable: str


# memory.high counts as well: above it the kernel slows a process down until nothing answers in time
_UNIFIED = _Names(("memory.max", "memory.high"), "memory.current", "inactive_file")
_LEGACY = _Names(("memory.limit_in_bytes",), "memory.usage_in_bytes", "total_inactive_file")


def _own_groups(root: str) -> Dict[str, str]:
    """Controller → our path in its hierarchy; the unified hierarchy has an empty name."""
    found: Dict[str, str] = {}
    with (
        contextlib.suppress(OSError),
        open(os.path.join(root, "proc/self/cgroup"), encoding="utf-8") as table,
    ):
        for line in table:
            _number, controllers, path = line.rstrip("\n").split(":", 2)
            found.update(dict.fromkeys(controllers.split(","), path))
    return found


def _upwards(root: str, point: str, start: str, path: str, names: _Names) -> Iterator[Tuple[int, int]]:
    """From our group to the mount's own, which is the outermost that a container shows."""
    if start != "/" and (path == start or path.startswith(start + "/")):
        path = path[len(start) :]
    top = os.path.join(root, point.lstrip("/"))
    here = os.path.normpath(os.path.join(top, path.lstrip("/")))
    if not os.path.isdir(here):
        here = top  # our path is told from outside of the container
    while len(here) >= len(top.rstrip("/")):
        reclaimable = _figures(os.path.join(here, "memory.stat")).get(names.reclaimable, 0)
        used = _number(os.path.join(here, names.used))
        for limit in (_number(os.path.join(here, name)) for name in names.limits):
            if limit is not None and used is not None:
                yield limit, max(0, used - reclaimable)
        here = os.path.dirname(here)


def held(service: str, home: str, proc: str = "/proc") -> Optional[int]:
    """What the service's processes really hold, shared pages in shares; None: there are none to be read."""
    figures = [_held_by(os.path.join(proc, str(pid))) for pid in processes.owned(service, home)]
    return sum(figures) or None


def _held_by(process: str) -> int:
    told = _figures(os.path.join(process, "smaps_rollup"))
    if "Pss" in told:
        return (told["Pss"] + told.get("SwapPss", 0)) * 1024
    return _figures(os.path.join(process, "status")).get("VmRSS", 0) * 1024


def shared_free(path: str = "/dev/shm") -> int:
    """Free bytes of the shared memory; 0 without any."""
    try:
        figures = os.statvfs(path)
    except OSError:
        return 0
    return figures.f_bavail * figures.f_frsize


def bytes_below(directory: str) -> Optional[int]:
    """Size of all files; None where there is no such directory."""
    if not os.path.isdir(directory):
        return None
    return sum(
        os.path.getsize(os.path.join(folder, name))
        for folder, _sub, names in os.walk(directory)
        for name in names
    )


def _figures(path: str) -> Dict[str, int]:
    """``Name: 12 kB`` and ``name 12`` lines as numbers without their unit; empty when it cannot be read."""
    found: Dict[str, int] = {}
    with contextlib.suppress(OSError), open(path, encoding="utf-8", errors="replace") as handle:
        for fields in (line.split() for line in handle):
            if len(fields) > 1 and fields[1].isdigit():
                found[fields[0].rstrip(":")] = int(fields[1])
    return found


def _number(path: str) -> Optional[int]:
    """``max`` is none."""
    with contextlib.suppress(OSError, ValueError), open(path, encoding="ascii") as handle:
        return int(handle.read())
    return None
