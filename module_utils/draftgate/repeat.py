"""The command that does a run of a playbook again, without a secret in it."""

from __future__ import annotations

import json
import os
import shlex
from typing import Any, Dict, List, Mapping, Tuple

from .argv import looks_secret
from .variables import SECRET, VARIABLES

_DEPLOY = "deploy.yml"
_RETRY = "acceptance_retry"
_UNTOLD = "…"


PROGRAM = "ansible-playbook"


def command(
    options: Mapping[str, Any], host: str, given: Mapping[str, Any], directory: str, program: str = PROGRAM
) -> str:
    """``ansible-playbook deploy.yml -i … --limit HOST -e …``, for a shell.

    A variable that is none of ours is left out: it may be anything, a password among them.

    :param options: Ansible's parsed command line: ``args`` (playbooks), ``inventory``.
    :param host: the inventory's name.
    :param given: the variables given by ``-e``, merged.
    :param directory: paths below it are told relative to it.
    :param program: how Ansible was called; it may lie in an environment that is not in PATH.
    """
    arguments = options.get("args") or ()
    named = [arguments] if isinstance(arguments, str) else [str(argument) for argument in arguments]
    playbooks = [name for name in named if name.endswith((".yml", ".yaml"))] or [_DEPLOY]
    called = told(program, directory) if os.path.basename(program) == PROGRAM else PROGRAM
    words = [called, *(told(path, directory) for path in playbooks)]
    for inventory in options.get("inventory") or ():
        words += ["-i", told(str(inventory), directory)]
    words += ["--limit", host]
    if any(os.path.basename(path) == _DEPLOY for path in playbooks):  # a rollback always measures
        words += ["-e", f"{_RETRY}=true"]
    known, untold = _variables(given)
    words += ["-e", json.dumps(known, ensure_ascii=False, sort_keys=True)] if known else []
    for name in untold:
        words += ["-e", f"{name}={_UNTOLD}"]
    return " ".join(shlex.quote(word) for word in words)


def told(path: str, directory: str) -> str:
    """``path`` as one types it in ``directory``."""
    return os.path.relpath(path, directory) if path.startswith(directory.rstrip("/") + "/") else path


def _variables(given: Mapping[str, Any]) -> Tuple[Dict[str, Any], List[str]]:
    """(variables with their values, names of those whose value is not told)."""
    known: Dict[str, Any] = {}
    untold: List[str] = []
    for name in sorted(set(given) & set(VARIABLES) - {_RETRY}):
        if VARIABLES[name].part == SECRET or _may_be_secret(name, given[name]):
            untold.append(name)
        else:
            known[name] = given[name]
    return known, untold


def _may_be_secret(name: str, value: Any) -> bool:
    """Whether it looks like one, somewhere inside; what is no JSON is an encrypted value."""
    if isinstance(value, Mapping):
        return any(_may_be_secret(str(key), inner) for key, inner in value.items())
    if isinstance(value, (list, tuple)):
        return any(_may_be_secret(name, inner) for inner in value)
    if value is None or isinstance(value, bool):
        return False
    return not isinstance(value, (str, int, float)) or looks_secret(name, str(value))
