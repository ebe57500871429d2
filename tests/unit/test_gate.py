"""Measuring: against a fake engine whose counters follow its answers, and as a pure fold over batches."""

from __future__ import annotations

import http.client
import socket
import time
from collections.abc import Iterator
from typing import Any

import pytest
from draftgate import gate
from draftgate.engine_client import ChatResult, EngineClient
from draftgate.errors import InputError, MeasureError, TimeLimitError
from draftgate.gate import Batch, Measurement, measure, repeats, summarise
from draftgate.metrics import Acceptance, Counters
from draftgate.prompts import Prompt

from tests.unit.fake_engine import FakeEngine, running

PROMPTS = [
    Prompt(f"{kind}-{number}", kind, ({"role": "user", "content": f"{kind} {number}"},), 40, "right answer")
    for kind in ("code", "prose")
    for number in range(3)
]
PER_REQUEST = Acceptance(8, 24, 17, (7, 6, 4))  # of the fake's histogram [1, 1, 2, 4]


@pytest.fixture
def engine() -> Iterator[FakeEngine]:
    with running(FakeEngine()) as started:
        yield started


def settings(**change: Any) -> dict[str, Any]:
    return {
        "prompts": {"digest": "d"},
        "sampling": {"temperature": 0, "max_tokens": None, "seed": 0},
        "template": {"enable_thinking": False},
        "workloads": None,
        "concurrency": 1,
        "thresholds": {"acceptance_min_drafts": 40},
        **change,
    }


def run(
    engine: FakeEngine,
    k: int = 3,
    progress: Any = lambda *_: None,
    prompts: list[Prompt] = PROMPTS,
    request_timeout: float = 10.0,
    **change: Any,
) -> Measurement:
    client = EngineClient("127.0.0.1", engine.port)
    return measured_by(client, k, progress, prompts, request_timeout, **change)


def measured_by(
    client: EngineClient,
    k: int = 3,
    progress: Any = lambda *_: None,
    prompts: list[Prompt] = PROMPTS,
    request_timeout: float = 10.0,
    **change: Any,
) -> Measurement:
    return measure(
        client,
        "tiny",
        prompts,
        settings(**change),
        num_speculative_tokens=k,
        clock=time.monotonic,
        progress=progress,
        request_timeout=request_timeout,
        sleep=lambda _seconds: None,
    )


class Stopped(http.client.HTTPConnection):
    """A connection to an engine that gives no answer when it is asked for ``silent``."""

    def __init__(self, host: str, port: int, timeout: float, silent: str) -> None:
        super().__init__(host, port, timeout=timeout)
        self.silent = silent

    def request(self, method: str, url: str, *rest: Any, **more: Any) -> None:
        if url == self.silent:
            raise socket.timeout
        super().request(method, url, *rest, **more)


@pytest.mark.parametrize("own_metrics", [True, False])
def test_own_requests_are_counted_and_the_warm_up_is_not(engine: FakeEngine, own_metrics: bool) -> None:
    engine.own_metrics = own_metrics
    measured = run(engine)
    assert measured.problem is None
    assert measured.counted_by == ("requests" if own_metrics else "counters")
    assert measured.own_share == 1.0
    expected = Acceptance(6 * 8, 6 * 24, 6 * 17, (42, 36, 24)).as_dict()
    assert measured.acceptance == expected
    assert measured.requests == 6 and len(engine.requests) == 6 + 2  # one of each kind warms up
    assert measured.generation_tokens == 6 * 26
    assert [kind["workload"] for kind in measured.workloads] == ["code", "prose"]
    for kind in measured.workloads:
        assert (kind["drafts"], kind["accepted_tokens"], kind["requests"]) == (24, 51, 3)
        assert kind["generation_tokens"] == pytest.approx(kind["tokens_per_second"] * kind["seconds"])
    assert [passed["pass"] for passed in measured.passes] == [1]
    assert measured.answers == {"compared": 6, "right": 6}


def test_requests_are_greedy_and_as_the_settings_say(engine: FakeEngine) -> None:
    sampling = {"temperature": 0, "max_tokens": 9, "seed": 5}
    run(engine, sampling=sampling, workloads=["prose"], thresholds={})
    warm_up, *asked = engine.requests
    assert warm_up["max_tokens"] == 16
    assert [request["messages"][0]["content"] for request in asked] == ["prose 0", "prose 1", "prose 2"]
    for request in asked:
        assert request["temperature"] == 0
        assert (request["max_tokens"], request["seed"]) == (9, 5)
        assert request["chat_template_kwargs"] == {"enable_thinking": False}


