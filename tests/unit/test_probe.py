"""A tokenizer on one page: the fields, the table, the module and the verb."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import unicodedata
from pathlib import Path
from typing import Any

import pytest
from draftgate.errors import InputError
from draftgate.probe import probe, table

from tests.conftest import REPO, CallModule
from tests.model_files import TARGET_27B, read_json, write_json, write_pair_27b

TINY = REPO / "models/tiny-pair/target"
FIELDS = {
    "vocab_size", "length", "bos_token_id", "eos_token_id", "pad_token_id", "added_tokens", "unused_rows",
    "mask_candidates", "window", "findings",
}  # fmt: skip


def test_the_fields_of_the_tiny_target() -> None:
    result = probe(str(TINY), mask_token_id=512)
    assert set(result) >= FIELDS
    assert (result["vocab_size"], result["length"]) == (544, 515)
    assert (result["bos_token_id"], result["eos_token_id"], result["pad_token_id"]) == (0, [2, 0], 0)
    assert result["unused_rows"] == {"first": 515, "last": 543}
    assert result["added_tokens"][-1] == {
        "id": 514,
        "token": "<|audio_pad|>",
        "special": True,
        "files": ["tokenizer_config.json"],
    }
    best = result["mask_candidates"][0]
    assert (best["id"], best["token"], best["known"]) == (512, "<|audio_start|>", False)
    assert result["findings"] == []
    assert json.loads(json.dumps(result)) == result


def test_a_window_shows_pieces_as_people_read_them() -> None:
    rows = {row["id"]: row for row in probe(str(TINY), window={"first": 510, "last": 545})["window"]}
    assert list(rows) == list(range(510, 546))
    assert rows[510] == {
        "id": 510,
        "token": "Ġbalan",
        "text": " balan",
        "kind": "piece",
        "special": False,
        "roles": [],
    }
    assert (rows[512]["kind"], rows[515]["kind"], rows[544]["kind"]) == ("added", "unused", "no_row")


def test_without_a_wish_the_window_is_the_end_and_the_claimed_mask() -> None:
    ids = [row["id"] for row in probe(str(TINY), mask_token_id=300)["window"]]
    assert ids == [*range(296, 305), *range(483, 519)]
    assert [row["id"] for row in probe(str(TINY), mask_token_id=9**20)["window"]] == list(range(483, 519))


@pytest.mark.parametrize("path", [TINY, TINY / "tokenizer.json"])
@pytest.mark.parametrize("config", [None, str(TINY), str(TINY / "config.json"), {"vocab_size": 544}])
def test_path_and_config_are_named_in_several_ways(path: Path, config: Any) -> None:
    assert probe(str(path), config=config)["vocab_size"] == 544


def test_the_config_of_another_directory_is_resolved_to_its_text_part(tmp_path: Path) -> None:
    _, target = write_pair_27b(tmp_path)
    (tmp_path / "elsewhere").mkdir()
    (target / "config.json").rename(tmp_path / "elsewhere/config.json")
    alone = probe(str(target))
    assert alone["vocab_size"] is None and [one["code"] for one in alone["findings"]] == ["DG309"]
    assert alone["unused_rows"] is None
    result = probe(str(target), config=str(tmp_path / "elsewhere"), mask_token_id=151669)
    assert result["vocab_size"] == 248320
    assert [one["id"] for one in result["mask_candidates"][:2]] == [248070, 248077]
    assert [one["code"] for one in result["findings"]] == ["DG207"]


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"path": "/no/such/place"}, "there is no '/no/such/place'"),
        ({"config": "/no/such/config.json"}, "reading the target's config.json"),
        ({"window": {"first": 5, "last": 4}}, "it goes from 5 to 4"),
        ({"window": {"first": -1, "last": 4}}, "it goes from -1 to 4"),
        ({"window": {"first": 0}}, "it goes from 0 to None"),
        ({"window": {"first": 0, "last": 4096}}, "at most 4096 together"),
    ],
)
def test_a_wish_that_cannot_be_understood(options: dict[str, Any], said: str) -> None:
    with pytest.raises(InputError) as caught:
        probe(**{"path": str(TINY), **options})
    assert said in str(caught.value)


def test_the_table_says_what_the_files_say() -> None:
    text = table(probe(str(TINY), mask_token_id=300))
    lines = text.splitlines()
    assert lines[:7] == [
        "tokenizer     fast BPE (tokenizer.json)",
        "embedding     544 rows",
        "in use        ids 0 to 514; rows 515 to 543 are unused",
        "bos           0 <|endoftext|>",
        "eos           2 <|im_end|>, 0 <|endoftext|>",
        "pad           0 <|endoftext|>",
        "added tokens  21: 0-17, 512-514; 512-514 not in tokenizer.json",
    ]
    assert ">    300  'th'" in lines
    assert f"     512  {'<|audio_start|>':44}  special, only in tokenizer_config.json" in lines
    assert f"     515  {'':44}  unused row" in lines
    assert "       …" in lines  # between the claimed mask and the end
    assert "  1. 512     <|audio_start|>: for audio, image or video (one of 3)" in text
    assert "They are hints: the drafter's own revision, or a measurement, decides." in text
    assert "a search by name cannot find it" in " ".join(text.split())
    assert "mask 300: wrong" in lines
    assert "DG207 error: The mask is the piece 'th' (id 300)" in text


def columns(line: str) -> int:
    return sum(2 if unicodedata.east_asian_width(letter) in "WF" else 1 for letter in line)


def test_the_table_is_at_most_100_columns_wide(tmp_path: Path) -> None:
    """Long pieces, letters of two columns, control characters, many names of one role."""
    vocab = {"漢" * 60: 0, "x" * 300: 1, "\n\t\x00": 2, "é" * 90: 3, "\u202e": 4}
    added = [{"id": 5 + number, "content": f"<{'y' * 80}{number}>", "special": True} for number in range(9)]
    write_json(tmp_path / "tokenizer.json", {"added_tokens": added, "model": {"type": "BPE", "vocab": vocab}})
    lines = table(probe(str(tmp_path), config={"vocab_size": 99, "eos_token_id": [5, 6, 7]})).splitlines()
    assert max(map(columns, lines)) <= 100
    assert not [line for line in lines if not line.isprintable()]


def test_the_table_of_a_directory_without_a_tokenizer(tmp_path: Path) -> None:
    text = table(probe(str(tmp_path), config={}))
    assert "tokenizer     none (no file)" in text and "None are known." in text
    assert "DG302" in text and "DG309" in text and "search by name" not in text


def test_the_module_reports_and_changes_nothing(call_module: CallModule) -> None:
    for check_mode in (False, True):
        result = call_module(
            "tokenizer_probe",
            {"path": str(TINY), "window": {"first": 512, "last": 512}, "mask_token_id": 300},
            check_mode=check_mode,
        )
        assert result["failed"] is False and result["changed"] is False
        assert [row["token"] for row in result["window"]] == ["<|audio_start|>"]
        assert [one["code"] for one in result["findings"]] == ["DG207"]
        assert result["report"][0] == "tokenizer     fast BPE (tokenizer.json)"


def test_the_module_fails_with_one_clear_error(call_module: CallModule, tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json").write_text("{")
    result = call_module("tokenizer_probe", {"path": str(tmp_path)})
    assert result["failed"] is True and result["error"]["code"] == "DG301"


def command(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "draftgate", "probe", *arguments],
        env={"PYTHONPATH": str(REPO / "module_utils"), **environment},
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (["--mask", "512"], 0, "mask 512: nothing speaks against it, which is no proof"),
        (["--mask", "300"], 1, "mask 300: wrong"),
        (["--window", "298:298"], 0, "     298  ' to'"),
        (["--window", "298"], 2, "'298' is not two ids, as in 248040:248080"),
        (["--window", "9:3"], 1, "it goes from 9 to 3"),
        (["--config", "/no/such/file"], 1, "config.json"),
    ],
)
def test_the_verb(arguments: list[str], code: int, said: str) -> None:
    done = command(str(TINY), *arguments)
    assert done.returncode == code and said in done.stdout + done.stderr
    assert "Traceback" not in done.stderr


def test_the_verb_gives_json_and_needs_neither_home_nor_utf8(tmp_path: Path) -> None:
    write_json(tmp_path / "tokenizer.json", {"model": {"type": "BPE", "vocab": {"漢": 0}}})
    write_json(tmp_path / "config.json", {"vocab_size": 1})
    done = command(str(tmp_path), "--json")
    assert json.loads(done.stdout) == probe(str(tmp_path))
    assert "\\u6f22" in command(str(tmp_path), PYTHONIOENCODING="latin-1").stdout


def test_the_27b_target_reads_as_the_incident_needed_it(tmp_path: Path) -> None:
    _, target = write_pair_27b(tmp_path)
    assert read_json(target / "config.json") == TARGET_27B
    text = table(probe(str(target), window={"first": 248040, "last": 248080}, mask_token_id=151669))
    assert f"  248070  {'<|audio_start|>':44}  special, only in tokenizer_config.json" in text
    assert "248077" in text and "a drafter of exactly this shape" in " ".join(text.split())


@pytest.mark.timeout(10)
def test_a_config_that_is_no_file_is_not_waited_for(tmp_path: Path) -> None:
    write_json(tmp_path / "tokenizer.json", {"model": {"type": "BPE", "vocab": {"a": 0}}})
    os.mkfifo(tmp_path / "config.json")
    with pytest.raises(InputError, match="no regular file"):
        probe(str(tmp_path))
