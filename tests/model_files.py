"""Model directories of real shapes for tests: true headers, sparse files where the weights would be."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

BYTES = {"BF16": 2, "F16": 2, "F32": 4, "U8": 1}
Shapes = Mapping[str, tuple[str, Sequence[int]]]

# z-lab/Qwen3.6-27B-DFlash and its target, from the public record.
CONFIG_27B: dict[str, Any] = {
    "architectures": ["DFlashDraftModel"],
    "model_type": "qwen3",
    "block_size": 16,
    "num_hidden_layers": 5,
    "hidden_size": 5120,
    "head_dim": 128,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "intermediate_size": 17408,
    "num_target_layers": 64,
    "max_position_embeddings": 262144,
    "layer_types": ["sliding_attention"] * 4 + ["full_attention"],
    "sliding_window": 2048,
    "use_sliding_window": True,
    "rope_theta": 10000000,
    "rope_scaling": None,
    "dtype": "bfloat16",
    "rms_norm_eps": 1e-06,
    "vocab_size": 248320,
    "dflash_config": {"target_layer_ids": [1, 16, 31, 46, 61], "mask_token_id": 248070},
}
TARGET_27B: dict[str, Any] = {
    "architectures": ["Qwen3_5ForConditionalGeneration"],
    "text_config": {
        "num_hidden_layers": 64,
        "hidden_size": 5120,
        "vocab_size": 248320,
        "max_position_embeddings": 262144,
        "rope_parameters": {"rope_theta": 10000000, "rope_type": "default"},
        "eos_token_id": 248046,
    },
}


def write_json(path: Path, value: Any) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(value), "utf-8")


def read_json(path: Path) -> Any:
    return json.loads(path.read_text("utf-8"))


def write_safetensors(path: Path, tensors: Shapes) -> None:
    """A whole file whose data is a hole: gigabytes that take no disk."""
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    end = 0
    for name, (dtype, shape) in tensors.items():
        size = BYTES[dtype]
        for dimension in shape:
            size *= dimension
        header[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": [end, end + size]}
        end += size
    raw = json.dumps(header).encode("utf-8")
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("wb") as handle:
        handle.write(len(raw).to_bytes(8, "little") + raw)
        handle.truncate(8 + len(raw) + end)


def drafter_tensors(config: Mapping[str, Any], captured: int, dtype: str = "BF16") -> Shapes:
    """All tensors of a DFlash drafter that is as wide as its target."""
    hidden, ffn, width = config["hidden_size"], config["intermediate_size"], config["head_dim"]
    queries, keys = config["num_attention_heads"] * width, config["num_key_value_heads"] * width
    shapes: dict[str, Sequence[int]] = {
        "fc.weight": (hidden, captured * hidden),
        "hidden_norm.weight": (hidden,),
        "norm.weight": (hidden,),
    }
    for number in range(config["num_hidden_layers"]):
        layer = {
            "input_layernorm": (hidden,),
            "post_attention_layernorm": (hidden,),
            "self_attn.q_proj": (queries, hidden),
            "self_attn.k_proj": (keys, hidden),
            "self_attn.v_proj": (keys, hidden),
            "self_attn.o_proj": (hidden, queries),
            "self_attn.q_norm": (width,),
            "self_attn.k_norm": (width,),
            "mlp.gate_proj": (ffn, hidden),
            "mlp.up_proj": (ffn, hidden),
            "mlp.down_proj": (hidden, ffn),
        }
        shapes.update({f"layers.{number}.{name}.weight": shape for name, shape in layer.items()})
    return {name: (dtype, shape) for name, shape in shapes.items()}


def write_tokenizer(directory: Path, only_in_config: Mapping[int, str], vocab: Mapping[str, int]) -> None:
    """A tokenizer whose last added tokens tokenizer.json does not list, as Qwen3.5/3.6 have it."""
    entries = {str(number): {"content": name, "special": True} for number, name in only_in_config.items()}
    write_json(directory / "tokenizer_config.json", {"added_tokens_decoder": entries})
    write_json(
        directory / "tokenizer.json", {"added_tokens": [], "model": {"type": "BPE", "vocab": dict(vocab)}}
    )


def write_pair_27b(root: Path) -> tuple[Path, Path]:
    """Drafter and target of the 27B pair: real shapes and ids, without weights."""
    drafter, target = root / "drafter", root / "target"
    write_json(drafter / "config.json", CONFIG_27B)
    write_safetensors(drafter / "model.safetensors", drafter_tensors(CONFIG_27B, captured=5))
    write_json(target / "config.json", TARGET_27B)
    names = {248044: "<|endoftext|>", 248045: "<|im_start|>", 248046: "<|im_end|>", 248070: "<|audio_start|>"}
    write_tokenizer(target, names, {"!": 0, "Ġthe": 151669})
    return drafter, target
