"""What this host is and shows: clocks, identity, the active pointer, and what runs."""

from __future__ import annotations

import glob
import hmac
import os
import re
import secrets
from dataclasses import replace
from typing import Any, Dict, List, Mapping, Optional, Tuple

from . import evidence, headroom, spec
from .backend.base import ENGINE_PREFIX, Backend
from .canonical import digest
from .clocks import Clocks
from .decision import decide
from .engine_client import client_for
from .errors import DraftgateError, HostError
from .files import make_directory, read_json, write_atomic, write_json
from .layout import Home
from .plan import REFUSE, SWITCH, Facts, Plan, plan_change
from .recovery import Observed

NEW_SECRET = "(new)"


def service_name(deployment_id: str) -> str:
    return ENGINE_PREFIX + deployment_id


def boot_id() -> str:
    """The kernel's id of this boot."""
    with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as handle:
        return handle.read().strip()


def read_active(home: Home) -> Optional[Dict[str, Any]]:
    """``{deployment, activated, evidence, previous, fallback_of}`` or None on a host without one."""
    if not os.path.exists(home.active):
        return None
    return read_json(home.active, "reading which deployment is activated")


def write_active(home: Home, record: Mapping[str, Any]) -> None:
    """Replace the one pointer. From here on the new deployment is what boots and restores."""
    write_json(home.active, record)


def running(backend: Backend) -> List[str]:
    """Deployment ids whose service has a live process."""
    names = [name for name in backend.services() if backend.state(name).status in ("running", "starting")]
    return [name[len(ENGINE_PREFIX) :] for name in names]


def answers(home: Home, deployed: Mapping[str, Any]) -> bool:
    """Whether the engine of ``deployed`` says that it is healthy. A stranger on its port may say so too."""
    try:
        return client_for(home, deployed, timeout=3.0).health()
    except (DraftgateError, OSError):
        return False


def observe(
    home: Home, backend: Backend, clocks: Clocks, attempt: str = "", front: Optional[int] = None
) -> Observed:
    """The host as :func:`recovery.next_action` wants it.

    :param front: see :meth:`front.Front.routed`.
    """
    active = read_active(home)
    return Observed(
        active=active["deployment"]["id"] if active else None,
        written_by=active.get("switch") if active else None,
        running=frozenset(running(backend)),
        attempt=attempt,
        port=active["deployment"]["place"]["port"] if active else 0,
        front=front,
        boot_id=boot_id(),
        boottime=clocks.boottime(),
    )


def identity(wished: Mapping[str, Any]) -> Dict[str, Any]:
    """What evidence is tied to besides the spec: GPU models, driver, engine build."""
    return {
        "gpus": _gpu_models(),
        "driver": _driver_version(),
        "engine_build": f"{wished['serve']['engine']['version']}+{wished['serve']['runtime']['lock'][:12]}",
    }


def _gpu_models() -> List[str]:
    models = []
    for path in sorted(glob.glob("/proc/driver/nvidia/gpus/*/information")):
        with open(path, encoding="utf-8") as handle:
            found = re.search(r"^Model:\s*(.+?)\s*$", handle.read(), re.MULTILINE)
        models.append(found.group(1) if found else "unknown")
    return models


def _driver_version() -> str:
    try:
        with open("/proc/driver/nvidia/version", encoding="utf-8") as handle:
            found = re.search(r"Kernel Module.*?\s(\d+\.\d+(?:\.\d+)?)\s", handle.read())
    except OSError:
        return ""
    return found.group(1) if found else ""


def facts(
    home: Home, backend: Optional[Backend], wished: Mapping[str, Any], options: Mapping[str, Any], now: float
) -> Facts:
    """The plan's input. ``backend`` None = no service manager here yet, so nothing runs."""
    active = read_active(home)
    current = active["deployment"] if active else None
    valid, why = _evidence_state(home, active, wished, options, now) if active else (False, "")
    if active and active.get("fallback_of"):
        # Without speculation there is nothing to accept, until it is what is wished.
        wished_now = current is not None and spec.deployment(wished)["id"] == current["id"]
        valid, why = not wished_now, "it was a fallback and is wished now"
    return Facts(
        active=active,
        answers=bool(current and backend and current["id"] in running(backend) and answers(home, current)),
        evidence_valid=valid,
        evidence_why=why,
        red=None if options.get("retry") else red_evidence(home, wished, options, now),
    )


def seated(home: Home, wished: Mapping[str, Any]) -> Dict[str, Any]:
    """``wished`` on the port, of its two, that the active deployment has."""
    active = read_active(home)
    return spec.seated(wished, active["deployment"]["place"] if active else {})


