"""What can break while a host switches: the first rows in `make test`, every one in `make test-long`.

After each: exactly one gated release behind the front, no process or port of another, and a re-run converges.
Two good releases take turns, so that every row is a real switch.
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.e2e.installation import Done, Playbook, until
from tests.e2e.remote import HOME, PORTS, Remote

pytestmark = [pytest.mark.real, pytest.mark.timeout(1500)]

STATES = ("prepared", "previous_stopped", "started", "gated", "activated")
RED: dict[str, Any] = {
    "drafter_overrides": {"dflash_config": {"mask_token_id": 300}},
    "drafter_accept_findings": [{"code": "DG207", "reason": "a red switch is wanted"}],
    "acceptance_workloads": ["json"],
    "acceptance_retry": True,  # every row measures it anew
}
LINK_SECONDS = 30


class Fault:
    """What breaks while the host is held in a state; ``strike`` returns what heals it."""

    def __init__(self, at: Remote, controller: Playbook, state: str) -> None:
        self.at, self.controller, self.state = at, controller, state

    def server(self) -> int:
        """The main process of the candidate."""
        candidate = self.at.journal()[0]["candidate"]["id"]
        return self.at.engines()[candidate]


Strike = Callable[[Fault], Callable[[], None] | None]


def controller_killed(fault: Fault) -> None:
    fault.controller.wait_for_line("TASK [vllm_server : Switch to")
    fault.controller.kill()


def job_killed(fault: Fault) -> None:
    before = fault.at.job()
    fault.at.sudo(f"kill -9 {before}")
    until(lambda: fault.at.job() not in (0, before), 60, "the job, started again")


def host_terminated(fault: Fault) -> None:
    fault.at.host.kill()
    fault.at.host.boot()


def server_killed(fault: Fault) -> None:
    fault.at.sudo(f"kill -9 {fault.server()}")


def server_wedged(fault: Fault) -> None:
    fault.at.sudo(f"kill -STOP {fault.server()}")


def port_stolen(fault: Fault) -> Callable[[], None]:
    """By a process that is none of ours, on every port that a candidate could take now."""
    listener = (
        "import socket, sys, time\n"
        "for port in map(int, sys.argv[1:]):\n"
        "    s = socket.socket(); s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)\n"
        "    try: s.bind(('127.0.0.1', port)); s.listen()\n"
        "    except OSError: continue\n"
        "    globals()[f's{port}'] = s\n"
        "time.sleep(3600)"
    )
    ports = " ".join(map(str, PORTS))
    fault.at.sudo(f'systemd-run --unit=thief python3 -c "{listener}" {ports}')

    def heal() -> None:
        fault.at.sudo("systemctl stop thief", check=False)

    return heal


def disk_full(fault: Fault) -> Callable[[], None]:
    ballast = HOME.path("run", "ballast")
    fault.at.sudo(f"dd if=/dev/zero of={ballast} bs=64k 2>/dev/null; sync; true")

    def heal() -> None:
        fault.at.sudo(f"rm -f {ballast}")

    return heal


def link_down(fault: Fault) -> None:
    fault.at.host.cut(LINK_SECONDS)


def sshd_stopped(fault: Fault) -> None:
    """No new connection until it starts again by itself; the one that is open stays."""
    fault.at.sudo(f"systemd-run --on-active={LINK_SECONDS} systemctl start ssh")
    fault.at.sudo("systemctl stop ssh.socket ssh; true", check=False)


def second_deploy(fault: Fault) -> None:
    """Another wish meanwhile is refused and names the holder; the first goes on."""
    refused = fault.at.deploy({"num_speculative_tokens": 3})
    held = fault.at.journal()[0]["switch"]
    assert held in refused.told and refused.code != 0, refused


FAULTS: dict[str, Strike] = {
    strike.__name__: strike
    for strike in (
        controller_killed,
        job_killed,
        host_terminated,
        server_killed,
        server_wedged,
        port_stolen,
        disk_full,
        link_down,
        sshd_stopped,
        second_deploy,
    )
}
WAYS = ("in_place", "side_by_side")
IN_MAKE_TEST = {
    ("side_by_side", "prepared", "second_deploy"),
    ("in_place", "previous_stopped", "port_stolen"),
}
"""The other rows are of `make test-long`."""
STRIKES_THE_MEASURED = ("server_killed", "server_wedged")
"""A candidate that dies while it is measured is red, whoever killed it: the next run has to ask once more."""


def _possible(way: str, state: str, name: str) -> bool:
    """Beside a release nothing is stopped first; and what does not run cannot be killed."""
    if state == "previous_stopped":
        return way == "in_place" and name not in ("server_killed", "server_wedged")
    return True


TABLE = [
    pytest.param(*row, id="-".join(row), marks=() if row in IN_MAKE_TEST else pytest.mark.long)
    for row in itertools.product(WAYS, STATES, FAULTS)
    if _possible(*row)
]


@pytest.fixture(scope="module")
def remote(remote_host: Callable[..., Remote]) -> Remote:
    """A host with a front and a small disk, and a good release on it."""
    return remote_host("faults", disk_mib=256)


@pytest.fixture
def at(remote: Remote) -> Iterator[Remote]:
    """A good release serves, whichever of the two."""
    done = remote.deploy({"num_speculative_tokens": _k(remote)})
    assert done.code == 0, done
    remote.assert_one_serves(_release(remote))
    yield remote


def _k(at: Remote) -> int:
    with contextlib.suppress(Exception):
        return int(at.active()["deployment"]["serve"]["num_speculative_tokens"]) or 7
    return 7


def _release(at: Remote) -> str:
    return str(at.active()["deployment"]["release"])


def switched_with(at: Remote, wish: dict[str, Any], state: str, strike: Strike) -> Done | None:
    """A switch that is held in ``state`` while the fault strikes; None when its controller was killed."""
    at.hold(state)
    controller = at.start("deploy.yml", wish)
    at.wait_for(state)
    heal = strike(Fault(at, controller, state))
    with contextlib.suppress(Exception):
        at.release_hold(state)
    done = None if strike is controller_killed else controller.wait()
    until(lambda: at.host.reachable(), 120, "the host")
    at.release_hold(state)
    if heal:
        heal()
    at.wait_ended()
    return done


@pytest.mark.parametrize(("way", "state", "name"), TABLE)
def test_after_a_fault_one_gated_release_serves_and_a_rerun_converges(
    at: Remote, way: str, state: str, name: str
) -> None:
    before, wish = _release(at), {"num_speculative_tokens": 13 - _k(at), "draftgate_strategy": way}
    done = switched_with(at, wish, state, FAULTS[name])
    if name == "port_stolen" and way == "in_place" and not at.engines():
        # While a stranger holds its only port nothing can serve there: that is said, with the holder.
        assert done is not None and "is taken by pid" in done.told and "Nothing serves." in done.told
    else:
        at.wait_serving()
        at.assert_one_serves(before, _release(at))
        assert at.status()["evidence"]["verdict"] == "pass"
    if done is not None and done.code == 0:
        assert _release(at) != before, "a green deploy that changed nothing"
    again = at.deploy({**wish, "acceptance_retry": name in STRIKES_THE_MEASURED})
    assert again.code == 0, again
    assert _release(at) != before
    at.assert_one_serves(_release(at))
    quiet = at.deploy(wish)
    assert quiet.code == 0 and quiet.recap(at.host.name)["changed"] == 0, quiet


@pytest.mark.long
def test_a_job_that_is_killed_when_it_has_restored(at: Remote) -> None:
    before = _release(at)
    done = switched_with(at, {"num_speculative_tokens": _k(at), **RED}, "restored", job_killed)
    assert done is not None and f"Release {before} serves." in done.error(at.host.name)
    at.assert_one_serves(before)
