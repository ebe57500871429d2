"""The release on its host: inspect, prepare, switch, roll back, remove. What the ``release`` module calls."""

from __future__ import annotations

import datetime
import json
import os
import re
import shutil
import sys
from dataclasses import dataclass, field, replace
from typing import Any, Dict, List, Mapping, Optional

from . import agent as host_agent
from . import effective_config, host, jobs, prompts, spec, status
from .backend import choose
from .backend.base import Backend, Job
from .canonical import digest
from .clocks import Clocks
from .errors import DraftgateError, HostError, InputError
from .files import read_json, write_atomic, write_json
from .jobs import Wait
from .journal import Journal
from .layout import Home
from .plan import NONE, REFUSE, Plan, plan_change
from .verdicts import EXIT_PASS, EXIT_REFUSED, VERDICT_EXIT_CODES, result_path

JOB = "switch"
CACHES = ("runtimes", "models", "cache")
"""What a teardown keeps unless asked: expensive to make again, of no effect by itself."""

OPTION_DEFAULTS: Dict[str, Any] = {
    "strategy": "in_place",
    "on_failure": "restore",
    "retry": False,
    "time_limit": "30 m",
    "evidence_max_age": "30 d",
}
ON_FAILURE = ("restore", "fallback", "stop")
_UNITS = {"": 1, "s": 1, "m": 60, "h": 3600, "d": 86400}


def seconds_of(name: str, value: Any) -> float:
    """``90``, ``"90 s"``, ``"30 m"``, ``"12 h"``, ``"30 d"`` → seconds above 0.

    :raises InputError: anything else, with ``name``.
    """
    found = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([smhd]?)", str(value).strip())
    if isinstance(value, bool) or not found or float(found.group(1)) <= 0:
        raise InputError(f"reading {name}", repr(value), "a time above 0 as in 90, '30 m', '12 h' or '30 d'")
    return float(found.group(1)) * _UNITS[found.group(2)]


def _yes_or_no(name: str, value: Any) -> bool:
    """``-e name=value`` makes every value text."""
    words = {"true": True, "yes": True, "false": False, "no": False}
    if str(value).strip().lower() not in words:
        raise InputError(f"reading {name}", repr(value), "true or false")
    return words[str(value).strip().lower()]


@dataclass(frozen=True)
class Request:
    """One call's input.

    :param wished: the spec as the controller built it; :meth:`resolved` adds what only the host knows.
    :param secrets: ``{NAME: value}``; they leave this object only into 0600 files and keyed digests.
    :param agent: digest of the agent that the controller ships.
    """

    home: Home
    wished: Mapping[str, Any] = field(default_factory=dict)
    options: Mapping[str, Any] = field(default_factory=dict)
    findings: List[Dict[str, Any]] = field(default_factory=list)
    drafter_overrides: Mapping[str, Any] = field(default_factory=dict)
    secrets: Mapping[str, str] = field(default_factory=dict)
    agent: str = ""
    clocks: Clocks = field(default_factory=Clocks)

    def resolved(self, create_key: bool = False) -> Dict[str, Any]:
        """The spec with this host's paths and the secrets' keyed digests in ``place``; validated."""
        place = dict(self.wished.get("place") or {})
        place["home"] = self.home.root
        place["runtimes"] = os.path.abspath(os.path.expanduser(place.get("runtimes") or self.home.runtimes))
        place["secrets"] = host.salted(self.home, self.secrets, create_key)
        whole = {**self.wished, "place": place}
        spec.validate(whole)
        return whole

    def checked_options(self) -> Dict[str, Any]:
        """Defaults filled in, meaning checked."""
        options = {**OPTION_DEFAULTS, **{k: v for k, v in self.options.items() if v is not None}}
        unknown = sorted(set(options) - set(OPTION_DEFAULTS))
        if unknown:
            raise InputError("reading the options of the switch", f"{', '.join(unknown)} is no option")
        if options["on_failure"] not in ON_FAILURE:
            raise InputError(
                "reading acceptance_on_failure", repr(options["on_failure"]), " or ".join(ON_FAILURE)
            )
        if options["strategy"] != "in_place":
            raise InputError("reading the strategy", repr(options["strategy"]), "in_place")
        names = {
            "time_limit": "draftgate_switch_time_limit",
            "evidence_max_age": "acceptance_evidence_max_age",
        }
        return {**options, **{name: seconds_of(shown, options[name]) for name, shown in names.items()}}

    def backend(self) -> Backend:
        """The wished service manager; where nothing is wished, the one that the last deploy used."""
        wanted = (self.wished.get("place") or {}).get("backend")
        return choose(self.home, str(wanted or recorded_backend(self.home)), supervisor_lock="")


