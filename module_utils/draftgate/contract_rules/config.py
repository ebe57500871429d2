"""The drafter's config.json itself: whether it is there, the types of its fields, what it says it is."""

from __future__ import annotations

import json
from typing import Any, Callable, Iterator, Mapping, Tuple

from ..config_fields import Fields, written
from ..contract_facts import LAYER_IDS, MASK, QWEN3_DEFAULTS, SIZES, SPECULATORS_LAYER, Facts
from ..drafter_weights import DFLASH, DFLASH2
from ..findings import Finding, error, warning
from .record import FROM_THE_REVISION, RECORDED, assumed, hint

NOT_IN_THE_WEIGHTS = (MASK, LAYER_IDS, "block_size", "rope_theta", "layer_types", "sliding_window")

# Fields of transformers' Qwen3Config that may not be null, and those that may.
NOT_NULL: Mapping[Callable[..., object], Tuple[str, ...]] = {
    Fields.integer: (*SIZES, "vocab_size", "max_position_embeddings", "max_window_layers"),
    Fields.boolean: ("use_sliding_window", "attention_bias", "tie_word_embeddings"),
    Fields.number: ("rope_theta", "rms_norm_eps"),
    Fields.string: ("hidden_act", "model_type"),
}
NULL: Mapping[Callable[..., object], Tuple[str, ...]] = {
    Fields.integer: ("num_key_value_heads", "sliding_window"),
    Fields.strings: ("layer_types",),
    Fields.mapping: ("rope_scaling", "rope_parameters"),
    Fields.string: ("dtype", "torch_dtype"),
}

# Architectures that vLLM 0.32.0 registers for DFlash, and what SGLang and the reference call it.
ARCHITECTURES = (
    "DFlashDraftModel",
    "DFlash2DraftModel",
    "DFlashLagunaForCausalLM",
    "DFlashMuseGlimmerAssistantModel",
    "MuseGlimmerAssistantModel",
)


def types_are_right(facts: Facts) -> Iterator[Finding]:
    """Reading a field notes a wrong type (DG204); transformers 5 refuses null for most of them too."""
    for read, keys in NULL.items():
        for key in keys:
            read(facts.drafter, facts.at(key))
    for read, keys in NOT_NULL.items():
        for key in set(keys) - set(NULL[Fields.integer]):
            read(facts.drafter, facts.at(key), null=False)
    yield from ()


def config_is_there(facts: Facts) -> Iterator[Finding]:
    """Bare weights: say which fields the weights prove and which only the drafter's revision knows."""
    if facts.has_config or any(finding.code == "DG202" for finding in facts.unreadable):
        return
    proven = {key: facts.inferred[key] for key in QWEN3_DEFAULTS if key in facts.inferred}
    given = {"architectures": ["DFlashDraftModel"], "model_type": "qwen3", **proven, "vocab_size": facts.rows}
    unknown = ", ".join(NOT_IN_THE_WEIGHTS)
    yield error(
        code="DG201",
        field="drafter.config",
        observed=None,
        expected={
            "proven by the weights": given,
            "known to the drafter's revision": list(NOT_IN_THE_WEIGHTS),
        },
        message=f"The drafter has no config.json; weights do not tell {unknown} or rope scaling.",
        fix=(
            f"Take config.json from the drafter's revision, or give drafter_overrides with {unknown} "
            f"and {json.dumps(given)}.{hint(facts, *RECORDED)}"
        ),
        source="DFlash config contract",
    )


def config_is_its_own(facts: Facts) -> Iterator[Finding]:
    """A config made by hand may be right, and nothing in the files can show it."""
    if facts.has_config and not facts.has_own_config:
        yield warning(
            code="DG201",
            field="drafter.config",
            observed=None,
            expected="config.json",
            message="The drafter has no config.json: nothing proves what drafter_overrides say.",
            fix="Take config.json from the drafter's revision where you can.",
            source="DFlash config contract",
        )


