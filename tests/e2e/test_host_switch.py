"""A host behind its front, as its clients see it: two ways to switch, both under load, and a reboot."""

from __future__ import annotations

import socket
from collections.abc import Callable
from typing import Any

import pytest

from tests.e2e.installation import until
from tests.e2e.remote import PORTS, Remote, switched_under_load

pytestmark = [pytest.mark.real, pytest.mark.timeout(1200)]

RED: dict[str, Any] = {
    "num_speculative_tokens": 5,
    "drafter_overrides": {"dflash_config": {"mask_token_id": 300}},
    "drafter_accept_findings": [{"code": "DG207", "reason": "to see it measured"}],
    "acceptance_workloads": ["json"],
}
BESIDE, IN_PLACE = {"draftgate_strategy": "side_by_side"}, {"draftgate_strategy": "in_place"}


@pytest.fixture(scope="module")
def remote(remote_host: Callable[..., Remote]) -> Remote:
    """A host with the tiny pair's release behind its front."""
    made = remote_host("switch")
    done = made.deploy({"num_speculative_tokens": 7})
    assert done.code == 0, done
    return made


def test_only_the_front_is_public(remote: Remote) -> None:
    remote.assert_one_serves(remote.status()["release"])
    listening = remote.sudo("ss -Hltn | awk '{print $4}'").split()
    public = {int(each.rpartition(":")[2]) for each in listening if not each.startswith(("127.", "[::1]"))}
    assert public == {22, 8080}
    for port in PORTS:
        with pytest.raises(OSError):
            socket.create_connection((remote.host.address, port), timeout=5)


def test_again_changes_nothing_and_takes_seconds(remote: Remote) -> None:
    before = remote.engines()
    done = remote.deploy({"num_speculative_tokens": 7}, "-vvv")
    assert done.code == 0 and done.recap(remote.host.name)["changed"] == 0, done
    assert done.seconds <= 12 and done.output.count("SSH: EXEC") <= 10
    assert remote.engines() == before


def test_a_switch_beside_the_release_costs_no_client_a_request(remote: Remote) -> None:
    done, tally = switched_under_load(remote, {"num_speculative_tokens": 6, **BESIDE})
    assert done.code == 0, done
    assert (tally.failures, tally.count("refused")) == ([], 0) and tally.count("ok") > 50, str(tally)
    remote.assert_one_serves(remote.active()["deployment"]["release"])


def test_a_red_candidate_beside_it_costs_nobody_anything(remote: Remote) -> None:
    before, engines = remote.active()["deployment"]["release"], remote.engines()
    done, tally = switched_under_load(remote, {**RED, **BESIDE})
    assert f"Release {before} serves." in done.error(remote.host.name)
    assert (tally.failures, tally.count("refused")) == ([], 0), str(tally)
    assert remote.engines() == engines, "the same process"
    remote.assert_one_serves(before)


def test_in_place_every_refusal_is_clean_and_no_longer_than_it_takes(remote: Remote) -> None:
    done, tally = switched_under_load(remote, {"num_speculative_tokens": 7, **IN_PLACE})
    assert done.code == 0, done
    assert tally.failures == [] and tally.count("refused") > 0, str(tally)
    stages = remote.status()["last_switch"]["stages"]
    assert tally.downtime() <= 1.1 * (stages["started"] + stages["gated"]), (tally.downtime(), stages)


def test_a_rebooted_host_serves_again_without_anybody(remote: Remote) -> None:
    release = remote.active()["deployment"]["release"]
    remote.host.reboot()
    until(lambda: remote.status()["serving"], 300, "the activated release after a reboot")
    remote.assert_one_serves(release)
    done = remote.deploy({"num_speculative_tokens": 7})
    assert done.code == 0 and done.recap(remote.host.name)["changed"] == 0, done


def test_teardown_leaves_no_unit_port_or_front(remote: Remote) -> None:
    done = remote.playbook("teardown", {"draftgate_purge": True})
    assert done.code == 0, done
    assert remote.processes() == set() and remote.listening() == set()
    left = remote.sudo(
        "ls -d /etc/systemd/system/draftgate-* /etc/nginx/conf.d/draftgate-* 2>/dev/null; true"
    )
    assert left == "" and remote.sudo("systemctl list-units --plain --no-legend 'draftgate-*'") == ""
    assert remote.sudo("ls -A /var/lib/draftgate 2>/dev/null; true") == ""
    with pytest.raises(OSError):
        socket.create_connection((remote.host.address, 8080), timeout=5)
