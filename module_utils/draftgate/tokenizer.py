"""What a target's tokenizer files tell about an id: its name, its role, its text, whether it is used at all.

Nothing is tokenised here. ``tokenizer.json`` does not list every added token: Qwen3.5/3.6 have
``<|audio_start|>`` … ``<|audio_pad|>`` in ``tokenizer_config.json`` only, and one of them is a mask.
"""

from __future__ import annotations

import contextlib
import functools
import glob
import os
import re
from dataclasses import dataclass, field
from typing import Any, Collection, Dict, Iterable, Iterator, List, Mapping, Optional, Tuple

from .config_fields import is_integer, text_config
from .errors import InputError
from .tokenizer_json import LateVocabulary, broken, read_object
from .tokenizer_text import PieceDecoder, readable, visible
from .untrusted import open_file, read_bytes, shown

ROLES = {"eos": "the end of text", "pad": "padding", "bos": "the beginning of text"}
TOKENIZER_FILE, CONFIG_FILE = "tokenizer.json", "tokenizer_config.json"
MODELS = ["BPE", "WordPiece", "WordLevel", "Unigram"]
FAST, SENTENCEPIECE, TIKTOKEN, NONE = "fast", "sentencepiece", "tiktoken", "none"

MAX_ID = 2**32 - 1  # ids are u32 in the tokenizers library
_SENTENCEPIECE_FILES = ("tokenizer.model", "spiece.model", "sentencepiece*.model", "*.spm")
_TIKTOKEN_FILES = ("*.tiktoken", "tiktoken.model", "tokenizer.model", "tokenization_*.py")
_TEMPLATE_BYTES = 4 << 20
_AN_ID = f"an id from 0 to {MAX_ID}"
_DIGITS = re.compile("[0-9]{1,10}")
_TIKTOKEN_LINE = re.compile(rb"[A-Za-z0-9+/]+=* \d+\s")  # Llama 3's own tokenizer.model is such a file


@dataclass(frozen=True)
class AddedToken:
    """A token that is not split, whatever the vocabulary says.

    :param special: its file calls it special: decoding can leave it out.
    :param files: where it is listed, ``(CONFIG_FILE,)``.
    """

    name: str
    special: bool = False
    files: Tuple[str, ...] = ()


