"""Prompt sets: JSON Lines, one conversation a line, each of one kind (its workload)."""

from __future__ import annotations

import hashlib
import json
import os
from dataclasses import dataclass
from typing import Any, Dict, List, Mapping, Optional, Tuple, Union

from .errors import InputError

_DOING = "reading the prompt set"


@dataclass(frozen=True)
class Prompt:
    """One conversation to answer.

    :param workload: the kind of text ("code", "prose"): acceptance differs by more than 2x between kinds.
    :param messages: OpenAI chat messages, the last one to be answered.
    :param max_tokens: tokens to generate at most.
    :param expected: the right greedy answer, where it is known.
    """

    id: str
    workload: str
    messages: Tuple[Dict[str, Any], ...]
    max_tokens: int
    expected: Optional[str] = None


def digest(data: bytes) -> str:
    """SHA-256 of a prompt set's bytes: what ``gate.prompts.digest`` names."""
    return hashlib.sha256(data).hexdigest()


def load(source: Union[str, os.PathLike[str], bytes]) -> List[Prompt]:
    """The prompts of a file, or of its bytes. Empty lines are skipped.

    :raises InputError: unreadable, not UTF-8, no prompts, or a line that is no prompt (with its number).
    """
    data = source if isinstance(source, bytes) else _read(source)
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as exc:
        line = data.count(b"\n", 0, exc.start) + 1
        raise _bad(line, "it is not UTF-8") from None
    prompts: Dict[str, Prompt] = {}
    # Not splitlines(): JSON may hold U+2028 and other characters that it takes for the end of a line.
    for number, line_text in enumerate(text.split("\n"), 1):
        if not line_text.strip():
            continue
        prompt = _prompt(number, line_text)
        if prompt.id in prompts:
            raise _bad(number, f"the id {prompt.id!r} is taken by an earlier line")
        prompts[prompt.id] = prompt
    if not prompts:
        raise InputError(_DOING, "it holds no prompt", "at least one line of JSON")
    return list(prompts.values())


def _read(path: Union[str, os.PathLike[str]]) -> bytes:
    try:
        with open(path, "rb") as handle:
            return handle.read()
    except OSError as exc:
        raise InputError(
            _DOING, f"{os.fspath(path)!r} cannot be read: {exc.strerror}", "a readable file"
        ) from exc


def _prompt(number: int, text: str) -> Prompt:
    try:
        value = json.loads(text)
    except ValueError as exc:
        raise _bad(number, f"it is not JSON: {exc}") from None
    if not isinstance(value, dict):
        raise _bad(number, f"it is a JSON {type(value).__name__}")
    problems = list(_problems(value))
    if problems:
        raise _bad(number, "; ".join(problems))
    return Prompt(
        value["id"], value["workload"], tuple(value["messages"]), value["max_tokens"], value.get("expected")
    )


def _problems(value: Mapping[str, Any]) -> List[str]:
    messages, limit, expected = value.get("messages"), value.get("max_tokens"), value.get("expected")
    told = isinstance(messages, list) and bool(messages)
    rules = [
        *(
            (isinstance(value.get(key), str) and bool(value[key]), f"{key} is no text")
            for key in ("id", "workload")
        ),
        (
            told and all(_is_message(message) for message in messages or ()),
            "messages is no list of role and content",
        ),
        (
            isinstance(limit, int) and not isinstance(limit, bool) and limit > 0,
            "max_tokens is no positive number",
        ),
        (expected is None or isinstance(expected, str), "expected is neither text nor null"),
    ]
    return [message for holds, message in rules if not holds]


def _is_message(message: Any) -> bool:
    return isinstance(message, dict) and isinstance(message.get("role"), str) and bool(message.get("content"))


def _bad(line: int, observed: str) -> InputError:
    return InputError(
        f"{_DOING}, line {line}",
        observed,
        'an object with id, workload, messages [{"role", "content"}], max_tokens and, if known, expected',
        details={"line": line},
    )