def test_without_a_limit_each_prompt_has_its_own(engine: FakeEngine) -> None:
    run(engine, sampling={})
    assert {request["max_tokens"] for request in engine.requests[2:]} == {40}
    assert {request["temperature"] for request in engine.requests} == {0}


@pytest.mark.parametrize(("wished", "passes"), [(48, 1), (49, 2), (192, 4), (1000, 4), (None, 1)])
def test_the_prompts_are_repeated_until_there_are_enough_drafts(
    engine: FakeEngine, wished: int | None, passes: int
) -> None:
    measured = run(engine, thresholds={"acceptance_min_drafts": wished})
    assert len(measured.passes) == passes
    assert measured.acceptance is not None and measured.acceptance["drafts"] == 48 * passes


def test_counters_that_lag_are_waited_for(engine: FakeEngine) -> None:
    engine.lag = 3
    measured = run(engine)
    assert (measured.problem, measured.own_share) == (None, 1.0)


def test_counters_that_never_catch_up_are_no_measurement(engine: FakeEngine) -> None:
    stuck = engine.metrics_text()
    engine.metrics = lambda: stuck  # type: ignore[method-assign]
    problem = run(engine).problem
    assert problem is not None and problem["code"] == "DG822"


@pytest.mark.parametrize("own_metrics", [True, False])
@pytest.mark.parametrize(
    ("foreign", "code"), [([1, 0, 0, 0], "DG823"), ([9, 0, 0, 0], "DG823"), (None, None)]
)
def test_foreign_traffic_is_seen(
    engine: FakeEngine, own_metrics: bool, foreign: list[int] | None, code: str | None
) -> None:
    engine.own_metrics, engine.foreign = own_metrics, foreign
    measured = run(engine)
    assert (measured.problem or {}).get("code") == code
    if own_metrics:
        assert measured.acceptance == Acceptance(48, 144, 102, (42, 36, 24)).as_dict()  # ours all the same


def test_no_drafts_while_tokens_flow_is_a_measurement(engine: FakeEngine) -> None:
    engine.histogram = [0, 0, 0, 0]
    measured = run(engine)
    assert measured.problem is None and measured.acceptance is not None
    assert (measured.acceptance["drafts"], measured.generation_tokens) == (0, 6)
    assert len(measured.passes) == 1  # more of the same shows nothing new


def test_an_engine_without_speculative_counters(engine: FakeEngine) -> None:
    engine.speculative, engine.own_metrics = False, False
    engine.shown = [engine.metrics_text()]
    problem = run(engine).problem
    assert problem is not None and problem["code"] == "DG821"


def test_speed_alone_needs_no_counters(engine: FakeEngine) -> None:
    engine.speculative, engine.own_metrics = False, False
    engine.shown = [engine.metrics_text()]
    measured = run(engine, k=0)
    assert (measured.problem, measured.acceptance, measured.counted_by) == (None, None, None)
    assert measured.tokens_per_second is not None and measured.tokens_per_second > 0
    assert "drafts" not in measured.workloads[0]


def test_another_k_than_wished_is_no_measurement(engine: FakeEngine) -> None:
    problem = run(engine, k=5).problem
    assert problem is not None and problem["code"] == "DG822"
    assert "3 positions are counted and k is 5" in problem["message"]


def test_a_request_that_fails_ends_it_and_is_named(engine: FakeEngine) -> None:
    engine.fail_at = 2 + 4  # in the second workload
    measured = run(engine)
    assert measured.problem is not None and measured.problem["code"] == "DG825"
    assert "prose-0" in measured.problem["message"] and "HTTP 500" in measured.problem["message"]
    assert [kind["workload"] for kind in measured.workloads] == ["code"]  # what was counted is kept


def test_an_engine_that_dies_at_the_first_request(engine: FakeEngine) -> None:
    engine.fail_at = 1
    measured = run(engine)
    assert measured.problem is not None and measured.problem["code"] == "DG825"
    assert (measured.acceptance, measured.requests) == (None, 0)


