"""The sets of this machine: what may be a name, who uses it, which network it has."""

from __future__ import annotations

import fcntl
import os
import re
import shutil
from pathlib import Path

from tests.cache import CACHE
from tests.hosts.network import Network

STATE = Path("/run/draftgate-hosts")  # gone with the networks when this machine is started again
DISKS = CACHE / "hosts" / "disks"
_NUMBERS = range(200)
_held: dict[str, int] = {}
"""Name of a set → the descriptor of its lock."""


class Refused(RuntimeError):
    """What was asked cannot be done with that set; the message says why."""


def checked(name: str) -> str:
    """The name. Directories named by it are removed: no path is made from one that was not checked.

    A host is its set's name and a number, so no digits; with three of them it is no longer than a network
    device's name may be, 15.

    :raises Refused: it is no name of a set.
    """
    if not re.fullmatch("[a-z]{1,12}", name):
        raise Refused(
            f"{name!r} cannot be the name of a set of test hosts: expected 1 to 12 letters, a to z."
        )
    return name


def state(name: str) -> Path:
    """Where its network's number is kept."""
    return STATE / checked(name)


def disks(name: str) -> Path:
    """Where its hosts' disks and keys lie."""
    return DISKS / checked(name)


def hold(name: str) -> None:
    """Take the name for this process, until it ends or calls ``release``.

    :raises Refused: another process has it.
    """
    if checked(name) in _held:
        return
    STATE.mkdir(parents=True, exist_ok=True)
    lock = os.open(STATE / f"{name}.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        pid = os.pread(lock, 20, 0).decode("ascii")
        os.close(lock)
        raise Refused(
            f"The test hosts {name!r} are in use by process {pid or '(just starting)'}. "
            "Wait until it ends, or take another name."
        ) from None
    os.ftruncate(lock, 0)
    os.pwrite(lock, str(os.getpid()).encode("ascii"), 0)
    _held[name] = lock


def release(name: str) -> None:
    """Let others have it. The file stays: were it removed, two could hold a lock of that name."""
    lock = _held.pop(name)
    os.ftruncate(lock, 0)
    os.close(lock)


def network(name: str) -> Network | None:
    """The set's, None where it has none."""
    number = state(name) / "number"
    return Network(int(number.read_text("ascii"))) if number.is_file() else None


def take_network(name: str) -> Network:
    """One that no other set has; the set's until ``forget``. Safe to be killed in."""
    directory = state(name)
    directory.mkdir(parents=True, exist_ok=True)
    with open(STATE / ".lock", "w", encoding="ascii") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        taken = {int(path.read_text("ascii")) for path in STATE.glob("*/number")}
        free = (Network(number) for number in _NUMBERS if number not in taken)
        # A bridge without a state is still somebody's: its number names control groups of running guests.
        found = next(each for each in free if not os.path.exists(f"/sys/class/net/{each.bridge}"))
        written = directory / "number.new"
        written.write_text(str(found.number), "ascii")
        written.rename(directory / "number")  # whole, or not there
    return found


def forget(name: str) -> None:
    """Its disks, and last its number: whoever is killed before that has left what names the rest."""
    shutil.rmtree(disks(name), ignore_errors=True)
    shutil.rmtree(state(name), ignore_errors=True)
