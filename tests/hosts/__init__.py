"""Test hosts: systemd-nspawn machines with their own address, sshd and systemd as process 1.

``Hosts.up("name", 3)`` boots three in about two seconds; ``python -m tests.hosts`` does the same by hand.
Each set has a name, and its own network, keys and disks; sets do not see each other. A name belongs to the
process that booted its set for as long as that lives, and to whoever asks next after that.

What a killed process leaves is removed by the next ``up`` or ``down`` of the name. Nothing it could have
noted is needed for that: the file with the set's number is written before anything has that number in its
name (bridge, cables, network namespaces, control groups), a host's directory before its disk is mounted,
and every process of a host, from the first instruction on, is in the host's control groups.
"""

from __future__ import annotations

import contextlib
import os
import shlex
import subprocess
import threading
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from tests.cache import REPO, RUNTIMES
from tests.hosts import base, recipe, sets
from tests.hosts.base import NoHosts
from tests.hosts.machine import Machine
from tests.hosts.network import Network, run
from tests.hosts.sets import DISKS, STATE, Refused

__all__ = ["DISKS", "STATE", "Host", "Hosts", "NoHosts", "Refused"]

SHARED = (str(RUNTIMES), str(REPO / "models"))
"""What every host sees, read-only and at the same path: a runtime's scripts name where they lie."""
READY_SECONDS = 60.0


