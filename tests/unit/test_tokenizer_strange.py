"""Tokenizer files that hold anything: one error of our own, or a tokenizer that answers; nothing else.

``DRAFTGATE_EXAMPLES=5000 pytest tests/unit/test_tokenizer_strange.py`` looks longer.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
import tempfile
import tracemalloc
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from draftgate.errors import InputError
from draftgate.probe import probe, table
from draftgate.tokenizer_json import LateVocabulary, without_long_parts
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

EXAMPLES = int(os.environ.get("DRAFTGATE_EXAMPLES", "100"))
FILES = (
    "tokenizer.json",
    "tokenizer_config.json",
    "generation_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "chat_template.json",
)
KEYS = [
    "model", "vocab", "merges", "type", "added_tokens", "id", "content", "special", "added_tokens_decoder",
    "decoder", "decoders", "pattern", "String", "replacement", "bos_token", "eos_token", "pad_token",
    "eos_token_id", "chat_template", "template", "0", "7", "²", "<mask>", "",
]  # fmt: skip
WORDS = [
    "BPE",
    "Unigram",
    "Sequence",
    "ByteLevel",
    "ByteFallback",
    "Replace",
    "Metaspace",
    "Ġ",
    "<0x0A>",
    "\x00",
]

# Numbers that are no ids, text that is none (half of a surrogate pair), and every JSON type in every place.
scalars = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.sampled_from([-1, 0, 1, 2**31, 2**32, 2**64, 10**30])
    | st.floats()
    | st.text(max_size=8)
    | st.sampled_from([*WORDS, "\ud800", "a\udfffb"])
)
values = st.recursive(
    scalars,
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(st.sampled_from(KEYS) | st.text(max_size=4), inner, max_size=5)
    ),
    max_leaves=20,
)
objects = st.dictionaries(st.sampled_from(KEYS), values, max_size=6)

# Close to a tokenizer, each part of it sometimes something else.
ids = st.integers(0, 12) | scalars
tokens = st.fixed_dictionaries({"id": ids, "content": st.sampled_from(["<a>", "<mask>"]) | scalars})
vocabularies = (
    st.dictionaries(st.text(max_size=3) | st.sampled_from(["Ġa", "\ud800"]), ids, max_size=5)
    | st.lists(st.tuples(st.text(max_size=3), st.floats()) | values, max_size=4)
    | values
)
fast = st.fixed_dictionaries(
    {"model": st.fixed_dictionaries({"type": st.sampled_from(WORDS), "vocab": vocabularies}) | values},
    optional={"added_tokens": st.lists(tokens | values, max_size=4) | values, "decoder": objects | values},
)
slow = st.fixed_dictionaries(
    {},
    optional={
        "added_tokens_decoder": st.dictionaries(
            st.sampled_from(["0", "7", "x", "²", "9" * 12]), tokens | values
        ),
        "pad_token": values,
        "eos_token": tokens | values,
        "chat_template": values,
    },
)


@contextlib.contextmanager
def directory(files: dict[str, Any]) -> Iterator[str]:
    with tempfile.TemporaryDirectory() as root:
        for name, value in files.items():
            content = value if isinstance(value, bytes) else json.dumps(value).encode()
            (Path(root) / name).write_bytes(content)
        yield root


def answers(files: dict[str, Any], config: Any) -> None:
    """All that a probe does; what it tells can be written and shown."""
    with directory(files) as root:
        try:
            result = probe(root, config=config, mask_token_id=3)
        except InputError as exc:
            assert exc.code == "DG301"
            assert any(name in str(exc) for name in files)
            str(exc).encode("utf-8")
            return
    json.dumps(result, ensure_ascii=False, allow_nan=False).encode("utf-8")
    table(result).encode("utf-8")


@settings(max_examples=EXAMPLES, suppress_health_check=[HealthCheck.too_slow], deadline=None)
@given(fast | objects, slow | objects, st.sampled_from(FILES[2:]), objects, objects)
@example({"model": {"vocab": {"a": 10**30}}}, {}, "added_tokens.json", {}, {})
@example(
    {"added_tokens": [{"id": 2**32 - 1, "content": "<x>"}]},
    {},
    "added_tokens.json",
    {"<y>": 0},
    {"vocab_size": 10**30},
)
@example(
    {"model": {"vocab": {}}}, {"eos_token": "\ud800"}, "generation_config.json", {"eos_token_id": [[1]]}, {}
)
@example(
    {"decoder": {"type": "Replace", "pattern": {"String": "a"}, "content": 1}},
    {},
    "added_tokens.json",
    {},
    {},
)
def test_any_json_in_any_file(tokenizer: Any, config: Any, other: str, content: Any, target: Any) -> None:
    answers({FILES[0]: tokenizer, FILES[1]: config, other: content}, target)


@settings(max_examples=EXAMPLES, deadline=None)
@given(st.sampled_from(FILES), st.binary(max_size=64) | st.text(max_size=64).map(str.encode))
def test_any_bytes_in_any_file(name: str, content: bytes) -> None:
    answers({name: content}, {})


def test_nesting_as_deep_as_a_file_can_be() -> None:
    sequence: Any = {"type": "ByteLevel"}
    for _ in range(150):
        sequence = {"type": "Sequence", "decoders": [sequence]}
    answers({"tokenizer.json": {"model": {"vocab": {"Ġ": 3}}, "decoder": sequence}}, {})
    for opened in (b'{"decoder":' * 100_000, b'{"model": ' + b"[" * 100_000):
        answers({"tokenizer.json": opened}, {})


@pytest.mark.parametrize(
    ("name", "around"),
    [
        ("tokenizer.json", b'{"model": {"vocab": {"a": %s}}}'),
        ("tokenizer.json", b'{"added_tokens": [{"id": %s}]}'),
        ("tokenizer.json", b'{"added_tokens": [{"id": 1, "content": %s}]}'),
        ("tokenizer.json", b'{"model": {"type": %s}}'),
        ("tokenizer_config.json", b'{"pad_token": %s}'),
        ("tokenizer_config.json", b'{"chat_template": %s}'),
        ("generation_config.json", b'{"eos_token_id": %s}'),
    ],
)
def test_nesting_that_is_just_read(name: str, around: bytes) -> None:
    """Python reads lists in lists about as deep as it can then print or compare them."""
    for depth in range(200, sys.getrecursionlimit(), 25):
        answers({name: around % (b"[" * depth + b"]" * depth)}, {})


def test_a_high_id_costs_no_memory() -> None:
    """2^32 - 1 is an id; what is as long as the highest id would be 32 GiB."""
    files = {"tokenizer.json": {"model": {"vocab": {"a": 2**32 - 1}}}}
    tracemalloc.start()
    answers(files, {"vocab_size": 2**32 - 1})
    assert tracemalloc.get_traced_memory()[1] < 1 << 20
    tracemalloc.stop()


# Long parts are skipped as bytes: what is left, and what they are parsed to, is what JSON says.

strings = st.text(max_size=6) | st.sampled_from(
    ['"merges": [', '"vocab": {', "\\", '\\"', "[]", ",", "\u2028", "\x00", "😀", "\\ud800"]
)
merges = st.lists(strings | st.tuples(strings, strings), min_size=1, max_size=3)
pieces = st.dictionaries(strings, st.integers(0, 10**9 - 1) | st.sampled_from([-1, 10**9, 0.5]), max_size=3)
keys = st.sampled_from(["merges", "vocab", 'x"merges', 'x"vocab', "a"])
trees = st.recursive(
    strings | st.integers() | st.none(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(keys, inner | merges | pieces, max_size=3),
    max_leaves=12,
)


def restored(left: bytes, vocabularies: dict[str, LateVocabulary]) -> Any:
    """What is left, with each vocabulary in its place again."""

    def back(value: Any) -> Any:
        if isinstance(value, list):
            return [back(inner) for inner in value]
        if isinstance(value, dict):
            return {key: back(inner) for key, inner in value.items()}
        return dict(vocabularies[value]) if isinstance(value, str) and value in vocabularies else value

    return back(json.loads(left))


def emptied(value: Any) -> Any:
    """A list of strings, or of pairs of strings, is skipped under the key ``merges``."""
    if isinstance(value, list):
        return [emptied(inner) for inner in value]
    if not isinstance(value, dict):
        return value
    return {
        key: [] if key == "merges" and is_merges(inner) else emptied(inner) for key, inner in value.items()
    }


def is_merges(value: Any) -> bool:
    def is_entry(entry: Any) -> bool:
        is_pair = isinstance(entry, list) and len(entry) == 2 and all(isinstance(one, str) for one in entry)
        return isinstance(entry, str) or is_pair

    return isinstance(value, list) and all(map(is_entry, value))


@settings(max_examples=EXAMPLES, deadline=None)
@given(
    trees, st.booleans(), st.sampled_from([None, 1, "\t"]), st.sampled_from([(",", ":"), (" ,\n", "\r\n: ")])
)
def test_what_is_left_is_the_json_without_long_parts(
    value: Any, ascii_only: bool, indent: Any, separators: tuple[str, str]
) -> None:
    text = json.dumps(value, ensure_ascii=ascii_only, indent=indent, separators=separators)
    assert restored(*without_long_parts(text.encode("utf-8"), 1000)) == emptied(json.loads(text))


@settings(max_examples=5 * EXAMPLES, deadline=None)
@given(
    merges | pieces,
    st.floats(0, 1, exclude_max=True),
    st.sampled_from(
        [
            b"",
            b'"',
            b"\\",
            b",",
            b"[",
            b"]",
            b"{",
            b"}",
            b"\\a",
            b"\\u12",
            b"\xff",
            b"\x00",
            b"\x1f",
            b"\n",
            b"0",
            b":",
        ]
    ),
    st.booleans(),
)
def test_what_is_left_is_json_exactly_if_the_file_is(
    value: Any, where: float, put: bytes, instead: bool
) -> None:
    """Something is put anywhere into the file, in what is skipped too."""
    key = "vocab" if isinstance(value, dict) else "merges"
    raw = json.dumps({key: value}, ensure_ascii=False).encode("utf-8")
    at = int(where * len(raw))
    changed = raw[:at] + put + raw[at + instead :]
    left, vocabularies = without_long_parts(changed, 1000)
    assert _is_json(left) == _is_json(changed), changed
    if _is_json(changed):
        assert restored(left, vocabularies) == emptied(json.loads(changed)), changed


def _is_json(raw: bytes) -> bool:
    try:
        json.loads(raw.decode("utf-8"))
    except ValueError:
        return False
    return True


@pytest.mark.parametrize("entry", [b'"a b"', b'["a", "b"]', b'"a\\u0020\\" b"'])
def test_many_merges_are_skipped(entry: bytes) -> None:
    """More than one step of the scanner takes, with and without what does not belong at the end."""
    many = b",\n ".join([entry] * 1234)
    assert without_long_parts(b'{"merges": [%s\n], "b": 1}' % many, 9) == (b'{"merges": [], "b": 1}', {})
    for wrong in (b'{"merges": [%s, ]}', b'{"merges": [%s', b'{"merges": [%s}', b'{"merges": [%s, 1]}'):
        raw = wrong % many
        assert without_long_parts(raw, 9) == (raw, {})


@pytest.mark.parametrize(
    ("entries", "is_late"),
    [
        (['"p%d": %d' % (number, number) for number in range(1234)], True),
        (['"\\u00e9": 1', '"\\\\ud800": 2', '"\\ud7ff": 3'], True),
        (['"a:b": 1'] * 6, False),  # as many as are too many
        (['"\\ud83d\\ude00": 1'], False),  # pairs of surrogates are JSON's own affair
        (['"\\ud800": 1'], False),
        (['"a": -1'], False),
        (['"a": 01'], False),
        (['"a": 1000000000'], False),
        (['"a": 1.0'], False),
        (['"a": true'], False),
        ([], False),
    ],
)
def test_a_vocabulary_is_parsed_late(entries: list[str], is_late: bool) -> None:
    raw = ('{"model": {"vocab": {%s}}, "b": 1}' % ", ".join(entries)).encode()
    left, vocabularies = without_long_parts(raw, 2000 if len(entries) > 9 else 9)
    assert bool(vocabularies) is is_late and (is_late or left == raw)
    for vocabulary in vocabularies.values():
        whole = json.loads(raw)["model"]["vocab"]
        assert vocabulary and "vocabulary" not in vocabulary
        assert (dict(vocabulary), len(vocabulary), list(vocabulary.values())) == (
            whole,
            len(whole),
            list(whole.values()),
        )
        assert vocabulary == whole and vocabulary == LateVocabulary(json.dumps(whole).encode())
        assert vocabulary != {} and vocabulary != LateVocabulary(b'{"other": 1}')
