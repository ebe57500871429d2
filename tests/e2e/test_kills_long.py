"""Every state killed on its own, everything killed at random moments, and the endings that are rarely wished.

Two good releases take turns, so that every case is a real switch with one engine start. About an hour; a
case that has passed is not run again until the code changes.
"""

from __future__ import annotations

import os
import random
import socket
import sys
import time
from collections.abc import Iterator
from typing import Any

import pytest

from tests.e2e.conftest import Install
from tests.e2e.faults import (
    assert_settled,
    deploy_with_killed_job,
    kill_everything,
    killed_controller,
)
from tests.e2e.installation import Installation, until

pytestmark = [pytest.mark.real, pytest.mark.long, pytest.mark.timeout(2400)]

STATES = ("prepared", "previous_stopped", "started", "gated", "activated")
SEED = int(os.environ.get("DRAFTGATE_SEED", "20261130"))
RED: dict[str, Any] = {
    "drafter_overrides": {"dflash_config": {"mask_token_id": 300}},
    "drafter_accept_findings": [{"code": "DG207", "reason": "a red switch is wanted"}],
    "acceptance_workloads": ["json"],
    "acceptance_retry": True,  # every case measures it anew
}


@pytest.fixture(scope="module")
def installation(install: Install) -> Installation:
    return install("long")


@pytest.fixture
def at(installation: Installation) -> Iterator[Installation]:
    """A good release serves, whichever of the two."""
    wish = {"num_speculative_tokens": _k(installation)} if os.path.exists(installation.home.active) else {}
    done = installation.deploy(wish)
    assert done.code == 0, done
    installation.assert_one_serves(_release(installation))
    yield installation


def _k(at: Installation) -> int:
    return int(at.active()["deployment"]["serve"]["num_speculative_tokens"]) or 7


def _release(at: Installation) -> str:
    return str(at.active()["deployment"]["release"])


def the_other(at: Installation) -> dict[str, Any]:
    return {"num_speculative_tokens": 13 - _k(at)}


@pytest.mark.parametrize("state", STATES)
def test_controller_killed(at: Installation, state: str) -> None:
    before, wish = _release(at), the_other(at)
    with killed_controller(at, wish, state):
        pass
    assert _release(at) != before
    assert_settled(at, wish, _release(at))


@pytest.mark.parametrize("state", STATES)
def test_job_killed(at: Installation, state: str) -> None:
    before, wish = _release(at), the_other(at)
    done = deploy_with_killed_job(at, "deploy.yml", wish, state)
    assert done.code == 0, done
    assert _release(at) != before
    assert_settled(at, wish, _release(at))


def test_job_killed_when_it_has_restored(at: Installation) -> None:
    before, wish = _release(at), {"num_speculative_tokens": _k(at)}
    done = deploy_with_killed_job(at, "deploy.yml", {**wish, **RED}, "restored")
    assert f"Release {before} serves." in done.error()
    assert_settled(at, wish, before)


@pytest.mark.parametrize("state", STATES)
def test_everything_killed(at: Installation, state: str) -> None:
    """Without an init nobody starts the service manager again: the host's own command does."""
    before, wish = _release(at), the_other(at)
    at.hold(state)
    controller = at.start("deploy.yml", wish)
    at.wait_for(state)
    controller.kill()
    kill_everything(at)
    at.release_hold(state)
    recovered = at.command("recover", seconds=600)
    assert recovered.returncode == 0, recovered
    at.assert_one_serves(before, _release(at))
    done = at.deploy(wish)
    assert done.code == 0, done
    assert_settled(at, wish, _release(at))


@pytest.mark.parametrize("number", range(10))
def test_everything_killed_at_a_random_moment(at: Installation, number: int) -> None:
    wish, before = the_other(at), _release(at)
    stages = at.status()["last_switch"]["stages"]
    # Ansible's own part before and after the switch takes about as long as half a quiet start.
    moment = random.Random(f"{SEED} {number}").uniform(0, 20 + sum(stages.values()))
    sys.stdout.write(f"seed {SEED}, case {number}: killed after {moment:.2f} s of {stages}\n")
    controller = at.start("deploy.yml", wish)
    time.sleep(moment)
    controller.kill()
    kill_everything(at)
    done = at.deploy(wish)
    assert done.code == 0, done
    assert _release(at) != before
    assert_settled(at, wish, _release(at))


def test_time_limit_restores_though_nobody_is_there(at: Installation) -> None:
    before, wish = _release(at), {"num_speculative_tokens": _k(at)}
    at.hold("previous_stopped")
    controller = at.start("deploy.yml", {**the_other(at), "draftgate_switch_time_limit": "20 s"})
    at.wait_for("previous_stopped")
    controller.kill()
    until(lambda: at.journal()[-1]["state"] == "restored", 600, "the restore")
    at.release_hold("previous_stopped")
    at.wait_settled()
    assert at.journal()[-1]["cause"] == "time_limit"
    assert_settled(at, wish, before)


def test_port_of_the_candidate_in_use(at: Installation) -> None:
    before, wish = _release(at), {"num_speculative_tokens": _k(at)}
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        done = at.deploy({**wish, "vllm_port": port})
    assert f"port {port} is taken by pid {os.getpid()}" in done.error()
    assert_settled(at, wish, before)


def test_stop_leaves_nothing_serving_and_a_good_wish_serves_again(at: Installation) -> None:
    wish = {"num_speculative_tokens": _k(at)}
    done = at.deploy({**wish, **RED, "acceptance_on_failure": "stop"})
    assert "Nothing serves." in done.error()
    assert at.engines() == set() and not os.path.exists(at.home.active)
    assert at.playbook("status").code != 0
    back = at.deploy(wish)
    assert back.code == 0, back
    assert_settled(at, wish, _release(at))
