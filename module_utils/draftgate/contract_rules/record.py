"""Where a right value is found: the drafter's own revision, the engine's default, or, as a hint and never as
proof, what published drafters of exactly these shapes say.
"""

from __future__ import annotations

from typing import Any, Iterator, List, Tuple

from ..config_fields import written
from ..contract_facts import Facts
from ..findings import Finding, info, warning
from ..mask_candidates import SHAPE
from ..published import PUBLISHED, Published

FROM_THE_REVISION = "to the value in the config.json of the drafter's revision"
COMPARE = "Compare with the drafter's own config.json"

# What the record says and weights do not.
RECORDED = ("mask_token_id", "layer_ids", "block_size", "windows", "sliding_window", "rope_theta")


def assumed(facts: Facts, key: str, proven: Any, prover: str) -> Iterator[Finding]:
    """DG236, an info: the engine's silent default for an absent ``key`` is what ``prover`` shows."""
    path = facts.at(key)
    yield info(
        code="DG236",
        field=f"drafter.{path}",
        observed=None,
        expected=proven,
        message=f"{path} is absent: the engine takes {written(facts.default(key))}, as {prover}.",
        fix=f"Nothing; set {path} to {written(proven)} to have it said.",
        source="transformers Qwen3Config",
    )


def alike(facts: Facts) -> List[Published]:
    """Published drafters whose every shape this drafter's weights and target have."""
    known = {**facts.inferred, "target_layers": facts.layers}
    shapes = {attribute: known.get(key) for key, attribute in SHAPE.items()}
    captured = known.get("captured_layers")
    return [
        entry
        for entry in PUBLISHED
        if all(getattr(entry, attribute) == size for attribute, size in shapes.items())
        and len(entry.layer_ids) == captured
        and entry.vocab_size in (None, facts.rows)
    ]


def hint(facts: Facts, *attributes: str) -> str:
    """What they have, as a sentence after another; empty where nobody says anything."""
    says = []
    for entry in alike(facts):
        values = {name: getattr(entry, name) for name in attributes}
        if "layer_ids" in values:
            values["layer_ids"] = [number + facts.first_id for number in entry.layer_ids]
        told = ", ".join(f"{name} {_plain(value)}" for name, value in values.items() if value is not None)
        says += [f"{_name(entry)} has {told}"] if told else []
    return f" Published with exactly these shapes: {'; '.join(says)}." if says else ""


def the_record_agrees(facts: Facts) -> Iterator[Finding]:
    """Silent as soon as one published drafter of these shapes says the same, or its value is not known.

    The speculators format is another trainer's: its drafters are no revisions of the record's.
    """
    if not facts.has_config or facts.is_speculators:
        return
    for attribute, path, said in _said(facts):
        told = [_plain(getattr(entry, attribute)) for entry in alike(facts)]
        if said is not None and told and all(value not in (None, said) for value in told):
            yield warning(
                code="DG219",
                field=f"drafter.{path}",
                observed=said,
                expected=told,
                message=f"{path} is {said}.{hint(facts, attribute)}",
                fix="Compare with the config.json of the revision that these weights are of.",
                source="published DFlash drafters",
            )


def _said(facts: Facts) -> Iterator[Tuple[str, str, Any]]:
    """What the config says of each field that the record has."""
    yield ("mask_token_id", *facts.mask)
    yield ("layer_ids", *facts.layer_ids)
    yield "block_size", "block_size", facts.block_size
    windows = facts.layer_windows
    letters = None if windows is None else "".join("S" if windowed else "F" for windowed in windows)
    yield "windows", facts.at("layer_types"), letters
    yield "sliding_window", facts.at("sliding_window"), facts.window if windows and any(windows) else None
    yield "rope_theta", facts.at("rope_theta"), facts.drafter.number(facts.at("rope_theta"))


def _name(entry: Published) -> str:
    return f"{entry.repo} ({entry.revision})" if entry.revision else entry.repo


def _plain(value: Any) -> Any:
    return list(value) if isinstance(value, tuple) else value
