"""Where the front leads: the link, what the public address says of it, and whom a drain waits for."""

from __future__ import annotations

import errno
import http.server
import os
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from draftgate import front
from draftgate.clocks import Clocks
from draftgate.errors import HostError
from draftgate.files import write_json
from draftgate.front import CLOSED, Drained, Installed, Look, NginxFront, NoFront, front_of, lead, led, look
from draftgate.layout import Home
from draftgate.progress import silent

IDENTITY = "0123456789ab"


class Time:
    """Seconds that pass only by sleeping."""

    def __init__(self) -> None:
        self.now = 0.0

    def sleep(self, seconds: float) -> None:
        self.now += seconds

    @property
    def clocks(self) -> Clocks:
        return Clocks(now=lambda: self.now, boottime=lambda: self.now, sleep=self.sleep)


def installed(directory: Path) -> Installed:
    return Installed(IDENTITY, "127.0.0.1", 8080, False, str(directory), 60.0, ("/usr/sbin/nginx",))


# The link


def test_the_link_is_the_whole_truth(tmp_path: Path) -> None:
    one = NginxFront(installed(tmp_path))
    assert led(str(tmp_path)) == CLOSED and one.routed() == 0
    for target, port in (("8000", 8000), (CLOSED, 0), ("8001", 8001), ("8001", 8001)):
        lead(str(tmp_path), target)
        assert led(str(tmp_path)) == target and one.routed() == port
        assert (tmp_path / "route").resolve() == tmp_path / target  # nginx resolves it to what is there
    assert sorted(os.listdir(tmp_path)) == ["8000", "8001", CLOSED, "route"]


def test_what_a_kill_leaves_is_no_obstacle(tmp_path: Path) -> None:
    lead(str(tmp_path), "8000")
    (tmp_path / ".route").symlink_to("8001")
    lead(str(tmp_path), "8002")
    assert led(str(tmp_path)) == "8002" and not (tmp_path / ".route").is_symlink()


def test_no_moment_leads_nowhere(tmp_path: Path) -> None:
    lead(str(tmp_path), "8000")
    stopped, seen = threading.Event(), set()

    def read() -> None:
        while not stopped.is_set():
            try:
                seen.add(os.path.realpath(tmp_path / "route", strict=True))
            except OSError as exc:
                seen.add(str(exc))

    reader = threading.Thread(target=read)
    reader.start()
    for number in range(200):
        lead(str(tmp_path), f"800{number % 2}")
    stopped.set()
    reader.join()
    assert seen == {str(tmp_path / "8000"), str(tmp_path / "8001")}


def test_everybody_may_follow_it(tmp_path: Path) -> None:
    mask = os.umask(0o077)
    try:
        lead(str(tmp_path / "front"), "8000")
    finally:
        os.umask(mask)
    assert oct((tmp_path / "front").stat().st_mode)[-3:] == "755"


@pytest.mark.parametrize(
    ("number", "told"),
    [
        (errno.EROFS, pytest.raises(HostError, match="DG172.*Read-only")),
        (errno.ENOSPC, pytest.raises(OSError, match="No space left")),  # which the switch waits out
    ],
)
def test_a_link_that_cannot_be_written_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int, told: Any
) -> None:
    lead(str(tmp_path), "8000")

    def refuse(*_: Any) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "symlink", refuse)
    one = NginxFront(installed(tmp_path))
    for act in (one.close, lambda: one.open(8001)):
        with told:
            act()
    assert one.routed() == 8000


def test_a_full_disk_keeps_no_front_closed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """ext4 makes a link and an empty file without a block; a directory takes one."""
    lead(str(tmp_path), "8000")
    one = NginxFront(installed(tmp_path), clocks=Time().clocks)

    def full(path: str, *_: Any) -> None:
        raise OSError(errno.EEXIST if os.path.exists(path) else errno.ENOSPC, "refused", path)

    monkeypatch.setattr(os, "mkdir", full)
    monkeypatch.setattr(front, "connections_to", lambda *_: 0)
    monkeypatch.setattr(one.__class__, "_look", lambda self: Look(True, IDENTITY, "c", self.routed()))
    one.close()
    one.drain(None, silent)
    for port in (8000, 8001):
        one.open(port)
        assert one.routed() == port and not (tmp_path / "route").stat().st_size


def test_without_a_front_nothing_is_asked(tmp_path: Path) -> None:
    none = front_of(Home(str(tmp_path)))
    assert isinstance(none, NoFront) and none.routed() is None
    none.open(1)
    none.close()
    assert none.drain(None, silent) == Drained(0.0, 0)


def test_a_front_is_what_was_installed(tmp_path: Path) -> None:
    home = Home(str(tmp_path))
    settings = {"gateway_host": "::", "gateway_port": 443, "gateway_drain_seconds": 5}
    settings["gateway_tls_certificate"] = "/x.pem"
    nginx = {"command": ["nginx"], "state": "/s"}
    write_json(home.front, {"identity": IDENTITY, "settings": settings, "nginx": nginx})
    made = front_of(home)
    assert isinstance(made, NginxFront)
    assert made.installed == Installed(IDENTITY, "::", 443, True, f"/s/{IDENTITY}", 5.0, ("nginx",))


# What the public address says


@pytest.fixture
def page() -> Iterator[list[Any]]:
    """``[port, status, text]`` of a server that says the text to the front's question."""
    told: list[Any] = [0, 200, ""]

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            body = told[2].encode() if self.path == front.ASKED_PATH else b"another question"
            self.send_response(told[1])
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: Any) -> None: ...

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        told[0] = server.server_address[1]
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield told
        server.shutdown()
        thread.join()


