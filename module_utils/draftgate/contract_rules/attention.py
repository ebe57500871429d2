"""How the drafter attends: block, length, rope, windows. Positions of drafted tokens are 1-based.

transformers' Qwen3Config drops ``sliding_window`` unless ``use_sliding_window`` is true.
"""

from __future__ import annotations

from typing import Iterator, List, Mapping, Optional, Tuple

from ..config_fields import Fields, is_integer, written
from ..contract_facts import FULL, SLIDING, Facts
from ..findings import Finding, error, warning
from .record import COMPARE, FROM_THE_REVISION, alike, assumed, hint

BLOCKS = ("block_size", "dflash_config.block_size")


def block_is_known(facts: Facts) -> Iterator[Finding]:
    if facts.has_config and facts.block_size is None and not any(map(facts.drafter.is_wrong, BLOCKS)):
        yield warning(
            code="DG225",
            field="drafter.block_size",
            observed=None,
            expected="anchor and drafted tokens, 16 for most drafters",
            message="The drafter's config has no block_size: how many tokens it can draft is not judged.",
            fix=f"Set block_size {FROM_THE_REVISION}.{hint(facts, 'block_size')}",
            source="DFlash config contract",
        )


def block_is_plausible(facts: Facts) -> Iterator[Finding]:
    """Published blocks are 8, 10 and 16 tokens, and those of other families powers of two."""
    top, nested = facts.drafter.integer(BLOCKS[0]), facts.drafter.integer(BLOCKS[1])
    path, block = (BLOCKS[1], nested) if top is None else (BLOCKS[0], top)
    is_usual = block == 10 or (block or 0) in (2, 4, 8, 16, 32, 64)
    if block is None or (is_usual and (None in (top, nested) or top == nested)):
        return
    what = f"{path} is {block}, which no published drafter has"
    if is_usual:
        what = f"{BLOCKS[0]} is {top} and {BLOCKS[1]} {nested}: one is wrong"
    yield warning(
        code="DG244",
        field=f"drafter.{path}",
        observed=block,
        expected="8, 10 or 16 in published drafters",
        message=f"{what}.",
        fix=f"{COMPARE}.",
        source="published DFlash drafters",
    )


def block_holds_the_draft(facts: Facts) -> Iterator[Finding]:
    """Position ``block_size`` is the first that was never trained: the anchor takes one slot."""
    block, asked = facts.block_size, facts.num_speculative_tokens
    if block is not None and block > 1 and asked > block - 1:
        yield warning(
            code="DG224",
            field="num_speculative_tokens",
            observed=asked,
            expected={"at most": block - 1},
            message=(
                f"num_speculative_tokens is {asked}, and a block of {block} drafts {block - 1}: "
                f"engines accept that silently, and acceptance ends at position {block}."
            ),
            fix=f"Set num_speculative_tokens to {block - 1} or less.",
            source="DFlash reference: block_size",
        )


def drafter_reaches(facts: Facts) -> Iterator[Finding]:
    """The V2 runner of vLLM 0.32.0 knows the target's length only. Scaled ropes are not judged."""
    path, served = facts.at("max_position_embeddings"), facts.served_length
    said, reach = facts.drafter.integer(path), _reach(facts)
    scaling = (facts.at("rope_scaling"), facts.at("rope_parameters.factor"))
    is_scaled = any(map(facts.drafter.raw, scaling)) and (reach or 0) > 0
    if reach is None or not is_integer(served) or is_scaled:
        return
    if reach >= served:
        if said is None:
            fits = f"requests of {served} tokens fit into it"
            yield from assumed(facts, "max_position_embeddings", reach, fits)
        return
    default = "" if said is not None else f" (the default: {path} is absent)"
    yield warning(
        code="DG230",
        field=f"drafter.{path}",
        observed=said,
        expected={"at least": served},
        message=(
            f"The drafter reaches {reach} tokens{default} and requests may have {served}: with a longer one, "
            "vLLM's V1 runner drafts nothing in that step, and V2 reads past the drafter's rope."
        ),
        fix=f"Set max_model_len to {reach} or less.",
        source="vLLM gpu_model_runner: input_fits_in_drafter",
    )


