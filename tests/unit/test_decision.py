"""The verdict: a table of measurements and thresholds, and what may be no threshold."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest
from draftgate import decision
from draftgate.decision import DEFAULTS, FAIL, INCONCLUSIVE, PASS, decide, meaning, validate_thresholds
from draftgate.errors import InputError


def measured(
    curve: list[float], drafts: int = 500, k: int | None = None, drafted: int | None = None, **more: Any
) -> dict[str, Any]:
    """A measurement with this per-position curve."""
    k = len(curve) if k is None else k
    accepted, draft_tokens = drafts * sum(curve), drafts * k if drafted is None else drafted
    return {
        "num_speculative_tokens": k,
        "acceptance": {
            "drafts": drafts,
            "draft_tokens": draft_tokens,
            "accepted_tokens": accepted,
            "rate": accepted / draft_tokens if draft_tokens else None,
            "mean_acceptance_length": 1 + sum(curve) if drafts else None,
            "per_position": curve if drafts else [],
        },
        "workloads": [],
        "generation_tokens": 3000,
        "tokens_per_second": 150.0,
        "repeating": [],
        "problem": None,
        **more,
    }


GOOD = [0.9, 0.8, 0.7, 0.6]
SLOW = {"tokens_per_second": 100.0}  # against 150 measured
INCIDENT = [0.079, 0.035, 0.006] + [0.0] * 12  # τ 1.12, rate 0.8 % at k = 15


def limits(**change: Any) -> dict[str, Any]:
    return {**DEFAULTS, **{f"acceptance_{name}": value for name, value in change.items()}}


def green(curve: list[float]) -> dict[str, Any]:
    return {**measured(curve), "release": "0fb9a3a1b1a8", "time": "2026-11-30T16:30:05Z"}


@pytest.mark.parametrize(
    ("measurement", "thresholds", "reference", "verdict", "codes"),
    [
        (measured(GOOD), limits(), None, PASS, []),
        (measured(INCIDENT), limits(), None, FAIL, ["DG802", "DG804"]),
        (measured([0.0] * 7), limits(), None, FAIL, ["DG802", "DG804"]),
        # Each threshold alone
        (measured([0.9, 0.05]), limits(), None, FAIL, ["DG802"]),
        (measured([0.3, 0.3, 0.3, 0.3]), limits(), None, FAIL, ["DG804"]),
        (measured([0.3, 0.3, 0.3, 0.3]), limits(min_position_1=None), None, PASS, []),
        (measured(GOOD), limits(min_rate=0.8), None, FAIL, ["DG803"]),
        (measured(GOOD), limits(min_rate=0.7, min_mean_length=None), None, PASS, []),
        # Exactly at the limit is enough
        (measured([0.4, 0.4, 0.2]), limits(min_mean_length=2.0), None, PASS, []),
        # Trimmed drafts: the rate is by draft tokens, the length by drafts
        (measured(GOOD, drafted=1500), limits(min_rate=0.99), None, PASS, []),
        # Drafts
        (measured(GOOD, drafts=199), limits(), None, INCONCLUSIVE, ["DG811"]),
        (measured([0.0] * 4, drafts=199), limits(), None, INCONCLUSIVE, ["DG811"]),
        (measured(GOOD, drafts=3), limits(min_drafts=None), None, PASS, []),
        (measured(GOOD, drafts=0), limits(), None, FAIL, ["DG801"]),
        (measured(GOOD, drafts=0), limits(min_drafts=None), None, FAIL, ["DG801"]),
        # Against the last green evidence
        (measured([0.8, 0.7, 0.6, 0.5]), limits(), green(GOOD), PASS, []),  # τ 3.6 of 4.0: -10 %
        (measured([0.8, 0.6, 0.5, 0.4]), limits(), green(GOOD), FAIL, ["DG805"]),  # τ 3.3 of 4.0: -17.5 %
        (measured([0.8, 0.6, 0.5, 0.4]), limits(max_regression=None), green(GOOD), PASS, []),
        (measured([0.8, 0.6, 0.5, 0.4]), limits(max_regression=0.2), green(GOOD), PASS, []),
        # another k: only the common positions are compared
        (measured([0.9, 0.8]), limits(), green(GOOD), PASS, []),
        (measured([0.7, 0.6, 0.6, 0.6, 0.6, 0.6]), limits(), green([0.9, 0.9]), FAIL, ["DG805"]),
        # Speed
        (measured(GOOD), limits(min_speedup=1.3), None, INCONCLUSIVE, ["DG806"]),
        (measured(GOOD, baseline=SLOW), limits(min_speedup=1.4), None, PASS, []),
        (measured(GOOD, baseline=SLOW), limits(min_speedup=1.6), None, FAIL, ["DG806"]),
        (measured(INCIDENT), limits(min_speedup=1.3), None, FAIL, ["DG802", "DG804", "DG806"]),
        # Without speculation there is nothing to accept
        ({**measured(GOOD), "num_speculative_tokens": 0, "acceptance": None}, limits(), None, PASS, []),
    ],
)  # fmt: skip
def test_verdicts(
    measurement: dict[str, Any],
    thresholds: dict[str, Any],
    reference: dict[str, Any] | None,
    verdict: str,
    codes: list[str],
) -> None:
    decided = decide(json.loads(json.dumps(measurement)), thresholds, reference)
    assert (decided.verdict, [reason["code"] for reason in decided.reasons]) == (verdict, codes)
    for reason in decided.reasons:
        assert set(reason) == {"code", "message", "field", "observed", "expected"}
        assert reason["message"].startswith((decision.BAD, decision.FEW, decision.UNMEASURED))


@pytest.mark.parametrize(
    ("code", "verdict"),
    [
        ("DG821", FAIL),
        ("DG822", FAIL),
        ("DG823", INCONCLUSIVE),
        ("DG824", FAIL),
        ("DG825", FAIL),
        ("DG826", FAIL),
        ("DG827", INCONCLUSIVE),
    ],
)
def test_what_could_not_be_measured_never_passes(code: str, verdict: str) -> None:
    problem = {"code": code, "message": "why", "field": "engine", "observed": 1, "expected": 2}
    decided = decide(measured(GOOD, problem=problem), limits())
    assert decided.verdict == verdict
    assert [reason["message"] for reason in decided.reasons] == ["Could not measure: why"]


def test_the_three_failures_are_told_apart() -> None:
    assert decide(measured(INCIDENT), limits()).reasons[0]["message"].startswith("Measured and bad")
    assert decide(measured(GOOD, drafts=9), limits()).reasons[0]["message"].startswith("Not enough samples")
    assert decide(measured(GOOD), limits(min_speedup=2)).reasons[0]["message"].startswith("Could not measure")


def test_a_rate_is_explained_at_this_k() -> None:
    assert meaning(0.33, 3) == "a rate of 33.0 % at k=3 is τ 1.99"
    assert meaning(0.067, 15).endswith("τ 2.00")
    decided = decide(measured(INCIDENT), limits(min_rate=0.067))
    assert "τ 2.00" in decided.reasons[1]["message"] and "0.8 %" in decided.reasons[1]["message"]


def test_a_regression_names_the_release_and_both_figures() -> None:
    message = decide(measured([0.8, 0.6, 0.5, 0.4]), limits(), green(GOOD)).reasons[0]["message"]
    for words in ("3.30", "4.00", "0fb9a3a1b1a8", "2026-11-30", "18 %", "15 %"):
        assert words in message


def test_notes_do_not_change_the_verdict() -> None:
    weak = {"workload": "prose", "drafts": 80, "mean_acceptance_length": 1.2}
    few = {"workload": "list", "drafts": 3, "mean_acceptance_length": 1.0}
    decided = decide(measured(GOOD, workloads=[weak, few], repeating=["prose-01"]), limits())
    assert decided.verdict == PASS
    assert [note["code"] for note in decided.notes] == ["DG831", "DG832"]
    assert "prose" in decided.notes[0]["message"] and "prose-01" in decided.notes[1]["message"]
    assert decide(measured(INCIDENT, workloads=[weak]), limits()).notes == []  # all of it is bad


def test_a_reference_without_rates_is_noted() -> None:
    decided = decide(measured(GOOD), limits(), {"release": "r", "acceptance": {"per_position": []}})
    assert (decided.verdict, [note["code"] for note in decided.notes]) == (PASS, ["DG833"])


@pytest.mark.parametrize("name", sorted(DEFAULTS))
@pytest.mark.parametrize("value", [math.nan, math.inf, -0.1, "0.5", True, [1]])
def test_what_is_no_threshold(name: str, value: Any) -> None:
    with pytest.raises(InputError) as caught:
        validate_thresholds({name: value})
    assert name in str(caught.value)


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        ({"acceptance_min_rate": 1.01}, "acceptance_min_rate"),
        ({"acceptance_min_mean_length": 0.9}, "at least 1"),
        ({"acceptance_min_drafts": 0}, "acceptance_min_drafts"),
        ({"acceptance_min_drafts": 10.5}, "acceptance_min_drafts"),
        ({"acceptance_min_mean_lenght": 2.0}, "acceptance_min_mean_lenght is no threshold"),
        ({"acceptance_min_mean_length": None}, "one has to be set"),
    ],
)
def test_thresholds_that_mean_nothing(wrong: dict[str, Any], says: str) -> None:
    with pytest.raises(InputError, match=says):
        validate_thresholds(wrong)
    with pytest.raises(InputError):
        decide(measured(GOOD), wrong)


def test_all_wrong_thresholds_are_in_one_error() -> None:
    with pytest.raises(InputError) as caught:
        validate_thresholds({"acceptance_min_rate": "x", "acceptance_min_drafts": -1})
    assert len(caught.value.details["problems"]) == 2


def test_defaults_are_filled_in() -> None:
    assert validate_thresholds({"acceptance_min_rate": 0.5}) == {**DEFAULTS, "acceptance_min_rate": 0.5}
    assert validate_thresholds({"acceptance_min_rate": 0.5, "acceptance_min_mean_length": None})


def test_a_length_that_k_can_never_reach_is_refused() -> None:
    assert validate_thresholds({"acceptance_min_mean_length": 4.0}, 3)
    with pytest.raises(InputError, match="at most 4"):
        validate_thresholds({"acceptance_min_mean_length": 4.1}, 3)
