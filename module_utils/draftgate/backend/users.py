"""Whom an engine runs as under systemd, and whether that user can get at what it needs."""

from __future__ import annotations

import grp
import os
import pwd
import re
import stat
from typing import Any, Iterator, List, Mapping, Optional, Sequence

from ..errors import HostError, InputError

SYSTEMD = "systemd"
HIDDEN = ("/home", "/root", "/run/user", "/tmp", "/var/tmp")
"""What the unit's ProtectHome and PrivateTmp hide (systemd.exec(5))."""
GPU_GROUPS = ("render", "video")
"""Own /dev/kfd and /dev/dri; NVIDIA's nodes are open to all unless the driver was told otherwise."""


def engine_user(manager: str, wanted: str) -> str:
    """Whom the engines run as: under systemd ``wanted``, elsewhere empty (there is no choice).

    :raises InputError: root, or no name of a user.
    """
    if manager != SYSTEMD:
        return ""
    if wanted == "root" or not re.fullmatch(r"[a-z_][a-z0-9_-]{0,30}", wanted):
        step = "Set draftgate_user to a user of its own; the deploy creates it."
        expected = "the name of a system user that is not root"
        raise InputError("reading draftgate_user", repr(wanted), expected, step, code="DG161")
    return wanted


def entry(user: str) -> Optional[pwd.struct_passwd]:
    """The user's account, None where there is none."""
    try:
        return pwd.getpwnam(user)
    except KeyError:
        return None


def required_entry(user: str) -> pwd.struct_passwd:
    """:raises HostError: there is no such user."""
    found = entry(user)
    if found is None:
        step = (
            f"Deploy again, or create it: useradd --system --no-create-home --shell /usr/sbin/nologin {user}"
        )
        observed = f"this host has no user {user!r}"
        raise HostError("preparing the engine's user", observed, "", step, code="DG161")
    return found


def gpu_groups(names: Sequence[str] = GPU_GROUPS) -> List[str]:
    """Those that this host has: systemd refuses to start a unit that names another."""
    known = {group.gr_name for group in grp.getgrall()}
    return [name for name in names if name in known]


def require_reachable(place: Mapping[str, Any]) -> None:
    """Refuse a place whose home or runtimes the engine's user cannot get at. Reads only.

    :param place: with ``user`` (nothing is refused when it is empty), ``home`` and ``runtimes``.
    :raises HostError: DG160, with the variable, and with what is in the way.
    """
    if not place["user"]:
        return
    for variable, path in (("draftgate_home", place["home"]), ("vllm_runtime_root", place["runtimes"])):
        problem = _problem(path, place["user"])
        if problem:
            raise HostError(
                "looking at the host",
                f"the engines' user {place['user']} cannot reach {variable} {path}: {problem}",
                "a directory that every user can reach, as /var/lib/draftgate",
                f"Set {variable}, or draftgate_service_backend: supervisord to run the engine as root.",
                code="DG160",
            )


def _problem(path: str, user: str) -> str:
    """Empty when nothing is in the way."""
    real = os.path.realpath(path)
    for hidden in HIDDEN:
        if _is_below(real, hidden) or _is_below(real, os.path.realpath(hidden)):
            return f"the unit hides {hidden} from it"
    closed = next((each for each in _existing(real) if not _may_enter(each, user)), None)
    return f"{closed} is closed to it" if closed else ""


def _is_below(path: str, directory: str) -> bool:
    return path == directory or path.startswith(directory.rstrip("/") + "/")


def _existing(path: str) -> Iterator[str]:
    """``path`` and its parents, the root first, as far as they are there."""
    parent = os.path.dirname(path)
    if parent != path:
        yield from _existing(parent)
    if os.path.isdir(path):
        yield path


def _may_enter(directory: str, user: str) -> bool:
    """By the mode alone; a user who is yet to be made is one of the others."""
    found, account = os.stat(directory), entry(user)
    if account and found.st_uid == account.pw_uid:
        return bool(found.st_mode & stat.S_IXUSR)
    if account and found.st_gid in os.getgrouplist(user, account.pw_gid):
        return bool(found.st_mode & stat.S_IXGRP)
    return bool(found.st_mode & stat.S_IXOTH)