def _reach(facts: Facts) -> Optional[int]:
    path = facts.at("max_position_embeddings")
    said: Optional[int] = facts.drafter.integer(path)
    return facts.default("max_position_embeddings") if facts.is_absent(path) else said


# Rope.

# What each kind needs beside rope_theta; vLLM 0.32.0's get_rope and transformers' validation.
NEEDS: Mapping[str, Tuple[str, ...]] = {
    **dict.fromkeys(("default", "proportional"), ()),
    **dict.fromkeys(("linear", "dynamic", "ntk"), ("factor",)),
    **dict.fromkeys(("yarn", "deepseek_yarn"), ("factor", "original_max_position_embeddings")),
    "llama3": ("factor", "original_max_position_embeddings", "low_freq_factor", "high_freq_factor"),
    "longrope": ("original_max_position_embeddings", "short_factor", "long_factor"),
}
_OLD_NAMES = {"su": "longrope", "mrope": "default"}
_DICTS = ("rope_scaling", "rope_parameters")
_ROPE_SOURCE = "vLLM 0.32.0: get_rope"


def _thetas(fields: Fields, at: str = "") -> List[float]:
    """In all spellings; models with windows can have one per kind of layer."""
    parameters = fields.raw(f"{at}rope_parameters")
    nested = parameters if isinstance(parameters, Mapping) else {}
    kinds = [kind for kind, value in nested.items() if isinstance(value, Mapping)]
    paths = ["rope_parameters.rope_theta", *(f"rope_parameters.{kind}.rope_theta" for kind in kinds)]
    scaling = ["rope_scaling.rope_theta"] if isinstance(fields.raw(f"{at}rope_scaling"), Mapping) else []
    found = (fields.number(f"{at}{path}") for path in ["rope_theta", *paths, *scaling])
    return [theta for theta in found if theta is not None]


def _own_thetas(facts: Facts) -> List[float]:
    return _thetas(facts.drafter, _prefix(facts, "rope_parameters"))


def _prefix(facts: Facts, key: str) -> str:
    return facts.at(key)[: -len(key)]


def rope_theta_is_there(facts: Facts) -> Iterator[Finding]:
    path = facts.at("rope_theta")
    own, targets, taken = _own_thetas(facts), _thetas(facts.target), facts.default("rope_theta")
    is_wrong = any(map(facts.drafter.is_wrong, (path, facts.at("rope_parameters.rope_theta"))))
    if not facts.has_config or own or is_wrong or taken is None:
        return
    if targets and taken in targets:
        yield from assumed(facts, "rope_theta", taken, "the target has")
        return
    target = f"; the target uses {written(targets[0])}" if targets else ""
    usual = f" to {written(targets[0])}, as the target has" if targets else f" {FROM_THE_REVISION}"
    yield warning(
        code="DG227",
        field=f"drafter.{path}",
        observed=None,
        expected=targets[0] if targets else "the value of the drafter's revision",
        message=f"{path} is absent: the engine takes {written(taken)} by default{target}.",
        fix=f"Set rope_theta{usual}.{hint(facts, 'rope_theta')}",
        source="transformers Qwen3Config",
    )


def rope_thetas_agree(facts: Facts) -> Iterator[Finding]:
    """transformers 4 reads ``rope_theta``, transformers 5 ``rope_parameters``."""
    path = facts.at("rope_theta")
    top, nested = facts.drafter.number(path), facts.drafter.number(facts.at("rope_parameters.rope_theta"))
    if top is not None and nested is not None and top != nested:
        yield warning(
            code="DG229",
            field=f"drafter.{path}",
            observed=top,
            expected=nested,
            message=(
                f"rope_theta is {written(top)}, in rope_parameters {written(nested)}: "
                "engines differ in which counts."
            ),
            fix="Set both by drafter_overrides, or remove one with null.",
            source="transformers 5: rope_parameters",
        )


