"""Model directories of real shapes for tests: true headers, sparse files where the weights would be."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from draftgate.published import Published

BYTES = {"BF16": 2, "F16": 2, "F32": 4, "U8": 1, "I8": 1, "F8_E4M3": 1, "I64": 8, "BOOL": 1}
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
    "attention_bias": False,
    "hidden_act": "silu",
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
        "rms_norm_eps": 1e-06,
        "dtype": "bfloat16",
        "eos_token_id": 248046,
    },
}

# The added tokens of Qwen3.5 and 3.6, from 248044 on; tokenizer.json does not list the last seven.
QWEN_ADDED = """
<|endoftext|> <|im_start|> <|im_end|> <|object_ref_start|> <|object_ref_end|> <|box_start|> <|box_end|>
<|quad_start|> <|quad_end|> <|vision_start|> <|vision_end|> <|vision_pad|> <|image_pad|> <|video_pad|>
<tool_call> </tool_call> <|fim_prefix|> <|fim_middle|> <|fim_suffix|> <|fim_pad|> <|repo_name|> <|file_sep|>
<tool_response> </tool_response> <think> </think>
<|audio_start|> <|audio_end|> <tts_pad> <tts_text_bos> <tts_text_eod> <tts_text_bos_single> <|audio_pad|>
""".split()
QWEN_BASE, ONLY_IN_CONFIG = 248044, 7


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
        biases = {"q": queries, "k": keys, "v": keys, "o": hidden} if config.get("attention_bias") else {}
        shapes.update(
            {f"layers.{number}.self_attn.{name}_proj.bias": (size,) for name, size in biases.items()}
        )
    return {name: (dtype, shape) for name, shape in shapes.items()}


def write_tokenizer(directory: Path, only_in_config: Mapping[int, str], vocab: Mapping[str, int]) -> None:
    """A tokenizer whose last added tokens tokenizer.json does not list, as Qwen3.5/3.6 have it."""
    write_tokenizer_files(directory, {}, only_in_config, vocab)


def write_tokenizer_files(
    directory: Path, added: Mapping[int, str], only_in_config: Mapping[int, str], vocab: Mapping[str, int]
) -> None:
    """``added`` is in both files, ``only_in_config`` in one alone; a merge for each piece."""
    entries = {str(number): {"content": name, "special": True} for number, name in only_in_config.items()}
    listed = [{"id": number, "content": name, "special": True} for number, name in added.items()]
    merges = [f"{piece[:1]} {piece[1:]}" for piece in vocab]
    both = {str(entry["id"]): {"content": entry["content"], "special": True} for entry in listed}
    write_json(directory / "tokenizer_config.json", {"added_tokens_decoder": {**both, **entries}})
    write_json(
        directory / "tokenizer.json",
        {"added_tokens": listed, "model": {"type": "BPE", "vocab": dict(vocab), "merges": merges}},
    )


def write_qwen_tokenizer(directory: Path, vocab: Mapping[str, int]) -> None:
    """Qwen3.6's added tokens on any vocabulary: 248044 to 248076, the audio tokens in one file only."""
    names = dict(enumerate(QWEN_ADDED, QWEN_BASE))
    first = QWEN_BASE + len(QWEN_ADDED) - ONLY_IN_CONFIG
    listed = {number: name for number, name in names.items() if number < first}
    write_tokenizer_files(
        directory, listed, {number: name for number, name in names.items() if number >= first}, vocab
    )


def pieces(count: int) -> dict[str, int]:
    """A vocabulary of ``count`` ordinary pieces."""
    return {f"Ġpiece{number}": number for number in range(count)}


def write_pair_27b(root: Path, vocab: Mapping[str, int] | None = None) -> tuple[Path, Path]:
    """Drafter and target of the 27B pair: real shapes and ids, 55 GB of holes.

    :param vocab: the target's ordinary pieces; None: two of them, which is quick to write.
    """
    drafter, target = root / "drafter", root / "target"
    write_json(drafter / "config.json", CONFIG_27B)
    write_safetensors(drafter / "model.safetensors", drafter_tensors(CONFIG_27B, captured=5))
    write_json(target / "config.json", TARGET_27B)
    write_shards(target, target_tensors_27b(), 15)
    write_qwen_tokenizer(target, {"!": 0, "Ġthe": 151669} if vocab is None else vocab)
    return drafter, target


