"""Run a module's logic from the host's agent instead of from the module's payload.

A module ships what it imports with every call, and the host compiles it every time. The agent is on the host
already: a module that runs from it stays small however much the logic grows. Where the host lacks the
controller's agent (a bare host, a newer checkout) the module says so and is called again with the archive.
"""

from __future__ import annotations

import base64
import importlib
import os
import sys
from typing import Any, Callable, Dict

from . import agent
from .layout import Home

MISSING = "agent_missing"

ARGUMENTS: Dict[str, Any] = {
    "agent": {"type": "str", "default": ""},
    "agent_archive": {"type": "str", "default": "", "no_log": True},  # no secret: long
}
"""Filled in by the action plugin; part of such a module's argument spec."""

Execute = Callable[..., Dict[str, Any]]


def run(module: Any, name: str) -> None:
    """End ``module`` with what ``draftgate.<name>.module_result(params, check_mode)`` returns or raises."""
    given = module.params
    place = _place(module, given)
    if not place:
        module.exit_json(changed=False, **{MISSING: True})
    sys.dont_write_bytecode = True  # check mode writes nothing, not even this
    sys.path.insert(0, place)
    logic = importlib.import_module(f"{agent.PACKAGE}.{name}")
    glue = importlib.import_module(f"{agent.PACKAGE}.ansible_glue")
    glue.run_module(module, lambda: logic.module_result(given, module.check_mode))


def _place(module: Any, given: Dict[str, Any]) -> str:
    if not given["agent"]:
        module.fail_json(
            msg="Running the module: no agent came with it; expected its action plugin beside it. "
            "Run it in a checkout, whose ansible.cfg names action_plugins."
        )
    if given["agent_archive"]:
        path = os.path.join(module.tmpdir, "agent.zip")
        with open(path, "wb") as handle:
            handle.write(base64.b64decode(given["agent_archive"]))
        return path
    installed = Home.at(given["home"]).agent(given["agent"]) if given["home"] else ""
    return installed if installed and agent.is_whole(installed) else ""


class Shipment:
    """The controller's side: call a module, and again with the archive where the host lacks the agent.

    :param execute: ``ActionBase._execute_module``; :param variables: the task's.
    """

    def __init__(self, package_directory: str, execute: Execute, name: str, variables: Any) -> None:
        self.digest = agent.digest(package_directory)
        self._package, self._execute, self._name, self._variables = (
            package_directory,
            execute,
            name,
            variables,
        )
        self._archive = ""

    def call(self, arguments: Dict[str, Any]) -> Dict[str, Any]:
        """The module's result."""
        known = {**arguments, "agent": self.digest}
        if not self._archive:
            result = self._once(known)
            if not result.get(MISSING):
                return result
            self._archive = base64.b64encode(agent.build(self._package)[1]).decode("ascii")
        return self._once({**known, "agent_archive": self._archive})

    def _once(self, arguments: Dict[str, Any]) -> Dict[str, Any]:
        return self._execute(module_name=self._name, module_args=arguments, task_vars=self._variables)