def layer_config_is_there(facts: Facts) -> Iterator[Finding]:
    if facts.is_speculators and facts.drafter.mapping(SPECULATORS_LAYER) is None:
        yield error(
            code="DG204",
            field=f"drafter.{SPECULATORS_LAYER}",
            observed=None,
            expected="an object",
            message=f"A speculators config keeps its sizes in {SPECULATORS_LAYER}, and this one has none.",
            fix="Fetch config.json from the drafter's revision again.",
            source="vLLM 0.32.0: configs/speculators",
        )


def architecture(facts: Facts) -> Iterator[Finding]:
    """What the drafter says it is; vLLM takes the architecture of a speculators file from its kind."""
    path, is_dflash2 = "architectures", facts.inferred.get("family") == DFLASH2
    said: Any = facts.drafter.strings(path) or []
    wanted: Any = ["DFlash2DraftModel" if is_dflash2 else "DFlashDraftModel"]
    known = set(said) & set(ARCHITECTURES)
    is_right = bool(known) and (facts.weights is None or is_dflash2 == ("DFlash2DraftModel" in known))
    if facts.is_speculators:
        path, wanted = "speculators_model_type", DFLASH2 if is_dflash2 else DFLASH
        said = facts.drafter.raw(path)
        is_right = said == wanted
    if facts.has_config and not is_right and not facts.drafter.is_wrong(path):
        yield error(
            code="DG209",
            field=f"drafter.{path}",
            observed=said,
            expected=wanted,
            message=f"The drafter's {path} is {said}, not {wanted}: the method does not match.",
            fix=f"Set {path} to {wanted} if the weights are; else use another drafter.",
            source="sglang#21272",
        )


def model_type(facts: Facts) -> Iterator[Finding]:
    """It decides which config class reads all other fields, and so what an absent one becomes."""
    path = facts.at("model_type")
    said = facts.drafter.string(path)
    if said == "qwen3" or not facts.has_config or facts.is_speculators or facts.drafter.is_wrong(path):
        return
    finding = error if said is None else warning
    what = f"is {said!r}; published DFlash drafters have qwen3, whose keys and defaults are others"
    if said is None:
        what = "is absent: transformers does not know what config this is, and no engine starts"
    yield finding(
        code="DG246",
        field=f"drafter.{path}",
        observed=said,
        expected="qwen3",
        message=f"{path} {what}.",
        fix=f"Set {path} to qwen3 if the drafter's own config says so.",
        source="transformers AutoConfig",
    )


def norm_and_activation(facts: Facts) -> Iterator[Finding]:
    """A plausible epsilon, and the only activation that vLLM's drafter has."""
    eps_path, act_path = facts.at("rms_norm_eps"), facts.at("hidden_act")
    eps, act = facts.drafter.number(eps_path), facts.drafter.string(act_path)
    if eps is not None and not 1e-8 <= eps <= 1e-4:
        yield _implausible(eps_path, eps, "1e-06 or 1e-05", f"{eps_path} is {eps}, which no model has")
    if act not in (None, "silu"):
        what = f"{act_path} is {act!r}; vLLM's drafter runs silu only and does not start with another"
        yield _implausible(act_path, act, "silu", what)


def _implausible(path: str, said: object, expected: str, what: str) -> Finding:
    return error(
        code="DG238",
        field=f"drafter.{path}",
        observed=said,
        expected=expected,
        message=f"{what}.",
        fix=f"Set {path} {FROM_THE_REVISION}.",
        source="vLLM 0.32.0: Qwen2MLP" if expected == "silu" else "published DFlash drafters",
    )


def absent_epsilon(facts: Facts) -> Iterator[Finding]:
    """Drafters are made from their target's config, so its epsilon is the likely one."""
    path, taken = facts.at("rms_norm_eps"), facts.default("rms_norm_eps")
    targets = facts.target.number("rms_norm_eps")
    if not facts.is_absent(path) or taken is None:
        return
    if targets in (None, taken):
        yield from assumed(facts, "rms_norm_eps", taken, "published drafters have it")
        return
    yield warning(
        code="DG236",
        field=f"drafter.{path}",
        observed=None,
        expected=targets,
        message=f"{path} is absent: the engine takes {written(taken)}; the target has {written(targets)}.",
        fix=f"Set {path} {FROM_THE_REVISION}.",
        source="transformers Qwen3Config",
    )
