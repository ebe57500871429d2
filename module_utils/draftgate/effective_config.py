"""The config that the engine is given: the drafter's own with the operator's overrides, in a directory of
links. A download is never edited, so its digest stays what it was.
"""

from __future__ import annotations

import copy
import json
import os
import tempfile
from typing import Any, Dict, Mapping

from .errors import InputError
from .files import fsync_directory, make_directory, write_json

CONFIG_NAME = "config.json"


def merge(config: Mapping[str, Any], overrides: Any) -> Dict[str, Any]:
    """``config`` with ``overrides`` on it; neither is changed.

    Objects merge key by key, everything else (lists too) is replaced, null removes the key.

    :raises InputError: the overrides are no dict, or hold what JSON cannot.
    """
    doing = "reading drafter_overrides"
    if not isinstance(overrides, Mapping):
        raise InputError(doing, f"they are {overrides!r}", "a dict of config.json fields")
    try:
        json.dumps(overrides, allow_nan=False)
    except (TypeError, ValueError) as exc:
        raise InputError(doing, f"they cannot be written as JSON: {exc}", "JSON values") from exc
    dotted = next((key for key in overrides if "." in str(key)), None)
    if dotted is not None:
        raise InputError(doing, f"{dotted!r} is a key with a dot in it", "objects in objects")
    return _merged(config, overrides)


def _merged(config: Mapping[str, Any], overrides: Mapping[str, Any]) -> Dict[str, Any]:
    result = copy.deepcopy(dict(config))
    for key, value in overrides.items():
        if value is None:
            result.pop(key, None)
        elif isinstance(value, Mapping):
            base = result.get(key)
            result[key] = _merged(base if isinstance(base, Mapping) else {}, value)
        else:
            result[key] = copy.deepcopy(value)
    return result


def is_written(dest: str, drafter_dir: str, effective: Mapping[str, Any]) -> bool:
    """Whether ``dest`` holds exactly this config and these links."""
    try:
        with open(os.path.join(dest, CONFIG_NAME), encoding="utf-8") as handle:
            config = json.load(handle)
        names = [name for name in os.listdir(dest) if name != CONFIG_NAME]
        links = {name: os.readlink(os.path.join(dest, name)) for name in names}
    except (OSError, ValueError):  # absent, a file in place of a link, half written
        return False
    return bool(config == effective and links == _links(drafter_dir))


def write(dest: str, drafter_dir: str, effective: Mapping[str, Any]) -> bool:
    """Make ``dest`` the effective drafter: ``config.json`` and an absolute link to each other file.

    Built beside ``dest`` and renamed: what a kill leaves, the next run makes whole.

    :returns: whether anything changed.
    """
    if is_written(dest, drafter_dir, effective):
        return False
    parent, name = os.path.split(os.path.abspath(dest))
    make_directory(parent)
    with tempfile.TemporaryDirectory(prefix=f".{name}.", dir=parent) as work:
        building = os.path.join(work, "new")
        write_json(os.path.join(building, CONFIG_NAME), effective)
        for link, target in _links(drafter_dir).items():
            os.symlink(target, os.path.join(building, link))
        if os.path.lexists(dest):
            os.rename(dest, os.path.join(work, "old"))
        os.rename(building, dest)
    fsync_directory(parent)
    return True


def _links(drafter_dir: str) -> Dict[str, str]:
    source = os.path.abspath(drafter_dir)
    names = [name for name in os.listdir(source) if name != CONFIG_NAME and not name.startswith(".")]
    return {name: os.path.join(source, name) for name in names}
