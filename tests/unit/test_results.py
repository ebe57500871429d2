"""A killed ``make test-long`` goes on where it stopped, and other code starts from nothing."""

from __future__ import annotations

import json
from pathlib import Path

from tests.results import LongCases, code_digest


def test_passed_cases_are_kept_for_the_same_code_only(tmp_path: Path) -> None:
    path = tmp_path / "docs" / "long.json"
    LongCases(path, "digest").add("tests/e2e/test_x.py::test_kill[gated]", 12.34)
    assert LongCases(path, "digest").passed["tests/e2e/test_x.py::test_kill[gated]"]["seconds"] == 12.3
    assert LongCases(path, "another").passed == {}


def test_a_record_says_what_it_speaks_for(tmp_path: Path) -> None:
    path = tmp_path / "long.json"
    LongCases(path, code_digest()).add("case", 1)
    record = json.loads(path.read_text("utf-8"))
    assert (record["code"], len(record["commit"]), list(record["cases"])) == (code_digest(), 40, ["case"])