def recorded_backend(home: Home) -> str:
    """The service manager of the activated deployment, else of the last wish, else ``auto``."""
    active = host.read_active(home)
    if active:
        return str(active["deployment"]["place"]["backend"])
    if os.path.exists(home.wish):
        return str(read_json(home.wish, "reading the last wish")["spec"]["place"]["backend"])
    return "auto"


def inspected(request: Request) -> Dict[str, Any]:
    """Read only: the wish against the host. ``action`` says what a deploy would do and why.

    Without a wish only the host is read.
    """
    backend = request.backend()
    if not request.wished:
        state = status.read(request.home, backend, request.clocks)
        read = {
            "status": state,
            "status_text": status.table(state),
            "evidence": current_evidence(request.home),
        }
        return {"changed": False, "unchanged": False, **read}
    whole, options = request.resolved(), request.checked_options()
    facts = host.facts(request.home, backend, whole, options, request.clocks.now())
    plan = plan_change(whole, options, facts)
    state = status.read(request.home, backend, request.clocks)
    agent_same = not request.agent or host_agent.installed(request.home) == request.agent[:12]
    settled = state["switch"] is None and state["healthy"]
    return {
        "changed": False,
        "release": spec.release_id(whole["serve"]),
        "current": state["release"],
        "previous": state["previous"],
        "action": plan.action,
        "reason": plan.reason,
        "warning": plan.warning,
        "differs": plan.differs,
        "agent_differs": not agent_same,
        "unchanged": plan.action == NONE and agent_same and settled,
        "evidence_valid": facts.evidence_valid,
        "evidence": current_evidence(request.home),
        "status": state,
        "lock": _lock(request),
        "journal": Journal(request.home.journal, request.clocks.now).entries(),
    }


def _lock(request: Request) -> Dict[str, Any]:
    job = request.backend().job_state(JOB)
    return {"held": job.status == "running", "pid": job.pid, "since": job.since}


def current_evidence(home: Home) -> Optional[Dict[str, Any]]:
    """The evidence of what serves, or None (nothing serves, or it serves without speculation)."""
    active = host.read_active(home)
    path = active.get("evidence") if active else None
    return read_json(path, "reading the active release's evidence") if path and os.path.exists(path) else None


def refuse_red(request: Request) -> None:
    """Raise when this wish was measured before and refused.

    :raises HostError: with the stored evidence in its details.
    """
    whole, options = request.resolved(), request.checked_options()
    facts = host.facts(request.home, request.backend(), whole, options, request.clocks.now())
    plan = plan_change(whole, options, facts)
    if plan.action == REFUSE:
        raise _refused(request.home, plan, facts.red)


def _refused(home: Home, plan: Plan, red: Optional[Mapping[str, Any]]) -> HostError:
    active = host.read_active(home)
    serving = f"Release {active['deployment']['release']} keeps serving" if active else "Nothing serves"
    return HostError(
        "deploying",
        plan.reason,
        "a release without red evidence",
        f"{serving}. Change the wish, or measure it once more with -e acceptance_retry=true.",
        code="DG830",
        details={"evidence": dict(red or {}), "action": REFUSE},
    )


def prepared(request: Request, prompts_text: str, drafter_source: str, check: bool) -> Dict[str, Any]:
    """Put the release's files on the host. Nothing that serves is touched.

    :param prompts_text: the prompt set's content; its digest must be the spec's.
    :param drafter_source: the drafter's directory in the model store; empty without speculation.
    """
    refuse_red(request)
    whole = request.resolved(create_key=not check)
    home, release_id = request.home, spec.release_id(whole["serve"])
    data = prompts_text.encode("utf-8")
    found, wanted = prompts.digest(data), whole["gate"]["prompts"]["digest"]
    if found != wanted:
        raise InputError("preparing the prompts", f"their digest is {found[:12]}", wanted[:12])
    missing = not os.path.exists(home.release_spec(release_id))
    stale = not os.path.exists(home.prompts(wanted))
    absent = [
        name
        for name, value in whole["place"]["secrets"].items()
        if not os.path.exists(home.secret(name, value))
    ]
    if not check:
        host.store_secrets(home, request.secrets, whole["place"]["secrets"])
        if stale:
            write_atomic(home.prompts(wanted), data)
        drafter = whole["serve"]["drafter"]
        if drafter:
            effective_config.write(home.release_drafter(release_id), drafter_source, drafter["config"])
        if missing:
            write_json(home.release_spec(release_id), whole["serve"])  # last: its presence means complete
    return {
        "changed": missing or stale or bool(absent),
        "release": release_id,
        "path": home.release(release_id),
    }


