"""Names, roles and texts of ids, from all files that know them."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
from draftgate.errors import InputError
from draftgate.tokenizer import FAST, NONE, SENTENCEPIECE, TIKTOKEN, Tokenizer, read_tokenizer
from draftgate.tokenizer_agreement import judge_agreement
from draftgate.tokenizer_findings import judge_files
from draftgate.tokenizer_text import PieceDecoder, byte_alphabet, readable

from tests.conftest import REPO
from tests.model_files import TARGET_27B, read_json, write_json, write_pair_27b

TINY = REPO / "models/tiny-pair/target"


def read(root: Path, files: dict[str, Any], rows: int | None = None) -> Tokenizer:
    """The tokenizer of these files; bytes are written as they are, all else as JSON."""
    for name, value in files.items():
        if isinstance(value, bytes):
            (root / name).write_bytes(value)
        else:
            write_json(root / name, value)
    return read_tokenizer(str(root), {} if rows is None else {"vocab_size": rows})


def fast(vocab: Any, added: Any = (), **more: Any) -> dict[str, Any]:
    return {"added_tokens": list(added), "model": {"type": "BPE", "vocab": vocab, "merges": []}, **more}


def token(number: int, content: str, special: bool = True) -> dict[str, Any]:
    return {"id": number, "content": content, "special": special}


# Ids


def test_the_tiny_targets_tokenizer() -> None:
    tokenizer = read_tokenizer(str(TINY), read_json(TINY / "config.json"))
    assert (tokenizer.rows, tokenizer.length) == (544, 515)
    assert (tokenizer.kind, tokenizer.model, tokenizer.files) == (FAST, "BPE", ("tokenizer.json",))
    assert tokenizer.special == {"eos": (2, 0), "pad": (0,), "bos": (0,)}
    assert tokenizer.added[512] == "<|audio_start|>"
    assert tokenizer.added_tokens[512].files == ("tokenizer_config.json",)
    assert tokenizer.added_tokens[0].files == ("tokenizer.json", "tokenizer_config.json")
    assert "<|im_start|>" in tokenizer.template and judge_files(tokenizer) == []


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
        (298, "the piece ' to'", [], True),
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
    assert tokenizer.is_ordinary(151669)


NAMED = {"pad_token": {"content": "<p>"}, "added_tokens_decoder": {"3": {"content": "<p>"}}}


@pytest.mark.parametrize(
    ("files", "config", "eos", "pad", "bos"),
    [
        ({}, {"eos_token_id": 7}, (7,), (), ()),
        ({}, {"eos_token_id": [7, 8], "text_config": {"bos_token_id": 1}}, (7, 8), (), (1,)),
        ({"generation_config.json": {"eos_token_id": [8]}}, {"eos_token_id": 7}, (7, 8), (), ()),
        ({"tokenizer_config.json": NAMED}, {}, (), (3,), ()),
        (
            {"tokenizer.json": fast({"<s>": 5}), "special_tokens_map.json": {"bos_token": "<s>"}},
            {},
            (),
            (),
            (5,),
        ),
        ({}, {"eos_token_id": "7", "bos_token_id": True, "pad_token_id": -1}, (), (), ()),
    ],
)
def test_special_ids_come_from_all_files(
    tmp_path: Path, files: dict[str, Any], config: dict[str, Any], eos: Any, pad: Any, bos: Any
) -> None:
    for name, value in files.items():
        write_json(tmp_path / name, value)
    assert read_tokenizer(str(tmp_path), config).special == {"eos": eos, "pad": pad, "bos": bos}


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        ({"tokenizer.json": fast({}, [token(1, "<a>", False)])}, {1: ("<a>", False, ["tokenizer.json"])}),
        (
            {"tokenizer_config.json": {"added_tokens_decoder": {"9": {"content": "<b>", "special": True}}}},
            {9: ("<b>", True, ["tokenizer_config.json"])},
        ),
        ({"added_tokens.json": {"<c>": 4}}, {4: ("<c>", False, ["added_tokens.json"])}),
        (
            {"tokenizer.json": fast({}, [token(4, "<c>", False)]), "added_tokens.json": {"<c>": 4}},
            {4: ("<c>", False, ["tokenizer.json", "added_tokens.json"])},
        ),
        ({"tokenizer.json": fast({}, [token(1, "")])}, {}),
    ],
)
def test_added_tokens_come_from_all_files(tmp_path: Path, files: dict[str, Any], expected: Any) -> None:
    tokens = read(tmp_path, files).added_tokens
    assert {number: (one.name, one.special, list(one.files)) for number, one in tokens.items()} == expected


@pytest.mark.parametrize(
    ("model", "length", "pieces"),
    [
        ({"type": "BPE", "vocab": {"a": 0, "Ġb": 1}}, 2, {0: "a", 1: "Ġb"}),
        ({"type": "WordPiece", "vocab": {"[UNK]": 0, "##ing": 7}}, 8, {7: "##ing", 3: None}),
        ({"type": "WordLevel", "vocab": {"word": 3}}, 4, {3: "word"}),
        ({"type": "Unigram", "vocab": [["<unk>", 0.0], ["▁the", -2.1]]}, 2, {1: "▁the", 2: None}),
        ({"type": "Other"}, 0, {0: None}),
        (None, 0, {}),
    ],
)
def test_kinds_of_vocabularies(tmp_path: Path, model: Any, length: int, pieces: dict[int, Any]) -> None:
    tokenizer = read(tmp_path, {"tokenizer.json": {"model": model}})
    assert tokenizer.length == length
    assert {number: tokenizer.piece(number) for number in pieces} == pieces


@pytest.mark.parametrize(
    "files",
    [
        {"tokenizer_config.json": {"chat_template": "say <x>"}},
        {"tokenizer_config.json": {"chat_template": [{"name": "default", "template": "say <x>"}]}},
        {"chat_template.jinja": b"say <x>"},
        {"chat_template.json": {"chat_template": "say <x>"}},
        {"additional_chat_templates/tool_use.jinja": b"say <x>"},
    ],
)
def test_a_chat_template_is_found(tmp_path: Path, files: dict[str, Any]) -> None:
    (tmp_path / "additional_chat_templates").mkdir()
    assert "<x>" in read(tmp_path, files).template


# Kinds: what is no tokenizer.json is recognised, and what it would take to read it is said.

SENTENCEPIECE_MODEL = b"\x0a\x0e\x0a\x05<unk>\x15\x00\x00\x00\x00\x18\x02"
RANKS = b"IQ== 0\nIg== 1\n"


@pytest.mark.parametrize(
    ("files", "kind", "named", "code", "said"),
    [
        ({"tokenizer.json": fast({"a": 0}), "tokenizer.model": RANKS}, FAST, "tokenizer.json", "", ""),
        ({"tokenizer.model": SENTENCEPIECE_MODEL}, SENTENCEPIECE, "tokenizer.model", "DG304", "protobuf"),
        ({"spiece.model": SENTENCEPIECE_MODEL}, SENTENCEPIECE, "spiece.model", "DG304", "protobuf"),
        ({"source.spm": SENTENCEPIECE_MODEL}, SENTENCEPIECE, "source.spm", "DG304", "sentencepiece"),
        ({"tokenizer.model": RANKS}, TIKTOKEN, "tokenizer.model", "DG305", "tiktoken"),
        ({"qwen.tiktoken": RANKS}, TIKTOKEN, "qwen.tiktoken", "DG305", "tiktoken"),
        ({"tiktoken.model": RANKS}, TIKTOKEN, "tiktoken.model", "DG305", "tiktoken"),
        (
            {"tokenization_kimi.py": b"import tiktoken\n"},
            TIKTOKEN,
            "tokenization_kimi.py",
            "DG305",
            "tiktoken",
        ),
        ({}, NONE, "", "DG302", ""),
    ],
)
def test_a_kind_is_recognised(
    tmp_path: Path, files: dict[str, Any], kind: str, named: str, code: str, said: str
) -> None:
    tokenizer = read(tmp_path, files, rows=10)
    assert (tokenizer.kind, ", ".join(tokenizer.files)) == (kind, named)
    found = [(one.code, named in one.message, said in one.fix) for one in judge_files(tokenizer)]
    assert found == ([(code, True, True)] if code else [])


def test_without_tokenizer_files_ids_have_no_names(tmp_path: Path) -> None:
    tokenizer = read_tokenizer(str(tmp_path), {"vocab_size": 10, "eos_token_id": 2})
    assert tokenizer.describe(2) == "a row without a known name, the end of text"
    assert not tokenizer.is_ordinary(3)
    assert tokenizer.text(3) is None


# Text


@pytest.mark.parametrize(
    ("decoder", "piece", "data"),
    [
        ({"type": "ByteLevel"}, "Ġthe", b" the"),
        ({"type": "ByteLevel"}, "Ċ", b"\n"),
        ({"type": "ByteLevel"}, "Ã©", "é".encode()),
        ({"type": "ByteLevel"}, "ä½", b"\xe4\xbd"),
        ({"type": "ByteLevel"}, "<｜User｜>", "<｜User｜>".encode()),  # not of the alphabet: as it is
        ({"type": "ByteLevel"}, "a b", b"a b"),
        (
            {
                "type": "Sequence",
                "decoders": [
                    {"type": "Replace", "pattern": {"String": "▁"}, "content": " "},
                    {"type": "ByteFallback"},
                    {"type": "Fuse"},
                ],
            },
            "▁the▁",
            b" the ",
        ),
        ({"type": "Sequence", "decoders": [{"type": "ByteFallback"}]}, "<0x0A>", b"\n"),
        ({"type": "Sequence", "decoders": [{"type": "ByteFallback"}]}, "<0xe4>", b"\xe4"),
        ({"type": "Sequence", "decoders": [{"type": "ByteFallback"}]}, "<0xZZ>", b"<0xZZ>"),
        (
            {"type": "Sequence", "decoders": [{"type": "Sequence", "decoders": [{"type": "ByteLevel"}]}]},
            "Ġa",
            b" a",
        ),
        ({"type": "Metaspace", "replacement": "▁", "prepend_scheme": "always"}, "▁a", b" a"),
        ({"type": "Metaspace", "replacement": "_"}, "_a", b" a"),
        ({"type": "WordPiece", "prefix": "##"}, "##ing", b"##ing"),
        ({"type": "Replace", "pattern": {"Regex": "a+"}, "content": " "}, "aa", b"aa"),
        ({"type": "Replace", "pattern": {"String": ""}, "content": " "}, "aa", b"aa"),
        ({"type": ["ByteLevel"]}, "Ġa", "Ġa".encode()),
        ({"type": "Sequence", "decoders": None}, "Ġa", "Ġa".encode()),
        (None, "Ġa", "Ġa".encode()),
        ("ByteLevel", "Ġa", "Ġa".encode()),
    ],
)
def test_a_piece_is_decoded(decoder: Any, piece: str, data: bytes) -> None:
    assert PieceDecoder(decoder)(piece) == data


def test_the_byte_alphabet_has_every_byte_once() -> None:
    alphabet = byte_alphabet()
    assert sorted(alphabet.values()) == list(range(256))
    assert (alphabet["Ġ"], alphabet["a"], alphabet["é"]) == (0x20, 0x61, 0xE9)


@pytest.mark.parametrize(
    ("data", "text"),
    [
        (b" the", " the"),
        ("你".encode(), "你"),
        (b"\xe4\xbd", "<0xE4><0xBD>"),
        ("é".encode() + b"\xff!", "é<0xFF>!"),
        (b"", ""),
    ],
)
def test_a_part_of_a_letter_is_shown_as_bytes(data: bytes, text: str) -> None:
    assert readable(data) == text


def test_an_id_has_the_text_of_its_decoder(tmp_path: Path) -> None:
    tokenizer = read(tmp_path, {"tokenizer.json": fast({"Ġthe": 7, "ä½": 8}, decoder={"type": "ByteLevel"})})
    assert (tokenizer.piece(7), tokenizer.text(7)) == ("Ġthe", " the")
    assert tokenizer.describe(8) == "the piece '<0xE4><0xBD>'"


# What does not fit together

AUDIO = {"tokenizer_config.json": {"added_tokens_decoder": {"3": {"content": "<|audio|>", "special": True}}}}


@pytest.mark.parametrize(
    ("files", "rows", "code", "said"),
    [
        ({"tokenizer.json": fast({"a": 0, "b": 1})}, 2, "", ""),
        ({"tokenizer.json": fast({"a": 0, "b": 1, "c": 2})}, 2, "DG306", "no row for 2 (the piece 'c')"),
        ({"tokenizer.json": fast({"a": 0}, [token(1, "<x>"), token(2, "<y>")])}, 1, "DG306", "1 to 2 (<y>)"),
        (
            {"tokenizer.json": fast({"a": 0}), "tokenizer_config.json": {"pad_token": "<pad>"}},
            4,
            "DG307",
            "pad_token (padding) is <pad>, and no file gives it an id: transformers puts it after the last "
            "token, on row 1",
        ),
        (
            {"tokenizer.json": fast({"a": 0}), "tokenizer_config.json": {"pad_token": "a"}},
            4,
            "",
            "",
        ),
        (
            {"tokenizer.json": fast({"a": 0, "b": 1, "c": 2}, [token(3, "<x>")]), **AUDIO},
            9,
            "DG308",
            "id 3 is <x> in tokenizer.json and <|audio|> in tokenizer_config.json",
        ),
        (
            {"tokenizer.json": fast({"a": 0}, [token(1, "<|audio|>")]), **AUDIO},
            9,
            "DG308",
            "<|audio|> is id 1 in tokenizer.json and 3 in tokenizer_config.json",
        ),
        (
            {"tokenizer.json": fast({"a": 0, "b": 1}), **AUDIO},
            9,
            "DG308",
            "<|audio|> is id 3 in tokenizer_config.json, and transformers appends it as 2",
        ),
        ({"tokenizer.json": fast({"a": 0, "b": 1, "c": 2}), **AUDIO}, 9, "", ""),
        ({"tokenizer.json": fast({"a": 0, "far": 500}), **AUDIO}, 501, "", ""),  # gaps: a cut-down vocabulary
        ({"tokenizer.json": fast({"a": 0})}, None, "DG309", "not known"),
    ],
)
def test_files_that_do_not_fit_together(
    tmp_path: Path, files: dict[str, Any], rows: int | None, code: str, said: str
) -> None:
    tokenizer = read(tmp_path, files, rows)
    found = [*judge_files(tokenizer), *judge_agreement(tokenizer)]
    assert [one.code for one in found] == ([code] if code else [])
    assert said in "".join(one.message for one in found)


# Files that are broken

DEEP = b'{"model": ' + b"[" * 200_000 + b"]" * 200_000 + b"}"


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("tokenizer.json", b"", "is empty"),
        ("tokenizer.json", b"{}", "an empty object"),
        ("tokenizer.json", b'{"added_tokens": [', "is not JSON"),
        (
            "tokenizer.json",
            b'{"model": {"vocab": {"a": 0}, "merges": ["a b"]}, oops}',
            "Expecting property name",
        ),
        ("tokenizer.json", b'{"model": {"vocab": {"a": 0}, "merges": ["a b"]}, oops}', "[]}, oops}'"),
        ("tokenizer.json", b"[]", "a JSON list"),
        ("tokenizer.json", DEEP, "nested deeper than 64"),
        ("tokenizer.json", b"[" + b"0," * 1_000_001 + b"0]", "more than 1000000"),
        ("tokenizer.json", b'{"a": ' + b"9" * 5000 + b"}", "is not JSON"),
        (
            "tokenizer.json",
            b'{"model": {"merges": ["a \xff"]}}',
            '["a \\xff"]',
        ),
        ("tokenizer.json", b'{"model": []}', "model is a JSON list"),
        ("tokenizer.json", b'{"model": {"vocab": "a"}}', "model.vocab is a JSON str"),
        ("tokenizer.json", b'{"model": {"vocab": {"a": "0"}}}', "the id of 'a' is '0'"),
        ("tokenizer.json", b'{"model": {"vocab": {"a": true}}}', "the id of 'a' is True"),
        ("tokenizer.json", b'{"model": {"vocab": {"a": -1}}}', "the id of 'a' is -1"),
        ("tokenizer.json", b'{"model": {"vocab": {"a": 1e30}}}', "the id of 'a' is 1e+30"),
        (
            "tokenizer.json",
            b'{"model": {"vocab": {"a": 1%s}}}' % (b"0" * 30),
            "expected: an id from 0 to 4294967295",
        ),
        ("tokenizer.json", b'{"model": {"vocab": {"\\ud800": 1}}}', "half of a surrogate pair"),
        ("tokenizer.json", b'{"model": {"vocab": ["a"]}}', "model.vocab[0] is a JSON str"),
        ("tokenizer.json", b'{"added_tokens": {}}', "added_tokens is a JSON dict"),
        ("tokenizer.json", b'{"added_tokens": [{"content": "a"}]}', "the id of an added token is None"),
        ("tokenizer.json", b'{"added_tokens": [7]}', "the id of an added token is None"),
        ("tokenizer.json", b'{"added_tokens": [{"id": 1, "content": 5}]}', "added token 1 is a JSON int"),
        (
            "tokenizer.json",
            b'{"added_tokens": [{"id": 1, "content": "\\udfff"}]}',
            "half of a surrogate pair",
        ),
        ("tokenizer_config.json", b"\xff", "is not UTF-8"),
        ("tokenizer_config.json", b'{"added_tokens_decoder": []}', "added_tokens_decoder is a JSON list"),
        ("tokenizer_config.json", b'{"added_tokens_decoder": {"x": {}}}', "the id of an added token is 'x'"),
        (
            "tokenizer_config.json",
            b'{"added_tokens_decoder": {"\xc2\xb2": {}}}',
            "the id of an added token is",
        ),
        (
            "tokenizer_config.json",
            b'{"added_tokens_decoder": {"%s": {}}}' % (b"9" * 9999),
            "the id of an added token",
        ),
        ("added_tokens.json", b'{"<a>": "1"}', "the id of an added token is '1'"),
        ("special_tokens_map.json", b"[]", "a JSON list"),
        ("generation_config.json", b"null", "a JSON NoneType"),
        ("chat_template.json", b"{", "is not JSON"),
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
    assert len(str(caught.value)) < 600


def test_what_is_no_file_is_neither_read_nor_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "tokenizer.json")
    with pytest.raises(InputError, match="DG301.*no regular file"):
        read_tokenizer(str(tmp_path), {})


def test_a_file_is_not_read_beyond_its_limit(tmp_path: Path) -> None:
    with (tmp_path / "tokenizer.json").open("wb") as handle:
        handle.truncate(1 << 40)
    with pytest.raises(InputError, match="DG301.*too large"):
        read_tokenizer(str(tmp_path), {})


def test_numbers_that_are_no_ids_do_no_harm(tmp_path: Path) -> None:
    """model_max_length has 31 digits in many a real tokenizer_config.json."""
    slow = {"model_max_length": 10**30, "eos_token": 5, "pad_token": ["<p>"], "chat_template": {"x": 1}}
    tokenizer = read(
        tmp_path, {"tokenizer_config.json": slow, "generation_config.json": {"eos_token_id": 10**30}}
    )
    assert tokenizer.special == {"eos": (), "pad": (), "bos": ()}
    assert read_tokenizer(str(tmp_path), {"vocab_size": "10"}).rows is None
