# Copyright: Draftgate contributors
# SPDX-License-Identifier: Apache-2.0
"""The controller's side of the ``release`` module: what it ships, what it shows, what it keeps.

It decides nothing. The verdict is the host job's; a controller that dies here loses only the view.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any, Dict, Optional

from ansible import context
from ansible.errors import AnsibleActionFail
from ansible.plugins.action import ActionBase
from ansible.utils.display import Display
from ansible.utils.vars import load_extra_vars

_PACKAGES = Path(__file__).resolve().parent.parent / "module_utils"
if str(_PACKAGES) not in sys.path:  # plugins beside a playbook cannot import its module_utils otherwise
    sys.path.insert(0, str(_PACKAGES))

from draftgate import agent, agent_code, controller, repeat  # noqa: E402 - needs the path above

_FOLLOWED = ("switched", "restored")


class ActionModule(ActionBase):
    """``release`` as a task."""

    def run(self, tmp: Optional[str] = None, task_vars: Optional[Dict[str, Any]] = None) -> Dict[str, Any]:
        super().run(tmp, task_vars)
        variables = task_vars or {}
        given = self._shipped(dict(self._task.args))
        reports, state = str(given.pop("reports_dir", "") or ""), given.get("state")

        package = str(_PACKAGES / agent.PACKAGE)
        shipment = agent_code.Shipment(package, self._execute_module, "release", variables)

        def execute(more: Dict[str, Any]) -> Dict[str, Any]:
            return shipment.call({**given, **more})

        if state not in _FOLLOWED or self._task.check_mode:
            result = execute({})
        else:
            result = controller.follow(execute, Display().display, variables["inventory_hostname"], "switch")
        self._report(result, reports, variables["inventory_hostname"], given, attempted=state in _FOLLOWED)
        return result if Display().verbosity else controller.brief(result)

    def _shipped(self, given: Dict[str, Any]) -> Dict[str, Any]:
        """The arguments with the prompt set's content filled in."""
        path = given.pop("prompts_path", "")
        if path:
            try:
                given["prompts"] = Path(os.path.expanduser(path)).read_text(encoding="utf-8")
            except (OSError, ValueError) as exc:
                raise AnsibleActionFail(f"Reading the prompt set {path}: {exc}") from exc
        return given

    def _report(
        self, result: Dict[str, Any], reports: str, host: str, given: Dict[str, Any], *, attempted: bool
    ) -> None:
        """Keep the evidence and show the table: of an attempt, or of what serves when nothing changed."""
        shows = attempted or result.get("unchanged")
        if not shows or self._task.check_mode:
            return
        if reports:
            command = repeat.command(
                context.CLIARGS, host, load_extra_vars(self._loader), os.getcwd(), sys.argv[0]
            )
            controller.write_reports(reports, host, result, attempted, command)
        table = controller.summary(result, host, str(given.get("prompts") or ""), reports)
        if table:
            Display().display(f"\n{table}\n")
