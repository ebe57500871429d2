"""Whose process it is, who holds a port, how much memory is left: read from /proc, no pid files."""

from __future__ import annotations

import hashlib
import os
import socket
from typing import Any, Dict, Iterator, List, Optional, Set, Tuple

from .reaper import all_pids, descendants, marked, start_ticks

__all__ = [
    "all_pids",
    "command",
    "connections_to",
    "descendants",
    "home_digest",
    "listeners",
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
_ESTABLISHED, _SYN_SENT = "01", "02"


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
    if not _listening_inodes(host, port):
        return None
    for pid in listeners(host, port):
        return {"pid": pid, "command": command(pid)}
    return {"pid": None, "command": ""}


def listeners(host: str, port: int) -> Iterator[int]:
    """Processes that share the listener where ``host:port`` would be; of another user only root sees them."""
    inodes = _listening_inodes(host, port)
    return (pid for pid in (all_pids() if inodes else ()) if inodes & _socket_inodes(pid))


def connections_to(host: str, port: int, name: str) -> int:
    """Open TCP connections to ``host:port`` whose near end is a process with the command name ``name``.

    One that the other side has closed does not count. Another user's processes are only seen by root.
    """
    wanted = _resolved(host)
    inodes = {
        fields[9]
        for fields, family in _tcp_rows()
        if fields[3] in (_ESTABLISHED, _SYN_SENT)
        and _port(fields[2]) == port
        and _address(fields[2], family) in wanted
    }
    if not inodes:
        return 0
    held: Set[str] = set()
    for pid in all_pids():
        if _command_name(pid) == name:
            held |= _socket_inodes(pid)
    return len(inodes & held)


def _command_name(pid: int) -> str:
    try:
        with open(f"/proc/{pid}/comm", encoding="utf-8", errors="replace") as handle:
            return handle.read().strip()
    except OSError:
        return ""


def _listening_inodes(host: str, port: int) -> Set[str]:
    wanted = _resolved(host)
    return {
        fields[9]
        for fields, family in _tcp_rows()
        if fields[3] == _LISTEN and _port(fields[1]) == port and _meets(_address(fields[1], family), wanted)
    }


def _tcp_rows() -> Iterator[Tuple[List[str], int]]:
    """The kernel's TCP sockets: ``(fields of proc_net_tcp(5), address family)``."""
    for path, family in (("/proc/net/tcp", socket.AF_INET), ("/proc/net/tcp6", socket.AF_INET6)):
        try:
            with open(path, encoding="ascii") as handle:
                rows = handle.read().splitlines()[1:]
        except OSError:
            continue
        for row in rows:
            yield row.split(), family


def _resolved(host: str) -> Set[str]:
    try:
        return {str(entry[4][0]) for entry in socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)}
    except OSError:
        return {host}


def _port(end: str) -> int:
    return int(end.rpartition(":")[2], 16)


def _address(end: str, family: int) -> str:
    """From the kernel's hex, 32-bit words in host order."""
    digits = end.rpartition(":")[0]
    raw = b"".join(bytes.fromhex(digits[i : i + 8])[::-1] for i in range(0, len(digits), 8))
    text = socket.inet_ntop(family, raw)
    return text[len("::ffff:") :] if text.startswith("::ffff:") else text


def _meets(address: str, wanted: Set[str]) -> bool:
    """Whether a listener at ``address`` meets ``wanted``."""
    return address in wanted or address in ("0.0.0.0", "::") or bool(wanted & {"0.0.0.0", "::"})


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