@dataclass(frozen=True)
class Host:
    """One host of a set."""

    machine: Machine
    key: Path
    known_hosts: Path

    @property
    def name(self) -> str:
        return self.machine.name

    @property
    def address(self) -> str:
        return self.machine.network.address(self.machine.index)

    @property
    def ssh_options(self) -> list[str]:
        return [
            *("-i", str(self.key), "-o", "IdentitiesOnly=yes", "-o", "BatchMode=yes"),
            *("-o", f"UserKnownHostsFile={self.known_hosts}", "-o", "StrictHostKeyChecking=yes"),
        ]

    def ssh(
        self, command: str, *, check: bool = True, user: str = recipe.USER, seconds: float = 60.0
    ) -> subprocess.CompletedProcess[str]:
        """``command`` in a shell on the host."""
        options = [*self.ssh_options, "-o", "ConnectTimeout=5", "-o", "LogLevel=ERROR"]
        done = subprocess.run(
            ["ssh", *options, f"{user}@{self.address}", command],
            capture_output=True,
            text=True,
            check=False,
            timeout=seconds,
            stdin=subprocess.DEVNULL,
        )
        if check and done.returncode != 0:
            raise AssertionError(f"{self.name}: {command!r} ended with {done.returncode}: {done.stderr}")
        return done

    def sudo(self, command: str, *, check: bool = True, seconds: float = 60.0) -> str:
        """stdout of ``command``, as root."""
        return self.ssh(f"sudo sh -c {shlex.quote(command)}", check=check, seconds=seconds).stdout

    def reachable(self) -> bool:
        """Whether it has booted and lets us in."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            done = self.ssh("systemctl is-system-running", check=False, seconds=8)
            return done.stdout.strip() in ("running", "degraded")
        return False

    def wait(self, seconds: float = READY_SECONDS) -> None:
        end = time.monotonic() + seconds
        while not self.reachable():
            if time.monotonic() > end:
                console = self.machine.directory / "console.log"
                raise TimeoutError(f"{self.name} is not up after {seconds:.0f} s; see {console}")
            time.sleep(0.1)

    # Faults

    def kill(self) -> None:
        """As pulling the plug. Its disk stays."""
        self.machine.kill()

    def boot(self) -> None:
        """Switch a host on that was killed, and wait for it."""
        self.machine.mount()
        self.machine.boot()
        self.wait()

    def reboot(self) -> None:
        """By its own init, and wait for it."""
        booted = "systemctl show --property=UserspaceTimestampMonotonic --value"
        before = self.sudo(booted)
        self.ssh("sudo systemctl reboot", check=False)
        end = time.monotonic() + READY_SECONDS
        while not self.reachable() or before == self.sudo(booted, check=False):
            assert time.monotonic() < end, f"{self.name} does not come back"
            time.sleep(0.2)

    def link(self, state: str) -> None:
        """``up`` or ``down``, at our end of its cable."""
        run("ip", "link", "set", self.machine.network.link(self.machine.index), state)

    def cut(self, seconds: float) -> None:
        """Cut it off; the link heals by itself, whatever becomes of who called."""
        self.link("down")
        threading.Timer(seconds, self.link, ["up"]).start()

    def small_disk(self, path: str, mib: int) -> None:
        """A disk of its own for one directory, so that it can be full. Only while the host is off."""
        image, point = self.machine.directory / "small.ext4", self.machine.root / path.lstrip("/")
        point.mkdir(parents=True, exist_ok=True)
        run("truncate", f"--size={mib}M", str(image))
        run("mkfs.ext4", "-q", "-m", "0", str(image))
        run("mount", "-o", "loop", str(image), str(point))


@dataclass(frozen=True)
class Hosts:
    """A set of hosts that run."""

    name: str
    hosts: tuple[Host, ...]

    def __iter__(self) -> Iterator[Host]:
        return iter(self.hosts)

    def __getitem__(self, index: int) -> Host:
        return self.hosts[index]

    @classmethod
    def up(cls, name: str, count: int, small_disks: Mapping[str, int] | None = None) -> Hosts:
        """Boot ``count`` hosts, called ``<name>1`` and so on; what an earlier run left of the set goes first.

        :param small_disks: directory on each host → MiB of a file system of its own.
        :raises NoHosts: we are not root, or a program is missing; a test may skip for that.
        :raises Refused: no name of a set, or another process uses it.
        :raises RuntimeError: a step failed; :raises TimeoutError: a host does not boot. Both are failures.
        """
        base.built()
        sets.hold(name)
        try:
            cls._remove(name)
            return cls._boot(name, count, small_disks or {})
        except BaseException:
            cls.down(name)
            raise

    @classmethod
    def _boot(cls, name: str, count: int, small_disks: Mapping[str, int]) -> Hosts:
        network, directory = sets.take_network(name), sets.disks(name)
        directory.mkdir(parents=True, exist_ok=True)
        run("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(directory / "key"))
        made = cls._of(name, network, range(1, count + 1))
        machines = [host.machine for host in made]
        network.up()
        for machine in machines:
            machine.make(machines, (directory / "key.pub").read_text("utf-8"), recipe.USER)
            network.plug(machine.index)
        known = [f"{network.address(each.index)} {each.host_key()}\n" for each in machines]
        (directory / "known_hosts").write_text("".join(known), "utf-8")
        for host in made:
            for path, mib in small_disks.items():
                host.small_disk(path, mib)
            host.machine.boot()
        for host in made:
            host.wait()
        return made

    @classmethod
    def _of(cls, name: str, network: Network, indices: Iterable[int]) -> Hosts:
        directory = sets.disks(name)
        binds = tuple(path for path in SHARED if os.path.isdir(path))
        machines = [
            Machine(f"{name}{index}", index, network, directory / str(index), base.path(), binds)
            for index in indices
        ]
        return cls(
            name, tuple(Host(machine, directory / "key", directory / "known_hosts") for machine in machines)
        )

    @classmethod
    def found(cls, name: str) -> Hosts:
        """The set as it is: an empty one where there is none."""
        network = sets.network(name)
        if network is None:
            return cls(name, ())
        return cls._of(name, network, sorted(int(path.name) for path in sets.disks(name).glob("[0-9]*")))

    @classmethod
    def down(cls, name: str) -> None:
        """Leave nothing of the set. Nothing is done, and no right needed, where there is nothing.

        :raises Refused: no name of a set, or another process uses it.
        """
        if sets.state(name).exists() or sets.disks(name).exists():
            sets.hold(name)
            cls._remove(name)
            sets.release(name)

    @classmethod
    def _remove(cls, name: str) -> None:
        """Only by whoever holds the name."""
        for host in cls.found(name):
            host.machine.remove()
        network = sets.network(name)
        if network is not None:
            network.down()
        sets.forget(name)

    def inventory(self, variables: Mapping[str, Any] | None = None) -> str:
        """An Ansible inventory in YAML: the group ``draftgate``, reached as a user with sudo.

        :raises Refused: there is no such set.
        """
        if not self.hosts:
            raise Refused(
                f"There are no test hosts {self.name!r}; python -m tests.hosts list shows those there are."
            )
        common = {
            "ansible_user": recipe.USER,
            "ansible_become": True,
            "ansible_python_interpreter": "/usr/bin/python3",
            "ansible_ssh_private_key_file": str(self.hosts[0].key),
            "ansible_ssh_common_args": shlex.join(
                ["-o", f"UserKnownHostsFile={self.hosts[0].known_hosts}", "-o", "StrictHostKeyChecking=yes"]
            ),
            **tiny_pair(),
            **(variables or {}),
        }
        hosts = {host.name: {"ansible_host": host.address} for host in self.hosts}
        return yaml.safe_dump({"draftgate": {"hosts": hosts, "vars": common}}, sort_keys=False)


def tiny_pair() -> dict[str, Any]:
    """What ``inventory/local`` says of the tiny pair, for hosts that see the checkout's models."""
    said = (REPO / "inventory" / "local" / "group_vars" / "draftgate.yml").read_text("utf-8")
    here: dict[str, Any] = yaml.safe_load(
        said.replace("{{ inventory_dir }}/../..", str(REPO)).replace("inventory_dir ~ '/../..", f"'{REPO}")
    )
    return {**here, "vllm_runtime_root": str(RUNTIMES)}
