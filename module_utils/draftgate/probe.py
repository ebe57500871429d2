"""A target's tokenizer on one page: what each id is, which rows are free, which of them may be the mask."""

from __future__ import annotations

import os
import unicodedata
from typing import Any, Dict, Iterable, Iterator, List, Mapping, Optional, Tuple, Union

from .config_fields import is_integer, text_config
from .errors import InputError
from .findings import ERROR
from .mask_candidates import NO_NAME, NOT_A_CHOICE, judge, rank, says_mask
from .tokenizer import TOKENIZER_FILE, Tokenizer, read_tokenizer
from .tokenizer_agreement import judge_agreement
from .tokenizer_findings import judge_files
from .tokenizer_text import visible
from .untrusted import read_json

CONFIG_NAME = "config.json"
WIDTH = 100
WINDOW_AT_MOST = 4096
# Without a wish: the end of the tokenizer, where masks are, and the first rows after it.
BEFORE_END, AFTER_END = 32, 4
AROUND_MASK = 4
WITHOUT_TEXT = {"unused": "unused row", "no_row": "no row", "unknown": "not known"}


def probe(
    path: str,
    *,
    config: Union[str, Mapping[str, Any], None] = None,
    window: Optional[Mapping[str, Any]] = None,
    mask_token_id: Optional[int] = None,
) -> Dict[str, Any]:
    """All that a tokenizer's files tell about its ids, in JSON types.

    :param path: the target's directory, or a file in it.
    :param config: the target's config.json, its path or its directory; default: beside the tokenizer, where
        there is one.
    :param window: ``{first, last}``, the ids to show; default: the end of the tokenizer.
    :param mask_token_id: a claimed mask, to judge.
    :returns: ``vocab_size`` (rows of the embedding) and ``length``, None where they are not known;
        ``bos_token_id``, ``eos_token_id``, ``pad_token_id`` (an id, a list of several, or None),
        ``added_tokens``, ``unused_rows`` (``{first, last}`` or None), ``mask_candidates``, ``window`` (kind:
        ``added``, ``piece``, ``unused``, ``no_row`` or ``unknown``) and ``findings``; beside them the
        tokenizer's ``kind``, ``model`` and ``files``, and the claimed ``mask_token_id``.
    :raises InputError: a path that is not there, a window that is none, a file that cannot be read (DG301).
    """
    directory = _directory(path)
    target = _config(directory, config)
    tokenizer = read_tokenizer(directory, target)
    findings = [*judge_files(tokenizer, "tokenizer"), *judge_agreement(tokenizer, "tokenizer")]
    if mask_token_id is not None:
        findings += judge(tokenizer, mask_token_id, "mask_token_id", shape=shape_of(target))
    return {
        "kind": tokenizer.kind,
        "files": list(tokenizer.files),
        "model": tokenizer.model,
        "vocab_size": tokenizer.rows,
        "length": tokenizer.length if tokenizer.vocab else None,
        **{f"{role}_token_id": _one_or_more(ids) for role, ids in tokenizer.special.items()},
        "added_tokens": [_added(tokenizer, token_id) for token_id in sorted(tokenizer.added_tokens)],
        "unused_rows": _unused_rows(tokenizer),
        "mask_token_id": mask_token_id,
        "mask_candidates": [one.as_dict() for one in rank(tokenizer, shape=shape_of(target))],
        "window": [_row(tokenizer, token_id) for token_id in _window(tokenizer, window, mask_token_id)],
        "findings": [finding.as_dict() for finding in findings],
    }


def reported(path: str, **options: Any) -> Dict[str, Any]:
    """The module's result: :func:`probe`, and its table as lines in ``report``."""
    result = probe(path, **options)
    return {"changed": False, **result, "report": table(result).splitlines()}


def shape_of(target: Mapping[str, Any]) -> Dict[str, Any]:
    """What a target's config tells of the drafters for it: as :func:`mask_candidates.rank` takes it."""
    text = text_config(target)[1]
    return {"target_layers": text.get("num_hidden_layers"), "hidden_size": text.get("hidden_size")}


def _directory(path: str) -> str:
    if os.path.isdir(path):
        return path
    if os.path.isfile(path):
        return os.path.dirname(path) or "."
    raise InputError("looking for a tokenizer", f"there is no {path!r}", "a directory with tokenizer.json")


