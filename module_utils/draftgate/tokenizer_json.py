"""A tokenizer's JSON files, read within bounds: any strange content is one :class:`InputError` (DG301).

The two long parts of a tokenizer.json are recognised as bytes: merges, which no question about ids needs, and
the vocabulary, which a right pair does not need either. As Python objects the merges of Qwen3.6 take 50 MiB,
its vocabulary 30 MiB and 0.3 s. What is skipped is checked to be JSON, at 10 ns a byte.
"""

from __future__ import annotations

import functools
import json
import os
import re
from typing import Any, Callable, Dict, Iterator, List, Mapping, NamedTuple, Optional, Tuple, Union

from . import files
from .errors import InputError
from .untrusted import Limits, parse_json, read_bytes

CODE = "DG301"
# Twice the largest known ones: 33 MB and 480 000 values beside the merges (Gemma 3).
TOKENIZER = Limits(64 << 20, 1_000_000)
FETCH_AGAIN = "Fetch this file again; the engine cannot read it either."


def read_object(path: str, doing: str) -> Dict[str, Any]:
    """The JSON object of ``path``, its merges emptied and ``model.vocab`` to be parsed when it is asked for.

    :param doing: the phrase for the error ("reading the target's tokenizer.json").
    :raises InputError: unreadable, too large, empty, not UTF-8, not JSON, or not an object.
    """
    vocabularies: Dict[str, LateVocabulary] = {}

    def load(path: str) -> Any:
        # The name of the whole file's bytes goes to what is left of them, so that they are not held.
        raw = read_bytes(path, TOKENIZER.bytes)
        if not raw:
            raise ValueError("it is empty")
        raw, late = without_long_parts(raw, TOKENIZER.values)
        vocabularies.update(late)
        return _parse(raw)

    try:
        value = files.read_json(path, doing, load)
    except InputError as exc:
        raise broken(doing, exc.observed, exc.expected) from exc
    model = value.get("model")
    if isinstance(model, dict) and isinstance(model.get("vocab"), str):
        model["vocab"] = vocabularies.get(model["vocab"], model["vocab"])
    return value


def _parse(raw: bytes) -> Any:
    """Where it is wrong cannot be counted any more, after long parts are cut out: it is shown."""
    try:
        return parse_json(raw, TOKENIZER.values)
    except UnicodeDecodeError as exc:
        around = raw[max(0, exc.start - 20) : exc.end + 20]
        raise ValueError(f"it is not UTF-8 near {around!r}") from exc
    except json.JSONDecodeError as exc:
        near = exc.doc[max(0, exc.pos - 20) : exc.pos + 20]
        raise ValueError(f"{exc.msg} near {near!r}") from exc


def broken(doing: str, observed: str, expected: str) -> InputError:
    """The one error of this file's readers."""
    return InputError(doing, observed, expected, FETCH_AGAIN, code=CODE)


# Long parts.

_SPACE = rb"[ \t\n\r]*"
_PLAIN = rb'[^"\\\x00-\x1f]*'
# JSON's strings. In the second kind no escape is half of a surrogate pair, so that it is text for sure.
_ESCAPE = rb'\\(?:["\\/bfnrt]|u[0-9A-Fa-f]{4})'
_TEXT_ESCAPE = rb'\\(?:["\\/bfnrt]|u(?:[0-9A-Ca-cE-Fe-f][0-9A-Fa-f]|[Dd][0-7])[0-9A-Fa-f]{2})'
_STRING, _TEXT = (
    rb'"%(p)s(?:%(e)s%(p)s)*"' % {b"p": _PLAIN, b"e": escape} for escape in (_ESCAPE, _TEXT_ESCAPE)
)
# A quote after one of these opens a string (inside of one it were escaped), and before a colon that is a key.
_BEFORE_KEY = b"{, \t\n\r"


class _Part(NamedTuple):
    """:param some: entries with a comma after each; a number of them, so that nothing is held for long.
    :param last: the last entry and the closing bracket.
    """

    key: re.Pattern[bytes]
    some: re.Pattern[bytes]
    last: re.Pattern[bytes]


