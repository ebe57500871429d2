"""The table at the end of a run: what is in it, and that it fits."""

from __future__ import annotations

import re
from typing import Any

import pytest
from draftgate import report

from tests.unit.test_decision import GOOD, measured
from tests.unit.test_evidence import NOW, SERVE, build

CURL = "curl -s http://127.0.0.1:8000/v1/chat/completions -d '" + "x" * 120 + "'"
DIFFERS = [{"field": "serve.drafter.config.dflash_config.mask_token_id", "before": None, "after": 2}]


def lines_of(text: str, *words: str) -> list[str]:
    return [line for line in text.splitlines() if all(word in line for word in words)]


@pytest.mark.parametrize("name", ["healthy", "wrong-mask", "layer-99", "no-drafts", "no-speculation", "k-11"])
@pytest.mark.parametrize("reference", [True, False])
def test_it_fits_a_terminal(name: str, reference: bool) -> None:
    built = build(name, reference=build("healthy") if reference else None)
    text = report.table(built, stages={"start": 36.2, "gate": 95.0}, differs=DIFFERS * 20, curl=CURL)
    assert [line for line in text.splitlines() if len(line) > 100] == [
        f"  {CURL}"
    ]  # for copying: never broken
    assert not re.search(r"[ \t]+$|\n\n\n", text, re.M)


def test_a_pass_says_what_was_measured_and_wished() -> None:
    text = report.table(build("healthy"), stages={"start": 36.2, "gate": 95.0}, curl=CURL)
    head = text.splitlines()[0]
    assert head == f"gpu1  PASS  release {build('healthy')['release']}  measured 2026-11-30T16:30:05Z"
    assert lines_of(text, "mask 2", "target layers [1, 5, 9]", "k 7", "vllm 0.32.0")
    assert lines_of(text, "mean acceptance length τ", "6.07", "≥ 2.00", "ok", "14.3 % at k=7 is τ 2.00")
    assert lines_of(text, "acceptance rate", "72.4 %") and not lines_of(text, "acceptance rate", "ok")
    assert lines_of(text, "position 1", "88.6 %", "≥ 40.0 %", "ok")
    assert lines_of(text, "per position %", "89 83 77 70 67 63 59", "█▇▇▆▆▆▅")
    assert lines_of(text, "prose", "5.70", "152", "9/9")
    assert lines_of(text, "start 36s", "gate 1m35s", "counted by our requests", "own share 100 %")
    assert "suspects" not in text and "findings" not in text and "MISSED" not in text


def test_a_failure_says_what_was_missed_and_what_to_do() -> None:
    text = report.table(build(reference=build("healthy", now=NOW - 86400)), differs=DIFFERS)
    assert "FAIL" in text.splitlines()[0]
    assert lines_of(text, "! DG802 Measured and bad")
    assert lines_of(text, "mean acceptance length τ", "1.01", "MISSED")
    assert lines_of(text, "drafts", "3254", "ok")
    assert lines_of(text, "τ against the last green", "-83 %", "≥ -15 %", "τ 6.07 of", "2026-11-29")
    assert lines_of(text, "last green  ", "89 83")
    assert lines_of(text, "changed", "mask_token_id: absent → 2")
    assert lines_of(text, "1. ", "The mask is eos", "[finding]")
    assert lines_of(text, "DG206 error The mask is eos.")


def test_only_the_first_suspects_are_explained() -> None:
    text = report.table(build())
    assert text.count("     → ") == 2
    assert lines_of(text, "  3. ")


@pytest.mark.parametrize(("name", "word"), [("few", "INCONCLUSIVE"), ("no-drafts", "FAIL")])
def test_what_was_not_judged_is_not_called_ok(name: str, word: str) -> None:
    if name == "few":
        built = {**build("healthy"), **measured(GOOD, drafts=20), "verdict": "inconclusive"}
        built["reasons"] = [{"code": "DG811", "message": "Not enough samples: 20 drafts"}]
    else:
        built = build(name)
    text = report.table(built)
    assert word in text.splitlines()[0]
    assert not lines_of(text, " ok")


def test_what_could_not_be_measured_is_a_reason_without_figures() -> None:
    text = report.table(build("layer-99"))
    assert lines_of(text, "! DG825 Could not measure")
    assert "per position" not in text and "workload " not in text


def test_another_evidence_to_compare_with() -> None:
    previous = {**build("healthy"), "release": "aaaaaaaaaaaa"}
    assert lines_of(report.table(build("healthy"), previous=previous), "+0 %", "of aaaaaaaaaaaa")


def test_without_speculation() -> None:
    text = report.table(
        build("no-speculation", serve={**SERVE, "drafter": None, "num_speculative_tokens": 0})
    )
    assert lines_of(text, "without speculation")
    assert lines_of(text, "json", "173.0")


def test_a_baseline_is_shown_as_a_factor() -> None:
    text = report.table(build("healthy", baseline={"tokens_per_second": 100.0}))
    assert lines_of(text, "tokens/s", "317.4", "3.17x of 100.0 without speculation")


def test_colour_is_for_the_verdict_alone() -> None:
    built: dict[str, Any] = build()
    coloured = report.table(built, colour=True)
    assert re.sub(r"\x1b\[\d+m", "", coloured) == report.table(built)
    assert coloured.splitlines()[0].count("\x1b[") == 2 and coloured.count("\x1b[") == 2


def test_long_lists_are_cut() -> None:
    text = report.table(build("healthy"), differs=DIFFERS * 20)
    assert text.count("mask_token_id: absent") == 12 and "and 8 more" in text
