"""Suspects: measured and published shapes, changes, overrides and findings, and in which order they come."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from draftgate.decision import DEFAULTS, Decision, decide
from draftgate.findings import Finding
from draftgate.suspects import SHAPES, TOPICS, Suspect, suspects, topic_of

from tests.unit.test_decision import measured

RECORDINGS = Path(__file__).with_name("recordings")
MEASURED: dict[str, Any] = json.loads((RECORDINGS / "measurements-0.32.0.json").read_text("utf-8"))
GREEN = {**MEASURED["healthy"], "release": "0fb9a3a1b1a8", "time": "2026-11-30T16:30:05Z"}
MASK = "serve.drafter.config.dflash_config.mask_token_id"
LAYERS = "serve.drafter.config.dflash_config.target_layer_ids"


def ask(
    measurement: dict[str, Any],
    findings: list[Finding] | None = None,
    differences: list[dict[str, Any]] | None = None,
    thresholds: dict[str, Any] | None = None,
    **context: Any,
) -> list[Suspect]:
    decision = decide(measurement, {**DEFAULTS, **(thresholds or {})}, context.get("reference"))
    assert decision.verdict != "pass", decision
    return suspects(measurement, findings or [], differences or [], decision, context)


def topics(found: list[Suspect]) -> list[str]:
    """The topics of suspects that a shape named."""
    by_cause = {topic.cause: name for name, topic in TOPICS.items()}
    return [by_cause[suspect.cause] for suspect in found if suspect.evidence == "shape"]


def change(field: str, before: Any, after: Any) -> dict[str, Any]:
    return {"field": field, "before": before, "after": after}


def finding(code: str, field: str, severity: str = "error", accepted: str | None = None) -> Finding:
    return Finding(
        code, severity, field, 2, "no eos", f"{field} is wrong. It matters.", "Fix it.", "", accepted
    )


MASK_FIRST = ["mask", "rope", "extraction", "window"]
NOTHING_ACCEPTED = ["mask", "head", "dtype", "method", "weights", "precision", "extraction"]
PUBLISHED: list[tuple[str, list[float], list[str]]] = [
    # What was reported, its per-position rates (rebuilt from τ where only that was told), the first suspects
    ("the incident: wrong mask and layers", [0.079, 0.035, 0.006] + [0.0] * 12, MASK_FIRST),
    ("mask at the eos id, an older pair", [0.133, 0.046, 0.017, 0.008, 0.0, 0.0, 0.0], MASK_FIRST[:2]),
    ("sglang#39087: fc stays random, τ 1.10", [0.08, 0.015, 0.005, 0.0, 0.0, 0.0, 0.0], MASK_FIRST[:3]),
    ("vllm#49559: V2 model runner", [0.0] * 15, NOTHING_ACCEPTED),
    ("vllm PR #46435: lm_head not shared", [0.0] * 7, NOTHING_ACCEPTED[:2]),
    ("vllm#41789: fp8 cache shared, 0.2 %", [0.012, 0.002, 0.0, 0.0, 0.0, 0.0, 0.0], NOTHING_ACCEPTED[:2]),
    ("windows run as full", [0.60, 0.33, 0.17, 0.08, 0.04, 0.02], ["layers", "window", "precision"]),
    ("drafting beyond the trained block", [0.9, 0.85, 0.8, 0.75, 0.01, 0.0, 0.0], ["block"]),
]  # fmt: skip


@pytest.mark.parametrize(("name", "curve", "first"), PUBLISHED, ids=[row[0] for row in PUBLISHED])
def test_published_shapes(name: str, curve: list[float], first: list[str]) -> None:
    found = ask(measured(curve), thresholds={"acceptance_min_mean_length": 5.0})
    assert topics(found)[: len(first)] == first


@pytest.mark.parametrize(
    ("name", "first"),
    [
        ("wrong-mask", "mask"),
        ("rope-theta-1e6", "mask"),
        ("max-position-16", "mask"),
        ("no-drafts", "unengaged"),
        ("no-speculation-wished-7", "unengaged"),
        ("layer-99", "mask"),
    ],
)
def test_measured_shapes_without_anything_else_known(name: str, first: str) -> None:
    assert topics(ask(MEASURED[name]))[0] == first


def test_the_second_suspect_of_a_wrong_rope_is_rope() -> None:
    assert topics(ask(MEASURED["rope-theta-1e6"]))[1] == "rope"


def test_a_good_drafter_has_no_suspects() -> None:
    good = measured([0.93, 0.81, 0.68, 0.56, 0.48])
    assert suspects(good, [finding("DG206", "drafter.x")], [change(MASK, 1, 2)], Decision("pass"), {}) == []


def test_a_pass_with_repeating_text_says_so() -> None:
    found = suspects({**MEASURED["healthy"], "repeating": ["a"]}, [], [], Decision("pass"), {})
    assert topics(found) == ["loop"]


def test_nothing_is_suspected_of_what_was_not_shown() -> None:
    few = measured([0.0] * 7, drafts=10)
    assert suspects(few, [finding("DG206", "drafter.mask_token_id")], [], decide(few, DEFAULTS), {}) == []


# Differences


@pytest.mark.parametrize(
    ("name", "field", "before", "after", "words"),
    [
        ("wrong-mask", MASK, 512, 2, "mask token"),
        ("rope-theta-1e6", "serve.drafter.config.rope_parameters.rope_theta", 1e4, 1e6, "rope"),
        ("layers-plus-1", LAYERS, [1, 5, 9], [2, 6, 10], "target layer ids"),
        ("layers-plus-2", LAYERS, [1, 5, 9], [3, 7, 11], "target layer ids"),
        ("layer-99", LAYERS, [1, 5, 9], [1, 5, 99], "target layer ids"),
        ("max-position-16", "serve.drafter.config.max_position_embeddings", 4096, 16, "reaches less far"),
        ("no-drafts", "serve.args.num_speculative_tokens_per_batch_size", None, [[1, 8, 0]], "never"),
        ("no-speculation-wished-7", "serve.args.disable_log_stats", None, True, "statistics"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("overridden", [True, False])
def test_the_change_since_the_last_green_release_comes_first(
    name: str, field: str, before: Any, after: Any, words: str, overridden: bool
) -> None:
    path = field.replace("serve.drafter.config.", "")
    overrides: dict[str, Any] = {}
    if overridden and path != field:
        inner = overrides
        *parents, leaf = path.split(".")
        for parent in parents:
            inner = inner.setdefault(parent, {})
        inner[leaf] = after
    also = [change("serve.served_model_name", "a", "b"), change("serve.target.digest", "1", "2")]
    found = ask(
        MEASURED[name],
        [],
        [*also, change(field, before, after)],
        reference=GREEN,
        drafter_overrides=overrides,
    )
    assert found[0].evidence == "difference"
    assert words in found[0].cause and str(after) in found[0].cause
    assert str(before) in found[0].next or before is None
    assert ("drafter_overrides" in found[0].cause) == bool(overrides)
    assert "served_model_name" in found[-1].cause and "served_model_name" not in found[0].cause


def test_a_change_that_cannot_stop_drafting_does_not_explain_its_absence() -> None:
    found = ask(MEASURED["no-drafts"], [], [change(MASK, 512, 2)], reference=GREEN)
    assert topics(found)[0] == "unengaged" and found[0].evidence == "shape"
    assert "mask_token_id" in found[-1].cause


def test_two_changed_fields_of_one_topic_are_two_suspects() -> None:
    changes = [
        change("serve.drafter.config.sliding_window", 2048, None),
        change("serve.drafter.config.layer_types", ["a"], None),
    ]
    found = ask(MEASURED["layers-plus-1"], [], changes, reference=GREEN)
    assert [suspect.cause.split(" ")[0] for suspect in found[:2]] == ["sliding_window", "layer_types"]


# Overrides


def test_an_override_is_suspected_without_a_green_release() -> None:
    overrides = {"rms_norm_eps": 1e-6, "dflash_config": {"mask_token_id": 2}}
    found = ask(
        MEASURED["wrong-mask"],
        [finding("DG206", "drafter.dflash_config.mask_token_id")],
        drafter_overrides=overrides,
    )
    assert found[0].cause == "drafter_overrides sets dflash_config.mask_token_id to 2 (mask token)"
    assert "DG206" in found[0].why
    assert "rms_norm_eps" in found[1].cause


def test_an_override_that_was_green_already_comes_late() -> None:
    overrides = {"dflash_config": {"mask_token_id": 512}}
    changed = [change("serve.engine.version", "0.31.0", "0.32.0")]
    found = ask(MEASURED["wrong-mask"], [], changed, reference=GREEN, drafter_overrides=overrides)
    assert "0.31.0" in found[0].cause
    assert all("drafter_overrides" not in suspect.cause for suspect in found[:3])


# Findings


def test_findings_come_before_the_shape_and_accepted_ones_are_told() -> None:
    found = ask(
        MEASURED["wrong-mask"], [finding("DG206", "drafter.dflash_config.mask_token_id", accepted="we know")]
    )
    assert (found[0].evidence, found[0].next) == ("finding", "Fix it.")
    assert "DG206" in found[0].why and "accepted: we know" in found[0].why
    assert topics(found)[0] == "head"  # the mask is not named twice


def test_findings_that_fit_the_shape_come_first() -> None:
    told = [
        finding("DG217", "drafter.num_target_layers"),
        finding("DG228", "drafter.rope_theta", "warning"),
        finding("DG301", "target.tokenizer", "warning"),
        finding("DG150", "gpu.driver"),
    ]
    found = ask(MEASURED["rope-theta-1e6"], told)
    assert [suspect.why[:5] for suspect in found if suspect.evidence == "finding"] == [
        "DG228",
        "DG217",
        "DG301",
    ]


def test_a_hint_counts_only_where_the_shape_agrees() -> None:
    hint = finding("DG215", "drafter.dflash_config.target_layer_ids", "info")
    assert all("DG215" not in suspect.why for suspect in ask(MEASURED["wrong-mask"], [hint]))
    weak = measured([0.6, 0.3, 0.15, 0.05], k=4)
    assert "DG215" in ask(weak, [hint], thresholds={"acceptance_min_mean_length": 3})[0].why


def test_what_is_as_expected_is_no_suspect() -> None:
    """DG420 says of the engine's verification that it is not the cause."""
    cleared: Any = finding("DG420", "engine.verification", "info").as_dict()
    cleared["observed"] = cleared["expected"] = "a linear chain of drafts"
    assert all("DG420" not in suspect.why for suspect in ask(MEASURED["wrong-mask"], [cleared]))