def _config(directory: str, config: Union[str, Mapping[str, Any], None]) -> Mapping[str, Any]:
    if isinstance(config, Mapping):
        return config
    if config is None and not os.path.lexists(os.path.join(directory, CONFIG_NAME)):
        return {}
    path = directory if config is None else config
    return read_json(
        os.path.join(path, CONFIG_NAME) if os.path.isdir(path) else path, "reading the target's config.json"
    )


def _one_or_more(ids: Tuple[int, ...]) -> Union[int, List[int], None]:
    return list(ids) if len(ids) > 1 else ids[0] if ids else None


def _added(tokenizer: Tokenizer, token_id: int) -> Dict[str, Any]:
    token = tokenizer.added_tokens[token_id]
    return {"id": token_id, "token": token.name, "special": token.special, "files": list(token.files)}


def _unused_rows(tokenizer: Tokenizer) -> Optional[Dict[str, int]]:
    if not tokenizer.vocab or tokenizer.rows is None or tokenizer.length >= tokenizer.rows:
        return None
    return {"first": tokenizer.length, "last": tokenizer.rows - 1}


def _window(tokenizer: Tokenizer, wished: Optional[Mapping[str, Any]], mask: Optional[int]) -> Iterable[int]:
    """The ids to show: those wished for, else the end of the tokenizer, and what is around a claimed mask."""
    if wished is not None:
        return _range(wished.get("first"), wished.get("last"))
    shown = set(range(tokenizer.length - BEFORE_END, tokenizer.length + AFTER_END))
    if mask is not None:
        shown |= set(range(mask - AROUND_MASK, mask + AROUND_MASK + 1))
    end = max(tokenizer.length, tokenizer.rows or 0)
    return sorted(token_id for token_id in shown if 0 <= token_id < end and _is_told(tokenizer, token_id))


def _is_told(tokenizer: Tokenizer, token_id: int) -> bool:
    return bool(tokenizer.vocab) or token_id in tokenizer.added_tokens


def _range(first: Any, last: Any) -> range:
    if not (_is_id(first) and _is_id(last) and 0 <= last - first < WINDOW_AT_MOST):
        raise InputError(
            "reading the window of ids to show",
            f"it goes from {first!r} to {last!r}",
            f"two ids in order, at most {WINDOW_AT_MOST} together",
        )
    return range(first, last + 1)


def _is_id(value: Any) -> bool:
    return is_integer(value) and value >= 0


def _row(tokenizer: Tokenizer, token_id: int) -> Dict[str, Any]:
    return {
        "id": token_id,
        "token": tokenizer.piece(token_id),
        "text": tokenizer.text(token_id),
        "kind": _kind(tokenizer, token_id),
        "special": tokenizer.is_special(token_id),
        "roles": tokenizer.roles(token_id),
    }


def _kind(tokenizer: Tokenizer, token_id: int) -> str:
    if token_id in tokenizer.added_tokens:
        return "added"
    if tokenizer.is_ordinary(token_id):
        return "piece"
    if tokenizer.rows is not None and token_id >= tokenizer.rows:
        return "no_row"
    return "unused" if tokenizer.vocab else "unknown"


def table(result: Mapping[str, Any]) -> str:
    """``result`` of :func:`probe` for people, at most 100 columns."""
    parts = [_heads(result), _window_lines(result), _candidate_lines(result), *_finding_lines(result)]
    return "\n\n".join("\n".join(part) for part in parts)


def _heads(result: Mapping[str, Any]) -> Iterator[str]:
    def line(name: str, value: str) -> str:
        return _cut(f"{name:14}{value}", WIDTH)

    kind = f"{result['kind']} {result['model']}".strip()
    yield line("tokenizer", f"{kind} ({', '.join(result['files']) or 'no file'})")
    rows, length, unused = result["vocab_size"], result["length"], result["unused_rows"]
    yield line("embedding", "rows not known" if rows is None else f"{rows} rows")
    free = f"; rows {unused['first']} to {unused['last']} are unused" if unused else ""
    yield line("in use", "not known" if length is None else f"ids 0 to {length - 1}{free}")
    names = {token["id"]: visible(token["token"]) for token in result["added_tokens"]}
    for role in ("bos", "eos", "pad"):
        ids = result[f"{role}_token_id"]
        listed = ids if isinstance(ids, list) else [] if ids is None else [ids]
        yield line(role, ", ".join(f"{number} {names.get(number, '')}".strip() for number in listed) or "-")
    elsewhere = [token["id"] for token in result["added_tokens"] if _is_elsewhere(result, token["files"])]
    only = f"; {_ids_in_words(elsewhere)} not in tokenizer.json" if elsewhere else ""
    yield line("added tokens", f"{len(names)}{': ' if names else ''}{_ids_in_words(list(names))}{only}")


