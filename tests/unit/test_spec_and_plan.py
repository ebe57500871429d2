"""The spec's parts, and what a change of each variable costs: the promise behind ``--check --diff``."""

from __future__ import annotations

import math
from typing import Any

import pytest
from draftgate import plan, spec, variables
from draftgate.errors import InputError

from tests.specs import SPEC, changed

# Each variable that reaches the spec: the dotted field it sets, and another value for it.
CHANGES: dict[str, tuple[str, Any]] = {
    "vllm_version": ("serve.engine.version", "0.33.0"),
    "vllm_runtime_lock": ("serve.runtime.lock", "e" * 64),
    "target_path": ("serve.target.digest", "e" * 64),
    "drafter_path": ("serve.drafter.digest", "e" * 64),
    "drafter_overrides": ("serve.drafter.config.dflash_config.mask_token_id", 3),
    "num_speculative_tokens": ("serve.num_speculative_tokens", 5),
    "vllm_served_model_name": ("serve.served_model_name", "other"),
    "vllm_server_args": ("serve.args.dtype", "bfloat16"),
    "vllm_environment": ("serve.environment.A", "2"),
    "vllm_host": ("place.host", "127.0.0.2"),
    "vllm_port": ("place.port", 8010),
    "vllm_candidate_port": ("place.candidate_port", 8002),
    "draftgate_home": ("place.home", "/other"),
    "vllm_runtime_root": ("place.runtimes", "/other"),
    "vllm_runtime_python": ("place.python", "/usr/bin/python3.11"),
    "draftgate_user": ("place.user", "vllm"),
    "draftgate_service_backend": ("place.backend", "supervisord"),
    "vllm_api_key": ("place.secrets.VLLM_API_KEY", "f" * 64),
    "acceptance_prompts": ("gate.prompts.digest", "e" * 64),
    "acceptance_sampling": ("gate.sampling.temperature", 0.5),
    "acceptance_template": ("gate.template.enable_thinking", False),
    "acceptance_workloads": ("gate.workloads", ["code"]),
    "acceptance_concurrency": ("gate.concurrency", 8),
    "acceptance_min_rate": ("gate.thresholds.acceptance_min_rate", 0.3),
    "acceptance_min_mean_length": ("gate.thresholds.acceptance_min_mean_length", 3.0),
    "acceptance_min_position_1": ("gate.thresholds.acceptance_min_position_1", 0.5),
    "acceptance_min_speedup": ("gate.thresholds.acceptance_min_speedup", 1.5),
    "acceptance_min_drafts": ("gate.thresholds.acceptance_min_drafts", 300),
    "acceptance_max_regression": ("gate.thresholds.acceptance_max_regression", 0.2),
}
ACTION_OF_EFFECT = {
    variables.NEW_RELEASE: plan.SWITCH,
    variables.RESTART: plan.SWITCH,
    variables.MEASURE: plan.MEASURE,
    variables.DECIDE: plan.DECIDE,
    variables.TEARDOWN: plan.REFUSE,
    variables.NOTHING: plan.NONE,
}


def serving(**more: Any) -> plan.Facts:
    active = {"deployment": spec.deployment(SPEC)}
    return plan.Facts(**{"active": active, "answers": True, "evidence_valid": True, **more})


def test_every_variable_of_the_table_has_its_row_here() -> None:
    assert set(CHANGES) == {name for name, row in variables.VARIABLES.items() if row.part != variables.NONE}


