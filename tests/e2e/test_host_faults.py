"""What can break while a host switches: one fault per journal state in `make test`, all in `make test-long`.

After each: exactly one gated release behind the front, no process or port of another, and a re-run converges.
Two good releases take turns, so that every row is a real switch; a row of ``restored`` has a red candidate.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import pytest

from tests.e2e.installation import Done, Playbook, until
from tests.e2e.remote import HOME, PORTS, Remote

pytestmark = [pytest.mark.real, pytest.mark.timeout(1500)]

STATES = ("prepared", "previous_stopped", "started", "gated", "activated", "restored")
SHORT_GATE: dict[str, Any] = {"acceptance_workloads": ["arithmetic"], "acceptance_min_drafts": 100}
"""A gate like any other, in 4 s: what it finds is not the question here."""
RED: dict[str, Any] = {
    "drafter_overrides": {"dflash_config": {"mask_token_id": 300}},
    "drafter_accept_findings": [{"code": "DG207", "reason": "a red switch is wanted"}],
    "acceptance_retry": True,  # every row measures it anew
}
SWITCHING = "TASK [vllm_server : Switch to"
LINK_SECONDS = 30
SSHD_SECONDS = 12
DISK_SECONDS = 12


class Fault:
    """What breaks while the host is held in a state; ``strike`` returns what heals it."""

    def __init__(self, at: Remote, controller: Playbook, state: str) -> None:
        self.at, self.controller, self.state = at, controller, state

    def signal(self, name: str) -> None:
        """To the candidate while it is measured; in the other states to the server that runs."""
        opened, engines = self.at.journal()[0], self.at.engines()
        candidate, previous = opened["candidate"]["id"], opened["previous"]["id"]
        kill = f"kill -{name} {engines.get(candidate) or engines[previous]}"
        if self.state != "started":
            self.at.sudo(kill)
            return
        gate = f"until grep -q '.stage.: .gate.' {HOME.progress_of('switch')}; do sleep 0.05; done"
        self.at.sudo(f"rm {self.at.hold_file(self.state)}; {gate}; {kill}")

    def alone(self) -> None:
        """The host goes on in a moment, when nobody can ask it."""
        self.at.sudo(f"systemd-run --on-active=5 rm {self.at.hold_file(self.state)}")


Strike = Callable[[Fault], Callable[[], None] | None]


def controller_killed(fault: Fault) -> None:
    fault.controller.wait_for_line(SWITCHING)
    fault.controller.kill()


def job_killed(fault: Fault) -> None:
    before = fault.at.job()
    fault.at.sudo(f"kill -9 {before}")
    until(lambda: fault.at.job() not in (0, before), 60, "the job, started again")


def host_terminated(fault: Fault) -> None:
    fault.at.host.kill()
    fault.at.host.boot()


def server_killed(fault: Fault) -> None:
    fault.signal("KILL")


def server_wedged(fault: Fault) -> None:
    fault.signal("STOP")


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


def disk_full(fault: Fault) -> None:
    """To the last block (a large write leaves room for one of our files), until somebody makes room."""
    ballast = HOME.path("run", "ballast")
    fill = "; ".join(
        f"dd if=/dev/zero of={ballast}.{size} bs={size} 2>/dev/null; sync" for size in ("64k", "1k")
    )
    fault.at.sudo(f"{fill}; ! echo full > {ballast}")
    fault.at.sudo(f"systemd-run --on-active={DISK_SECONDS} sh -c 'rm {ballast}*'")


def link_down(fault: Fault) -> None:
    fault.alone()
    fault.at.host.cut(LINK_SECONDS)


def sshd_stopped(fault: Fault) -> None:
    """No new connection until it starts again by itself; the one that is open stays."""
    fault.alone()
    fault.at.sudo(f"systemd-run --on-active={SSHD_SECONDS} systemctl start ssh")
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

Attempt = tuple[tuple[str, str], ...]
"""The states of one switch and what breaks in each; the next attempt wishes the same again."""


def _possible(way: str, state: str, name: str) -> bool:
    """Beside a release nothing is stopped first; and what does not run cannot be killed."""
    if state == "previous_stopped":
        return way == "in_place" and name not in ("server_killed", "server_wedged")
    return True


EVERY_STATE: Attempt = (
    ("prepared", "controller_killed"),
    ("previous_stopped", "link_down"),
    ("started", "job_killed"),
    ("gated", "sshd_stopped"),
    ("activated", "second_deploy"),
)
THREE_ATTEMPTS: list[Attempt] = [
    (("prepared", "port_stolen"),),
    (("started", "server_killed"),),
    (("gated", "disk_full"),),
]
RESTORED: Attempt = (("restored", "host_terminated"),)
IN_MAKE_TEST = [
    pytest.param("in_place", [EVERY_STATE], id="in_place-survived"),
    pytest.param("side_by_side", THREE_ATTEMPTS, id="side_by_side-tried_again"),
    pytest.param("side_by_side", [RESTORED], id="side_by_side-restored"),
]
"""Each state, and as many faults as six minutes hold. One by one they are in `make test-long`."""
ALONE = [
    pytest.param(way, [((state, name),)], id=f"{way}-{state}-{name}", marks=pytest.mark.long)
    for way, state, name in itertools.product(WAYS, STATES, FAULTS)
    if _possible(way, state, name)
]


@pytest.fixture(scope="module")
def remote(remote_host: Callable[..., Remote]) -> Remote:
    """A host with a front and a small disk, and a good release on it."""
    made = remote_host("faults", disk_mib=256, **SHORT_GATE)
    done = made.deploy({"num_speculative_tokens": 7})
    assert done.code == 0, done
    return made


@pytest.fixture
def at(remote: Remote) -> Remote:
    """A good release serves, whichever of the two."""
    if not remote.status()["serving"]:
        done = remote.deploy(_good(remote))
        assert done.code == 0, done
    remote.assert_one_serves(_release(remote))
    return remote


def _k(at: Remote) -> int:
    return int(at.active()["deployment"]["serve"]["num_speculative_tokens"])


def _good(at: Remote) -> dict[str, Any]:
    return {"num_speculative_tokens": _k(at)}


def _release(at: Remote) -> str:
    return str(at.active()["deployment"]["release"])


def switched_with(at: Remote, wish: dict[str, Any], faults: Attempt) -> Done | None:
    """A switch that is held in each of these states while a fault strikes; None when nobody watches its end.

    A controller that was killed is followed by a re-run, where there is more to come.
    """
    at.hold(*(state for state, _ in faults))
    controller = at.start("deploy.yml", wish)
    heals = []
    for number, (state, name) in enumerate(faults, 1):
        at.wait_for(state)
        heals.append(FAULTS[name](Fault(at, controller, state)))
        if name == "controller_killed" and number < len(faults):
            controller = at.start("deploy.yml", wish)
            controller.wait_for_line(SWITCHING)
        at.let_go(state)
    done = None if faults[-1][1] == "controller_killed" else controller.wait()
    for heal in filter(None, heals):
        heal()
    at.wait_ended()
    return done


@pytest.mark.parametrize(("way", "attempts"), [*IN_MAKE_TEST, *ALONE])
def test_after_a_fault_one_gated_release_serves_and_a_rerun_converges(
    at: Remote, way: str, attempts: list[Attempt]
) -> None:
    before, red = _release(at), attempts[-1][-1][0] == "restored"
    strategy = {"draftgate_strategy": way}
    wish = {**strategy, **({**_good(at), **RED} if red else {"num_speculative_tokens": 13 - _k(at)})}
    last = {**strategy, **_good(at)} if red else wish
    for faults in attempts:
        done = switched_with(at, wish, faults)
        assert_one_is_left(at, before, way, faults, done)
    again = at.deploy(last)
    assert again.code == 0, again
    assert (_release(at) == before) == red
    at.assert_one_serves(_release(at))
    if again.recap(at.host.name)["changed"]:
        quiet = at.deploy(last)
        assert quiet.code == 0 and quiet.recap(at.host.name)["changed"] == 0, quiet


def assert_one_is_left(at: Remote, before: str, way: str, faults: Attempt, done: Done | None) -> None:
    """One gated release behind the front, whichever it is; where that is impossible, the words for it."""
    state, name = faults[-1]
    if name == "port_stolen" and way == "in_place" and not at.engines():
        # While a stranger holds its only port nothing can serve there: that is said, with the holder.
        assert done is not None and "is taken by pid" in done.told and "Nothing serves." in done.told
        return
    if name == "server_wedged" and state in ("activated", "restored"):
        return  # nobody asks it until the next deploy
    at.wait_serving()
    at.assert_one_serves(before, _release(at))
    assert at.status()["evidence"]["verdict"] == "pass"
    if done is not None and done.code == 0:
        assert _release(at) != before, "a green deploy that changed nothing"
