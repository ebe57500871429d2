"""What the engineer of the incident would have been told, before anything was downloaded or started."""

from __future__ import annotations

import tempfile
import textwrap
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from draftgate import contract, preflight
from draftgate.contract import Verdict
from draftgate.findings import Finding

from tests import incident

WIDTH = 100


class Claim(NamedTuple):
    """Something that was wrong and that nobody was told, and the finding that tells it now.

    :param words: all of them are in the finding.
    """

    what: str
    code: str
    field: str
    words: tuple[str, ...]

    def finding(self, findings: list[Finding]) -> Finding | None:
        """The first finding that says it."""
        return next((finding for finding in findings if self._is_said_by(finding)), None)

    def _is_said_by(self, finding: Finding) -> bool:
        said = f"{finding.observed} {finding.expected} {finding.message} {finding.fix}"
        is_it = (finding.code, finding.field) == (self.code, self.field)
        return is_it and all(word in said for word in self.words)


MASK, LAYERS = "drafter.dflash_config.mask_token_id", "drafter.dflash_config.target_layer_ids"
CLAIMS = (
    Claim(
        'The mask. The tokens 248040 to 248080 were searched for a name with "mask" in it.',
        "DG207",
        MASK,
        ("248070 <|audio_start|>", "248077", 'No token\'s name contains "mask", so a search by name cannot'),
    ),
    Claim("The captured layers, guessed.", "DG215", LAYERS, ("[1, 17, 33, 49, 63]", "[1, 16, 31, 46, 61]")),
    Claim("The windows, left out.", "DG236", "drafter.layer_types", ("all 5 layers with full attention",)),
    Claim("The rope, left out.", "DG227", "drafter.rope_theta", ("takes 10000 ", "target uses 10000000")),
    Claim("The engine.", "DG402", "engine.version", ("0.20.1", "one too early")),
    Claim("Its first version that is right for this drafter.", "DG403", "engine.version", ("vLLM 0.26.0",)),
    Claim(
        "An explanation that leads nowhere: that there is no tree verification.",
        "DG420",
        "engine.verification",
        ("is not the cause",),
    ),
)


class Scene(NamedTuple):
    """One config on one engine, judged."""

    verdict: Verdict
    subject: preflight.Subject
    seconds: float

    @property
    def table(self) -> str:
        return preflight.table(self.subject, self.verdict.as_dict())


def judged(drafter: Path, target: Path, config: Mapping[str, Any], version: str) -> Scene:
    """``config`` beside the drafter's weights, on this version of vLLM and the incident's host."""
    incident.write_config(drafter, config)
    engine = {"name": "vllm", "version": version}
    began = time.monotonic()
    verdict = contract.judge(str(drafter), str(target), engine=engine, **incident.WISH)
    subject = preflight.Subject(
        "",
        incident.DRAFTER_NAME,
        incident.TARGET_NAME,
        engine,
        incident.WISH["gpu"],
        incident.WISH["num_speculative_tokens"],
    )
    return Scene(verdict, subject, time.monotonic() - began)


def tell(say: Any, *, whole: bool) -> bool:
    """Tell the story line by line; whether everything was said that has to be.

    :param say: takes a line.
    :param whole: show the whole table that ``draftgate contract`` prints, too.
    """
    with tempfile.TemporaryDirectory(prefix="draftgate-incident-") as root:
        drafter, target = incident.write_pair(Path(root))
        guessed = judged(drafter, target, incident.GUESSED, incident.VERSION)
        newer = judged(drafter, target, incident.GUESSED, incident.RIGHT_VERSION)
        true = judged(drafter, target, incident.TRUE, incident.RIGHT_VERSION)
    for line in _then():
        say(line)
    say(f"What Draftgate says of the same files, before a download or a start, in {guessed.seconds:.2f} s:")
    findings = guessed.verdict.findings
    for claim in CLAIMS:
        for line in _answer(claim, claim.finding(findings)):
            say(line)
    for what, scene in (
        ("All in all:", guessed),
        ("The same config on an engine of today:", newer),
        ("The config of the drafter's own revision:", true),
    ):
        say("")
        say(what)
        for line in scene.table.splitlines() if whole else scene.table.splitlines()[:3]:
            say(line)
    return all(claim.finding(findings) for claim in CLAIMS) and not errors(true) and bool(errors(newer))


def errors(scene: Scene) -> list[str]:
    return [finding.code for finding in scene.verdict.findings if finding.severity == "error"]


def _then() -> Iterator[str]:
    rate, length, first = incident.MEASURED.values()
    yield f"{incident.TARGET_NAME}, 2x RTX A6000, vLLM {incident.VERSION}, the drafter's config made by hand."
    yield "What the server said: healthy, and its answers were right. What its counters said:"
    yield (
        f"  acceptance {100 * rate:.1f} %, τ {length:.2f}, position 1 {100 * first:.1f} %, "
        "nothing from position 3 on: slower than no drafter."
    )


def _answer(claim: Claim, finding: Finding | None) -> Iterator[str]:
    yield f"  {claim.what}"
    said = f"{finding.code} {finding.message} {finding.fix}" if finding else f"NOT SAID: {claim}"
    yield from textwrap.wrap(
        said, WIDTH, initial_indent="    ", subsequent_indent="    ", break_on_hyphens=False
    )
