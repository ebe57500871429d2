"""Captured target layers. Ids are 0-based and mean the OUTPUT of that decoder layer."""

from __future__ import annotations

from typing import Iterator, List, Optional

from ..contract_facts import Facts
from ..findings import Finding
from .common import FROM_THE_REVISION, error, warning


def spaced_layer_ids(layers: int, count: int) -> Optional[List[int]]:
    """The usual choice, ``round(1 + i·(L−4)/(n−1))``: a hint, never proof. None below two ids."""
    if count < 2 or layers < 5:
        return None
    return [round(1 + index * (layers - 4) / (count - 1)) for index in range(count)]


def _usual_ids(facts: Facts) -> Optional[List[int]]:
    count = facts.inferred.get("captured_layers")
    return spaced_layer_ids(facts.layers, count) if facts.layers and count else None


def layer_ids_are_there(facts: Facts) -> Iterator[Finding]:
    path, ids = facts.layer_ids
    if not facts.has_config or ids or facts.drafter.is_wrong(path):
        return
    usual = _usual_ids(facts)
    hint = f" 18 of 20 published pairs follow a spacing that gives {usual} here." if usual else ""
    yield error(
        code="DG211",
        field=f"drafter.{path}",
        observed=ids,
        expected="0-based ids of target layers",
        message=f"The drafter's config has no {path}: the engine takes layers of its own choice.{hint}",
        fix=f"Set {path} {FROM_THE_REVISION}.",
        source="sglang#37475",
    )


def layer_ids_are_layers(facts: Facts) -> Iterator[Finding]:
    path, ids = facts.layer_ids
    outside = [number for number in ids or [] if facts.layers and not 0 <= number < facts.layers]
    if facts.layers and outside:
        yield error(
            code="DG212",
            field=f"drafter.{path}",
            observed=ids,
            expected={"first": 0, "last": facts.layers - 1},
            message=f"{path} has {outside}, the target layers 0 to {facts.layers - 1}: a request fails.",
            fix="Use 0-based ids; EAGLE and GGUF count from 1, so subtract 1 from theirs.",
            source="vLLM 0.32.0",
        )


def layer_ids_avoid_the_last_on_sglang(facts: Facts) -> Iterator[Finding]:
    path, ids = facts.layer_ids
    if facts.engine.name == "sglang" and facts.layers and facts.layers - 1 in (ids or []):
        yield error(
            code="DG216",
            field=f"drafter.{path}",
            observed=ids,
            expected={"last": facts.layers - 2},
            message=f"{path} has {facts.layers - 1}, the last layer: SGLang stops with an IndexError.",
            fix="Compare with the drafter's own config.json, or serve with vLLM.",
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
            fix="Compare with the drafter's own config.json.",
            source="vLLM 0.32.0",
        )


def layer_ids_fit_fc(facts: Facts) -> Iterator[Finding]:
    path, ids = facts.layer_ids
    fc = facts.weights.tensors.get("fc.weight") if facts.weights else None
    hidden = facts.target_hidden
    if not ids or fc is None or len(fc.shape) != 2 or not hidden or fc.shape[1] == len(ids) * hidden:
        return
    captured = fc.shape[1] / hidden
    yield error(
        code="DG214",
        field=f"drafter.{path}",
        observed={"ids": len(ids), "fc.weight": list(fc.shape)},
        expected={"ids": captured},
        message=f"{path} has {len(ids)} ids, fc.weight takes {captured:g} layers of a target {hidden} wide.",
        fix="Use the drafter's own ids, and the target it was trained for.",
        source="DFlash reference: fc = Linear(ids · target hidden, hidden)",
    )


def layer_ids_are_usual(facts: Facts) -> Iterator[Finding]:
    path, ids = facts.layer_ids
    usual = _usual_ids(facts)
    if ids and usual and len(ids) == len(usual) and sorted(ids) != usual:
        yield warning(
            code="DG215",
            field=f"drafter.{path}",
            observed=ids,
            expected=usual,
            message=f"{path} is {ids}; 18 of 20 published pairs follow a spacing that gives {usual} here.",
            fix="Compare with the drafter's own config.json; nothing to do if it says the same.",
            source="DFlash reference: build_target_layer_ids",
        )


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
