"""The real safetensors library opens what our reader takes and refuses what it refuses."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest
from draftgate.errors import InputError
from draftgate.safetensors import read_header

from tests.cache import RUNTIMES
from tests.fuzz.readers import READERS, mutated

OPEN = """
import json, sys
from safetensors import safe_open

def opens(path):
    try:
        with safe_open(path, framework="np") as file:
            return sorted(file.keys())
    except Exception:
        return None

print(json.dumps([opens(path) for path in json.load(sys.stdin)]))
"""
ENTRY = {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}
NEXT = {**ENTRY, "data_offsets": [8, 16]}
HEADERS: dict[str, tuple[object, int]] = {
    "right": ({"w": ENTRY, "v": NEXT, "__metadata__": {"format": "pt"}}, 16),
    "nothing": ({}, 0),
    "metadata is null": ({"__metadata__": None, "w": ENTRY}, 8),
    "metadata is 0": ({"__metadata__": 0, "w": ENTRY}, 8),
    "metadata holds a number": ({"__metadata__": {"a": 1}, "w": ENTRY}, 8),
    "rest": ({"w": ENTRY}, 9),
    "truncated": ({"w": ENTRY}, 7),
    "hole": ({"w": {**ENTRY, "data_offsets": [4, 12]}}, 12),
    "overlap": ({"w": ENTRY, "v": {**ENTRY, "data_offsets": [4, 12]}}, 12),
    "twice": ({"w": ENTRY, "v": ENTRY}, 8),
    "size": ({"w": {**ENTRY, "shape": [3]}}, 8),
    "bool": ({"w": {**ENTRY, "shape": [2, True]}}, 8),
    "float": ({"w": {**ENTRY, "shape": [2.0]}}, 8),
    "scalar": ({"w": {**ENTRY, "shape": [], "data_offsets": [0, 4]}}, 4),
    "empty tensor": ({"w": ENTRY, "v": {**ENTRY, "shape": [0, 5], "data_offsets": [8, 8]}}, 8),
    "overflow": ({"w": {**ENTRY, "shape": [1 << 62, 4, 0], "data_offsets": [0, 0]}}, 0),
    "half a byte": ({"w": {"dtype": "F4", "shape": [3], "data_offsets": [0, 2]}}, 2),
    "two halves": ({"w": {"dtype": "F4", "shape": [4], "data_offsets": [0, 2]}}, 2),
    "half of a pair": ({"\ud800": ENTRY}, 8),
    "nan": ({"w": {**ENTRY, "shape": [float("nan")]}}, 8),
    "list": ([], 0),
}


def files() -> list[bytes]:
    made = []
    for header, size in HEADERS.values():
        raw = json.dumps(header).encode()
        made.append(len(raw).to_bytes(8, "little") + raw + bytes(size))
    seeds = READERS["header"].seeds()
    return [*made, *(mutated("header", seeds[0], number) for number in range(600))]


def names(path: Path) -> list[str] | None:
    try:
        return sorted(read_header(str(path)))
    except InputError:
        return None


@pytest.mark.real
def test_the_library_agrees(tmp_path: Path) -> None:
    interpreter = next(RUNTIMES.glob("*/bin/python"), None)
    if interpreter is None:
        pytest.skip("no engine runtime is installed: make deploy, or the tests before this one, install it")
    paths = [tmp_path / str(number) for number in range(600 + len(HEADERS))]
    for path, file in zip(paths, files()):
        path.write_bytes(file)
    argv = [str(interpreter), "-c", OPEN]
    done = subprocess.run(
        argv, input=json.dumps([str(path) for path in paths]), capture_output=True, text=True, check=True
    )
    ours, theirs = [names(path) for path in paths], json.loads(done.stdout)
    differ = {
        path.read_bytes(): (own, other) for path, own, other in zip(paths, ours, theirs) if own != other
    }
    # A dtype that our table lacks is not judged, so that the next one of theirs is no error of ours.
    unexplained = {file: both for file, both in differ.items() if b'"dtype": "F32"' in file}
    assert not unexplained
    assert sum(own is None for own in ours) > 100 and sum(own is not None for own in ours) > 100
