"""A deploy that meets another one's switch: refused before it has changed anything."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import yaml
from draftgate import release
from draftgate.backend.base import Job, JobState
from draftgate.errors import HostError
from draftgate.jobs import Wait
from draftgate.layout import Home

from tests.specs import SPEC

OTHER = {"num_speculative_tokens": 5}


class Manager:
    """Runs no engine; a job that is started runs for ever."""

    name = "supervisord"

    def __init__(self) -> None:
        self.jobs: list[Job] = []

    def job_state(self, _name: str) -> JobState:
        return JobState("running", pid=4711) if self.jobs else JobState("absent")

    def start_job(self, job: Job) -> None:
        self.jobs.append(job)

    def services(self) -> list[str]:
        return []


@pytest.fixture
def manager(monkeypatch: pytest.MonkeyPatch) -> Manager:
    made = Manager()
    monkeypatch.setattr(release, "choose", lambda *_, **__: made)
    monkeypatch.setattr(release, "port_free", lambda *_: True)
    return made


def request(home: Home, serve: dict[str, Any] | None = None, **more: Any) -> release.Request:
    wished = copy.deepcopy(SPEC)
    wished["serve"].update(serve or {})
    return release.Request(home=home, wished=wished, **more)


@pytest.mark.parametrize("check", [False, True], ids=["deploy", "--check"])
@pytest.mark.parametrize(
    ("given", "other"),
    [
        ({}, False),
        ({"serve": OTHER}, True),
        ({"options": {"on_failure": "stop"}}, True),
        ({"findings": [{"code": "DG207"}]}, True),
        ({"drafter_overrides": {"rope_theta": 1}}, True),
    ],
    ids=["the same wish", "release", "options", "findings", "overrides"],
)
def test_a_deploy_beside_another_switch_is_refused_by_its_first_look(
    tmp_path: Path, manager: Manager, given: dict[str, Any], other: bool, check: bool
) -> None:
    home = Home(str(tmp_path))
    begun = release.switched(request(home), Wait(seconds=0), False)
    seen = release.inspected(request(home, **given), check)
    said = seen["warning"] if check else seen["refusal"]
    parts = [begun["attempt"], begun["release"], "pid 4711", f"{home.command} status"]
    assert [part in said for part in parts] == [other] * 4
    assert (seen["refusal"] if check else seen["warning"]) == ""
    if other:
        with pytest.raises(HostError, match="one switch at a time"):
            release.switched(request(home, **given), Wait(seconds=0), False)
    else:
        joined = release.switched(request(home, **given), Wait(seconds=0), False)
        assert joined["attempt"] == begun["attempt"]
    assert len(manager.jobs) == 1


def test_a_switch_that_has_ended_is_in_nobodys_way(tmp_path: Path, manager: Manager) -> None:
    home = Home(str(tmp_path))
    release.switched(request(home), Wait(seconds=0), False)
    manager.jobs.clear()
    seen = release.inspected(request(home, OTHER))
    assert (seen["refusal"], seen["warning"], seen["action"]) == ("", "", "switch")


def test_a_port_that_the_other_switchs_engine_has_is_not_what_is_said(
    tmp_path: Path, manager: Manager, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = Home(str(tmp_path))
    release.switched(request(home), Wait(seconds=0), False)
    monkeypatch.setattr(release, "port_free", lambda *_: False)
    assert release.inspected(request(home, OTHER), check=True)["refusal"] == ""
    manager.jobs.clear()
    assert "port 8000 is taken" in release.inspected(request(home, OTHER), check=True)["refusal"]


def test_the_first_look_is_given_the_whole_wish_of_the_switch(repo: Path) -> None:
    """Else the same wish has another digest there, and is refused instead of joined."""
    asked: dict[str, dict[str, Any]] = {}
    for name in ("inspect", "main"):
        tasks = yaml.safe_load((repo / "roles" / "vllm_server" / "tasks" / f"{name}.yml").read_text("utf-8"))
        asked.update({task["release"]["state"]: task["release"] for task in tasks if "release" in task})
    wish = ("home", "spec", "options", "secrets", "findings", "drafter_overrides")
    looked, switched = asked["inspected"], asked["switched"]
    assert {key: looked.get(key) for key in wish} == {key: switched[key] for key in wish}
