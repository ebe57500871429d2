"""Safetensors headers: names, shapes and dtypes of a model's tensors. The weights are never read.

A file starts with the header's length (8 bytes, little-endian) and the header, a JSON object
``{name: {dtype, shape, data_offsets}}``; offsets count from the header's end.
Format: https://github.com/huggingface/safetensors#format
"""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from typing import Any, Dict, List, NamedTuple, Tuple

from .errors import InputError
from .files import read_json

INDEX_NAME = "model.safetensors.index.json"
_LENGTH_BYTES = 8
_LONGEST_HEADER = 100_000_000  # the limit of the safetensors library itself
_LFS_POINTER = b"version https://git-lfs"
_BITS = {
    "F4": 4, "F6_E2M3": 6, "F6_E3M2": 6, "F8_E4M3": 8, "F8_E5M2": 8, "F8_E8M0": 8,
    "BOOL": 8, "U8": 8, "I8": 8, "U16": 16, "I16": 16, "F16": 16, "BF16": 16,
    "U32": 32, "I32": 32, "F32": 32, "U64": 64, "I64": 64, "F64": 64, "C64": 64,
}  # fmt: skip


class Tensor(NamedTuple):
    """One tensor as its header describes it: ``bytes`` is its size in the file."""

    dtype: str
    shape: Tuple[int, ...]
    bytes: int
    file: str


@dataclass(frozen=True)
class Weights:
    """All tensors of one model directory, by name."""

    tensors: Dict[str, Tensor]

    @property
    def bytes(self) -> int:
        return sum(tensor.bytes for tensor in self.tensors.values())

    @property
    def parameters(self) -> int:
        return sum(_product(tensor.shape) for tensor in self.tensors.values())

    @property
    def dtypes(self) -> List[str]:
        return sorted({tensor.dtype for tensor in self.tensors.values()})


def read_weights(directory: str) -> Weights:
    """Headers of every shard that the index names, or of every ``*.safetensors`` where there is no index.

    :raises InputError: no weights (DG233), a missing shard (DG232), an unreadable file (DG231).
    """
    index = os.path.join(directory, INDEX_NAME)
    if os.path.lexists(index):
        return Weights(_sharded(directory, _weight_map(index)))
    tensors: Dict[str, Tensor] = {}
    for name in _unsharded_names(directory):
        tensors.update(read_header(os.path.join(directory, name)))
    return Weights(tensors)


def read_header(path: str) -> Dict[str, Tensor]:
    """The tensors of one file.

    :raises InputError: DG231, with what is wrong and both sizes where it is truncated.
    """
    try:
        with open(path, "rb") as handle:
            size = os.fstat(handle.fileno()).st_size
            start = handle.read(_LENGTH_BYTES)
            length = _header_length(path, start, size)
            header = _parse(path, handle.read(length))
    except OSError as exc:
        raise _broken(path, f"it cannot be read: {exc.strerror}") from exc
    room = size - _LENGTH_BYTES - length
    name = os.path.basename(path)
    return {
        key: _tensor(path, key, entry, room, name) for key, entry in header.items() if key != "__metadata__"
    }


def _unsharded_names(directory: str) -> List[str]:
    try:
        names = sorted(name for name in os.listdir(directory) if name.endswith(".safetensors"))
    except OSError as exc:
        raise _broken(directory, f"it cannot be listed: {exc.strerror}") from exc
    if names:
        return names
    raise InputError(
        "reading safetensors headers",
        f"{directory!r} has no *.safetensors file",
        "at least one",
        "Fetch the weights into this directory.",
        code="DG233",
    )


def _weight_map(index: str) -> Dict[str, str]:
    """``{tensor: file}`` of an index; a name with a directory in it would read outside of the model."""
    try:
        weight_map = read_json(index, "reading the index of the weights").get("weight_map")
    except InputError as exc:
        raise _broken(index, exc.observed) from exc
    if not isinstance(weight_map, dict) or not weight_map:
        raise _broken(index, "it has no weight_map with a file for each tensor")
    for tensor, file in weight_map.items():
        if not isinstance(file, str) or file != os.path.basename(file) or not file:
            raise _broken(index, f"it puts {tensor!r} into {file!r}, which is not a file name")
    return weight_map


def _sharded(directory: str, weight_map: Dict[str, str]) -> Dict[str, Tensor]:
    tensors: Dict[str, Tensor] = {}
    shards = sorted(set(weight_map.values()))
    missing = [shard for shard in shards if not os.path.lexists(os.path.join(directory, shard))]
    if missing:
        raise InputError(
            "reading safetensors headers",
            f"{INDEX_NAME} names {len(shards)} files, and {', '.join(missing)} is not in {directory!r}",
            "all of them",
            "Fetch the missing files.",
            code="DG232",
            details={"missing": missing},
        )
    for shard in shards:
        tensors.update(read_header(os.path.join(directory, shard)))
    lost = sorted(name for name, shard in weight_map.items() if name not in tensors)
    if lost:
        shard = weight_map[lost[0]]
        raise _broken(os.path.join(directory, shard), f"it lacks {lost[0]!r}, which the index puts there")
    return tensors


def _header_length(path: str, start: bytes, size: int) -> int:
    if start.startswith(_LFS_POINTER[:_LENGTH_BYTES]):
        raise _broken(path, "it is a Git LFS pointer, not the weights", "Run git lfs pull there.")
    if len(start) < _LENGTH_BYTES:
        raise _broken(path, f"it has {size} bytes, too few for a header: not a safetensors file")
    length = int.from_bytes(start, "little")
    if length > _LONGEST_HEADER:
        raise _broken(path, f"its first bytes {start!r} make a header of {length} bytes: not safetensors")
    if _LENGTH_BYTES + length > size:
        raise _broken(path, f"it is truncated: a header of {length} bytes in a file of {size}")
    return length


def _parse(path: str, raw: bytes) -> Dict[str, Any]:
    try:
        header = json.loads(raw.decode("utf-8"))
    except ValueError as exc:  # UnicodeDecodeError is one
        raise _broken(path, f"its header is not JSON ({exc}): not a safetensors file") from exc
    if not isinstance(header, dict):
        raise _broken(path, f"its header is a JSON {type(header).__name__}: not a safetensors file")
    return header


def _tensor(path: str, key: str, entry: Any, room: int, name: str) -> Tensor:
    try:
        dtype, shape = str(entry["dtype"]), tuple(entry["shape"])
        begin, end = entry["data_offsets"]
    except (KeyError, TypeError, ValueError):
        raise _broken(path, f"the header's entry of {key!r} is {entry!r}") from None
    numbers = (*shape, begin, end)
    if not all(isinstance(number, int) and number >= 0 for number in numbers) or begin > end:
        raise _broken(path, f"the header's entry of {key!r} is {entry!r}")
    if end > room:
        raise _broken(path, f"it is truncated: {key!r} ends at byte {end} of the data, the file has {room}")
    bits = _BITS.get(dtype)
    if bits is not None and end - begin != (_product(shape) * bits + 7) // 8:
        raise _broken(path, f"{key!r} of {dtype} {list(shape)} takes {end - begin} bytes")
    return Tensor(dtype, shape, end - begin, name)


def _product(shape: Tuple[int, ...]) -> int:
    result = 1
    for size in shape:
        result *= size
    return result


def _broken(path: str, what: str, step: str = "Fetch this file again.") -> InputError:
    return InputError(f"reading the safetensors header of {path!r}", what, "", step, code="DG231")
