"""The real nginx as a process of a test's own, with a front in it, beside whatever this machine runs."""

from __future__ import annotations

import contextlib
import getpass
import json
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from draftgate.files import write_atomic
from draftgate.front import Front, front_of
from draftgate.gateway import Gateway
from draftgate.gateway_server import Nginx
from draftgate.gateway_variables import settings_of
from draftgate.layout import Home
from draftgate.processes import command

from tests.slow_engine import free_port

REPO = Path(__file__).resolve().parent.parent
PROGRAM = shutil.which("nginx", path=f"{os.environ['PATH']}:/usr/sbin") or ""
DEFAULTS: dict[str, Any] = yaml.safe_load((REPO / "roles/gateway/defaults/main.yml").read_text("utf-8"))

CONFIGURATION = """
%(user)s
pid %(root)s/nginx.pid;
error_log %(root)s/logs/error.log;
worker_processes 2;
events { worker_connections 768; }
http {
    access_log off;
    client_body_temp_path %(root)s/tmp/body;
    proxy_temp_path %(root)s/tmp/proxy;
    fastcgi_temp_path %(root)s/tmp/fastcgi;
    uwsgi_temp_path %(root)s/tmp/uwsgi;
    scgi_temp_path %(root)s/tmp/scgi;
    gzip on;
    gzip_types *;
    gzip_proxied any;
    proxy_intercept_errors on;
    keepalive_timeout 1s;
    include %(root)s/conf.d/*.conf;
}
"""
"""With what an operator may have set for other sites, and what would be wrong for ours."""


@dataclass
class PrivateNginx:
    """One nginx, and the fronts in it; ``home`` may be another one for a second front."""

    root: Path
    port: int

    @property
    def nginx(self) -> Nginx:
        configuration, state, logs = (str(self.root / name) for name in ("conf.d", "state", "logs"))
        return Nginx((PROGRAM, "-c", str(self.root / "nginx.conf")), configuration, state, logs)

    @property
    def home(self) -> Home:
        return Home.at(str(self.root / "home"))

    @property
    def gateway(self) -> Gateway:
        return Gateway(self.home, self.nginx)

    @property
    def front(self) -> Front:
        return front_of(self.home)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def variables(self, **changes: Any) -> dict[str, Any]:
        """The role's defaults, on this nginx's port."""
        here = {"gateway_enabled": True, "gateway_host": "127.0.0.1", "gateway_port": self.port}
        return {**DEFAULTS, **here, **changes}

    def install(self, **changes: Any) -> dict[str, Any]:
        return self.gateway.present(settings_of(self.variables(**changes)), check=False)

    def site(self, name: str, text: str) -> Path:
        """Somebody else's configuration in the same nginx."""
        path = self.root / "conf.d" / f"{name}.conf"
        write_atomic(str(path), text.encode())
        return path

    def tell(self, *words: str) -> None:
        subprocess.run([*self.nginx.command, *words], check=True, capture_output=True)

    def pid(self) -> int:
        """Of its master; 0 while it does not run."""
        with contextlib.suppress(OSError, ValueError):
            pid = int((self.root / "nginx.pid").read_text())
            return pid if str(self.root) in command(pid) else 0
        return 0

    def kill(self) -> None:
        """Master and workers, in one stroke."""
        master = self.pid()
        children = Path(f"/proc/{master}/task/{master}/children").read_text().split()
        for pid in [master, *map(int, children)]:
            os.kill(pid, signal.SIGKILL)
        while any(command(pid) for pid in [master, *map(int, children)]):
            time.sleep(0.01)

    def log(self) -> str:
        """The front's access log."""
        return (self.root / "logs" / f"draftgate-{self.gateway.identity}.log").read_text("utf-8")

    def logged(self, count: int) -> list[dict[str, Any]]:
        """Its first lines, once they are there: nginx writes one when the client has its answer already."""
        end = time.monotonic() + 5
        while len(lines := self.log().splitlines()) < count and time.monotonic() < end:
            time.sleep(0.01)
        return [json.loads(line) for line in lines]

    def error_log(self) -> str:
        return (self.root / "logs" / "error.log").read_text("utf-8")


@contextlib.contextmanager
def private_nginx(root: Path) -> Iterator[PrivateNginx]:
    """A directory for an nginx that does not run yet; at the end it does not either."""
    assert PROGRAM, "nginx is missing; make test-packages installs it"
    for name in ("conf.d", "logs", "state", "tmp", "home"):
        (root / name).mkdir(parents=True, exist_ok=True)
    user = f"user {getpass.getuser()};" if os.geteuid() == 0 else ""  # pytest's directories are its user's
    (root / "nginx.conf").write_text(CONFIGURATION % {"root": root, "user": user})
    made = PrivateNginx(root, free_port())
    try:
        yield made
    finally:
        if made.pid():
            made.kill()