def target_tensors_27b() -> Shapes:
    """Qwen3.6-27B as its config gives it: 64 layers, every fourth with full attention. Names approximate."""
    hidden, ffn, rows, inner = 5120, 17408, 248320, 6144
    full = {
        "self_attn.q_proj": (2 * inner, hidden),
        "self_attn.k_proj": (1024, hidden),
        "self_attn.v_proj": (1024, hidden),
        "self_attn.o_proj": (hidden, inner),
        "self_attn.q_norm": (256,),
        "self_attn.k_norm": (256,),
    }
    linear = {
        "linear_attn.in_proj_qkv": (10240, hidden),
        "linear_attn.in_proj_z": (inner, hidden),
        "linear_attn.in_proj_a": (48, hidden),
        "linear_attn.in_proj_b": (48, hidden),
        "linear_attn.conv1d": (10240, 1, 4),
        "linear_attn.norm": (128,),
        "linear_attn.out_proj": (hidden, inner),
    }
    every = {
        "input_layernorm": (hidden,),
        "post_attention_layernorm": (hidden,),
        "mlp.gate_proj": (ffn, hidden),
        "mlp.up_proj": (ffn, hidden),
        "mlp.down_proj": (hidden, ffn),
    }
    shapes: dict[str, Sequence[int]] = {
        "lm_head.weight": (rows, hidden),
        "model.language_model.embed_tokens.weight": (rows, hidden),
        "model.language_model.norm.weight": (hidden,),
    }
    for number in range(64):
        layer: dict[str, Sequence[int]] = {**every, **(full if number % 4 == 3 else linear)}
        prefix = f"model.language_model.layers.{number}"
        shapes.update({f"{prefix}.{name}.weight": shape for name, shape in layer.items()})
    return {name: ("BF16", shape) for name, shape in shapes.items()}


def write_shards(directory: Path, tensors: Shapes, count: int) -> None:
    """``count`` files of whole tensors, and the index that names them."""
    names = sorted(tensors)
    weight_map: dict[str, str] = {}
    for shard in range(count):
        file = f"model-{shard + 1:05d}-of-{count:05d}.safetensors"
        held = names[shard::count]
        write_safetensors(directory / file, {name: tensors[name] for name in held})
        weight_map.update(dict.fromkeys(held, file))
    write_json(directory / "model.safetensors.index.json", {"metadata": {}, "weight_map": weight_map})


# Pairs of the public record. What it does not give is made up, and the same for drafter and target.

WINDOW = {"S": "sliding_attention", "F": "full_attention"}
ROWS = {"gpt-oss": 201088, "Kimi-K2.5": 163840, "gemma-4": 262144}
BASE = {151936: 151643, 248320: QWEN_BASE, 128256: 128000, 201088: 199998, 163840: 163584, 262144: 262000}
MADE_UP_MASK = {151936: 151669, 248320: 248077}


def published_rows(entry: Published) -> int:
    """Rows of the target's embedding: the record's, or the model's own as its config has it."""
    return entry.vocab_size or next(rows for name, rows in ROWS.items() if name in entry.repo)


def published_config(entry: Published) -> dict[str, Any]:
    """A drafter's whole config.json with the fields of the record."""
    rows = published_rows(entry)
    mask = entry.mask_token_id if entry.mask_token_id is not None else MADE_UP_MASK[rows]
    has_windows = "S" in entry.windows
    return {
        **CONFIG_27B,
        "block_size": entry.block_size,
        "num_hidden_layers": entry.draft_layers,
        "num_target_layers": entry.target_layers,
        "hidden_size": entry.hidden,
        "head_dim": entry.head_dim,
        "num_attention_heads": entry.heads,
        "num_key_value_heads": entry.kv_heads,
        "intermediate_size": entry.ffn,
        "layer_types": [WINDOW[letter] for letter in entry.windows],
        "sliding_window": entry.sliding_window,
        "use_sliding_window": has_windows,
        "rope_scaling": _scaling(entry),
        "attention_bias": entry.attention_bias,
        "vocab_size": rows,
        "dflash_config": {"target_layer_ids": list(entry.layer_ids), "mask_token_id": mask},
    }


def _scaling(entry: Published) -> dict[str, Any] | None:
    if entry.rope_scaling is None:
        return None
    return {"original_max_position_embeddings": 4096, **entry.rope_scaling}


def published_target(entry: Published) -> dict[str, Any]:
    """The least of a target's config.json that the record gives; multimodal ones nest it."""
    text = {
        **TARGET_27B["text_config"],
        "num_hidden_layers": entry.target_layers,
        "hidden_size": entry.hidden,
        "vocab_size": published_rows(entry),
        "eos_token_id": BASE[published_rows(entry)] + 1,
    }
    if "Kimi" in entry.repo:  # its target's rope is scaled as the drafter's is
        text["rope_scaling"] = _scaling(entry)
    return {"architectures": ["Target"], "text_config": text} if entry.vocab_size == 248320 else text


def write_published_pair(root: Path, entry: Published) -> tuple[Path, Path]:
    """Drafter and target of one entry, with a tokenizer of as many pieces as the target's has."""
    drafter, target, rows = root / "drafter", root / "target", published_rows(entry)
    config = published_config(entry)
    write_json(drafter / "config.json", config)
    write_safetensors(drafter / "model.safetensors", drafter_tensors(config, len(entry.layer_ids)))
    write_json(target / "config.json", published_target(entry))
    base, mask = BASE[rows], config["dflash_config"]["mask_token_id"]
    if rows == 248320:
        write_qwen_tokenizer(target, pieces(base))
        return drafter, target
    added = {number: f"<|added_{number}|>" for number in range(base, base + 26)}
    is_named = mask not in MADE_UP_MASK.values()
    write_tokenizer_files(target, {**added, **({mask: "<|mask row|>"} if is_named else {})}, {}, pieces(base))
    return drafter, target