@dataclass(frozen=True)
class Tokenizer:
    """One target's tokenizer.

    :param rows: rows of the target's embedding (``vocab_size``); None when the config does not say.
    :param special: ids by role, ``{"eos": (2, 0), "pad": (0,), "bos": (0,)}``.
    :param added_tokens: by id, from all files that list some.
    :param vocab: id of each piece; empty where there is no tokenizer.json.
    :param kind: ``fast`` (tokenizer.json), ``sentencepiece``, ``tiktoken`` or ``none``.
    :param files: the files that make it this kind.
    :param model: ``BPE``, ``WordPiece``, ``WordLevel`` or ``Unigram``; empty where it is not said.
    :param decode: from a piece to its bytes.
    :param template: all chat templates, one after the other.
    :param unlisted: names of roles that no file gives an id, ``{"pad": "<pad>"}``.
    :param conflicts: what two files say of one added token, in words.
    """

    rows: Optional[int]
    special: Mapping[str, Tuple[int, ...]]
    added_tokens: Mapping[int, AddedToken]
    vocab: Mapping[str, int]
    kind: str = FAST
    files: Tuple[str, ...] = ()
    model: str = ""
    decode: PieceDecoder = field(default_factory=lambda: PieceDecoder(None))
    template: str = ""
    unlisted: Mapping[str, str] = field(default_factory=dict)
    conflicts: Tuple[str, ...] = ()

    @functools.cached_property
    def added(self) -> Dict[int, str]:
        """Names of added tokens by id."""
        return {number: token.name for number, token in self.added_tokens.items()}

    @functools.cached_property
    def length(self) -> int:
        """One more than the highest id in use; ``len(tokenizer)`` where ids have no gaps."""
        return 1 + max(max(self.added_tokens, default=-1), max(self.vocab.values(), default=-1))

    @functools.cached_property
    def _pieces(self) -> Dict[int, str]:
        return dict(zip(self.vocab.values(), self.vocab))

    def piece(self, token_id: int) -> Optional[str]:
        """The added token, or the vocabulary's piece as its file writes it; None for an id without either."""
        if token_id in self.added_tokens:
            return self.added_tokens[token_id].name
        return self._pieces.get(token_id)

    def data(self, token_id: int) -> Optional[bytes]:
        """The bytes of text that an id stands for; may be a part of a letter."""
        piece = self.piece(token_id)
        return None if piece is None else self.decode(piece)

    def text(self, token_id: int) -> Optional[str]:
        """The piece as people read it: a space for ``Ġ`` and ``▁``, ``<0xE4>`` for a part of a letter."""
        data = self.data(token_id)
        return None if data is None else readable(data)

    def is_special(self, token_id: int) -> bool:
        """An added token that its file calls special."""
        return token_id in self.added_tokens and self.added_tokens[token_id].special

    def is_ordinary(self, token_id: int) -> bool:
        """A piece of the vocabulary, neither an added token nor an unused row."""
        return token_id not in self.added_tokens and token_id in self._pieces

    def roles(self, token_id: int) -> List[str]:
        """``["eos", "pad"]`` for an id that is both."""
        return [role for role, ids in self.special.items() if token_id in ids]

    def describe(self, token_id: int) -> str:
        """``<|endoftext|>, the end of text``, for the sentence "id 0 is …"."""
        roles = " and ".join(ROLES[role] for role in self.roles(token_id))
        return f"{self._name(token_id)}, {roles}" if roles else self._name(token_id)

    def _name(self, token_id: int) -> str:
        if token_id in self.added_tokens:
            return visible(self.added_tokens[token_id].name)
        text = self.text(token_id)
        if text is not None:
            return f"the piece {text!r}"
        if self.rows is not None and not 0 <= token_id < self.rows:
            return "no row of the embedding"
        return "an unused row" if self.vocab else "a row without a known name"


def read_tokenizer(directory: str, config: Mapping[str, Any]) -> Tokenizer:
    """The tokenizer beside a target's ``config`` (its config.json, not yet resolved to text_config).

    :raises InputError: DG301, a tokenizer file that is empty, too large, not JSON, or not a tokenizer's.
    """
    kind, files = _kind(directory)
    fast = _read(directory, TOKENIZER_FILE)
    model = _object(fast, "model", TOKENIZER_FILE)
    slow = _read(directory, CONFIG_FILE)
    vocab = _vocab(model)
    added, conflicts = _added_tokens(directory, fast, slow)
    special, unlisted = _roles(directory, config, slow, vocab, added)
    rows = text_config(config)[1].get("vocab_size")
    return Tokenizer(
        rows=rows if _is_id(rows) and rows else None,
        special=special,
        added_tokens=added,
        vocab=vocab,
        kind=kind,
        files=files,
        model=model["type"] if model.get("type") in MODELS else "",
        decode=PieceDecoder(fast.get("decoder")),
        template=_template(directory, slow),
        unlisted=unlisted,
        conflicts=tuple(conflicts),
    )


def _kind(directory: str) -> Tuple[str, Tuple[str, ...]]:
    """What kind of tokenizer lies there, and the names of the files that say so."""
    if os.path.lexists(os.path.join(directory, TOKENIZER_FILE)):
        return FAST, (TOKENIZER_FILE,)
    tiktoken = [name for name in _named(directory, _TIKTOKEN_FILES) if _is_tiktoken(directory, name)]
    pieces = [name for name in _named(directory, _SENTENCEPIECE_FILES) if name not in tiktoken]
    if pieces:
        return SENTENCEPIECE, tuple(pieces)
    return (TIKTOKEN, tuple(tiktoken)) if tiktoken else (NONE, ())


def _named(directory: str, patterns: Tuple[str, ...]) -> List[str]:
    inside = glob.escape(directory)
    paths = [path for pattern in patterns for path in glob.glob(os.path.join(inside, pattern))]
    return sorted({os.path.relpath(path, directory) for path in paths if os.path.isfile(path)})