def _is_elsewhere(result: Mapping[str, Any], files: List[str]) -> bool:
    """What a reader of tokenizer.json alone does not see."""
    return TOKENIZER_FILE in result["files"] and TOKENIZER_FILE not in files


def _ids_in_words(ids: List[int]) -> str:
    """``0-2, 151643-151668``: runs of ids, the last few where there are many."""
    runs: List[List[int]] = []
    for number in sorted(ids):
        if runs and number == runs[-1][1] + 1:
            runs[-1][1] = number
        else:
            runs.append([number, number])
    words = [f"{first}" if first == last else f"{first}-{last}" for first, last in runs]
    return ", ".join(words if len(words) <= 4 else ["…", *words[-3:]])


def _window_lines(result: Mapping[str, Any]) -> Iterator[str]:
    files = {token["id"]: token["files"] for token in result["added_tokens"]}
    previous = None
    for row in result["window"]:
        token_id, text = row["id"], row["token"] if row["kind"] == "added" else row["text"]
        if previous is not None and token_id != previous + 1:
            yield f"{'…':>8}"
        previous = token_id
        shown = "" if text is None else visible(text) if row["kind"] == "added" else repr(text)
        notes = [*row["roles"], *(["special"] if row["special"] else [])]
        if _is_elsewhere(result, files.get(token_id, [TOKENIZER_FILE])):
            notes.append(f"only in {', '.join(files[token_id])}")
        notes += [WITHOUT_TEXT[row["kind"]]] if row["kind"] in WITHOUT_TEXT else []
        mark = ">" if token_id == result["mask_token_id"] else " "
        yield f"{mark}{token_id:>7}  {_filled(_cut(shown, 44), 44)}  {', '.join(notes)}".rstrip()


def _columns(text: str) -> int:
    """The width of ``text`` in a terminal, where a letter of Chinese takes two columns."""
    return sum(2 if unicodedata.east_asian_width(letter) in "WF" else 1 for letter in text)


def _cut(text: str, columns: int) -> str:
    """``text``, or its beginning and an ellipsis."""
    if _columns(text) <= columns:
        return text
    while _columns(text) > columns - 1:
        text = text[: min(len(text) - 1, columns)]
    return f"{text}…"


def _filled(text: str, columns: int) -> str:
    return text + " " * (columns - _columns(text))


def _wrapped(text: str, following: str, first: str = "") -> Iterator[str]:
    """Lines of at most :data:`WIDTH` columns; ``textwrap`` counts letters."""
    line = first
    for word in text.split():
        longer = f"{line}{word}" if line.endswith(" ") or not line else f"{line} {word}"
        if _columns(longer) > WIDTH and line.strip():
            yield line
            longer = f"{following}{word}"
        line = _cut(longer, WIDTH)
    yield line


def _candidate_lines(result: Mapping[str, Any]) -> Iterator[str]:
    yield "mask candidates, best hint first"
    for number, one in enumerate(result["mask_candidates"], 1):
        token = _cut(visible(one["token"]), 44) if one["token"] else "(no token)"
        yield from _wrapped(f"{token}: {one['reason']}", " " * 13, first=f"{number:>3}. {one['id']:<8}")
    says = [NOT_A_CHOICE if result["mask_candidates"] else "None are known."]
    names = [token["token"] for token in result["added_tokens"]]
    says += [NO_NAME] if result["length"] and not any(map(says_mask, names)) else []
    yield from _wrapped(" ".join(says), "  ", first="  ")


def _finding_lines(result: Mapping[str, Any]) -> Iterator[Iterable[str]]:
    mask, findings = result["mask_token_id"], result["findings"]
    if mask is not None:
        is_wrong = any(finding["severity"] == ERROR for finding in findings)
        yield [f"mask {mask}: {'wrong' if is_wrong else 'nothing speaks against it, which is no proof'}"]
    for finding in findings:
        says = f"{finding['code']} {finding['severity']}: {finding['message']}"
        fix = _wrapped(f"→ {finding['fix']}", "    ", first="  ") if finding["fix"] else ()
        yield [*_wrapped(says, "  "), *fix]
