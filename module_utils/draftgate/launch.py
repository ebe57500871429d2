"""From a deployment to a server that has answered, or to the cause why it did not.

``/health`` proves little: a mask token beyond the vocabulary or a layer id beyond the target passes it and
kills the engine at the first request. So an engine counts as ready when it has answered one.
"""

from __future__ import annotations

import os
import re
import time
from dataclasses import dataclass
from typing import Any, Callable, Dict, Iterable, List, Mapping, NamedTuple, Optional, Protocol, Sequence

from . import processes
from .argv import engine_argv, engine_environment
from .backend import choose, engine_user, hardening, require_reachable
from .backend.base import ENGINE_PREFIX, Backend, Service, ServiceState
from .credentials import mask
from .engine_client import client_for
from .errors import DraftgateError, LaunchError
from .layout import Home
from .progress import Report, silent
from .spec import deployment, endpoint, resolved_place

_POLL_SECONDS = 0.5
_DEATH_SECONDS = 20.0
"""How long an engine that failed its first request may take to die of it (seen: 1-8 s)."""
_FIRST_REQUEST_SECONDS = 300.0
_FIRST_REQUEST_TOKENS = 8
"""More than one: the drafter first runs after the first token."""
STATES = ("started", "stopped", "restarted", "absent")
_AFTER = {"started": "running", "stopped": "stopped", "restarted": "running", "absent": "absent"}
_TAIL_LINES = 400
_SHOWN_LINES = 40


class Client(Protocol):
    """What is asked of the engine; ``engine_client.EngineClient``."""

    def health(self) -> bool: ...

    def version(self) -> str: ...

    def models(self) -> List[str]: ...

    def chat(
        self,
        model: str,
        messages: Sequence[Mapping[str, Any]],
        *,
        max_tokens: int,
        temperature: float,
        timeout: float = ...,
    ) -> Any: ...


@dataclass(frozen=True)
class Ready:
    """An engine that has answered.

    :param seconds: since the wait began.
    :param pid: of the process that the service manager started.
    :param version: what the engine says it is.
    """

    seconds: float
    pid: Optional[int]
    version: str


@dataclass(frozen=True)
class Cause:
    """Why an engine did not come up.

    :param cause: a stable word: port_taken, out_of_memory, contract, bad_argument, import_error,
        died_on_first_request, timeout, unknown.
    :param code: its DG7xx.
    :param message: what was observed, with the engine's own words.
    :param next_step: what to do or type now.
    :param line: the log line that gave it away, secrets masked; empty when none did.
    """

    cause: str
    code: str
    message: str
    next_step: str
    line: str = ""


CODES = {
    "port_taken": "DG701",
    "out_of_memory": "DG702",
    "contract": "DG703",
    "bad_argument": "DG704",
    "import_error": "DG705",
    "died_on_first_request": "DG706",
    "timeout": "DG707",
    "unknown": "DG708",
}


class Rule(NamedTuple):
    """One way an engine says why it gives up. ``{0}`` in the message is the matched text, ``{1}`` a group."""

    cause: str
    pattern: str
    message: str
    next_step: str


_LESS_MEMORY = "Lower max_model_len, max_num_seqs or gpu_memory_utilization, or free the memory."
_ARGS = "Correct it in vllm_server_args."
_REBUILD = "Build the runtime anew from its lock; nothing may be installed into it by hand."
_CONTRACT = "Correct the drafter's config (drafter_overrides); drafter_contract says what it should hold."

