"""Evidence: one recorded measurement with its verdict, kept per release, never edited.

It counts as long as what was served, what was asked and what it ran on are the same, and it is young
enough. Thresholds are not part of that: a stored measurement can be decided again.
"""

from __future__ import annotations

import datetime
import os
import re
from typing import Any, Dict, Iterator, List, Mapping, Optional, Sequence, Tuple

from .errors import InputError
from .files import fsync_directory, read_json, write_json
from .layout import Home

_CLOCK_SLACK = 300.0  # seconds into the future that a corrected clock explains
_NAME = re.compile(r"(\d{8}T\d{6}Z)(?:_(\d+))?\.json")


def store(home: Home, evidence: Mapping[str, Any]) -> str:
    """Write it as ``evidence/<release>/<UTC>.json`` and return the path. Nothing is ever replaced."""
    directory = home.evidence(evidence["release"])
    stamp = re.sub(r"[-:]|\.\d+", "", evidence["time"])
    temporary = os.path.join(directory, f".{stamp}.{os.getpid()}")
    write_json(temporary, evidence)
    try:
        return _linked(temporary, os.path.join(directory, stamp))
    finally:
        os.unlink(temporary)
        fsync_directory(directory)


def _linked(temporary: str, stem: str) -> str:
    """Unlike a rename, a link refuses a name that is taken: two in the same second are two files."""
    number = 1
    while True:
        path = f"{stem}.json" if number == 1 else f"{stem}_{number}.json"
        try:
            os.link(temporary, path)
            return path
        except FileExistsError:
            number += 1


def latest(
    home: Home,
    release: str,
    gate_digest: str,
    identity: Mapping[str, Any],
    broken: Optional[List[str]] = None,
    *,
    now: float,
) -> Optional[Dict[str, Any]]:
    """The newest evidence of a release under this gate on this hardware, whatever its verdict.

    An attempt that measured nothing and proved nothing is passed over: a taken port at another place says
    nothing about the release, and would have what serves measured again.

    :param now: epoch seconds. What is dated later (a clock that ran ahead) is passed over, or it would be
        the newest for as long as the clock was ahead.
    :param broken: receives the paths of files that are no evidence; they are skipped.
    """
    for stored in _newest_first(home, [release], broken, now):
        proves_nothing = stored["verdict"] == "inconclusive" and stored.get("problem")
        same = stored["gate_digest"] == gate_digest and stored["identity"] == dict(identity)
        if same and not proves_nothing:
            return stored
    return None


def latest_green(
    home: Home,
    gate_digest: str,
    target: Mapping[str, Any],
    broken: Optional[List[str]] = None,
    *,
    now: float,
) -> Optional[Dict[str, Any]]:
    """The newest evidence with verdict pass under this gate, over all of a target's releases that draft.

    :param target: the spec's ``serve.target``: another target's acceptance is no reference.
    """
    try:
        releases = sorted(os.listdir(home.path("evidence")))
    except FileNotFoundError:
        return None
    for stored in _newest_first(home, releases, broken, now):
        fits = stored["gate_digest"] == gate_digest and stored.get("target") == dict(target)
        if stored["verdict"] == "pass" and fits and stored["acceptance"]:
            return stored
    return None


def valid(
    evidence: Mapping[str, Any],
    *,
    serve_digest: str,
    gate_digest: str,
    identity: Mapping[str, Any],
    now: float,
    max_age_seconds: Optional[float],
) -> Tuple[bool, str]:
    """Whether stored evidence still speaks for a release, and if not, why in a few words.

    :param max_age_seconds: None: any age.
    """
    if evidence.get("serve_digest") != serve_digest:
        return False, "it is of another release"
    if evidence.get("gate_digest") != gate_digest:
        return False, "it was measured with other prompts or settings"
    stored = evidence.get("identity") or {}
    changed = [key for key in sorted({*stored, *identity}) if stored.get(key) != identity.get(key)]
    if changed:
        pairs = [f"{key} was {stored.get(key)} and is {identity.get(key)}" for key in changed]
        return False, f"the host changed: {'; '.join(pairs)}"
    age = now - seconds_of(evidence)
    if age < -_CLOCK_SLACK:
        return False, f"it is dated in the future ({evidence.get('time')})"
    if max_age_seconds is not None and age > max_age_seconds:
        return False, f"it is {age / 86400:.1f} days old, allowed are {max_age_seconds / 86400:.1f}"
    return True, ""


def utc(now: float) -> str:
    """``2026-11-30T16:30:05Z``."""
    return datetime.datetime.fromtimestamp(now, datetime.timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")


def seconds_of(evidence: Mapping[str, Any]) -> float:
    """Epoch seconds of an evidence's ``time``."""
    moment = datetime.datetime.strptime(evidence["time"], "%Y-%m-%dT%H:%M:%SZ")
    return moment.replace(tzinfo=datetime.timezone.utc).timestamp()


def _newest_first(
    home: Home, releases: Sequence[str], broken: Optional[List[str]], now: float
) -> Iterator[Dict[str, Any]]:
    named = [
        (key, os.path.join(home.evidence(release), name))
        for release in releases
        for key, name in _names(home.evidence(release))
    ]
    for _, path in sorted(named, reverse=True):
        try:
            stored = read_json(path, "reading evidence")
        except InputError:
            stored = {}
        if _is_evidence(stored):
            if seconds_of(stored) <= now + _CLOCK_SLACK:
                yield stored
        elif broken is not None:
            broken.append(path)


def _names(directory: str) -> Iterator[Tuple[Tuple[str, int], str]]:
    try:
        names = os.listdir(directory)
    except (FileNotFoundError, NotADirectoryError):
        return
    for name in names:
        match = _NAME.fullmatch(name)
        if match:
            yield (match.group(1), int(match.group(2) or 1)), name


def _is_evidence(value: Mapping[str, Any]) -> bool:
    """Whether it has what readers rely on; a file from elsewhere or half a file has not."""
    texts = all(
        isinstance(value.get(key), str)
        for key in ("verdict", "release", "gate_digest", "serve_digest", "time")
    )
    if not texts or not isinstance(value.get("identity"), dict) or "acceptance" not in value:
        return False
    try:
        seconds_of(value)
    except ValueError:
        return False
    return True
