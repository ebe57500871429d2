"""The test hosts themselves: what every other test of a host stands on."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from draftgate import processes

from tests.cache import REPO
from tests.hosts import Hosts, NoHosts, Refused, __main__, base, sets
from tests.hosts.machine import Machine, groups
from tests.hosts.network import Network, run

pytestmark = pytest.mark.timeout(900)  # the first one of a machine builds the base

NAME = "own"


@pytest.fixture(scope="module")
def hosts() -> Iterator[Hosts]:
    try:
        made = Hosts.up(NAME, 2, {"/var/lib/draftgate": 32})
    except NoHosts as exc:
        pytest.skip(str(exc))
    yield made
    Hosts.down(NAME)


def test_a_host_has_its_own_name_address_and_init(hosts: Hosts) -> None:
    for host in hosts:
        assert host.ssh("hostname; cat /proc/1/comm").stdout.split() == [host.name, "systemd"]
        assert host.sudo("systemctl --failed --no-legend") == ""
        assert host.address in host.ssh("ip -4 -o addr show eth0").stdout
        assert host.sudo("id -u") == "0\n"


def test_hosts_reach_each_other_and_nothing_else(hosts: Hosts) -> None:
    first, second = hosts
    assert first.ssh(f"curl -s telnet://{second.name}:22 -m 2 | head -c 7", check=False).stdout == "SSH-2.0"
    assert first.ssh("ip route show default").stdout == ""


def test_what_the_runtimes_share_is_read_only(hosts: Hosts) -> None:
    path = REPO / "models"
    assert "tiny-pair" in hosts[0].ssh(f"ls {path}").stdout
    assert hosts[0].ssh(f"sudo touch {path}/x", check=False).returncode != 0


@pytest.mark.parametrize("how", ["reboot", "kill"])
def test_a_host_comes_back_with_its_disk(hosts: Hosts, how: str) -> None:
    host = hosts[0]
    host.sudo(f"echo {how} > /var/lib/draftgate/kept; sync")
    booted = "systemctl show --property=UserspaceTimestampMonotonic --value"
    before = host.sudo(booted)
    if how == "reboot":
        host.reboot()
    else:
        host.kill()
        assert not host.reachable()
        host.boot()
    assert host.sudo("cat /var/lib/draftgate/kept") == f"{how}\n"
    assert host.sudo(booted) != before
    assert hosts[1].reachable(), "its neighbour was not asked"


def test_a_small_disk_can_be_full(hosts: Hosts) -> None:
    full = hosts[1].ssh("sudo dd if=/dev/zero of=/var/lib/draftgate/x bs=1M", check=False)
    assert "No space left" in full.stderr
    hosts[1].sudo("rm /var/lib/draftgate/x; touch /elsewhere")


def test_a_cut_link_heals_by_itself(hosts: Hosts) -> None:
    host = hosts[0]
    began = time.monotonic()
    host.cut(8)
    assert not host.reachable() and hosts[1].reachable()
    host.wait(20)
    assert time.monotonic() - began >= 8


@pytest.mark.parametrize("killed", ["nobody", "keeper", "creator"])
def test_two_sets_live_side_by_side_and_leave_nothing(hosts: Hosts, killed: str) -> None:
    if killed == "creator":
        boot_and_be_killed("two")
    else:
        Hosts.up("two", 1, {"/var/lib/draftgate": 32})
    (other,) = Hosts.found("two")
    machine, pids = other.machine, other.machine.processes()
    keeper = min(pids)
    assert "keeper" in processes.command(keeper) and hosts[0].machine.network != machine.network
    assert leftovers(machine, pids).keys() == {
        "processes",
        "mounts",
        "netns",
        "links",
        "cgroups",
        "paths",
    } | (set() if killed == "creator" else {"loops"})
    if killed == "keeper":
        os.kill(keeper, signal.SIGKILL)
    Hosts.down("two")
    assert leftovers(machine, pids) == {}
    assert hosts[0].reachable()
    with pytest.raises(Refused, match="There are no test hosts 'two'"):
        Hosts.found("two").inventory()


def boot_and_be_killed(name: str) -> None:
    """By a process that is killed when the host has begun to boot."""
    with subprocess.Popen(program(f"Hosts.up({name!r}, 1)"), cwd=REPO, env=ENVIRONMENT) as creator:
        end = time.monotonic() + 60
        while not any(host.machine.processes() for host in Hosts.found(name)):
            assert time.monotonic() < end and creator.poll() is None
        creator.kill()


ENVIRONMENT = {**os.environ, "PYTHONPATH": f"{REPO}/module_utils:{REPO}"}


def program(call: str) -> list[str]:
    return [sys.executable, "-c", f"from tests.hosts import Hosts\n{call}"]


def leftovers(machine: Machine, pids: list[int]) -> dict[str, list[str]]:
    """Whatever of a set of one machine can be seen from outside, by where it is seen."""
    network, disks = machine.network, machine.directory.parent
    ours = re.compile(rf"{re.escape(str(disks))}/|\b({network.bridge}|{network.link(1)})\b")
    said = {
        "mounts": Path("/proc/self/mounts").read_text("utf-8"),
        "netns": run("ip", "netns"),
        "links": run("ip", "-o", "link"),
        "loops": run("losetup", "--all"),
        "processes": "\n".join(map(processes.command, processes.all_pids())),
    }
    found = {where: [line for line in text.splitlines() if ours.search(line)] for where, text in said.items()}
    found["processes"] += [str(pid) for pid in pids if processes.start_ticks(pid) is not None]
    places = {"cgroups": groups(machine.namespace), "paths": [sets.STATE / disks.name, disks]}
    found |= {where: [str(path) for path in paths if path.exists()] for where, paths in places.items()}
    return {where: what for where, what in found.items() if what}


@pytest.mark.parametrize("wish", ["up({!r}, 1)", "down({!r})"])
def test_hosts_in_use_are_not_ended_by_another_process(hosts: Hosts, wish: str) -> None:
    other = subprocess.run(
        program(f"Hosts.{wish.format(NAME)}"),
        cwd=REPO,
        env=ENVIRONMENT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert f"test hosts {NAME!r} are in use by process {os.getpid()}." in other.stderr
    assert all(host.reachable() for host in hosts)


# Only the function that judges, never what removes: broken, that would remove what is above these names.
@pytest.mark.parametrize("name", [
    "", ".", "..", "/", "a/b", "../a", "a1", "a-b", "A", "é", "a ", "a\n", "*", "abcdefghijklm",
])  # fmt: skip
@pytest.mark.parametrize("function", [sets.checked, sets.state, sets.disks])
def test_no_path_is_made_of_what_is_no_name(function: Callable[[str], object], name: str) -> None:
    with pytest.raises(Refused, match="cannot be the name of a set"):
        function(name)


def test_killed_while_it_takes_a_network_it_leaves_a_name_that_can_be_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sets, "STATE", tmp_path)
    for killed_in in ("mkdir", "write_text", "rename"):

        def cut(path: Path, *_: object, **__: object) -> None:
            raise KeyboardInterrupt

        with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
            patch.setattr(Path, killed_in, cut)
            sets.take_network("two")
        assert sets.network("two") is None
    monkeypatch.setattr(os.path, "exists", lambda path: path == "/sys/class/net/dghosts1")
    taken = [sets.take_network(name) for name in ("two", "own")]
    assert taken == [sets.network("two"), sets.network("own")] == [Network(0), Network(2)]


@pytest.mark.parametrize(("uid", "missing", "told"), [
    (1000, "", "Run it as root"), (0, "systemd-nspawn", "apt-get install systemd-container"),
])  # fmt: skip
def test_a_machine_that_cannot_says_why_and_what_to_do(
    monkeypatch: pytest.MonkeyPatch, uid: int, missing: str, told: str
) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: uid)
    monkeypatch.setattr(shutil, "which", lambda command: None if command == missing else f"/bin/{command}")
    with pytest.raises(NoHosts, match=told) as caught:
        base.require()
    assert "DRAFTGATE_TEST_INVENTORY" in str(caught.value)


def test_who_cannot_boot_hosts_installs_no_runtime_first(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    monkeypatch.setattr(sys, "argv", ["hosts", "up", "two"])
    monkeypatch.setattr(__main__, "engine", lambda: pytest.fail("installed"))
    assert __main__.main() == 1
    assert "Run it as root" in capsys.readouterr().err