RULES: Sequence[Rule] = (
    Rule(
        "port_taken",
        r"(?i)address already in use",
        "the port is taken ({0})",
        "See who listens there (ss -ltnp), stop it or set vllm_port.",
    ),
    Rule(
        "import_error",
        r"'_C' object has no attribute '\w+'",
        "the engine's compiled part did not load ({0}); without libnuma.so.1 it says only this",
        "Install libnuma1 on the host.",
    ),
    Rule(
        "import_error",
        r"(\S+): cannot open shared object file",
        "the library {1} is missing",
        "Install the package that has it, or build the runtime anew from its lock.",
    ),
    Rule(
        "import_error",
        r"(\S+): undefined symbol: (\S+)",
        "{1} was built against another library (undefined symbol {2})",
        _REBUILD,
    ),
    Rule(
        "import_error",
        r"ModuleNotFoundError: No module named \S+|ImportError: cannot import name .{0,120}",
        "the runtime is incomplete ({0})",
        _REBUILD,
    ),
    Rule(
        "bad_argument",
        r"error: (unrecognized arguments: .+|argument .+)",
        "the engine refuses an argument ({1})",
        _ARGS,
    ),
    Rule(
        "bad_argument",
        r"Invalid repository ID or local directory specified: (\S+)",
        "{1} holds no model",
        "Deploy again: it puts the release's files in place.",
    ),
    Rule("bad_argument", r"Value error, (.{0,300})", "the engine refuses its configuration ({1})", _ARGS),
    Rule(
        "out_of_memory",
        r"OutOfMemoryError: .{0,200}|CUDA out of memory.{0,160}|CUDA error: out of memory",
        "the GPU has no room ({0})",
        _LESS_MEMORY,
    ),
    Rule(
        "out_of_memory",
        r"Free memory on device .{0,200}less than desired .{0,80}",
        "the GPU is not free ({0})",
        "See what holds it (nvidia-smi): often the workers of a server that was killed (vllm#55510).",
    ),
    Rule(
        "out_of_memory",
        r"No available memory for the cache blocks.{0,120}|To serve at least one request .{0,250}",
        "the KV cache has no room ({0})",
        _LESS_MEMORY,
    ),
    Rule(
        "out_of_memory",
        r"Insufficient space in /dev/shm.{0,120}|No space left on device",
        "shared memory is too small ({0})",
        "Give /dev/shm more than 400 MB (a container's setting, or the tmpfs mount's size).",
    ),
    Rule(
        "out_of_memory",
        r"Available memory on node .{0,200}|(?i:can(?:'t|not) allocate memory).{0,80}|\bMemoryError",
        "the host has not enough memory ({0})",
        "Free memory, or lower VLLM_CPU_KVCACHE_SPACE.",
    ),
    Rule(
        "contract",
        r"Error: (.{0,120}mask_token_id.{0,200})|argument 'parallel_drafting_token_id'.{0,80}NoneType",
        "the engine has no usable mask_token_id ({0})",
        _CONTRACT,
    ),
    Rule(
        "contract",
        r"DFlash drafter expects \d+ concatenated aux hidden features but received \d+",
        "target_layer_ids names layers that the target does not have ({0})",
        _CONTRACT,
    ),
    Rule(
        "contract",
        r"Tried to load weights of size .{0,60}to a parameter of size .{0,60}",
        "the drafter's weights do not fit its config, most often in the number of target_layer_ids ({0})",
        _CONTRACT,
    ),
)
"""In this order: what breaks first in a start is asked first."""


