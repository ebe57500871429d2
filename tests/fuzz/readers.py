"""What is fuzzed: a function for each reader that takes any bytes and lets nothing but InputError pass."""

from __future__ import annotations

import contextlib
import copy
import dataclasses
import functools
import json
import random
import tempfile
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from draftgate import contract_facts, drafter_weights
from draftgate.config_fields import Fields, text_config
from draftgate.contract_facts import Facts
from draftgate.contract_rules import RULES
from draftgate.errors import InputError
from draftgate.mask_embedding import read_mask_embedding
from draftgate.safetensors import Weights, read_header, read_weights
from draftgate.tokenizer import read_tokenizer

REPO = Path(__file__).resolve().parents[2]
DRAFTER = REPO / "models" / "tiny-pair" / "drafter"
TARGET = REPO / "models" / "tiny-pair" / "target"
KNOWN = Path(__file__).with_name("known")
_TOKENIZER_FILES = ("tokenizer.json", "tokenizer_config.json", "generation_config.json")
_LENGTH = 8
_ODD: tuple[Any, ...] = (
    None, True, False, -1, 0, 1, 2, 1 << 31, 1 << 62, 1 << 64, 10**30, 0.5, 1e308, float("nan"), float("inf"),
    "", "1", "-1", "²", "\ud800", "\x00", "\U0001f600", "../x", "F4", "a.b", "layers.999999999999.x", [], {},
    [[]], [0, 0], [True], ["1"], {"": 0}, {"content": {}}, {"id": 1, "content": "x"},
)  # fmt: skip


class Reader(NamedTuple):
    """:param feed: reads these bytes as this reader's file and uses what comes out, as the rules do.
    :param seeds: whole files that are right, to begin with.
    """

    feed: Callable[[bytes], None]
    seeds: Callable[[], list[bytes]]


_SCRATCH = tempfile.TemporaryDirectory(prefix="draftgate-reader-")


def _scratch() -> Path:
    return Path(_SCRATCH.name)


def feed_header(file: bytes) -> None:
    path = _scratch() / "model.safetensors"
    path.write_bytes(file)
    with contextlib.suppress(InputError):
        weights = Weights(read_header(str(path)))
        _judge(weights=weights, inferred=drafter_weights.infer(weights, 128))
    index = _scratch() / "index"
    index.mkdir(exist_ok=True)
    (index / "model.safetensors.index.json").write_bytes(file[_LENGTH:])
    with contextlib.suppress(InputError):
        read_weights(str(index))


@functools.cache
def _facts() -> Facts:
    return contract_facts.gather(
        str(DRAFTER),
        str(TARGET),
        engine={"name": "vllm", "version": "0.25.0"},
        num_speculative_tokens=7,
        overrides={},
        gpu={"arch": "sm_86", "count": 2, "memory_gib": 48},
        server={"max_model_len": 1024, "tensor_parallel_size": 2, "kv_cache_dtype": "fp8"},
        environment={},
        packages={},
    )


def feed_config(file: bytes) -> None:
    """As the drafter's config and as the target's; every rule is asked about either."""
    (_scratch() / "config.json").write_bytes(file)
    try:
        config = contract_facts.read_own_config(str(_scratch()))
    except InputError:
        return
    prefix, text = text_config(config)
    _judge(drafter=Fields("drafter", config))
    _judge(target=Fields(f"target{prefix}", text))


def _judge(**changed: Any) -> None:
    """Every rule is asked about the tiny pair with this difference; what they find has to be writable."""
    facts = dataclasses.replace(_facts(), **changed)
    found = [finding for rule in RULES for finding in rule(facts)]
    told = [finding.as_dict() for finding in [*found, *facts.drafter.wrong, *facts.target.wrong]]
    json.dumps(told, allow_nan=False, ensure_ascii=False).encode("utf-8")


def feed_tokenizer(file: bytes) -> None:
    """The first byte says which of the tokenizer's files it is; the others are the tiny pair's."""
    name = _TOKENIZER_FILES[file[0] % len(_TOKENIZER_FILES) if file else 0]
    directory = _scratch() / "tokenizer"
    directory.mkdir(exist_ok=True)
    for other in _TOKENIZER_FILES:
        (directory / other).write_bytes((TARGET / other).read_bytes())
    (directory / name).write_bytes(file[1:])
    try:
        tokenizer = read_tokenizer(str(directory), {"vocab_size": 544})
    except InputError:
        return
    assert tokenizer.length >= 0
    told = [(tokenizer.describe(row), tokenizer.is_ordinary(row)) for row in (-1, 0, 300, 512, 1 << 40)]
    json.dumps(told, ensure_ascii=False).encode("utf-8")


def feed_mask(pickle: bytes) -> None:
    """The pickle of a mask_embedding.pt, in a zip whose checksums are right."""
    with zipfile.ZipFile(_scratch() / "mask_embedding.pt", "w") as archive:
        archive.writestr("mask/data.pkl", pickle)
        archive.writestr("mask/data/0", bytes(32))
    with contextlib.suppress(InputError):
        row = read_mask_embedding(str(_scratch()))
        assert row is not None and row.elements * 2 <= 32


