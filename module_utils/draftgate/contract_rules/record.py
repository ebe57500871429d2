"""The public record: what published drafters of exactly these shapes say. A hint, never proof."""

from __future__ import annotations

from typing import Any, Iterator, List, Tuple

from ..contract_facts import Facts
from ..findings import Finding
from ..published import PUBLISHED, Published
from .common import warning

_SHAPE = {
    "num_hidden_layers": "draft_layers",
    "hidden_size": "hidden",
    "intermediate_size": "ffn",
    "num_attention_heads": "heads",
    "num_key_value_heads": "kv_heads",
    "head_dim": "head_dim",
    "attention_bias": "attention_bias",
}


def alike(facts: Facts) -> List[Published]:
    """Published drafters whose every shape this drafter's weights and target have."""
    return [entry for entry in PUBLISHED if _has_shapes(entry, facts)]


def hint(facts: Facts, attribute: str) -> str:
    """`` z-lab/X, published with exactly these shapes, has 248070.``; empty where nobody says anything."""
    told = [(name, value) for name, value in _values(facts, attribute) if value is not None]
    if not told:
        return ""
    says = "; ".join(f"{name} has {_listed(value)}" for name, value in told)
    return f" Published with exactly these shapes: {says}."


def the_record_agrees(facts: Facts) -> Iterator[Finding]:
    """Silent as soon as one published drafter of these shapes says the same, or its value is not known."""
    for attribute, path, said in _said(facts):
        told = _values(facts, attribute)
        if said is not None and told and all(value not in (None, said) for _, value in told):
            yield warning(
                code="DG219",
                field=f"drafter.{path}",
                observed=_plain(said),
                expected=[_plain(value) for _, value in told],
                message=f"{path} is {_listed(said)}.{hint(facts, attribute)}",
                fix="Compare with the config.json of the revision that these weights are of.",
                source="published DFlash drafters",
            )


def _said(facts: Facts) -> Iterator[Tuple[str, str, Any]]:
    """What the config says of each field that the record has."""
    path, mask = facts.mask
    yield "mask_token_id", path, mask
    path, ids = facts.layer_ids
    yield "layer_ids", path, None if ids is None else tuple(ids)
    yield "block_size", "block_size", facts.block_size
    windows = facts.layer_windows
    letters = None if windows is None else "".join("S" if windowed else "F" for windowed in windows)
    yield "windows", facts.at("layer_types"), letters
    yield "sliding_window", facts.at("sliding_window"), facts.window if windows and any(windows) else None
    yield "rope_theta", facts.at("rope_theta"), facts.drafter.number(facts.at("rope_theta"))


def _values(facts: Facts, attribute: str) -> List[Tuple[str, Any]]:
    return [(_name(entry), getattr(entry, attribute)) for entry in alike(facts)]


def _name(entry: Published) -> str:
    return f"{entry.repo} ({entry.revision})" if entry.revision else entry.repo


def _has_shapes(entry: Published, facts: Facts) -> bool:
    shapes = {key: facts.inferred.get(key) for key in _SHAPE}
    return (
        facts.layers == entry.target_layers
        and facts.inferred.get("captured_layers") == len(entry.layer_ids)
        and entry.vocab_size in (None, facts.rows)
        and all(value == getattr(entry, _SHAPE[key]) for key, value in shapes.items())
    )


def _plain(value: Any) -> Any:
    return list(value) if isinstance(value, tuple) else value


def _listed(value: Any) -> str:
    return str(_plain(value))