def rope_theta_is_the_targets(facts: Facts) -> Iterator[Finding]:
    targets = _thetas(facts.target)
    other = [theta for theta in _own_thetas(facts) if targets and theta not in targets]
    if other:
        both = f"{written(other[0])} and the target's {written(targets[0])}"
        yield warning(
            code="DG228",
            field=f"drafter.{facts.at('rope_theta')}",
            observed=other[0],
            expected=targets[0],
            message=f"The drafter's rope theta is {both}.",
            fix=f"{COMPARE}; a wrong theta costs nearly all acceptance.",
            source="published DFlash drafters",
        )


def one_rope_counts(facts: Facts) -> Iterator[Finding]:
    if all(facts.drafter.mapping(facts.at(name)) for name in _DICTS):
        path = facts.at("rope_scaling")
        yield _wrong(
            path,
            facts.drafter.raw(path),
            "one of rope_scaling and rope_parameters",
            "rope_scaling counts in the place of rope_parameters, whose theta is lost",
            is_error=False,
        )


def rope_scaling_is_whole(facts: Facts) -> Iterator[Finding]:
    for name in _DICTS:
        path = facts.at(name)
        scaling = facts.drafter.mapping(path)
        if scaling and not {FULL, SLIDING} & set(scaling):  # else one for each kind of layer
            yield from _judge_scaling(facts, path, scaling)


def _judge_scaling(facts: Facts, path: str, scaling: Mapping[str, object]) -> Iterator[Finding]:
    kind = _kind(facts.drafter, path)
    if kind is None:
        return
    if "mrope_section" in scaling:
        what = "has mrope_section, which is the target's: vLLM does not draft with M-RoPE and does not start"
        yield _wrong(f"{path}.mrope_section", scaling["mrope_section"], None, f"{path} {what}")
    if kind not in NEEDS:
        what = f"is {kind!r}, which vLLM does not know: it does not start"
        yield _wrong(f"{path}.rope_type", kind, sorted(NEEDS), f"{path}.rope_type {what}")
        return
    if kind == "default" and "factor" in scaling:
        said = scaling.get("rope_type", scaling.get("type"))
        what = f"{path}.rope_type is {said or 'absent'}, so factor does nothing"
        yield _wrong(f"{path}.rope_type", said, "yarn, linear, …", what)
    lost = [key for key in NEEDS[kind] if key not in scaling]
    if lost:
        what = f"of type {kind} lacks {', '.join(lost)}: the engine does not start, or scales by a guess"
        yield _wrong(f"{path}.{lost[0]}", None, list(NEEDS[kind]), f"{path} {what}")
    yield from _judge_numbers(facts, path, kind)


def _judge_numbers(facts: Facts, path: str, kind: str) -> Iterator[Finding]:
    factor, original = (facts.drafter.number(f"{path}.{key}", null=False) for key in NEEDS["yarn"])
    reach = _reach(facts)
    for key, number in zip(NEEDS["yarn"], (factor, original)):
        if number is not None and number < 1:
            yield _wrong(f"{path}.{key}", number, "1 or more", f"{path}.{key} is {written(number)}")
            return
    if kind != "yarn" or factor is None or original is None or reach is None or factor * original == reach:
        return
    what = f"of {written(factor)} x {written(original)} tokens does not make max_position_embeddings"
    yield _wrong(path, [factor, original], reach, f"{path} {what} {reach}", is_error=False)


def rotates_the_whole_head(facts: Facts) -> Iterator[Finding]:
    """Qwen3.5's targets rotate a quarter of each head, their drafters all of it: it is not copied."""
    for name in ("partial_rotary_factor", *(f"{each}.partial_rotary_factor" for each in _DICTS)):
        path = facts.at(name)
        part = facts.drafter.number(path)
        if part is not None and part != 1:
            what = "published drafters rotate the whole head, whatever their target does"
            yield _wrong(path, part, 1.0, f"{path} is {part:g}; {what}", is_error=not 0 < part < 1)


