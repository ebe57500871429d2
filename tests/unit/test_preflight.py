"""The contract's verdict for people, and the command that needs no installation."""

from __future__ import annotations

import datetime
import io
import json
from pathlib import Path
from typing import Any

import pytest
from draftgate import contract_facts, preflight
from draftgate.__main__ import main
from draftgate.contract import converge, judge, serving_engine
from draftgate.errors import DraftgateError, InputError
from draftgate.findings import ERROR, INFO, WARNING
from draftgate.layout import Home

from tests.conftest import REPO, CallModule
from tests.model_files import write_json, write_pair_27b

DRAFTER = str(REPO / "models/tiny-pair/drafter")
TARGET = str(REPO / "models/tiny-pair/target")
VLLM = {"name": "vllm", "version": "0.32.0"}
TWO_A6000 = {"arch": "sm_86", "count": 2, "memory_gib": 48}
OLD = {"name": "vllm", "version": "0.20.1"}


def finding(code: str, severity: str, **more: Any) -> dict[str, Any]:
    return {
        "code": code,
        "severity": severity,
        "field": f"field.of.{code}",
        "observed": 1,
        "expected": 2,
        "message": f"The message of {code}.",
        "fix": f"The fix of {code}.",
        "source": "",
        "accepted": None,
        **more,
    }


SUBJECT = preflight.Subject("gpu1", "/models/drafter", "/models/target", VLLM, TWO_A6000, 15)
RESULT: dict[str, Any] = {
    "findings": [
        finding("DG201", ERROR, source="vllm#40727"),
        finding("DG206", ERROR, accepted="to measure it"),
        finding("DG215", WARNING, observed=None, expected=["a", "b"], message="A long one. " * 30),
        finding("DG420", INFO, observed="same", expected="same"),
    ],
    "inferred": {
        "family": "dflash",
        "dtype": ["BF16"],
        "tensors": 58,
        "parameters": 1_730_213_120,
        "num_hidden_layers": 5,
        "hidden_size": 5120,
        "head_dim": 128,
        "captured_layers": 5,
    },
    "comparison": {
        "engine_before": OLD,
        "engine_after": VLLM,
        "gone": [finding("DG402", ERROR)],
        "new": [],
        "stay": [finding("DG215", WARNING), finding("DG221", ERROR), finding("DG221", ERROR)],
    },
}


def test_the_table_says_everything_once() -> None:
    table = preflight.table(SUBJECT, RESULT)
    head, *rest = table.splitlines()
    assert head == "gpu1  REFUSED  2 errors (1 accepted), 1 warning, 1 for information"
    told = " ".join(" ".join(rest).split())
    for said in (
        "/models/drafter for /models/target, k 15",
        "vLLM 0.32.0 on 2x sm_86, 48 GiB each",
        "5 layers, 5 captured layers, hidden_size 5120, head_dim 128, 1.73 billion parameters BF16",
        "DG201 field.of.DG201 1 → 2 The message of DG201. → The fix of DG201. https://github.com/",
        "The message of DG206. accepted: to measure it",
        'absent → ["a", "b"]',
        "From vLLM 0.20.1 to vLLM 0.32.0 goes DG402 field.of.DG402: The message of DG402. comes nothing",
        "stays DG215 field.of.DG215, DG221 at 2 fields",
    ):
        assert said in told
    assert "The fix of DG206" not in told, "what was accepted needs no fix"
    assert "same →" not in told
    order = [
        told.index(word) for word in ("Errors:", "DG201", "Warnings:", "DG215", "For information", "DG420")
    ]
    assert order == sorted(order)
    assert max(len(line) for line in table.splitlines() if "https://" not in line) <= preflight.WIDTH


@pytest.mark.parametrize(
    ("gpu", "said"),
    [
        ({}, "GPUs that are not named"),
        ({"count": 0}, "on a CPU"),
        ({"arch": "sm_90"}, "on sm_90"),
        ({"count": 2}, "on 2x a GPU"),
    ],
)
def test_what_is_not_known_of_the_gpu_is_said(gpu: dict[str, Any], said: str) -> None:
    nothing: dict[str, Any] = {"findings": [], "inferred": {}, "comparison": None}
    table = preflight.table(SUBJECT._replace(gpu=gpu), nothing)
    assert said in table and table.startswith("gpu1  READY  nothing found")
    assert "Errors" not in table and "From" not in table and "weights" not in table


