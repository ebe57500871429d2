"""What the one at 3 am reads: each state in one screen, with what to type."""

from __future__ import annotations

import errno
import os
import shlex
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from draftgate import __main__ as command
from draftgate import journal, release, status, verdicts
from draftgate.clocks import Clocks
from draftgate.layout import Home

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


MIB = {"f_frsize": 4096, "f_bfree": 256, "f_bavail": 256, "f_files": 100, "f_ffree": 50}


@pytest.mark.parametrize(
    ("changes", "user", "full"),
    [
        ({}, 0, False),
        ({"f_bfree": 0, "f_bavail": 0}, 0, True),
        ({"f_bfree": 3, "f_bavail": 3}, 0, True),
        ({"f_bavail": 0}, 0, False),
        ({"f_bavail": 0}, 1000, True),
        ({"f_ffree": 0}, 0, True),
        ({"f_files": 0, "f_ffree": 0}, 0, False),
    ],
    ids=[
        "room",
        "no block",
        "12 KiB",
        "root's reserve",
        "another's reserve",
        "no inode",
        "inodes made as needed",
    ],
)
@pytest.mark.parametrize("running", [True, False])
def test_an_open_switch_on_a_full_disk_is_said_to_need_room(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    changes: dict[str, int],
    user: int,
    full: bool,
    running: bool,
) -> None:
    home = Home(str(tmp_path))
    candidate = {"id": "b", "release": "bb"}
    opened = journal.Journal(home.journal, lambda: 1.0)
    opened.append("prepared", switch="t-b", candidate=candidate, previous=None)
    monkeypatch.setattr(os, "statvfs", lambda _path: SimpleNamespace(**{**MIB, **changes}))
    monkeypatch.setattr(os, "geteuid", lambda: user)
    monkeypatch.setattr(status, "_job_runs", lambda _backend: running)
    said = status.read(home, None, Clocks())["next_step"]
    assert said.startswith("A switch is at prepared")
    assert (f"no room on the disk of {home.root}" in said) == full
    assert ("recover" in said) == (not running) and ("goes on by itself" in said) == (full and running)
    opened.append("restored")
    assert "room" not in status.read(home, None, Clocks())["next_step"]


@pytest.mark.parametrize("name", ["status", "recover", "abort", "evidence", "switch --attempt t"])
@pytest.mark.parametrize(
    ("error", "said"),
    [
        (
            OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), "/h/state/journal.jsonl"),
            "draftgate: /h/state/journal.jsonl: No space left on device."
            " Make room on its disk and run the same again.\n",
        ),
        (PermissionError(errno.EACCES, "Permission denied", "/h"), "draftgate: /h: Permission denied.\n"),
        (OSError("odd"), "draftgate: odd.\n"),
    ],
    ids=["full", "refused", "unknown"],
)
def test_what_the_system_refuses_is_one_sentence_and_no_verdict(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    name: str,
    error: OSError,
    said: str,
) -> None:
    def refused(*_: Any) -> None:
        raise error

    for part in ("_backend", "read_json"):
        monkeypatch.setattr(command, part, refused)
    monkeypatch.setattr(release, "current_evidence", refused)
    code = command.main(["--home", str(tmp_path), *shlex.split(name)])
    assert capsys.readouterr().err == said
    assert code not in (1, *verdicts.VERDICT_EXIT_CODES)
