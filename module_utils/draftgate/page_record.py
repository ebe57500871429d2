"""The parts of a report page that are looked up: how it was measured, what ran, how to do it again."""

from __future__ import annotations

from typing import Any, Iterator, Mapping, Optional, Tuple

from .decision import percent
from .page_causes import shown
from .page_markup import Child, Element, el, section
from .progress import span

_COUNTED = {"requests": "our requests, one by one", "counters": "the engine's counters"}
_DRAFTER = (
    "block_size",
    "dtype",
    "layer_types",
    "sliding_window",
    "rope_theta",
    "rope_scaling",
    "rope_parameters",
)

_Entry = Tuple[str, Child]


def measuring(evidence: Mapping[str, Any], stages: Optional[Mapping[str, float]]) -> Element:
    """How it was measured: the settings that any comparison has to share, and how much was asked."""
    return section(
        "How it was measured", "measuring", _list([*_settings(evidence), *_amounts(evidence, stages or {})])
    )


def _settings(evidence: Mapping[str, Any]) -> Iterator[_Entry]:
    given = evidence.get("settings") or {}
    yield "prompts", _digest((evidence.get("prompts") or {}).get("digest"))
    workloads = given.get("workloads")
    yield "workloads", "all of the prompt set" if workloads is None else ", ".join(map(str, workloads))
    yield "sampling", _pairs(given.get("sampling"))
    yield "template", _pairs(given.get("template")) or "the model's own"
    yield "concurrency", given.get("concurrency")
    yield "thresholds", _pairs(evidence.get("thresholds"))


def _amounts(evidence: Mapping[str, Any], stages: Mapping[str, float]) -> Iterator[_Entry]:
    share, by = evidence.get("own_share"), _COUNTED.get(str(evidence.get("counted_by")))
    yield "counted by", by
    yield (
        "own share",
        f"{percent(share, 0)} of the tokens that the engine counted meanwhile" if share is not None else None,
    )
    if evidence.get("requests"):
        passes = len(evidence.get("passes") or [])
        told = f"{evidence['requests']} in {passes} {'pass' if passes == 1 else 'passes'}"
        yield (
            "requests",
            f"{told}, {evidence.get('generation_tokens')} tokens in {span(evidence.get('seconds') or 0)}",
        )
    yield "repeating answers", ", ".join(map(str, evidence.get("repeating") or []))
    yield (
        "time",
        " · ".join(f"{stage} {span(seconds)}" for stage, seconds in stages.items() if seconds >= 0.5),
    )


def record(evidence: Mapping[str, Any]) -> Element:
    """What ran and where, by content: equal digests are equal things."""
    return section("What ran", "record", _list([*_models(evidence), *_host(evidence)]))


def _models(evidence: Mapping[str, Any]) -> Iterator[_Entry]:
    for name in ("target", "drafter"):
        model = evidence.get(name) or {}
        yield name, _digest(model.get("digest"))
        if model.get("repo"):
            yield f"{name}'s repository", f"{model['repo']} at {model.get('revision')}"
    drafter = evidence.get("drafter") or {}
    for key in _DRAFTER:
        if drafter.get(key) is not None:
            yield f"drafter's {key}", el("code", shown(drafter[key]))


def _host(evidence: Mapping[str, Any]) -> Iterator[_Entry]:
    identity = evidence.get("identity") or {}
    yield "engine's build", identity.get("engine_build")
    yield "GPUs", ", ".join(map(str, identity.get("gpus") or [])) or "none"
    yield "driver", identity.get("driver")
    yield "release (serve)", _digest(evidence.get("serve_digest"))
    yield "measurement (gate)", _digest(evidence.get("gate_digest"))


def repeating(command: str) -> Optional[Element]:
    """What to type to do it again."""
    if not command:
        return None
    note = (
        "In the checkout on the controller. What serves as wished is left alone; what was refused is "
        "measured once more. A secret is named, its value is not told."
    )
    return section("To do it again", "again", el("pre", el("code", command)), note=note)


def _list(entries: Any) -> Element:
    told = [(el("dt", name), el("dd", value)) for name, value in entries if value not in (None, "")]
    return el("dl", *told, class_="record")


def _digest(digest: Any) -> Optional[Element]:
    return el("code", str(digest)) if digest else None


def _pairs(values: Any) -> str:
    given = values or {}
    return ", ".join(
        f"{key} {'not judged' if value is None else shown(value)}" for key, value in given.items()
    )
