"""Headers are read right, the weights never, and a file that is none says why."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from draftgate import safetensors
from draftgate.errors import InputError
from draftgate.safetensors import read_header, read_weights

from tests.conftest import REPO
from tests.model_files import CONFIG_27B, drafter_tensors, write_json, write_safetensors


def raw_file(header: Any, data: int = 0) -> bytes:
    raw = header if isinstance(header, bytes) else json.dumps(header).encode()
    return len(raw).to_bytes(8, "little") + raw + bytes(data)


def entry(dtype: str = "F32", shape: Any = (2,), offsets: Any = (0, 8)) -> dict[str, Any]:
    return {"w": {"dtype": dtype, "shape": shape, "data_offsets": offsets}}


def bytes_read() -> int:
    """Bytes that this process has read so far, by the kernel's count."""
    return int(Path("/proc/self/io").read_text().split()[1])


def test_the_real_shapes_of_the_27b_drafter(tmp_path: Path) -> None:
    write_safetensors(tmp_path / "model.safetensors", drafter_tensors(CONFIG_27B, captured=5))
    before = bytes_read()
    weights = read_weights(str(tmp_path))
    assert bytes_read() - before < 100_000  # of 3.4 GB
    assert (len(weights.tensors), weights.parameters, weights.bytes) == (58, 1_730_213_120, 3_460_426_240)
    assert weights.tensors["fc.weight"].shape == (5120, 25600)
    assert weights.dtypes == ["BF16"]


def test_the_tiny_pair() -> None:
    assert len(read_weights(str(REPO / "models/tiny-pair/drafter")).tensors) == 36
    assert "model.embed_tokens.weight" in read_weights(str(REPO / "models/tiny-pair/target")).tensors


def test_shards_are_read_together(tmp_path: Path) -> None:
    write_safetensors(tmp_path / "a.safetensors", {"x": ("BF16", (2, 3))})
    write_safetensors(tmp_path / "b.safetensors", {"y": ("F32", (4,))})
    write_safetensors(tmp_path / "other.safetensors", {"z": ("F32", (4,))})
    write_json(
        tmp_path / safetensors.INDEX_NAME, {"weight_map": {"x": "a.safetensors", "y": "b.safetensors"}}
    )
    weights = read_weights(str(tmp_path))
    assert {name: (tensor.shape, tensor.file) for name, tensor in weights.tensors.items()} == {
        "x": ((2, 3), "a.safetensors"),
        "y": ((4,), "b.safetensors"),
    }
    assert (weights.bytes, weights.parameters) == (28, 10)


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"", "0 bytes"),
        (b"\x10", "1 bytes"),
        (raw_file(entry(), 8)[:40], "truncated: a header of"),
        (raw_file(entry(), 7), "truncated: 'w' ends at byte 8 of the data, the file has 7"),
        (b"\xff" * 100, "not safetensors"),
        (b"PK\x03\x04 a pickle in a zip", "not safetensors"),
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:0\n", "Git LFS pointer"),
        (raw_file(b"{'w': 1}"), "not JSON"),
        (raw_file(b"\xff\xfe"), "not JSON"),
        (raw_file([1, 2]), "a JSON list"),
        (raw_file({"w": 3}), "'w' is 3"),
        (raw_file({"w": {"dtype": "F32"}}), "'w' is"),
        (raw_file(entry(shape=[-2]), 8), "'w' is"),
        (raw_file(entry(shape=["2"]), 8), "'w' is"),
        (raw_file(entry(offsets=[8, 0]), 8), "'w' is"),
        (raw_file(entry(offsets=[0]), 8), "'w' is"),
        (raw_file(entry(shape=[3]), 8), "takes 8 bytes"),
        (raw_file(entry("F4", [3], [0, 2]), 2), "takes 2 bytes"),
        (raw_file(entry(shape=[2, True]), 8), "'w' is"),
        (raw_file(entry(shape=[1 << 62, 4, 0], offsets=[0, 0])), "'w' is"),
        (raw_file(entry(shape=[1] * 1000, offsets=[0, 8]), 8), "… ("),
        (raw_file(entry(offsets=[8, 16]), 16), "'w' begins at byte 8 of the data, expected 0"),
        (raw_file({**entry(), "v": entry()["w"]}, 8), "begins at byte 0 of the data, expected 8"),
        (raw_file(entry(), 9), "its tensors end at byte 8 of the data, the file has 9"),
        (
            raw_file({"__metadata__": {"format": 1}}),
            "__metadata__ is {'format': 1}, not an object of strings",
        ),
        ((17 << 20).to_bytes(8, "little") + bytes(18 << 20), "more than the 16777216 of any model"),
    ],
)
def test_a_broken_file_says_what_is_wrong(tmp_path: Path, content: bytes, said: str) -> None:
    path = tmp_path / "model.safetensors"
    path.write_bytes(content)
    with pytest.raises(InputError) as caught:
        read_header(str(path))
    assert said in str(caught.value)
    assert caught.value.code == "DG231" and caught.value.next_step


def _directory(path: Path) -> None:
    (path / "model.safetensors").mkdir()


def _missing_shard(path: Path) -> None:
    write_safetensors(path / "a.safetensors", {"x": ("F32", (1,))})
    write_json(path / safetensors.INDEX_NAME, {"weight_map": {"x": "a.safetensors", "y": "b.safetensors"}})


def _lost_tensor(path: Path) -> None:
    write_safetensors(path / "a.safetensors", {"x": ("F32", (1,))})
    write_json(path / safetensors.INDEX_NAME, {"weight_map": {"x": "a.safetensors", "y": "a.safetensors"}})


def _way_out(path: Path) -> None:
    write_json(path / safetensors.INDEX_NAME, {"weight_map": {"x": "../a.safetensors"}})


def _no_map(path: Path) -> None:
    write_json(path / safetensors.INDEX_NAME, {"weight_map": []})


def _no_json(path: Path) -> None:
    (path / safetensors.INDEX_NAME).write_text("{")


@pytest.mark.parametrize(
    ("make", "code", "said"),
    [
        (lambda path: None, "DG233", "has no *.safetensors file"),
        (_directory, "DG231", "Is a directory"),
        (_missing_shard, "DG232", "'b.safetensors' is not in"),
        (_lost_tensor, "DG231", "lacks 'y'"),
        (_way_out, "DG231", "'../a.safetensors', which is not a file name"),
        (_no_map, "DG231", "no weight_map"),
        (_no_json, "DG231", "is not JSON"),
    ],
)
def test_a_broken_directory_says_what_is_wrong(
    tmp_path: Path, make: Callable[[Path], None], code: str, said: str
) -> None:
    make(tmp_path)
    with pytest.raises(InputError) as caught:
        read_weights(str(tmp_path))
    assert caught.value.code == code
    assert said in str(caught.value)
