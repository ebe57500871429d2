"""Which features of the engine table a pair has, with its arguments, environment and GPU. Pure.

Each function looks at one subject and gives ``{feature: evidence}``. What is not known is absent: a GPU that
nobody named, an argument that was not given.
"""

from __future__ import annotations

import json
import re
from typing import Any, Callable, Dict, List, Mapping, Optional, Tuple

from . import engine_support as table
from .config_fields import is_integer
from .contract_facts import Facts

_PLAIN_KV = ("auto", "float16", "bfloat16")
_LATE_BACKENDS = ("TRITON_ATTN", "FLASHINFER")
_FIRST_WITH_FP8_KERNELS = 90  # FlashAttention 3
_WORST_BITS = 4

Found = Dict[str, str]


def features(facts: Facts) -> Mapping[str, str]:
    """Feature → the evidence for it: ``{"a CPU": "the engine's build is for a CPU"}``."""
    found: Found = {}
    for look in _SUBJECTS:
        found.update(look(facts))
    return found


def _windows(facts: Facts) -> Found:
    kinds = facts.drafter.strings(facts.at("layer_types")) or []
    windowed = kinds.count("sliding_attention")
    if not windowed:
        return {}
    if windowed == len(kinds):
        return {table.WINDOWS: f"all {windowed} layers have a window"}
    return {table.MIXED_WINDOWS: f"{windowed} of {len(kinds)} layers have a window"}


def _drafter(facts: Facts) -> Found:
    """Causality has two spellings; a drafter that says nothing is non-causal, as all published ones."""
    found: Found = {}
    says = (facts.drafter.raw("is_causal"), facts.drafter.raw("dflash_config.causal"))
    if facts.has_config and True not in says:
        found[table.NON_CAUSAL] = "non-causal drafting"
    head_dim = facts.inferred.get("head_dim") or facts.drafter.integer("head_dim")
    if head_dim == 256 and _drafter_backend(facts) != "FLEX_ATTENTION":
        found[table.HEAD_DIM_256] = "head_dim 256"
    if facts.is_speculators:
        found[table.SPECULATORS] = f"speculators_model_type {facts.drafter.raw('speculators_model_type')}"
    if facts.inferred.get("family") == "dflash2" or "DFlash2DraftModel" in _architectures(facts):
        found[table.DFLASH2] = "DFlash2"
    if facts.mask_embedding is not None:
        found[table.MASK_FILE] = "mask_embedding.pt is there"
    return found


def _architectures(facts: Facts) -> List[str]:
    return facts.drafter.strings("architectures") or []


def _packing(facts: Facts) -> Found:
    names = sorted(facts.weights.tensors) if facts.weights else []
    packed = next((name for name in names if name.endswith(("_packed", ".qweight"))), None)
    return {table.PACKED: packed} if packed else {}


def _pair(facts: Facts) -> Found:
    found: Found = {}
    tensors = facts.weights.tensors if facts.weights else {}
    said = facts.drafter.integer("draft_vocab_size")
    vocabulary = facts.drafter.integer("vocab_size") if said is None else said
    shares = bool(tensors) and "lm_head.weight" not in tensors
    if shares and None not in (vocabulary, facts.rows) and vocabulary != facts.rows:
        found[table.OTHER_VOCABULARY] = f"vocab_size {vocabulary} on a target of {facts.rows}"
    bits = _integer_bits(facts.target_config.get("quantization_config"))
    is_half = facts.weights is not None and set(facts.weights.dtypes) <= {"BF16", "F16"}
    if is_half and bits == _WORST_BITS:
        found[table.HALF_ON_INT4] = f"the target's weights have {bits} bits, the drafter's 16"
    if str(facts.target.raw("model_type") or "").startswith("laguna"):
        found[table.LAGUNA] = "a Laguna target"
    return found


def _integer_bits(quantization: Any) -> Optional[int]:
    """The bits of a target's weights; None where they are not integers or nothing says it.

    AWQ, GPTQ and AutoRound say ``bits`` (older AWQ ``w_bit``), compressed-tensors ``num_bits`` per group.
    """
    if not isinstance(quantization, Mapping):
        return None
    for key in ("bits", "w_bit", "weight_bits"):
        if is_integer(quantization.get(key)):
            return int(quantization[key])
    groups = quantization.get("config_groups")
    schemes = [_object(group.get("weights")) for group in _objects(groups)]
    bits = [scheme.get("num_bits") for scheme in schemes if scheme.get("type") == "int"]
    return min((int(number) for number in bits if number is not None and is_integer(number)), default=None)


def _objects(groups: Any) -> List[Mapping[str, Any]]:
    values = groups.values() if isinstance(groups, Mapping) else ()
    return [value for value in values if isinstance(value, Mapping)]


def _host(facts: Facts) -> Found:
    if facts.engine.on_cpu:
        return {table.CPU: "a CPU"}
    arch = re.sub(r"\D", "", str(facts.gpu.get("arch") or ""))  # sm_86, and 8.6 as nvidia-smi has it
    if arch and int(arch) < _FIRST_WITH_FP8_KERNELS:
        return {table.BELOW_SM90: f"sm_{arch}"}
    return {}