def test_findings_may_be_stored_ones() -> None:
    stored = [finding("DG206", "drafter.dflash_config.mask_token_id").as_dict()]
    decision = decide(MEASURED["wrong-mask"], DEFAULTS)
    assert suspects(MEASURED["wrong-mask"], stored, [], decision)[0].evidence == "finding"


# Shapes that need more than a curve


def test_a_drafter_that_cannot_reach_the_prompts_is_named_with_figures() -> None:
    found = ask(MEASURED["max-position-16"], drafter={"max_position_embeddings": 16})
    assert topics(found)[0] == "length"
    assert "16" in found[0].why and "40 tokens" in found[0].why
    assert topics(ask(MEASURED["wrong-mask"], drafter={"max_position_embeddings": 4096}))[0] == "mask"


def test_no_drafts_and_a_short_drafter() -> None:
    found = ask(MEASURED["no-drafts"], drafter={"max_position_embeddings": 16})
    assert topics(found)[:2] == ["length", "unengaged"]


@pytest.mark.parametrize(
    ("scale", "decay", "first"),
    [(0.9, 1.0, "layers"), (0.5, 1.0, "template"), (0.9, 0.9, "layers")],
)
def test_against_the_reference(scale: float, decay: float, first: str) -> None:
    curve = [rate * scale * decay**place for place, rate in enumerate(GREEN["acceptance"]["per_position"])]
    strict = {"acceptance_max_regression": 0.0}
    assert topics(ask(measured(curve), thresholds=strict, reference=GREEN))[0] == first


