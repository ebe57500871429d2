"""Names and shapes of the tensors against the config and the target."""

from __future__ import annotations

from typing import Iterator

from .. import drafter_weights
from ..contract_facts import QWEN3_DEFAULTS, Facts
from ..findings import Finding
from .common import error


def weights_are_complete(facts: Facts) -> Iterator[Finding]:
    """DFlash2 and speculators files have other tensors; this table does not describe them."""
    if facts.weights is None or facts.inferred.get("family") in ("dflash2", "speculators"):
        return
    tensors = facts.weights.tensors
    lost = drafter_weights.missing(tensors)
    odd = drafter_weights.unexpected_shapes(tensors, facts.inferred)
    if not lost and not odd:
        return
    parts = [f"{len(lost)} are missing, {lost[0]} first"] if lost else []
    parts += [f"{name} is {list(found)} instead of {list(wanted)}" for name, (found, wanted) in odd.items()][
        :1
    ]
    is_packed = any("packed" in name or "qweight" in name for name in tensors)
    hint = (
        " They are packed (quantised): engines leave at random what they cannot unpack." if is_packed else ""
    )
    yield error(
        code="DG223",
        field="drafter.weights",
        observed={"missing": lost, "shapes": {name: list(found) for name, (found, _) in odd.items()}},
        expected={"shapes": {name: list(wanted) for name, (_, wanted) in odd.items()}},
        message=f"The drafter's tensors are not those of a DFlash drafter: {'; '.join(parts)}.{hint}",
        fix="Fetch the weights again, or use the unquantised drafter.",
        source="sglang#39087",
    )


def config_describes_weights(facts: Facts) -> Iterator[Finding]:
    if not facts.has_config or facts.is_speculators:
        return
    for key in QWEN3_DEFAULTS:
        proven = facts.inferred.get(key)
        if proven is not None:
            says = _disagreement(facts, key, proven)
            if says:
                yield error(
                    code="DG221",
                    field=f"drafter.{key}",
                    observed=facts.drafter.integer(key),
                    expected=proven,
                    message=f"The drafter's config {says}; its weights have {proven}.",
                    fix=f"Set {key} to {proven} by drafter_overrides.",
                    source="drafter weights; transformers Qwen3Config",
                )


def vocabularies_agree(facts: Facts) -> Iterator[Finding]:
    if not facts.has_config or facts.is_speculators or facts.rows is None:
        return
    says = _disagreement(facts, "vocab_size", facts.rows)
    if says:
        yield error(
            code="DG226",
            field="drafter.vocab_size",
            observed=facts.drafter.integer("vocab_size"),
            expected=facts.rows,
            message=f"The drafter's config {says}; the target has {facts.rows}, so lm_head is not shared.",
            fix=f"Set vocab_size to {facts.rows} if the drafter belongs to this target.",
            source="vllm#46435",
        )


def _disagreement(facts: Facts, key: str, right: int) -> str:
    """What the config says about ``key`` where the engine would not take ``right``; empty where it would.

    An absent field is no mistake by itself: the engine's silent default may be the right value.
    """
    said = facts.drafter.integer(key)
    taken = facts.default(key) if said is None else said
    if taken in (None, right) or facts.drafter.is_wrong(key):
        return ""
    return f"says {key} {said}" if said is not None else f"does not say {key}, so the engine takes {taken}"


def widths_agree(facts: Facts) -> Iterator[Finding]:
    width, hidden = facts.inferred.get("hidden_size"), facts.target_hidden
    if width and hidden and width != hidden:
        yield error(
            code="DG222",
            field="drafter.hidden_size",
            observed=width,
            expected=hidden,
            message=f"The drafter is {width} wide, the target {hidden}: they cannot share an embedding.",
            fix="Use the target that the drafter's model card names.",
            source="DFlash reference",
        )
