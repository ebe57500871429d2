"""Models under the digest of their content: a server outlives the directory that it came from.

Everything that an engine may read counts. Hidden files (``.git``, ``.cache``) and ``*.md`` do not: a
corrected model card is no other model.
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
import shutil
import stat
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from typing import Any, Callable, Dict, Iterator, List, Mapping, NamedTuple, Optional, Set

from .canonical import digest as digest_of
from .canonical import file_digest
from .errors import HostError, InputError
from .files import fsync_directory, make_directory, write_json
from .layout import Home

_CHUNK = 1 << 30
_NO_COPY_RANGE = (errno.EXDEV, errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP, errno.EPERM)
_GIB = float(1 << 30)


class File(NamedTuple):
    """One file that counts: ``name`` is relative to the model, with ``/``."""

    name: str
    bytes: int
    sha256: str


@dataclass(frozen=True)
class Content:
    """A model's content: ``digest`` is over the sorted names and their SHA-256."""

    digest: str
    bytes: int
    files: List[File]


@dataclass(frozen=True)
class StoredModel:
    """A model and where it lies, or would lie, in the store."""

    path: str
    source: str
    digest: str
    bytes: int
    files: List[File]
    changed: bool

    def as_dict(self) -> Dict[str, Any]:
        value = asdict(self)
        value["files"] = [file._asdict() for file in self.files]
        return value


def content_digest(path: str, cache_path: Optional[str], remember: bool = True) -> Content:
    """Digest of a local model directory.

    :param cache_path: JSON of digests by path, size, mtime and inode, so that an unchanged model is not
        read again (54 GB take minutes); None: no cache. Losing it costs time, nothing else.
    :param remember: write what was learnt to the cache; false in check mode.
    :raises InputError: DG601 (no directory, or empty), DG602 (something that is no plain file).
    :raises HostError: DG604 (a file changed while it was read).
    """
    root = os.path.abspath(os.path.expanduser(path))
    cache = _read_cache(cache_path)
    known = dict(cache)
    files = [_described(root, name, known) for name in _names(root)]
    if cache_path and remember and known != cache:
        write_json(cache_path, known)
    pairs = [[file.name, file.sha256] for file in files]
    return Content(digest_of(pairs), sum(file.bytes for file in files), files)


def inspect(home: Home, path: str, remember: bool = True) -> StoredModel:
    """What :func:`ensure` would do; ``changed`` says whether it would copy. The store is not touched."""
    source = os.path.abspath(os.path.expanduser(path))
    content = content_digest(source, _cache(home), remember)
    return StoredModel(
        home.model(content.digest),
        source,
        content.digest,
        content.bytes,
        content.files,
        changed=not _is_stored(home, content, remember),
    )


def ensure(home: Home, path: str, free_bytes: Optional[Callable[[str], int]] = None) -> StoredModel:
    """Have the model in the store, whole and verified.

    The copy is made beside its place under a lock and renamed when every file has the digest of its
    source; a killed copy goes on where it stopped.

    :param free_bytes: free bytes at a path (for tests).
    :raises HostError: DG603 (no room), DG604 (the source changed meanwhile).
    """
    wanted = inspect(home, path)
    if not wanted.changed:
        return wanted
    content = Content(wanted.digest, wanted.bytes, wanted.files)
    partial = _partial(wanted.path)
    make_directory(partial)
    with _locked(partial):
        if _is_stored(home, content, True):  # another run was first
            return wanted
        _remove_strays(partial, {file.name for file in content.files})
        todo = [file for file in content.files if not _is_copied(partial, file)]
        _require_room(os.path.dirname(partial), sum(file.bytes for file in todo), free_bytes or _free_bytes)
        for file in todo:
            _copy(wanted.source, partial, file)
        _put_in_place(partial, wanted.path)
    content_digest(wanted.path, _cache(home))  # the next run reads no weights of the copy either
    return wanted