def plan(
    home: Home,
    backend: Optional[Backend],
    front: Optional[int],
    wished: Mapping[str, Any],
    options: Mapping[str, Any],
    now: float,
) -> Tuple[Facts, Plan]:
    """What the host shows, and what the wish costs there; a switch with the way it is made.

    :param front: see :meth:`front.Front.routed`.
    """
    found = facts(home, backend, wished, options, now)
    made = plan_change(wished, options, found)
    if made.action != SWITCH:
        return found, made
    try:
        choice = strategy(home, options["strategy"], front, found, spec.deployment(wished))
    except HostError as exc:
        return found, replace(made, action=REFUSE, reason=exc.observed, error=exc)
    return found, replace(made, strategy=choice.strategy, why=choice.why)


def strategy(
    home: Home, wished: str, front: Optional[int], found: Facts, candidate: Mapping[str, Any]
) -> headroom.Choice:
    """How the switch to ``candidate`` is made here.

    :raises HostError: the wished way is impossible here.
    """
    active = (found.active or {}).get("deployment") or {}
    return headroom.choose(
        wished, front is not None, found.answers, lambda: headroom.measured(home, candidate, active)
    )


def _evidence_state(
    home: Home, active: Mapping[str, Any], wished: Mapping[str, Any], options: Mapping[str, Any], now: float
) -> Tuple[bool, str]:
    serve, gate_digest = active["deployment"]["serve"], spec.gate_digest(wished["gate"])
    stored = evidence.latest(home, active["deployment"]["release"], gate_digest, identity(wished), now=now)
    if stored is None:
        return False, "no evidence of this release with this gate, engine build, GPU and driver"
    counts, why = evidence.valid(
        stored,
        serve_digest=digest(serve),
        gate_digest=gate_digest,
        identity=identity(wished),
        now=now,
        max_age_seconds=options.get("evidence_max_age"),
    )
    if not counts:
        return counts, why
    # Decided anew: the newest record may be of thresholds that were tried and taken back.
    verdict = decide(stored, wished["gate"]["thresholds"], comparable(home, serve, gate_digest, now)).verdict
    return verdict == "pass", "" if verdict == "pass" else f"its last evidence says {verdict}"


def red_evidence(
    home: Home, wished: Mapping[str, Any], options: Mapping[str, Any], now: float
) -> Optional[Dict[str, Any]]:
    """The newest valid evidence of the wished release that its own thresholds refuse, or None."""
    gate_digest = spec.gate_digest(wished["gate"])
    stored = evidence.latest(home, spec.release_id(wished["serve"]), gate_digest, identity(wished), now=now)
    if stored is None or stored["verdict"] == "inconclusive":
        return None
    counts, _why = evidence.valid(
        stored,
        serve_digest=digest(wished["serve"]),
        gate_digest=gate_digest,
        identity=identity(wished),
        now=now,
        max_age_seconds=options.get("evidence_max_age"),
    )
    if not counts:
        return None
    reference = comparable(home, wished["serve"], gate_digest, now)
    decision = decide(stored, wished["gate"]["thresholds"], reference)
    if decision.verdict != "fail":
        return None
    return {**stored, "reason": decision.reasons[0]["message"] if decision.reasons else ""}


def comparable(
    home: Home, serve: Mapping[str, Any], gate_digest: str, now: float
) -> Optional[Dict[str, Any]]:
    """The last green evidence of the same target under this gate: what a regression is measured against."""
    return evidence.latest_green(home, gate_digest, serve["target"], now=now)


def salted(home: Home, values: Mapping[str, str], create: bool) -> Dict[str, str]:
    """``{NAME: keyed digest}``: a change of a secret is seen, the secret is not.

    The key is this installation's own (0600), so that equal secrets on two hosts do not look equal.
    Without a key yet and ``create`` false (check mode) a word stands in: an unkeyed digest could be guessed.
    """
    wanted = {name: value for name, value in values.items() if value}
    if not wanted:
        return {}
    path = os.path.join(home.secrets, "key")
    if not os.path.exists(path) and create:
        make_directory(home.secrets, 0o700)
        write_atomic(path, secrets.token_bytes(32), 0o600)
    if not os.path.exists(path):
        return dict.fromkeys(sorted(wanted), NEW_SECRET)
    with open(path, "rb") as handle:
        key = handle.read()
    return {
        name: hmac.new(key, value.encode(), "sha256").hexdigest() for name, value in sorted(wanted.items())
    }


def store_secrets(home: Home, values: Mapping[str, str], digests: Mapping[str, str]) -> None:
    """Write each secret to its own 0600 file, named by its salted digest."""
    make_directory(home.secrets, 0o700)
    for name, salted_digest in digests.items():
        path = home.secret(name, salted_digest)
        if not os.path.exists(path):
            write_atomic(path, values[name].encode(), 0o600)
