"""What the drafter's tensors, its mask_embedding.pt and its own tokenizer tell."""

from __future__ import annotations

import io
import pickle
import shutil
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from draftgate.contract import judge
from draftgate.drafter_weights import family
from draftgate.errors import InputError
from draftgate.findings import ERROR, WARNING, Finding
from draftgate.mask_embedding import MaskEmbedding, read_mask_embedding
from draftgate.safetensors import Tensor
from hypothesis import given
from hypothesis import strategies as st

from tests.conftest import REPO
from tests.model_files import drafter_tensors, read_json, write_json, write_safetensors

PAIR = REPO / "models/tiny-pair"
CONFIG = read_json(PAIR / "drafter/config.json")
WISH: dict[str, Any] = {"engine": {"name": "vllm", "version": "0.32.0"}, "num_speculative_tokens": 7}
Shapes = dict[str, Any]


@pytest.fixture
def drafter(tmp_path: Path) -> Path:
    return Path(shutil.copytree(PAIR / "drafter", tmp_path / "drafter"))


def findings(drafter: Path, target: Path = PAIR / "target", **wish: Any) -> list[Finding]:
    found = judge(str(drafter), str(target), **{**WISH, **wish}).findings
    return [finding for finding in found if not finding.code.startswith("DG4")]


# Tensors.


def tiny(dtype: str = "F32") -> Shapes:
    return dict(drafter_tensors(CONFIG, captured=3, dtype=dtype))


def _without(name: str) -> Callable[[Shapes], Shapes]:
    return lambda tensors: {other: tensor for other, tensor in tensors.items() if other != name}


def _with(**changed: Any) -> Callable[[Shapes], Shapes]:
    return lambda tensors: {
        **tensors,
        **{name.replace("__", "."): tensor for name, tensor in changed.items()},
    }


def _quantised(tensors: Shapes) -> Shapes:
    packed = {f"{name}_packed": ("U8", shape) for name, (_, shape) in tensors.items() if "proj" in name}
    scales = {f"{name}_scale": ("F32", (1,)) for name in tensors if "proj" in name}
    return {**{name: tensor for name, tensor in tensors.items() if "proj" not in name}, **packed, **scales}


@pytest.mark.parametrize(
    ("change", "field", "code", "said"),
    [
        (_without("fc.weight"), "fc.weight", "DG223", "fc.weight is missing"),
        (_without("layers.1.mlp.up_proj.weight"), "layers.1.mlp.up_proj.weight", "DG223", "at random"),
        (_with(fc__weight=("F32", (384, 128))), "fc.weight", "DG223", "[384, 128] instead of [128, 384]"),
        (_with(fc__weight=("F32", (128, 300))), "fc.weight", "DG223", "[128, 300] instead of [128, 384]"),
        (
            _with(layers__0__self_attn__k_proj__weight=("F32", (32, 128))),
            "layers.0.self_attn.k_proj.weight",
            "DG223",
            "[32, 128] instead of [64, 128]",
        ),
        (
            _with(mask_hidden=("F32", (128,))),
            "mask_hidden",
            "DG242",
            "vLLM stops at what it has no place for",
        ),
        (_with(norm__weight=("F16", (128,))), "norm.weight", "DG234", "norm.weight is not F32"),
        (_with(lm_head__weight=("F32", (100, 128))), "", "DG226", "there is no d2t"),
        (_with(d2t=("I64", (100,))), "", "DG226", "there is no lm_head"),
        (lambda tensors: {**tensors, "embed_tokens.weight": ("F32", (544, 128))}, "", "", ""),
        (_quantised, "", "DG239", "no quantization_config says how"),
    ],
)
def test_a_tensor_that_does_not_fit_is_named(
    drafter: Path, change: Callable[[Shapes], Shapes], field: str, code: str, said: str
) -> None:
    write_safetensors(drafter / "model.safetensors", change(tiny()))
    found = findings(drafter)
    assert [finding.code for finding in found] == ([code] if code else [])
    assert all(said in finding.message for finding in found)
    assert not field or found[0].field == f"drafter.weights.{field}"