def kind(name: str, tau: float, longest: int) -> dict[str, Any]:
    return {"workload": name, "drafts": 100, "mean_acceptance_length": tau, "longest_prompt": longest}


@pytest.mark.parametrize(
    ("more", "first"),
    [
        ({"workloads": [kind("short", 6.0, 200), kind("long", 1.8, 16000)]}, "window"),
        ({"passes": [{"mean_acceptance_length": 3.0}, {"mean_acceptance_length": 1.1}]}, "prefix"),
        ({"repeating": ["a"]}, "loop"),
        ({"baseline": {"tokens_per_second": 900.0}}, "load"),
    ],
)
def test_what_other_figures_show(more: dict[str, Any], first: str) -> None:
    thresholds = {
        "acceptance_min_mean_length": 4.5,
        "acceptance_min_speedup": 1.1 if "baseline" in more else None,
    }
    assert topics(ask(measured([0.9, 0.8, 0.7, 0.6], **more), thresholds=thresholds))[0] == first


# The tables


def test_every_shape_names_known_topics_and_every_topic_is_complete() -> None:
    for shape in SHAPES:
        assert set(shape.topics) <= set(TOPICS), shape.shows
    for name, topic in TOPICS.items():
        assert topic.cause and topic.why and topic.next.endswith("."), name
        re.compile(topic.fields)


@pytest.mark.parametrize(
    ("field", "topic"),
    [
        (MASK, "mask"),
        ("drafter.mask_token_id", "mask"),
        (LAYERS, "layers"),
        ("serve.drafter.config.rope_scaling", "rope"),
        ("serve.drafter.config.rope_parameters.rope_theta", "rope"),
        ("serve.drafter.config.block_size", "block"),
        ("serve.args.block_size", None),  # the KV cache's
        ("serve.num_speculative_tokens", "block"),
        ("serve.drafter.config.num_attention_heads", "architecture"),
        ("serve.drafter.config.something_new", "architecture"),
        ("serve.drafter.digest", "weights"),
        ("serve.drafter", "method"),
        ("serve.target.digest", "target"),
        ("serve.engine.version", "extraction"),
        ("serve.runtime.lock", "extraction"),
        ("serve.environment.VLLM_USE_V2_MODEL_RUNNER", "extraction"),
        ("serve.environment.VLLM_CPU_KVCACHE_SPACE", None),
        ("serve.args.max_model_len", "length"),
        ("serve.args.kv_cache_dtype", "precision"),
        ("gate.template.enable_thinking", "template"),
        ("gate.sampling.temperature", "temperature"),
        ("place.port", None),
        ("serve.served_model_name", None),
    ],
)
def test_fields_have_their_topic(field: str, topic: str | None) -> None:
    assert topic_of(field) == topic
