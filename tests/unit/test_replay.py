"""The incident from its files: what nobody was told then is told now, and the true config is clean."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable

import pytest
from draftgate.findings import Finding

from tests import incident
from tests.replay import story

Judge = Callable[[str, str], list[Finding]]
CONFIGS = {"reported": incident.REPORTED, "guessed": incident.GUESSED, "true": incident.TRUE}


@pytest.fixture(scope="module")
def findings(tmp_path_factory: pytest.TempPathFactory) -> Judge:
    """What the files say of one of the configs on one version of vLLM."""
    pair = incident.write_pair(tmp_path_factory.mktemp("incident"))

    @functools.cache
    def judge(config: str, version: str) -> list[Finding]:
        return story.judged(*pair, CONFIGS[config], version).verdict.findings

    return judge


@pytest.mark.parametrize("claim", story.CLAIMS, ids=lambda claim: claim.code)
@pytest.mark.parametrize("config", ["reported", "guessed"])
def test_what_was_wrong_is_said_in_one_run(findings: Judge, config: str, claim: story.Claim) -> None:
    assert claim.finding(findings(config, incident.VERSION)), claim


def test_the_wrong_mask_is_an_error_and_the_candidates_come_in_order(findings: Judge) -> None:
    (mask,) = (one for one in findings("guessed", incident.VERSION) if one.code == "DG207")
    assert mask.severity == "error" and mask.observed["id"] == 151669
    assert 0 < mask.message.index("248070") < mask.message.index("248077")


@pytest.mark.parametrize(
    ("config", "version", "codes"),
    [
        ("true", incident.RIGHT_VERSION, set()),
        ("true", "0.26.0", set()),
        ("true", incident.VERSION, {"DG402", "DG403"}),
        ("true", "0.25.0", {"DG404"}),
        ("guessed", incident.RIGHT_VERSION, {"DG207"}),
    ],
)
def test_errors(findings: Judge, config: str, version: str, codes: set[str]) -> None:
    found = findings(config, version)
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
