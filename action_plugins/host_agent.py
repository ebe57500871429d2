# Copyright: Draftgate contributors
# SPDX-License-Identifier: Apache-2.0
"""Ship the agent: the archive of ``module_utils/draftgate`` and supervisord's lock go with the module."""

from __future__ import annotations

import base64
import sys
from pathlib import Path
from typing import Any, Dict, Optional

from ansible.plugins.action import ActionBase

_ROOT = Path(__file__).resolve().parent.parent
if (
    str(_ROOT / "module_utils") not in sys.path
):  # plugins beside a playbook cannot import its module_utils otherwise
    sys.path.insert(0, str(_ROOT / "module_utils"))

from draftgate import agent  # noqa: E402 - needs the path above


class ActionModule(ActionBase):
    """``host_agent`` as a task."""

    def run(self, tmp: Optional[str] = None, task_vars: Optional[Dict[str, Any]] = None) -> Dict[str, Any]:
        super().run(tmp, task_vars)
        digest, archive = agent.build(str(_ROOT / "module_utils" / agent.PACKAGE))
        shipped = {
            **self._task.args,
            "digest": digest,
            "archive": base64.b64encode(archive).decode("ascii"),
            "supervisor_lock": (_ROOT / "locks" / "supervisor.txt").read_text(encoding="utf-8"),
        }
        result: Dict[str, Any] = self._execute_module(
            module_name="host_agent", module_args=shipped, task_vars=task_vars
        )
        return result
