"""The front of a host, installed, changed or removed: nginx's server file, in force or taken back.

Where the front leads is no part of it: see :mod:`front`. So nginx is reloaded only when a variable changes.
"""

from __future__ import annotations

import contextlib
import glob
import hashlib
import json
import os
import shlex
import shutil
from dataclasses import asdict, dataclass, field
from typing import Any, Dict, List, Mapping, Optional, Set

from . import front
from .backend.base import Runner, run_command
from .clocks import Clocks
from .credentials import mask
from .errors import HostError
from .files import write_changed, write_json
from .gateway_server import Nginx, server_file
from .gateway_variables import ENABLED, READERS, check, is_enabled, settings_of
from .layout import Home
from .processes import all_pids, command, home_digest, listeners, port_holder

__all__ = ["Gateway", "check", "differs", "module_result"]

_COMMAND_SECONDS = 60.0
_IN_FORCE_SECONDS = 10.0
_LOOK_EVERY = 0.05  # seconds
_ERROR_LOG = "Nothing was changed: what nginx had in force goes on. Its error log says why."


def differs(home: Home, wished: Mapping[str, Any]) -> List[Dict[str, Any]]:
    """``[{field, before, after}]``: what a deploy would change at the front. Reads only.

    :param wished: the variables ``gateway_*``.
    :raises InputError: a variable without meaning.
    """
    stored = front.read(home)
    if not is_enabled(wished):
        return [] if stored is None else [_row(ENABLED, True, False)]
    settings = settings_of(wished)
    if stored is None:
        return [_row(ENABLED, False, True)]
    known = stored["settings"]
    rows = [
        _row(name, known.get(name), value) for name, value in settings.items() if known.get(name) != value
    ]
    if rows:
        return rows
    gateway = Gateway(home, Nginx.of(stored["nginx"]))
    text, digest = server_file(home, settings, gateway.nginx)
    if gateway.file_text() != text:
        return [_row("gateway", f"{gateway.path} is another", "as the variables say")]
    if not gateway.is_in_force(settings, digest):
        return [_row("gateway", "does not answer at its public address", "answers")]
    return []


def _row(name: str, before: Any, after: Any) -> Dict[str, Any]:
    return {"field": name, "before": before, "after": after}


