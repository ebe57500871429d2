"""The incident from its files: what nobody was told then is told now, and the true config is clean."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from draftgate.findings import Finding

from tests import incident
from tests.replay import story


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    return incident.write_pair(tmp_path_factory.mktemp("incident"))


def findings(pair: tuple[Path, Path], config: Mapping[str, Any], version: str) -> list[Finding]:
    return story.judged(*pair, config, version).verdict.findings


@pytest.mark.parametrize("claim", story.CLAIMS, ids=lambda claim: claim.code)
@pytest.mark.parametrize("config", [incident.REPORTED, incident.GUESSED], ids=["reported", "guessed"])
def test_what_was_wrong_is_said_in_one_run(
    pair: tuple[Path, Path], config: Mapping[str, Any], claim: story.Claim
) -> None:
    assert claim.finding(findings(pair, config, incident.VERSION)), claim


def test_the_wrong_mask_is_an_error_and_the_candidates_come_in_order(pair: tuple[Path, Path]) -> None:
    (mask,) = (one for one in findings(pair, incident.GUESSED, incident.VERSION) if one.code == "DG207")
    assert mask.severity == "error" and mask.observed["id"] == 151669
    assert 0 < mask.message.index("248070") < mask.message.index("248077")


@pytest.mark.parametrize(
    ("config", "version", "codes"),
    [
        (incident.TRUE, incident.RIGHT_VERSION, set()),
        (incident.TRUE, "0.26.0", set()),
        (incident.TRUE, incident.VERSION, {"DG402", "DG403"}),
        (incident.TRUE, "0.25.0", {"DG404"}),
        (incident.GUESSED, incident.RIGHT_VERSION, {"DG207"}),
    ],
)
def test_errors(pair: tuple[Path, Path], config: Mapping[str, Any], version: str, codes: set[str]) -> None:
    found = findings(pair, config, version)
    assert {finding.code for finding in found if finding.severity == "error"} == codes


def test_the_story_is_told_in_few_lines() -> None:
    lines: list[str] = []
    assert story.tell(lines.append, whole=False)
    assert max(map(len, lines)) <= 110 and len(lines) < 60
    told = "\n".join(lines)
    assert "acceptance 0.8 %, τ 1.12" in told and "NOT SAID" not in told
    assert [line for line in lines if re.match("REFUSED|READY", line)][-1].startswith("READY")


def test_a_story_in_which_something_is_not_said_is_not_good(monkeypatch: pytest.MonkeyPatch) -> None:
    lost = story.Claim("Something else.", "DG999", "nowhere", ())
    monkeypatch.setattr(story, "CLAIMS", (*story.CLAIMS, lost))
    lines: list[str] = []
    assert not story.tell(lines.append, whole=True)
    assert any("NOT SAID" in line for line in lines)
