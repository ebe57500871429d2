"""Pieces of a vocabulary as people read them: the decoders of tokenizer.json, for one piece.

Source: tokenizers 0.23, ``tokenizers/src/decoders`` and ``pre_tokenizers/byte_level.rs``. What joins several
pieces (Fuse, Strip, the space before a word) has no part in one.
"""

from __future__ import annotations

import re
from typing import Any, Callable, Dict, List, Mapping

_BYTE_TOKEN = re.compile("<0x[0-9A-Fa-f]{2}>")
_NOT_TEXT = re.compile("[\udc80-\udcff]")

Step = Callable[[str], str]


def byte_alphabet() -> Dict[str, int]:
    """The letters that stand for bytes in a byte-level vocabulary: ``Ġ`` is a space.

    A byte that is a visible letter of Latin-1 stands for itself, the others for U+0100 and following.
    """
    visible = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(0x100) if byte not in visible]
    letters = {chr(byte): byte for byte in visible}
    letters.update({chr(0x100 + number): byte for number, byte in enumerate(others)})
    return letters


_BYTES = byte_alphabet()


class PieceDecoder:
    """From a piece to the bytes of text that it stands for.

    :param decoder: ``decoder`` of tokenizer.json; what it does not say, or says in a way that is not known
        here, leaves the piece as it is.
    """

    def __init__(self, decoder: Any) -> None:
        steps = _flat(decoder)
        kinds = {step.get("type") for step in steps if isinstance(step.get("type"), str)}
        self._is_byte_level = "ByteLevel" in kinds
        self._has_byte_tokens = "ByteFallback" in kinds
        self._steps = [_replacing(step) for step in steps]

    def __call__(self, piece: str) -> bytes:
        for step in self._steps:
            piece = step(piece)
        if self._has_byte_tokens and _BYTE_TOKEN.fullmatch(piece):
            return bytes([int(piece[3:5], 16)])
        if self._is_byte_level and all(letter in _BYTES for letter in piece):
            return bytes(_BYTES[letter] for letter in piece)
        return piece.encode("utf-8")


def readable(data: bytes) -> str:
    """``data`` as text; a byte that is only a part of a letter is shown as ``<0xE4>``."""
    text = data.decode("utf-8", "surrogateescape")
    return _NOT_TEXT.sub(lambda found: f"<0x{ord(found[0]) - 0xDC00:02X}>", text)


def visible(name: str) -> str:
    """A token's name in a sentence: quoted where it is newlines (Gemma has some), spaces or the like."""
    return name if name.isprintable() and name.strip() else repr(name)


def _flat(decoder: Any) -> List[Mapping[str, Any]]:
    """The steps of nested sequences in order, without recursion: files nest as deep as they like."""
    steps, waiting = [], [decoder]
    while waiting:
        one = waiting.pop()
        if not isinstance(one, Mapping):
            continue
        inner = one.get("decoders")
        if one.get("type") == "Sequence" and isinstance(inner, list):
            waiting += reversed(inner)
        else:
            steps.append(one)
    return steps


def _replacing(step: Mapping[str, Any]) -> Step:
    kind, pattern = step.get("type"), step.get("pattern")
    old = pattern.get("String") if isinstance(pattern, Mapping) else None
    new = step.get("content")
    if kind == "Metaspace":
        old, new = step.get("replacement", "▁"), " "
    if kind in ("Replace", "Metaspace") and isinstance(old, str) and isinstance(new, str) and old:
        before, after = old, new
        return lambda piece: piece.replace(before, after)
    return lambda piece: piece