def _part(key: bytes, opening: bytes, entry: bytes, closing: bytes) -> _Part:
    words = {b"s": _SPACE, b"e": entry, b"k": key, b"o": opening, b"c": closing}
    return _Part(
        re.compile(rb'"%(k)s"%(s)s:%(s)s(?=%(o)s)' % words),
        re.compile(rb"(?:%(s)s%(e)s%(s)s,){1,500}" % words),
        re.compile(rb"%(s)s%(e)s%(s)s%(c)s" % words),
    )


# Strings (tokenizers < 0.20) or pairs of strings; a piece and an id that is one for sure.
_PAIR = rb"\[%(s)s%(t)s%(s)s,%(s)s%(t)s%(s)s\]" % {b"s": _SPACE, b"t": _STRING}
_MERGES = _part(b"merges", rb"\[", rb"(?:%s|%s)" % (_STRING, _PAIR), rb"\]")
_VOCAB = _part(b"vocab", rb"\{", rb"%s%s:%s(?:0|[1-9][0-9]{0,8})" % (_TEXT, _SPACE, _SPACE), rb"\}")


class LateVocabulary(Mapping[str, int]):
    """``{piece: id}`` whose text was checked, and is parsed when somebody asks; never empty."""

    def __init__(self, raw: bytes) -> None:
        self._raw = raw

    @functools.cached_property
    def _parsed(self) -> Dict[str, int]:
        parsed: Dict[str, int] = json.loads(self._raw)
        return parsed

    @property
    def at_most(self) -> int:
        """Not less than the number of pieces: an escaped quote before a colon counts too."""
        return self._raw.count(b'":') or self._raw.count(b":")

    def __bool__(self) -> bool:
        return True

    def __getitem__(self, piece: str) -> int:
        return self._parsed[piece]

    def __iter__(self) -> Iterator[str]:
        return iter(self._parsed)

    def __len__(self) -> int:
        return len(self._parsed)

    def values(self) -> Any:  # as a dict has them: ten times faster than Mapping's own
        return self._parsed.values()

    def items(self) -> Any:
        return self._parsed.items()


def without_long_parts(raw: bytes, pieces_at_most: int) -> Tuple[bytes, Dict[str, LateVocabulary]]:
    """``raw`` without its long parts, and the vocabularies by the string that stands in their place.

    The array of every key ``merges`` that holds strings or pairs of them is emptied; the object of every key
    ``vocab`` that holds ids becomes a string that no file can foresee. What is cut is JSON in UTF-8, so the
    result is that exactly if ``raw`` is.

    :param pieces_at_most: a vocabulary with about as many pieces is left where it is.
    """
    vocabularies: Dict[str, LateVocabulary] = {}

    def instead(part: bytes) -> Optional[bytes]:
        if part.count(b":") > pieces_at_most:
            return None
        name = f"vocab {os.urandom(16).hex()}"
        vocabularies[name] = LateVocabulary(part)
        return b'"%s"' % name.encode()

    raw = _cut(raw, _MERGES, lambda _part: b"[]")
    return _cut(raw, _VOCAB, instead), vocabularies


def _cut(raw: bytes, part: _Part, instead: Callable[[bytes], Optional[bytes]]) -> bytes:
    """``raw`` with other bytes in place of each such part; None leaves it as it is."""
    view, kept, searched = memoryview(raw), 0, 0
    result: List[Union[bytes, memoryview]] = []
    while True:
        found = part.key.search(raw, searched)
        if found is None:
            return b"".join([*result, view[kept:]]) if result else raw
        start = searched = found.end()
        is_key = found.start() > 0 and raw[found.start() - 1] in _BEFORE_KEY
        end = _end(raw, start, part) if is_key else None
        put = None if end is None else instead(raw[start:end])
        if end is not None and put is not None:
            result += [view[kept:start], put]
            kept = searched = end


def _end(raw: bytes, start: int, part: _Part) -> Optional[int]:
    """The index after the part at ``start``; None where it holds anything else, or is not UTF-8."""
    position = start + 1
    try:
        while True:
            some = part.some.match(raw, position)
            if some is None:
                break
            some[0].decode("utf-8")
            position = some.end()
        last = part.last.match(raw, position)
        if last is None:
            return None
        last[0].decode("utf-8")
    except UnicodeDecodeError:
        return None
    return last.end()