def diff(differs: List[Dict[str, Any]]) -> Dict[str, Any]:
    """Ansible's diff of a switch: exactly the fields that differ."""
    before = {row["field"]: row["before"] for row in differs if row["before"] is not None}
    after = {row["field"]: row["after"] for row in differs if row["after"] is not None}
    return {
        "before_header": "serving",
        "after_header": "wished",
        "before": _lines(before),
        "after": _lines(after),
    }


def _lines(fields: Mapping[str, Any]) -> str:
    return "".join(f"{name}: {json.dumps(value, sort_keys=True)}\n" for name, value in sorted(fields.items()))


def switched(request: Request, wait: Wait, check: bool) -> Dict[str, Any]:
    """Make the host equal the wish through the host's own job, and wait for it.

    :raises DraftgateError: the job ended with anything but a pass or its explicit fallback.
    """
    if wait.attempt:
        return _follow(request, request.backend(), wait)
    refuse_red(request)
    whole, options = request.resolved(create_key=not check), request.checked_options()
    backend, home = request.backend(), request.home
    plan = plan_change(whole, options, host.facts(home, backend, whole, options, request.clocks.now()))
    result = {"release": spec.release_id(whole["serve"]), "differs": plan.differs, "action": plan.action}
    if check:
        return {**result, "changed": plan.changes, "diff": diff(plan.differs)}
    wish = {
        "spec": whole,
        "options": options,
        "findings": list(request.findings),
        "drafter_overrides": dict(request.drafter_overrides),
    }
    attempt = _start_job(request, backend, wish, str(result["release"]))
    return {**result, **_follow(request, backend, replace(wait, attempt=attempt))}


def _start_job(request: Request, backend: Backend, wish: Dict[str, Any], release_id: str) -> str:
    """Start the switch, or attach to the one that already works on the same wish."""
    home, wish_digest = request.home, digest(wish)
    running = backend.job_state(JOB).status == "running"
    known = read_json(home.wish, "reading the last wish") if os.path.exists(home.wish) else {}
    if running and known.get("digest") == wish_digest:
        return str(known["attempt"])
    if running:
        raise HostError(
            "starting a switch",
            f"attempt {known.get('attempt')} of release {known.get('release')} is running",
            "one switch at a time",
            f"Watch it with {home.command} status and run again when it has ended.",
            details={"held": True},
        )
    moment = datetime.datetime.fromtimestamp(request.clocks.now(), datetime.timezone.utc)
    attempt = f"{moment.strftime('%Y%m%dT%H%M%S.%f')}-{release_id}"
    write_json(home.wish, {**wish, "digest": wish_digest, "attempt": attempt, "release": release_id}, 0o600)
    jobs.forget(progress_path(home))
    backend.start_job(
        Job(
            name=JOB,
            argv=(
                sys.executable,
                "-m",
                host_agent.PACKAGE,
                "--home",
                home.root,
                "switch",
                "--attempt",
                attempt,
            ),
            environment={"PYTHONPATH": os.path.realpath(home.agent_current)},
            working_directory=home.root,
            verdict_exit_codes=VERDICT_EXIT_CODES,
        )
    )
    return attempt


def progress_path(home: Home) -> str:
    return home.progress_of(JOB)


def _follow(request: Request, backend: Backend, wait: Wait) -> Dict[str, Any]:
    path = progress_path(request.home)
    state = jobs.follow(backend, JOB, path, wait, request.clocks)
    if state is None:
        return ended(request, wait.attempt, backend.job_state(JOB).exit_code)
    return jobs.still_running(state, wait.attempt)


def ended(request: Request, attempt: str, exit_code: Optional[int]) -> Dict[str, Any]:
    """The finished attempt as a module result; anything but a pass is raised with all that is known."""
    home = request.home
    path = result_path(home)
    result = read_json(path, "reading the switch's result") if os.path.exists(path) else {}
    if result.get("attempt") != attempt:
        raise HostError(
            "switching",
            f"the job ended (exit code {exit_code}) without a result for attempt {attempt}",
            "a result",
            f"Run the deploy again: it ends what is open. The job's log: {request.backend().log_path(JOB)}",
        )
    measured = _evidence_at(result.get("evidence"))
    facts = {
        "journal": Journal(home.journal, request.clocks.now).entries(),
        "evidence": measured,
        "current_evidence": current_evidence(home),
        "result": result,
        "status": status.read(home, request.backend(), request.clocks),
        "job": {"running": False, "progress": {}},
    }
    if result["exit"] != EXIT_PASS:
        raise _verdict_error(result, measured, facts)
    changed = result["ended"] != NONE
    return {**facts, "changed": changed, "warning": _fallback_warning(result)}


