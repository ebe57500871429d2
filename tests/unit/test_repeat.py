"""The command that does a run again: it can be pasted, and no secret is in it."""

from __future__ import annotations

import json
import shlex
from typing import Any

import pytest
from draftgate import repeat
from draftgate.variables import SECRET, VARIABLES

KEY = "sk-0123456789abcdef"
HUB = "hf_abcdefghijklmnopqrstuvwx"


class Vaulted:
    """As Ansible gives a value that is encrypted in a file: no JSON type, and it shows itself as text."""

    def __str__(self) -> str:
        return KEY


def words(given: dict[str, Any], **options: Any) -> list[str]:
    line = repeat.command({"args": ("deploy.yml",), **options}, "gpu1", given, "/srv/draftgate")
    return shlex.split(line)


def told(given: dict[str, Any]) -> dict[str, Any]:
    """The variables of the one JSON among the words."""
    found = [json.loads(word) for word in words(given) if word.startswith("{")]
    assert len(found) <= 1
    return found[0] if found else {}


RETRY = ["-e", "acceptance_retry=true"]


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, ["deploy.yml", "--limit", "gpu1", *RETRY]),
        ({"args": ("playbooks/deploy.yml",)}, ["playbooks/deploy.yml", "--limit", "gpu1", *RETRY]),
        (
            {"args": ("/srv/draftgate/deploy.yml",), "inventory": ("/srv/draftgate/inventory/local",)},
            ["deploy.yml", "-i", "inventory/local", "--limit", "gpu1", *RETRY],
        ),
        (
            {"inventory": ("/etc/hosts.yml", "gpu1,gpu2,")},
            ["deploy.yml", "-i", "/etc/hosts.yml", "-i", "gpu1,gpu2,", "--limit", "gpu1", *RETRY],
        ),
        (
            {"args": ("/srv/draftgate2/deploy.yml",)},
            ["/srv/draftgate2/deploy.yml", "--limit", "gpu1", *RETRY],
        ),
        # A rollback measures always, and knows no retry
        ({"args": ("playbooks/rollback.yml",)}, ["playbooks/rollback.yml", "--limit", "gpu1"]),
        # ansible without a playbook: its argument is a pattern of hosts
        ({"args": "all"}, ["deploy.yml", "--limit", "gpu1", *RETRY]),
        ({"args": None}, ["deploy.yml", "--limit", "gpu1", *RETRY]),
    ],
)
def test_the_command_is_what_was_typed(options: dict[str, Any], expected: list[str]) -> None:
    assert words({}, **options) == ["ansible-playbook", *expected]


@pytest.mark.parametrize(
    ("program", "called"),
    [
        ("/srv/draftgate/.venv/bin/ansible-playbook", ".venv/bin/ansible-playbook"),
        ("/usr/bin/ansible-playbook", "/usr/bin/ansible-playbook"),
        ("/usr/bin/awx-manage", "ansible-playbook"),
    ],
)
def test_ansible_is_called_as_it_was(program: str, called: str) -> None:
    assert repeat.command({}, "gpu1", {}, "/srv/draftgate", program).split()[0] == called


def test_variables_come_back_as_they_were() -> None:
    given = {
        "drafter_overrides": {"dflash_config": {"mask_token_id": 300, "note": "it's; $(ls) `x`"}},
        "vllm_server_args": {"enforce_eager": True, "max_model_len": 1024, "dtype": None},
        "vllm_environment": {"HF_TOKEN_PATH": "/run/token", "TOKENIZERS_PARALLELISM": "false"},
        "num_speculative_tokens": 7,
        "acceptance_workloads": ["prose", "über"],
    }
    assert told(given) == given


def test_what_is_not_ours_and_the_retry_itself_are_left_out() -> None:
    given = {"ansible_password": KEY, "my_own": 1, "acceptance_retry": "true", "vllm_port": 8391}
    assert told(given) == {"vllm_port": 8391}
    assert words(given).count("acceptance_retry=true") == 1


@pytest.mark.parametrize("name", [name for name, row in VARIABLES.items() if row.part == SECRET])
def test_a_secret_is_a_name(name: str) -> None:
    line = words({name: KEY, "vllm_port": 1})
    assert f"{name}=…" in line and not [word for word in line if KEY in word]


def test_a_secret_needs_no_telling_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(VARIABLES, "vllm_greeting", VARIABLES["vllm_api_key"])
    assert "vllm_greeting=…" in words({"vllm_greeting": KEY}) and told({"vllm_greeting": KEY}) == {}


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("vllm_server_args", {"api_key": KEY}),
        ("vllm_server_args", {"api_key": 123456}),
        ("vllm_server_args", {"api_key": ["a", KEY]}),
        ("vllm_server_args", {"deep": [{"hf_token": HUB}]}),
        ("vllm_environment", {"AWS_SECRET_ACCESS_KEY": KEY}),
        ("vllm_environment", {"ANYTHING": HUB}),
        ("vllm_runtime_extra_index", f"https://user:{KEY}@example.org/simple"),
        ("vllm_runtime_find_links", [f"https://user:{KEY}@example.org/wheels"]),
        ("vllm_served_model_name", Vaulted()),
        ("vllm_server_args", {"chat_template": Vaulted()}),
    ],
)
def test_what_looks_like_a_secret_is_not_told(name: str, value: Any) -> None:
    line = repeat.command({}, "gpu1", {name: value}, "/srv")
    assert f"{name}=…" in line
    assert not [secret for secret in (KEY, HUB, "123456") if secret in line]
