"""The base of all test hosts: one root file system, built once per recipe, never written to afterwards."""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

from tests.cache import CACHE
from tests.hosts import recipe

NEEDS = {
    "mmdebstrap": "mmdebstrap",
    "systemd-nspawn": "systemd-container",
    "ip": "iproute2",
    "ssh": "openssh-client",
}
"""Command → the Debian package that has it."""

BUILD_SECONDS = 60  # of a machine with two busy cores


class NoHosts(Exception):
    """This machine cannot boot hosts; the message says why and what to do."""


def require() -> None:
    """:raises NoHosts: we are not root, or a program is missing."""
    own = "Or run the same scenarios on a host of your own: DRAFTGATE_TEST_INVENTORY=path/to/inventory."
    if os.geteuid() != 0:
        raise NoHosts(
            "Test hosts are systemd-nspawn machines, and only root can boot them; this is uid "
            f"{os.geteuid()}. Run it as root. {own}"
        )
    missing = sorted(package for command, package in NEEDS.items() if not shutil.which(command))
    if missing:
        raise NoHosts(f"Test hosts need {', '.join(missing)}: apt-get install {' '.join(missing)}. {own}")


def path() -> Path:
    """Where the base lies, or is to lie."""
    return CACHE / "hosts" / recipe.digest()


def built() -> Path:
    """The base's directory; built where it is not there yet. Safe to be killed in, and for two at once."""
    require()
    target = path()
    target.parent.mkdir(parents=True, exist_ok=True)
    with open(target.parent / "lock", "w", encoding="ascii") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not target.is_dir():
            _build(target)
    return target


def _build(target: Path) -> None:
    """Beside its place, renamed when it is whole."""
    building = target.with_name(f".{target.name}")
    shutil.rmtree(building, ignore_errors=True)
    argv = ["mmdebstrap", "--quiet", "--variant=minbase", f"--include={','.join(recipe.PACKAGES)}"]
    argv += [f"--customize-hook={step}" for step in recipe.SETUP]
    with _progress(f"test hosts | base {target.name} | {recipe.SUITE}, {len(recipe.PACKAGES)} packages"):
        done = subprocess.run(
            [*argv, recipe.SUITE, str(building)], capture_output=True, text=True, check=False
        )
    if done.returncode != 0:
        raise RuntimeError(
            f"Building the test hosts' base ended with {done.returncode}: {done.stderr[-2000:]}"
        )
    building.rename(target)


@contextlib.contextmanager
def _progress(what: str) -> Iterator[None]:
    """A line now and every ten seconds, with what has passed and what remains by experience."""
    ended, began = threading.Event(), time.monotonic()

    def show() -> None:
        while True:
            passed = time.monotonic() - began
            left = max(0.0, BUILD_SECONDS - passed)
            sys.stderr.write(f"{what} | {passed:.0f}s, ~{left:.0f}s left\n")
            if ended.wait(10):
                return

    thread = threading.Thread(target=show, daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()
