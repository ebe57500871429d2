"""The installer with the real venv and pip, against indexes made here and no configuration of pip at all."""

from __future__ import annotations

import base64
import contextlib
import hashlib
import io
import json
import os
import platform
import subprocess
import sys
import threading
import time
import zipfile
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
from draftgate import runtime
from draftgate.errors import HostError
from draftgate.runtime_lock import Lock, parse_lock

VERSION = "{}.{}".format(*sys.version_info[:2])
PASSWORD = "hunter2"
AUTHORIZATION = "Basic " + base64.b64encode(f"me:{PASSWORD}".encode()).decode()

INSTALL = """
import json, sys
from draftgate import runtime
def show(*step):
    print(json.dumps(step), flush=True)
lock, root, extra_index = runtime.read_lock(sys.argv[1]), sys.argv[2], sys.argv[3]
options = runtime.Options(python=sys.executable, extra_index=extra_index)
done = runtime.install(lock, root, options, progress=show)
show("done", int(done.changed), 1, "")
"""


def wheel(name: str, version: str, files: dict[str, bytes]) -> bytes:
    """A wheel of pure Python, the same bytes each time."""
    info = f"{name}-{version}.dist-info"
    files = {
        **files,
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n".encode(),
        f"{info}/WHEEL": b"Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    files[f"{info}/RECORD"] = "".join(f"{path},,\n" for path in [*files, f"{info}/RECORD"]).encode()
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        for path, content in files.items():
            archive.writestr(zipfile.ZipInfo(path, (1980, 1, 1, 0, 0, 0)), content)
    return buffer.getvalue()


# Its local version is what the ordinary index does not have of torch. 3 MiB: more than any buffer.
WHEELS = {
    "little_cpu-1.0-py3-none-any.whl": wheel("little_cpu", "1.0", {"little.py": b"import torch\n"}),
    "torch-2.13.0+cpu-py3-none-any.whl": wheel(
        "torch", "2.13.0+cpu", {"torch/__init__.py": b"", "torch/weights.bin": os.urandom(3 << 20)}
    ),
}
LITTLE, TORCH = WHEELS


def lock_text(torch: bytes = WHEELS[TORCH]) -> str:
    pins = [("little-cpu==1.0", WHEELS[LITTLE]), ("torch==2.13.0+cpu", torch)]
    return f"""\
# draftgate-lock: 1
# engine: little
# engine-version: 1.0
# distribution: little-cpu
# also-installs-as: little==1.0+cpu
# device: cpu
# python: {VERSION}
# platform: linux_{platform.machine()}
# glibc: 2.17
# imports: torch little
# extra-index-packages: torch
# packages: 2

""" + "".join(
        f"{pin} --hash=sha256:{hashlib.sha256(content).hexdigest()}  # bytes={len(content)}/{len(content)}\n"
        for pin, content in pins
    )


class Index(ThreadingHTTPServer):
    """Two indexes: /ordinary/ has little-cpu and another torch, /extra/ the wanted one, with a password.

    ``stall`` set: half of torch's wheel is sent, then nothing until it is cleared.
    """

    daemon_threads = True

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.stall = False
        super().__init__(("127.0.0.1", 0), Pages)

    def url(self, index: str, user: str = "") -> str:
        return f"http://{user}127.0.0.1:{self.server_address[1]}/{index}/"


class Pages(BaseHTTPRequestHandler):
    server: Index
    files = {"/files/" + quote(name): content for name, content in WHEELS.items()}
    links = {
        "/ordinary/little-cpu/": [LITTLE],
        "/ordinary/torch/": ["torch-2.13.0-py3-none-any.whl"],
        "/extra/torch/": [TORCH],
    }

    def do_GET(self) -> None:
        self.server.asked.append(self.path)
        if self.path.startswith("/extra/") and self.headers.get("Authorization") != AUTHORIZATION:
            self.send_error(401)
        elif self.path in self.links:
            page = "".join(f'<a href="/files/{quote(name)}">{name}</a>' for name in self.links[self.path])
            self._send("text/html", page.encode())
        elif self.path in self.files:
            self._send("application/octet-stream", self.files[self.path])
        else:
            self.send_error(404)

    def _send(self, kind: str, content: bytes) -> None:
        self.send_response(200)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        half = len(content) // 2 if self.server.stall and quote(TORCH) in self.path else 0
        self.wfile.write(content[:half])
        while half and self.server.stall:
            time.sleep(0.05)
        self.wfile.write(content[half:])

    def handle(self) -> None:
        with contextlib.suppress(ConnectionError):  # a killed pip
            super().handle()

    def log_message(self, *_arguments: Any) -> None:
        """Silent."""


@pytest.fixture
def index(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Index]:
    """Running, and the one thing that pip is told: where the ordinary index is."""
    for name in [name for name in os.environ if name.startswith("PIP_")]:
        monkeypatch.delenv(name)
    server = Index()
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("PIP_INDEX_URL", server.url("ordinary"))
    monkeypatch.setenv("PIP_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield server
    server.stall = False
    server.shutdown()
    server.server_close()


def install(lock: Lock, root: Path, extra_index: str, steps: list[Any]) -> runtime.Installed:
    options = runtime.Options(python=sys.executable, extra_index=extra_index)
    return runtime.install(lock, str(root), options, progress=lambda *step: steps.append(step))


def test_the_extra_index_is_what_makes_it_resolvable(index: Index, tmp_path: Path) -> None:
    lock, steps = parse_lock(lock_text()), list[Any]()
    with pytest.raises(HostError, match="DG505.*no index has torch 2.13.0.cpu.*Set the extra index"):
        install(lock, tmp_path, "", steps)
    assert runtime.installed(lock, str(tmp_path)) is None

    index.asked.clear()
    steps.clear()
    made = install(lock, tmp_path, index.url("extra", f"me:{PASSWORD}@"), steps)
    assert [path for path in index.asked if path.startswith("/extra/")][-1:] == ["/extra/torch/"]
    assert "/extra/little-cpu/" not in index.asked

    asked = "import little, torch, importlib.metadata as m; print(m.version('little'), m.version('torch'))"
    shown = subprocess.run([made.python, "-c", asked], capture_output=True, text=True, check=True).stdout
    assert shown == "1.0+cpu 2.13.0+cpu\n"
    assert list(dict.fromkeys(step[0] for step in steps)) == list(runtime.STAGES)
    for stage in ("download", "install", "compile"):
        counts = [(done, total) for name, done, total, _detail in steps if name == stage]
        assert counts == sorted(counts) and counts[-1][1] > 0, stage
    assert PASSWORD not in json.dumps(steps)
    files = (path for path in Path(made.path).rglob("*") if path.is_file())
    assert not [path for path in files if PASSWORD.encode() in path.read_bytes()]


def test_a_wheel_that_is_not_the_locked_one(index: Index, tmp_path: Path) -> None:
    published = b"the published file"
    wanted = hashlib.sha256(published).hexdigest()
    with pytest.raises(HostError, match=f"DG504.*torch==2.13.0.cpu has sha256.*expected: {wanted}") as caught:
        install(parse_lock(lock_text(published)), tmp_path, index.url("extra", f"me:{PASSWORD}@"), [])
    assert PASSWORD not in json.dumps(caught.value.as_dict())


def start(tmp_path: Path, index: Index) -> subprocess.Popen[str]:
    path = tmp_path / "lock.txt"
    path.write_text(lock_text())
    arguments = [str(path), str(tmp_path / "root"), index.url("extra", f"me:{PASSWORD}@")]
    environment = {**os.environ, "PYTHONPATH": str(Path(runtime.__file__).parents[1])}
    return subprocess.Popen(
        [sys.executable, "-c", INSTALL, *arguments], env=environment, stdout=subprocess.PIPE, text=True
    )


def wait_for(process: subprocess.Popen[str], wanted: Callable[[str, int, str], bool]) -> None:
    """Read the installer's steps (stage, done, detail) until one is ``wanted``."""
    assert process.stdout is not None
    for line in process.stdout:
        stage, done, _total, detail = json.loads(line)
        if wanted(stage, done, detail):
            return
    raise AssertionError("the installer ended before")


def processes_in(directory: Path) -> set[int]:
    """Processes that run what lies in ``directory``."""
    found = set()
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            if path.read_bytes().startswith(f"{directory}/".encode()):
                found.add(int(path.parent.name))
    return found


def test_killed_half_way_the_next_installer_makes_it_anew(index: Index, tmp_path: Path) -> None:
    lock, root = parse_lock(lock_text()), tmp_path / "root"
    index.stall = True
    with start(tmp_path, index) as first:
        wait_for(first, lambda stage, done, _detail: stage == "download" and done > 0)
        with start(tmp_path, index) as second:
            wait_for(second, lambda _stage, _done, detail: detail.startswith("another installer"))
            working = processes_in(root)
            assert working and runtime.installed(lock, str(root)) is None
            first.kill()
            end = time.monotonic() + 10  # before pip tires of the silent index by itself
            while working & processes_in(root):
                assert time.monotonic() < end, "pip outlives its installer"
                time.sleep(0.1)
            index.stall = False
            wait_for(second, lambda stage, done, _detail: stage == "done" and done == 1)
        assert second.returncode == 0
    steps: list[Any] = []
    assert not install(lock, root, "", steps).changed
    assert not steps
