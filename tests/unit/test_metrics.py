"""Counters and per-request metrics, against recordings of a real vLLM 0.32.0 and against broken texts."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import pytest
from draftgate.errors import MeasureError
from draftgate.metrics import Acceptance, Counters, parse_spec_decode, request_acceptance

RECORDINGS = Path(__file__).with_name("recordings")

SMALL = """\
# TYPE vllm:spec_decode_num_drafts_total counter
vllm:spec_decode_num_drafts_total{engine="0",model_name="m"} 10.0
vllm:spec_decode_num_drafts_created{engine="0",model_name="m"} 1.7960567056952e+09
vllm:spec_decode_num_draft_tokens_total{engine="0",model_name="m"} 30.0
vllm:spec_decode_num_accepted_tokens_total{engine="0",model_name="m"} 9.0
vllm:spec_decode_num_accepted_tokens_per_pos_total{engine="0",model_name="m",position="0"} 6.0
vllm:spec_decode_num_accepted_tokens_per_pos_total{engine="0",model_name="m",position="1"} 2.0
vllm:spec_decode_num_accepted_tokens_per_pos_total{engine="0",model_name="m",position="2"} 1.0
vllm:spec_decode_num_accepted_tokens_per_pos_created{engine="0",model_name="m",position="0"} 1.7e+09
vllm:generation_tokens_total{engine="0",model_name="m"} 19.0
vllm:request_success_total{engine="0",finished_reason="stop",model_name="m"} 2.0
vllm:request_success_total{engine="0",finished_reason="length",model_name="m"} 1.0
"""
COUNTED = Counters(10, 30, 9, (6, 2, 1), 19, 3)


def recording(name: str) -> str:
    return (RECORDINGS / f"metrics-0.32.0-{name}.txt").read_text("utf-8")


def response(name: str) -> dict[str, Any]:
    value: dict[str, Any] = json.loads((RECORDINGS / f"chat-0.32.0-{name}.json").read_text("utf-8"))
    return value


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("before", Counters(0, 0, 0, (0,) * 7, 0, 0)),
        ("healthy", Counters(588, 4116, 2896, (515, 476, 437, 398, 381, 358, 331), 3467, 51)),
        ("wrong-mask", Counters(3329, 23303, 45, (45, 0, 0, 0, 0, 0, 0), 3379, 50)),
        ("no-drafts", Counters(0, 0, 0, (0,) * 7, 3379, 50)),
    ],
)
def test_recordings_are_read(name: str, expected: Counters) -> None:
    assert parse_spec_decode(recording(name)) == expected


def test_a_server_without_speculation_has_no_counters() -> None:
    with pytest.raises(MeasureError) as caught:
        parse_spec_decode(recording("no-speculation"))
    assert caught.value.code == "DG821"
    assert "vllm:spec_decode_num_drafts_total" in str(caught.value)
    assert len(caught.value.details["missing"]) == 4


def test_created_twins_and_comments_do_not_count() -> None:
    assert parse_spec_decode(SMALL) == COUNTED


def test_engines_are_added_up() -> None:
    second = SMALL.replace('engine="0"', 'engine="1"')
    assert parse_spec_decode(SMALL + second) == Counters(20, 60, 18, (12, 4, 2), 38, 6)


@pytest.mark.parametrize(
    "quoted",
    [r"a \"quoted\" name", "with {braces} and a space 7.0", r"back\\slash\nline", r"m\",position=\"9"],
)
def test_labels_may_hold_anything(quoted: str) -> None:
    assert parse_spec_decode(SMALL.replace('model_name="m"', f'model_name="{quoted}"')) == COUNTED


def test_timestamps_and_exponents_are_numbers() -> None:
    text = SMALL.replace(" 30.0\n", " 3e+01 1796056705000\n")
    assert parse_spec_decode(text) == COUNTED


@pytest.mark.parametrize(
    ("before", "after", "shown"),
    [
        (" 30.0", " NaN", "NaN"),
        (" 30.0", " +Inf", "Inf"),
        (" 30.0", " -3.0", "-3.0"),
        (" 30.0", " 30.5", "30.5"),
        (" 30.0", " many", "many"),
        (" 30.0", "", "no sample"),
        ('position="1"', 'position="one"', "one"),
        ('position="1"', 'position="7"', "[0, 2, 7]"),
    ],
)
def test_what_no_counter_says_is_refused(before: str, after: str, shown: str) -> None:
    with pytest.raises(MeasureError) as caught:
        parse_spec_decode(SMALL.replace(before, after))
    assert caught.value.code == "DG822"
    assert shown in str(caught.value)


@pytest.mark.parametrize("counter", ["num_drafts", "num_draft_tokens", "num_accepted_tokens", "per_pos"])
def test_every_counter_is_needed(counter: str) -> None:
    kept = "\n".join(line for line in SMALL.splitlines() if f"{counter}_total" not in line)
    with pytest.raises(MeasureError) as caught:
        parse_spec_decode(kept)
    assert caught.value.code == "DG821"


def test_a_difference_is_what_was_added() -> None:
    later = Counters(15, 45, 12, (8, 3, 1), 40, 5)
    assert later - COUNTED == Counters(5, 15, 3, (2, 1, 0), 21, 2)


@pytest.mark.parametrize(
    "later",
    [
        Counters(0, 0, 0, (0, 0, 0), 0, 0),
        Counters(15, 45, 12, (8, 3, 0), 40, 5),
        Counters(15, 45, 12, (8, 3, 1), 18, 5),
        Counters(15, 45, 12, (8, 3, 1, 0), 40, 5),
    ],
)
def test_a_counter_that_goes_backwards_is_a_restart(later: Counters) -> None:
    with pytest.raises(MeasureError) as caught:
        later - COUNTED
    assert caught.value.code == "DG824"
    assert "restarted" in str(caught.value)


@pytest.mark.parametrize("name", ["detailed", "summary", "no-drafts"])
def test_a_requests_own_metrics_agree_with_what_the_engine_says(name: str) -> None:
    metrics = response(name)["metrics"]
    said = metrics["speculative_decoding"]
    own = request_acceptance(metrics)
    assert (own.drafts, own.draft_tokens) == (said["num_spec_steps"], said["num_draft_tokens"])
    assert own.accepted_tokens == said["num_accepted_draft_tokens"] == sum(own.per_position)
    assert len(own.per_position) == said["num_spec_tokens"]
    if own.drafts:
        assert own.as_dict()["mean_acceptance_length"] == pytest.approx(said["mean_acceptance_length"])
        assert own.as_dict()["rate"] == pytest.approx(said["draft_acceptance_rate"])


def test_positions_follow_from_the_steps() -> None:
    """The histogram and the ordered steps of the ``detailed`` level tell the same."""
    metrics = response("detailed")["metrics"]
    steps = metrics["speculative_decoding"]["per_step_accepted"]
    expected = tuple(sum(1 for accepted in steps if accepted > position) for position in range(7))
    assert request_acceptance(metrics).per_position == expected


@pytest.mark.parametrize(
    "change",
    [
        {"acceptance_histogram": None},
        {"acceptance_histogram": []},
        {"acceptance_histogram": [1, -1]},
        {"acceptance_histogram": [True, 1]},
        {"num_spec_steps": 1},
        {"num_accepted_draft_tokens": 0},
        {"num_draft_tokens": "161"},
    ],
)
def test_metrics_that_contradict_themselves_are_refused(change: dict[str, Any]) -> None:
    metrics = copy.deepcopy(response("detailed")["metrics"])
    metrics["speculative_decoding"].update(change)
    with pytest.raises(MeasureError) as caught:
        request_acceptance(metrics)
    assert caught.value.code == "DG822"


def test_metrics_without_speculation_are_refused() -> None:
    with pytest.raises(MeasureError):
        request_acceptance({"speculative_decoding": None})


def test_rates() -> None:
    figures = Acceptance(10, 30, 9, (6, 2, 1)).as_dict()
    assert figures["rate"] == pytest.approx(0.3)
    assert figures["mean_acceptance_length"] == pytest.approx(1.9)
    assert figures["per_position"] == pytest.approx([0.6, 0.2, 0.1])
    assert Acceptance().as_dict()["mean_acceptance_length"] is None


def test_acceptances_of_different_k_are_added_by_position() -> None:
    assert Acceptance(2, 4, 2, (2,)) + Acceptance(3, 9, 4, (3, 1)) == Acceptance(5, 13, 6, (5, 1))


@pytest.mark.parametrize(
    ("acceptance", "says"),
    [
        (Acceptance(10, 30, 9, (6, 2, 1)), []),
        (Acceptance(0, 0, 0, (0, 0, 0)), []),
        (Acceptance(10, 28, 9, (6, 2, 1)), []),  # the scheduler trims drafts at a token budget
        (Acceptance(10, 30, 8, (6, 2, 1)), ["add up to 9"]),
        (Acceptance(10, 30, 9, (2, 6, 1)), ["more often than an earlier"]),
        (Acceptance(10, 30, 12, (11, 1, 0)), ["more often than an earlier"]),
        (Acceptance(10, 31, 9, (6, 2, 1)), ["31 drafted"]),
        (Acceptance(10, 8, 9, (6, 2, 1)), ["9 accepted"]),
        (Acceptance(10, 20, 8, (6, 2)), ["2 positions"]),
    ],
)
def test_what_cannot_be_true_of_counters(acceptance: Acceptance, says: list[str]) -> None:
    violations = acceptance.violations(3)
    assert len(violations) == len(says)
    for violation, words in zip(violations, says):
        assert words in violation
