"""The release on its host: inspect, prepare, switch, roll back, remove. What the ``release`` module calls."""

from __future__ import annotations

import datetime
import hashlib
import json
import os
from dataclasses import dataclass, field, replace
from typing import Any, Callable, Dict, List, Mapping, Optional, Tuple

from . import agent as host_agent
from . import effective_config, gateway, host, jobs, options, removal, spec, status
from .backend import choose, engine_user, require_reachable
from .backend.base import Backend, JobState
from .canonical import digest
from .clocks import Clocks
from .engine_client import validate_api_key
from .errors import DraftgateError, HostError, InputError
from .files import read_json, write_atomic, write_json
from .front import front_of
from .jobs import Wait
from .journal import RESTORED, STOPPED, UNRESTORED, Journal
from .layout import Home
from .locks import locked
from .plan import NONE, REFUSE, SIDE_BY_SIDE, SWITCH, Facts, Plan
from .processes import port_free, port_holder
from .verdicts import EXIT_PASS, EXIT_REFUSED, VERDICT_EXIT_CODES, result_path

JOB = status.SWITCH_JOB
RETRY = "Change the wish, or measure it once more with -e acceptance_retry=true."


@dataclass(frozen=True)
class Request:
    """One call's input.

    :param wished: the spec as the controller built it; :meth:`resolved` adds what only the host knows.
    :param secrets: ``{NAME: value}``; they leave this object only into 0600 files and keyed digests.
    :param agent: digest of the agent that the controller ships.
    :param gateway: the wished front, by the variables ``gateway_*``; empty = no part of the wish.
    """

    home: Home
    wished: Mapping[str, Any] = field(default_factory=dict)
    options: Mapping[str, Any] = field(default_factory=dict)
    findings: List[Dict[str, Any]] = field(default_factory=list)
    drafter_overrides: Mapping[str, Any] = field(default_factory=dict)
    secrets: Mapping[str, str] = field(default_factory=dict)
    agent: str = ""
    gateway: Mapping[str, Any] = field(default_factory=dict)
    clocks: Clocks = field(default_factory=Clocks)

    def resolved(self, create_key: bool = False) -> Dict[str, Any]:
        """The spec with what only this host knows in ``place``: paths, manager, keyed digests; validated."""
        for key in self.secrets.values():
            validate_api_key(key)
        given, backend = self.wished.get("place") or {}, self.backend().name
        place = spec.resolved_place(given, self.home, backend, engine_user(backend, given.get("user", "")))
        require_reachable(place)
        place["secrets"] = host.salted(self.home, self.secrets, create_key)
        whole = {**self.wished, "place": place}
        spec.validate(whole)
        return host.seated(self.home, whole)

    def checked_options(self) -> Dict[str, Any]:
        return options.checked(self.options)

    def backend(self) -> Backend:
        """The wished service manager; where nothing is wished, the one that the last deploy used."""
        wanted = (self.wished.get("place") or {}).get("backend")
        return choose(self.home, str(wanted or recorded_backend(self.home)), supervisor_lock="")

    def plan(self, whole: Mapping[str, Any]) -> Tuple[Facts, Plan]:
        """What the host shows and what the wish costs there."""
        chosen = self.checked_options()
        front = front_of(self.home).routed()
        return host.plan(self.home, self.backend(), front, whole, chosen, self.clocks.now())


def recorded_backend(home: Home) -> str:
    """The service manager of the activated deployment, else of the last wish, else ``auto``.

    A broken record is none: removing an installation has to work on a broken one too.
    """
    for path, keys in ((home.active, ("deployment", "place")), (home.wish, ("spec", "place"))):
        try:
            record: Any = read_json(path, "reading which service manager was used")
            for key in keys:
                record = record[key]
            return str(record["backend"])
        except (InputError, KeyError, TypeError):
            continue
    return "auto"