def classify(log_lines: Iterable[str], context: Mapping[str, Any]) -> Cause:
    """The cause of a failed start, from the engine's log and from what was seen around it. Pure.

    :param context: ``asked_first_request`` (it was up and died or failed while answering),
        ``measured`` (it ended while the gate measured it: its own error is red, a kill from outside is not),
        ``timed_out`` (the deadline passed while it lived), ``oom_kills`` (processes the kernel killed
        for memory meanwhile), ``observed`` (what the watcher saw, one phrase).
    """
    lines = [mask(line) for line in log_lines]
    found = _by_rules(lines)
    died_of_it = context.get("measured") and not found and not context.get("oom_kills") and _causes(lines)
    if context.get("asked_first_request") or died_of_it:
        return _first_request(found, lines, context)
    if found:
        return found
    observed = context.get("observed", "it ended")
    if context.get("oom_kills"):
        return _cause(
            "out_of_memory",
            f"the kernel killed {context['oom_kills']} process(es) for memory meanwhile; {observed}",
            "Free memory, or lower VLLM_CPU_KVCACHE_SPACE; dmesg names the process.",
        )
    if context.get("timed_out"):
        last = next((line for line in reversed(lines) if line.strip()), "nothing")
        return _cause(
            "timeout",
            f"{observed}; its log ends with: {last.strip()[:200]}",
            "Give it more time (draftgate_switch_time_limit), or find out what it waits for.",
        )
    error = _last_error(lines)
    return _cause(
        "unknown",
        f"{observed}: {error}" if error else observed,
        "Read the end of its log below.",
        error,
    )


def _by_rules(lines: Sequence[str]) -> Optional[Cause]:
    told = [line for line in lines if not _HARMLESS.search(line)]
    for rule in RULES:
        for line in told:
            found = re.search(rule.pattern, line)
            if found:
                words = [found.group().strip(), *(group or "" for group in found.groups())]
                return _cause(rule.cause, rule.message.format(*words), rule.next_step, line.strip())
    return None


def _first_request(found: Optional[Cause], lines: Sequence[str], context: Mapping[str, Any]) -> Cause:
    why = found.message if found else _last_error(lines)
    observed = context.get("observed", "it was healthy and died at its first request")
    return _cause(
        "died_on_first_request",
        f"{observed}: {why}" if why else observed,
        "Usually a mask_token_id or a target_layer_ids entry that the target does not have. " + _CONTRACT,
        found.line if found else why,
    )


def _cause(cause: str, message: str, next_step: str, line: str = "") -> Cause:
    return Cause(cause, CODES[cause], message, next_step, line)


_HARMLESS = re.compile(r"\b(?:DEBUG|INFO|WARNING) \d\d-\d\d |ERROR: ld\.so: .*: ignored")
"""A healthy start warns of missing libraries too, and prints the words we look for among its settings."""
_ERROR = re.compile(r"\b(?:[A-Z]\w*(?:Error|Exception|Interrupt)): .+|\b[A-Z]\w*Error\b\s*$")
_CONSEQUENCE = re.compile(
    r"Engine core initialization failed|WorkerProc initialization failed|Worker failed with error"
    r"|EngineDeadError"
)
_GAVE_UP = re.compile(
    r"EngineCore failed to start|WorkerProc failed to start|Engine core initialization failed"
)


def _last_error(lines: Sequence[str]) -> str:
    """The last exception that is a cause: the API server's own only say that the engine is gone."""
    return (_causes(lines) or _errors(lines) or [""])[-1].strip()[:300]


def _errors(lines: Sequence[str]) -> List[str]:
    told = [line for line in lines if not _HARMLESS.search(line)]
    return [found.group() for found in map(_ERROR.search, told) if found]


def _causes(lines: Sequence[str]) -> List[str]:
    return [error for error in _errors(lines) if not _CONSEQUENCE.search(error)]


def require_port(host: str, port: int) -> None:
    """Raise :class:`LaunchError` when somebody listens there already.

    vLLM itself notices only after its weights are loaded (vllm#9737), and a second vLLM of the same user
    does not notice at all: it binds with SO_REUSEPORT and gets every other request.
    """
    if processes.port_free(host, port):
        return
    holder = processes.port_holder(host, port)
    who = "another user's process"
    if holder and holder["pid"]:
        holder = {**holder, "command": mask(holder["command"])}
        who = f"pid {holder['pid']}: {holder['command'][:200]}"
    cause = _cause(
        "port_taken", f"port {port} is taken by {who}", "Stop that process, or set vllm_port to a free port."
    )
    raise _launch_error(f"binding {host}:{port}", cause, [], {"holder": holder})