@pytest.mark.parametrize(
    ("findings", "expected"),
    [
        ([], preflight.READY),
        ([finding("DG215", WARNING)], preflight.READY),
        ([finding("DG206", ERROR)], preflight.REFUSED),
        ([finding("DG206", ERROR, accepted="known")], preflight.READY),
        ([finding("DG206", ERROR, accepted="known"), finding("DG207", ERROR)], preflight.REFUSED),
    ],
)
def test_only_errors_that_nobody_accepted_refuse(findings: list[dict[str, Any]], expected: str) -> None:
    assert preflight.verdict(findings) == expected


def test_the_document_holds_what_a_program_needs() -> None:
    document = json.loads(json.dumps(preflight.document(SUBJECT, {**RESULT, "diff": {}})))
    assert document["verdict"] == preflight.REFUSED and document["host"] == "gpu1"
    assert document["engine"] == VLLM and document["gpu"] == TWO_A6000
    assert [item["code"] for item in document["findings"]] == ["DG201", "DG206", "DG215", "DG420"]
    assert document["comparison"]["gone"][0]["code"] == "DG402"
    assert "diff" not in document


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", {}),
        ("cpu", {"count": 0}),
        ("sm_86", {"arch": "sm_86"}),
        ("sm_86x2", {"arch": "sm_86", "count": 2}),
        ("sm_121a", {"arch": "sm_121a"}),
    ],
)
def test_a_gpu_is_written_in_one_word(text: str, expected: dict[str, Any]) -> None:
    assert preflight.gpu_of(text) == expected


@pytest.mark.parametrize("text", ["86", "sm_86x", "two", "sm_86x2 "])
def test_another_way_to_write_a_gpu_is_refused(text: str) -> None:
    with pytest.raises(InputError, match="sm_86x2"):
        preflight.gpu_of(text)


# The upgrade: the same facts on two engines.


def activate(active: Path, version: str) -> None:
    serve = {"engine": {"name": "vllm", "version": version}}
    write_json(active, {"deployment": {"serve": serve}})


def test_an_upgrade_starts_from_what_is_activated(tmp_path: Path, call_module: CallModule) -> None:
    home = Home(str(tmp_path / "home"))
    active = Path(home.active)
    arguments = {"drafter": DRAFTER, "target": TARGET, "num_speculative_tokens": 7, "home": home.root}
    arguments = {**arguments, "engine": VLLM, "gpu": {"count": 2, "arch": "sm_86"}}
    assert call_module("drafter_contract", arguments)["comparison"] is None, "nothing is activated"
    activate(active, "0.20.1")
    assert serving_engine(str(active)) == OLD
    both = call_module("drafter_contract", arguments, check_mode=True)["comparison"]
    assert [item["code"] for item in both["gone"]] == ["DG402", "DG409"]
    named = call_module("drafter_contract", {**arguments, "compare_with": {"version": "0.19.0"}})[
        "comparison"
    ]
    assert named["engine_before"] == {"name": "vllm", "version": "0.19.0"}
    assert [item["code"] for item in named["gone"]] == ["DG401"]
    activate(active, "0.32.0")
    assert call_module("drafter_contract", arguments)["comparison"] is None, "nothing changes"


@pytest.mark.parametrize(
    "told", [{}, {"deployment": None}, {"deployment": {"serve": {"engine": {"name": "vllm"}}}}]
)
def test_a_damaged_record_of_what_serves_is_one_clear_error(tmp_path: Path, told: dict[str, Any]) -> None:
    write_json(tmp_path / "active.json", told)
    with pytest.raises(InputError, match=r"active.json' names no engine.*Set drafter_compare_with"):
        serving_engine(str(tmp_path / "active.json"))


