"""The front of one host: where the public address leads.

nginx takes the engine's port from a symbolic link that it resolves anew for each request. So leading the
address elsewhere is one rename: in force with the next request, whole after a kill, there after a reboot, and
no reload, which would close the connections that clients keep and those of every other site of this nginx.

The role ``gateway`` installs the front (:mod:`gateway`); only the host's switch leads it.
"""

from __future__ import annotations

import contextlib
import http.client
import os
import re
import shlex
import ssl
from dataclasses import dataclass, field
from typing import Any, Dict, List, Mapping, Optional, Protocol, Sequence, Tuple

from . import progress
from .backend.base import Runner, run_command
from .clocks import Clocks
from .errors import HostError
from .files import fsync_directory, is_no_room, make_directory, read_json
from .layout import Home, root_under_systemd
from .processes import connections_to

ENGINE_HOST = "127.0.0.1"
LINK = "route"
CLOSED = "closed"
ASKED_PATH = "/draftgate/front"
"""Where the front says, to its own host only, what it is and where it leads."""

_NGINX = "nginx"
_LOOK_EVERY = 0.2  # seconds
_LOOK_TIMEOUT = 3.0
_ANSWER_SECONDS = 10.0
"""How long a front may take to answer after nginx was started."""
_START_SECONDS = 60.0


@dataclass(frozen=True)
class Drained:
    """:param seconds: how long it took; :param left: requests that still ran when the time was up."""

    seconds: float
    left: int


class Front(Protocol):
    """What the switch asks of the front. All of it may be asked again after a kill."""

    def routed(self) -> Optional[int]:
        """The engine port that the front leads to; 0 = it is closed; None = there is no front here."""

    def open(self, port: int) -> None:
        """Lead the public address to this port of 127.0.0.1; starts nginx where nobody listens.

        :raises HostError: the public address does not answer that it leads there.
        :raises OSError: the disk is full; the front leads where it led.
        """

    def close(self) -> None:
        """From now on every request gets 503 and Retry-After. Those that were accepted before go on.

        :raises HostError: the link cannot be written; the front leads where it led.
        :raises OSError: the disk is full; the same.
        """

    def drain(self, seconds: Optional[float], report: progress.Report) -> Drained:
        """Wait for the requests that were accepted before the last open or close.

        :param seconds: the most to wait; None = the front's own limit.
        """


class NoFront:
    """A host without a front."""

    def routed(self) -> Optional[int]:
        return None

    def open(self, port: int) -> None: ...

    def close(self) -> None: ...

    def drain(self, seconds: Optional[float], report: progress.Report) -> Drained:
        return Drained(0.0, 0)


@dataclass(frozen=True)
class Installed:
    """A front as ``state/front.json`` has it.

    :param identity: tells it from the front of another installation.
    :param host: public address; :param port: public port.
    :param directory: holds the link, and an empty file for each port that it has led to.
    :param drain_seconds: the most that a drain waits.
    :param nginx: how nginx is called.
    """

    identity: str
    host: str
    port: int
    tls: bool
    directory: str
    drain_seconds: float
    nginx: Tuple[str, ...]

    @classmethod
    def of(cls, stored: Mapping[str, Any]) -> Installed:
        settings, nginx = stored["settings"], stored["nginx"]
        return cls(
            identity=stored["identity"],
            host=settings["gateway_host"],
            port=settings["gateway_port"],
            tls=bool(settings["gateway_tls_certificate"]),
            directory=os.path.join(nginx["state"], stored["identity"]),
            drain_seconds=float(settings["gateway_drain_seconds"]),
            nginx=tuple(nginx["command"]),
        )


def read(home: Home) -> Optional[Dict[str, Any]]:
    """``state/front.json``: ``{identity, settings, nginx}``; None on a host without a front."""
    if not os.path.exists(home.front):
        return None
    return read_json(home.front, "reading how the front was installed")


def front_of(home: Home, run: Runner = run_command, clocks: Optional[Clocks] = None) -> Front:
    """The front of this host, which may be none."""
    stored = read(home)
    if stored is None:
        return NoFront()
    return NginxFront(Installed.of(stored), run, clocks or Clocks())


def start_command(nginx: Sequence[str]) -> List[str]:
    """The command that starts nginx: as the distribution's service where systemd runs it."""
    if root_under_systemd() and len(nginx) == 1:
        return ["systemctl", "start", "nginx"]
    return list(nginx)


# Where it leads


def led(directory: str) -> str:
    """A port or :data:`CLOSED`, which a front without its link is too."""
    try:
        return os.readlink(os.path.join(directory, LINK))
    except OSError:
        return CLOSED


def lead(directory: str, target: str) -> None:
    """Lead to ``target``, a port or :data:`CLOSED`: as a whole and durably.

    nginx resolves the link to what is there, so the target is made: an empty file, which like the link takes
    no block, because a front must open on a full disk too.
    """
    make_directory(directory)
    with contextlib.suppress(FileExistsError), open(os.path.join(directory, target), "xb"):
        fsync_directory(directory)
    link = os.path.join(directory, LINK)
    if os.path.islink(link) and os.readlink(link) == target:
        return
    temporary = os.path.join(directory, f".{LINK}")
    with contextlib.suppress(FileNotFoundError):  # of one that was killed
        os.unlink(temporary)
    os.symlink(target, temporary)
    os.replace(temporary, link)
    fsync_directory(directory)


# What it answers