@pytest.mark.parametrize("name", sorted(CHANGES))
def test_a_change_costs_what_the_table_says(name: str) -> None:
    row, (field, value) = variables.VARIABLES[name], CHANGES[name]
    wished = changed(field, value)
    made = plan.plan_change(wished, {}, serving())
    assert [entry["field"] for entry in made.differs] == [field]
    assert made.differs[0]["effect"] == row.effect
    assert made.action == ACTION_OF_EFFECT[row.effect]
    same_release = spec.release_id(wished["serve"]) == spec.release_id(SPEC["serve"])
    assert same_release == (row.effect != variables.NEW_RELEASE)
    same_process = spec.deployment(wished)["id"] == spec.deployment(SPEC)["id"]
    assert same_process == (row.effect in (variables.MEASURE, variables.DECIDE, variables.NOTHING))
    same_measurement = spec.gate_digest(wished["gate"]) == spec.gate_digest(SPEC["gate"])
    assert same_measurement == (row.effect != variables.MEASURE)


RED = {"time": "2026-11-30T10:00:00Z", "reason": "τ 1.02 is below 2.0"}


@pytest.mark.parametrize(
    ("wished", "options", "facts", "action"),
    [
        (SPEC, {}, serving(), plan.NONE),
        (SPEC, {}, plan.Facts(), plan.SWITCH),
        (SPEC, {}, serving(answers=False), plan.START),
        (SPEC, {}, serving(evidence_valid=False, evidence_why="it is 31 days old"), plan.MEASURE),
        (changed("serve.args.dtype", "x"), {}, serving(red=RED), plan.REFUSE),
        (changed("serve.args.dtype", "x"), {"retry": True}, serving(red=RED), plan.SWITCH),
        (changed("serve.args.dtype", "x"), {"on_failure": "fallback"}, serving(red=RED), plan.REFUSE),
    ],
)
def test_the_cheapest_action(
    wished: dict[str, Any], options: dict[str, Any], facts: plan.Facts, action: str
) -> None:
    assert plan.plan_change(wished, options, facts).action == action


def test_a_standing_fallback_is_not_tried_again_and_says_so() -> None:
    wished = changed("serve.args.dtype", "x")
    active = {"deployment": spec.without_speculation(spec.deployment(wished)), "fallback_of": "r"}
    facts = plan.Facts(active=active, answers=True, evidence_valid=True, red=RED)
    made = plan.plan_change(wished, {"on_failure": "fallback"}, facts)
    assert made.action == plan.NONE and "without speculation" in made.warning and "τ 1.02" in made.warning


@pytest.mark.parametrize(
    ("field", "value", "named"),
    [
        ("serve.num_speculative_tokens", "7", "serve.num_speculative_tokens is '7'"),
        ("serve.num_speculative_tokens", True, "serve.num_speculative_tokens is True"),
        ("place.port", 0, "place.port is 0"),
        ("place.port", 70000, "place.port is 70000"),
        ("place.backend", "docker", "place.backend is 'docker'"),
        ("serve.served_model_name", "", "serve.served_model_name is empty"),
        ("serve.engine", {"name": "vllm"}, "serve.engine.version is absent"),
        ("serve.environment.A", 1, "serve.environment.A is a int, not text"),
        ("gate.thresholds.acceptance_min_rate", math.nan, "gate.thresholds.acceptance_min_rate is nan"),
        ("gate.typo", 1, "gate.typo is not a field"),
    ],
)
def test_a_wrong_field_is_named(field: str, value: Any, named: str) -> None:
    with pytest.raises(InputError) as caught:
        spec.validate(changed(field, value))
    assert named in str(caught.value)


def test_all_wrong_fields_are_named_at_once() -> None:
    wrong = changed("place.port", "x")
    wrong["gate"]["concurrency"] = 0
    del wrong["serve"]["args"]
    with pytest.raises(InputError) as caught:
        spec.validate(wrong)
    assert len(caught.value.details["problems"]) == 3


def test_the_right_spec_is_right() -> None:
    spec.validate(SPEC)


def test_the_release_id_is_the_same_on_every_host() -> None:
    elsewhere = changed("place.home", "/srv/other")
    assert spec.release_id(elsewhere["serve"]) == spec.release_id(SPEC["serve"])
    assert len(spec.release_id(SPEC["serve"])) == 12