def service_for(deployment: Mapping[str, Any], home: Home) -> Service:
    """The engine of a deployment, its placeholders resolved to this host's paths.

    :raises InputError: see ``argv``.
    """
    serve, place = deployment["serve"], deployment["place"]
    user = str(place.get("user") or "")
    paths = {
        "runtime": os.path.join(place["runtimes"], serve["runtime"]["lock"][:12]),
        "target": home.model(serve["target"]["digest"]),
        "drafter": home.release_drafter(deployment["release"]),
        "cache": home.engine_cache(user),
        "home": home.root,
    }
    environment = engine_environment(serve, paths)
    if user:  # a system user has no home directory, and whatever is compiled has to survive a restart
        environment = {**caches_below(paths["cache"]), **environment}
    if place["gpus"]:
        # Without PCI_BUS_ID CUDA numbers cards by speed, and another card is used than nvidia-smi shows
        environment.update(CUDA_DEVICE_ORDER="PCI_BUS_ID", CUDA_VISIBLE_DEVICES=",".join(place["gpus"]))
    return Service(
        name=f"{ENGINE_PREFIX}{deployment['id']}",
        argv=tuple(engine_argv(serve, place, paths)),
        environment=environment,
        secret_files={name: home.secret(name, salted) for name, salted in sorted(place["secrets"].items())},
        working_directory=home.root,
        user=user,
        cache=paths["cache"],
        traits=hardening.traits(place, paths["runtime"]),
    )


def caches_below(directory: str) -> Dict[str, str]:
    """Where an engine's libraries keep what they compile, when all of it has to lie in one directory."""
    names = {"VLLM_CACHE_ROOT": "vllm", "TRITON_CACHE_DIR": "triton", "TORCHINDUCTOR_CACHE_DIR": "inductor"}
    return {"HOME": directory, **{name: os.path.join(directory, part) for name, part in names.items()}}


def converge(spec: Mapping[str, Any], state: str, timeout: float, check: bool) -> Dict[str, Any]:
    """Bring the engine of one spec into ``state``: the module ``vllm_server``.

    :param spec: ``serve`` and ``place``, as the filter makes them or as a deployment has them: both name
        the same service.
    :param timeout: seconds until it has answered, or has stopped.
    :param check: say what would be done, do nothing.
    :returns: the module's result.
    :raises LaunchError: it did not come up; it is stopped then, so that its manager does not try for ever.
        One that ran before and does not answer is left as it is.
    """
    home = Home.at(spec["place"]["home"])
    backend = choose(home, spec["place"]["backend"], supervisor_lock="")
    user = engine_user(backend.name, spec["place"].get("user", ""))
    place = resolved_place(spec["place"], home, backend.name, user)
    require_reachable(place)
    wished = deployment({"gate": {}, **spec, "place": place})
    service = service_for(wished, home)
    before = backend.state(service.name)
    steps = _steps(before.status, state)
    after = _AFTER[state] if steps else before.status
    seconds = None if check else _carry_out(steps, backend, service, wished, state, timeout)
    return {
        "changed": bool(steps),
        "actions": steps,
        "endpoint": endpoint(wished["place"]),
        "argv": list(service.argv),
        "ready_seconds": seconds,
        "diff": {"before": {"state": before.status}, "after": {"state": after}},
        **_running(backend, service.name, client_for(home, wished)),
    }


def _steps(status: str, state: str) -> List[str]:
    """What leads from a service's status to the wished state, in order."""
    up = status == "running"
    if state == "started":
        return [] if up else ["start"]
    if state == "restarted":
        return ["start"] if status in ("stopped", "absent") else ["stop", "start"]
    if state == "absent":
        return [] if status == "absent" else ["remove"]
    return [] if status in ("stopped", "absent") else ["stop"]


