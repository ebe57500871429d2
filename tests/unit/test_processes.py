"""What /proc says about ports, memory and whose process is whose."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import Iterator, Tuple

import pytest
from draftgate import processes
from draftgate.reaper import MARK

Listener = Tuple[socket.socket, int]


@pytest.fixture(params=["127.0.0.1", "0.0.0.0", "::1", "::"])
def listener(request: pytest.FixtureRequest) -> Iterator[Tuple[str, int]]:
    family = socket.AF_INET6 if ":" in request.param else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as server:
        # as vLLM does: a plain bind beside it must fail all the same
        server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        server.bind((request.param, 0))
        server.listen()
        yield request.param, server.getsockname()[1]


def test_a_listener_is_found_with_its_process(listener: Tuple[str, int]) -> None:
    host, port = listener
    assert not processes.port_free(host, port)
    holder = processes.port_holder(host, port)
    assert holder is not None
    assert holder["pid"] == os.getpid()
    assert "pytest" in holder["command"]


@pytest.mark.parametrize(
    ("bound", "asked", "taken"),
    [
        ("127.0.0.1", "0.0.0.0", True),
        ("0.0.0.0", "127.0.0.1", True),
        ("127.0.0.1", "localhost", True),
        ("127.0.0.2", "127.0.0.1", False),
    ],
)
def test_the_wildcard_meets_every_address(bound: str, asked: str, taken: bool) -> None:
    with socket.create_server((bound, 0)) as server:
        port = server.getsockname()[1]
        assert (processes.port_holder(asked, port) is not None) == taken
        if asked != "localhost":
            assert processes.port_free(asked, port) != taken


def test_a_closed_port_is_free_at_once() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        with socket.create_connection(("127.0.0.1", port)):
            server.accept()[0].close()  # leaves a connection in TIME_WAIT
    assert processes.port_free("127.0.0.1", port)
    assert processes.port_holder("127.0.0.1", port) is None


def test_processes_are_owned_by_service_and_home(tmp_path: Path) -> None:
    home, other = str(tmp_path / "a"), str(tmp_path / "b")
    sleeper = subprocess.Popen(
        [sys.executable, "-c", "import time; print(flush=True); time.sleep(60)"],
        env={MARK: processes.mark("engine-x", home)},
        stdout=subprocess.PIPE,
    )
    try:
        assert sleeper.stdout is not None and sleeper.stdout.readline()
        assert processes.owned("engine-x", home) == [sleeper.pid]
        assert processes.owned_by_home(home) == [sleeper.pid]
        assert processes.owned("engine-x", other) == processes.owned("engine-y", home) == []
        assert processes.owned_by_home(other) == []
        assert processes.start_ticks(sleeper.pid) is not None
    finally:
        sleeper.kill()
        sleeper.wait()
    assert processes.owned("engine-x", home) == []
    assert processes.start_ticks(sleeper.pid) is None
    assert processes.command(sleeper.pid) == ""


def test_memory_and_kills_are_read_as_bytes_and_counts() -> None:
    assert 2**24 < processes.memory_available_bytes() < 2**50
    assert processes.oom_kills() >= 0


def test_connections_are_counted_by_who_opened_them(tmp_path: Path) -> None:
    name = Path("/proc/self/comm").read_text("utf-8").strip()
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        assert processes.connections_to("127.0.0.1", port, name) == 0
        with socket.create_connection(("127.0.0.1", port)), socket.create_connection(("127.0.0.1", port)):
            near = server.accept()[0]
            assert processes.connections_to("127.0.0.1", port, name) == 2
            assert processes.connections_to("127.0.0.1", port, "nginx") == 0
            assert processes.connections_to("127.0.0.2", port, name) == 0
            near.close()  # what the other side has ended does not run any more
            assert processes.connections_to("127.0.0.1", port, name) == 1
        server.accept()[0].close()
    assert processes.connections_to("127.0.0.1", port, name) == 0
