"""What a drafter's tensor names, shapes and dtypes tell: which kind it is, its sizes, what does not fit.

A DFlash drafter has 11 tensors a layer (15 with biases) and three around them. Sizes are by majority of all
tensors that show them, so that the one tensor with another shape is named, and not all the others.
Not in the weights: the mask token, which layers are captured, block size, rope, windows, the target.
"""

from __future__ import annotations

import functools
import re
from collections import Counter
from typing import Any, Dict, Iterable, List, Mapping, NamedTuple, Optional, Tuple

from .safetensors import Tensor, Weights

Shape = Tuple[int, ...]
Axes = Tuple[str, ...]

DFLASH, DFLASH2, SPECULATORS, UNKNOWN = "dflash", "dflash2", "speculators", "unknown"
DFLASH_FAMILIES = (DFLASH, DFLASH2, SPECULATORS)

# Axes by name: queries = heads · head_dim, keys = kv heads · head_dim, captured = ids · the target's hidden.
OUTER: Dict[str, Axes] = {
    "fc.weight": ("hidden", "captured"),
    "hidden_norm.weight": ("hidden",),
    "norm.weight": ("hidden",),
}
LAYER: Dict[str, Axes] = {
    "input_layernorm.weight": ("hidden",),
    "mlp.down_proj.weight": ("hidden", "ffn"),
    "mlp.gate_proj.weight": ("ffn", "hidden"),
    "mlp.up_proj.weight": ("ffn", "hidden"),
    "post_attention_layernorm.weight": ("hidden",),
    "self_attn.k_norm.weight": ("head_dim",),
    "self_attn.k_proj.weight": ("keys", "hidden"),
    "self_attn.o_proj.weight": ("hidden", "queries"),
    "self_attn.q_norm.weight": ("head_dim",),
    "self_attn.q_proj.weight": ("queries", "hidden"),
    "self_attn.v_proj.weight": ("keys", "hidden"),
}
BIASES: Dict[str, Axes] = {
    "self_attn.k_proj.bias": ("keys",),
    "self_attn.o_proj.bias": ("hidden",),
    "self_attn.q_proj.bias": ("queries",),
    "self_attn.v_proj.bias": ("keys",),
}
# What a drafter may bring beside: a vocabulary of its own, attention sinks.
VOCABULARY: Dict[str, Axes] = {
    "embed_tokens.weight": ("rows", "hidden"),
    "lm_head.weight": ("draft_rows", "hidden"),
    "d2t": ("draft_rows",),
    "t2d": ("rows",),
}
OPTIONAL_LAYER: Dict[str, Axes] = {"self_attn.attention_sink_bias": ("heads",)}

# Muse Glimmer's drafter has other names for the same tensors; vLLM renames them.
_ALIASES = (("encoder.output_norm_enc.", "hidden_norm."), ("encoder.fc.", "fc."))
_IGNORED = ("rotary_emb.inv_freq",)  # engines skip it
_IN_LAYER = re.compile(r"layers\.(\d{1,3})\.")
_ONLY_DFLASH2 = re.compile(r"_conv\.|^candidate_selector\.")
_PACKED = re.compile(r"\.(?:weight_packed|qweight)$")
_SCALES = re.compile(
    r"\.(weight_|input_)?(scales?|scale_\w+|global_scale|zero_point|shape|qzeros|g_idx|absmax|quant_\S+)$"
)
_PACKED_DTYPES = ("U8", "I8", "I32", "F4", "F8_E4M3", "F8_E5M2", "F8_E4M3FNUZ", "F8_E5M2FNUZ")

# Other kinds of drafters, by names that only they have; the first that fits names the kind.
_OTHER_KINDS = (
    ("a DSpark drafter", re.compile(r"(^|\.)(markov|confidence_head)")),
    ("an EAGLE drafter", re.compile(r"(^|\.)midlayer\.|^fc\.weight$")),
    ("a Medusa head", re.compile(r"medusa|^\d+\.\d+\.(linear\.)?weight$")),
    ("a multi-token-prediction (MTP, NextN) head", re.compile(r"(^|\.)(mtp|eh_proj|enorm|hnorm|nextn)")),
    ("a language model of its own, as PARD drafters are", re.compile(r"^model\.(layers|embed_tokens)\.")),
)


class Differences(NamedTuple):
    """Where the tensors are not those of the drafter that they belong to.

    :param shapes: ``{name: (shape found, shape expected)}``; 0 for an axis that nothing tells.
    """

    missing: List[str]
    unexpected: List[str]
    shapes: Dict[str, Tuple[Shape, Shape]]


def infer(weights: Weights, target_hidden: Optional[int]) -> Dict[str, Any]:
    """Config fields that the headers prove (under the config's own names), and a few totals.

    ``captured_layers`` is the number of ids that ``fc.weight [hidden, ids · target hidden]`` takes; absent
    when the target's hidden size is not known or does not divide it.
    """
    tensors = plain(weights.tensors)
    axes = measure(tensors)
    head_dim, fc = axes.get("head_dim"), tensors.get("fc.weight")
    is_fc = fc is not None and fc.shape[:1] == (axes.get("hidden"),)
    inferred: Dict[str, Any] = {
        "family": family(tensors),
        "dtype": weights.dtypes,
        "tensors": len(tensors),
        "parameters": weights.parameters,
        "bytes": weights.bytes,
        "num_hidden_layers": layer_count(tensors),
        "attention_bias": any(name.endswith("_proj.bias") for name in tensors),
        "hidden_size": axes.get("hidden"),
        "head_dim": head_dim,
        "num_attention_heads": _quotient(axes.get("queries"), head_dim),
        "num_key_value_heads": _quotient(axes.get("keys"), head_dim),
        "intermediate_size": axes.get("ffn"),
        "captured_layers": _quotient(axes.get("captured"), target_hidden) if is_fc else None,
        "is_quantised": bool(quantised(tensors)),
    }
    return {key: value for key, value in inferred.items() if value is not None}


