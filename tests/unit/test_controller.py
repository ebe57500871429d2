"""What the controller reads, writes and prints around a module."""

from __future__ import annotations

import importlib.util
import itertools
import json
import shlex
from pathlib import Path
from typing import Any

import pytest
import yaml
from ansible.parsing.dataloader import DataLoader
from ansible.template import Templar, trust_as_template
from draftgate import controller

from tests.conftest import REPO, CallModule, load_plugins

STATE = {"serving": True, "endpoint": "http://127.0.0.1:8000", "model": "tiny"}


@pytest.mark.parametrize(
    ("state", "url"),
    [
        ({}, "http://127.0.0.1:8000/v1/chat/completions"),
        ({"endpoint": "http://[::1]:8000"}, "http://[::1]:8000/v1/chat/completions"),
        ({"model": "it's; $(ls)"}, "http://127.0.0.1:8000/v1/chat/completions"),
        ({"api_key": True}, "http://127.0.0.1:8000/v1/chat/completions"),
        ({"api_key": False}, "http://127.0.0.1:8000/v1/chat/completions"),
    ],
)
def test_the_printed_request_can_be_pasted(state: dict[str, Any], url: str) -> None:
    template = {"enable_thinking": False}
    line = controller.curl({**STATE, **state}, {"settings": {"template": template}})
    words = shlex.split(line)
    assert words[:3] == ["curl", "-s", url]
    headers = [after for word, after in itertools.pairwise(words) if word == "-H"]
    key = ["Authorization: Bearer $VLLM_API_KEY"] if state.get("api_key") else []
    assert headers == ["Content-Type: application/json", *key]
    assert not key or f'"{key[0]}"' in line, "in double quotes, so that the shell fills it in"
    body = json.loads(words[words.index("-d") + 1])
    assert (body["model"], body["chat_template_kwargs"]) == ({**STATE, **state}["model"], template)


def test_reports_may_lie_below_a_tilde(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    written = controller.write_reports("~/reports", "gpu1", {"evidence": {"verdict": "fail"}}, attempted=True)
    assert written == [str(tmp_path / "reports" / "gpu1" / "last_attempt.json")]
    assert json.loads(Path(written[0]).read_text())["verdict"] == "fail"


def test_prompts_may_lie_below_a_tilde(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    where = importlib.util.spec_from_file_location("release_action", REPO / "action_plugins" / "release.py")
    assert where and where.loader
    plugin = importlib.util.module_from_spec(where)
    where.loader.exec_module(plugin)
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "prompts.jsonl").write_text("{}\n")
    action = plugin.ActionModule.__new__(plugin.ActionModule)
    assert action._shipped({"prompts_path": "~/prompts.jsonl"})["prompts"] == "{}\n"


def test_the_runtimes_lock_may_lie_below_a_tilde(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "lock.txt").write_text("# a lock\n")
    (task,) = yaml.safe_load((REPO / "roles" / "vllm_runtime" / "tasks" / "main.yml").read_text("utf-8"))
    load_plugins()
    templar = Templar(loader=DataLoader(), variables={"vllm_runtime_lock": "~/lock.txt"})
    assert templar.template(trust_as_template(task["vllm_runtime"]["lock"])) == "# a lock\n"


@pytest.mark.parametrize(
    ("given", "taken"),
    [
        ({"VLLM_API_KEY": 123456}, {"VLLM_API_KEY": "123456"}),
        ({"VLLM_API_KEY": 0}, {"VLLM_API_KEY": "0"}),
        ({"VLLM_API_KEY": "text"}, {"VLLM_API_KEY": "text"}),
        ({"VLLM_API_KEY": ""}, {}),
        ({"VLLM_API_KEY": None}, {}),
        ({}, {}),
    ],
)
def test_a_key_of_digits_is_text(
    call_module: CallModule, monkeypatch: pytest.MonkeyPatch, given: dict[str, Any], taken: dict[str, str]
) -> None:
    from ansible.module_utils.draftgate import release  # the name that the module imports it by

    seen: list[Any] = []

    def inspected(request: Any) -> dict[str, Any]:
        seen.append(request.secrets)
        return {"changed": False}

    monkeypatch.setattr(release, "inspected", inspected)
    assert not call_module("release", {"state": "inspected", "secrets": given})["failed"]
    assert seen == [taken]
