"""Safetensors headers: names, shapes and dtypes of a model's tensors. The weights are never read.

A file starts with the header's length (8 bytes, little-endian) and the header, a JSON object
``{name: {dtype, shape, data_offsets}}``; offsets count from the header's end.
Format: https://github.com/huggingface/safetensors#format
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Any, Dict, List, NamedTuple, Optional, Sequence, Tuple

from .errors import InputError
from .untrusted import INDEX, Limits, open_file, parse_json, read_json, shown

INDEX_NAME = "model.safetensors.index.json"
_LENGTH_BYTES = 8
# The library takes 100 MB; 16 MiB are 170 000 tensors in one file, and published ones have some thousands.
_HEADER = Limits(16 << 20, 1_500_000)
_MOST_TENSORS = 500_000  # in all files together; the largest published model has 207 000
_LARGEST = 1 << 63
_LFS_POINTER = b"version https://git-lfs"
_BITS = {
    "F4": 4, "F6_E2M3": 6, "F6_E3M2": 6, "F8_E4M3": 8, "F8_E5M2": 8, "F8_E8M0": 8, "F8_E4M3FNUZ": 8,
    "F8_E5M2FNUZ": 8, "BOOL": 8, "U8": 8, "I8": 8, "U16": 16, "I16": 16, "F16": 16, "BF16": 16,
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
        return sum(_elements(tensor.shape) or 0 for tensor in self.tensors.values())

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
    return Weights(_together(directory, _unsharded_names(directory)))


def read_header(path: str) -> Dict[str, Tensor]:
    """The tensors of one file, judged as the safetensors library does before it opens one.

    :raises InputError: DG231, with what is wrong and both sizes where it is truncated.
    """
    try:
        with open_file(path) as handle:
            size = os.fstat(handle.fileno()).st_size
            start = handle.read(_LENGTH_BYTES)
            length = _header_length(path, start, size)
            header = _parse(path, handle.read(length))
    except OSError as exc:
        raise _broken(path, f"it cannot be read: {exc.strerror}") from exc
    name = os.path.basename(path)
    entries = [(key, _entry(path, key, entry)) for key, entry in header.items() if key != "__metadata__"]
    _refuse_gaps(path, entries, size - _LENGTH_BYTES - length)
    return {key: Tensor(dtype, shape, end - begin, name) for key, (dtype, shape, begin, end) in entries}


def _together(directory: str, names: List[str]) -> Dict[str, Tensor]:
    tensors: Dict[str, Tensor] = {}
    for name in names:
        tensors.update(read_header(os.path.join(directory, name)))
        if len(tensors) > _MOST_TENSORS:
            raise _broken(directory, f"its files have more than {_MOST_TENSORS} tensors")
    return tensors


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
        weight_map = read_json(index, "reading the index of the weights", INDEX).get("weight_map")
    except InputError as exc:
        raise _broken(index, exc.observed) from exc
    if not isinstance(weight_map, dict) or not weight_map:
        raise _broken(index, "it has no weight_map with a file for each tensor")
    for tensor, file in weight_map.items():
        if not isinstance(file, str) or file != os.path.basename(file) or not file:
            raise _broken(index, f"it puts {shown(tensor)} into {shown(file)}, which is not a file name")
    return weight_map


def _sharded(directory: str, weight_map: Dict[str, str]) -> Dict[str, Tensor]:
    shards = sorted(set(weight_map.values()))
    missing = [shard for shard in shards if not os.path.lexists(os.path.join(directory, shard))]
    if missing:
        raise InputError(
            "reading safetensors headers",
            f"{INDEX_NAME} names {len(shards)} files, and {_listed(missing)} is not in {directory!r}",
            "all of them",
            "Fetch the missing files.",
            code="DG232",
            details={"missing": missing[:100]},
        )
    tensors = _together(directory, shards)
    lost = sorted(name for name, shard in weight_map.items() if name not in tensors)
    if lost:
        shard = os.path.join(directory, weight_map[lost[0]])
        raise _broken(shard, f"it lacks {shown(lost[0])}, which the index puts there")
    return tensors


def _header_length(path: str, start: bytes, size: int) -> int:
    if start.startswith(_LFS_POINTER[:_LENGTH_BYTES]):
        raise _broken(path, "it is a Git LFS pointer, not the weights", "Run git lfs pull there.")
    if len(start) < _LENGTH_BYTES:
        raise _broken(path, f"it has {size} bytes, too few for a header: not a safetensors file")
    length = int.from_bytes(start, "little")
    if length > size and length > _HEADER.bytes:
        raise _broken(path, f"its first bytes {start!r} make a header of {length} bytes: not safetensors")
    if length > _HEADER.bytes:
        raise _broken(path, f"its header has {length} bytes, more than the {_HEADER.bytes} of any model")
    if _LENGTH_BYTES + length > size:
        raise _broken(path, f"it is truncated: a header of {length} bytes in a file of {size}")
    return length


def _parse(path: str, raw: bytes) -> Dict[str, Any]:
    try:
        header = parse_json(raw, _HEADER.values)
    except ValueError as exc:  # UnicodeDecodeError is one
        raise _broken(path, f"its header is not JSON ({exc}): not a safetensors file") from exc
    if not isinstance(header, dict):
        raise _broken(path, f"its header is a JSON {type(header).__name__}: not a safetensors file")
    metadata = header.get("__metadata__")
    strings = isinstance(metadata, dict) and all(isinstance(value, str) for value in metadata.values())
    if metadata is not None and not strings:
        raise _broken(path, f"its header's __metadata__ is {shown(metadata)}, not an object of strings")
    return header


Entry = Tuple[str, Tuple[int, ...], int, int]


def _entry(path: str, key: str, entry: Any) -> Entry:
    """Dtype, shape, and where the data begin and end. A dtype that this table lacks is not judged."""
    try:
        dtype, shape = entry["dtype"], entry["shape"]
        begin, end = entry["data_offsets"]
        # A bool is an int to isinstance.
        are_sizes = all(type(number) is int and 0 <= number < _LARGEST for number in (*shape, begin, end))
        elements = _elements(shape) if are_sizes else None
    except (KeyError, TypeError, ValueError):
        elements = None
    if elements is None or begin > end or not isinstance(dtype, str) or not isinstance(shape, list):
        raise _broken(path, f"the header's entry of {shown(key)} is {shown(entry)}")
    bits = _BITS.get(dtype)
    if bits is not None and (end - begin) * 8 != elements * bits:
        raise _broken(path, f"{shown(key)} of {dtype} {shown(shape)} takes {end - begin} bytes")
    return dtype, tuple(shape), begin, end


def _refuse_gaps(path: str, entries: List[Tuple[str, Entry]], room: int) -> None:
    """The library opens a file only if its tensors cover the data without hole, overlap or rest."""
    covered = 0
    for key, (_, _, begin, end) in sorted(entries, key=lambda entry: entry[1][2:]):
        if end > room:
            what = f"it is truncated: {shown(key)} ends at byte {end} of the data, the file has {room}"
            raise _broken(path, what)
        if begin != covered:
            raise _broken(path, f"{shown(key)} begins at byte {begin} of the data, expected {covered}")
        covered = end
    if covered != room:
        raise _broken(path, f"its tensors end at byte {covered} of the data, the file has {room}")


def _elements(shape: Sequence[int]) -> Optional[int]:
    """Their product; None where it is more than any file holds (and a million factors would take hours)."""
    product = 1
    for size in shape:
        product *= size
        if product >= _LARGEST:
            return None
    return product


def _listed(names: List[str]) -> str:
    more = f" and {len(names) - 5} more" if len(names) > 5 else ""
    return ", ".join(map(shown, names[:5])) + more


def _broken(path: str, what: str, step: str = "Fetch this file again.") -> InputError:
    return InputError(f"reading the safetensors header of {path!r}", what, "", step, code="DG231")
