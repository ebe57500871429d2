"""The module: options in, evidence fields out, one failure for a red gate, no key anywhere."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import CallModule, RunModule
from tests.unit.fake_engine import FakeEngine, running

KEY = "sk-very-secret-4711"


@pytest.fixture
def engine() -> Iterator[FakeEngine]:
    with running(FakeEngine(api_key=KEY)) as started:
        yield started


@pytest.fixture
def options(engine: FakeEngine, tmp_path: Path) -> dict[str, Any]:
    prompts = tmp_path / "prompts.jsonl"
    message = [{"role": "user", "content": "Hello"}]
    rows = [{"id": f"p{n}", "workload": "code", "messages": message, "max_tokens": 8} for n in range(4)]
    prompts.write_text("\n".join(map(json.dumps, rows)))
    return {
        "endpoint": f"http://127.0.0.1:{engine.port}",
        "prompts": str(prompts),
        "num_speculative_tokens": 3,
        "thresholds": {"acceptance_min_drafts": 30},
        "api_key": KEY,
    }


def test_a_green_gate(call_module: CallModule, options: dict[str, Any]) -> None:
    result = call_module("acceptance_gate", options)
    assert (result["verdict"], result["changed"], result["reasons"]) == ("pass", False, [])
    assert result["acceptance"]["mean_acceptance_length"] == pytest.approx(1 + 17 / 8)
    assert (result["model"], result["engine"]) == ("tiny", {"name": "vllm", "version": "0.32.0"})
    assert result["thresholds"]["acceptance_min_mean_length"] == 2.0
    assert len(result["prompts"]["digest"]) == 64


def test_a_red_gate_fails_with_all_it_measured(
    call_module: CallModule, options: dict[str, Any], engine: FakeEngine
) -> None:
    engine.histogram = [9, 0, 0, 0]
    result = call_module("acceptance_gate", options)
    assert result["failed"] and result["msg"].startswith("DG802")
    assert "First suspect: mask token" in result["msg"]
    assert (result["verdict"], result["acceptance"]["drafts"]) == ("fail", 36)


def test_verify_reports_and_does_not_fail(
    call_module: CallModule, options: dict[str, Any], engine: FakeEngine
) -> None:
    engine.histogram = [9, 0, 0, 0]
    result = call_module("acceptance_gate", {**options, "mode": "verify"})
    assert (result["verdict"], result.get("failed", False)) == ("fail", False)


def test_check_mode_asks_for_health_and_nothing_else(
    call_module: CallModule, options: dict[str, Any], engine: FakeEngine
) -> None:
    result = call_module("acceptance_gate", options, check_mode=True)
    assert (result["healthy"], result["changed"], engine.requests) == (True, False, [])
    assert "verdict" not in result


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"endpoint": "127.0.0.1"}, "reading the endpoint"),
        ({"prompts": "/nonexistent"}, "reading prompts"),
        ({"num_speculative_tokens": -1}, "num_speculative_tokens -1"),
        ({"concurrency": 0}, "concurrency 0"),
        ({"thresholds": {"acceptance_min_rate": "half"}}, "acceptance_min_rate"),
        ({"workloads": ["poetry"]}, "poetry"),
        ({"sampling": {"temperature": "cold"}}, "temperature"),
        ({"api_key": "two\nlines"}, "API key"),
        ({"mode": "observe"}, "mode"),
    ],
)
@pytest.mark.parametrize("check_mode", [True, False])
def test_bad_input_is_one_message(
    call_module: CallModule, options: dict[str, Any], change: dict[str, Any], says: str, check_mode: bool
) -> None:
    result = call_module("acceptance_gate", {**options, **change}, check_mode=check_mode)
    assert result["failed"] and says in result["msg"]


def test_the_key_may_lie_in_a_file(call_module: CallModule, options: dict[str, Any], tmp_path: Path) -> None:
    path = tmp_path / "key"
    path.write_text(KEY + "\n")
    del options["api_key"]
    result = call_module("acceptance_gate", {**options, "api_key_path": str(path)})
    assert result["verdict"] == "pass"
    assert KEY not in json.dumps(result)
    refused = call_module("acceptance_gate", options)
    assert refused["failed"] and "HTTP 401" in refused["msg"]


def test_as_ansible_runs_it(run_module: RunModule, options: dict[str, Any]) -> None:
    result = run_module("acceptance_gate", options)
    assert result["verdict"] == "pass"
    assert KEY not in json.dumps(result)
