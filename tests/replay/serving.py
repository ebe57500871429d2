"""The same faults for real: the tiny pair on a real vLLM, broken one way after the other.

One installation of its own, removed at the end: a green deploy, then each fault against what serves.
"""

from __future__ import annotations

import contextlib
import io
import os
import shutil
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from draftgate import processes

from tests.e2e.installation import Done, Installation

PORTS = range(8300, 8400)
ARGS = {"dtype": "float32", "max_model_len": 1024, "max_num_seqs": 8, "enforce_eager": True}
WRONG_MASK = {"drafter_overrides": {"dflash_config": {"mask_token_id": 300}}}
REASON = "the replay measures what it is worth"
# One kind of prompts is enough to see that nothing is accepted. What is a little worse needs them all.
BRIEF = {"acceptance_workloads": ["json"]}


class Fault(NamedTuple):
    """:param wish: what is deployed on top of the inventory.
    :param files: what the files say.
    :param reasons: what the gate says, one of them at least; none: the files stop it, nothing is measured.
    """

    name: str
    wish: Mapping[str, Any]
    files: str
    reasons: tuple[str, ...]


FAULTS = (
    Fault("the mask is ordinary text", WRONG_MASK, "DG207", ()),
    Fault(
        "the same, accepted",
        {**WRONG_MASK, **BRIEF, "drafter_accept_findings": [{"code": "DG207", "reason": REASON}]},
        "DG207",
        ("DG802", "DG804"),
    ),
    Fault(
        "layer ids shifted by one",
        {"drafter_overrides": {"dflash_config": {"target_layer_ids": [2, 6, 10]}}},
        "DG215",
        ("DG805",),
    ),
    Fault(
        "no room for a draft",
        {**BRIEF, "vllm_server_args": {**ARGS, "max_num_scheduled_tokens": 1}},
        "DG418",
        ("DG801",),
    ),
)


class Row(NamedTuple):
    """One line of the last table.

    :param wrong: what was not as expected; empty when all was.
    """

    fault: str
    files: str
    length: str
    first: str
    happened: str
    seconds: float
    wrong: str


class Replay:
    """:param say: takes a line."""

    def __init__(self, at: Installation, say: Callable[[str], None]) -> None:
        self._at = at
        self._say = say
        self._began = time.monotonic()
        self._release = ""

    def run(self) -> Iterator[Row]:
        green = self._green()
        yield green
        if green.wrong:
            return  # there is nothing to break
        for fault in FAULTS:
            yield self._fault(fault)

    def _green(self) -> Row:
        done, seconds = self._deploy("the pair as it is", {})
        if done.code:
            self._say(done.output)
            return Row("none", "-", "-", "-", "did not deploy", seconds, f"exit code {done.code}")
        self._release = self._at.status()["release"]
        return self._row("none", "nothing", "serves", seconds, "")

    def _fault(self, fault: Fault) -> Row:
        engine = self._at.engine()
        done, seconds = self._deploy(fault.name, fault.wish)
        state = self._at.status()
        if state["release"] != self._release or not state["healthy"]:
            self._say(done.output)
            return Row(fault.name, "-", "-", "-", "nothing serves", seconds, "what served before does not")
        stays = self._at.engine() == engine
        problems = [] if done.code else ["the deploy succeeded"]
        if not fault.reasons:
            problems += [] if stays else ["the server was restarted"]
            problems += [] if fault.files in done.error() else [f"{fault.files} was not the error"]
            happened = "refused; the same process serves" if stays else "restarted"
            return Row(fault.name, fault.files, "-", "-", happened, seconds, "; ".join(problems))
        problems += self._measured(fault)
        codes = " ".join(reason["code"] for reason in self._evidence()["reasons"])
        return self._row(fault.name, self._files(fault), f"{codes}; restored", seconds, "; ".join(problems))

    def _measured(self, fault: Fault) -> list[str]:
        tried = self._evidence()
        problems = [] if tried["release"] != self._release else ["nothing was measured"]
        if not {reason["code"] for reason in tried["reasons"]} & set(fault.reasons):
            problems.append(f"the gate did not say {' or '.join(fault.reasons)}")
        codes = {finding["code"]: finding["accepted"] for finding in tried["findings"]}
        if fault.files not in codes:
            problems.append(f"the files did not say {fault.files}")
        if "drafter_accept_findings" in fault.wish and codes.get(fault.files) != REASON:
            problems.append("the acceptance was not recorded")
        return problems

    def _files(self, fault: Fault) -> str:
        accepted = "drafter_accept_findings" in fault.wish
        return f"{fault.files}, accepted" if accepted else f"{fault.files}, a warning"

    def _row(self, fault: str, files: str, happened: str, seconds: float, wrong: str) -> Row:
        acceptance = self._evidence()["acceptance"]
        drafts = acceptance["drafts"]
        length = f"{acceptance['mean_acceptance_length']:.2f}" if drafts else "no draft"
        first = f"{100 * acceptance['per_position'][0]:.1f} %" if drafts else "-"
        return Row(fault, files, length, first, happened, seconds, wrong)

    def _evidence(self) -> dict[str, Any]:
        return self._at.evidence("last_attempt")

    def _deploy(self, what: str, wish: Mapping[str, Any]) -> tuple[Done, float]:
        """A deploy whose progress is shown, each line with the time since the replay's begin."""
        began = time.monotonic()
        self._say(f"{self._elapsed()}  {what}: deploying")
        done = self._at.start("deploy.yml", wish).follow(self._show)
        seconds = time.monotonic() - began
        self._say(f"{self._elapsed()}  {what}: exit code {done.code} after {seconds:.0f} s")
        return done, seconds

    def _show(self, line: str) -> None:
        if line.startswith("localhost | "):
            self._say(f"{self._elapsed()}  {line}")

    def _elapsed(self) -> str:
        minutes, seconds = divmod(int(time.monotonic() - self._began), 60)
        return f"{minutes:2}m{seconds:02}s"


@contextlib.contextmanager
def installation() -> Iterator[Installation]:
    """A bare home with a port of its own; nothing of it is left afterwards."""
    root = Path(f"/tmp/dg-e2e-replay-{os.geteuid()}")
    port = next(port for port in PORTS if processes.port_free("127.0.0.1", port))
    at = Installation(root / "home", port, root / "reports")
    _remove(at)
    try:
        yield at
    finally:
        _remove(at)
        shutil.rmtree(root, ignore_errors=True)


def _remove(at: Installation) -> None:
    """What a teardown prints is of interest only when it fails."""
    printed = io.StringIO()
    try:
        with contextlib.redirect_stdout(printed):
            at.remove()
    except AssertionError:
        sys.stderr.write(printed.getvalue())
        raise


def table(rows: list[Row]) -> Iterator[str]:
    """Fault, what the files said, what the gate measured, what happened, seconds."""
    head = ("fault", "files", "τ", "position 1", "what happened", "seconds")
    cells = [head, *((*row[:5], f"{row.seconds:.0f}") for row in rows)]
    widths = [max(len(line[column]) for line in cells) for column in range(len(head))]
    for line in cells:
        yield "  ".join(cell.ljust(width) for cell, width in zip(line, widths)).rstrip()
    yield from (f"NOT AS EXPECTED: {row.fault}: {row.wrong}" for row in rows if row.wrong)
