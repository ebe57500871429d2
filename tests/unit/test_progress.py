"""Whoever watches a job sees that time passes, and sees no line twice."""

from __future__ import annotations

from typing import Any

import pytest
from draftgate import controller, progress

STATE: dict[str, Any] = {
    "stage": "start",
    "done": 0,
    "total": 0,
    "detail": "waiting for /health",
    "started": 100.0,
    "updated": 101.0,
    "remaining": 60.0,
}


@pytest.mark.parametrize(
    ("remaining", "expected"),
    [
        (60.0, "gpu1 | switch | start | waiting for /health | 41s, ~20s left"),
        (10.0, "gpu1 | switch | start | waiting for /health | 41s, ~0s left"),
        (None, "gpu1 | switch | start | waiting for /health | 41s"),
    ],
)
def test_time_passes_while_a_job_has_nothing_to_report(remaining: float | None, expected: str) -> None:
    seen = progress.seen_at({**STATE, "remaining": remaining}, 141.0)
    assert progress.line("gpu1", "switch", seen) == expected


def test_a_job_that_has_not_reported_yet_stays_unseen() -> None:
    assert progress.seen_at({}, 141.0) == {}


@pytest.mark.parametrize(
    ("looks", "shown"),
    [
        ([{}, {}], 0),
        ([{"updated": 101.0}, {"updated": 105.0}, {"updated": 109.0}], 1),
        ([{"updated": 101.0}, {"updated": 105.0}, {"updated": 116.0}, {"updated": 120.0}], 2),
        ([{"updated": 101.0}, {"updated": 105.0, "detail": "waiting for its model"}], 2),
        ([{"updated": 101.0}, {"updated": 105.0, "stage": "gate"}, {"updated": 106.0, "done": 1}], 3),
    ],
)
def test_a_line_comes_with_news_or_every_15_seconds(looks: list[dict[str, Any]], shown: int) -> None:
    answers: list[dict[str, Any]] = [
        {"attempt": "a", "job": {"running": True, "progress": {**STATE, **look} if look else {}}}
        for look in looks
    ]
    pending = iter([*answers, {"changed": True}])
    lines: list[str] = []
    result = controller.follow(lambda _: next(pending), lines.append, "gpu1", "switch")
    assert result["changed"] is True
    assert len(lines) == shown
