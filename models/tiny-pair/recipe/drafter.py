"""The DFlash drafter as pure functions over its tensors, which carry the names they have in the file.

A drafter fills a block of ``block_size`` slots at once: slot 0 holds the anchor (the last token that is
certain), every other slot the mask token. It attends to the target's hidden states at all positions before
the anchor and, in both directions, to its own block. Embedding and output head are the target's.

Shapes below: B sequences, T positions, A anchors per sequence, S slots per block, H hidden size, K
key/value heads, G query heads per key/value head, D head dimension.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from safetensors.torch import load_file, save_file
from torch import Tensor

Weights = dict[str, Tensor]
ContextCache = list[tuple[Tensor, Tensor]]
"""Per drafter layer the keys and values [B, K, T, D] of the context."""


@dataclass(frozen=True)
class DrafterConfig:
    """The fields of the drafter's config.json that its mathematics depends on."""

    hidden_size: int
    intermediate_size: int
    num_hidden_layers: int
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int
    rms_norm_eps: float
    rope_theta: float
    block_size: int
    mask_token_id: int
    target_layer_ids: tuple[int, ...]


def layer_ids(target_layers: int, taps: int) -> tuple[int, ...]:
    """The usual spacing of the tapped layers (z-lab's ``build_target_layer_ids`` with ``taps`` ids)."""
    return tuple(round(1 + i * (target_layers - 4) / (taps - 1)) for i in range(taps))


def initial_weights(config: DrafterConfig, generator: torch.Generator) -> Weights:
    """Normal(0, 0.02) matrices and unit norms, under the names of the weight file."""
    hidden, ffn, head = config.hidden_size, config.intermediate_size, config.head_dim
    queries, keys = config.num_attention_heads * head, config.num_key_value_heads * head
    shapes: dict[str, tuple[int, ...]] = {
        "fc.weight": (hidden, len(config.target_layer_ids) * hidden),
        "hidden_norm.weight": (hidden,),
        "norm.weight": (hidden,),
    }
    for i in range(config.num_hidden_layers):
        layer = {
            "input_layernorm": (hidden,),
            "post_attention_layernorm": (hidden,),
            "self_attn.q_proj": (queries, hidden),
            "self_attn.k_proj": (keys, hidden),
            "self_attn.v_proj": (keys, hidden),
            "self_attn.o_proj": (hidden, queries),
            "self_attn.q_norm": (head,),
            "self_attn.k_norm": (head,),
            "mlp.gate_proj": (ffn, hidden),
            "mlp.up_proj": (ffn, hidden),
            "mlp.down_proj": (hidden, ffn),
        }
        shapes.update({f"layers.{i}.{name}.weight": shape for name, shape in layer.items()})
    return {
        name: torch.ones(shape) if len(shape) == 1 else torch.randn(shape, generator=generator) * 0.02
        for name, shape in shapes.items()
    }


def _norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    return F.rms_norm(x, (x.shape[-1],), weight, eps)


def _rotate(x: Tensor, positions: Tensor, theta: float) -> Tensor:
    """Rotary embedding of x [..., heads, D] at positions [...]."""
    size = x.shape[-1]
    frequencies = 1.0 / theta ** (torch.arange(0, size, 2, dtype=torch.float32) / size)
    angles = (positions[..., None].float() * frequencies)[..., None, :]
    # Halves, not neighbouring pairs, are rotated into each other (the layout of Llama and Qwen).
    first, second = x.chunk(2, -1)
    return torch.cat(
        (first * angles.cos() - second * angles.sin(), second * angles.cos() + first * angles.sin()), -1
    )


def _layers(weights: Weights, config: DrafterConfig) -> Iterator[Weights]:
    """The tensors of each layer under their short names (``self_attn.q_proj``)."""
    for i in range(config.num_hidden_layers):
        prefix, suffix = f"layers.{i}.", ".weight"
        yield {n[len(prefix) : -len(suffix)]: w for n, w in weights.items() if n.startswith(prefix)}


def _heads(
    layer: Weights, config: DrafterConfig, x: Tensor, name: str, count: int, positions: Tensor | None = None
) -> Tensor:
    """Project x [..., H] to [..., count, D]; queries and keys have positions: they are normed and rotated."""
    y = F.linear(x, layer[f"self_attn.{name}_proj"]).view(*x.shape[:-1], count, config.head_dim)
    if positions is None:
        return y
    return _rotate(
        _norm(y, layer[f"self_attn.{name}_norm"], config.rms_norm_eps), positions, config.rope_theta
    )


def context_cache(weights: Weights, config: DrafterConfig, states: Tensor) -> ContextCache:
    """Keys and values of the target's states [B, T, n_ids * H].

    They depend neither on the mask nor on the anchors.
    """
    context = _norm(
        F.linear(states, weights["fc.weight"]), weights["hidden_norm.weight"], config.rms_norm_eps
    )
    positions = torch.arange(states.shape[1])
    cache = []
    for layer in _layers(weights, config):
        keys = _heads(layer, config, context, "k", config.num_key_value_heads, positions)
        values = _heads(layer, config, context, "v", config.num_key_value_heads)
        cache.append((keys.transpose(1, 2), values.transpose(1, 2)))
    return cache


