"""The gate's measurement: our own prompts, our own requests' acceptance, nothing decided.

Effects first (:func:`measure` collects batches), then one pure fold over them (:func:`summarise`).
What went wrong with the measuring itself is part of the result (``problem``), because it has to be
recorded and decided on like any other outcome.
"""

from __future__ import annotations

import time
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import asdict, dataclass
from typing import Any, Callable, Dict, Iterator, List, Mapping, Optional, Sequence, Set, Tuple

from .engine_client import ChatResult, EngineClient
from .errors import InputError, MeasureError
from .metrics import Acceptance, Counters, parse_spec_decode, request_acceptance
from .progress import Report
from .prompts import Prompt
from .sampling import Sampling

MAX_PASSES = 4
"""How often the prompts are gone over at most, to reach acceptance_min_drafts."""
MIN_OWN_SHARE = {"requests": 0.95, "counters": 0.99}
"""Below this share of what the engine counted, there is too much of somebody else's traffic.

Stricter where own drafts are known from the counters alone: foreign text may be drafted far worse than ours,
and 4 % foreign tokens with a τ near 1 were seen to turn 6.07 into 5.08.
"""

_WARM_UP_TOKENS = 16
_COUNTER_READS = 10  # the engine updates its counters a moment after it has answered
_COUNTER_WAIT = 0.2  # seconds
_SHOWN_IDS = 10
_SILENT_SECONDS = 10.0
"""After so long without an answer the engine is asked for its health, which vLLM tells while it generates."""
_SILENT_LOOKS = 3

Answer = Tuple[Prompt, ChatResult]


@dataclass(frozen=True)
class Batch:
    """One workload's requests in one pass.

    :param counted: what the engine's counters gained meanwhile; None without speculation.
    """

    number: int
    workload: str
    answers: Tuple[Answer, ...]
    seconds: float
    counted: Optional[Counters]

    @property
    def own(self) -> Optional[Acceptance]:
        """The requests' own acceptance; None where the engine does not report it for each of them."""
        reports = [result.metrics for _, result in self.answers]
        if not reports or not all(report and report.get("speculative_decoding") for report in reports):
            return None
        return sum((request_acceptance(report) for report in reports if report), Acceptance())

    @property
    def acceptance(self) -> Acceptance:
        return self.own or (self.counted.acceptance if self.counted else Acceptance())

    @property
    def tokens(self) -> int:
        return sum(result.completion_tokens for _, result in self.answers)


@dataclass(frozen=True)
class Measurement:
    """What was measured. Its fields are fields of the evidence.

    :param num_speculative_tokens: k as wished; 0 = without speculation.
    :param acceptance: counts and rates (:meth:`Acceptance.as_dict`); null without speculation.
    :param workloads: one entry per kind of prompts: counts, rates, tokens, seconds, answers.
    :param passes: mean acceptance length and drafts of each pass over the prompts.
    :param counted_by: ``requests`` (each request's own metrics) or ``counters`` (differences of /metrics).
    :param own_share: own share of what the engine counted meanwhile.
    :param seconds: wall time of the measured requests (no warm-up).
    :param answers: ``{compared, right}`` against the prompts' expected answers: informative.
    :param repeating: ids of prompts whose answer ends in one short unit, repeated.
    :param problem: why it could not be measured: ``{code, message, field, observed, expected}``.
    """

    num_speculative_tokens: int
    acceptance: Optional[Dict[str, Any]]
    workloads: List[Dict[str, Any]]
    passes: List[Dict[str, Any]]
    counted_by: Optional[str]
    own_share: Optional[float]
    requests: int
    generation_tokens: int
    seconds: float
    tokens_per_second: Optional[float]
    answers: Dict[str, int]
    repeating: List[str]
    problem: Optional[Dict[str, Any]] = None

    def as_dict(self) -> Dict[str, Any]:
        return asdict(self)


