"""Homes for real deployments, removed by their own teardown; what a killed run has left is removed first."""

from __future__ import annotations

import fcntl
import itertools
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from draftgate import processes

from tests.cache import engine
from tests.e2e.installation import Installation
from tests.e2e.remote import HOME, Remote
from tests.hosts import Hosts, NoHosts

Install = Callable[..., Installation]
_PORTS = range(8300, 8400)


@pytest.fixture(scope="session")
def slot() -> Iterator[Path]:
    """A directory with a known short name that is this run's alone.

    Known, so that the next run finds the engines of one that was killed; short, for unix sockets.
    """
    for number in itertools.count():
        path = Path(f"/tmp/dg-e2e-{os.geteuid()}-{number}")
        path.mkdir(mode=0o700, exist_ok=True)
        descriptor = os.open(path, os.O_RDONLY)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            yield path
        except BlockingIOError:
            continue
        finally:
            os.close(descriptor)
        return


@pytest.fixture(scope="session")
def install(slot: Path) -> Iterator[Install]:
    """``install(name, **fields)``: a bare installation of this session, removed at its end."""
    made: list[Installation] = []
    ports = (port for port in _PORTS if processes.port_free("127.0.0.1", port))
    for agent in slot.glob("*/agent"):
        Installation(agent.parent, next(ports), slot / "reports").remove()

    def make(name: str, **fields: object) -> Installation:
        one = Installation(slot / name, next(ports), slot / f"{name}-reports", **fields)  # type: ignore[arg-type]
        one.remove()
        made.append(one)
        return one

    yield make
    try:
        for one in made:
            one.remove()
    finally:
        shutil.rmtree(slot, ignore_errors=True)


@pytest.fixture(scope="session")
def remote_host(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[..., Remote]]:
    """``remote_host(name, disk_mib=…, **variables)``: a bare host that is to have a front."""
    made: list[str] = []

    def make(name: str, disk_mib: int = 0, **variables: object) -> Remote:
        small = {HOME.root: disk_mib} if disk_mib else None
        try:
            made.append(name)
            engine()
            hosts = Hosts.up(name, 1, small)
        except NoHosts as exc:
            pytest.skip(str(exc))
        directory = tmp_path_factory.mktemp(name)
        inventory = directory / "hosts.yml"
        inventory.write_text(hosts.inventory({"gateway_enabled": True, **variables}), "utf-8")
        return Remote(hosts[0], inventory, directory / "reports")

    yield make
    for name in made:
        Hosts.down(name)
