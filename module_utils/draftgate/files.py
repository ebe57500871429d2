"""Files that survive a kill: atomic writes, fsynced appends, and JSON read with one clear error."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import stat
import tempfile
from typing import Any, Callable, Dict

from .errors import InputError


def is_no_room(exc: BaseException) -> bool:
    """Whether it is a full disk, or a quota that is used up."""
    return isinstance(exc, OSError) and exc.errno in (errno.ENOSPC, errno.EDQUOT)


def fsync_directory(path: str) -> None:
    """Make a rename or a new name in ``path`` durable."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def make_directory(path: str, mode: int = 0o755) -> None:
    """Make ``path``, and its missing parents with 0755; nothing where it is there already.

    The mode whatever the umask: 000 would let everybody write, 077 would hide models from the engine's user.

    :raises FileExistsError: something else has that name.
    """
    parent = os.path.dirname(os.path.abspath(path))
    if not os.path.isdir(parent):
        make_directory(parent)
    try:
        os.mkdir(path, mode)
        os.chmod(path, stat.S_IMODE(os.stat(path).st_mode) | mode)  # a setgid bit is inherited and stays
    except FileExistsError:
        if not os.path.isdir(path):
            raise
    else:
        fsync_directory(parent)  # or a power cut takes it, with the fsynced files in it


def write_atomic(path: str, data: bytes, mode: int = 0o644) -> None:
    """Replace ``path`` as a whole: after a crash it holds the old bytes or the new ones, never a mix."""
    directory = os.path.dirname(os.path.abspath(path))
    make_directory(directory)
    descriptor, temporary = tempfile.mkstemp(prefix=f".{os.path.basename(path)}.", dir=directory)
    try:
        with os.fdopen(descriptor, "wb") as handle:
            os.fchmod(handle.fileno(), mode)
            handle.write(data)
            handle.flush()
            os.fsync(handle.fileno())
        os.replace(temporary, path)
    except BaseException:
        with contextlib.suppress(FileNotFoundError):  # interrupted just after the rename
            os.unlink(temporary)
        raise
    fsync_directory(directory)


def write_changed(path: str, text: str, mode: int = 0o644) -> bool:
    """``text`` into ``path``, atomically, unless it holds that already; whether it was written."""
    data = text.encode("utf-8")
    with contextlib.suppress(OSError), open(path, "rb") as handle:
        if handle.read() == data:
            return False
    write_atomic(path, data, mode)
    return True


def write_json(path: str, value: Any, mode: int = 0o644) -> None:
    """``value`` as readable JSON, atomically. NaN is refused (``ValueError``)."""
    text = json.dumps(value, indent=2, sort_keys=True, ensure_ascii=False, allow_nan=False)
    write_atomic(path, (text + "\n").encode("utf-8"), mode)


def _load(path: str) -> Any:
    with open(path, "rb") as handle:
        return json.loads(handle.read().decode("utf-8"))


def read_json(path: str, doing: str, load: Callable[[str], Any] = _load) -> Dict[str, Any]:
    """A JSON object from ``path``.

    :param doing: the phrase for the error ("reading the target's config.json").
    :param load: from the path to the value; its OSError and ValueError are what went wrong.
    :raises InputError: missing, a directory, not UTF-8, not JSON, or not an object.
    """
    expected = "a JSON object"
    try:
        value = load(path)
    except OSError as exc:
        observed, expected = f"cannot be read: {exc.strerror}", "a readable file"
        raise InputError(doing, f"{path!r} {observed}", expected) from exc
    except UnicodeDecodeError as exc:
        observed = f"is not UTF-8 (byte {exc.start})"
        raise InputError(doing, f"{path!r} {observed}", f"{expected} in UTF-8") from exc
    except ValueError as exc:
        raise InputError(doing, f"{path!r} is not JSON: {exc}", expected) from exc
    if not isinstance(value, dict):
        raise InputError(doing, f"{path!r} holds a JSON {type(value).__name__}", expected)
    return value
