"""The test hosts themselves: what every other test of a host stands on."""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from draftgate import processes

from tests.cache import REPO
from tests.hosts import DISKS, STATE, Host, Hosts, NoHosts, base

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


def test_two_sets_live_side_by_side_and_leave_nothing(hosts: Hosts) -> None:
    before = leftovers("two")
    other = Hosts.up("two", 1)
    assert other[0].address.rpartition(".")[0] != hosts[0].address.rpartition(".")[0]
    (keeper,) = [pid for pid in map(int, filter(str.isdigit, os.listdir("/proc"))) if _keeps(pid, other[0])]
    Hosts.down("two")
    assert leftovers("two") == before == []
    assert not os.path.exists(f"/proc/{keeper}")
    assert hosts[0].reachable()
    assert not list(Hosts.found("two"))


def _keeps(pid: int, host: Host) -> bool:
    return "tests.hosts.machine" in processes.command(pid) and host.machine.namespace in processes.command(
        pid
    )


def leftovers(name: str) -> list[str]:
    """Whatever of a set can be seen from outside."""
    said = [Path("/proc/self/mounts").read_text("utf-8")]
    said += [subprocess.run(words, capture_output=True, text=True, check=True).stdout for words in
             (["ip", "netns"], ["ip", "-o", "link"])]  # fmt: skip
    paths = [str(path) for path in (STATE / name, DISKS / name) if path.exists()]
    return paths + [line for text in said for line in text.splitlines() if f"/disks/{name}/" in line]


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