def _carry_out(
    steps: Sequence[str],
    backend: Backend,
    service: Service,
    wished: Mapping[str, Any],
    state: str,
    timeout: float,
) -> Optional[float]:
    """Seconds until it answered; None where it is not to run."""
    end = time.monotonic() + timeout
    if steps:
        backend.ensure()
    if "remove" in steps:
        backend.remove(service.name)
    if "stop" in steps:
        backend.stop(service.name, timeout)
    if _AFTER[state] != "running":
        return None
    if "start" not in steps:
        return _answers(backend, service.name, wished, end)
    require_port(wished["place"]["host"], wished["place"]["port"])
    backend.define(service)
    backend.start(service.name)
    try:
        return _answers(backend, service.name, wished, end)
    except LaunchError:
        backend.stop(service.name, service.stop_seconds)
        raise


def _answers(backend: Backend, name: str, wished: Mapping[str, Any], deadline: float) -> float:
    return wait_ready(
        client_for(Home.at(wished["place"]["home"]), wished),
        backend,
        name,
        served_model_name=wished["serve"]["served_model_name"],
        deadline=deadline,
        clock=time.monotonic,
        sleep=time.sleep,
        progress=silent,
    ).seconds


def _running(backend: Backend, name: str, client: Client) -> Dict[str, Any]:
    pid = backend.state(name).pid
    try:
        return {"pid": pid, "version": client.version() if pid else None}
    except DraftgateError:
        return {"pid": pid, "version": None}


def wait_ready(
    client: Client,
    backend: Backend,
    name: str,
    *,
    served_model_name: str,
    deadline: float,
    clock: Callable[[], float],
    sleep: Callable[[float], None],
    progress: Report,
) -> Ready:
    """Wait until the started service ``name`` is healthy, lists its model and has answered a request.

    :param deadline: in ``clock``'s seconds.
    :raises LaunchError: it died, was started again by its manager, or the deadline passed; ``details``
        has ``cause`` and ``log_tail``.
    """
    watch = Watch(backend, name, deadline, clock, sleep)
    progress("start", 0, 0, "waiting for /health")
    watch.until(client.health, "it is not healthy")
    progress("start", 0, 0, "waiting for its model")
    listed = f"it does not list the model {served_model_name!r}"
    watch.until(lambda: served_model_name in _models(client), listed)
    progress("start", 0, 0, "waiting for its first answer")
    watch.first_request(client, served_model_name)
    return Ready(round(clock() - watch.began, 2), watch.first.pid, client.version())


def _models(client: Client) -> List[str]:
    try:
        return client.models()
    except DraftgateError:
        return []


