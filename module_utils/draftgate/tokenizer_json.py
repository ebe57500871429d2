"""A tokenizer's JSON files, read within bounds: any strange content is one :class:`InputError` (DG301).

Two thirds of a tokenizer.json are merges, which no question about ids needs. They are checked and skipped as
bytes: as Python objects they would take some 100 MiB.
"""

from __future__ import annotations

import json
import os
import re
import sys
from typing import Any, Dict, List, Optional, Union

from .errors import InputError
from .untrusted import Limits, open_file

CODE = "DG301"
# Twice the largest known ones: 33 MB and 480 000 values beside the merges (Gemma 3).
TOKENIZER = Limits(64 << 20, 1_000_000)
TEMPLATE_BYTES = 4 << 20
# Where Python does not refuse long integers by itself (CVE-2020-10735) they take quadratic time.
_INT_IS_BOUNDED = hasattr(sys, "set_int_max_str_digits")
_LONGEST_INTEGER = 4300
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
    """The JSON object of ``path``, with its lists of merges emptied.

    :param doing: the phrase for the error ("reading the target's tokenizer.json").
    :raises InputError: unreadable, too large, empty, not UTF-8, not JSON, or not an object.
    """
    raw = without_merges(read_bytes(path, doing, TOKENIZER.bytes))  # the whole of it is not needed any more
    if not raw:
        raise broken(doing, f"{path!r} is empty", "a JSON object")
    try:
        value = _parse(raw)
    except UnicodeDecodeError as exc:
        raise broken(doing, f"{path!r} is not UTF-8 (byte {exc.start})", "a JSON object in UTF-8") from exc
    except ValueError as exc:
        raise broken(doing, f"{path!r} is not JSON: {exc}", "a JSON object") from exc
    if not isinstance(value, dict):
        raise broken(doing, f"{path!r} holds a JSON {type(value).__name__}", "a JSON object")
    return value


def _parse(raw: bytes) -> Any:
    """As :func:`untrusted.parse_json`, whose walks over a large vocabulary would cost 0.1 s and 30 MiB.

    So its users look at what they take, and do not recurse. Integers may be long: ``model_max_length`` of
    many a tokenizer_config.json has 31 digits.
    """
    found = sum(map(raw.count, (b",", b"[", b"{")))
    if found > TOKENIZER.values:
        raise ValueError(f"it has about {found} values, more than {TOKENIZER.values}")
    try:
        return json.loads(raw.decode("utf-8"), parse_int=None if _INT_IS_BOUNDED else _integer)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


def _integer(digits: str) -> int:
    if len(digits) > _LONGEST_INTEGER:
        raise ValueError(f"an integer of {len(digits)} digits")
    return int(digits)


def read_bytes(path: str, doing: str, limit: int) -> bytes:
    """All of a regular file of at most ``limit`` bytes.

    :raises InputError: it is not that.
    """
    try:
        with open_file(path) as handle:
            # No more is asked for than is there: the buffer has the size that is asked for.
            raw = handle.read(min(os.fstat(handle.fileno()).st_size, limit) + 1)
    except OSError as exc:
        raise broken(doing, f"{path!r} cannot be read: {exc.strerror}", "a readable file") from exc
    if len(raw) > limit:
        raise broken(doing, f"{path!r} is too large", f"at most {limit} bytes")
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
    """The index after the array at ``start``; None where it holds anything else, or is not UTF-8."""
    position = start + 1
    try:
        while True:
            some = _SOME.match(raw, position)
            if some is None:
                break
            some[0].decode("utf-8")
            position = some.end()
        last = _LAST.match(raw, position)
        if last is None:
            return None
        last[0].decode("utf-8")
    except UnicodeDecodeError:
        return None
    return last.end()


def broken(doing: str, observed: str, expected: str) -> InputError:
    """The one error of this file's readers."""
    return InputError(doing, observed, expected, FETCH_AGAIN, code=CODE)