def test_an_answer_that_takes_too_long_is_told_apart_from_a_refused_one(engine: FakeEngine) -> None:
    engine.silent_at = 3
    problem = run(engine, request_timeout=0.3).problem
    assert problem is not None and problem["code"] == "DG827"
    assert "no answer within 0.3 s" in problem["message"]


@pytest.mark.parametrize(("wedged", "code"), [(True, "DG827"), (False, None)])
def test_an_engine_without_a_sign_of_life_is_not_waited_for(
    engine: FakeEngine, monkeypatch: pytest.MonkeyPatch, wedged: bool, code: str | None
) -> None:
    monkeypatch.setattr(gate, "_SILENT_SECONDS", 0.1)
    engine.silent_at, engine.wedged = 3, wedged
    problem = run(engine).problem
    assert (problem["code"] if problem else None) == code
    if problem:
        assert "request(s) and 3 questions for its health in a row got none" in problem["message"]


@pytest.mark.parametrize("path", ["/metrics", "/v1/chat/completions"])
def test_an_engine_that_is_stopped_is_no_refusal(engine: FakeEngine, path: str) -> None:
    """Whatever was asked of it meanwhile: red is an engine that answers wrong, or ends."""

    def late(_host: str, _port: int, timeout: float) -> Stopped:
        return Stopped("127.0.0.1", engine.port, timeout, path)

    client = EngineClient("127.0.0.1", engine.port, opener=late)
    problem = measured_by(client, k=3).problem
    assert problem is not None and problem["code"] == "DG827"


@pytest.mark.parametrize(
    ("health", "version", "tells"),
    [
        ([True], None, True),
        ([False, False], MeasureError("x", "HTTP 404", details={"status": 404}), False),
        ([False, False], None, False),
        ([False], MeasureError("x", "late", details={"unreachable": True, "timed_out": True}), True),
        ([False, True], None, True),
    ],
)
def test_only_an_answer_says_that_there_is_no_health_to_ask_for(
    monkeypatch: pytest.MonkeyPatch, health: list[bool], version: MeasureError | None, tells: bool
) -> None:
    def told(_self: EngineClient) -> str:
        if version:
            raise version
        return "0.32.0"

    monkeypatch.setattr(EngineClient, "health", lambda _self: health.pop(0))
    monkeypatch.setattr(EngineClient, "version", told)
    assert gate._tells_health(EngineClient("127.0.0.1", 1)) is tells
    assert health == []


def test_a_restart_in_between_is_seen(engine: FakeEngine) -> None:
    engine.restart_at = 7
    problem = run(engine).problem
    assert problem is not None and problem["code"] == "DG824"


def test_a_restart_that_no_counter_shows_is_seen_by_what_is_missing(engine: FakeEngine) -> None:
    engine.restart_at = 5  # in the first workload: at its end the counters have grown all the same
    problem = run(engine).problem
    assert problem is not None and problem["code"] == "DG822"
    assert "restarted" in problem["message"]


def test_concurrency_is_kept_and_counts_the_same(engine: FakeEngine) -> None:
    slow = FakeEngine.chat

    def chat(self: FakeEngine, wish: dict[str, Any]) -> tuple[int, dict[str, Any]]:
        time.sleep(0.05)
        return slow(self, wish)

    engine.chat = chat.__get__(engine)  # type: ignore[method-assign]
    measured = run(engine, concurrency=3)
    assert engine.most_active == 3
    assert measured.problem is None and measured.acceptance is not None
    assert measured.acceptance["drafts"] == 48


def test_progress_counts_requests(engine: FakeEngine) -> None:
    seen: list[tuple[str, int, int, str]] = []
    run(engine, progress=lambda *told: seen.append(told), thresholds={"acceptance_min_drafts": 49})
    assert seen[0] == ("warm up", 1, 2, "")
    assert seen[2] == ("gate", 1, 6, "code") and seen[7] == ("gate", 6, 6, "prose")
    assert seen[8] == ("gate", 1, 6, "code, pass 2")


@pytest.mark.parametrize("concurrency", [1, 4])
def test_what_progress_raises_ends_the_measurement(engine: FakeEngine, concurrency: int) -> None:
    def expire(stage: str, done: int, _total: int, _detail: str) -> None:
        if stage == "gate" and done == 2:
            raise TimeLimitError("switching", "the time limit passed")

    with pytest.raises(TimeLimitError):
        many = [Prompt(str(number), "code", PROMPTS[0].messages, 8) for number in range(50)]
        run(engine, progress=expire, concurrency=concurrency, prompts=many)
    assert len(engine.requests) < 25  # those under way, and no more