def rope_scaling_is_the_targets(facts: Facts) -> Iterator[Finding]:
    """One published drafter is scaled and its target is not; else nothing is known of such a pair."""
    own, targets = _scaling(facts.drafter, _prefix(facts, "rope_scaling")), _scaling(facts.target)
    path = facts.at("rope_scaling")
    is_recorded = any(entry.rope_scaling and own for entry in alike(facts))
    if not facts.has_config or own == targets or is_recorded or facts.drafter.is_wrong(path):
        return
    said = [f"scaled ({kind[0]} by {kind[1]:g})" if kind else "not scaled" for kind in (own, targets)]
    what = f"The drafter's rope is {said[0]}, and the target's {said[1]}"
    yield _wrong(path, own, targets, what, is_error=False)


def _scaling(fields: Fields, at: str = "") -> Optional[Tuple[str, float]]:
    """Kind and factor; None where it is not scaled, or nested per kind of layer."""
    for name in _DICTS:
        path = f"{at}{name}"
        kind = _kind(fields, path) if fields.mapping(path) else None
        factor = fields.number(f"{path}.factor") if kind else None
        if kind not in (None, "default") and factor is not None:
            return str(kind), factor
    return None


def _kind(fields: Fields, path: str) -> Optional[str]:
    said = fields.string(f"{path}.rope_type") or fields.string(f"{path}.type")
    if any(map(fields.is_wrong, (f"{path}.rope_type", f"{path}.type"))):
        return None
    return _OLD_NAMES.get(said or "default", said or "default")


def _wrong(path: str, observed: object, expected: object, what: str, is_error: bool = True) -> Finding:
    finding = error if is_error else warning
    return finding(
        code="DG237",
        field=f"drafter.{path}",
        observed=observed,
        expected=expected,
        message=f"{what}.",
        fix=f"Set it {FROM_THE_REVISION}.",
        source=_ROPE_SOURCE,
    )


# Windows.

_WINDOWS_SOURCE = "transformers Qwen3Config; vLLM 0.32.0: qwen3_dflash"


def layer_types_fit(facts: Facts) -> Iterator[Finding]:
    path = facts.at("layer_types")
    kinds = facts.drafter.strings(path)
    if kinds is None:
        return
    layers = facts.drafter.integer(facts.at("num_hidden_layers")) or facts.inferred.get("num_hidden_layers")
    unknown = sorted(set(kinds) - {FULL, SLIDING})
    if unknown:
        what = f"has {unknown}, and a DFlash drafter has layers of {FULL} and {SLIDING} only"
    elif layers and len(kinds) != layers:
        what = f"has {len(kinds)} entries for {layers} layers, which transformers refuses"
    else:
        return
    yield error(
        code="DG235",
        field=f"drafter.{path}",
        observed=kinds,
        expected={"entries": layers, "each": [FULL, SLIDING]},
        message=f"{path} {what}.",
        fix=f"Set it {FROM_THE_REVISION}.",
        source=_WINDOWS_SOURCE,
    )


def full_layer_is_the_last(facts: Facts) -> Iterator[Finding]:
    """All published drafters with windows on some layers have one full layer, and it is the last."""
    path = facts.at("layer_types")
    kinds = facts.drafter.strings(path) or []
    usual = [SLIDING] * (len(kinds) - 1) + [FULL]
    if set(kinds) == {FULL, SLIDING} and kinds != usual:
        yield warning(
            code="DG235",
            field=f"drafter.{path}",
            observed=kinds,
            expected=usual,
            message=f"{path} is {_letters(kinds)}; published drafters with windows have {_letters(usual)}.",
            fix=f"{COMPARE}; nothing to do if it says the same.",
            source="published DFlash drafters",
        )


def windows_have_a_size(facts: Facts) -> Iterator[Finding]:
    if (
        SLIDING not in (facts.drafter.strings(facts.at("layer_types")) or [])
        or facts.windows_by_dflash_config
    ):
        return
    key = _key_without_size(facts)
    if key is None:
        return
    path = facts.at(key)
    yield error(
        code="DG235",
        field=f"drafter.{path}",
        observed=facts.drafter.raw(path),
        expected={"use_sliding_window": True, "sliding_window": "tokens"},
        message=(
            f"layer_types has windows, and with {path} {_said(facts, path)} they have no size: vLLM does not "
            "start from 0.25 on, and ran them as full attention before."
        ),
        fix=f"Set use_sliding_window to true and sliding_window {FROM_THE_REVISION}.",
        source=_WINDOWS_SOURCE,
    )


