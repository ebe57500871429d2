"""Files that survive a kill: atomic writes, fsynced appends, and JSON read with one clear error."""

from __future__ import annotations

import json
import os
import tempfile
from typing import Any, Dict

from .errors import InputError


def fsync_directory(path: str) -> None:
    """Make a rename or a new name in ``path`` durable."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def write_atomic(path: str, data: bytes, mode: int = 0o644) -> None:
    """Replace ``path`` as a whole: after a crash it holds the old bytes or the new ones, never a mix."""
    directory = os.path.dirname(os.path.abspath(path))
    os.makedirs(directory, exist_ok=True)
    descriptor, temporary = tempfile.mkstemp(prefix=f".{os.path.basename(path)}.", dir=directory)
    try:
        with os.fdopen(descriptor, "wb") as handle:
            os.fchmod(handle.fileno(), mode)
            handle.write(data)
            handle.flush()
            os.fsync(handle.fileno())
        os.replace(temporary, path)
    except BaseException:
        os.unlink(temporary)
        raise
    fsync_directory(directory)


def write_json(path: str, value: Any, mode: int = 0o644) -> None:
    """``value`` as readable JSON, atomically. NaN is refused (``ValueError``)."""
    text = json.dumps(value, indent=2, sort_keys=True, ensure_ascii=False, allow_nan=False)
    write_atomic(path, (text + "\n").encode("utf-8"), mode)


def read_json(path: str, doing: str) -> Dict[str, Any]:
    """A JSON object from ``path``.

    :param doing: the phrase for the error ("reading the target's config.json").
    :raises InputError: missing, a directory, not UTF-8, not JSON, or not an object.
    """
    try:
        with open(path, "rb") as handle:
            raw = handle.read()
    except OSError as exc:
        raise InputError(doing, f"{path!r} cannot be read: {exc.strerror}", "a readable file") from exc
    try:
        value = json.loads(raw.decode("utf-8"))
    except UnicodeDecodeError as exc:
        raise InputError(
            doing, f"{path!r} is not UTF-8 (byte {exc.start})", "a JSON object in UTF-8"
        ) from exc
    except ValueError as exc:
        raise InputError(doing, f"{path!r} is not JSON: {exc}", "a JSON object") from exc
    if not isinstance(value, dict):
        raise InputError(doing, f"{path!r} holds a JSON {type(value).__name__}", "a JSON object")
    return value
