"""One at a time, for as long as the holder lives."""

from __future__ import annotations

import contextlib
import fcntl
import os
from typing import Iterator

from .files import make_directory


@contextlib.contextmanager
def locked(path: str) -> Iterator[None]:
    """Hold ``path`` exclusively; whoever comes second waits. The lock dies with its process."""
    make_directory(os.path.dirname(path))
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)