def _is_tiktoken(directory: str, name: str) -> bool:
    """``tokenizer.model`` is SentencePiece for most models, and lines of base64 and rank for Llama 3."""
    if name != "tokenizer.model":
        return True
    with contextlib.suppress(OSError), open_file(os.path.join(directory, name)) as handle:
        return _TIKTOKEN_LINE.match(handle.read(4096)) is not None
    return False


def _read(directory: str, name: str) -> Dict[str, Any]:
    path = os.path.join(directory, name)
    if not os.path.lexists(path):
        return {}
    value = read_object(path, f"reading the target's {name}")
    if not value and name == TOKENIZER_FILE:
        raise _wrong(name, "it", "an empty object", "a tokenizer")
    return value


def _wrong(name: str, where: str, observed: str, expected: str) -> InputError:
    return broken(f"reading the target's {name}", f"{where} is {observed}", expected)


def _object(value: Mapping[str, Any], key: str, name: str) -> Mapping[str, Any]:
    inner = value.get(key)
    if inner is not None and not isinstance(inner, Mapping):
        raise _wrong(name, key, _kind_of(inner), "an object")
    return inner or {}


def _vocab(model: Mapping[str, Any]) -> Mapping[str, int]:
    """BPE, WordPiece and WordLevel have ``{piece: id}``, Unigram ``[[piece, score], …]`` by id."""
    vocab = model.get("vocab")
    if isinstance(vocab, LateVocabulary):
        return vocab
    if isinstance(vocab, list):
        vocab = {_unigram_piece(number, entry): number for number, entry in enumerate(vocab)}
    if vocab is not None and not isinstance(vocab, dict):
        raise _wrong(TOKENIZER_FILE, "model.vocab", _kind_of(vocab), "an object or a list")
    if vocab and not (set(map(type, vocab.values())) == {int} and _are_ids(vocab.values())):
        piece, number = next(item for item in vocab.items() if not _is_id(item[1]))
        raise _wrong(TOKENIZER_FILE, f"the id of {piece!r}", _shown(number), _AN_ID)
    return vocab or {}


def _unigram_piece(number: int, entry: Any) -> str:
    if isinstance(entry, list) and entry and isinstance(entry[0], str):
        return entry[0]
    raise _wrong(TOKENIZER_FILE, f"model.vocab[{number}]", _kind_of(entry), "a piece and its score")


def _added_tokens(
    directory: str, fast: Mapping[str, Any], slow: Mapping[str, Any]
) -> Tuple[Dict[int, AddedToken], List[str]]:
    """Added tokens by id, and in words where files disagree about one; shown is what tokenizer.json says."""
    tokens: Dict[int, AddedToken] = {}
    ids: Dict[str, int] = {}
    conflicts: List[str] = []
    for file, number, name, special in _listed(directory, fast, slow):
        known = tokens.get(number)
        if known is None:
            tokens[number] = AddedToken(name, special, (file,))
        elif known.name != name:
            other = f"{visible(known.name)} in {known.files[0]}"
            conflicts.append(f"id {number} is {other} and {visible(name)} in {file}")
        elif file not in known.files:
            tokens[number] = AddedToken(name, known.special or special, (*known.files, file))
        first = ids.setdefault(name, number)
        if first != number:
            where = tokens[first].files[0]
            conflicts.append(f"{visible(name)} is id {first} in {where} and {number} in {file}")
    return tokens, conflicts


def _listed(
    directory: str, fast: Mapping[str, Any], slow: Mapping[str, Any]
) -> Iterator[Tuple[str, int, str, bool]]:
    """``(file, id, name, special)`` of every added token that a file lists."""
    entries = fast.get("added_tokens")
    if entries is not None and not isinstance(entries, list):
        raise _wrong(TOKENIZER_FILE, "added_tokens", _kind_of(entries), "a list")
    numbered = [(entry.get("id") if isinstance(entry, Mapping) else None, entry) for entry in entries or []]
    yield from _tokens(TOKENIZER_FILE, numbered)
    decoder = _object(slow, "added_tokens_decoder", CONFIG_FILE)
    keys = {key: int(key) if _DIGITS.fullmatch(key) else key for key in decoder}
    yield from _tokens(CONFIG_FILE, [(keys[key], entry) for key, entry in decoder.items()])
    legacy = _read(directory, "added_tokens.json")
    yield from _tokens("added_tokens.json", [(number, name) for name, number in legacy.items()])