def _key_without_size(facts: Facts) -> Optional[str]:
    """The key that leaves the windows without a size; of three that work together, the odd one out."""
    switch, size = facts.at("use_sliding_window"), facts.at("sliding_window")
    is_known = facts.default("sliding_window") is not None
    if not is_known or facts.drafter.is_wrong(switch) or facts.drafter.is_wrong(size):
        return None
    if facts.drafter.boolean(switch) is True:
        return "sliding_window" if facts.drafter.has(size) and facts.window is None else None
    is_meant = facts.window is not None or not facts.drafter.has(switch)
    return "use_sliding_window" if is_meant else "layer_types"


def window_is_plausible(facts: Facts) -> Iterator[Finding]:
    """A size that is no window (error), or none that anybody trains with (warning)."""
    path, size = facts.at("sliding_window"), facts.window
    reach = facts.drafter.integer(facts.at("max_position_embeddings"))
    if size is None or not any(facts.layer_windows or []):
        return
    if size > 0 and size % 64 == 0 and not (reach and size >= reach):
        return
    finding = error if size <= 0 else warning
    yield finding(
        code="DG235",
        field=f"drafter.{path}",
        observed=size,
        expected="2048 or 4096 in published drafters",
        message=f"{path} is {size}, which is no window that a drafter is trained with.",
        fix=f"Set it {FROM_THE_REVISION}.",
        source="published DFlash drafters",
    )


def windows_are_used(facts: Facts) -> Iterator[Finding]:
    kinds = facts.drafter.strings(facts.at("layer_types"))
    is_on = facts.drafter.boolean(facts.at("use_sliding_window"))
    if not is_on or facts.windows_by_dflash_config or any(facts.layer_windows or [True]):
        return
    path = facts.at("use_sliding_window" if kinds is not None and facts.window is None else "layer_types")
    yield warning(
        code="DG235",
        field=f"drafter.{path}",
        observed=facts.drafter.raw(path),
        expected=f"{SLIDING} in layer_types",
        message=(
            f"use_sliding_window is true and layer_types {_said(facts, facts.at('layer_types'))}: "
            "no layer has a window, and acceptance decays in long text if the drafter was trained with one."
        ),
        fix=f"Set layer_types {FROM_THE_REVISION}.",
        source=_WINDOWS_SOURCE,
    )


def absent_windows(facts: Facts) -> Iterator[Finding]:
    kinds, size = facts.at("layer_types"), facts.at("sliding_window")
    windows = facts.layer_windows
    is_on = facts.drafter.boolean(facts.at("use_sliding_window"))
    if facts.is_absent(kinds) and windows and not is_on:
        yield _assumed(kinds, f"the engine runs all {len(windows)} layers with full attention")
    if is_on and not facts.drafter.has(size) and any(windows or []) and facts.default("sliding_window"):
        yield _assumed(size, f"the engine takes windows of {facts.default('sliding_window')} tokens")


def _assumed(path: str, taken: str) -> Finding:
    return warning(
        code="DG236",
        field=f"drafter.{path}",
        observed=None,
        expected="the value of the drafter's revision",
        message=f"{path} is absent: {taken}; the weights do not tell whether that is right.",
        fix=f"Set layer_types, sliding_window and use_sliding_window {FROM_THE_REVISION}.",
        source=_WINDOWS_SOURCE,
    )


def _said(facts: Facts, path: str) -> str:
    value = facts.drafter.raw(path)
    if path.endswith("layer_types") and value is not None:
        return _letters(value)
    if value is None:
        return "null" if facts.drafter.has(path) else "absent"
    return str(value).lower()


def _letters(kinds: List[str]) -> str:
    """``SSSSF``, as the public record writes windows."""
    return "".join(kind[:1].upper() for kind in kinds)
