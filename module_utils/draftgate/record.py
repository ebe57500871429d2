"""A measurement and its verdict as the record that is stored, fetched, and read by people and programs."""

from __future__ import annotations

from typing import Any, Dict, Mapping, Optional, Sequence

from .canonical import digest, short
from .decision import Decision
from .evidence import utc
from .findings import Finding
from .gate import Measurement
from .spec import gate_digest
from .suspects import Suspect

FORMAT = 1


def build(
    *,
    serve: Mapping[str, Any],
    gate: Mapping[str, Any],
    host: str,
    now: float,
    identity: Mapping[str, Any],
    measurement: Measurement,
    decision: Decision,
    thresholds: Optional[Mapping[str, Any]] = None,
    suspects: Sequence[Suspect] = (),
    findings: Sequence[Finding] = (),
    baseline: Optional[Mapping[str, Any]] = None,
    reference: Optional[Mapping[str, Any]] = None,
) -> Dict[str, Any]:
    """The evidence of one measurement, as JSON types. No prompt and no answer is in it.

    :param serve: the spec's ``serve`` part that ran.
    :param gate: the spec's ``gate`` part it was measured under.
    :param now: epoch seconds.
    :param measurement: a :class:`gate.Measurement`.
    :param decision: a :class:`decision.Decision`.
    :param identity: ``{gpus: [...], driver, engine_build}``: what else has to be equal for it to count.
    :param thresholds: what it was judged by, complete (``validate_thresholds``); absent: as in ``gate``.
    :param baseline: speed without speculation (``{tokens_per_second}``), where it was measured.
    :param reference: the green evidence that it was compared with.
    """
    serve_digest = digest(serve)
    return {
        "format": FORMAT,
        "release": short(serve_digest),
        "model": serve.get("served_model_name"),
        "host": host,
        "time": utc(now),
        "engine": dict(serve["engine"]),
        "target": dict(serve["target"]),
        "drafter": _drafter(serve.get("drafter")),
        **measurement.as_dict(),
        "baseline": dict(baseline or {}),
        "thresholds": dict(gate["thresholds"] if thresholds is None else thresholds),
        **decision.as_dict(),
        "suspects": [suspect.as_dict() for suspect in suspects],
        "findings": [finding.as_dict() for finding in findings],
        "reference": _reference(reference),
        "serve_digest": serve_digest,
        "gate_digest": gate_digest(gate),
        "prompts": dict(gate["prompts"]),
        "settings": {key: value for key, value in gate.items() if key not in ("prompts", "thresholds")},
        "identity": dict(identity),
    }


def _drafter(drafter: Optional[Mapping[str, Any]]) -> Optional[Dict[str, Any]]:
    """What identifies the drafter, and the fields that most often are wrong, side by side."""
    if drafter is None:
        return None
    config = drafter.get("config") or {}
    nested = config.get("dflash_config") or {}
    told = {
        "mask_token_id": nested.get("mask_token_id", config.get("mask_token_id")),
        "target_layer_ids": nested.get("target_layer_ids", config.get("aux_hidden_state_layer_ids")),
        "block_size": nested.get("block_size", config.get("block_size")),
    }
    for key in ("rope_theta", "rope_scaling", "rope_parameters", "layer_types", "sliding_window", "dtype"):
        if key in config:
            told[key] = config[key]
    return {**{key: value for key, value in drafter.items() if key != "config"}, **told}


def _reference(reference: Optional[Mapping[str, Any]]) -> Optional[Dict[str, Any]]:
    """Enough of the last green evidence to read this one without it."""
    if reference is None:
        return None
    acceptance = reference.get("acceptance") or {}
    told = {key: acceptance.get(key) for key in ("mean_acceptance_length", "rate", "per_position")}
    return {"release": reference.get("release"), "time": reference.get("time"), **told}