def _tokens(file: str, entries: Iterable[Tuple[Any, Any]]) -> Iterator[Tuple[str, int, str, bool]]:
    for number, entry in entries:
        content = entry.get("content") if isinstance(entry, Mapping) else entry
        if not _is_id(number):
            raise _wrong(file, "the id of an added token", _shown(number), _AN_ID)
        if not isinstance(content, str):
            raise _wrong(file, f"added token {number}", _kind_of(content), "text")
        if content:  # an empty one is ignored, as the tokenizers library does
            yield file, number, content, isinstance(entry, Mapping) and entry.get("special") is True


def _roles(
    directory: str,
    config: Mapping[str, Any],
    slow: Mapping[str, Any],
    vocab: Mapping[str, int],
    added: Mapping[int, AddedToken],
) -> Tuple[Dict[str, Tuple[int, ...]], Dict[str, str]]:
    """Ids by role, and names of roles without an id.

    config.json and generation_config.json give an id or a list of ids, tokenizer_config.json and
    special_tokens_map.json a token's name; engines stop at any of them, so all count.
    """
    by_name = {token.name: number for number, token in added.items()}
    named = [slow, _read(directory, "special_tokens_map.json")]
    numbered = [config, text_config(config)[1], _read(directory, "generation_config.json")]
    ids: Dict[str, Tuple[int, ...]] = {}
    unlisted: Dict[str, str] = {}
    for role in ROLES:
        found = [number for place in numbered for number in _ids(place.get(f"{role}_token_id"))]
        for name in filter(None, (_token_name(place.get(f"{role}_token")) for place in named)):
            number = by_name.get(name, vocab.get(name))
            if number is not None:
                found.append(number)
            elif vocab:
                unlisted[role] = name
        ids[role] = tuple(dict.fromkeys(found))
    return ids, unlisted


def _template(directory: str, slow: Mapping[str, Any]) -> str:
    """Chat templates are in tokenizer_config.json, one or several, or in files of their own."""
    inline = slow.get("chat_template")
    entries = inline if isinstance(inline, list) else [inline, _read(directory, "chat_template.json")]
    values = [
        value.get("template", value.get("chat_template")) if isinstance(value, Mapping) else value
        for value in entries
    ]
    texts = [value for value in values if isinstance(value, str)]
    for name in _named(directory, ("*.jinja", "additional_chat_templates/*.jinja")):
        try:
            raw = read_bytes(os.path.join(directory, name), _TEMPLATE_BYTES)
        except OSError as exc:
            raise _wrong(name, "it", f"not readable: {exc.strerror}", "a readable file") from exc
        texts.append(raw.decode("utf-8", "replace"))
    return "\n".join(texts)


def _token_name(token: Any) -> Optional[str]:
    """A token is written as its text, or as an object with ``content``; None for what is neither."""
    name = token.get("content") if isinstance(token, Mapping) else token
    return name if isinstance(name, str) and name else None


def _ids(value: Any) -> List[int]:
    return [number for number in (value if isinstance(value, list) else [value]) if _is_id(number)]


def _is_id(value: Any) -> bool:
    return is_integer(value) and 0 <= value <= MAX_ID


def _are_ids(values: Collection[int]) -> bool:
    return min(values) >= 0 and max(values) <= MAX_ID


def _kind_of(value: Any) -> str:
    return f"a JSON {type(value).__name__}"


def _shown(value: Any) -> str:
    """A value that is wrong; not what is in it, which may be as long and as deep as the file."""
    return _kind_of(value) if isinstance(value, (dict, list)) else shown(value)