@pytest.mark.parametrize(
    ("text", "seen"),
    [
        (front.answer_text(IDENTITY, "c0ffee", "8001") + "\n", Look(True, IDENTITY, "c0ffee", 8001)),
        (front.answer_text(IDENTITY, "c0ffee", ""), Look(True, IDENTITY, "c0ffee", 0)),
        ("<html>Welcome to nginx!</html>", Look(True)),
        (front.answer_text(IDENTITY, "c0ffee", "80a"), Look(True)),
        ("", Look(True)),
    ],
)
def test_what_answers_is_known_by_its_words(page: list[Any], text: str, seen: Look) -> None:
    page[2] = text
    for host in ("127.0.0.1", "0.0.0.0"):
        assert look(host, page[0], False) == seen


def test_what_is_no_answer(page: list[Any]) -> None:
    assert look("127.0.0.1", page[0], True) == Look(True)  # it speaks no TLS
    assert look("::", page[0], False) == Look()  # nobody listens there


# Open


def opened(
    directory: Path, monkeypatch: pytest.MonkeyPatch, seen: list[Look], code: int = 0
) -> tuple[list[list[str]], float]:
    """Open to 8001 while the address says ``seen``, the last for ever: what was run, and how long it took."""
    ran: list[list[str]] = []
    time = Time()

    def run(argv: Sequence[str], _seconds: float) -> tuple[int, str, str]:
        ran.append(list(argv))
        return code, "", "[emerg] it is broken"

    monkeypatch.setattr(front, "root_under_systemd", lambda: True)
    monkeypatch.setattr(front, "look", lambda *_: seen.pop(0) if len(seen) > 1 else seen[0])
    NginxFront(installed(directory), run, time.clocks).open(8001)
    return ran, time.now


RIGHT, STALE = Look(True, IDENTITY, "c", 8001), Look(True, IDENTITY, "c", 8000)
START = ["systemctl", "start", "nginx"]


@pytest.mark.parametrize(
    ("seen", "ran"),
    [
        ([RIGHT], []),
        ([STALE, Look(True), RIGHT], []),
        ([Look(), Look(), Look(), RIGHT], [START]),
    ],
)
def test_it_is_open_when_the_public_address_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seen: list[Look], ran: list[list[str]]
) -> None:
    looks = len(seen)
    commands, seconds = opened(tmp_path, monkeypatch, seen)
    assert commands == ran and seconds == pytest.approx(0.2 * (looks - 1))
    assert led(str(tmp_path)) == "8001"


@pytest.mark.parametrize(
    ("seen", "code", "told"),
    [
        ([Look()], 0, "nobody listens at 127.0.0.1:8080"),
        ([Look()], 1, "systemctl start nginx ended with 1: .emerg. it is broken"),
        ([Look(True)], 0, "is not this installation's front"),
        ([Look(True, "ba9876543210", "c", 8001)], 0, "is not this installation's front"),
        ([STALE], 0, "nginx leads it to 8000"),
        ([Look(True, IDENTITY, "c", 0)], 0, "nowhere.*must be able to reach"),
    ],
)
def test_a_front_that_does_not_say_so_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seen: list[Look], code: int, told: str
) -> None:
    with pytest.raises(HostError, match=f"DG172.*{told}"):
        opened(tmp_path, monkeypatch, seen, code)


def test_an_nginx_of_its_own_is_started_by_its_own_command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(front, "root_under_systemd", lambda: True)
    assert front.start_command(["nginx", "-c", "/x"]) == ["nginx", "-c", "/x"]
    assert front.start_command(["/usr/sbin/nginx"]) == START
    monkeypatch.setattr(front, "root_under_systemd", lambda: False)
    assert front.start_command(["/usr/sbin/nginx"]) == ["/usr/sbin/nginx"]


# Drain


@pytest.mark.parametrize(
    ("counts", "limit", "drained"),
    [
        ([0], None, Drained(0.2, 0)),
        ([3, 2, 1, 0], None, Drained(0.8, 0)),
        ([0, 1, 0], None, Drained(0.6, 0)),  # it was led there, and reached the engine a moment later
        ([2, 1], 1.0, Drained(1.0, 1)),
        ([1], None, Drained(60.0, 1)),
        ([1], 0.0, Drained(0.0, 1)),
    ],
)
def test_a_drain_waits_for_what_runs_and_no_longer_than_it_may(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, counts: list[int], limit: float | None, drained: Drained
) -> None:
    asked: set[tuple[str, int, str]] = set()
    reports: list[str] = []

    def connections(*whom: Any) -> int:
        asked.add(whom)
        return counts.pop(0) if len(counts) > 1 else counts[0]

    monkeypatch.setattr(front, "connections_to", connections)
    for target in ("8000", "8001"):
        lead(str(tmp_path), target)
    (tmp_path / "8000").unlink()
    (tmp_path / "8000").mkdir()  # as it was once
    one = NginxFront(installed(tmp_path), clocks=Time().clocks)
    done = one.drain(limit, lambda stage, _done, _total, detail: reports.append(f"{stage}: {detail}"))
    assert (round(done.seconds, 1), done.left) == (drained.seconds, drained.left)
    assert asked == {("127.0.0.1", 8000, "nginx")}, "the port that it leads to is not drained"
    assert not reports or "drain:" in reports[0] and "request(s) still run" in reports[0]
    assert not (tmp_path / "8000").exists(), "a port of long ago may be somebody else's"


def test_a_closed_front_drains_every_port(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: set[int] = set()

    def count(_host: str, port: int, _name: str) -> int:
        asked.add(port)
        return 0

    monkeypatch.setattr(front, "connections_to", count)
    one = NginxFront(installed(tmp_path), clocks=Time().clocks)
    lead(str(tmp_path), "8000")
    lead(str(tmp_path), "8001")
    one.close()
    one.drain(None, silent)
    assert asked == {8000, 8001} and one.routed() == 0
