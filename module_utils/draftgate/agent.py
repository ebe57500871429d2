"""The host's own copy of this package, as one digested archive.

Modules ship only what they import; the switch job needs all of it and must not need the controller.
"""

from __future__ import annotations

import hashlib
import io
import os
import shlex
import tempfile
import zipfile
from typing import Dict, List, Mapping, Tuple

from .canonical import short
from .errors import HostError
from .files import fsync_directory, make_directory, write_atomic, write_changed
from .layout import Home

PACKAGE = "draftgate"
_EPOCH = (1980, 1, 1, 0, 0, 0)  # zip's earliest date: the same sources give the same bytes


def build(package_directory: str) -> Tuple[str, bytes]:
    """``(digest, zip)`` of the ``.py`` files below a directory; the digest is of names and contents."""
    sources = _sources(package_directory)
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        for name in sorted(sources):
            archive.writestr(zipfile.ZipInfo(name, _EPOCH), sources[name], zipfile.ZIP_DEFLATED)
    return _digest(sources), buffer.getvalue()


def digest(package_directory: str) -> str:
    """That of :func:`build`, without packing anything."""
    return _digest(_sources(package_directory))


def _digest(sources: Mapping[str, bytes]) -> str:
    hasher = hashlib.sha256()
    for name in sorted(sources):
        hasher.update(f"{name}\0{len(sources[name])}\0".encode() + sources[name])
    return hasher.hexdigest()


def _sources(package_directory: str) -> Dict[str, bytes]:
    found: Dict[str, bytes] = {}
    for directory, folders, names in os.walk(package_directory):
        folders[:] = sorted(folder for folder in folders if folder != "__pycache__")
        for name in names:
            if name.endswith(".py"):
                path = os.path.join(directory, name)
                with open(path, "rb") as handle:
                    found[os.path.join(PACKAGE, os.path.relpath(path, package_directory))] = handle.read()
    return found


def installed(home: Home) -> str:
    """The first 12 hex digits of the agent in use; empty where none is, or a damaged one."""
    try:
        name = os.readlink(home.agent_current)
    except OSError:
        return ""
    return name if is_whole(home.path("agent", name)) else ""


def is_whole(target: str) -> bool:
    """Whether every file is what it was when it was sent: a power cut can leave empty ones."""
    try:
        return short(_digest(_sources(os.path.join(target, PACKAGE)))) == os.path.basename(target)
    except OSError:
        return False


def install(home: Home, digest: str, archive: bytes, python: str) -> bool:
    """Unpack the archive under its digest, point ``agent/current`` and ``bin/draftgate`` at it.

    :returns: whether anything changed. Safe to repeat and safe to be killed in.
    :raises HostError: the archive does not have the digest it was sent under.
    """
    target = home.agent(digest)
    changed = installed(home) != short(digest)
    if not is_whole(target):
        _unpack(target, digest, archive)
    _point(home.agent_current, os.path.basename(target))
    return _write_command(home, python) or changed


def _unpack(target: str, digest: str, archive: bytes) -> None:
    """Built beside ``target`` and renamed when it is on the disk; a damaged one goes aside."""
    with zipfile.ZipFile(io.BytesIO(archive)) as packed:
        sources = {name: packed.read(name) for name in packed.namelist()}
    found = _digest(sources)
    if found != digest:
        raise HostError("installing the host's agent", f"its digest is {short(found)}", short(digest))
    parent = os.path.dirname(target)
    make_directory(parent)
    with tempfile.TemporaryDirectory(prefix=".agent.", dir=parent) as work:
        building = os.path.join(work, "new")
        for name, data in sources.items():
            write_atomic(os.path.join(building, name), data)
        if os.path.lexists(target):
            os.rename(target, os.path.join(work, "old"))
        os.rename(building, target)
        fsync_directory(parent)


def _point(link: str, name: str) -> None:
    if os.path.islink(link) and os.readlink(link) == name:
        return
    scratch = f"{link}.{os.getpid()}"
    os.symlink(name, scratch)
    os.replace(scratch, link)


def _write_command(home: Home, python: str) -> bool:
    words: List[str] = [python, "-m", PACKAGE, "--home", home.root]
    script = (
        "#!/bin/sh\n"
        "# The host's own command: status, recover, evidence. Written by the deploy.\n"
        f'PYTHONPATH={shlex.quote(home.agent_current)} exec {" ".join(shlex.quote(w) for w in words)} "$@"\n'
    )
    return write_changed(home.command, script, 0o755)
