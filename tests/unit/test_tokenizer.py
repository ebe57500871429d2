"""Names and roles of ids, from all files that know them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from draftgate.errors import InputError
from draftgate.tokenizer import read_tokenizer

from tests.conftest import REPO
from tests.model_files import TARGET_27B, read_json, write_json, write_pair_27b

TINY = REPO / "models/tiny-pair/target"


def test_the_tiny_targets_tokenizer() -> None:
    tokenizer = read_tokenizer(str(TINY), read_json(TINY / "config.json"))
    assert (tokenizer.rows, tokenizer.length) == (544, 515)
    assert tokenizer.special == {"eos": (2, 0), "pad": (0,), "bos": (0,)}
    assert tokenizer.added[512] == "<|audio_start|>"  # in tokenizer_config.json only


@pytest.mark.parametrize(
    ("token_id", "described", "roles", "is_ordinary"),
    [
        (
            0,
            "<|endoftext|>, the end of text and padding and the beginning of text",
            ["eos", "pad", "bos"],
            False,
        ),
        (1, "<|im_start|>", [], False),
        (2, "<|im_end|>, the end of text", ["eos"], False),
        (512, "<|audio_start|>", [], False),
        (515, "an unused row", [], False),
        (543, "an unused row", [], False),
        (544, "no row of the embedding", [], False),
        (-1, "no row of the embedding", [], False),
    ],
)
def test_an_id_in_words(token_id: int, described: str, roles: list[str], is_ordinary: bool) -> None:
    tokenizer = read_tokenizer(str(TINY), read_json(TINY / "config.json"))
    assert tokenizer.describe(token_id) == described
    assert tokenizer.roles(token_id) == roles
    assert tokenizer.is_ordinary(token_id) is is_ordinary


def test_a_multimodal_target_and_an_ordinary_piece(tmp_path: Path) -> None:
    _, target = write_pair_27b(tmp_path)
    tokenizer = read_tokenizer(str(target), TARGET_27B)
    assert (tokenizer.rows, tokenizer.special["eos"]) == (248320, (248046,))
    assert tokenizer.describe(151669) == "the piece 'Ġthe'"
    assert tokenizer.is_ordinary(151669)


NAMED = {"pad_token": {"content": "<p>"}, "added_tokens_decoder": {"3": {"content": "<p>"}}}


@pytest.mark.parametrize(
    ("files", "config", "eos", "pad", "bos"),
    [
        ({}, {"eos_token_id": 7}, (7,), (), ()),
        ({}, {"eos_token_id": [7, 8], "text_config": {"bos_token_id": 1}}, (7, 8), (), (1,)),
        ({"generation_config.json": {"eos_token_id": [8]}}, {"eos_token_id": 7}, (7, 8), (), ()),
        ({"tokenizer_config.json": NAMED}, {}, (), (3,), ()),
        ({}, {"eos_token_id": "7", "bos_token_id": True, "pad_token_id": None}, (), (), ()),
    ],
)
def test_special_ids_come_from_all_files(
    tmp_path: Path, files: dict[str, Any], config: dict[str, Any], eos: Any, pad: Any, bos: Any
) -> None:
    for name, value in files.items():
        write_json(tmp_path / name, value)
    tokenizer = read_tokenizer(str(tmp_path), config)
    assert tokenizer.special == {"eos": eos, "pad": pad, "bos": bos}


def test_without_tokenizer_files_ids_have_no_names(tmp_path: Path) -> None:
    tokenizer = read_tokenizer(str(tmp_path), {"vocab_size": 10, "eos_token_id": 2})
    assert tokenizer.describe(2) == "a row without a known name, the end of text"
    assert not tokenizer.is_ordinary(3)


def test_a_unigram_vocabulary_counts_by_position(tmp_path: Path) -> None:
    vocab = [["<unk>", 0.0], ["▁the", -2.1]]
    write_json(tmp_path / "tokenizer.json", {"model": {"type": "Unigram", "vocab": vocab}})
    assert read_tokenizer(str(tmp_path), {"vocab_size": 2}).piece(1) == "▁the"


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("tokenizer.json", b"", "is empty"),
        ("tokenizer.json", b"{}", "an empty object"),
        ("tokenizer.json", b'{"added_tokens": [', "is not JSON"),
        ("tokenizer.json", b"[]", "a JSON list"),
        ("tokenizer_config.json", b"\xff", "is not UTF-8"),
        ("generation_config.json", b"null", "a JSON NoneType"),
    ],
)
def test_a_broken_tokenizer_file_says_what_is_wrong(
    tmp_path: Path, name: str, content: bytes, said: str
) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(InputError) as caught:
        read_tokenizer(str(tmp_path), {})
    assert caught.value.code == "DG301"
    assert said in str(caught.value) and name in str(caught.value)