def plain(tensors: Mapping[str, Tensor]) -> Dict[str, Tensor]:
    renamed = {}
    for name, tensor in tensors.items():
        for alias, ours in _ALIASES:
            if name.startswith(alias):
                name = ours + name[len(alias) :]
        if not name.endswith(_IGNORED):
            renamed[name] = tensor
    return renamed


def family(tensors: Mapping[str, Tensor]) -> str:
    """``dflash``, ``dflash2``, ``speculators`` (with a vocabulary of its own), or another kind in words.

    Two marks of DFlash are looked for, because one tensor may be missing.
    """
    if any(map(_ONLY_DFLASH2.search, tensors)):
        return DFLASH2
    has_fc = any(name.startswith("fc.") for name in tensors)
    has_query_norm = any(name.startswith("layers.") and ".q_norm." in name for name in tensors)
    is_dflash = "hidden_norm.weight" in tensors or (has_fc and has_query_norm)
    if not is_dflash or any("midlayer." in name or "markov" in name for name in tensors):
        kinds = (kind for kind, pattern in _OTHER_KINDS if any(map(pattern.search, tensors)))
        return next(kinds, UNKNOWN)
    return SPECULATORS if set(VOCABULARY) & set(tensors) else DFLASH


def layer_count(tensors: Iterable[str]) -> int:
    found = filter(None, map(_IN_LAYER.match, tensors))
    return 1 + max((int(match.group(1)) for match in found), default=-1)


def measure(tensors: Mapping[str, Tensor]) -> Dict[str, int]:
    """The size of each named axis, by majority of the tensors that show it."""
    required, allowed = _names(tensors)
    votes: Dict[str, Counter[int]] = {}
    for name, tensor in tensors.items():
        axes = required.get(name) or allowed.get(name, ())
        if len(tensor.shape) == len(axes):
            for axis, size in zip(axes, tensor.shape):
                votes.setdefault(axis, Counter())[size] += 1
    return {axis: counter.most_common(1)[0][0] for axis, counter in votes.items()}


def compare(tensors: Mapping[str, Tensor], sizes: Mapping[str, int]) -> Differences:
    """What is missing, too much, or of another shape than the other tensors and ``sizes`` say.

    :param sizes: axes that something else proves (``{"rows": 248320}``), before what the tensors show.
    """
    required, allowed = _names(tensors)
    axes = {**measure(tensors), **sizes}
    differences = Differences([], [], {})
    present = {_PACKED.sub(".weight", name) for name in tensors}
    differences.missing.extend(name for name in required if name not in present)
    for name, tensor in tensors.items():
        names = required.get(name) or allowed.get(name)
        expected = tuple(axes.get(axis, 0) for axis in names or ())
        if names and not _fits(tensor.shape, expected):
            differences.shapes[name] = (tensor.shape, expected)
        if not names and not _is_packing(name) and not _ONLY_DFLASH2.search(name):
            differences.unexpected.append(name)
    return differences


def quantised(tensors: Mapping[str, Tensor]) -> List[str]:
    return [
        name
        for name, tensor in tensors.items()
        if _is_packing(name) or (tensor.dtype in _PACKED_DTYPES and name not in VOCABULARY)
    ]


def odd_dtypes(tensors: Mapping[str, Tensor]) -> Tuple[str, List[str]]:
    """The dtype of most plain floating-point tensors, and the names of the others."""
    kinds = ("BF16", "F16", "F32")
    names = [name for name, tensor in tensors.items() if tensor.dtype in kinds and not _is_packing(name)]
    if not names:
        return "", []
    usual = Counter(tensors[name].dtype for name in names).most_common(1)[0][0]
    return usual, [name for name in names if tensors[name].dtype != usual]


def _names(tensors: Iterable[str]) -> Tuple[Mapping[str, Axes], Mapping[str, Axes]]:
    return _names_of(layer_count(tensors), any(name.endswith("_proj.bias") for name in tensors))


@functools.lru_cache(maxsize=None)
def _names_of(layers: int, has_biases: bool) -> Tuple[Mapping[str, Axes], Mapping[str, Axes]]:
    layer = {**LAYER, **BIASES} if has_biases else LAYER
    numbers = range(layers)
    required = {f"layers.{number}.{name}": axes for number in numbers for name, axes in layer.items()}
    optional = {
        f"layers.{number}.{name}": axes for number in numbers for name, axes in OPTIONAL_LAYER.items()
    }
    return {**OUTER, **required}, {**VOCABULARY, **optional}


def _is_packing(name: str) -> bool:
    return bool(_PACKED.search(name) or _SCALES.search(name))


def _fits(found: Shape, expected: Shape) -> bool:
    return len(found) == len(expected) and all(want in (0, size) for size, want in zip(found, expected))


def _quotient(number: Optional[int], divisor: Optional[int]) -> Optional[int]:
    return number // divisor if number and divisor and number % divisor == 0 else None