def draft_states(
    weights: Weights, config: DrafterConfig, cache: ContextCache, embeddings: Tensor, anchors: Tensor
) -> Tensor:
    """Final hidden states [B, A, S, H] of blocks.

    ``embeddings`` [B, A, S, H] are the target's rows for the slots, ``anchors`` [B, A] the positions of
    slot 0. The context of a block are the positions before its anchor.
    """
    outside = torch.arange(cache[0][0].shape[2]) >= anchors[..., None]
    bias = torch.zeros(outside.shape).masked_fill(outside, float("-inf"))[:, None, :, None, :]
    positions = anchors[..., None] + torch.arange(embeddings.shape[2])
    x = embeddings
    for layer, context in zip(_layers(weights, config), cache):
        normed = _norm(x, layer["input_layernorm"], config.rms_norm_eps)
        x = x + _attend(layer, config, normed, positions, context, bias)
        normed = _norm(x, layer["post_attention_layernorm"], config.rms_norm_eps)
        gate, up = F.linear(normed, layer["mlp.gate_proj"]), F.linear(normed, layer["mlp.up_proj"])
        x = x + F.linear(F.silu(gate) * up, layer["mlp.down_proj"])
    return _norm(x, weights["norm.weight"], config.rms_norm_eps)


def _attend(
    layer: Weights,
    config: DrafterConfig,
    x: Tensor,
    positions: Tensor,
    context: tuple[Tensor, Tensor],
    bias: Tensor,
) -> Tensor:
    """Attention of blocks x [B, A, S, H] to their context, as far as ``bias`` allows, and to themselves."""
    kv_heads = config.num_key_value_heads
    queries = _heads(layer, config, x, "q", config.num_attention_heads, positions) * config.head_dim**-0.5
    # [B, A, S, K*G, D] -> [B, K, A, S*G, D]: one matrix product per key/value head.
    queries = queries.view(*queries.shape[:3], kv_heads, -1, config.head_dim)
    queries = queries.permute(0, 3, 1, 2, 4, 5).flatten(3, 4)
    own_keys = _heads(layer, config, x, "k", kv_heads, positions).permute(0, 3, 1, 2, 4)
    own_values = _heads(layer, config, x, "v", kv_heads).permute(0, 3, 1, 2, 4)
    keys, values = context
    to_context = (queries.flatten(2, 3) @ keys.mT).view(*queries.shape[:-1], -1) + bias
    shares = torch.softmax(torch.cat((to_context, queries @ own_keys.mT), -1), -1)
    of_context, of_own = shares[..., : keys.shape[2]], shares[..., keys.shape[2] :]
    mixed = (of_context.flatten(2, 3) @ values).view(queries.shape) + of_own @ own_values
    mixed = mixed.view(*mixed.shape[:3], x.shape[2], -1, config.head_dim).permute(0, 2, 3, 1, 4, 5).flatten(3)
    return F.linear(mixed, layer["self_attn.o_proj"])


def tapped(states: Sequence[Tensor], ids: Sequence[int]) -> Tensor:
    """The outputs of the target layers ``ids`` side by side; ``states[i]`` [B, T, H] is that of layer i."""
    return torch.cat([states[i] for i in ids], -1)


def config_json(config: DrafterConfig, target: dict[str, Any]) -> dict[str, Any]:
    """The drafter's config.json in the format of the published z-lab drafters."""
    return {
        "architectures": ["DFlashDraftModel"],
        "attention_bias": False,
        "attention_dropout": 0.0,
        "block_size": config.block_size,
        "bos_token_id": target["bos_token_id"],
        "dflash_config": {
            "mask_token_id": config.mask_token_id,
            "target_layer_ids": list(config.target_layer_ids),
        },
        "dtype": "float32",
        "eos_token_id": target["eos_token_id"],
        "head_dim": config.head_dim,
        "hidden_act": "silu",
        "hidden_size": config.hidden_size,
        "initializer_range": 0.02,
        "intermediate_size": config.intermediate_size,
        "layer_types": ["full_attention"] * config.num_hidden_layers,
        "max_position_embeddings": target["max_position_embeddings"],
        "max_window_layers": config.num_hidden_layers,
        "model_type": "qwen3",
        "num_attention_heads": config.num_attention_heads,
        "num_hidden_layers": config.num_hidden_layers,
        "num_key_value_heads": config.num_key_value_heads,
        "num_target_layers": target["num_hidden_layers"],
        "pad_token_id": target["pad_token_id"],
        "rms_norm_eps": config.rms_norm_eps,
        "rope_parameters": {"rope_theta": config.rope_theta, "rope_type": "default"},
        "sliding_window": None,
        "tie_word_embeddings": False,
        "use_cache": True,
        "use_sliding_window": False,
        "vocab_size": target["vocab_size"],
    }


def save(weights: Weights, config: dict[str, Any], directory: Path) -> None:
    """Write config.json and model.safetensors."""
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "config.json").write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")
    tensors = {name: weight.detach().contiguous() for name, weight in weights.items()}
    save_file(tensors, directory / "model.safetensors", metadata={"format": "pt"})
    # Written for the owner alone; a server may run as somebody else.
    (directory / "model.safetensors").chmod(0o644)


def load(directory: Path) -> tuple[Weights, DrafterConfig]:
    """Read what ``save`` wrote."""
    data = json.loads((directory / "config.json").read_text(encoding="utf-8"))
    own = {name: data[name] for name in DrafterConfig.__annotations__ if name in data}
    own["rope_theta"] = data["rope_parameters"]["rope_theta"]
    own["mask_token_id"] = data["dflash_config"]["mask_token_id"]
    own["target_layer_ids"] = tuple(data["dflash_config"]["target_layer_ids"])
    return load_file(directory / "model.safetensors"), DrafterConfig(**own)