def measure(
    client: EngineClient,
    model: str,
    prompts: Sequence[Prompt],
    settings: Mapping[str, Any],
    *,
    num_speculative_tokens: int,
    clock: Callable[[], float],
    progress: Report,
    request_timeout: float = 300.0,
    sleep: Callable[[float], None] = time.sleep,
) -> Measurement:
    """Send the prompts and count what was drafted and accepted.

    :param settings: the spec's ``gate`` part.
    :param num_speculative_tokens: k; 0 measures speed alone.
    :param clock: seconds that only grow.
    :param progress: called after each request; what it raises ends the measurement and is passed on.
    :param request_timeout: seconds for one answer.
    :raises InputError: a wished workload has no prompts, or a setting has a wrong type.
    """
    kinds = select(prompts, settings.get("workloads"))
    run = _Run(client, model, settings, num_speculative_tokens, clock, progress, request_timeout, sleep)
    batches: List[Batch] = []
    try:
        run.warm_up(kinds)
        for number in range(1, MAX_PASSES + 1):
            batches.extend(run.one_pass(number, kinds))
            if _enough(batches, settings):
                break
    except MeasureError as exc:
        return summarise(batches, num_speculative_tokens, _problem(exc))
    return summarise(batches, num_speculative_tokens)


def select(prompts: Sequence[Prompt], workloads: Optional[Sequence[str]]) -> Dict[str, List[Prompt]]:
    """The prompts by workload, in the set's order; ``workloads`` null = all of them.

    :raises InputError: a name in ``workloads`` that no prompt has, or nothing left.
    """
    kinds: Dict[str, List[Prompt]] = {}
    for prompt in prompts:
        kinds.setdefault(prompt.workload, []).append(prompt)
    wished = list(kinds) if workloads is None else list(workloads)
    unknown = sorted(set(wished) - set(kinds))
    if unknown or not wished:
        observed = (
            f"no prompt is of the workload {', '.join(unknown)}" if unknown else "no workload is wished"
        )
        raise InputError(
            "choosing the gate's prompts", observed, f"some of {', '.join(kinds)}, or null for all"
        )
    return {kind: kinds[kind] for kind in kinds if kind in wished}


class _Run:
    """Requests to one engine under one set of gate settings."""

    def __init__(
        self,
        client: EngineClient,
        model: str,
        settings: Mapping[str, Any],
        num_speculative_tokens: int,
        clock: Callable[[], float],
        progress: Report,
        request_timeout: float,
        sleep: Callable[[float], None],
    ) -> None:
        self._client, self._model, self._k = client, model, num_speculative_tokens
        self._sampling = Sampling.of(settings)
        self._template = settings.get("template") or None
        self._concurrency = int(settings.get("concurrency") or 1)
        self._clock, self._progress, self._timeout, self._sleep = clock, progress, request_timeout, sleep
        self._counters: Optional[Counters] = None
        self._tells_health = _tells_health(client)

    def warm_up(self, kinds: Mapping[str, Sequence[Prompt]]) -> None:
        """A short answer of every kind, as many at once as will be measured; none of it counts."""
        if self._k:
            self._counters = parse_spec_decode(self._client.metrics_text())
        prompts = [kind[index % len(kind)] for kind in kinds.values() for index in range(self._concurrency)]
        answers: List[Answer] = []
        for answer in self._answers(prompts, _WARM_UP_TOKENS):
            answers.append(answer)
            self._progress("warm up", len(answers), len(prompts), "")
        self._counted(Batch(0, "warm up", tuple(answers), 0.0, None))

    def one_pass(self, number: int, kinds: Mapping[str, Sequence[Prompt]]) -> Iterator[Batch]:
        done, total = 0, sum(len(kind) for kind in kinds.values())
        for workload, prompts in kinds.items():
            started, answers = self._clock(), []
            for answer in self._answers(prompts, self._sampling.max_tokens):
                answers.append(answer)
                done += 1
                self._progress("gate", done, total, workload if number == 1 else f"{workload}, pass {number}")
            seconds = self._clock() - started
            order = {prompt.id: place for place, prompt in enumerate(prompts)}
            answers.sort(key=lambda answer: order[answer[0].id])
            yield self._counted(Batch(number, workload, tuple(answers), seconds, None))

    def _answers(self, prompts: Sequence[Prompt], max_tokens: Optional[int]) -> Iterator[Answer]:
        """The answers as they come, ``concurrency`` requests at a time; the first failure ends it.

        So does an engine that shows no sign of life: one that is stopped keeps its connections, and each
        request would be waited for to its own time limit.
        """
        pool, silent = ThreadPoolExecutor(self._concurrency), 0
        try:
            waiting: Set[Future[Answer]] = {pool.submit(self._ask, prompt, max_tokens) for prompt in prompts}
            while waiting:
                done, waiting = wait(waiting, _SILENT_SECONDS, FIRST_COMPLETED)
                alive = done or not self._tells_health or self._client.health()
                silent = 0 if alive else silent + 1
                if silent == _SILENT_LOOKS:
                    raise _wedged(len(waiting))
                for future in done:
                    yield future.result()
        finally:
            pool.shutdown(wait=False, cancel_futures=True)

    def _ask(self, prompt: Prompt, max_tokens: Optional[int]) -> Answer:
        try:
            return prompt, self._client.chat(
                self._model,
                prompt.messages,
                max_tokens=max_tokens or prompt.max_tokens,
                temperature=self._sampling.temperature,
                seed=self._sampling.seed,
                chat_template_kwargs=self._template,
                timeout=self._timeout,
            )
        except MeasureError as exc:
            exc.details["prompt"] = prompt.id
            raise

    def _counted(self, batch: Batch) -> Batch:
        """The batch with what the counters gained since the last one, once they know of its requests."""
        if self._counters is None:
            return batch
        before = self._counters
        for _ in range(_COUNTER_READS):
            self._counters = parse_spec_decode(self._client.metrics_text())
            batch = Batch(batch.number, batch.workload, batch.answers, batch.seconds, self._counters - before)
            if _caught_up(batch):
                break
            self._sleep(_COUNTER_WAIT)
        return batch


