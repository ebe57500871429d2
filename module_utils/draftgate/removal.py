"""What goes away: old releases, and a whole installation."""

from __future__ import annotations

import os
import shutil
from typing import Any, Dict, Iterable, List, Mapping

from . import front, host
from .backend.base import Backend
from .clocks import Clocks
from .errors import HostError
from .files import read_json
from .gateway import Gateway
from .gateway_server import Nginx
from .journal import Journal, finished
from .layout import Home
from .spec import deployment
from .status import SWITCH_JOB

CACHES = ("cache", "models", "runtimes")
"""What a teardown keeps unless asked: expensive to make again, of no effect by itself."""

OURS = ("agent", "bin", "evidence", "logs", "prompts", "releases", "run", "secrets", "state", "supervisor")
_KEPT_JOURNALS = 50


def absent(home: Home, backend: Backend, purge: bool, check: bool) -> Dict[str, Any]:
    """Leave no process, no port and no file but the caches this returns by name.

    Only what an installation makes is removed; what else lies in the directory stays and is named.

    :raises HostError: the directory does not look like an installation.
    """
    if not os.path.isdir(home.root):
        return {"changed": False, "kept": []}
    names = _names(home)
    strange = [name for name in names if name not in (*OURS, *CACHES)]
    if strange and not os.path.isdir(home.path("state")) and not os.path.islink(home.agent_current):
        raise HostError(
            "removing the installation",
            f"{home.root} holds {', '.join(strange[:3])} and no installation",
            "a draftgate_home that a deploy has made",
            "Nothing was removed. Set draftgate_home to the installation's directory.",
        )
    ours = (*OURS, *CACHES) if purge else OURS
    changed = any(name in ours for name in names)
    if changed and not check:
        _stop(home, backend)
        names = _names(home)  # only now: what ran until now has written too
        remove(home.path(name) for name in names if name in ours)
        if not os.listdir(home.root) and not os.path.islink(home.root):
            os.rmdir(home.root)
    return {"changed": changed, "kept": [home.path(name) for name in names if name not in ours]}


def _names(home: Home) -> List[str]:
    return sorted(os.listdir(home.root)) if os.path.isdir(home.root) else []


def _stop(home: Home, backend: Backend) -> None:
    """The switch first: it would start engines again, and lead the front and write its record again."""
    backend.remove_job(SWITCH_JOB)
    stored = front.read(home)
    if stored:
        Gateway(home, Nginx.of(stored["nginx"])).absent(check=False)
    backend.shutdown()


def remove(paths: Iterable[str]) -> None:
    """Files, links and trees. What a shutdown has removed already is no error."""
    for path in paths:
        if os.path.isdir(path) and not os.path.islink(path):
            shutil.rmtree(path)
        elif os.path.lexists(path):
            os.unlink(path)


def pruned(home: Home, keep: int, check: bool) -> Dict[str, Any]:
    """Remove what nothing refers to any more, beyond the ``keep`` newest releases.

    The active and the previous release, those of an open switch and of the last wish, their secrets, the
    agent in use and all evidence stay.
    """
    needed = _needed(home)
    releases = {deployed["release"] for deployed in needed}
    secrets = {
        os.path.basename(home.secret(name, value))
        for deployed in needed
        for name, value in deployed["place"]["secrets"].items()
    }
    # systemd reads these at each start of an engine, the automatic one after a death included
    environments = {f"{host.service_name(deployed['id'])}.env" for deployed in needed}
    doomed = [
        *_beyond(os.path.dirname(home.release("x")), keep, releases),
        *_beyond(home.finished_journals, _KEPT_JOURNALS, set()),
        *_beyond(home.secrets, 0, secrets | environments | {"key"}),
        *_beyond(os.path.dirname(home.agent_current), 0, {"current", _target(home.agent_current)}),
    ]
    if not check:
        remove(doomed)
    return {"changed": bool(doomed), "removed": [os.path.relpath(path, home.root) for path in doomed]}


def _needed(home: Home) -> List[Mapping[str, Any]]:
    """The deployments that may be started yet.

    Read in the order in which a deployment passes: one that moves on meanwhile is seen at its next place.
    """
    found: List[Any] = []
    if os.path.exists(home.wish):
        found.append(deployment(read_json(home.wish, "reading the last wish")["spec"]))
    entries = Journal(home.journal, Clocks().now).entries()
    if not finished(entries):
        found += [entries[0].get(part) for part in ("candidate", "fallback", "previous")]
    active = host.read_active(home) or {}
    found += [active.get("deployment"), active.get("previous")]
    return [deployed for deployed in found if deployed]


def _beyond(directory: str, keep: int, needed: Iterable[str]) -> List[str]:
    """Paths in ``directory`` that are neither needed nor among the ``keep`` newest of the others."""
    needed = set(needed)
    names = os.listdir(directory) if os.path.isdir(directory) else []
    paths = [os.path.join(directory, name) for name in names if name not in needed]
    return sorted(paths, key=lambda path: os.lstat(path).st_mtime, reverse=True)[keep:]


def _target(link: str) -> str:
    return os.path.basename(os.readlink(link)) if os.path.islink(link) else ""