def test_a_downgrade_brings_findings_and_acceptances_are_on_them(tmp_path: Path) -> None:
    drafter, target = write_pair_27b(tmp_path)
    taken = [{"code": code, "reason": "short texts only"} for code in ("DG402", "DG403")]
    result = converge(
        str(drafter),
        str(target),
        engine=OLD,
        compare_with=VLLM,
        num_speculative_tokens=15,
        acceptances=taken,
        today=datetime.date(2026, 12, 1),
    )
    both = result["comparison"]
    assert [item["code"] for item in both["new"]] == ["DG402", "DG403", "DG409"]
    assert [item["accepted"] for item in both["new"]] == ["short texts only", "short texts only", None]
    assert both["gone"] == []


def test_files_are_read_once_for_two_engines(monkeypatch: pytest.MonkeyPatch) -> None:
    gathered: list[str] = []

    def counted(*directories: str, **wish: Any) -> Any:
        gathered.append(directories[0])
        return contract_facts.gather(*directories, **wish)

    monkeypatch.setattr("draftgate.contract.gather", counted)
    judge(
        DRAFTER,
        TARGET,
        engine=VLLM,
        num_speculative_tokens=7,
        compare_with=OLD,
    )
    assert len(gathered) == 1


def test_a_refusal_carries_the_whole_verdict(call_module: CallModule) -> None:
    wish = {"drafter": DRAFTER, "target": TARGET, "engine": VLLM, "num_speculative_tokens": 7}
    result = call_module("drafter_contract", {**wish, "overrides": {"dflash_config": {"mask_token_id": 2}}})
    assert result["failed"] and {"findings", "inferred", "effective_config", "comparison"} <= set(result)


@pytest.mark.parametrize("missing", ["drafter_path", "target_path"])
def test_a_directory_that_is_not_there_is_one_clear_error(tmp_path: Path, missing: str) -> None:
    wanted = {"drafter_path": DRAFTER, "target_path": TARGET, missing: str(tmp_path / "nope")}
    with pytest.raises(DraftgateError) as caught:
        judge(wanted["drafter_path"], wanted["target_path"], engine=VLLM, num_speculative_tokens=7)
    assert str(caught.value).startswith(f"DG601: reading {missing}: ")
    assert "nope' is not there" in str(caught.value)


# The command.


def contract(*arguments: str) -> int:
    return main(["contract", DRAFTER, TARGET, "--engine", "vllm==0.32.0", "--k", "7", *arguments])


def test_the_command_judges_without_a_home(capsys: pytest.CaptureFixture[str]) -> None:
    assert contract("--gpu", "sm_86x2") == 0
    assert capsys.readouterr().out.startswith("READY  nothing found")
    assert contract("--override", '{"dflash_config": {"mask_token_id": 2}}', "--compare", "vllm==0.20.1") == 1
    out = capsys.readouterr().out
    assert out.startswith("REFUSED") and "DG206" in out and "From vLLM 0.20.1 to vLLM 0.32.0" in out


def test_the_command_speaks_to_a_terminal_without_unicode(monkeypatch: pytest.MonkeyPatch) -> None:
    told = io.BytesIO()
    monkeypatch.setattr("sys.stdout", io.TextIOWrapper(told, encoding="ascii", write_through=True))
    assert contract("--override", '{"dflash_config": {"mask_token_id": 0}}') == 1
    assert b"DG206" in told.getvalue() and b"\\u2192" in told.getvalue()


def test_the_command_says_it_in_json(capsys: pytest.CaptureFixture[str]) -> None:
    assert contract("--json", "--server", '{"kv_cache_dtype": "fp8"}', "--gpu", "cpu") == 0
    document = json.loads(capsys.readouterr().out)
    assert document["verdict"] == "ready" and document["gpu"] == {"count": 0}
    assert "DG411" in {item["code"] for item in document["findings"]}


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--override", "{"], "a JSON object"),
        (["--server", "[]"], "a JSON object"),
        (["--gpu", "big"], "sm_86x2"),
        (["--compare", "0.20.1"], "vllm==0.32.0"),
        (["--compare", "tgi==1.0"], "vllm or sglang"),
    ],
)
def test_the_command_refuses_what_it_cannot_read(
    capsys: pytest.CaptureFixture[str], arguments: list[str], said: str
) -> None:
    assert contract(*arguments) == 1
    assert said in capsys.readouterr().err
