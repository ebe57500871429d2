"""Captured target layers. Ids mean the OUTPUT of that decoder layer, and count as the config does.

vLLM 0.32.0 adds 1, removes duplicates, and captures in ascending order whatever the order of the list.
"""

from __future__ import annotations

from typing import Iterator, List, Optional

from ..contract_facts import MOST_LAYERS, Facts
from ..findings import Finding, error, warning
from .record import COMPARE, FROM_THE_REVISION, alike, hint


def spaced_layer_ids(layers: int, count: int) -> Optional[List[int]]:
    """The usual choice, ``round(1 + i·(L−4)/(n−1))``: a hint, never proof. None below two ids.

    A header may claim any number of them; more than layers is no choice.
    """
    if not 2 <= count <= min(layers, MOST_LAYERS) or layers < 5:
        return None
    return [round(1 + index * (layers - 4) / (count - 1)) for index in range(count)]


def _usual_ids(facts: Facts) -> Optional[List[int]]:
    count = facts.inferred.get("captured_layers")
    ids = spaced_layer_ids(facts.layers, count) if facts.layers and count else None
    return ids and [number + facts.first_id for number in ids]


def _last(facts: Facts) -> int:
    return (facts.layers or 0) - 1 + facts.first_id


def layer_ids_are_there(facts: Facts) -> Iterator[Finding]:
    path, ids = facts.layer_ids
    if not facts.has_config or ids or facts.drafter.is_wrong(path):
        return
    usual = _usual_ids(facts)
    spaced = f" 18 of 20 published pairs follow a spacing that gives {usual} here." if usual else ""
    yield error(
        code="DG211",
        field=f"drafter.{path}",
        observed=ids,
        expected=f"ids of target layers, counted from {facts.first_id}",
        message=f"The drafter's config has no {path}: the engine takes layers of its own choice.{spaced}",
        fix=f"Set {path} {FROM_THE_REVISION}.{hint(facts, 'layer_ids')}",
        source="sglang#37475",
    )


def layer_ids_are_layers(facts: Facts) -> Iterator[Finding]:
    (path, ids), first, last = facts.layer_ids, facts.first_id, _last(facts)
    outside = [number for number in ids or [] if not first <= number <= last]
    if facts.layers and outside:
        yield error(
            code="DG212",
            field=f"drafter.{path}",
            observed=ids,
            expected={"first": first, "last": last},
            message=f"{path} has {outside}, the target layers {first} to {last}: a request fails.",
            fix=f"Count from {first}; EAGLE, GGUF and speculators count from 1, DFlash from 0.",
            source="vLLM 0.32.0",
        )


def layer_ids_avoid_the_last_on_sglang(facts: Facts) -> Iterator[Finding]:
    (path, ids), last = facts.layer_ids, _last(facts)
    if facts.engine.name == "sglang" and facts.layers and last in (ids or []):
        yield error(
            code="DG216",
            field=f"drafter.{path}",
            observed=ids,
            expected={"last": last - 1},
            message=f"{path} has {last}, the last layer: SGLang stops with an IndexError.",
            fix=f"{COMPARE}, or serve with vLLM.",
            source="SGLang 0.5.11 to 0.5.23",
        )


def layer_ids_are_unique(facts: Facts) -> Iterator[Finding]:
    path, ids = facts.layer_ids
    repeated = sorted({number for number in ids or [] if (ids or []).count(number) > 1})
    if repeated:
        yield error(
            code="DG213",
            field=f"drafter.{path}",
            observed=ids,
            expected="each id once",
            message=f"{path} has {repeated} more than once.",
            fix=f"{COMPARE}.",
            source="vLLM 0.32.0",
        )


def layer_ids_ascend(facts: Facts) -> Iterator[Finding]:
    """The columns of ``fc`` are in the order of training; engines hand over layers in ascending order."""
    path, ids = facts.layer_ids
    if ids and ids != sorted(ids):
        yield warning(
            code="DG220",
            field=f"drafter.{path}",
            observed=ids,
            expected=sorted(ids),
            message=f"{path} is {ids}; vLLM captures layers in ascending order, whatever the list's order.",
            fix=f"{COMPARE}: all published ones ascend.",
            source="vLLM 0.32.0: EagleModelMixin",
        )


def layer_ids_fit_fc(facts: Facts) -> Iterator[Finding]:
    path, ids = facts.layer_ids
    captured, hidden = facts.inferred.get("captured_layers"), facts.target_hidden
    if not ids or not captured or captured == len(ids):
        return
    yield error(
        code="DG214",
        field=f"drafter.{path}",
        observed={"ids": len(ids), "fc.weight": captured},
        expected={"ids": captured},
        message=f"{path} has {len(ids)} ids, fc.weight takes {captured} layers of a target {hidden} wide.",
        fix="Use the drafter's own ids, and the target it was trained for.",
        source="DFlash reference: fc = Linear(ids · target hidden, hidden)",
    )


def layer_ids_are_usual(facts: Facts) -> Iterator[Finding]:
    path, ids = facts.layer_ids
    usual = _usual_ids(facts)
    if not ids or not usual or len(ids) != len(usual) or sorted(ids) == usual or _is_published(facts, ids):
        return
    norm = " Training may have seen the last layer after the final norm." if _last(facts) in ids else ""
    yield warning(
        code="DG215",
        field=f"drafter.{path}",
        observed=ids,
        expected=usual,
        message=f"{path} is {ids}; 18 of 20 published pairs follow a spacing that gives {usual} here.{norm}",
        fix=f"{COMPARE}; nothing to do if it says the same.",
        source="DFlash reference: build_target_layer_ids",
    )


def _is_published(facts: Facts, ids: List[int]) -> bool:
    """A pair of the record that follows no spacing, as Qwen3-Coder-Next does."""
    return any([number + facts.first_id for number in entry.layer_ids] == ids for entry in alike(facts))


def target_depth(facts: Facts) -> Iterator[Finding]:
    trained = facts.drafter.integer("num_target_layers")
    if trained is not None and facts.layers is not None and trained != facts.layers:
        yield error(
            code="DG217",
            field="drafter.num_target_layers",
            observed=trained,
            expected=facts.layers,
            message=f"The drafter was trained for a target of {trained} layers; this one has {facts.layers}.",
            fix="Use the target that the drafter's model card names.",
            source="DFlash config contract",
        )