def _evidence_at(path: Optional[str]) -> Optional[Dict[str, Any]]:
    return read_json(path, "reading the attempt's evidence") if path and os.path.exists(path) else None


def _fallback_warning(result: Mapping[str, Any]) -> str:
    if not result.get("fallback"):
        return str(result.get("warning") or "")
    return f"The target serves WITHOUT speculation: {result['reason']}"


def _verdict_error(
    result: Mapping[str, Any], measured: Optional[Mapping[str, Any]], facts: Dict[str, Any]
) -> DraftgateError:
    """One message: what was tried, what was seen, what serves now, what to look at first."""
    if result.get("exit") == EXIT_REFUSED:
        step = "Change the wish, or measure it once more with -e acceptance_retry=true."
        return HostError("deploying", str(result["reason"]), "", step, code="DG830", details=facts)
    suspects = (measured or {}).get("suspects") or []
    first = f" First suspect: {suspects[0]['cause']}. {suspects[0]['next']}" if suspects else ""
    serving = result.get("serving")
    kept = f"Release {serving} serves." if serving else "Nothing serves."
    error = result.get("error") or {}
    return HostError(
        f"deploying release {result.get('release', '')}".rstrip(),
        str(result.get("reason") or result.get("ended")),
        "",
        f"{kept}{first}",
        code=error.get("code"),
        details={**facts, "cause": (error.get("details") or {}).get("cause") or result.get("cause", "")},
    )


def restored(request: Request, wait: Wait, check: bool) -> Dict[str, Any]:
    """Roll back: switch to the deployment that the active one replaced, gated like any other.

    :raises HostError: there is nothing to go back to.
    """
    backend = request.backend()
    if wait.attempt:
        return _follow(request, backend, wait)
    active = host.read_active(request.home)
    previous = active.get("previous") if active else None
    if not previous:
        raise HostError("rolling back", "no earlier release is recorded here", "a previous release")
    wished = {part: previous[part] for part in spec.PARTS}
    options = {**request.checked_options(), "retry": True}  # it was activated once: red evidence is no veto
    plan = plan_change(
        wished, options, host.facts(request.home, backend, wished, options, request.clocks.now())
    )
    result = {"release": previous["release"], "differs": plan.differs, "action": plan.action}
    if check:
        return {**result, "changed": plan.changes, "diff": diff(plan.differs)}
    wish = {"spec": wished, "options": options, "findings": [], "drafter_overrides": {}}
    attempt = _start_job(request, backend, wish, previous["release"])
    return {**result, **_follow(request, backend, replace(wait, attempt=attempt))}


def absent(request: Request, purge: bool, check: bool) -> Dict[str, Any]:
    """Leave no process, no port and no file but the caches this returns by name."""
    home = request.home
    if not os.path.isdir(home.root):
        return {"changed": False, "kept": []}
    names = sorted(os.listdir(home.root))
    doomed = [name for name in names if purge or name not in CACHES]
    kept = [home.path(name) for name in names if name not in doomed]
    if not check and doomed:
        request.backend().shutdown()
        for name in doomed:
            _remove(home.path(name))  # the shutdown has removed some of them
        if not os.listdir(home.root):
            os.rmdir(home.root)
    return {"changed": bool(doomed), "kept": kept}


def _remove(path: str) -> None:
    if os.path.isdir(path) and not os.path.islink(path):
        shutil.rmtree(path)
    elif os.path.lexists(path):
        os.unlink(path)


def pruned(request: Request, keep: int, check: bool) -> Dict[str, Any]:
    """Remove release directories beyond the ``keep`` newest; never the active or the previous one."""
    home = request.home
    active = host.read_active(home) or {}
    needed = {(active.get(name) or {}).get("release") for name in ("deployment", "previous")}
    folder = os.path.dirname(home.release("x"))
    names = os.listdir(folder) if os.path.isdir(folder) else []
    newest = sorted(names, key=lambda name: os.path.getmtime(os.path.join(folder, name)), reverse=True)
    doomed = [name for name in newest[keep:] if name not in needed]
    if not check:
        for name in doomed:
            shutil.rmtree(os.path.join(folder, name))
    return {"changed": bool(doomed), "removed": doomed}
