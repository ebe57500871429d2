"""The story of a host on which the first deploy goes wrong: nothing is left half-done, and fallback serves.

Engine starts: 3 (one that never drafts, one with a bad mask, one without speculation).
"""

from __future__ import annotations

import os
import socket
from typing import Any

import pytest
from draftgate import processes

from tests.e2e.conftest import Install
from tests.e2e.installation import Installation

pytestmark = [pytest.mark.real, pytest.mark.timeout(1800)]

# One kind of prompts is enough to see that nothing is accepted, and takes seconds in place of a minute.
BRIEF = {"acceptance_workloads": ["json"]}
ARGS: dict[str, Any] = {"dtype": "float32", "max_model_len": 1024, "max_num_seqs": 8, "enforce_eager": True}


@pytest.fixture(scope="module")
def bare(install: Install) -> Installation:
    """Without an API key."""
    return install("bare")


def test_port_in_use_names_who_holds_it(bare: Installation) -> None:
    with socket.create_server(("127.0.0.1", bare.port)):
        done = bare.deploy()
    told = done.error()
    assert f"port {bare.port} is taken by pid {os.getpid()}" in told
    assert "Nothing serves." in told
    assert bare.engines() == set() and bare.job() == set()
    assert not os.path.exists(bare.home.agent_current), "seen before anything is fetched or installed"


def test_server_that_never_drafts_fails_and_nothing_is_left_serving(bare: Installation) -> None:
    """One token a step leaves the scheduler no room for a draft: healthy, right answers, no speculation."""
    done = bare.deploy({**BRIEF, "vllm_server_args": {**ARGS, "max_num_scheduled_tokens": 1}})
    assert "Nothing serves." in done.error()
    tried = bare.evidence("last_attempt")
    assert tried["verdict"] == "fail"
    assert [reason["code"] for reason in tried["reasons"]] == ["DG801"]
    assert tried["generation_tokens"] > 0 and tried["acceptance"]["drafts"] == 0
    causes = [suspect["cause"] for suspect in tried["suspects"]]
    assert "trims drafts in a full step" in causes[0], "the files said it before the start"
    assert causes[1].startswith("speculation never engaged")
    assert bare.engines() == set() and processes.port_free("127.0.0.1", bare.port)
    state = bare.status()
    assert not state["serving"] and state["release"] is None
    assert bare.playbook("status").code != 0


def test_fallback_serves_the_target_without_speculation_and_says_so(bare: Installation) -> None:
    wish = {
        **BRIEF,
        "acceptance_on_failure": "fallback",
        "drafter_overrides": {"dflash_config": {"mask_token_id": 300}},
        "drafter_accept_findings": [{"code": "DG207", "reason": "to have something to fall back from"}],
    }
    done = bare.deploy(wish)
    assert done.code == 0, done
    assert "WARNING: The target serves WITHOUT speculation" in done.told
    tried = bare.evidence("last_attempt")
    assert tried["verdict"] == "fail"
    state = bare.status()
    assert state["serving"] and not state["speculation"]
    assert state["fallback_of"] == tried["release"] != state["release"]
    assert "WITHOUT speculation" in bare.command("status").stdout
    assert len(bare.engines()) == 1 and bare.ask()["choices"]
    assert "--speculative-config" not in processes.command(bare.engine()[0])

    engine = bare.engine()
    again = bare.deploy(wish)
    assert again.code == 0 and again.recap()["changed"] == 0, again
    assert "refused" in again.told and "the target serves without speculation" in again.told
    assert bare.engine() == engine
