"""Status only reads: what serves, since when, by which evidence, and what to type when it is not right."""

from __future__ import annotations

import datetime
import os
from typing import Any, Dict, List, Mapping, Optional, Tuple

from . import front, host, recovery
from .backend.base import Backend
from .clocks import Clocks
from .errors import InputError
from .files import read_json
from .journal import RESTORED, STOPPED, UNRESTORED, Journal, finished
from .layout import Home
from .plan import SIDE_BY_SIDE
from .spec import endpoint

SWITCH_JOB = "switch"
_ROOM_BYTES = 1 << 18
"""So much the switch's job waits for on a full disk."""
_FAILURES = (RESTORED, STOPPED, UNRESTORED)


def read(home: Home, backend: Optional[Backend], clocks: Clocks) -> Dict[str, Any]:
    """One host's state as JSON types.

    ``serving``: an activated release runs and answers, and the front leads to it where there is one.
    ``gated``: what answers was activated by a green gate (a candidate under measurement answers too, and is
    not).
    """
    active = host.read_active(home)
    entries = Journal(home.journal, clocks.now).entries()
    running = host.running(backend) if backend else []
    deployed = _shown(active, entries, running)
    # A stranger may answer on the port of an engine that does not run.
    healthy = bool(deployed and deployed["id"] in running and host.answers(home, deployed))
    gated = bool(active and deployed and deployed["id"] == active["deployment"]["id"])
    led_to = front.front_of(home).routed()
    astray = bool(gated and deployed and led_to not in (None, deployed["place"]["port"]))
    state: Dict[str, Any] = {
        "home": home.root,
        "backend": backend.name if backend else None,
        "serving": bool(healthy and gated and not astray),
        "gated": gated,
        "healthy": healthy,
        "release": deployed["release"] if deployed else None,
        "speculation": bool(deployed and deployed["serve"]["drafter"]),
        "fallback_of": active.get("fallback_of") if active else None,
        "endpoint": _public(home) or endpoint(deployed["place"]) if deployed else None,
        "engine": endpoint(deployed["place"]) if deployed else None,
        "front": led_to,
        "model": deployed["serve"]["served_model_name"] if deployed else None,
        "activated": active["activated"] if active else None,
        "active": active["deployment"]["release"] if active else None,
        "previous": (active.get("previous") or {}).get("release") if active else None,
        "api_key": bool(deployed and deployed["place"]["secrets"]),
        "pid": backend.state(host.service_name(deployed["id"])).pid
        if backend and deployed and deployed["id"] in running
        else None,
        "log": backend.log_path(host.service_name(deployed["id"])) if backend and deployed else None,
        "evidence": _evidence(active),
        "switch": None
        if finished(entries)
        else {"state": entries[-1]["state"], "attempt": entries[0]["switch"], "running": _job_runs(backend)},
        "last_switch": recovery.summary(entries),
    }
    state["next_step"] = _next_step(home, state, active is not None)
    return state


def _public(home: Home) -> str:
    """What clients use where there is a front: a public address that is every one goes by the host's name."""
    stored = front.read(home)
    if stored is None:
        return ""
    settings = stored["settings"]
    everywhere = settings["gateway_host"] in ("0.0.0.0", "::")
    host = os.uname().nodename if everywhere else settings["gateway_host"]
    scheme = "https" if settings["gateway_tls_certificate"] else "http"
    return endpoint({"host": host, "port": settings["gateway_port"]}, scheme)


def _shown(
    active: Optional[Mapping[str, Any]], entries: List[Dict[str, Any]], running: List[str]
) -> Optional[Mapping[str, Any]]:
    """The deployment to talk about: the activated one, or the candidate that runs in its place."""
    in_its_place = not finished(entries) and entries[0].get("strategy") != SIDE_BY_SIDE
    if in_its_place and entries[0]["candidate"]["id"] in running:
        candidate: Mapping[str, Any] = entries[0]["candidate"]
        return candidate
    return active["deployment"] if active else None


def _job_runs(backend: Optional[Backend]) -> bool:
    return backend is not None and backend.job_state(SWITCH_JOB).status == "running"