@pytest.mark.parametrize("dtype", ["F32", "BF16"])
def test_a_quantised_drafter_with_its_config_is_left_to_the_engine(drafter: Path, dtype: str) -> None:
    """Scales are in float32, whatever the norms are in."""
    write_safetensors(drafter / "model.safetensors", _quantised(tiny(dtype)))
    said = {"dtype": "float32" if dtype == "F32" else "bfloat16"}
    method = {"quantization_config": {"quant_method": "compressed-tensors"}}
    assert findings(drafter, overrides={**said, **method}) == []


@pytest.mark.parametrize(
    ("drafters", "targets", "severity"),
    [("F16", "bfloat16", WARNING), ("BF16", "float16", WARNING), ("BF16", "float32", None)],
)
def test_half_precisions_do_not_mix(
    drafter: Path, tmp_path: Path, drafters: str, targets: str, severity: str | None
) -> None:
    target = Path(shutil.copytree(PAIR / "target", tmp_path / "target"))
    write_json(target / "config.json", {**read_json(target / "config.json"), "dtype": targets})
    write_safetensors(drafter / "model.safetensors", tiny(drafters))
    said = {"F16": "float16", "BF16": "bfloat16"}[drafters]
    found = findings(drafter, target, overrides={"dtype": said})
    assert [(finding.code, finding.severity) for finding in found] == (
        [("DG234", severity)] if severity else []
    )


@pytest.mark.parametrize(("served", "codes"), [("float16", ["DG234"]), ("half", ["DG234"]), ("auto", [])])
def test_what_the_target_is_served_in_counts(drafter: Path, served: str, codes: list[str]) -> None:
    write_safetensors(drafter / "model.safetensors", tiny("BF16"))
    found = findings(drafter, overrides={"dtype": "bfloat16"}, server={"dtype": served})
    assert [finding.code for finding in found] == codes


@pytest.mark.parametrize(
    ("names", "kind"),
    [
        (["fc.weight", "hidden_norm.weight", "layers.0.self_attn.q_norm.weight"], "dflash"),
        (["hidden_norm.weight"], "dflash"),
        (["fc.weight", "layers.0.self_attn.q_norm.weight"], "dflash"),
        (["fc.weight", "hidden_norm.weight", "d2t", "t2d", "lm_head.weight"], "speculators"),
        (["fc.weight", "hidden_norm.weight", "layers.0.attention_conv.base_kernel"], "dflash2"),
        (["candidate_selector.successor_codebook", "fc.weight"], "dflash2"),
        (["fc.weight", "midlayer.self_attn.q_proj.weight", "d2t"], "an EAGLE drafter"),
        (["fc.weight", "layers.0.self_attn.q_proj.weight", "embed_tokens.weight"], "an EAGLE drafter"),
        (["0.0.linear.weight", "1.0.linear.weight"], "a Medusa head"),
        (["mtp.fc.weight", "mtp.layers.0.mlp.up_proj.weight"], "a multi-token-prediction (MTP, NextN) head"),
        (["model.layers.61.eh_proj.weight"], "a multi-token-prediction (MTP, NextN) head"),
        (["markov_head.weight", "fc.weight", "hidden_norm.weight"], "a DSpark drafter"),
        (
            ["model.embed_tokens.weight", "model.layers.0.mlp.up_proj.weight"],
            "a language model of its own, as PARD drafters are",
        ),
        (["weight"], "unknown"),
    ],
)
def test_the_kind_of_drafter_is_in_its_names(names: list[str], kind: str) -> None:
    assert family(dict.fromkeys(names, Tensor("BF16", (1,), 2, "model.safetensors"))) == kind


def test_another_kind_of_drafter_is_refused_by_its_name(drafter: Path) -> None:
    write_safetensors(drafter / "model.safetensors", {"midlayer.mlp.up_proj.weight": ("F32", (384, 128))})
    (finding,) = [finding for finding in findings(drafter) if finding.severity == ERROR]
    assert finding.code == "DG241" and "those of an EAGLE drafter" in finding.message


