"""What this host is and shows: clocks, identity, the active pointer, and what runs."""

from __future__ import annotations

import glob
import hmac
import os
import re
import secrets
from typing import Any, Dict, List, Mapping, Optional

from . import evidence, spec
from .backend.base import Backend
from .canonical import digest
from .clocks import Clocks
from .decision import decide
from .files import read_json, write_atomic, write_json
from .layout import Home
from .plan import Facts
from .recovery import Observed

ENGINE_PREFIX = "engine-"


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


def observe(home: Home, backend: Backend, clocks: Clocks) -> Observed:
    """The host as :func:`recovery.next_action` wants it."""
    active = read_active(home)
    return Observed(
        active=active["deployment"]["id"] if active else None,
        written_by=active.get("switch") if active else None,
        running=frozenset(running(backend)),
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
    return Facts(
        active=active,
        running=bool(current and backend and current["id"] in running(backend)),
        evidence_valid=valid,
        evidence_why=why,
        red=None if options.get("retry") else red_evidence(home, wished, options, now),
    )


def _evidence_state(
    home: Home, active: Mapping[str, Any], wished: Mapping[str, Any], options: Mapping[str, Any], now: float
) -> tuple[bool, str]:
    if active.get("fallback_of"):
        return True, ""  # without speculation there is nothing to accept
    stored = evidence.latest(
        home, active["deployment"]["release"], spec.gate_digest(wished["gate"]), identity(wished)
    )
    if stored is None:
        return False, "no evidence of this release with this gate, engine build, GPU and driver"
    if stored["verdict"] != "pass":
        return False, f"its last evidence says {stored['verdict']}"
    return evidence.valid(
        stored,
        serve_digest=digest(active["deployment"]["serve"]),
        gate_digest=spec.gate_digest(wished["gate"]),
        identity=identity(wished),
        now=now,
        max_age_seconds=options.get("evidence_max_age"),
    )


def red_evidence(
    home: Home, wished: Mapping[str, Any], options: Mapping[str, Any], now: float
) -> Optional[Dict[str, Any]]:
    """The newest valid evidence of the wished release that its own thresholds refuse, or None."""
    gate_digest = spec.gate_digest(wished["gate"])
    stored = evidence.latest(home, spec.release_id(wished["serve"]), gate_digest, identity(wished))
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
    decision = decide(stored, wished["gate"]["thresholds"], comparable(home, wished["serve"], gate_digest))
    if decision.verdict != "fail":
        return None
    return {**stored, "reason": decision.reasons[0]["message"] if decision.reasons else ""}


def comparable(home: Home, serve: Mapping[str, Any], gate_digest: str) -> Optional[Dict[str, Any]]:
    """The last green evidence under this gate, unless it is of another target: that is no regression."""
    known = evidence.latest_green(home, gate_digest)
    return known if known and known["target"] == serve["target"] else None


def salted(home: Home, values: Mapping[str, str], create: bool) -> Dict[str, str]:
    """``{NAME: keyed digest}``: a change of a secret is seen, the secret is not.

    The key is this installation's own (0600), so that equal secrets on two hosts do not look equal.
    Without a key yet and ``create`` false (check mode) an empty key stands in: it differs from any later one.
    """
    wanted = {name: value for name, value in values.items() if value}
    if not wanted:
        return {}
    path = os.path.join(home.secrets, "key")
    if not os.path.exists(path) and create:
        os.makedirs(home.secrets, mode=0o700, exist_ok=True)
        write_atomic(path, secrets.token_bytes(32), 0o600)
    key = b""
    if os.path.exists(path):
        with open(path, "rb") as handle:
            key = handle.read()
    return {
        name: hmac.new(key, value.encode(), "sha256").hexdigest() for name, value in sorted(wanted.items())
    }


def store_secrets(home: Home, values: Mapping[str, str], digests: Mapping[str, str]) -> None:
    """Write each secret to its own 0600 file, named by its salted digest."""
    os.makedirs(home.secrets, mode=0o700, exist_ok=True)
    for name, salted_digest in digests.items():
        path = home.secret(name, salted_digest)
        if not os.path.exists(path):
            write_atomic(path, values[name].encode(), 0o600)
