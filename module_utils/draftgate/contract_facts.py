"""What the files of a drafter and its target tell, before anything is judged."""

from __future__ import annotations

import functools
import os
from dataclasses import dataclass, replace
from typing import Any, Callable, Dict, List, Mapping, Optional, Tuple, TypeVar

from . import drafter_weights
from .config_fields import Fields, text_config
from .effective_config import CONFIG_NAME, merge
from .engine_support import Engine
from .errors import InputError
from .findings import ERROR, WARNING, Finding
from .mask_embedding import MaskEmbedding, read_mask_embedding
from .safetensors import Tensor, Weights, read_weights
from .tokenizer import Tokenizer, read_tokenizer
from .untrusted import read_json

T = TypeVar("T")
MOST_LAYERS = 10_000  # a config and a header may claim any number; nothing is made of more than this
MASK = "dflash_config.mask_token_id"
TOP_LEVEL_MASK = "mask_token_id"
# Where vLLM 0.32 looks for the mask, in its order (spec_decode/utils.py).
MASK_PLACES = (MASK, TOP_LEVEL_MASK, "dspark_noise_token_id", "pard_token", "ptd_token_id")
LAYER_IDS = "dflash_config.target_layer_ids"
SPECULATORS_LAYER_IDS = "aux_hidden_state_layer_ids"  # counts from 1
SPECULATORS_LAYER = "transformer_layer_config"
FULL, SLIDING = "full_attention", "sliding_attention"

SIZES = (
    "num_hidden_layers",
    "hidden_size",
    "head_dim",
    "num_attention_heads",
    "num_key_value_heads",
    "intermediate_size",
)
# What transformers' Qwen3Config, which DFlash drafters use, takes for an absent field (4.57, 5.0 and 5.19).
# vLLM's own rope theta, 1000000, comes after it, and counts for speculators files alone (seen on 0.32.0).
QWEN3_DEFAULTS: Dict[str, Any] = {
    **dict(zip(SIZES, (32, 4096, 128, 32, 32, 22016))),
    "vocab_size": 151936,
    "max_position_embeddings": 32768,
    "rms_norm_eps": 1e-6,
    "rope_theta": 10000,
    "sliding_window": 4096,
    "max_window_layers": 28,
    "attention_bias": False,
}


