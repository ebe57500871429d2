"""One gate, from the running candidate to the stored evidence: measure, compare, decide, explain, record."""

from __future__ import annotations

import os
import socket
from dataclasses import fields
from typing import Any, Dict, List, Mapping, Optional, Tuple

from . import evidence, gate, host, prompts, record
from .canonical import digest
from .clocks import Clocks
from .decision import decide
from .engine_client import client_for
from .errors import InputError, LaunchError
from .files import read_json
from .findings import Finding
from .gate import Measurement
from .journal import Entry
from .launch import Watch
from .layout import Home
from .progress import Report
from .spec import differences, gate_digest
from .suspects import suspects


def gate_candidate(
    home: Home, entries: List[Entry], clocks: Clocks, progress: Report, watch: Watch
) -> Tuple[str, Dict[str, Any]]:
    """Judge the candidate of the open switch; ``(path of the evidence, evidence)``.

    A candidate that already served and whose evidence still counts is decided from that evidence.

    :param watch: of the candidate's process, from before the first request.
    :raises InputError: the prompt set on the host is not the wished one.
    :raises LaunchError: the candidate ended while it was measured.
    """
    opened = entries[0]
    stored = _stored(home, opened, clocks)
    if stored is not None:
        measurement = Measurement(**{field.name: stored[field.name] for field in fields(Measurement)})
        return _record(home, opened, measurement, evidence.seconds_of(stored), clocks.now())
    began = clocks.now()
    measurement = _measured(home, opened["candidate"], clocks, progress)
    if measurement.problem:
        watch.require_survived(dying=measurement.problem["code"] == "DG825")
    return _record(home, opened, measurement, began, clocks.now())


def record_launch_failure(home: Home, opened: Entry, exc: LaunchError, now: float) -> str:
    """Evidence of a candidate that ended, or never answered: what cannot cure itself is red, the rest
    inconclusive."""
    problem = {
        "code": exc.code,
        "message": exc.observed,
        "field": "launch",
        "observed": exc.details.get("line") or exc.details.get("cause"),
        "expected": exc.expected,
    }
    measurement = gate.summarise([], opened["candidate"]["serve"]["num_speculative_tokens"], problem)
    return _record(home, opened, measurement, now, now)[0]


def _measured(home: Home, candidate: Mapping[str, Any], clocks: Clocks, progress: Report) -> Measurement:
    path = home.prompts(candidate["gate"]["prompts"]["digest"])
    with open(path, "rb") as handle:
        data = handle.read()
    if prompts.digest(data) != candidate["gate"]["prompts"]["digest"]:
        raise InputError(
            "reading the gate's prompts", f"{path} has been changed", "the content of its digest"
        )
    serve = candidate["serve"]
    return gate.measure(
        client_for(home, candidate),
        serve["served_model_name"],
        prompts.load(data),
        candidate["gate"],
        num_speculative_tokens=serve["num_speculative_tokens"],
        clock=clocks.boottime,
        progress=progress,
    )


def _stored(home: Home, opened: Entry, clocks: Clocks) -> Optional[Dict[str, Any]]:
    """The evidence that still counts for this very process, when only thresholds were changed."""
    candidate, previous = opened["candidate"], opened["previous"]
    if opened["action"] != "decide" or not previous or previous["id"] != candidate["id"]:
        return None
    identity, now = host.identity(candidate), clocks.now()
    known = evidence.latest(home, candidate["release"], gate_digest(candidate["gate"]), identity, now=now)
    counts = known is not None and evidence.valid(
        known,
        serve_digest=digest(candidate["serve"]),
        gate_digest=gate_digest(candidate["gate"]),
        identity=identity,
        now=now,
        max_age_seconds=opened.get("evidence_max_age"),
    )
    return known if counts and counts[0] else None


def _record(
    home: Home, opened: Entry, measurement: Measurement, measured: float, now: float
) -> Tuple[str, Dict[str, Any]]:
    """Decide and store. Evidence keeps the time of its measurement: deciding again makes nothing younger."""
    candidate = opened["candidate"]
    reference = host.comparable(home, candidate["serve"], gate_digest(candidate["gate"]), now)
    decision = decide(measurement.as_dict(), candidate["gate"]["thresholds"], reference)
    known = record.build(
        serve=candidate["serve"],
        gate=candidate["gate"],
        host=socket.gethostname(),
        now=measured,
        identity=host.identity(candidate),
        measurement=measurement,
        decision=decision,
        suspects=suspects(
            measurement.as_dict(),
            opened["findings"],
            _differences(home, reference, opened),
            decision,
            _context(opened, reference),
        ),
        findings=[Finding(**finding) for finding in opened["findings"]],
        reference=reference,
    )
    known["decided"] = evidence.utc(now)
    return evidence.store(home, known), known


def _differences(home: Home, reference: Optional[Mapping[str, Any]], opened: Entry) -> List[Dict[str, Any]]:
    """What the candidate changed against the last green release, else against what served before."""
    green = None
    if reference and os.path.exists(home.release_spec(reference["release"])):
        green = {
            "serve": read_json(home.release_spec(reference["release"]), "reading the last green release")
        }
    elif opened["previous"]:
        green = {"serve": opened["previous"]["serve"]}
    return differences(green, {"serve": opened["candidate"]["serve"]}) if green else []


def _context(opened: Entry, reference: Optional[Mapping[str, Any]]) -> Dict[str, Any]:
    drafter = opened["candidate"]["serve"]["drafter"] or {}
    return {
        "drafter_overrides": opened.get("drafter_overrides") or {},
        "drafter": drafter.get("config") or {},
        "reference": reference,
    }
