"""Files that somebody else wrote: whatever is in them, reading costs bounded time and memory.

JSON takes Python up to 48 bytes of memory for a byte of file (lists in lists), so the values are counted
before they are parsed: one costs 240 bytes at most, beside its text.
"""

from __future__ import annotations

import errno
import json
import math
import os
import stat
from typing import Any, BinaryIO, Dict, List, NamedTuple

from . import files

_DEEPEST = 64  # configs nest 8 deep, the safetensors library stops at 128; above this Python's own walks fail
# Far longer ones take quadratic time before Python 3.11; model_max_length of many a tokenizer has 31 digits.
_LONGEST_INTEGER = 64
_LONGEST_FLOAT = 100


class Limits(NamedTuple):
    """What a kind of file may hold. ``values``: what stands between its commas, at any depth."""

    bytes: int
    values: int


# The largest published index names 207 000 tensors in 25 MB (an expert's weight, scale and shape each count).
CONFIG = Limits(16 << 20, 200_000)
INDEX = Limits(64 << 20, 1_000_000)


def open_file(path: str) -> BinaryIO:
    """A regular file, opened for reading; a FIFO or a device is refused, and neither waited for nor read.

    :raises OSError: it cannot be opened, or is another kind of file.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    mode = os.fstat(descriptor).st_mode
    if stat.S_ISREG(mode):
        return open(descriptor, "rb")
    os.close(descriptor)
    number = errno.EISDIR if stat.S_ISDIR(mode) else errno.EINVAL
    raise OSError(number, os.strerror(number) if number == errno.EISDIR else "It is no regular file")


def parse_json(raw: bytes, values: int) -> Any:
    """The value of a JSON text with at most about ``values`` values.

    :raises ValueError: it is not JSON in UTF-8, has more or too deeply nested values, or one that only
        Python takes for JSON: NaN, an infinite or endless number, half a surrogate pair.
    """
    found = sum(map(raw.count, (b",", b"[", b"{")))
    if found > values:
        raise ValueError(f"it has about {found} values, more than {values}")
    try:
        text = raw.decode("utf-8")
        value = json.loads(text, parse_int=_integer, parse_float=_float, parse_constant=_no_number)
    except RecursionError:
        raise ValueError(f"it is nested deeper than {_DEEPEST}") from None
    _refuse_depth(value)
    if "\\ud" in text or "\\uD" in text:
        _refuse_surrogates(value)
    return value


def read_json(path: str, doing: str, limits: Limits = CONFIG) -> Dict[str, Any]:
    """A JSON object from a file that may hold anything, or be anything.

    :param doing: the phrase for the error ("reading the target's config.json").
    :raises InputError: missing, no regular file, too large, not UTF-8, not JSON, or not an object.
    """
    return files.read_json(
        path, doing, lambda path: parse_json(read_bytes(path, limits.bytes), limits.values)
    )


def read_bytes(path: str, limit: int) -> bytes:
    """All of a regular file.

    :raises OSError: it cannot be read, is another kind of file, or has more than ``limit`` bytes.
    """
    try:
        with open_file(path) as handle:
            # No more is asked for than is there, or grew: the buffer has the size that is asked for.
            size = min(os.fstat(handle.fileno()).st_size, limit)
            raw = handle.read(size + 1)
            if len(raw) > size:
                raw += handle.read(limit - size)
    except ValueError as exc:  # a name that no file can have
        raise OSError(errno.EINVAL, str(exc)) from exc
    if len(raw) > limit:
        raise OSError(errno.EFBIG, f"it is too large, with more than {limit} bytes")
    return raw


def shown(value: Any) -> str:
    """``repr``, cut to what fits into a message."""
    text = repr(value)
    return text if len(text) <= 200 else f"{text[:200]}… ({len(text)} characters)"


def _integer(digits: str) -> int:
    if len(digits) > _LONGEST_INTEGER:
        raise ValueError(f"an integer of {len(digits)} digits")
    return int(digits)


def _float(digits: str) -> float:
    number = float(digits) if len(digits) <= _LONGEST_FLOAT else math.inf
    if not math.isfinite(number):
        raise ValueError(f"the number {digits[:_LONGEST_INTEGER]}… has no finite value")
    return number


def _no_number(name: str) -> float:
    raise ValueError(f"{name} is no number in JSON")


def _refuse_depth(value: Any) -> None:
    level: List[Any] = [value]
    for _ in range(_DEEPEST + 1):
        inner: List[Any] = []
        for item in level:
            if isinstance(item, dict):
                inner.extend(item.values())
            elif isinstance(item, list):
                inner.extend(item)
        if not inner:
            return
        level = inner
    raise ValueError(f"it is nested deeper than {_DEEPEST}")


def _refuse_surrogates(value: Any) -> None:
    """No program can print or write such a string as UTF-8."""
    try:
        json.dumps(value, ensure_ascii=False).encode("utf-8")
    except UnicodeEncodeError:
        raise ValueError("a string has half of a surrogate pair") from None