@pytest.mark.parametrize("wished", [["poetry"], ["code", "poetry"], []])
def test_a_workload_without_prompts_is_refused(engine: FakeEngine, wished: list[str]) -> None:
    with pytest.raises(InputError, match="choosing the gate's prompts"):
        run(engine, workloads=wished)
    assert engine.requests == []


@pytest.mark.parametrize(
    "sampling", [{"temperature": "0"}, {"temperature": -1}, {"seed": 1.5}, {"max_tokens": 0}, {"top_p": 0.9}]
)
def test_sampling_that_means_nothing(engine: FakeEngine, sampling: dict[str, Any]) -> None:
    with pytest.raises(InputError, match=next(iter(sampling))):
        run(engine, sampling=sampling)


def answer(text: str = "x", finish: str = "stop", expected: str | None = None) -> tuple[Prompt, ChatResult]:
    prompt = Prompt("p", "code", (), 8, expected)
    return prompt, ChatResult(text, 4, finish, None, 0.1)


@pytest.mark.parametrize(
    ("text", "finish", "expected", "right"),
    [
        ("right", "stop", "right", 1),
        (" right\n", "stop", "right", 1),
        ("righ", "length", "right", 1),
        ("righ", "stop", "right", 0),
        ("wrong", "length", "right", 0),
    ],
)
def test_answers_are_compared_as_far_as_they_go(text: str, finish: str, expected: str, right: int) -> None:
    batch = Batch(1, "code", (answer(text, finish, expected), answer(text, finish)), 1.0, None)
    assert summarise([batch], 0).answers == {"compared": 1, "right": right}


def test_counters_that_contradict_themselves_are_no_measurement() -> None:
    counted = Counters(10, 30, 9, (6, 2, 2), 4)
    problem = summarise([Batch(1, "code", (answer(),), 1.0, counted)], 3).problem
    assert problem is not None and problem["code"] == "DG822"
    assert "add up to 10" in problem["message"]


@pytest.mark.parametrize(("own_metrics", "code"), [(True, None), (False, "DG823")])
def test_a_little_foreign_text_matters_only_to_counters(
    engine: FakeEngine, own_metrics: bool, code: str | None
) -> None:
    """One token of somebody else's among 27, without a draft: own drafts are known, or are not."""
    engine.own_metrics, engine.foreign = own_metrics, [0, 0, 0, 0]
    assert (run(engine).problem or {}).get("code") == code


def test_foreign_traffic_explains_more_than_a_contradiction() -> None:
    counted = Counters(10, 30, 9, (6, 2, 2), 4000)
    problem = summarise([Batch(1, "code", (answer(),), 1.0, counted)], 3).problem
    assert problem is not None and problem["code"] == "DG823"


def test_nothing_generated_is_no_measurement() -> None:
    silent = (answer()[0], ChatResult("", 0, "stop", None, 0.1))
    problem = summarise([Batch(1, "code", (silent,), 1.0, Counters(0, 0, 0, (0, 0, 0), 0))], 3).problem
    assert problem is not None and problem["code"] == "DG826"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("the cat the cat the cat the cat the cat the cat the cat the cat ", True),
        ("Sure! " + "0" * 60, True),
        ("A list:\n" + "- item\n" * 12, True),
        ("one two three four five six seven eight nine ten eleven twelve", False),
        ("aaaa", False),
        ("", False),
        (" " * 80, False),
        ("ha ha ha ha ha ha ha ha ha ha ha ha ha ha ha ha ha, she said and went home", False),
        ("for i in range(10):\n    print(i)\n    print(i)\n    print(i)\n", False),
    ],
)
def test_text_that_repeats_itself(text: str, expected: bool) -> None:
    assert repeats(text) is expected


def test_repeating_answers_are_named(engine: FakeEngine) -> None:
    engine.text = "ha " * 40
    assert run(engine).repeating == sorted(prompt.id for prompt in PROMPTS)


def test_the_limits_are_what_the_documentation_says() -> None:
    assert (gate.MAX_PASSES, gate.MIN_OWN_SHARE) == (4, {"requests": 0.95, "counters": 0.99})
