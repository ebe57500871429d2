# Copyright: Draftgate contributors
# SPDX-License-Identifier: Apache-2.0
"""Show the contract's verdict as a table, and keep it on the controller where the task asks for that.

Two arguments are for this side alone: ``reports_dir``, below which ``<host>/preflight.json`` is written, and
``show``: ``findings`` shows the table where there are any, ``always`` in any case.
"""

from __future__ import annotations

import contextlib
import os
import sys
import time
from pathlib import Path
from typing import Any, Dict, Iterator, List, Mapping, Optional

from ansible.errors import AnsibleActionFail
from ansible.plugins.action import ActionBase
from ansible.utils.display import Display

_PACKAGES = Path(__file__).resolve().parent.parent / "module_utils"
if str(_PACKAGES) not in sys.path:  # plugins beside a playbook cannot import its module_utils otherwise
    sys.path.insert(0, str(_PACKAGES))

from draftgate import agent, agent_code, preflight, wishes  # noqa: E402 - needs the path above
from draftgate.argv import looks_secret, validate_args, validate_environment  # noqa: E402 - likewise
from draftgate.errors import InputError  # noqa: E402 - likewise
from draftgate.evidence import utc  # noqa: E402 - likewise
from draftgate.files import write_json  # noqa: E402 - likewise

_SHOWN = frozenset(("findings", "inferred", "effective_config", "comparison", "error"))


class ActionModule(ActionBase):
    """``drafter_contract`` as a task."""

    def run(self, tmp: Optional[str] = None, task_vars: Optional[Dict[str, Any]] = None) -> Dict[str, Any]:
        super().run(tmp, task_vars)
        variables = task_vars or {}
        given = dict(self._task.args)
        reports, show = str(given.pop("reports_dir", "") or ""), given.pop("show", "findings")
        refused = _refused(given, list(variables))
        for name in ("environment", "server"):
            given[name] = _shown(given.get(name) or {})
        path = "" if self._task.check_mode or not reports else _path(reports, variables["inventory_hostname"])
        if path:
            _remove(path)  # what cannot be judged now leaves no verdict of an earlier wish
        package = str(_PACKAGES / agent.PACKAGE)
        result = agent_code.Shipment(package, self._execute_module, "drafter_contract", variables).call(given)
        if "findings" not in result:  # the wish could not be understood
            return result
        if refused:
            told = f"{result['msg']} {refused}" if result.get("failed") else refused
            result = {**result, "failed": True, "msg": told}
        subject = _subject(given, variables["inventory_hostname"])
        notes = preflight.acceptance_notes(given.get("accept_findings") or [], result["findings"])
        if result["findings"] or notes or show == "always":
            Display().display(f"\n{preflight.table(subject, result, notes, refused)}\n")
        if path:
            _write(path, {"time": utc(time.time()), **preflight.document(subject, result, refused)})
        return result if Display().verbosity or not result.get("failed") else _brief(result)


def _refused(given: Mapping[str, Any], names: List[str]) -> str:
    """What a deploy would refuse whatever the files say: misspelt variables, arguments, environment."""
    unknown = wishes.unknown(names)
    if unknown:
        return unknown
    try:
        preflight.check_gpu(given.get("gpu") or {})
        validate_args(given.get("server") or {})
        validate_environment(given.get("environment") or {})
    except InputError as exc:
        return str(exc)
    except (AttributeError, TypeError):
        return ""  # no dicts: the module refuses them
    return ""


def _path(reports: str, host: str) -> str:
    return os.path.join(os.path.expanduser(reports), host, "preflight.json")


def _shown(given: Any) -> Any:
    """Without secrets, which no rule reads: Ansible shows a module's arguments with -vvv, and logs them."""
    if not isinstance(given, Mapping):
        return given  # the module refuses it
    return {key: value for key, value in given.items() if not looks_secret(str(key), str(value))}


def _remove(path: str) -> None:
    with _named(path), contextlib.suppress(FileNotFoundError, NotADirectoryError):
        os.unlink(path)


def _write(path: str, document: Dict[str, Any]) -> None:
    with _named(path):
        write_json(path, document)


@contextlib.contextmanager
def _named(path: str) -> Iterator[None]:
    """What cannot be written names the variable that says where."""
    try:
        yield
    except OSError as exc:
        step = "Set draftgate_reports_dir to a directory of the controller, or to nothing."
        raise AnsibleActionFail(f"writing {path!r}: {exc.strerror}. {step}") from exc


def _subject(given: Dict[str, Any], host: str) -> preflight.Subject:
    return preflight.Subject(
        host,
        str(given["drafter"]),
        str(given["target"]),
        {"name": "vllm", **given["engine"]},
        given.get("gpu") or {},
        int(given["num_speculative_tokens"]),
    )


def _brief(result: Dict[str, Any]) -> Dict[str, Any]:
    """A failure without what the table says already: Ansible prints it all."""
    return {key: value for key, value in result.items() if key not in _SHOWN}
