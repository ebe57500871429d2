"""Prompt sets: what is read, and one clear error with its line for everything else."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import pytest
from draftgate.errors import InputError
from draftgate.prompts import digest, load

GOOD: dict[str, Any] = {
    "id": "a",
    "workload": "code",
    "messages": [{"role": "user", "content": "Hello"}],
    "max_tokens": 8,
}


def line(**change: Any) -> bytes:
    return json.dumps({**GOOD, **change}, ensure_ascii=False).encode()


def test_the_set_that_comes_with_the_tiny_pair(repo: Path) -> None:
    prompts = load(repo / "prompts" / "tiny-pair.jsonl")
    assert len({prompt.id for prompt in prompts}) == len(prompts) >= 20
    assert len({prompt.workload for prompt in prompts}) >= 4
    assert all(prompt.expected for prompt in prompts)


def test_order_empty_lines_and_line_separators_are_kept() -> None:
    data = (
        b"\xef\xbb\xbf"
        + line(id="b")
        + b"\r\n\n"
        + line(messages=[{"role": "user", "content": "a\u2028b"}])
        + b"\n"
    )
    prompts = load(data)
    assert [prompt.id for prompt in prompts] == ["b", "a"]
    assert prompts[1].messages[0]["content"] == "a\u2028b"
    assert (prompts[0].workload, prompts[0].max_tokens, prompts[0].expected) == ("code", 8, None)


@pytest.mark.parametrize(
    ("data", "line_number", "says"),
    [
        (line() + b"\n\xff\xfe", 2, "not UTF-8"),
        (line() + b"\n{'id': 1}", 2, "not JSON"),
        (b"[1]", 1, "JSON list"),
        (line() + b"\n\n" + line(), 3, "'a' is taken"),
        (line(id=""), 1, "id is no text"),
        (line(id=7), 1, "id is no text"),
        (line(workload=None), 1, "workload is no text"),
        (line(messages=[]), 1, "messages"),
        (line(messages="Hello"), 1, "messages"),
        (line(messages=[{"role": "user"}]), 1, "messages"),
        (line(messages=[["user", "Hello"]]), 1, "messages"),
        (line(max_tokens=0), 1, "max_tokens"),
        (line(max_tokens=True), 1, "max_tokens"),
        (line(max_tokens="8"), 1, "max_tokens"),
        (line(expected=["x"]), 1, "expected"),
        (line(id="", max_tokens=-1), 1, "id is no text; max_tokens"),
    ],
)
def test_a_bad_line_is_named(data: bytes, line_number: int, says: str) -> None:
    with pytest.raises(InputError) as caught:
        load(data)
    assert f"line {line_number}:" in str(caught.value)
    assert says in caught.value.observed
    assert caught.value.details == {"line": line_number}


@pytest.mark.parametrize("data", [b"", b"\n \n"])
def test_an_empty_set_is_refused(data: bytes) -> None:
    with pytest.raises(InputError, match="holds no prompt"):
        load(data)


def test_an_unreadable_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"absent\.jsonl"):
        load(tmp_path / "absent.jsonl")
    with pytest.raises(InputError, match="directory"):
        load(tmp_path)


def test_the_digest_is_that_of_the_bytes() -> None:
    assert digest(b"x\n") == hashlib.sha256(b"x\n").hexdigest()
