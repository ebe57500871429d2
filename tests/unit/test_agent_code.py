"""The logic of a module that runs from the host's agent."""

from __future__ import annotations

import base64
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from draftgate import agent, agent_code
from draftgate.layout import Home

from tests.conftest import REPO, CallModule, RunModule

PACKAGE = str(REPO / "module_utils" / agent.PACKAGE)


def listing(root: Path) -> list[str]:
    return sorted(str(path.relative_to(root)) for path in root.rglob("*"))


def test_a_bare_host_is_sent_the_agent_and_keeps_nothing_of_it(tmp_path: Path, run_module: RunModule) -> None:
    result = run_module("release", {"state": "inspected", "home": str(tmp_path / "home")}, "--check")
    assert not result["failed"] and not result["status"]["serving"], result
    assert not (tmp_path / "home").exists()


def test_an_installed_agent_is_what_runs_and_nothing_is_written_beside_it(
    tmp_path: Path, run_module: RunModule
) -> None:
    home = Home(str(tmp_path))
    digest, archive = agent.build(PACKAGE)
    agent.install(home, digest, archive, sys.executable)
    before = listing(tmp_path)
    assert not run_module("release", {"state": "inspected", "home": home.root}, "--check")["failed"]
    assert listing(tmp_path) == before


class Ended(Exception):
    """A module that has ended, with its result."""


class Module:
    """As much of AnsibleModule as the loader needs."""

    def __init__(self, tmpdir: Path, check_mode: bool = False, **params: Any) -> None:
        self.params = {"agent": "", "agent_archive": "", **params}
        self.tmpdir, self.check_mode = str(tmpdir), check_mode

    def exit_json(self, **result: Any) -> None:
        raise Ended(result)

    def fail_json(self, **result: Any) -> None:
        raise Ended({"failed": True, **result})


def ended(module: Module) -> dict[str, Any]:
    with pytest.raises(Ended) as caught:
        agent_code.run(module, "release")
    result: dict[str, Any] = caught.value.args[0]
    return result


@pytest.mark.parametrize(
    ("damage", "missing"), [(None, False), ("truncate", True), ("remove", True), ("no home", True)]
)
def test_only_a_whole_agent_counts(tmp_path: Path, damage: str | None, missing: bool) -> None:
    home = Home(str(tmp_path / "home"))
    digest, archive = agent.build(PACKAGE)
    agent.install(home, digest, archive, sys.executable)
    victim = Path(home.agent(digest)) / agent.PACKAGE / "plan.py"
    if damage == "truncate":
        os.truncate(victim, 10)
    elif damage == "remove":
        victim.unlink()
    elif damage == "no home":
        home = Home(str(tmp_path / "elsewhere"))
    # In a process of its own: this one has the package imported already.
    script = (
        "import json, sys\nfrom types import SimpleNamespace\n"
        f"sys.path.insert(0, {PACKAGE.rsplit('/', 1)[0]!r})\n"
        "from draftgate import agent_code\n"
        f"given = {{'home': {home.root!r}, 'agent': {digest!r}, 'agent_archive': ''}}\n"
        "module = SimpleNamespace(params=given, tmpdir='/nowhere')\n"
        "print(json.dumps(agent_code._place(module, given)))\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert bool(json.loads(done.stdout)) is not missing


def test_without_its_action_plugin_it_says_so(tmp_path: Path) -> None:
    told = ended(Module(tmp_path, home=str(tmp_path)))
    assert told["failed"] and "action plugin" in told["msg"]


def test_a_host_that_lacks_the_agent_is_asked_once_and_sent_it_from_then_on() -> None:
    calls: list[dict[str, Any]] = []

    def execute(module_name: str, module_args: dict[str, Any], task_vars: Any) -> dict[str, Any]:
        assert (module_name, task_vars) == ("release", {"a": 1})
        calls.append(module_args)
        return {"changed": False} if module_args.get("agent_archive") else {agent_code.MISSING: True}

    shipment = agent_code.Shipment(PACKAGE, execute, "release", {"a": 1})
    for _ in range(2):
        assert shipment.call({"state": "inspected"}) == {"changed": False}
    assert ["agent_archive" in call for call in calls] == [False, True, True]
    archive = base64.b64decode(calls[1]["agent_archive"])
    assert {call["agent"] for call in calls} == {shipment.digest}
    assert archive == agent.build(PACKAGE)[1]


def test_a_failure_is_told_as_by_any_module(call_module: CallModule) -> None:
    told = call_module("release", {"state": "inspected", "home": "/"})
    assert told["failed"] and "draftgate_home" in told["msg"]
