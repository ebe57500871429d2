"""One real installation on a systemd host of its own, seen over ssh and through its front.

The same questions as :mod:`tests.e2e.installation` asks of a local one; nothing here is a double.
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import requests
from draftgate.journal import finished
from draftgate.layout import SYSTEM_ROOT, Home

from tests.e2e.installation import START_SECONDS, Deployed, Done, Playbook, until
from tests.hosts import Host
from tests.load import OK, Load, Tally

HOME = Home(SYSTEM_ROOT)
FRONT_PORT = 8080
PORTS = (8000, 8001)  # of the engines, on the host's loopback


@dataclass
class Remote(Deployed):
    """A host, the inventory that names it, and what every one of its playbooks gets."""

    LOOK_EVERY = 1.0  # a look is an ssh connection, and the engine that starts needs both cores

    host: Host
    inventory: Path
    reports: Path

    @property
    def front(self) -> str:
        return f"http://{self.host.address}:{FRONT_PORT}"

    # Playbooks

    def start(self, playbook: str, wish: Mapping[str, Any], *options: str) -> Playbook:
        variables = {"draftgate_reports_dir": str(self.reports), **wish}
        arguments = ["-i", str(self.inventory), "--limit", self.host.name, playbook]
        return Playbook([*arguments, "-e", json.dumps(variables), *options], {})

    # What the host says

    def sudo(self, command: str, *, check: bool = True) -> str:
        """stdout of ``command`` as root on the host, through a shell there."""
        return self.host.sudo(command, check=check)

    def status(self) -> dict[str, Any]:
        state: dict[str, Any] = json.loads(self.sudo(f"{HOME.command} status --json", check=False))
        return state

    def journal(self) -> list[dict[str, Any]]:
        lines = self.sudo(f"cat {HOME.journal}", check=False).splitlines()
        return [json.loads(line) for line in lines if line.endswith("}")]

    def active(self) -> dict[str, Any]:
        active: dict[str, Any] = json.loads(self.sudo(f"cat {HOME.active}"))
        return active

    # What really runs

    def engines(self) -> dict[str, int]:
        """Deployments whose unit is active, with the main process of each."""
        shown = self.sudo(
            "systemctl list-units --plain --no-legend --state=active,activating,deactivating"
            " 'draftgate-*-engine-*.service' | cut -d' ' -f1 | while read unit; do"
            ' echo "$unit $(systemctl show --property=MainPID --value $unit)"; done'
        )
        units = (line.split() for line in shown.splitlines())
        return {unit.rpartition("-")[2].removesuffix(".service"): int(pid) for unit, pid in units}

    def processes(self) -> set[int]:
        """Every process of the engines' user, whatever it belongs to."""
        return {int(pid) for pid in self.sudo("pgrep -u draftgate || true").split()}

    def listening(self) -> set[int]:
        """Those of the engines' ports that somebody listens on, at whatever address."""
        shown = self.sudo("ss -Hltn | awk '{print $4}'").split()
        return {int(address.rpartition(":")[2]) for address in shown} & set(PORTS)

    def assert_one_serves(self, *releases: str) -> dict[str, Any]:
        """One engine runs and nothing of another, it is the activated one, and the front leads to it."""
        state, active = self.status(), self.active()
        assert state["serving"] and state["healthy"], state
        assert state["release"] == active["deployment"]["release"]
        assert state["release"] in releases, state
        engines = self.engines()
        assert set(engines) == {active["deployment"]["id"]}, engines
        assert self.listening() == {active["deployment"]["place"]["port"]}
        tree = self.sudo(f"cat /proc/{engines[active['deployment']['id']]}/cgroup").splitlines()[-1]
        group = tree.rpartition(":")[2].lstrip("/")
        owned = self.sudo(
            f"cat $(find /sys/fs/cgroup -path '*/{group}/cgroup.procs') $(find /sys/fs/cgroup"
            f" -path '*/{group}/*/cgroup.procs') | sort -u"
        )
        assert self.processes() <= {int(pid) for pid in owned.split()}, (
            "an engine's process outlives its unit"
        )
        assert self.ask()["choices"][0]["message"]["content"]
        return state

    def ask(self) -> dict[str, Any]:
        """A chat completion through the front."""
        body = {
            "model": "tiny",
            "messages": [{"role": "user", "content": "Hello"}],
            "temperature": 0,
            "max_tokens": 16,
        }
        answer = requests.post(f"{self.front}/v1/chat/completions", json=body, timeout=120)
        answer.raise_for_status()
        told: dict[str, Any] = answer.json()
        return told

    # Fault injection

    def hold(self, *states: str) -> None:
        """Make the next switch wait in these states."""
        self._switch_before = self._switch()
        paths = " ".join(map(self.hold_file, states))
        self.sudo(f"mkdir -p {HOME.path('run')} && touch {paths}")

    def release_hold(self, state: str) -> None:
        self.sudo(f"rm -f {self.hold_file(state)}")

    def hold_file(self, state: str) -> str:
        return HOME.path("run", f"hold.{state}")

    def job(self) -> int:
        """The switch job's main process; 0 when none runs."""
        shown = self.sudo(
            "systemctl show --property=MainPID --value 'draftgate-*-switch.service'", check=False
        )
        return max([int(pid) for pid in shown.split()], default=0)

    def wait_ended(self, seconds: float = 2 * START_SECONDS) -> None:
        """Until no switch is open and no job runs: a start and a restore away at most."""
        self._until(lambda: finished(self.journal()) and not self.job(), seconds, "its end")

    def wait_serving(self, seconds: float = START_SECONDS) -> None:
        """Until what is activated answers: after a boot it still loads."""
        self._until(lambda: bool(self.status()["serving"]), seconds, "an answer")

    def let_go(self, state: str, seconds: float = 120.0) -> None:
        """:meth:`release_hold`, as soon as the host lets us in."""

        def let_go() -> bool:
            self.release_hold(state)
            return True

        self._until(let_go, seconds, "the host")

    def _until(self, question: Callable[[], bool], seconds: float, what: str) -> None:
        def answered() -> bool:
            try:
                return question()
            except (AssertionError, subprocess.SubprocessError, ValueError, OSError):
                return False  # the host is away

        until(answered, seconds, what, self.LOOK_EVERY)


def switched_under_load(at: Remote, wish: Mapping[str, Any]) -> tuple[Done, Tally]:
    """One deploy while four clients ask through the front, and what became of every request."""
    with Load(at.front, "tiny", plain=1, streaming=1, kept=1, pause=0.4) as tally:
        until(lambda: tally.count(OK) >= 4, 60, "answers before the switch")
        done = at.deploy(wish)
        answered = tally.count(OK)
        until(lambda: tally.count(OK) >= answered + 4, 60, "answers after the switch")
    return done, tally
