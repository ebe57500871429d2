"""Where what is expensive to make lies between runs, by digest and outside the checkout."""

from __future__ import annotations

import os
from pathlib import Path

REPO = Path(__file__).resolve().parent.parent


def _default() -> Path:
    """Root's is open to all: a test host's service user runs the engine's runtime from there."""
    return Path("/var/cache/draftgate") if os.geteuid() == 0 else Path.home() / ".cache" / "draftgate"


CACHE = Path(os.environ.get("DRAFTGATE_CACHE") or _default())
"""The Makefile hands its own ``DRAFTGATE_CACHE`` on."""
RUNTIMES = CACHE / "runtimes"
