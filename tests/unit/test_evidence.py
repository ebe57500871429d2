"""Evidence: its fields, how it is kept, found again and invalidated."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
from draftgate import evidence, record, spec
from draftgate.canonical import digest
from draftgate.decision import DEFAULTS, decide
from draftgate.findings import Finding
from draftgate.gate import Measurement, summarise
from draftgate.layout import Home
from draftgate.suspects import suspects

from tests.unit.test_suspects import MEASURED

NOW = 1796056205.7  # 2026-11-30T16:30:05Z
IDENTITY = {"gpus": ["NVIDIA RTX A6000"], "driver": "570.86", "engine_build": "0.32.0+cpu"}
SERVE: dict[str, Any] = {
    "engine": {"name": "vllm", "version": "0.32.0"},
    "runtime": {"lock": "l"},
    "target": {"source": "local", "digest": "t"},
    "drafter": {
        "source": "local",
        "digest": "d",
        "config": {
            "dflash_config": {"mask_token_id": 2, "target_layer_ids": [1, 5, 9]},
            "block_size": 8,
            "rope_theta": 10000.0,
            "num_hidden_layers": 3,
        },
    },
    "num_speculative_tokens": 7,
    "served_model_name": "tiny",
    "args": {},
    "environment": {},
}
GATE: dict[str, Any] = {
    "prompts": {"digest": "p"},
    "sampling": {"temperature": 0},
    "template": {},
    "workloads": None,
    "concurrency": 1,
    "thresholds": dict(DEFAULTS),
}
DESIGNED = """verdict release host time engine target drafter num_speculative_tokens acceptance workloads
    baseline thresholds suspects findings""".split()


def build(name: str = "wrong-mask", now: float = NOW, **change: Any) -> dict[str, Any]:
    measurement = Measurement(**MEASURED[name])
    decision = decide(measurement.as_dict(), DEFAULTS)
    told = [Finding("DG206", "error", "drafter.dflash_config.mask_token_id", 2, "no eos", "The mask is eos.")]
    given: dict[str, Any] = {
        "serve": SERVE,
        "gate": GATE,
        "host": "gpu1",
        "now": now,
        "identity": IDENTITY,
        "measurement": measurement,
        "decision": decision,
        "suspects": suspects(measurement.as_dict(), told, [], decision),
        "findings": told,
    }
    return record.build(**{**given, **change})


@pytest.fixture
def home(tmp_path: Path) -> Home:
    return Home.at(str(tmp_path / "home"))


def test_it_has_the_designed_fields_and_is_json() -> None:
    built = build()
    assert set(DESIGNED) <= set(built)
    assert json.loads(json.dumps(built, allow_nan=False)) == built
    assert (built["verdict"], built["host"], built["time"]) == ("fail", "gpu1", "2026-11-30T16:30:05Z")
    assert built["release"] == digest(SERVE)[:12] == built["serve_digest"][:12]
    assert built["drafter"] == {
        "source": "local",
        "digest": "d",
        "mask_token_id": 2,
        "target_layer_ids": [1, 5, 9],
        "block_size": 8,
        "rope_theta": 10000.0,
    }
    assert built["acceptance"]["drafts"] == 3254
    assert built["suspects"][0]["evidence"] == "finding" and built["findings"][0]["code"] == "DG206"
    assert built["settings"] == {
        "sampling": {"temperature": 0},
        "template": {},
        "workloads": None,
        "concurrency": 1,
    }


def test_it_holds_no_text() -> None:
    assert "messages" not in json.dumps(build()) and "content" not in json.dumps(build())


@pytest.mark.parametrize("name", ["healthy", "layer-99", "no-drafts", "no-speculation"])
def test_every_kind_of_measurement_can_be_kept_and_decided_again(home: Home, name: str) -> None:
    built = build(name)
    with open(evidence.store(home, built), encoding="utf-8") as handle:
        stored = json.load(handle)
    assert stored == built
    assert decide(stored, DEFAULTS).verdict == stored["verdict"]


def test_a_stricter_threshold_decides_stored_evidence_anew() -> None:
    stored = build("healthy")
    assert stored["verdict"] == "pass"
    assert decide(stored, {**DEFAULTS, "acceptance_min_mean_length": 7.0}).verdict == "fail"


def test_without_a_drafter() -> None:
    assert (
        build("no-speculation", serve={**SERVE, "drafter": None, "num_speculative_tokens": 0})["drafter"]
        is None
    )


def test_the_reference_is_told_in_short() -> None:
    built = build(reference=build("healthy", now=NOW - 60))
    assert built["reference"]["time"] == "2026-11-30T16:29:05Z"
    assert built["reference"]["mean_acceptance_length"] == pytest.approx(6.0696, abs=1e-4)


def test_the_gate_digest_does_not_know_thresholds() -> None:
    stricter = {**GATE, "thresholds": {"acceptance_min_rate": 0.9}}
    assert spec.gate_digest(stricter) == spec.gate_digest(GATE) == build()["gate_digest"]
    assert spec.gate_digest({**GATE, "concurrency": 2}) != spec.gate_digest(GATE)


# Keeping


def test_two_in_one_second_are_two_files_and_the_later_one_is_the_latest(home: Home) -> None:
    paths = [evidence.store(home, build(name)) for name in ["healthy"] * 10 + ["wrong-mask"]]
    assert len(set(paths)) == 11
    assert os.path.basename(paths[0]) == "20261130T163005Z.json"
    found = evidence.latest(home, build()["release"], build()["gate_digest"], IDENTITY, now=NOW)
    assert found is not None and found["verdict"] == "fail"
    assert sorted(os.listdir(os.path.dirname(paths[0]))) == sorted(map(os.path.basename, paths))


def test_the_latest_is_of_this_release_gate_and_hardware(home: Home) -> None:
    release, gate = build()["release"], build()["gate_digest"]
    evidence.store(home, build("healthy", now=NOW - 100))
    evidence.store(home, build(now=NOW - 50, gate={**GATE, "concurrency": 4}))
    evidence.store(home, build(now=NOW - 40, identity={**IDENTITY, "driver": "580.1"}))
    evidence.store(home, build(now=NOW - 30, serve={**SERVE, "served_model_name": "other"}))
    found = evidence.latest(home, release, gate, IDENTITY, now=NOW)
    assert found is not None and found["time"] == "2026-11-30T16:28:25Z"
    assert evidence.latest(home, "0123456789ab", gate, IDENTITY, now=NOW) is None


@pytest.mark.parametrize(("code", "verdict"), [("DG701", "pass"), ("DG703", "fail")])
def test_an_attempt_that_proved_nothing_hides_no_measurement(home: Home, code: str, verdict: str) -> None:
    """A taken port is the host's affair and cures itself; a contract that the engine refuses does not."""
    problem = {"code": code, "message": "m", "field": "launch", "observed": None, "expected": ""}
    tried = summarise([], 7, problem)
    evidence.store(home, build("healthy", now=NOW - 100))
    evidence.store(
        home, build(now=NOW, measurement=tried, decision=decide(tried.as_dict(), DEFAULTS), suspects=[])
    )
    found = evidence.latest(home, build()["release"], build()["gate_digest"], IDENTITY, now=NOW)
    assert found is not None and found["verdict"] == verdict