def inspected(request: Request, check: bool = False) -> Dict[str, Any]:
    """Read only: the wish against the host. ``action`` says what a deploy would do and why.

    Without a wish only the host is read. A switch to another wish is a refusal, in check mode a warning.
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
    whole = request.resolved()
    facts, plan = request.plan(whole)
    other = _other_switch(request, whole)
    # beside another switch a port may be taken by its candidate
    taken = _port_taken(whole, facts, plan) if plan.action == SWITCH and not other else ""
    state = status.read(request.home, backend, request.clocks)
    agent_same = not request.agent or host_agent.installed(request.home) == request.agent[:12]
    settled = state["switch"] is None and state["serving"]
    front_differs = gateway.differs(request.home, request.gateway) if request.gateway else []
    return {
        "changed": False,
        "release": spec.release_id(whole["serve"]),
        "current": state["release"],
        "previous": state["previous"],
        "action": plan.action,
        "reason": plan.reason or ", ".join(_told(row) for row in front_differs),
        "strategy": plan.strategy,
        "why": plan.why,
        "warning": " ".join(filter(None, (plan.warning, other if check else ""))),
        "refusal": ("" if check else other) or taken or str(refusal(facts, plan) or ""),
        "differs": plan.differs,
        "agent_differs": not agent_same,
        "front_differs": front_differs,
        "unchanged": plan.action == NONE and agent_same and settled and not front_differs,
        "evidence_valid": facts.evidence_valid,
        "evidence": current_evidence(request.home),
        "status": state,
        "lock": _lock(request),
        "journal": Journal(request.home.journal, request.clocks.now).entries(),
    }


def _told(row: Mapping[str, Any]) -> str:
    return f"{row['field']}: {row['before']} → {row['after']}"


def _port_taken(whole: Mapping[str, Any], facts: Facts, plan: Plan) -> str:
    """Said before a runtime is fetched for it; the switch looks again before it stops anything."""
    serving = facts.active["deployment"]["place"] if facts.active else {}
    place = (spec.beside(whole, serving) if plan.strategy == SIDE_BY_SIDE else whole)["place"]
    same = (place["host"], place["port"]) == (serving.get("host"), serving.get("port"))
    if same or port_free(place["host"], place["port"]):
        return ""
    holder = port_holder(place["host"], place["port"]) or {}
    who = f"pid {holder['pid']}" if holder.get("pid") else "another user's process"
    kept = f"Release {facts.active['deployment']['release']} serves." if facts.active else "Nothing serves."
    step = f"{kept} Stop that process, or set vllm_port to a free port."
    return str(HostError("deploying", f"port {place['port']} is taken by {who}", "", step, code="DG701"))


def _lock(request: Request) -> Dict[str, Any]:
    job = request.backend().job_state(JOB)
    return {"held": job.status == "running", "pid": job.pid, "since": job.since}


def _other_switch(request: Request, whole: Mapping[str, Any]) -> str:
    """Why a deploy would be refused by :func:`_start_job`: said before it has changed anything."""
    job, known = request.backend().job_state(JOB), _last_wish(request.home)
    if job.status != "running" or known.get("digest") == digest(_wish(request, whole)):
        return ""
    return str(_held(request.home, known, job))


def _held(home: Home, known: Mapping[str, Any], job: JobState) -> HostError:
    return HostError(
        "starting a switch",
        f"attempt {known.get('attempt')} of release {known.get('release')} is running (pid {job.pid})",
        "one switch at a time",
        f"{home.command} status watches it; {home.command} abort ends it and restores.",
        details={"held": True},
    )


def _last_wish(home: Home) -> Dict[str, Any]:
    return read_json(home.wish, "reading the last wish") if os.path.exists(home.wish) else {}


def _wish(request: Request, whole: Mapping[str, Any]) -> Dict[str, Any]:
    """The switch job's whole input, but for its attempt."""
    return {
        "spec": dict(whole),
        "options": request.checked_options(),
        "findings": list(request.findings),
        "drafter_overrides": dict(request.drafter_overrides),
    }


def current_evidence(home: Home) -> Optional[Dict[str, Any]]:
    """The evidence of what serves, or None (nothing serves, or it serves without speculation)."""
    active = host.read_active(home)
    path = active.get("evidence") if active else None
    return read_json(path, "reading the active release's evidence") if path and os.path.exists(path) else None


