# Copyright: Draftgate contributors
# SPDX-License-Identifier: Apache-2.0
"""Show the runtime job's progress while the module waits for it."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any, Dict, Optional

from ansible.plugins.action import ActionBase
from ansible.utils.display import Display

_PACKAGES = Path(__file__).resolve().parent.parent / "module_utils"
if str(_PACKAGES) not in sys.path:  # plugins beside a playbook cannot import its module_utils otherwise
    sys.path.insert(0, str(_PACKAGES))

from draftgate import controller  # noqa: E402 - needs the path above


class ActionModule(ActionBase):
    """``vllm_runtime`` as a task."""

    def run(self, tmp: Optional[str] = None, task_vars: Optional[Dict[str, Any]] = None) -> Dict[str, Any]:
        super().run(tmp, task_vars)
        variables = task_vars or {}

        def execute(more: Dict[str, Any]) -> Dict[str, Any]:
            answer: Dict[str, Any] = self._execute_module(
                module_name="vllm_runtime", module_args={**self._task.args, **more}, task_vars=variables
            )
            return answer

        if self._task.check_mode:
            return execute({})
        return controller.follow(execute, Display().display, variables["inventory_hostname"], "runtime")