@dataclass(frozen=True)
class Facts:
    """Everything the rules may ask for, and the wish as :func:`contract.judge` takes it. None: not known.

    :param drafter: the effective config (overrides merged); empty where there is none to judge.
    :param has_own_config: the drafter brings a config.json that could be read.
    :param target: the target's config, ``text_config`` resolved.
    :param inferred: what the drafter's headers prove (:func:`drafter_weights.infer`).
    :param own_tokenizer: of the drafter's directory, as ``mask_embedding``.
    :param unreadable: a finding for each file that could not be read.
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
    target_config: Mapping[str, Any]
    own_tokenizer: Optional[Tokenizer] = None
    mask_embedding: Optional[MaskEmbedding] = None

    @property
    def has_config(self) -> bool:
        return bool(self.drafter.config)

    @property
    def is_speculators(self) -> bool:
        """The speculators format keeps its fields at the top, and counts layers from 1."""
        return self.drafter.raw("speculators_model_type") is not None

    @property
    def rows(self) -> Optional[int]:
        return self.target.integer("vocab_size")

    @property
    def layers(self) -> Optional[int]:
        return self.target.integer("num_hidden_layers")

    @property
    def target_hidden(self) -> Optional[int]:
        return self.target.integer("hidden_size")

    def at(self, key: str) -> str:
        """Where the drafter's config keeps a field of its layers: nested in some formats."""
        if self.is_speculators:
            return f"{SPECULATORS_LAYER}.{key}"
        is_nested = isinstance(self.drafter.config.get("text_config"), Mapping) and not self.drafter.has(key)
        return f"text_config.{key}" if is_nested else key

    @functools.cached_property
    def tensors(self) -> Mapping[str, Tensor]:
        """The drafter's; empty where they are not known, or of another kind of drafter."""
        is_dflash = self.inferred.get("family") in drafter_weights.DFLASH_FAMILIES
        return drafter_weights.plain(self.weights.tensors) if self.weights and is_dflash else {}

    @functools.cached_property
    def differences(self) -> drafter_weights.Differences:
        return drafter_weights.compare(self.tensors, {"rows": self.rows} if self.rows else {})

    @property
    def mask(self) -> Tuple[str, Optional[int]]:
        """The field that holds the mask token, and its value."""
        places = (TOP_LEVEL_MASK,) if self.is_speculators else MASK_PLACES
        path = next((place for place in places if self.drafter.raw(place) is not None), places[0])
        return path, self.drafter.integer(path)

    @property
    def layer_ids(self) -> Tuple[str, Optional[List[int]]]:
        """The field that holds the captured layers, and their ids, of which :attr:`first_id` is the first."""
        path = SPECULATORS_LAYER_IDS if self.is_speculators else LAYER_IDS
        return path, self.drafter.integers(path)

    @property
    def first_id(self) -> int:
        """What the config calls the first layer of the target."""
        return int(self.is_speculators)

    @property
    def block_size(self) -> Optional[int]:
        """Anchor and drafted tokens; newer drafters keep it inside ``dflash_config``."""
        top = self.drafter.integer("block_size")
        return self.drafter.integer("dflash_config.block_size") if top is None else top

    @property
    def window(self) -> Optional[int]:
        return self.drafter.integer(self.at("sliding_window"))

    @property
    def windows_by_dflash_config(self) -> bool:
        """MiMo's spelling: ``dflash_config.use_swa`` and ``swa_window_size`` for every layer."""
        return bool(self.drafter.raw("dflash_config.use_swa"))

    @property
    def layer_windows(self) -> Optional[List[bool]]:
        """Whether each drafter layer has a window, as the engine takes it; None where it is not known.

        Absent ``layer_types`` are windows from ``max_window_layers`` (28) on.
        """
        path = self.at("layer_types")
        kinds = self.drafter.strings(path)
        if kinds is not None:
            return [kind == SLIDING for kind in kinds]
        layers = self.drafter.integer(self.at("num_hidden_layers")) or self.inferred.get("num_hidden_layers")
        first = self.drafter.integer(self.at("max_window_layers")) or self.default("max_window_layers")
        if self.drafter.is_wrong(path) or self.windows_by_dflash_config:
            return None
        if not layers or layers > MOST_LAYERS or not first:
            return None
        is_on = self.drafter.boolean(self.at("use_sliding_window")) and self.window is not None
        return [bool(is_on) and number >= first for number in range(layers)]

    @property
    def served_length(self) -> Any:
        """How long requests may be: ``max_model_len``, else what the target reaches."""
        return self.server.get("max_model_len", self.target.integer("max_position_embeddings"))

    def is_absent(self, path: str) -> bool:
        """The config says nothing about ``path``, and that was not reported as a wrong type already."""
        return self.has_config and self.drafter.raw(path) is None and not self.drafter.is_wrong(path)

    def default(self, key: str) -> Any:
        """What the engine takes where the drafter's config does not say ``key``; None: not known."""
        if self.is_speculators:
            return 1000000 if key == "rope_theta" else None
        if self.drafter.raw(self.at("model_type")) not in (None, "qwen3"):
            return None
        if key == "num_key_value_heads" and self.drafter.has(self.at(key)):  # null: as many as heads
            key = "num_attention_heads"
            return self.drafter.integer(self.at(key)) or QWEN3_DEFAULTS[key]
        return QWEN3_DEFAULTS[key]


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
        target_config=target_config,
        own_tokenizer=_own_tokenizer(drafter_dir, unreadable),
        mask_embedding=attempt("drafter.mask_embedding", lambda: read_mask_embedding(drafter_dir)),
    )


def _own_tokenizer(drafter_dir: str, unreadable: List[Finding]) -> Optional[Tokenizer]:
    """The drafter's own tokenizer. Engines use the target's, so a broken one here stops nothing."""
    names = ("tokenizer.json", "tokenizer_config.json")
    if not any(os.path.lexists(os.path.join(drafter_dir, name)) for name in names):
        return None
    try:
        return read_tokenizer(drafter_dir, {})
    except InputError as exc:
        broken = InputError(exc.doing.replace("target", "drafter"), exc.observed, exc.expected, code="DG303")
        unreadable.append(replace(_unreadable("drafter.tokenizer", broken), severity=WARNING))
        return None


def read_own_config(drafter_dir: str) -> Dict[str, Any]:
    """The drafter's own config; empty where it has none, which overrides may make up for.

    :raises InputError: DG202, there is one and it is not a JSON object.
    """
    path = os.path.join(drafter_dir, CONFIG_NAME)
    try:
        return read_json(path, "reading the drafter's config.json") if os.path.lexists(path) else {}
    except InputError as exc:
        exc.code, exc.next_step = "DG202", "Correct it, or fetch it again."
        raise


def _unreadable(name: str, exc: InputError) -> Finding:
    is_denied = "Permission denied" in exc.observed
    return Finding(
        code=str(exc.code),
        severity=ERROR,
        field=name,
        observed=exc.observed,
        expected=exc.expected or "a whole file",
        message=f"{exc.doing[:1].upper()}{exc.doing[1:]}: {exc.observed}.",
        fix="Let this user read it." if is_denied else exc.next_step or "Fetch this file again.",
    )
