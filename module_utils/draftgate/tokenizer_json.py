"""A tokenizer's JSON files, read within bounds: any strange content is one :class:`InputError` (DG301).

Two thirds of a tokenizer.json are merges, which no question about ids needs. They are checked and skipped as
bytes: as Python objects they would take some 100 MiB.
"""

from __future__ import annotations

import json
import os
import re
import stat
from typing import Any, Dict, List, Optional, Union

from .errors import InputError

CODE = "DG301"
MAX_BYTES = 64 << 20  # twice the largest known one: 33 MB (Gemma 3)
FETCH_AGAIN = "Fetch this file again; the engine cannot read it either."

# JSON's grammar for what merges hold: strings (tokenizers < 0.20), or pairs of strings.
_STRING = rb'"[^"\\\x00-\x1f]*(?:\\(?:["\\/bfnrt]|u[0-9A-Fa-f]{4})[^"\\\x00-\x1f]*)*"'
_SPACE = rb"[ \t\n\r]*"
_PAIR = rb"\[%(s)s%(t)s%(s)s,%(s)s%(t)s%(s)s\]" % {b"s": _SPACE, b"t": _STRING}
_ENTRY = rb"(?:%s|%s)" % (_STRING, _PAIR)
_SOME = re.compile(rb"(?:%(s)s%(e)s%(s)s,){1,500}" % {b"s": _SPACE, b"e": _ENTRY})
_LAST = re.compile(rb"%(s)s%(e)s%(s)s\]" % {b"s": _SPACE, b"e": _ENTRY})
_MERGES = re.compile(rb'"merges"%(s)s:%(s)s(?=\[)' % {b"s": _SPACE})
# A quote after one of these opens a string (inside of one it were escaped), and before a colon that is a key.
_BEFORE_KEY = b"{, \t\n\r"


def read_object(path: str, doing: str) -> Dict[str, Any]:
    """The JSON object of ``path``, with every list of merges emptied.

    :param doing: the phrase for the error ("reading the target's tokenizer.json").
    :raises InputError: unreadable, too large, empty, not UTF-8, not JSON, nested too deeply, not an object.
    """
    try:
        value = json.loads(without_merges(read_bytes(path, doing)).decode("utf-8"))
    except (ValueError, RecursionError):  # once more as it is, for an error that names the right place
        value = _loads(read_bytes(path, doing), path, doing)
    if not isinstance(value, dict):
        raise broken(doing, f"{path!r} holds a JSON {type(value).__name__}", "a JSON object")
    return value


def read_bytes(path: str, doing: str, limit: int = MAX_BYTES) -> bytes:
    """All of a regular file that is neither empty nor larger than ``limit`` bytes.

    :raises InputError: it is not that.
    """
    try:
        # Not blocking, because opening a fifo would wait for its writer.
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        with os.fdopen(descriptor, "rb") as handle:
            if not stat.S_ISREG(os.fstat(descriptor).st_mode):
                raise broken(doing, f"{path!r} is no regular file", "a file")
            raw = handle.read(limit + 1)
    except OSError as exc:
        raise broken(doing, f"{path!r} cannot be read: {exc.strerror}", "a readable file") from exc
    if not raw:
        raise broken(doing, f"{path!r} is empty", "a JSON object")
    if len(raw) > limit:
        raise broken(doing, f"{path!r} is larger than {limit >> 20} MiB", "a tokenizer's file")
    return raw


def without_merges(raw: bytes) -> bytes:
    """``raw`` with the array of every key ``merges`` emptied where it is one of strings or of their pairs.

    What is cut is JSON in UTF-8: the result is that exactly if ``raw`` is.
    """
    view, kept, searched = memoryview(raw), 0, 0
    parts: List[Union[bytes, memoryview]] = []
    while True:
        found = _MERGES.search(raw, searched)
        if found is None:
            return b"".join([*parts, view[kept:]]) if parts else raw
        searched = found.end()
        is_key = found.start() > 0 and raw[found.start() - 1] in _BEFORE_KEY
        end = _skipped(raw, found.end()) if is_key else None
        if end is not None:
            parts += [view[kept : found.end()], b"[]"]
            kept = searched = end


def _skipped(raw: bytes, start: int) -> Optional[int]:
    """The index after the array at ``start``; None where it holds anything else."""
    position = start + 1
    while True:
        some = _SOME.match(raw, position)
        if some is None:
            break
        _check_utf8(raw[position : some.end()])
        position = some.end()
    last = _LAST.match(raw, position)
    if last is None:
        return None
    _check_utf8(raw[position : last.end()])
    return last.end()


def _check_utf8(piece: bytes) -> None:
    """:raises UnicodeDecodeError: it is not UTF-8."""
    piece.decode("utf-8")


def _loads(raw: bytes, path: str, doing: str) -> Any:
    try:
        return json.loads(raw.decode("utf-8"))
    except UnicodeDecodeError as exc:
        raise broken(doing, f"{path!r} is not UTF-8 (byte {exc.start})", "a JSON object in UTF-8") from exc
    except ValueError as exc:
        raise broken(doing, f"{path!r} is not JSON: {exc}", "a JSON object") from exc
    except RecursionError as exc:
        raise broken(doing, f"{path!r} is nested too deeply", "a tokenizer's file") from exc


def broken(doing: str, observed: str, expected: str) -> InputError:
    """The one error of this file's readers."""
    return InputError(doing, observed, expected, FETCH_AGAIN, code=CODE)