def converge(home: Home, models: Mapping[str, Any], wanted_present: bool, check_mode: bool) -> Dict[str, Any]:
    """``{name: directory}`` → the module's result, with ``models`` and ``diff``."""
    stored: Dict[str, StoredModel] = {}
    for name, given in models.items():
        path = _directory(name, given)
        writes = wanted_present and not check_mode
        stored[name] = ensure(home, path) if writes else inspect(home, path, remember=not check_mode)
    before = {name: "" if model.changed else model.path for name, model in stored.items()}
    after = {name: model.path for name, model in stored.items()}
    return {
        "changed": wanted_present and any(model.changed for model in stored.values()),
        "models": {name: model.as_dict() for name, model in stored.items()},
        "diff": {"before": before, "after": after if wanted_present else before},
    }


def _directory(name: str, path: Any) -> str:
    if isinstance(path, str) and path:
        return path
    step = f"Set {name}_path, or leave {name} out."
    raise InputError(
        "reading the models", f"the path of {name} is {path!r}", "a directory", step, code="DG601"
    )


# --- what counts ---------------------------------------------------------------------------------------


def _names(root: str) -> List[str]:
    """Relative names of the files that count, sorted."""
    doing = "reading a model"
    step = "Set target_path or drafter_path to the model's directory on the host."
    if not os.path.isdir(root):
        what = "is a file" if os.path.exists(root) else "does not exist"
        raise InputError(doing, f"{root!r} {what}", "a directory", step, code="DG601")
    names: List[str] = []
    for directory, subdirectories, files in os.walk(root, onerror=_refuse):
        subdirectories[:] = [name for name in subdirectories if not name.startswith(".")]
        for name in subdirectories:
            _check_name(directory, name)
            if os.path.islink(os.path.join(directory, name)):
                raise _uncopyable(os.path.join(directory, name), "is a link to a directory")
        for name in files:
            if name.startswith(".") or name.lower().endswith(".md"):
                continue
            _check_name(directory, name)
            _check_file(root, os.path.join(directory, name))
            names.append(os.path.relpath(os.path.join(directory, name), root))
    if not names:
        raise InputError(doing, f"{root!r} has no files", "config.json and weights", step, code="DG601")
    return sorted(names)


def _refuse(exc: OSError) -> None:
    observed = f"{exc.filename!r} cannot be listed: {exc.strerror}"
    raise InputError("reading a model", observed, "a readable directory", code="DG601") from exc


def _check_name(directory: str, name: str) -> None:
    try:
        name.encode("utf-8")
    except UnicodeEncodeError:
        raise _uncopyable(os.path.join(directory, name), "has a name that is not UTF-8") from None


def _check_file(root: str, path: str) -> None:
    real_root, real = os.path.realpath(root), os.path.realpath(path)
    if os.path.commonpath([real_root, real]) != real_root:
        raise _uncopyable(path, f"is a link to {real!r}, outside of the model")
    try:
        mode = os.stat(path).st_mode
    except OSError as exc:
        raise _uncopyable(path, f"cannot be read: {exc.strerror}") from exc
    if not stat.S_ISREG(mode):
        raise _uncopyable(path, "is a pipe, socket or device")


def _uncopyable(path: str, what: str) -> InputError:
    shown = os.fsencode(path).decode("utf-8", "backslashreplace")
    step = "Copy the model to a plain directory (cp -rL) and name that."
    return InputError("reading a model", f"{shown!r} {what}", "plain files", step, code="DG602")


def _described(root: str, name: str, known: Dict[str, Any]) -> File:
    """Name, size and digest of one file; ``known`` is asked first and learns."""
    path = os.path.join(root, name)
    before = _stamp(path)
    entry = known.get(path)
    if not (isinstance(entry, list) and entry[:-1] == before):
        entry = [*before, file_digest(path)]
        if _stamp(path) != before:
            raise HostError(
                "reading a model", f"{path!r} changed while it was read", "a model at rest",
                "Wait until the writer is done and run again.", code="DG604",
            )  # fmt: skip
        known[path] = entry
    return File(name, before[0], entry[-1])


