"""Whose process it is, who holds a port, how much memory is left: read from /proc, no pid files."""

from __future__ import annotations

import hashlib
import os
import socket
from typing import Any, Dict, List, Optional, Set

from .reaper import all_pids, descendants, marked, start_ticks

__all__ = [
    "command",
    "descendants",
    "home_digest",
    "mark",
    "memory_available_bytes",
    "oom_kills",
    "owned",
    "owned_by_home",
    "port_free",
    "port_holder",
    "start_ticks",
]

_LISTEN = "0A"


def home_digest(home: str) -> str:
    """12 hex digits that tell this installation's processes from another's on the same host."""
    return hashlib.sha256(os.path.abspath(home).encode()).hexdigest()[:12]


def mark(service: str, home: str) -> str:
    """The value of ``DRAFTGATE_SERVICE`` in the environment of everything the service starts."""
    return f"{service}@{home_digest(home)}"


def owned(service: str, home: str) -> List[int]:
    """Living processes of the service, found by the mark they were started with.

    Another user's processes cannot be read and are not in the list.
    """
    return marked(mark(service, home))


def owned_by_home(home: str) -> List[int]:
    """The same for every service of the home."""
    return marked(f"@{home_digest(home)}")


def command(pid: int) -> str:
    """The command line, spaces between arguments; empty when the process is gone."""
    try:
        with open(f"/proc/{pid}/cmdline", "rb") as handle:
            return handle.read().replace(b"\0", b" ").decode("utf-8", "replace").strip()
    except OSError:
        return ""


def port_free(host: str, port: int) -> bool:
    """Whether a server could bind ``host:port`` now (SO_REUSEADDR, as every HTTP server does)."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError:
            return False
    return True


def port_holder(host: str, port: int) -> Optional[Dict[str, Any]]:
    """``{"pid", "command"}`` of the process that listens where ``host:port`` would; None when nobody does.

    ``pid`` is None and ``command`` empty for a process of another user. A listener on the wildcard
    address holds every host's port, and a wish for the wildcard meets every listener.
    """
    inodes = _listening_inodes(host, port)
    if not inodes:
        return None
    for pid in all_pids():
        if inodes & _socket_inodes(pid):
            return {"pid": pid, "command": command(pid)}
    return {"pid": None, "command": ""}


def _listening_inodes(host: str, port: int) -> Set[str]:
    wanted = _resolved(host)
    found: Set[str] = set()
    for path, family in (("/proc/net/tcp", socket.AF_INET), ("/proc/net/tcp6", socket.AF_INET6)):
        try:
            with open(path, encoding="ascii") as handle:
                rows = handle.read().splitlines()[1:]
        except OSError:
            continue
        for fields in (row.split() for row in rows):
            address, _, number = fields[1].rpartition(":")
            if fields[3] == _LISTEN and int(number, 16) == port and _meets(address, family, wanted):
                found.add(fields[9])
    return found


def _resolved(host: str) -> Set[str]:
    try:
        return {str(entry[4][0]) for entry in socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)}
    except OSError:
        return {host}


def _meets(address: str, family: int, wanted: Set[str]) -> bool:
    """Whether a listener at ``address`` (the kernel's hex, 32-bit words in host order) meets ``wanted``."""
    raw = b"".join(bytes.fromhex(address[i : i + 8])[::-1] for i in range(0, len(address), 8))
    text = socket.inet_ntop(family, raw)
    if text.startswith("::ffff:"):
        text = text[len("::ffff:") :]
    return text in wanted or text in ("0.0.0.0", "::") or bool(wanted & {"0.0.0.0", "::"})


def _socket_inodes(pid: int) -> Set[str]:
    directory = f"/proc/{pid}/fd"
    found: Set[str] = set()
    try:
        names = os.listdir(directory)
    except OSError:
        return found
    for name in names:
        try:
            target = os.readlink(os.path.join(directory, name))
        except OSError:
            continue
        if target.startswith("socket:["):
            found.add(target[len("socket:[") : -1])
    return found


def memory_available_bytes() -> int:
    """MemAvailable of /proc/meminfo, in bytes: what a new process may use without swapping."""
    return _counter("/proc/meminfo", "MemAvailable:") * 1024


def oom_kills() -> int:
    """Processes the kernel has killed for memory since boot (``oom_kill`` of /proc/vmstat)."""
    return _counter("/proc/vmstat", "oom_kill")


def _counter(path: str, name: str) -> int:
    with open(path, encoding="ascii") as handle:
        for fields in (line.split() for line in handle):
            if fields[0] == name:
                return int(fields[1])
    return 0