@pytest.mark.parametrize(("gpus", "codes"), [(1, []), (2, []), (4, []), (3, ["DG243"]), ("2", [])])
def test_heads_are_divided_among_gpus(drafter: Path, gpus: object, codes: list[str]) -> None:
    """4 heads and 2 key-value heads: two of four GPUs share a key-value head."""
    assert [each.code for each in findings(drafter, server={"tensor_parallel_size": gpus})] == codes


# mask_embedding.pt, as torch.save writes it.


class _Named:
    """Pickled as a name, and called with the arguments: what a real one does to unpickle a tensor."""

    def __init__(self, module: str, name: str) -> None:
        self.module, self.name = module, name


class _Call:
    def __init__(self, function: _Named, *arguments: Any) -> None:
        self.function, self.arguments = function, arguments


class _Pickler(pickle._Pickler):  # the one in Python, whose steps can be replaced
    """Writes names that need not exist here, and a tensor's storage as a persistent id."""

    def save(self, obj: Any, save_persistent_id: bool = True) -> None:
        if isinstance(obj, _Named):
            self.write(b"c" + f"{obj.module}\n{obj.name}\n".encode())  # type: ignore[attr-defined]
        elif isinstance(obj, _Call):
            self.save(obj.function)
            self.save(obj.arguments)
            self.write(pickle.REDUCE)  # type: ignore[attr-defined]
        elif isinstance(obj, frozenset):  # a storage's reference
            (reference,) = obj
            self.save(reference)
            self.write(pickle.BINPERSID)  # type: ignore[attr-defined]
        else:
            super().save(obj, save_persistent_id)  # type: ignore[misc]


def tensor(shape: tuple[int, ...], storage: str = "FloatStorage", offset: int = 0) -> _Call:
    elements = 1
    for size in shape:
        elements *= size
    reference = frozenset([("storage", _Named("torch", storage), "0", "cpu", elements)])
    stride = (1,) * len(shape)
    hooks = _Call(_Named("collections", "OrderedDict"))
    rebuild = _Named("torch._utils", "_rebuild_tensor_v2")
    return _Call(rebuild, reference, offset, shape, stride, False, hooks)


def saved(value: Any, data: bytes = b"\1" * 512, name: str = "mask/data.pkl") -> bytes:
    text, archive = io.BytesIO(), io.BytesIO()
    _Pickler(text, 2).dump(value)
    with zipfile.ZipFile(archive, "w") as file:
        file.writestr(name, text.getvalue())
        file.writestr("mask/data/0", data)
    return archive.getvalue()


PARAMETER = _Call(
    _Named("torch._utils", "_rebuild_parameter"),
    tensor((128,)),
    True,
    _Call(_Named("collections", "OrderedDict")),
)


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (saved(tensor((128,))), MaskEmbedding((128,), "FloatStorage", None, False)),
        (saved({"embedding": tensor((1, 128)), "mask_token_id": 512, "note": None}), (1, 128)),
        (saved(PARAMETER), (128,)),
        (saved(tensor((256,), "BFloat16Storage")), (256,)),
        (saved(tensor((8,)), bytes(32)), MaskEmbedding((8,), "FloatStorage", None, True)),
        (b"", "no zip"),
        (b"\x80\x02.", "no zip"),
        (saved(tensor((128,)))[:-30], "no zip"),
        (saved(tensor((128,)), b"\1" * 511), "has 511 bytes, not 512"),
        (saved(tensor((128,)), name="mask/other.pkl"), "it makes no sense (StopIteration)"),
        (saved(_Call(_Named("os", "system"), "echo")), "names 'os system', which no tensor needs"),
        (saved(_Call(_Named("builtins", "eval"), "1")), "names 'builtins eval'"),
        (saved({"embedding": tensor((128,)), "mask_token_id": tensor((), "LongStorage")}), (128,)),
        (saved(tensor((128,), "ByteStorage")), "names 'torch ByteStorage'"),
        (saved({"mask_token_id": 512}), "it holds no tensor"),
        (saved({"embedding": [1, 2]}), "opcode EMPTY_LIST"),
        (saved(tensor((-1, 128))), "makes no sense"),
        (saved(tensor((10**4, 10**4))), "has 512 bytes, not"),
    ],
)
def test_a_mask_embedding_is_read_without_unpickling(tmp_path: Path, content: bytes, expected: Any) -> None:
    (tmp_path / "mask_embedding.pt").write_bytes(content)
    if isinstance(expected, str):
        with pytest.raises(InputError, match="DG218") as caught:
            read_mask_embedding(str(tmp_path))
        assert expected in str(caught.value)
        return
    row = read_mask_embedding(str(tmp_path))
    assert row is not None
    assert row == expected if isinstance(expected, MaskEmbedding) else row.shape == expected


