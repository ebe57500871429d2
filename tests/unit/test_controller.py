"""What the controller reads, writes and prints around a module."""

from __future__ import annotations

import importlib.util
import itertools
import json
import shlex
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml
from ansible import context
from ansible.parsing.dataloader import DataLoader
from ansible.template import Templar, trust_as_template
from ansible.utils.vars import load_extra_vars
from draftgate import controller

from tests.conftest import REPO, CallModule, load_plugins
from tests.unit.pages import DIFFERS, FAIL, PASS, Page

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
    written = controller.write_reports("~/reports", "gpu1", {"evidence": FAIL}, attempted=True)
    names = ["last_attempt.json", "last_attempt.html", f"{FAIL['release']}.html"]
    assert written == [str(tmp_path / "reports" / "gpu1" / name) for name in names]
    assert json.loads(Path(written[0]).read_text("utf-8"))["verdict"] == "fail"


@pytest.mark.parametrize(
    ("seen", "taken", "shown"),
    [
        (["stop", "warm up"], {"previous_stopped": 2.0, "started": 0.0, "gated": 5.2}, ["gate | took 5s"]),
        (["warm up", "gate"], {"gated": 5.2}, []),
        ([], {"previous_stopped": 0.0, "gated": 0.3}, []),
    ],
    ids=["between two calls", "seen", "decided from stored evidence"],
)
def test_a_step_that_no_call_saw_is_shown_when_it_is_known(
    seen: list[str], taken: dict[str, float], shown: list[str]
) -> None:
    states = [
        {"stage": stage, "done": 0, "total": 0, "detail": "", "started": 0.0, "updated": 1.0}
        for stage in seen
    ]
    running = [{"attempt": "a", "job": {"running": True, "progress": state}} for state in states]
    answers: Iterator[dict[str, Any]] = iter([*running, {"changed": True, "result": {"stages": taken}}])
    lines: list[str] = []
    controller.follow(lambda arguments: next(answers), lines.append, "gpu1", "switch")
    assert lines[len(seen) :] == [f"gpu1 | switch | {line}" for line in shown]


def switched(**more: Any) -> dict[str, Any]:
    """What the module brings from a switch that was restored."""
    state = {**STATE, "release": PASS["release"], "speculation": True}
    stages = {"started": 26.8, "gated": 77.0}
    ended = {"differs": DIFFERS, "status": state, "result": {"stages": stages}}
    return {"evidence": FAIL, "current_evidence": PASS, **ended, **more}


def pages(folder: Path) -> dict[str, str]:
    return {path.name: path.read_text("utf-8") for path in folder.glob("*.html")}


def test_a_refused_release_and_what_serves_have_a_page_each(tmp_path: Path) -> None:
    controller.write_reports(str(tmp_path), "gpu1", switched(), attempted=True, command="do it again")
    found = pages(tmp_path / "gpu1")
    assert set(found) == {
        "current.html",
        "last_attempt.html",
        f"{PASS['release']}.html",
        f"{FAIL['release']}.html",
    }
    assert found["current.html"] == found[f"{PASS['release']}.html"]
    assert found["last_attempt.html"] == found[f"{FAIL['release']}.html"]
    tried, serves = Page(found["last_attempt.html"]).text, Page(found["current.html"]).text
    assert "What changed" in tried and "start 27s · gate 1m17s" in tried and "on gpu1" in tried
    assert "What changed" not in serves and "start 27s" not in serves, "that was the other release's run"
    for text in (tried, serves):
        assert f"release {PASS['release']} serves at http://127.0.0.1:8000." in text
        assert "do it again" in text


def test_the_page_of_an_earlier_run_stays_as_long_as_its_evidence(tmp_path: Path) -> None:
    first = switched(evidence=PASS, current_evidence=PASS)
    controller.write_reports(str(tmp_path), "gpu1", first, attempted=True)
    before = pages(tmp_path / "gpu1")
    controller.write_reports(str(tmp_path), "gpu1", {"evidence": PASS, "unchanged": True}, attempted=False)
    # A new agent alone: a switch that finds nothing to do, and brings the evidence that was there
    controller.write_reports(str(tmp_path), "gpu1", {**first, "differs": []}, attempted=True)
    assert pages(tmp_path / "gpu1") == before and "What changed" in before["current.html"]
    again = {**PASS, "time": "2026-12-01T00:00:00Z"}
    controller.write_reports(str(tmp_path), "gpu1", {"evidence": again}, attempted=False)
    assert "2026-12-01 00:00:00" in pages(tmp_path / "gpu1")["current.html"]
    (tmp_path / "gpu1" / "current.html").unlink()
    controller.write_reports(str(tmp_path), "gpu1", {"evidence": again}, attempted=False)
    assert set(pages(tmp_path / "gpu1")) == set(before), "one that is gone is made again"


