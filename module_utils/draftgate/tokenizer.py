"""What a target's tokenizer files tell about an id: its name, its role, whether it is used at all.

Nothing is tokenised here. ``tokenizer.json`` does not list every added token: Qwen3.5/3.6 have
``<|audio_start|>`` … ``<|audio_pad|>`` in ``tokenizer_config.json`` only, and one of them is a mask.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Any, Dict, FrozenSet, List, Mapping, Optional, Tuple

from .config_fields import is_integer, text_config
from .errors import InputError
from .files import read_json

ROLES = {"eos": "the end of text", "pad": "padding", "bos": "the beginning of text"}


@dataclass(frozen=True)
class Tokenizer:
    """One target's tokenizer.

    :param rows: rows of the target's embedding (``vocab_size``); None when the config does not say.
    :param special: ids by role, ``{"eos": (2, 0), "pad": (0,), "bos": (0,)}``.
    :param added: names of added tokens by id, from both files.
    :param vocab: id of each ordinary piece; empty where there is no tokenizer.json.
    """

    rows: Optional[int]
    special: Dict[str, Tuple[int, ...]]
    added: Dict[int, str]
    vocab: Mapping[str, int]
    special_flags: FrozenSet[int] = frozenset()
    template: str = ""

    def is_special(self, token_id: int) -> bool:
        """An added token that its file calls special: no text is tokenised to it."""
        return token_id in self.special_flags

    @property
    def length(self) -> int:
        """One more than the highest id in use (``len(tokenizer)``)."""
        return 1 + max(filter(is_integer, (*self.added, *self.vocab.values())), default=-1)

    def piece(self, token_id: int) -> Optional[str]:
        """The added token or the vocabulary's piece of an id."""
        if token_id in self.added:
            return self.added[token_id]
        return next((piece for piece, number in self.vocab.items() if number == token_id), None)

    def is_ordinary(self, token_id: int) -> bool:
        """A piece of the vocabulary, neither an added token nor an unused row."""
        return token_id not in self.added and self.piece(token_id) is not None

    def roles(self, token_id: int) -> List[str]:
        """``["eos", "pad"]`` for an id that is both."""
        return [role for role, ids in self.special.items() if token_id in ids]

    def describe(self, token_id: int) -> str:
        """``<|endoftext|>, the end of text``, for the sentence "id 0 is …"."""
        roles = " and ".join(ROLES[role] for role in self.roles(token_id))
        return f"{self._name(token_id)}, {roles}" if roles else self._name(token_id)

    def _name(self, token_id: int) -> str:
        piece = self.piece(token_id)
        if piece is not None:
            return piece if token_id in self.added else f"the piece {piece!r}"
        if self.rows is not None and not 0 <= token_id < self.rows:
            return "no row of the embedding"
        return "an unused row" if self.vocab else "a row without a known name"


def read_tokenizer(directory: str, config: Mapping[str, Any]) -> Tokenizer:
    """The tokenizer beside a target's ``config`` (its config.json, not yet resolved to text_config).

    :raises InputError: DG301, a tokenizer file that is empty, truncated or not JSON.
    """
    fast = _read(directory, "tokenizer.json")
    slow = _read(directory, "tokenizer_config.json")
    added = {**_added_of_config(slow), **_added_of_tokenizer(fast)}
    rows = text_config(config)[1].get("vocab_size")
    return Tokenizer(
        rows=rows if is_integer(rows) else None,
        special=special_ids(directory, config, added),
        added=added,
        vocab=_vocab(fast),
    )


def special_ids(
    directory: str, config: Mapping[str, Any], added: Optional[Mapping[int, str]] = None
) -> Dict[str, Tuple[int, ...]]:
    """Ids of bos, eos and pad, from all three files that name them.

    config.json and generation_config.json give an id or a list of ids, tokenizer_config.json a token's
    name; engines stop at any of them, so all count.
    """
    slow = _read(directory, "tokenizer_config.json")
    names = _added_of_config(slow) if added is None else added
    id_of = {name: number for number, name in names.items()}
    places = [config, text_config(config)[1], _read(directory, "generation_config.json")]
    result: Dict[str, Tuple[int, ...]] = {}
    for role in ROLES:
        ids = [number for place in places for number in _ids(place.get(f"{role}_token_id"))]
        ids += _ids(id_of.get(_token_name(slow.get(f"{role}_token"))))
        result[role] = tuple(dict.fromkeys(ids))
    return result


def _read(directory: str, name: str) -> Dict[str, Any]:
    path = os.path.join(directory, name)
    if not os.path.lexists(path):
        return {}
    doing = f"reading the target's {name}"
    step = "Fetch this file again; the engine cannot read it either."
    try:
        value = read_json(path, doing)
    except InputError as exc:
        empty = os.path.isfile(path) and os.path.getsize(path) == 0
        observed = f"{path!r} is empty" if empty else exc.observed
        raise InputError(doing, observed, exc.expected, step, code="DG301") from exc
    if not value and name == "tokenizer.json":
        raise InputError(doing, f"{path!r} is an empty object", "a tokenizer", step, code="DG301")
    return value


def _added_of_tokenizer(fast: Mapping[str, Any]) -> Dict[int, str]:
    entries = fast.get("added_tokens")
    return {
        entry["id"]: _token_name(entry)
        for entry in (entries if isinstance(entries, list) else [])
        if isinstance(entry, Mapping) and is_integer(entry.get("id"))
    }


def _added_of_config(slow: Mapping[str, Any]) -> Dict[int, str]:
    entries = slow.get("added_tokens_decoder")
    return {
        int(number): _token_name(entry)
        for number, entry in (entries.items() if isinstance(entries, Mapping) else [])
        if number.isdigit()
    }


def _vocab(fast: Mapping[str, Any]) -> Mapping[str, int]:
    """BPE and WordPiece have ``{piece: id}``, Unigram ``[[piece, score], …]`` in the order of ids."""
    model = fast.get("model")
    vocab = model.get("vocab") if isinstance(model, Mapping) else None
    if isinstance(vocab, Mapping):
        return vocab  # as it was read: a copy of 248 000 pieces takes longer than all rules together
    if isinstance(vocab, list):
        pieces = [str(entry[0]) if isinstance(entry, list) and entry else "" for entry in vocab]
        return {piece: number for number, piece in enumerate(pieces)}
    return {}


def _token_name(token: Any) -> str:
    """A token is written as its text, or as an object with ``content``."""
    return str(token.get("content", "")) if isinstance(token, Mapping) else str(token or "")


def _ids(value: Any) -> List[int]:
    return [number for number in (value if isinstance(value, list) else [value]) if is_integer(number)]
