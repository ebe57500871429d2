"""Run a long program and watch what it says while it works."""

from __future__ import annotations

import ctypes
import os
import selectors
import signal
import subprocess
from typing import Callable, Collection, List, Mapping, Optional, Sequence

Watch = Callable[[Optional[str]], None]
"""Called with each line of output, and with None about twice a second while there is none."""

Runner = Callable[[Sequence[str], Mapping[str, str], Watch, Collection[int]], int]
"""``runner(argv, environment, watch, keep_open)`` → exit status; ``OSError``: it cannot be started."""

_TICK = 0.5
_PR_SET_PDEATHSIG = 1
_LIBC = ctypes.CDLL(None)


def run_process(
    argv: Sequence[str], environment: Mapping[str, str], watch: Watch, keep_open: Collection[int]
) -> int:
    """Run a program to its end. Output and errors are one stream, decoded leniently.

    :param keep_open: descriptors that the program inherits: a lock on one is held until it is gone too.
    """
    with subprocess.Popen(
        argv,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        pass_fds=tuple(keep_open),
        preexec_fn=_die_with_parent,
    ) as process:
        try:
            _pump(process, watch)
        except BaseException:
            process.kill()
            raise
    return process.returncode


def _die_with_parent() -> None:
    """In the child: be killed when the caller dies, which would otherwise leave it at work unwatched."""
    _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def _pump(process: subprocess.Popen[bytes], watch: Watch) -> None:
    assert process.stdout is not None  # PIPE above
    pending = b""
    with selectors.DefaultSelector() as selector:
        selector.register(process.stdout, selectors.EVENT_READ)
        while True:
            if not selector.select(_TICK):
                watch(None)
                continue
            piece = os.read(process.stdout.fileno(), 1 << 16)
            *lines, pending = (pending + piece).split(b"\n")
            for line in lines if piece else [*lines, pending]:
                watch(line.decode("utf-8", "replace").rstrip())
            if not piece:
                return


def collector(lines: List[str]) -> Watch:
    def collect(line: Optional[str]) -> None:
        if line:
            lines.append(line)

    return collect
