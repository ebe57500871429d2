"""The switch's journal: one JSON object per line, each on the disk before the next step begins."""

from __future__ import annotations

import errno
import json
import os
from typing import Any, Callable, Dict, List, Optional

from .errors import HostError
from .files import fsync_directory, is_no_room, make_directory

PREPARED, PREVIOUS_STOPPED, STARTED, GATED = "prepared", "previous_stopped", "started", "gated"
FAILED, FALLBACK = "failed", "fallback"
ACTIVATED, RESTORED, STOPPED, UNRESTORED = "activated", "restored", "stopped", "unrestored"
TERMINAL = frozenset((ACTIVATED, RESTORED, STOPPED, UNRESTORED))

Entry = Dict[str, Any]


class Journal:
    """Append-only; reading forgives one torn last line, because a kill or a power cut can tear it.

    :param path: the file.
    :param clock: epoch seconds, for the entries' times (people read them; nothing decides by them).
    """

    def __init__(self, path: str, clock: Callable[[], float]) -> None:
        self.path = path
        self._clock = clock
        self._unwritten: List[Entry] = []

    def entries(self) -> List[Entry]:
        """All complete entries, oldest first, and what is kept for later; empty when there is no journal.

        :raises HostError: a line before the last is not JSON: somebody edited it.
        """
        try:
            with open(self.path, "rb") as handle:
                raw = handle.read()
        except FileNotFoundError:
            raw = b""
        return [self._parse(number, line) for number, line in enumerate(_finished(raw), 1)] + self._unwritten

    def _parse(self, number: int, line: bytes) -> Entry:
        try:
            entry = json.loads(line.decode("utf-8"))
        except ValueError as exc:
            raise HostError(
                "reading the switch's journal",
                f"line {number} of {self.path} is not JSON",
                "lines that only the switch writes",
                f"Move {self.path} away and run the deploy again; what is activated keeps serving.",
            ) from exc
        return dict(entry)

    def append(self, state: str, **fields: Any) -> Entry:
        """Write one entry and return it once it is durable.

        :raises OSError: it is not (no room): half a line stays behind, which reading and the next entry drop.
        """
        while self._unwritten:
            self._write(self._unwritten[0])
            del self._unwritten[0]
        entry = self._entry(state, fields)
        self._write(entry)
        return entry

    def append_or_keep(self, state: str, **fields: Any) -> None:
        """The same on a full disk: then the entry counts for this process, and is written before its next."""
        entry = self._entry(state, fields)
        try:
            self.append(state, **fields)
        except OSError as exc:
            if not is_no_room(exc):
                raise
            self._unwritten.append(entry)

    def _entry(self, state: str, fields: Dict[str, Any]) -> Entry:
        return {"state": state, "time": round(self._clock(), 3), **fields}

    def _write(self, entry: Entry) -> None:
        make_directory(os.path.dirname(self.path))
        line = json.dumps(entry, sort_keys=True, allow_nan=False).encode("utf-8") + b"\n"
        descriptor = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o644)
        try:
            # Before the line, which vouches for it: "stopped" for the pointer that was taken away
            fsync_directory(os.path.dirname(self.path))
            _drop_torn_line(descriptor)
            written = os.write(descriptor, line)
            if written != len(line):  # a full disk takes a part without an error
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), self.path)
            os.fsync(descriptor)
        finally:
            os.close(descriptor)

    def archive(self, directory: str) -> None:
        """Move a finished journal out of the way, under its switch's name."""
        entries = self.entries()
        if not entries:
            return
        make_directory(directory)
        name = f"{entries[0].get('switch', int(entries[0]['time']))}.jsonl"
        os.replace(self.path, os.path.join(directory, name))
        fsync_directory(directory)
        fsync_directory(os.path.dirname(self.path))


def _drop_torn_line(descriptor: int) -> None:
    """A kill in the middle of a write leaves half a line: the next entry must not be glued to it."""
    size = os.lseek(descriptor, 0, os.SEEK_END)
    keep = sum(len(line) + 1 for line in _finished(os.pread(descriptor, size, 0)))
    if keep != size:
        os.ftruncate(descriptor, keep)
        os.fsync(descriptor)  # or a power cut glues them: this page as it was, the next one as it will be


def _finished(content: bytes) -> List[bytes]:
    """The lines that were written to their end.

    After a power cut a file can have its new size, and zeros for a page that had not reached the disk: the
    last line then ends with a newline and is not whole. Neither JSON nor a person's editing has such a byte.
    """
    lines = content.split(b"\n")[:-1]  # what follows the last newline was never finished
    return lines[:-1] if lines and b"\0" in lines[-1] else lines


def last(entries: List[Entry], *states: str) -> Optional[Entry]:
    """The newest entry in one of ``states``."""
    return next((entry for entry in reversed(entries) if entry["state"] in states), None)


def finished(entries: List[Entry]) -> bool:
    """Nothing is left to do: no journal, or its last entry is terminal."""
    return not entries or entries[-1]["state"] in TERMINAL
