"""A tokenizer's JSON files, read within bounds: any strange content is one :class:`InputError` (DG301)."""

from __future__ import annotations

import json
import os
import sys
from typing import Any, Dict

from .errors import InputError
from .tokenizer_parts import without_long_parts
from .untrusted import Limits, open_file

CODE = "DG301"
# Twice the largest known ones: 33 MB and 480 000 values beside the merges (Gemma 3).
TOKENIZER = Limits(64 << 20, 1_000_000)
TEMPLATE_BYTES = 4 << 20
# Where Python does not refuse long integers by itself (CVE-2020-10735) they take quadratic time.
_INT_IS_BOUNDED = hasattr(sys, "set_int_max_str_digits")
_LONGEST_INTEGER = 4300
FETCH_AGAIN = "Fetch this file again; the engine cannot read it either."


def read_object(path: str, doing: str) -> Dict[str, Any]:
    """The JSON object of ``path``, its merges emptied and ``model.vocab`` to be parsed when it is asked for.

    :param doing: the phrase for the error ("reading the target's tokenizer.json").
    :raises InputError: unreadable, too large, empty, not UTF-8, not JSON, or not an object.
    """
    # The name of the whole file's bytes goes to what is left of them, so that they are not held.
    raw = read_bytes(path, doing, TOKENIZER.bytes)
    if not raw:
        raise broken(doing, f"{path!r} is empty", "a JSON object")
    raw, vocabularies = without_long_parts(raw, TOKENIZER.values)
    try:
        value = _parse(raw)
    except UnicodeDecodeError as exc:  # where it is cannot be counted any more, so it is shown
        near = repr(raw[max(0, exc.start - 20) : exc.end + 20])
        raise broken(doing, f"{path!r} is not UTF-8 near {near}", "a JSON object in UTF-8") from exc
    except json.JSONDecodeError as exc:
        near = repr(exc.doc[max(0, exc.pos - 20) : exc.pos + 20])
        raise broken(doing, f"{path!r} is not JSON: {exc.msg} near {near}", "a JSON object") from exc
    except ValueError as exc:
        raise broken(doing, f"{path!r} is not JSON: {exc}", "a JSON object") from exc
    if not isinstance(value, dict):
        raise broken(doing, f"{path!r} holds a JSON {type(value).__name__}", "a JSON object")
    model = value.get("model")
    if isinstance(model, dict) and isinstance(model.get("vocab"), str):
        model["vocab"] = vocabularies.get(model["vocab"], model["vocab"])
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


def broken(doing: str, observed: str, expected: str) -> InputError:
    """The one error of this file's readers."""
    return InputError(doing, observed, expected, FETCH_AGAIN, code=CODE)