def _runner(facts: Facts) -> Found:
    """vLLM reads the variable as a number; unset, it chooses by what the runners can do."""
    value = facts.environment.get("VLLM_USE_V2_MODEL_RUNNER")
    if value is not None:
        chosen = {"0": table.V1_RUNNER, "1": table.V2_RUNNER}.get(str(value).strip())
        return {chosen: chosen} if chosen else {}
    return {} if facts.engine.on_cpu else {table.DEFAULT_RUNNER: "the runner is left to the engine"}


def _packages(facts: Facts) -> Found:
    names = {name.lower().replace("_", "-"): version for name, version in facts.packages.items()}
    if "flash-attn-4" in names and "flash-attn" not in names:
        return {table.FLASH_ATTN_4_ALONE: f"flash-attn-4 {names['flash-attn-4']} without flash-attn"}
    return {}


def _cache(facts: Facts) -> Found:
    found: Found = {}
    asked = facts.server.get("enable_prefix_caching")
    if asked is True:
        found[table.PREFIX_CACHING] = found[table.PREFIX_CACHING_ASKED] = "enable_prefix_caching is set"
    elif asked is not False:
        found[table.PREFIX_CACHING] = "prefix caching is on unless it is set to false"
    kv = facts.server.get("kv_cache_dtype")
    if isinstance(kv, str) and kv not in _PLAIN_KV:
        found[table.QUANTISED_KV] = f"kv_cache_dtype {kv}"
        if _speculative(facts).get("kv_cache_dtype") not in _PLAIN_KV:
            found[table.SHARED_KV] = f"kv_cache_dtype {kv}"
    return found


def _backends(facts: Facts) -> Found:
    backend, drafters = _backend(facts), _drafter_backend(facts)
    found: Found = {}
    if "FLASH_ATTN" in (backend, drafters):
        found[table.ON_FLASH_ATTN] = "attention backend FLASH_ATTN"
    if "FLEX_ATTENTION" in (backend, drafters):
        found[table.ON_FLEX] = "attention backend FLEX_ATTENTION"
    if drafters in _LATE_BACKENDS:
        found[table.DRAFTER_ON_LATE_BACKEND] = f"the drafter's attention backend is {drafters}"
    elif backend in _LATE_BACKENDS:
        found[table.ON_LATE_BACKEND] = f"attention_backend is {backend}"
    return found


def _backend(facts: Facts) -> str:
    config = _object(facts.server.get("attention_config"))
    return str(facts.server.get("attention_backend") or config.get("backend") or "").upper()


def _drafter_backend(facts: Facts) -> str:
    """The drafter's backend is chosen apart from the target's (vllm#39930)."""
    return str(_speculative(facts).get("attention_backend") or "").upper()


def _budget(facts: Facts) -> Found:
    """Whether a step of ``max_num_seqs`` requests has room for all their drafts of k tokens."""
    k, requests = facts.num_speculative_tokens, _count(facts, "max_num_seqs")
    slots, tokens = _count(facts, "max_num_batched_tokens"), _count(facts, "max_num_scheduled_tokens")
    found: Found = {}
    if slots is not None and slots <= k:
        found[table.NO_SLOT] = f"max_num_batched_tokens {slots}, k {k}"
    verified = [each for each in (slots, tokens) if each is not None]
    if requests is None or not verified:
        return found
    if requests * (k + 1) > min(verified):
        exceeds = _room(requests, k + 1, min(verified))
        found[table.VERIFYING_EXCEEDS] = found[table.DRAFTING_EXCEEDS] = exceeds
    elif slots is not None and requests * (2 * k + 1) > slots:
        found[table.DRAFTING_EXCEEDS] = _room(requests, 2 * k + 1, slots)
    return found


def _count(facts: Facts, argument: str) -> Optional[int]:
    value = facts.server.get(argument)
    return value if is_integer(value) else None


def _room(requests: int, each: int, room: int) -> str:
    return f"{requests} requests of {each} need {requests * each} of {room}, which {room // each} fill"


def _by_hand(facts: Facts) -> Found:
    """A speculative config that somebody gave past Draftgate, which always asks for DFlash."""
    found: Found = {}
    server = facts.server
    if facts.engine.name == table.SGLANG:
        method = server.get("speculative_algorithm")
        block = server.get("speculative_num_draft_tokens", server.get("speculative_dflash_block_size"))
        if is_integer(block) and block != facts.num_speculative_tokens + 1:
            found[table.OTHER_BLOCK] = f"{block} beside num_speculative_tokens {facts.num_speculative_tokens}"
    else:
        method = _speculative(facts).get("method", server.get("spec_method"))
    if isinstance(method, str) and method.lower() != "dflash":
        found[table.OTHER_METHOD] = f"method {method}"
    return found


def _speculative(facts: Facts) -> Mapping[str, Any]:
    return _object(facts.server.get("speculative_config"))


def _object(value: Any) -> Mapping[str, Any]:
    """An argument that is a JSON object, given as one or as its text."""
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except ValueError:
            return {}
    return value if isinstance(value, Mapping) else {}


_SUBJECTS: Tuple[Callable[[Facts], Found], ...] = (
    _windows,
    _drafter,
    _packing,
    _pair,
    _host,
    _runner,
    _packages,
    _cache,
    _backends,
    _budget,
    _by_hand,
)
