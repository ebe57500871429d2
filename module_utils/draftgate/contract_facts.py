"""What the files of a drafter and its target tell, before anything is judged."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Any, Callable, Dict, List, Mapping, Optional, Tuple, TypeVar

from . import drafter_weights
from .config_fields import Fields, text_config
from .effective_config import CONFIG_NAME, merge
from .engine_support import Engine
from .errors import InputError
from .findings import ERROR, Finding
from .safetensors import Weights, read_weights
from .tokenizer import Tokenizer, read_tokenizer
from .untrusted import read_json

T = TypeVar("T")
MASK = "dflash_config.mask_token_id"
TOP_LEVEL_MASK = "mask_token_id"
LAYER_IDS = "dflash_config.target_layer_ids"
SPECULATORS_LAYER_IDS = "aux_hidden_state_layer_ids"

# What transformers' Qwen3Config, which DFlash drafters use, takes for an absent field.
QWEN3_DEFAULTS = {
    "num_hidden_layers": 32,
    "hidden_size": 4096,
    "head_dim": 128,
    "num_attention_heads": 32,
    "num_key_value_heads": 32,
    "intermediate_size": 22016,
    "vocab_size": 151936,
}


@dataclass(frozen=True)
class Facts:
    """Everything the rules may ask for. None: not known, because absent or unreadable.

    :param drafter: the effective config (overrides merged); empty where there is none to judge.
    :param has_own_config: the drafter brings a config.json that could be read.
    :param target: the target's config, ``text_config`` resolved.
    :param server: the engine's arguments in snake case, as ``vllm_server_args``.
    :param gpu: ``{arch: "sm_86", count, memory_gib}``, each where it is known; ``count`` 0 means a CPU.
    :param environment: the engine's environment variables.
    :param packages: versions of packages beside the engine (``{"flash-attn": "2.8.3"}``).
    :param inferred: what the drafter's headers prove (:func:`drafter_weights.infer`).
    :param unreadable: a finding for each file that could not be read.
    :param drafter_dir: for rules about files that no reader knows.
    :param target_config: the whole config.json, of which ``target`` may be a part.
    """

    drafter: Fields
    has_own_config: bool
    target: Fields
    weights: Optional[Weights]
    tokenizer: Optional[Tokenizer]
    engine: Engine
    num_speculative_tokens: int
    server: Mapping[str, Any]
    gpu: Mapping[str, Any]
    environment: Mapping[str, str]
    packages: Mapping[str, str]
    inferred: Mapping[str, Any]
    unreadable: List[Finding]
    drafter_dir: str
    target_config: Mapping[str, Any]

    @property
    def has_config(self) -> bool:
        return bool(self.drafter.config)

    @property
    def is_speculators(self) -> bool:
        """The speculators format keeps its fields at the top, and counts layers from 1."""
        return self.drafter.raw("speculators_model_type") is not None

    @property
    def rows(self) -> Optional[int]:
        """Rows of the target's embedding."""
        return self.target.integer("vocab_size")

    @property
    def layers(self) -> Optional[int]:
        """The target's decoder layers."""
        return self.target.integer("num_hidden_layers")

    @property
    def target_hidden(self) -> Optional[int]:
        return self.target.integer("hidden_size")

    @property
    def mask(self) -> Tuple[str, Optional[int]]:
        """The field that holds the mask token, and its value."""
        nested = None if self.is_speculators else self.drafter.integer(MASK)
        if self.is_speculators or (nested is None and self.drafter.raw(TOP_LEVEL_MASK) is not None):
            return TOP_LEVEL_MASK, self.drafter.integer(TOP_LEVEL_MASK)
        return MASK, nested

    @property
    def layer_ids(self) -> Tuple[str, Optional[List[int]]]:
        """The field that holds the captured layers, and their 0-based ids."""
        if not self.is_speculators:
            return LAYER_IDS, self.drafter.integers(LAYER_IDS)
        ids = self.drafter.integers(SPECULATORS_LAYER_IDS)
        return SPECULATORS_LAYER_IDS, None if ids is None else [number - 1 for number in ids]

    @property
    def block_size(self) -> Optional[int]:
        """Anchor and drafted tokens; newer drafters keep it inside ``dflash_config``."""
        top = self.drafter.integer("block_size")
        return self.drafter.integer("dflash_config.block_size") if top is None else top

    def default(self, key: str) -> Optional[int]:
        """What the engine takes where the drafter's config does not say ``key``."""
        is_qwen3 = self.drafter.raw("model_type") in (None, "qwen3")
        return QWEN3_DEFAULTS[key] if is_qwen3 else None


def gather(
    drafter_dir: str,
    target_dir: str,
    *,
    engine: Mapping[str, Any],
    num_speculative_tokens: int,
    overrides: Mapping[str, Any],
    gpu: Mapping[str, Any],
    server: Mapping[str, Any],
    environment: Mapping[str, str],
    packages: Mapping[str, str],
) -> Facts:
    """Read headers, configs and tokenizer files; no weights.

    :raises InputError: the target has no readable config.json, or engine or overrides make no sense.
    """
    unreadable: List[Finding] = []

    def attempt(name: str, load: Callable[[], T]) -> Optional[T]:
        """One broken file must not hide what the others tell: it becomes a finding."""
        try:
            return load()
        except InputError as exc:
            unreadable.append(_unreadable(name, exc))
            return None

    own = attempt("drafter.config", lambda: read_own_config(drafter_dir))
    config = {} if own is None else merge(own, overrides)
    target_config = read_json(os.path.join(target_dir, CONFIG_NAME), "reading the target's config.json")
    prefix, text = text_config(target_config)
    target = Fields(f"target{prefix}", text)
    weights = attempt("drafter.weights", lambda: read_weights(drafter_dir))
    return Facts(
        drafter=Fields("drafter", config),
        has_own_config=bool(own),
        target=target,
        weights=weights,
        tokenizer=attempt("target.tokenizer", lambda: read_tokenizer(target_dir, target_config)),
        engine=Engine.of(engine, gpu),
        num_speculative_tokens=num_speculative_tokens,
        server=server,
        gpu=gpu,
        environment=environment,
        packages=packages,
        inferred=drafter_weights.infer(weights, target.integer("hidden_size")) if weights else {},
        unreadable=unreadable,
        drafter_dir=drafter_dir,
        target_config=target_config,
    )


def read_own_config(drafter_dir: str) -> Dict[str, Any]:
    """The drafter's own config; empty where it has none, which overrides may make up for.

    :raises InputError: DG202, there is one and it is not a JSON object.
    """
    path = os.path.join(drafter_dir, CONFIG_NAME)
    try:
        return read_json(path, "reading the drafter's config.json") if os.path.lexists(path) else {}
    except InputError as exc:
        exc.code = "DG202"
        raise


def _unreadable(name: str, exc: InputError) -> Finding:
    return Finding(
        code=str(exc.code),
        severity=ERROR,
        field=name,
        observed=exc.observed,
        expected=exc.expected or "a whole file",
        message=f"{exc.doing[:1].upper()}{exc.doing[1:]}: {exc.observed}.",
        fix=exc.next_step or "Fetch this file again.",
    )