def _evidence(active: Optional[Mapping[str, Any]]) -> Optional[Dict[str, Any]]:
    path = active.get("evidence") if active else None
    if not path:
        return None
    try:
        stored = read_json(path, "reading the active release's evidence")
    except InputError:
        return {"path": path, "verdict": None}
    acceptance = stored.get("acceptance") or {}
    return {
        "path": path,
        "verdict": stored.get("verdict"),
        "time": stored.get("time"),
        "mean_acceptance_length": acceptance.get("mean_acceptance_length"),
        "rate": acceptance.get("rate"),
    }


def _next_step(home: Home, state: Mapping[str, Any], deployed: bool) -> str:
    if state["switch"]:
        where = f"A switch is at {state['switch']['state']}"
        if _is_full(home):
            waits = "it goes on by itself" if state["switch"]["running"] else f"then {home.command} recover"
            return f"{where} and there is no room on the disk of {home.root}: make some; {waits}"
        if state["switch"]["running"]:
            return f"{where}: wait, or end it and restore with {home.command} abort"
        return f"{where} and its job is gone: {home.command} recover"
    if not deployed:
        return "make deploy, or ansible-playbook deploy.yml"
    if state["healthy"] and not state["serving"]:
        return f"The front does not lead to the activated release: {home.command} recover"
    if not state["serving"]:
        what = "does not run" if state["pid"] is None else "loads or hangs"
        return f"The activated release {what}: {home.command} recover waits for it, or starts it again"
    return ""


def _is_full(home: Home) -> bool:
    """Only looked at, so a quota is not seen. A file system without a fixed number of inodes says 0 of 0."""
    room = os.statvfs(home.root)
    free = room.f_bavail if os.geteuid() else room.f_bfree  # the rest is root's
    return free * room.f_frsize < _ROOM_BYTES or bool(room.f_files and not room.f_ffree)


def table(state: Mapping[str, Any]) -> str:
    """The same for a person."""
    if state["release"] is None:
        rows = [("release", f"nothing is deployed at {state['home']}")]
    else:
        rows = [
            ("release", f"{state['release']}  {_word(state)}"),
            ("endpoint", f"{state['endpoint']}  model {state['model']}{_led(state)}"),
            *(_activated(state) if state["gated"] else _waiting(state)),
            ("process", f"pid {state['pid']} under {state['backend']}, log {state['log']}"),
        ]
    last = state["last_switch"]
    if last.get("ended") in _FAILURES:
        rows.append(("last", f"release {last['candidate']} was tried and not kept: {last['reason']}"))
    if state["next_step"]:
        rows.append(("next", state["next_step"]))
    return "\n".join(f"{name:<10} {value}" for name, value in rows)


def _led(state: Mapping[str, Any]) -> str:
    """Where the front leads, where there is one."""
    if state["front"] is None:
        return ""
    return (
        f"  (front, to {state['engine']})" if state["front"] else "  (front, CLOSED: 503 for every request)"
    )


def _activated(state: Mapping[str, Any]) -> List[Tuple[str, str]]:
    moment = datetime.datetime.fromtimestamp(state["activated"], datetime.timezone.utc)
    rows = [("activated", moment.strftime("%Y-%m-%d %H:%M:%S UTC"))]
    evidence = state["evidence"]
    if evidence and evidence.get("mean_acceptance_length") is not None:
        figures = f"{evidence['verdict']}, mean acceptance length {evidence['mean_acceptance_length']:.2f}, "
        figures += f"rate {100 * evidence['rate']:.1f} %, measured {evidence['time']}"
        rows.append(("evidence", figures))
    if state["previous"]:
        rows.append(("previous", state["previous"]))
    return rows


def _waiting(state: Mapping[str, Any]) -> List[Tuple[str, str]]:
    """Of a candidate nothing is known yet; what is activated comes back unless its gate is green."""
    return [("activated", state["active"] or "nothing yet")]


def _word(state: Mapping[str, Any]) -> str:
    if state["switch"] and not state["gated"]:
        return "UNGATED candidate under measurement" if state["healthy"] else "UNGATED candidate, starting"
    if not state["healthy"]:
        return "NOT ANSWERING"
    if state["fallback_of"]:
        return f"serving WITHOUT speculation (fallback of {state['fallback_of']})"
    return "serving" if state["speculation"] else "serving without speculation"