def _tells_health(client: EngineClient) -> bool:
    """False for a gateway without such a path. An engine that is stopped at the moment may tell it later."""
    if client.health():
        return True
    try:
        client.version()
    except MeasureError as exc:
        if exc.details.get("unreachable"):
            return True
    return client.health()  # once more: it may have gone on in between


def _wedged(waiting: int) -> MeasureError:
    return MeasureError(
        "waiting for the engine's answers",
        f"{waiting} request(s) and {_SILENT_LOOKS} questions for its health in a row got none",
        "an answer, or /health",
        "The process is stopped or hangs: its log says what it did last.",
        code="DG827",
    )


def _caught_up(batch: Batch) -> bool:
    """Whether the counters have everything that the batch's requests know of."""
    counted, own = batch.counted, batch.own
    if counted is None:
        return True
    drafted = own is None or counted.draft_tokens >= own.draft_tokens
    return drafted and counted.generation_tokens >= batch.tokens


def _enough(batches: Sequence[Batch], settings: Mapping[str, Any]) -> bool:
    """Enough drafts to judge by, or none at all: then more of the same shows nothing new."""
    wished = (settings.get("thresholds") or {}).get("acceptance_min_drafts") or 0
    drafts = sum(batch.acceptance.drafts for batch in batches)
    return drafts == 0 or drafts >= wished


def summarise(
    batches: Sequence[Batch], num_speculative_tokens: int, problem: Optional[Dict[str, Any]] = None
) -> Measurement:
    """The measurement that these batches make, with what contradicts itself as its ``problem``.

    :param problem: why the batches are incomplete, if they are.
    """
    answers = [answer for batch in batches for answer in batch.answers]
    tokens, seconds = sum(batch.tokens for batch in batches), sum(batch.seconds for batch in batches)
    by_requests = bool(batches) and all(batch.own is not None for batch in batches)
    total = _total(batches)
    counted = bool(num_speculative_tokens and batches)
    counted_by = ("requests" if by_requests else "counters") if counted else None
    share = own_share(batches, by_requests) if counted else None
    if counted_by and share is not None and problem is None:
        problem = _contradiction(total, num_speculative_tokens, tokens, share, MIN_OWN_SHARE[counted_by])
    return Measurement(
        num_speculative_tokens=num_speculative_tokens,
        acceptance=total.as_dict() if counted else None,
        workloads=_grouped(batches, "workload", lambda batch: batch.workload, counted),
        passes=_grouped(batches, "pass", lambda batch: batch.number, counted),
        counted_by=counted_by,
        own_share=share,
        requests=len(answers),
        generation_tokens=tokens,
        seconds=seconds,
        tokens_per_second=tokens / seconds if seconds > 0 else None,
        answers=_compared(answers),
        repeating=sorted({prompt.id for prompt, result in answers if repeats(result.text)})[:_SHOWN_IDS],
        problem=problem,
    )