@given(st.data())
def test_no_other_exception_comes_out_of_a_damaged_one(
    tmp_path_factory: pytest.TempPathFactory, data: Any
) -> None:
    content = bytearray(saved({"embedding": tensor((128,)), "mask_token_id": 512}))
    for _ in range(data.draw(st.integers(1, 4))):
        content[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.integers(0, 255))
    directory = tmp_path_factory.mktemp("damaged")
    (directory / "mask_embedding.pt").write_bytes(bytes(content))
    try:
        read_mask_embedding(str(directory))
    except InputError as exc:
        assert exc.code == "DG218"


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (saved({"embedding": tensor((128,)), "mask_token_id": 512}), ""),
        (saved(tensor((128,))), ""),
        (saved(tensor((64,))), "has 64 numbers, and the target's embedding is 128 wide"),
        (
            saved({"embedding": tensor((128,)), "mask_token_id": 511}),
            "is for the mask 511, and the config says 512",
        ),
        (saved(tensor((128,)), bytes(512)), "is all zeros"),
        (saved(_Call(_Named("os", "system"), "echo")), "which no tensor needs"),
    ],
)
def test_a_mask_embedding_belongs_to_the_pair(drafter: Path, content: bytes, said: str) -> None:
    (drafter / "mask_embedding.pt").write_bytes(content)
    found = findings(drafter)
    assert [(finding.code, finding.severity) for finding in found] == ([("DG218", ERROR)] if said else [])
    assert all(said in finding.message for finding in found)


# The drafter's own tokenizer.


def _other_eos(config: dict[str, Any], tokenizer: dict[str, Any]) -> None:
    config["eos_token"] = "<|im_start|>"


def _other_vocabulary(config: dict[str, Any], tokenizer: dict[str, Any]) -> None:
    tokenizer["model"]["vocab"].popitem()


def _other_name(config: dict[str, Any], tokenizer: dict[str, Any]) -> None:
    tokenizer["added_tokens"][1]["content"] = "<|user|>"
    config.pop("added_tokens_decoder", None)


def _mask_of_its_own(config: dict[str, Any], tokenizer: dict[str, Any]) -> None:
    tokenizer["added_tokens"].append({"id": 512, "content": "<|MASK|>", "special": True})


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda config, tokenizer: None, ""),
        (_mask_of_its_own, ""),
        (_other_eos, "its eos is"),
        (_other_vocabulary, "its vocabulary has"),
        (_other_name, "is <|user|> there and <|im_start|> in the target's"),
    ],
)
def test_the_drafters_own_tokenizer_is_the_targets(
    drafter: Path, change: Callable[[dict[str, Any], dict[str, Any]], None], said: str
) -> None:
    files = ("tokenizer_config.json", "tokenizer.json")
    contents = [read_json(PAIR / "target" / name) for name in files]
    change(*contents)
    for name, content in zip(files, contents, strict=True):
        write_json(drafter / name, content)
    found = findings(drafter)
    assert [(finding.code, finding.severity) for finding in found] == ([("DG303", WARNING)] if said else [])
    assert all(said in finding.message for finding in found)


def test_a_broken_tokenizer_of_its_own_stops_nothing(drafter: Path) -> None:
    (drafter / "tokenizer.json").write_text("{")
    (finding,) = findings(drafter)
    assert (finding.code, finding.severity) == ("DG303", WARNING)
