"""The host's own copy of this package, as one digested archive.

Modules ship only what they import; the switch job needs all of it and must not need the controller.
"""

from __future__ import annotations

import hashlib
import io
import os
import shlex
import shutil
import tempfile
import zipfile
from typing import Dict, List, Tuple

from .canonical import short
from .errors import HostError
from .files import fsync_directory, write_atomic
from .layout import Home

PACKAGE = "draftgate"
_EPOCH = (1980, 1, 1, 0, 0, 0)  # zip's earliest date: the same sources give the same bytes


def build(package_directory: str) -> Tuple[str, bytes]:
    """``(digest, zip)`` of the ``.py`` files below a directory; the digest is of names and contents."""
    sources = _sources(package_directory)
    hasher = hashlib.sha256()
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        for name in sorted(sources):
            hasher.update(f"{name}\0{len(sources[name])}\0".encode() + sources[name])
            archive.writestr(zipfile.ZipInfo(name, _EPOCH), sources[name], zipfile.ZIP_DEFLATED)
    return hasher.hexdigest(), buffer.getvalue()


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
    """The first 12 hex digits of the agent in use, or an empty string."""
    try:
        return os.path.basename(os.readlink(home.agent_current))
    except OSError:
        return ""


def install(home: Home, digest: str, archive: bytes, python: str) -> bool:
    """Unpack the archive under its digest, point ``agent/current`` and ``bin/draftgate`` at it.

    :returns: whether anything changed. Safe to repeat and safe to be killed in.
    :raises HostError: the archive does not have the digest it was sent under.
    """
    target = home.agent(digest)
    changed = installed(home) != short(digest)
    if not os.path.isdir(target):
        _unpack(target, digest, archive)
        changed = True
    _point(home.agent_current, os.path.basename(target))
    return _write_command(home, python) or changed


def _unpack(target: str, digest: str, archive: bytes) -> None:
    parent = os.path.dirname(target)
    os.makedirs(parent, exist_ok=True)
    scratch = tempfile.mkdtemp(prefix=".agent.", dir=parent)
    try:
        with zipfile.ZipFile(io.BytesIO(archive)) as packed:
            packed.extractall(scratch)
        found = build(os.path.join(scratch, PACKAGE))[0]
        if found != digest:
            raise HostError("installing the host's agent", f"its digest is {short(found)}", short(digest))
        os.chmod(scratch, 0o755)
        os.rename(scratch, target)
    except BaseException:
        shutil.rmtree(scratch, ignore_errors=True)
        raise
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
    ).encode("utf-8")
    try:
        with open(home.command, "rb") as handle:
            if handle.read() == script:
                return False
    except FileNotFoundError:
        pass
    write_atomic(home.command, script, 0o755)
    return True
