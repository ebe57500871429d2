"""What a DFlash drafter's tensor names and shapes tell: 11 tensors a layer, and three around them.

Not in the weights: the mask token, which layers are captured, block size, rope, windows, the target.
"""

from __future__ import annotations

from typing import Any, Dict, List, Mapping, Optional, Tuple

from .safetensors import Tensor, Weights

Shape = Tuple[int, ...]
Shapes = Tuple[Shape, Shape]

OUTER = ("fc.weight", "hidden_norm.weight", "norm.weight")
LAYER = (
    "input_layernorm.weight",
    "mlp.down_proj.weight",
    "mlp.gate_proj.weight",
    "mlp.up_proj.weight",
    "post_attention_layernorm.weight",
    "self_attn.k_norm.weight",
    "self_attn.k_proj.weight",
    "self_attn.o_proj.weight",
    "self_attn.q_norm.weight",
    "self_attn.q_proj.weight",
    "self_attn.v_proj.weight",
)


def infer(weights: Weights, target_hidden: Optional[int]) -> Dict[str, Any]:
    """Config fields that the headers prove (under the config's own names), and a few totals.

    ``captured_layers`` is the number of ids that ``fc.weight [hidden, ids · target hidden]`` takes; absent
    when the target's hidden size is not known or does not divide it.
    """
    tensors = weights.tensors
    inferred: Dict[str, Any] = {
        "family": _family(tensors),
        "dtype": weights.dtypes,
        "tensors": len(tensors),
        "parameters": weights.parameters,
        "bytes": weights.bytes,
        "num_hidden_layers": layer_count(tensors),
        "attention_bias": any(name.endswith("_proj.bias") for name in tensors),
        **_sizes(tensors),
    }
    columns = _size(tensors, "fc.weight", 1)
    if columns and target_hidden and columns % target_hidden == 0:
        inferred["captured_layers"] = columns // target_hidden
    return {key: value for key, value in inferred.items() if value is not None}


def layer_count(tensors: Mapping[str, Tensor]) -> int:
    numbers = [name.split(".")[1] for name in tensors if name.startswith("layers.")]
    return 1 + max((int(number) for number in numbers if number.isdigit()), default=-1)


def missing(tensors: Mapping[str, Tensor]) -> List[str]:
    """Names that a complete drafter of this depth has and this one has not."""
    layers = [f"layers.{number}.{name}" for number in range(layer_count(tensors)) for name in LAYER]
    return [name for name in (*OUTER, *layers) if name not in tensors]


def unexpected_shapes(tensors: Mapping[str, Tensor], sizes: Mapping[str, Any]) -> Dict[str, Shapes]:
    """``{name: (shape found, shape expected)}`` of tensors that do not fit ``sizes`` (from :func:`infer`)."""
    keys = ("hidden_size", "head_dim", "num_attention_heads", "num_key_value_heads", "intermediate_size")
    if any(not sizes.get(key) for key in keys):
        return {}
    wanted = _layer_shapes(*(sizes[key] for key in keys))
    hidden = (sizes["hidden_size"],)
    expected: Dict[str, Shape] = {"norm.weight": hidden, "hidden_norm.weight": hidden}
    for number in range(layer_count(tensors)):
        expected.update({f"layers.{number}.{name}": shape for name, shape in wanted.items()})
    return {
        name: (tensors[name].shape, shape)
        for name, shape in expected.items()
        if name in tensors and tensors[name].shape != shape
    }


def _layer_shapes(hidden: int, head_dim: int, heads: int, kv_heads: int, ffn: int) -> Dict[str, Shape]:
    return {
        "input_layernorm.weight": (hidden,),
        "post_attention_layernorm.weight": (hidden,),
        "self_attn.q_norm.weight": (head_dim,),
        "self_attn.k_norm.weight": (head_dim,),
        "self_attn.q_proj.weight": (heads * head_dim, hidden),
        "self_attn.k_proj.weight": (kv_heads * head_dim, hidden),
        "self_attn.v_proj.weight": (kv_heads * head_dim, hidden),
        "self_attn.o_proj.weight": (hidden, heads * head_dim),
        "mlp.gate_proj.weight": (ffn, hidden),
        "mlp.up_proj.weight": (ffn, hidden),
        "mlp.down_proj.weight": (hidden, ffn),
    }


def _sizes(tensors: Mapping[str, Tensor]) -> Dict[str, Optional[int]]:
    head_dim = _size(tensors, "layers.0.self_attn.q_norm.weight", 0)

    def heads(name: str) -> Optional[int]:
        rows = _size(tensors, f"layers.0.self_attn.{name}.weight", 0)
        return rows // head_dim if rows and head_dim else None

    return {
        "hidden_size": _size(tensors, "fc.weight", 0),
        "head_dim": head_dim,
        "num_attention_heads": heads("q_proj"),
        "num_key_value_heads": heads("k_proj"),
        "intermediate_size": _size(tensors, "layers.0.mlp.gate_proj.weight", 0),
    }


def _size(tensors: Mapping[str, Tensor], name: str, axis: int) -> Optional[int]:
    tensor = tensors.get(name)
    return tensor.shape[axis] if tensor is not None and len(tensor.shape) > axis else None


def _family(tensors: Mapping[str, Tensor]) -> str:
    """``speculators`` files bring a vocabulary of their own, DFlash2 convolutions and a selector."""
    if any(name in tensors for name in ("t2d", "d2t", "embed_tokens.weight", "lm_head.weight")):
        return "speculators"
    if any("_conv." in name or name.startswith("candidate_selector.") for name in tensors):
        return "dflash2"
    return "dflash" if any(name.startswith("fc.") for name in tensors) else "unknown"