@dataclass(frozen=True)
class Look:
    """What the public address says.

    :param listens: somebody accepts connections there.
    :param identity: whose front answers; empty when it is none of ours.
    :param config: the digest of the configuration that nginx has in force.
    :param port: the engine port that it leads to; 0 = it is closed.
    """

    listens: bool = False
    identity: str = ""
    config: str = ""
    port: int = 0


def answer_text(identity: str, config: str, port: str) -> str:
    """What :func:`look` understands; ``port`` may be a variable of nginx."""
    return f"draftgate {identity} {config} port={port}"


_ANSWER = re.compile(answer_text(r"(\w+)", r"(\w+)", r"(\d*)"))


def look(host: str, port: int, tls: bool) -> Look:
    """Ask the front that has this public address, from its own host."""
    near = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)
    connection = _connection(near, port, tls)
    try:
        connection.request("GET", ASKED_PATH, headers={"Connection": "close"})
        text = connection.getresponse().read(1000).decode("utf-8", "replace")
    except ConnectionRefusedError:
        return Look()
    except (OSError, http.client.HTTPException):
        return Look(listens=True)
    finally:
        connection.close()
    found = _ANSWER.fullmatch(text.strip())
    if not found:
        return Look(listens=True)
    return Look(True, found.group(1), found.group(2), int(found.group(3) or 0))


def _connection(host: str, port: int, tls: bool) -> http.client.HTTPConnection:
    if not tls:
        return http.client.HTTPConnection(host, port, timeout=_LOOK_TIMEOUT)
    context = ssl.create_default_context()
    context.check_hostname = False  # the certificate is for the public name, and nothing secret is sent
    context.verify_mode = ssl.CERT_NONE
    return http.client.HTTPSConnection(host, port, timeout=_LOOK_TIMEOUT, context=context)


@dataclass(frozen=True)
class NginxFront:
    """The front that the role ``gateway`` has installed."""

    installed: Installed
    run: Runner = run_command
    clocks: Clocks = field(default_factory=Clocks)

    def routed(self) -> Optional[int]:
        target = led(self.installed.directory)
        return int(target) if target.isdecimal() else 0

    def open(self, port: int) -> None:
        self._lead(str(port))
        deadline, started = self.clocks.boottime() + _ANSWER_SECONDS, False
        while True:
            seen = self._look()
            if (seen.identity, seen.port) == (self.installed.identity, port):
                return
            if not seen.listens and not started:
                self._start()
                deadline, started = self.clocks.boottime() + _ANSWER_SECONDS, True
            if self.clocks.boottime() >= deadline:
                raise self._astray(seen, port)
            self.clocks.sleep(_LOOK_EVERY)

    def close(self) -> None:
        self._lead(CLOSED)

    def drain(self, seconds: Optional[float], report: progress.Report) -> Drained:
        limit = self.installed.drain_seconds if seconds is None else seconds
        began, clear = self.clocks.boottime(), 0
        while True:
            left, waited = self._left(), self.clocks.boottime() - began
            clear = 0 if left else clear + 1
            # twice, because a request that was led there just before may not have reached the engine yet
            if clear == 2 or (left and waited >= limit):
                self._forget()
                return Drained(round(waited, 2), left)
            report("drain", 0, 0, f"{left} request(s) still run, {max(0.0, limit - waited):.0f} s at most")
            self.clocks.sleep(_LOOK_EVERY)

    def _lead(self, target: str) -> None:
        try:
            lead(self.installed.directory, target)
        except OSError as exc:
            if is_no_room(exc):
                raise  # the switch waits for room
            observed = f"{self.installed.directory}: {exc.strerror}"
            raise HostError("leading the front", observed, f"a link to {target}", code="DG172") from exc

    def _look(self) -> Look:
        return look(self.installed.host, self.installed.port, self.installed.tls)

    def _start(self) -> None:
        command = start_command(self.installed.nginx)
        code, out, err = self.run(command, _START_SECONDS)
        if code != 0:
            raise HostError(
                "starting nginx, because nobody listens at the public address",
                f"{shlex.join(command)} ended with {code}: {(err or out).strip()}",
                "",
                "nginx -t says what is wrong with its configuration.",
                code="DG172",
            )

    def _astray(self, seen: Look, port: int) -> HostError:
        public = f"{self.installed.host}:{self.installed.port}"
        step = "Deploy again: it writes the front's configuration and loads it."
        if not seen.listens:
            observed = f"nobody listens at {public}"
        elif seen.identity != self.installed.identity:
            observed = f"what answers at {public} is not this installation's front"
        else:
            observed = f"nginx leads it to {seen.port or 'nowhere'}"
            step = f"Its workers must be able to reach {self.installed.directory}; its error log says more."
        return HostError("leading the front", observed, f"port {port}", step, code="DG172")

    def _others(self) -> List[str]:
        """The ports that it has led to and leads to no more."""
        directory, now = self.installed.directory, led(self.installed.directory)
        return [name for name in sorted(os.listdir(directory)) if name.isdecimal() and name != now]

    def _left(self) -> int:
        """nginx opens one connection for each request, so that these are the requests that still run."""
        return sum(connections_to(ENGINE_HOST, int(port), _NGINX) for port in self._others())

    def _forget(self) -> None:
        """A port of long ago may be somebody else's by now."""
        for port in self._others():
            path = os.path.join(self.installed.directory, port)
            with contextlib.suppress(OSError):
                os.unlink(path)
            with contextlib.suppress(OSError):
                os.rmdir(path)  # it was a directory once