def _total(batches: Sequence[Batch]) -> Acceptance:
    return sum((batch.acceptance for batch in batches), Acceptance())


def _grouped(
    batches: Sequence[Batch], name: str, key: Callable[[Batch], Any], counted: bool
) -> List[Dict[str, Any]]:
    groups: Dict[Any, List[Batch]] = {}
    for batch in batches:
        groups.setdefault(key(batch), []).append(batch)
    return [{name: value, **_figures(members, counted)} for value, members in groups.items()]


def _figures(batches: Sequence[Batch], counted: bool) -> Dict[str, Any]:
    answers = [answer for batch in batches for answer in batch.answers]
    tokens, seconds = sum(batch.tokens for batch in batches), sum(batch.seconds for batch in batches)
    prompt_tokens = [result.prompt_tokens for _, result in answers]
    return {
        **(_total(batches).as_dict() if counted else {}),
        "requests": len(answers),
        "generation_tokens": tokens,
        "longest_prompt": max(prompt_tokens, default=0),
        "seconds": seconds,
        "tokens_per_second": tokens / seconds if seconds > 0 else None,
        **_compared(answers),
    }


def own_share(batches: Sequence[Batch], by_requests: bool) -> float:
    """Own share of what the engine counted; above 1 when it counted less than our requests report.

    By draft tokens where the requests report them, by generated tokens elsewhere (and without drafts).
    """
    counted = [batch.counted for batch in batches if batch.counted]
    own_drafted = _total(batches).draft_tokens if by_requests else 0
    if own_drafted:
        return own_drafted / max(1, sum(counters.draft_tokens for counters in counted))
    return sum(batch.tokens for batch in batches) / max(
        1, sum(counters.generation_tokens for counters in counted)
    )


def _contradiction(
    total: Acceptance, num_speculative_tokens: int, tokens: int, share: float, least: float
) -> Optional[Dict[str, Any]]:
    """Why these figures cannot be trusted; foreign traffic first, because it explains the others."""
    if tokens == 0:
        return _issue("DG826", "No token was generated", "generation_tokens", 0, "> 0")
    if share > 1:
        message = (
            f"Our requests report {share:.3f} times what the engine counted: it restarted, or several answer"
        )
        return _issue("DG822", message, "own_share", share, "<= 1")
    if share < least:
        message = f"Foreign traffic: only {100 * share:.0f} % of what the engine counted was ours"
        return _issue("DG823", message, "own_share", share, f">= {least}")
    violations = total.violations(num_speculative_tokens)
    if violations:
        return _issue(
            "DG822",
            f"The counters contradict themselves: {'; '.join(violations)}",
            "acceptance",
            violations,
            [],
        )
    return None


def _issue(code: str, message: str, field: str, observed: Any, expected: Any) -> Dict[str, Any]:
    return {"code": code, "message": message, "field": field, "observed": observed, "expected": expected}


def _problem(exc: MeasureError) -> Dict[str, Any]:
    about = f" (prompt {exc.details['prompt']})" if exc.details.get("prompt") else ""
    return {
        "code": exc.code or ("DG827" if exc.details.get("timed_out") else "DG825"),
        "message": f"{exc.doing}{about}: {exc.observed}",
        "field": "engine",
        "observed": exc.observed,
        "expected": exc.expected,
    }


def _compared(answers: Sequence[Answer]) -> Dict[str, int]:
    """How many answers could be compared with an expected one, and how many were right as far as they go."""
    known = [(prompt.expected.strip(), result) for prompt, result in answers if prompt.expected]
    right = [
        expected.startswith(result.text.strip())
        if result.finish_reason == "length"
        else expected == result.text.strip()
        for expected, result in known
    ]
    return {"compared": len(known), "right": sum(right)}


def repeats(text: str, *, longest_unit: int = 64, times: int = 5, characters: int = 48) -> bool:
    """Whether the text ends in one unit of up to ``longest_unit`` characters, repeated.

    Such a loop is easy to draft: it shows a splendid acceptance of worthless text.
    """
    for size in range(1, longest_unit + 1):
        unit = text[-size:]
        needed = max(times, -(-characters // size))
        if unit.strip() and text.endswith(unit * needed):
            return True
    return False