def test_what_a_fast_clock_has_dated_does_not_stay_the_newest(home: Home) -> None:
    evidence.store(home, build("healthy", now=NOW))
    evidence.store(home, build("wrong-mask", now=NOW + 86400))
    for now, verdict in ((NOW, "pass"), (NOW + 86400, "fail")):
        found = evidence.latest(home, build()["release"], build()["gate_digest"], IDENTITY, now=now)
        assert found is not None and found["verdict"] == verdict


def test_the_latest_green_is_the_newest_pass_over_all_releases(home: Home) -> None:
    gate = build()["gate_digest"]
    assert evidence.latest_green(home, gate, SERVE["target"], now=NOW) is None
    other = {**SERVE, "served_model_name": "other"}
    evidence.store(home, build("healthy", now=NOW - 100))
    newer = build("healthy", now=NOW - 50, serve=other)
    evidence.store(home, newer)
    evidence.store(home, build("wrong-mask", now=NOW))
    found = evidence.latest_green(home, gate, SERVE["target"], now=NOW)
    assert found is not None and found["time"] == newer["time"]
    another = {**SERVE, "target": {"source": "local", "digest": "another"}}
    evidence.store(home, build("healthy", now=NOW - 10, serve=another))
    same = evidence.latest_green(home, gate, SERVE["target"], now=NOW)
    assert same is not None and same["time"] == newer["time"], "another target is no reference, nor hides one"
    assert evidence.latest_green(home, "another gate", SERVE["target"], now=NOW) is None


def test_a_green_one_without_speculation_is_no_reference(home: Home) -> None:
    evidence.store(home, build("no-speculation"))
    assert evidence.latest_green(home, build()["gate_digest"], SERVE["target"], now=NOW) is None


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b"\xff", b'{"verdict": "pass"}', None])
def test_a_broken_file_is_skipped_and_named(home: Home, content: bytes | None) -> None:
    good = evidence.store(home, build("healthy"))
    broken = os.path.join(os.path.dirname(good), "20261201T000000Z.json")
    if content is None:
        os.mkdir(broken)
    else:
        Path(broken).write_bytes(content)
    named: list[str] = []
    found = evidence.latest(home, build()["release"], build()["gate_digest"], IDENTITY, named, now=NOW)
    assert found is not None and found["verdict"] == "pass"
    assert named == [broken]
    assert evidence.latest_green(home, build()["gate_digest"], SERVE["target"], now=NOW) is not None


def test_what_is_no_evidence_by_name_is_left_alone(home: Home) -> None:
    path = Path(evidence.store(home, build("healthy")))
    path.with_name("notes.txt").write_text("x")
    path.with_name(".20261201T000000Z.1").write_text("x")  # of a store that was killed
    (Path(home.path("evidence")) / "stray.json").write_text("{}")
    named: list[str] = []
    assert evidence.latest_green(home, build()["gate_digest"], SERVE["target"], named, now=NOW) is not None
    assert named == []


# Validity


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({}, ""),
        ({"serve_digest": "x"}, "another release"),
        ({"gate_digest": "x"}, "other prompts or settings"),
        ({"identity": {**IDENTITY, "driver": "580.1"}}, "driver was 570.86 and is 580.1"),
        ({"identity": {**IDENTITY, "gpus": []}}, "gpus was"),
        (
            {"identity": {"gpus": IDENTITY["gpus"], "driver": "570.86"}},
            "engine_build was 0.32.0+cpu and is None",
        ),
        ({"now": NOW + 3600}, ""),
        ({"now": NOW + 86401}, "1.0 days old"),
        ({"now": NOW + 10 * 86400, "max_age_seconds": None}, ""),
        ({"now": NOW - 60}, ""),
        ({"now": NOW - 3600}, "in the future"),
    ],
)
def test_validity(change: dict[str, Any], why: str) -> None:
    built = build("healthy")
    given: dict[str, Any] = {
        "serve_digest": built["serve_digest"],
        "gate_digest": built["gate_digest"],
        "identity": IDENTITY,
        "now": NOW,
        "max_age_seconds": 86400.0,
    }
    valid, said = evidence.valid(built, **{**given, **change})
    assert valid is (why == "")
    assert why in said