@pytest.mark.parametrize("release", ["../../evil", "/etc/evil", "a/b", "..", "", None])
def test_a_hosts_release_names_no_other_directory(tmp_path: Path, release: Any) -> None:
    result = {"evidence": {**PASS, "release": release}}
    written = controller.write_reports(str(tmp_path / "reports"), "gpu1", result, attempted=False)
    assert {Path(path).resolve().parent for path in written} == {tmp_path / "reports" / "gpu1"}


@pytest.mark.parametrize(
    ("state", "told"),
    [
        ({"serving": False}, "After this run: nothing serves."),
        ({"serving": True, "release": "a", "endpoint": "http://x"}, "release a serves at http://x."),
        (
            {"serving": True, "release": "a", "endpoint": "http://x", "speculation": False},
            "release a serves at http://x, without speculation.",
        ),
    ],
)
def test_a_page_says_what_serves(tmp_path: Path, state: dict[str, Any], told: str) -> None:
    controller.write_reports(str(tmp_path), "gpu1", switched(status=state), attempted=True)
    assert told in Page(pages(tmp_path / "gpu1")["last_attempt.html"]).text


def test_the_table_names_the_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    reports = str(tmp_path / "reports")
    assert "  page  " not in controller.summary(switched(), "gpu1", "", reports), "there is none yet"
    controller.write_reports(reports, "gpu1", switched(), attempted=True)
    lines = controller.summary(switched(), "gpu1", "", reports).splitlines()
    assert lines[-1] == f"  page  reports/gpu1/{FAIL['release']}.html"
    assert "  page  " not in controller.summary(switched(), "gpu1")


def release_action() -> Any:
    """The action plugin, without what Ansible would construct it with."""
    where = importlib.util.spec_from_file_location("release_action", REPO / "action_plugins" / "release.py")
    assert where and where.loader
    plugin = importlib.util.module_from_spec(where)
    where.loader.exec_module(plugin)
    return plugin.ActionModule.__new__(plugin.ActionModule)


def test_no_secret_of_the_command_line_is_in_a_report(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "secrets.yml").write_text("vllm_api_key: sk-from-a-file\nansible_become_pass: hunter2\n")
    given = (
        f"@{tmp_path / 'secrets.yml'}",
        "vllm_api_key=sk-in-line ansible_password=hunter3",
        '{"drafter_overrides": {"rope_theta": 10000}}',
    )
    options = {"args": ("deploy.yml",), "inventory": ("inventory/mine",), "extra_vars": given}
    monkeypatch.setattr(context, "CLIARGS", options)
    monkeypatch.setattr(load_extra_vars, "extra_vars", None, raising=False)
    action = release_action()
    action._task, action._loader = SimpleNamespace(check_mode=False), DataLoader()
    action._report(switched(), str(tmp_path / "reports"), "gpu1", {}, attempted=True)
    told = [capsys.readouterr().out, *(path.read_text("utf-8") for path in tmp_path.glob("reports/*/*"))]
    assert len(told) == 7
    assert not [text for text in told for secret in ("sk-", "hunter") if secret in text]
    command = Page(pages(tmp_path / "reports" / "gpu1")["last_attempt.html"]).text
    assert "ansible-playbook deploy.yml -i inventory/mine --limit gpu1 -e acceptance_retry=true" in command
    assert "'vllm_api_key=…'" in command and '{"drafter_overrides": {"rope_theta": 10000}}' in command


def test_prompts_may_lie_below_a_tilde(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "prompts.jsonl").write_text("{}\n")
    assert release_action()._shipped({"prompts_path": "~/prompts.jsonl"})["prompts"] == "{}\n"


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
    from draftgate import release  # the name it has in the agent

    seen: list[Any] = []

    def inspected(request: Any, _check: bool) -> dict[str, Any]:
        seen.append(request.secrets)
        return {"changed": False}

    monkeypatch.setattr(release, "inspected", inspected)
    assert not call_module("release", {"state": "inspected", "secrets": given})["failed"]
    assert seen == [taken]