def refusal(facts: Facts, plan: Plan) -> Optional[HostError]:
    """Why this wish is not even tried: its own red evidence, or a change that cannot be made in place."""
    if plan.action != REFUSE:
        return None
    serving = facts.active["deployment"]["release"] if facts.active else None
    kept = f"Release {serving} keeps serving." if serving else "Nothing serves."
    if plan.error:
        step = f"{kept} {plan.error.next_step}"
        return HostError("deploying", plan.reason, "", step, plan.error.code, {"action": REFUSE})
    if facts.red:
        known = {"evidence": dict(facts.red), "action": REFUSE}
        return HostError("deploying", plan.reason, "", f"{kept} {RETRY}", code="DG830", details=known)
    step = f"{kept} Run playbooks/teardown.yml first (runtimes and models are kept), then deploy."
    return HostError("deploying", plan.reason, "the same service manager", step, details={"action": REFUSE})


def refuse(request: Request, whole: Mapping[str, Any]) -> Plan:
    """The plan, unless it is to refuse.

    :raises HostError: :func:`refusal`.
    """
    facts, plan = request.plan(whole)
    error = refusal(facts, plan)
    if error:
        raise error
    return plan


def prepared(request: Request, prompts_text: str, drafter_source: str, check: bool) -> Dict[str, Any]:
    """Put the release's files on the host. Nothing that serves is touched.

    :param prompts_text: the prompt set's content; its digest must be the spec's.
    :param drafter_source: the drafter's directory in the model store; empty without speculation.
    """
    whole = request.resolved(create_key=not check)
    refuse(request, whole)
    home, release_id = request.home, spec.release_id(whole["serve"])
    data = prompts_text.encode("utf-8")
    found, wanted = hashlib.sha256(data).hexdigest(), whole["gate"]["prompts"]["digest"]
    if found != wanted:
        raise InputError("preparing the prompts", f"their digest is {found[:12]}", wanted[:12])
    missing = not os.path.exists(home.release_spec(release_id))
    stale = not os.path.exists(home.prompts(wanted))
    absent = [
        name
        for name, value in whole["place"]["secrets"].items()
        if not os.path.exists(home.secret(name, value))
    ]
    drafter, rewritten = whole["serve"]["drafter"], False
    if not check:
        host.store_secrets(home, request.secrets, whole["place"]["secrets"])
        if stale:
            write_atomic(home.prompts(wanted), data)
        if drafter:
            effective = home.release_drafter(release_id)
            rewritten = effective_config.write(effective, drafter_source, drafter["config"])
        if missing:
            write_json(home.release_spec(release_id), whole["serve"])  # last: its presence means complete
    return {
        "changed": missing or stale or rewritten or bool(absent),
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
    whole = request.resolved(create_key=not check)
    plan = refuse(request, whole)
    return _carry_out(request, _wish(request, whole), plan, wait, check)


def restored(request: Request, wait: Wait, check: bool) -> Dict[str, Any]:
    """Roll back: the release that the active one replaced, at the present place, gated like any other.

    :raises HostError: there is nothing to go back to.
    """
    if wait.attempt:
        return _follow(request, request.backend(), wait)
    active = host.read_active(request.home)
    previous = active.get("previous") if active else None
    if not active or not previous:
        raise HostError(
            "rolling back",
            "no earlier release is recorded here",
            "",
            "A second green deploy makes the first one.",
        )
    whole = {**{part: active["deployment"][part] for part in spec.PARTS}, "serve": previous["serve"]}
    chosen = {**request.checked_options(), "retry": True}  # it was activated once: red evidence is no veto
    _facts, plan = replace(request, options=chosen).plan(whole)
    wish = {"spec": whole, "options": chosen, "findings": [], "drafter_overrides": {}}
    return _carry_out(request, wish, plan, wait, check)


def _carry_out(request: Request, wish: Dict[str, Any], plan: Plan, wait: Wait, check: bool) -> Dict[str, Any]:
    """Start the switch job on the wish and wait; in check mode only say what would change."""
    release_id = spec.release_id(wish["spec"]["serve"])
    result = {
        "release": release_id,
        "differs": plan.differs,
        "action": plan.action,
        "diff": diff(plan.differs),
    }
    if check:
        return {**result, "changed": plan.changes}
    backend = request.backend()
    attempt = _start_job(request, backend, wish, release_id)
    return {**result, **_follow(request, backend, replace(wait, attempt=attempt))}


def _start_job(request: Request, backend: Backend, wish: Dict[str, Any], release_id: str) -> str:
    """Start the switch, or attach to the one that already works on the same wish.

    Looking, writing the wish and starting are one step: two controllers must not write over each other's.
    """
    home, wish_digest = request.home, digest(wish)
    with locked(home.path("state", "wish.lock")):
        job, known = backend.job_state(JOB), _last_wish(home)
        if job.status == "running":
            if known.get("digest") != wish_digest:
                raise _held(home, known, job)
            return str(known["attempt"])
        moment = datetime.datetime.fromtimestamp(request.clocks.now(), datetime.timezone.utc)
        attempt = f"{moment.strftime('%Y%m%dT%H%M%S.%f')}-{release_id}"
        known = {**wish, "digest": wish_digest, "attempt": attempt, "release": release_id}
        write_json(home.wish, known, 0o600)
        jobs.forget(progress_path(home))
        backend.start_job(jobs.command(home, JOB, ("switch", "--attempt", attempt), VERDICT_EXIT_CODES))
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
    facts: Dict[str, Any] = {
        "journal": Journal(home.journal, request.clocks.now).entries(),
        "evidence": measured,
        "current_evidence": current_evidence(home),
        "result": result,
        "status": status.read(home, request.backend(), request.clocks),
        "job": {"running": False, "progress": {}},
    }
    if result["exit"] != EXIT_PASS:
        facts["changed"] = result["ended"] in (RESTORED, UNRESTORED, STOPPED)
        raise _verdict_error(result, measured, facts)
    changed = result["ended"] != NONE
    return {**facts, "changed": changed, "warning": _warning(result)}


def _evidence_at(path: Optional[str]) -> Optional[Dict[str, Any]]:
    return read_json(path, "reading the attempt's evidence") if path and os.path.exists(path) else None


def _warning(result: Mapping[str, Any]) -> str:
    """What is green and still not what one would want."""
    told = [str(result.get("warning") or "")]
    if result.get("fallback"):
        told = [f"The target serves WITHOUT speculation: {result['reason']}"]
    if result.get("cut_off"):
        told.append(
            f"{result['cut_off']} request(s) were cut off: they ran longer than gateway_drain_seconds."
        )
    return " ".join(filter(None, told))


def _verdict_error(
    result: Mapping[str, Any], measured: Optional[Mapping[str, Any]], facts: Dict[str, Any]
) -> DraftgateError:
    """One message: what was tried, what was seen, what serves now, what to look at first."""
    state: Mapping[str, Any] = facts["status"]
    kept = f"Release {state['release']} serves." if state["serving"] else "Nothing serves."
    if result.get("exit") == EXIT_REFUSED and not result.get("error"):
        reason = str(result["reason"])
        return HostError("deploying", reason, "", f"{kept} {RETRY}", code="DG830", details=facts)
    suspects = (measured or {}).get("suspects") or []
    first = f" First suspect: {suspects[0]['cause']}. {suspects[0]['next']}" if suspects else ""
    error = result.get("error") or {}
    step = first or (f" {error['next_step']}" if error.get("next_step") else "")
    return HostError(
        f"deploying release {result.get('release') or ''}".rstrip(),
        str(error.get("observed") or result.get("reason") or result.get("ended")).rstrip("."),
        "",
        f"{kept}{step}",
        code=error.get("code"),
        details={**facts, "cause": (error.get("details") or {}).get("cause") or result.get("cause", "")},
    )


def module_result(given: Mapping[str, Any], check: bool) -> Dict[str, Any]:
    """The module ``release``: the one call that the wished state stands for.

    :param given: the module's arguments.
    """
    request = Request(
        home=Home.at(given["home"]),
        wished=given["spec"],
        options=given["options"],
        findings=given["findings"],
        drafter_overrides=given["drafter_overrides"],
        # YAML reads a key of digits as a number
        secrets={name: str(value) for name, value in given["secrets"].items() if value not in (None, "")},
        agent=given["agent"],
        gateway=given["gateway"],
    )
    wait = Wait(given["wait_seconds"], given["seen"], given["attempt"])
    calls: Dict[str, Callable[[], Dict[str, Any]]] = {
        "inspected": lambda: inspected(request, check),
        "prepared": lambda: prepared(request, given["prompts"], given["drafter_source"], check),
        "switched": lambda: switched(request, wait, check),
        "restored": lambda: restored(request, wait, check),
        "pruned": lambda: removal.pruned(request.home, given["keep"], check),
        "absent": lambda: removal.absent(request.home, request.backend(), given["purge"], check),
    }
    return calls[given["state"]]()