def _pickles() -> list[bytes]:
    """As torch.save writes a tensor of eight numbers, alone and in a dict with its id."""
    tensor = (
        b"ctorch._utils\n_rebuild_tensor_v2\n((X\7\0\0\0storagectorch\nFloatStorage\n"
        b"X\1\0\0\x000X\3\0\0\0cpuK\x08tQK\0K\x08\x85K\1\x85\x89ccollections\nOrderedDict\n)RtR"
    )
    name, key = b"X\x09\0\0\0embedding", b"X\x0d\0\0\0mask_token_id"
    return [b"\x80\2" + tensor + b".", b"\x80\2}(" + name + tensor + key + b"M\0\2u."]


def _safetensors(header: bytes, size: int) -> bytes:
    return len(header).to_bytes(_LENGTH, "little") + header + bytes(size)


def _headers() -> list[bytes]:
    entry = {"dtype": "F32", "shape": [2, 2], "data_offsets": [0, 16]}
    small = {"__metadata__": {"format": "pt"}, "fc.weight": entry}
    index = {"metadata": {}, "weight_map": {"fc.weight": "model-00001-of-00002.safetensors"}}
    real = (DRAFTER / "model.safetensors").open("rb").read(1 << 16)
    length = _LENGTH + int.from_bytes(real[:_LENGTH], "little")
    return [
        _safetensors(json.dumps(small).encode(), 16),
        _safetensors(json.dumps(index).encode(), 0),
        real[:length],
    ]


def _configs() -> list[bytes]:
    tiny = [(DRAFTER / "config.json").read_bytes(), (TARGET / "config.json").read_bytes()]
    nested = json.loads(tiny[1])
    return [*tiny, json.dumps({"text_config": nested}).encode()]


def _tokenizers() -> list[bytes]:
    """With a short vocabulary: what is long is mutated in one place only."""
    fast = json.loads((TARGET / "tokenizer.json").read_bytes())
    model = fast["model"]
    model["vocab"] = dict(list(model["vocab"].items())[:20])
    model["merges"] = model.get("merges", [])[:5]
    files = [json.dumps(fast).encode(), *((TARGET / name).read_bytes() for name in _TOKENIZER_FILES[1:])]
    return [bytes([number]) + file for number, file in enumerate(files)]


READERS = {
    "header": Reader(feed_header, _headers),
    "config": Reader(feed_config, _configs),
    "mask": Reader(feed_mask, _pickles),
    "tokenizer": Reader(feed_tokenizer, _tokenizers),
}


def known(name: str) -> list[Path]:
    """Inputs that broke this reader once."""
    return sorted((KNOWN / name).glob("*"))


def mutated(name: str, file: bytes, seed: int) -> bytes:
    """The same file with some values of its JSON changed, and its frame made right again.

    A mutation of bytes alone hardly ever leaves JSON behind. A file that is none stays what it is.
    """
    chance = random.Random(seed)
    begin = {"header": _LENGTH, "tokenizer": 1}.get(name, 0)
    try:
        value, rest = json.JSONDecoder().raw_decode(file[begin:].decode("utf-8", "surrogateescape"))
        for _ in range(chance.choice((1, 1, 2, 3))):
            value = _changed(value, chance)
        text = json.dumps(value).encode()
    except (ValueError, RecursionError):
        return file
    if name == "header":
        ends = [0, *(end for end in _ends(value) if 0 <= end < 1 << 16)]
        return _safetensors(text, max(ends) if chance.random() < 0.9 else chance.randrange(64))
    return file[:begin] + text


def _changed(value: Any, chance: random.Random) -> Any:
    """One value of it is removed, renamed or another one; near the top as often as deep down."""
    container: Any = None
    key: Any = None
    inner = value
    while isinstance(inner, (dict, list)) and inner and (container is None or chance.random() < 0.7):
        container = inner
        key = chance.choice(list(container) if isinstance(container, dict) else range(len(container)))
        inner = container[key]
    if container is None:
        return chance.choice(_ODD)
    kind = chance.randrange(4)
    if kind == 0:
        del container[key]
    elif kind == 1 and isinstance(container, dict):
        container[chance.choice([odd for odd in _ODD if isinstance(odd, str)])] = container.pop(key)
    elif kind == 2 and isinstance(inner, int):
        container[key] = inner + chance.choice((-1, 1, 1 << 32, 1 << 63))
    else:
        container[key] = copy.deepcopy(chance.choice(_ODD))
    return value


def _ends(header: Any) -> Iterator[int]:
    for entry in header.values() if isinstance(header, dict) else ():
        offsets = entry.get("data_offsets") if isinstance(entry, dict) else None
        if isinstance(offsets, list):
            yield from (end for end in offsets if type(end) is int)