def _stamp(path: str) -> List[int]:
    status = os.stat(path)
    return [status.st_size, status.st_mtime_ns, status.st_ino]


def _cache(home: Home) -> str:
    return os.path.join(home.cache, "model_digests.json")


def _read_cache(path: Optional[str]) -> Dict[str, Any]:
    """An unreadable cache is an empty one: everything in it can be computed again."""
    if not path:
        return {}
    try:
        with open(path, encoding="utf-8") as handle:
            value = json.load(handle)
    except (OSError, ValueError):
        return {}
    return value if isinstance(value, dict) else {}


# --- copying -------------------------------------------------------------------------------------------


def _is_stored(home: Home, content: Content, remember: bool) -> bool:
    """Whether the store's copy is there and still has this content (one stat per file, as cached)."""
    path = home.model(content.digest)
    if not os.path.isdir(path):
        return False
    try:
        return content_digest(path, _cache(home), remember).digest == content.digest
    except InputError:
        return False


def _partial(path: str) -> str:
    parent, name = os.path.split(path)
    return os.path.join(parent, f".{name}.partial")


@contextmanager
def _locked(directory: str) -> Iterator[None]:
    """Two deploys of one model copy it once. The lock is the directory itself: a kill leaves none behind."""
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def _remove_strays(partial: str, wanted: Set[str]) -> None:
    """What else lies in a killed copy would become a part of the model."""
    for directory, _, files in os.walk(partial):
        for name in files:
            path = os.path.join(directory, name)
            if os.path.relpath(path, partial) not in wanted:
                os.unlink(path)


def _is_copied(partial: str, file: File) -> bool:
    path = os.path.join(partial, file.name)
    return os.path.isfile(path) and os.path.getsize(path) == file.bytes and file_digest(path) == file.sha256


def _free_bytes(path: str) -> int:
    status = os.statvfs(path)
    return status.f_bavail * status.f_frsize


def _require_room(path: str, needed: int, free_bytes: Callable[[str], int]) -> None:
    free = free_bytes(path)
    if free < needed:
        raise HostError(
            "copying a model into the store",
            f"{path!r} has {free / _GIB:.2f} GiB free and the copy needs {needed / _GIB:.2f} GiB",
            "",
            "Free some, or set draftgate_home to a larger file system.",
            code="DG603",
            details={"free_bytes": free, "needed_bytes": needed},
        )


def _copy(source: str, partial: str, file: File) -> None:
    """A copy of its own, never a hard link: an edit of the source must not reach what serves."""
    dest = os.path.join(partial, file.name)
    make_directory(os.path.dirname(dest))
    with open(os.path.join(source, file.name), "rb") as reader, open(dest, "wb") as writer:
        os.fchmod(writer.fileno(), 0o644)  # as every file we write, whatever the umask
        _copy_bytes(reader.fileno(), writer.fileno(), file.bytes)
        writer.flush()
        os.fsync(writer.fileno())
    if file_digest(dest) != file.sha256:
        raise HostError(
            "copying a model into the store",
            f"{file.name!r} came out different from what was read before",
            "the same bytes",
            "Something writes to the source, or the disk is damaged; run again when it is at rest.",
            code="DG604",
        )


def _copy_bytes(reader: int, writer: int, size: int) -> None:
    """The kernel copies (and shares blocks where the file system can); else byte by byte."""
    try:
        while os.copy_file_range(reader, writer, min(_CHUNK, max(size, 1))):
            pass
    except OSError as exc:
        if exc.errno not in _NO_COPY_RANGE:
            raise
        with os.fdopen(os.dup(reader), "rb") as source, os.fdopen(os.dup(writer), "wb") as dest:
            shutil.copyfileobj(source, dest, 1 << 20)


def _put_in_place(partial: str, path: str) -> None:
    """Rename; a damaged copy that is in the way goes first."""
    if os.path.lexists(path):
        shutil.rmtree(path)
    os.rename(partial, path)
    fsync_directory(os.path.dirname(path))
