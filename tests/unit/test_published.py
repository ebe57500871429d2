"""The public record: every pair passes as it is, and no mutation of it goes unnamed that files can show."""

from __future__ import annotations

import dataclasses
import sys
from pathlib import Path
from typing import Any

import pytest
from draftgate.contract import judge
from draftgate.findings import ERROR, INFO
from draftgate.published import PUBLISHED, Published

from tests.model_files import read_json, write_json, write_published_pair
from tests.mutations import ENGINE, Survey, facts_of, findings, name_of, survey

WHOLE = Survey()  # of all pairs, filled by the tests of each


Pair = tuple[Published, Path, Path]


@pytest.fixture(scope="module", params=PUBLISHED, ids=name_of)
def pair(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Pair:
    """One entry, and its directories of drafter and target."""
    return (request.param, *write_published_pair(tmp_path_factory.mktemp("pair"), request.param))


def test_a_published_pair_is_not_accused(pair: Pair) -> None:
    entry, drafter, target = pair
    wish: dict[str, Any] = {"engine": ENGINE, "num_speculative_tokens": entry.block_size - 1}
    verdict = judge(str(drafter), str(target), gpu={"count": 2, "arch": "sm_86"}, **wish)
    assert [finding for finding in verdict.findings if finding.severity != INFO] == []
    assert len(verdict.findings) <= 1, "infos are few"


def test_a_mutation_of_a_published_pair_is_named(pair: Pair) -> None:
    facts = facts_of(*pair)
    assert findings(facts) == []
    result = survey(pair[0], facts)
    WHOLE.add_all(result)
    for part in (result, result.of_config):
        assert part.total > 300
        assert part.rate >= 0.95, part.table()


def test_the_table_of_all_mutations() -> None:
    """Printed with ``pytest -s``: what was done, how much of it was named, and what escapes."""
    if len(WHOLE.pairs) < len(PUBLISHED):
        pytest.skip("needs the tests of every pair in this process")
    sys.stdout.write(f"\n{WHOLE.table()}\n")
    assert WHOLE.total >= 5000
    assert WHOLE.rate >= 0.95, WHOLE.table()


def test_without_rules_nothing_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tests.mutations.RULES", ())
    entry = PUBLISHED[0]
    result = survey(entry, facts_of(entry, *write_published_pair(tmp_path, entry)))
    assert result.caught == 0 < result.total


def test_the_record_is_a_hint_where_the_config_says_otherwise(tmp_path: Path) -> None:
    """Both values and the repository; silent where one of several revisions says the same."""
    (entry,) = [entry for entry in PUBLISHED if "Qwen3.6-27B" in entry.repo]
    drafter, target = write_published_pair(tmp_path, entry)
    config = read_json(drafter / "config.json")
    config["dflash_config"]["mask_token_id"] = 248077
    write_json(drafter / "config.json", config)
    wish: dict[str, Any] = {"engine": ENGINE, "num_speculative_tokens": 15}
    found = [each for each in judge(str(drafter), str(target), **wish).findings if each.code == "DG219"]
    assert [finding.field for finding in found] == ["drafter.dflash_config.mask_token_id"]
    assert (
        "248077" in found[0].message
        and "z-lab/Qwen3.6-27B-DFlash has mask_token_id 248070" in found[0].message
    )
    assert found[0].severity != ERROR


def test_two_drafters_of_one_shape_may_differ(tmp_path: Path) -> None:
    """Qwen3-Coder-30B-A3B's and Qwen3-Coder-Next's drafters have the same shapes and other target layers."""
    first, second = (entry for entry in PUBLISHED if "Coder" in entry.repo)

    def codes(ids: tuple[int, ...]) -> list[str]:
        entry = dataclasses.replace(first, layer_ids=ids)
        found = findings(facts_of(entry, *write_published_pair(tmp_path, entry)))
        return [finding.code for finding in found]

    assert codes(second.layer_ids) == []
    assert codes((3, 11, 23, 35, 44)) == ["DG215", "DG219"]