@dataclass(frozen=True)
class Gateway:
    """The front of one home on this host.

    :param run: how commands are run.
    """

    home: Home
    nginx: Nginx = field(default_factory=Nginx)
    run: Runner = run_command
    clocks: Clocks = field(default_factory=Clocks)

    @property
    def identity(self) -> str:
        return home_digest(self.home.root)

    @property
    def path(self) -> str:
        """The server file."""
        return os.path.join(self.nginx.configuration, f"draftgate-{self.identity}.conf")

    @property
    def directory(self) -> str:
        """Holds where the front leads."""
        return os.path.join(self.nginx.state, self.identity)

    def file_text(self) -> str:
        """The server file as it is; empty without one."""
        try:
            with open(self.path, encoding="utf-8", errors="replace") as handle:
                return handle.read()
        except FileNotFoundError:
            return ""

    def is_in_force(self, settings: Mapping[str, Any], digest: str) -> bool:
        """Whether nginx answers at the public address, and by this configuration."""
        seen = self._look(settings)
        return (seen.identity, seen.config) == (self.identity, digest)

    def present(self, settings: Mapping[str, Any], check: bool) -> Dict[str, Any]:
        """Install or change the front. A new one is closed until the switch opens it.

        :returns: ``{changed, missing, diff}``; ``missing``: there is no nginx yet, so nothing was done.
        :raises HostError: nginx refuses the configuration, or does not bring it into force. What was in
            force before still is.
        """
        text, digest = server_file(self.home, settings, self.nginx)
        record = {"identity": self.identity, "settings": dict(settings), "nginx": asdict(self.nginx)}
        record = json.loads(json.dumps(record))
        before, stored = self.file_text(), front.read(self.home)
        site = self._default_site() if settings["gateway_remove_default_site"] else ""
        in_force = before == text and not site and self.is_in_force(settings, digest)
        result: Dict[str, Any] = {"changed": not in_force or stored != record}
        result.update(missing=not self._is_installed(), diff=self._diff(before, text))
        if check:
            return result
        if result["missing"]:
            return {**result, "changed": False}
        if not in_force:
            self._require_rights()
            self._require_address(settings)
            if not os.path.islink(os.path.join(self.directory, front.LINK)):
                front.lead(self.directory, front.CLOSED)
            self._bring_into_force(settings, text, digest, site, stored)
        if stored != record:
            write_json(self.home.front, record)
        return result

    def absent(self, check: bool) -> Dict[str, Any]:
        """Remove the front; nginx, its other sites and the front's access log stay.

        :raises HostError: nginx refuses what is left of its configuration; the front is still there then.
        """
        before, stored = self.file_text(), front.read(self.home)
        doomed = [path for path in (self.path, self.directory, self.home.front) if os.path.lexists(path)]
        if doomed and not check:
            if before:
                self._require_rights()
                self._withdraw(stored["settings"] if stored else None)
            shutil.rmtree(self.directory, ignore_errors=True)
            with contextlib.suppress(OSError):  # another home's front may lie there
                os.rmdir(self.nginx.state)
            with contextlib.suppress(FileNotFoundError):
                os.unlink(self.home.front)
        logs = os.path.join(self.nginx.logs, f"draftgate-{self.identity}.log*")
        return {
            "changed": bool(doomed),
            "missing": False,
            "kept": sorted(glob.glob(logs)),
            "diff": self._diff(before, ""),
        }

    def _diff(self, before: str, after: str) -> Dict[str, str]:
        return {"before_header": self.path, "after_header": self.path, "before": before, "after": after}

    # Steps

    def _bring_into_force(
        self,
        settings: Mapping[str, Any],
        text: str,
        digest: str,
        site: str,
        stored: Optional[Mapping[str, Any]],
    ) -> None:
        before, told = self.file_text(), False
        if before and stored and _only_the_host_differs(stored["settings"], settings):
            self._withdraw(stored["settings"])  # nginx cannot bind 10.0.0.5:80 while it holds 0.0.0.0:80
            told = True
        target = os.readlink(site) if site else ""
        if site:
            os.unlink(site)
        write_changed(self.path, text)
        try:
            self._test()
            told, old = True, self._workers(settings)
            self._load()
            self._await(settings, digest, old)
        except HostError:
            self._restore(before)
            if site:
                os.symlink(target, site)
            if told and self._reload() and before and stored:
                with contextlib.suppress(HostError):  # what is told is the first one
                    former = server_file(self.home, stored["settings"], self.nginx)
                    self._await(stored["settings"], former[1], set())
            raise

    def _withdraw(self, settings: Optional[Mapping[str, Any]]) -> None:
        """Without the server file, as far as nginx runs."""
        before = self.file_text()
        os.unlink(self.path)
        if not self._is_installed():
            return
        try:
            self._test()
        except HostError:
            self._restore(before)
            raise
        self._reload()
        deadline = self.clocks.boottime() + _IN_FORCE_SECONDS
        while settings and self._look(settings).identity == self.identity:
            if self.clocks.boottime() >= deadline:
                self._restore(before)
                raise HostError("removing the front", "nginx still has it after a reload", code="DG171")
            self.clocks.sleep(_LOOK_EVERY)

    def _restore(self, before: str) -> None:
        if before:
            write_changed(self.path, before)
        else:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(self.path)

    def _test(self) -> None:
        code, out, err = self.run([*self.nginx.command, "-t"], _COMMAND_SECONDS)
        if code != 0:
            wrong = [line for line in (err or out).splitlines() if "[emerg]" in line] or [err or out]
            raise HostError(
                "testing nginx's configuration",
                " / ".join(line.strip() for line in wrong),
                "",
                "Nothing was changed: what nginx had in force goes on.",
                code="DG170",
            )

    def _load(self) -> None:
        """nginx reads its configuration, or is started to."""
        if self._is_a_unit():
            self._require(["systemctl", "reload-or-restart", "nginx"])
        elif not self._reload():
            self._require(list(self.nginx.command))

    def _reload(self) -> bool:
        """Whether there was an nginx to tell. That the answer is yes says nothing of what it did."""
        if self._is_a_unit():
            return self.run(["systemctl", "try-reload-or-restart", "nginx"], _COMMAND_SECONDS)[0] == 0
        if not self._runs():  # its pid file may be of one that was killed
            return False
        return self.run([*self.nginx.command, "-s", "reload"], _COMMAND_SECONDS)[0] == 0

    def _require(self, command: List[str]) -> None:
        code, out, err = self.run(command, _COMMAND_SECONDS)
        if code != 0:
            observed = f"{shlex.join(command)} ended with {code}: {(err or out).strip()}"
            raise HostError("loading nginx's configuration", observed, "", _ERROR_LOG, code="DG171")

    def _await(self, settings: Mapping[str, Any], digest: str, old: Set[int]) -> None:
        """Until it answers by the new configuration, and none of the old workers accepts any more.

        ``nginx -s reload`` says yes also to a configuration that nginx then cannot bring into force.
        """
        deadline = self.clocks.boottime() + _IN_FORCE_SECONDS
        while not self.is_in_force(settings, digest) or old & self._workers(settings):
            if self.clocks.boottime() >= deadline:
                who = "something else answers" if self._look(settings).listens else "nobody listens"
                observed = f"{who} at {_public(settings)}"
                raise HostError(
                    "loading nginx's configuration", observed, "the front", _ERROR_LOG, code="DG171"
                )
            self.clocks.sleep(_LOOK_EVERY)

    # Looks

    def _workers(self, settings: Mapping[str, Any]) -> Set[int]:
        """Those that accept at the public address."""
        found = listeners(settings["gateway_host"], settings["gateway_port"])
        return {pid for pid in found if command(pid).startswith("nginx: worker")}

    def _look(self, settings: Mapping[str, Any]) -> front.Look:
        tls = bool(settings["gateway_tls_certificate"])
        return front.look(settings["gateway_host"], settings["gateway_port"], tls)

    def _is_installed(self) -> bool:
        return shutil.which(self.nginx.command[0]) is not None

    def _is_a_unit(self) -> bool:
        return front.start_command(self.nginx.command)[0] == "systemctl"

    def _runs(self) -> bool:
        found = [line for line in map(command, all_pids()) if line.startswith("nginx: master process")]
        return any(all(word in line for word in self.nginx.command[1:]) for line in found)

    def _require_rights(self) -> None:
        if not os.access(self.nginx.configuration, os.W_OK):
            raise HostError(
                "installing the front",
                f"this user may not write to {self.nginx.configuration}",
                "root",
                "Set ansible_become: true for this host.",
            )

    def _require_address(self, settings: Mapping[str, Any]) -> None:
        holder = port_holder(settings["gateway_host"], settings["gateway_port"])
        if holder is None or holder["command"].startswith("nginx:"):
            return
        raise HostError(
            "installing the front",
            f"{_public(settings)} is held by pid {holder['pid']} ({mask(holder['command'])[:120]})",
            "a free port",
            "Stop it, or set gateway_port. An engine of ours moves by a deploy of its own: first another "
            f"vllm_port, then {ENABLED}.",
            code="DG171",
        )

    def _default_site(self) -> str:
        """The link of the distribution's welcome page, where nobody has changed either; else empty."""
        root = os.path.dirname(self.nginx.configuration)
        link, page = (os.path.join(root, name, "default") for name in ("sites-enabled", "sites-available"))
        if not os.path.islink(link) or os.path.realpath(link) != os.path.realpath(page):
            return ""
        try:
            with open(page, "rb") as handle:
                digest = hashlib.md5(handle.read(), usedforsecurity=False).hexdigest()  # as dpkg has it
        except OSError:
            return ""
        _code, out, _err = self.run(["dpkg-query", "-W", "-f=${Conffiles}", "nginx-common"], _COMMAND_SECONDS)
        return link if f"{page} {digest}" in out else ""


def _public(settings: Mapping[str, Any]) -> str:
    return f"{settings['gateway_host']}:{settings['gateway_port']}"


def _only_the_host_differs(before: Mapping[str, Any], after: Mapping[str, Any]) -> bool:
    one, two = ((each["gateway_host"], each["gateway_port"]) for each in (before, after))
    return one != two and one[1] == two[1]


def module_result(given: Mapping[str, Any], check_mode: bool) -> Dict[str, Any]:
    """The module ``gateway``.

    :param given: the module's arguments.
    """
    nginx = Nginx(
        command=tuple(given["nginx"]),
        configuration=given["configuration_directory"],
        state=given["state_directory"],
        logs=given["log_directory"],
    )
    gateway = Gateway(Home.at(given["home"]), nginx)
    if given["state"] == "absent":
        return gateway.absent(check_mode)
    settings = settings_of({name: given[name[len("gateway_") :]] for name in READERS})
    return gateway.present(settings, check_mode)
