"""What the one at 3 am reads: each state in one screen, with what to type."""

from __future__ import annotations

from typing import Any

import pytest
from draftgate import status

STATE: dict[str, Any] = {
    "home": "/h",
    "backend": "supervisord",
    "serving": True,
    "gated": True,
    "healthy": True,
    "release": "aaaaaaaaaaaa",
    "active": "aaaaaaaaaaaa",
    "speculation": True,
    "fallback_of": None,
    "endpoint": "http://127.0.0.1:8000",
    "engine": "http://127.0.0.1:8000",
    "front": None,
    "model": "tiny",
    "activated": 0.0,
    "previous": "000000000000",
    "pid": 7,
    "log": "/h/logs/engine.log",
    "evidence": {
        "verdict": "pass",
        "mean_acceptance_length": 6.07,
        "rate": 0.72,
        "time": "2026-11-30T17:01:50Z",
    },
    "switch": None,
    "last_switch": {"ended": "activated"},
    "next_step": "",
}
CANDIDATE = {
    "gated": False,
    "serving": False,
    "release": "bbbbbbbbbbbb",
    "switch": {"state": "started", "attempt": "t-b", "running": True},
    "next_step": "A switch is at started: wait",
}
REFUSED = {"ended": "restored", "candidate": "bbbbbbbbbbbb", "reason": "τ 1.01, wished ≥ 2"}


@pytest.mark.parametrize(
    ("changes", "said", "unsaid"),
    [
        (
            {},
            ["aaaaaaaaaaaa  serving", "pass, mean acceptance length 6.07", "previous   000000000000"],
            ["next"],
        ),
        ({"endpoint": "http://gpu1:8080", "front": 8000}, ["(front, to http://127.0.0.1:8000)"], ["CLOSED"]),
        ({"endpoint": "http://gpu1:8080", "front": 0}, ["http://gpu1:8080  model tiny  (front, CLOSED"], []),
        (CANDIDATE, ["bbbbbbbbbbbb  UNGATED", "activated  aaaaaaaaaaaa", "next"], ["6.07", "1970"]),
        ({**CANDIDATE, "active": None}, ["activated  nothing yet"], ["6.07"]),
        ({"last_switch": REFUSED}, ["last       release bbbbbbbbbbbb was tried and not kept: τ 1.01"], []),
        (
            {"release": None, "last_switch": REFUSED, "next_step": "make deploy"},
            ["nothing is deployed", "τ 1.01"],
            [],
        ),
        (
            {"healthy": False, "serving": False, "next_step": "recover"},
            ["NOT ANSWERING", "next       recover"],
            [],
        ),
        (
            {"fallback_of": "cccccccccccc", "evidence": None},
            ["WITHOUT speculation (fallback of cccccccccccc)"],
            [],
        ),
    ],
)
def test_the_table_says_what_is_and_what_to_type(
    changes: dict[str, Any], said: list[str], unsaid: list[str]
) -> None:
    text = status.table({**STATE, **changes})
    assert [part for part in said if part not in text] == []
    assert [part for part in unsaid if part in text] == []