class Watch:
    """One start, or one measurement: the process it began with, its log since then, and the deadline.

    :raises LaunchError: the service does not run.
    """

    def __init__(
        self,
        backend: Backend,
        name: str,
        deadline: float,
        clock: Callable[[], float],
        sleep: Callable[[float], None],
    ) -> None:
        self.backend, self.name, self.deadline, self.clock, self.sleep = backend, name, deadline, clock, sleep
        self.began = clock()
        self._oom_kills = processes.oom_kills()
        self._early = current_run(backend.log_tail(name, _TAIL_LINES))
        self._offset = backend.log_offset(name)
        self._looks_at_log, self._gave_up = self.began + _DEATH_SECONDS, False
        self.first = backend.state(name)
        if self.first.status != "running":
            raise self._failed(f"the service is {self.first.status}")

    def until(self, done: Callable[[], bool], missing: str) -> None:
        while not done():
            self.require_alive()
            if self.clock() >= self.deadline:
                raise self._failed(f"{missing} after {self.clock() - self.began:.0f} s", timed_out=True)
            if self._gives_up():
                raise self._failed("its log says that it failed to start, and it does not end")
            self.sleep(_POLL_SECONDS)
        self.require_alive()

    def _gives_up(self) -> bool:
        """Whether its log said in two looks, far enough apart to die between them, that it cannot start.

        Seen: an EngineCore that ended after the five minutes of its handshake, and an API server that
        waited for it for ever.
        """
        if self.clock() < self._looks_at_log:
            return False
        self._looks_at_log = self.clock() + _DEATH_SECONDS
        lines = self.backend.log_tail(self.name, _TAIL_LINES, self._offset)
        before, self._gave_up = self._gave_up, any(map(_GAVE_UP.search, lines))
        return before and self._gave_up

    def first_request(self, client: Client, model: str) -> None:
        timeout = max(1.0, min(_FIRST_REQUEST_SECONDS, self.deadline - self.clock()))
        question = [{"role": "user", "content": "Hello"}]
        try:
            client.chat(model, question, max_tokens=_FIRST_REQUEST_TOKENS, temperature=0.0, timeout=timeout)
        except DraftgateError as exc:
            raise self._first_request_failed(exc) from exc
        self.require_alive()

    def _first_request_failed(self, exc: DraftgateError) -> LaunchError:
        """An engine that fails a request may still live, and only its death tells which of the two it is."""
        death = self._death_within(_DEATH_SECONDS)
        if death:
            observed = f"it was healthy and died at its first request ({death})"
            return self._failed(observed, asked_first_request=True)
        timed_out = self.clock() >= self.deadline
        return self._failed(f"it is healthy and does not answer ({exc.observed})", timed_out=timed_out)

    def require_alive(self) -> None:
        death = self._death()
        if death:
            raise self._failed(death)

    def require_survived(self, dying: bool) -> None:
        """After a measurement that failed: whether it is the engine that ended, and of what.

        :param dying: it left a request without an answer; what dies of one takes some seconds.
        :raises LaunchError: it ended, or another process stands in its place.
        """
        death = self._death_within(_DEATH_SECONDS if dying else 0.0)
        if death:
            raise self._failed(death, measured=True)

    def _death_within(self, seconds: float) -> Optional[str]:
        end = self.clock() + seconds
        while self._death() is None and self.clock() < end:
            self.sleep(_POLL_SECONDS)
        return self._death()

    def _death(self) -> Optional[str]:
        """What happened to the process we began with; None while it lives."""
        state: ServiceState = self.backend.state(self.name)
        if state.status == "running" and state.identity == self.first.identity:
            return None
        code = "" if state.exit_code is None else f", exit code {state.exit_code}"
        again = " and was started again" if state.status == "running" else ""
        return f"the engine ended after {self.clock() - self.began:.0f} s{code}{again}"

    def _failed(self, observed: str, **context: Any) -> LaunchError:
        self.sleep(_POLL_SECONDS)  # the last lines are on their way through the manager's pipe
        since = self.backend.log_tail(self.name, _TAIL_LINES, self._offset)
        lines = [*self._early, *since]
        telling = since if context.get("measured") else lines  # what it has got over did not end it
        context = {"observed": observed, "oom_kills": processes.oom_kills() - self._oom_kills, **context}
        doing = f"{'measuring' if context.get('measured') else 'starting'} {self.name}"
        return _launch_error(doing, classify(telling, context), lines, {"observed": observed})


def current_run(lines: Sequence[str]) -> List[str]:
    """The lines since the last start, where the reaper or systemd has said when one began."""
    starts = [number for number, line in enumerate(lines) if _START.search(line)]
    return list(lines[starts[-1] :]) if starts else list(lines)


_START = re.compile(r"\[draftgate\] start: |^Starting (?:draftgate-\w+-|Draftgate )?engine-")


def _launch_error(doing: str, cause: Cause, lines: Sequence[str], details: Dict[str, Any]) -> LaunchError:
    tail = [mask(line) for line in lines][-_SHOWN_LINES:]
    return LaunchError(
        doing,
        cause.message,
        "an engine that answers",
        cause.next_step,
        code=cause.code,
        details={**details, "cause": cause.cause, "log_tail": tail, "line": cause.line},
    )
