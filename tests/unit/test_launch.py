"""Whether an engine came up, and why not: real logs of vLLM 0.32.0 (CPU), and a watched start with fakes.

``recordings/launch/*.log`` are what the engine wrote, started through the supervisord backend with one fault
each; paths are replaced, lines cut at 300 characters, most INFO and WARNING lines of failed ones left out.
"""

from __future__ import annotations

import os
import socket
from pathlib import Path
from typing import Any, Callable, Dict, List, Optional

import pytest
from draftgate import credentials, launch, processes, release, spec
from draftgate.backend.base import ServiceState
from draftgate.decision import decide
from draftgate.engine_client import ChatResult
from draftgate.errors import LaunchError, MeasureError
from draftgate.layout import Home

from tests.specs import SPEC

RECORDINGS = Path(__file__).parent / "recordings" / "launch"


def recorded(name: str) -> List[str]:
    return (RECORDINGS / f"{name}.log").read_text().splitlines()


@pytest.mark.parametrize(
    ("name", "cause", "code", "said"),
    [
        ("port_taken", "port_taken", "DG701", "ddress already in use"),
        ("small_shm", "out_of_memory", "DG702", "160 MiB required, 64 MiB free"),
        ("kv_cache_huge", "out_of_memory", "DG702", "requested memory for kv (200.0 GiB)"),
        ("kv_cache_small", "out_of_memory", "DG702", "KV cache"),
        ("mask_absent", "contract", "DG703", "mask_token_id"),
        ("layer_count", "contract", "DG703", "torch.Size([128, 384])"),
        ("unknown_argument", "bad_argument", "DG704", "unrecognized arguments: --max-model-length 512"),
        ("bad_value", "bad_argument", "DG704", "argument --dtype: invalid choice: 'float7'"),
        ("bad_value_late", "bad_argument", "DG704", "max_model_len (100000) is greater than"),
        ("target_missing", "bad_argument", "DG704", "'/srv/draftgate/models/0123456789ab'. holds no model"),
        ("no_libnuma", "import_error", "DG705", "libnuma"),
        ("module_missing", "import_error", "DG705", "'PreTrainedConfig' from 'transformers'"),
    ],
)
def test_a_real_log_of_a_failed_start_names_its_cause(name: str, cause: str, code: str, said: str) -> None:
    found = launch.classify(recorded(name), {"observed": "the engine ended after 9 s"})
    assert (found.cause, found.code) == (cause, code)
    assert said in found.message
    assert found.next_step and found.line


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("mask_beyond_vocab", "IndexError: index out of range in self"),
        ("mask_null", "no usable mask_token_id"),
        ("layer_beyond_target", "target_layer_ids names layers that the target does not have"),
    ],
)
def test_a_real_log_of_a_death_at_the_first_request_says_what_killed_it(name: str, said: str) -> None:
    found = launch.classify(recorded(name), {"asked_first_request": True, "observed": "it died"})
    assert (found.cause, found.code) == ("died_on_first_request", "DG706")
    assert said in found.message and "mask_token_id" in found.next_step


def test_a_healthy_start_has_no_cause_though_it_warns() -> None:
    lines = recorded("healthy")
    assert any("WARNING" in line for line in lines)
    found = launch.classify(lines, {"observed": "the engine ended"})
    assert (found.cause, found.message, found.line) == ("unknown", "the engine ended", "")


@pytest.mark.parametrize(
    ("line", "cause"),
    [
        # vllm/vllm#55510's consequence, on a GPU
        (
            "ValueError: Free memory on device cuda:0 (2.1/47.5 GiB) on startup is less than desired GPU "
            "memory utilization (0.9, 42.7 GiB). Decrease GPU memory utilization",
            "out_of_memory",
        ),
        ("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.", "out_of_memory"),
        ("ValueError: No available memory for the cache blocks. Try increasing", "out_of_memory"),
        ("RuntimeError: alloc_cpu.cpp:117 DefaultCPUAllocator: can't allocate memory: 9", "out_of_memory"),
        ("ImportError: libcudart.so.12: cannot open shared object file: No such file", "import_error"),
        ("ImportError: /r/flash_attn_2_cuda.so: undefined symbol: _ZN3c105ErrorC2E", "import_error"),
        ("OSError: [Errno 98] Address already in use", "port_taken"),
        ("WARNING 11-30 12:00:00 [x.py:1] ImportError('libx.so: cannot open shared object file')", "unknown"),
        ("ERROR: ld.so: object 'x': preload (cannot open shared object file): ignored", "unknown"),
        ("INFO 11-30 12:00:00 [x.py:1] override: ValueError: mask_token_id", "unknown"),
        ("ZeroDivisionError: division by zero", "unknown"),
    ],
)  # fmt: skip
def test_a_line_alone(line: str, cause: str) -> None:
    assert (
        launch.classify(["start", line, "RuntimeError: Engine core initialization failed."], {}).cause
        == cause
    )


def test_the_last_error_that_is_no_consequence_is_told() -> None:
    lines = [
        "KeyError: 'a'",
        "ZeroDivisionError: b",
        "RuntimeError: Engine core initialization failed. See above",
    ]
    assert "ZeroDivisionError: b" in launch.classify(lines, {}).message
    assert "Engine core" in launch.classify(lines[2:], {}).message


def test_a_kill_for_memory_needs_no_line_in_the_log() -> None:
    found = launch.classify(["fine"], {"oom_kills": 2, "observed": "the engine ended after 9 s"})
    assert found.cause == "out_of_memory" and "killed 2 process" in found.message


@pytest.mark.parametrize(
    ("line", "kept", "hidden"),
    [
        ("token hf_abcdefghijklmnop used", "used", "abcdefgh"),
        ("Authorization: Bearer abc.def", "Authorization", "abc.def"),
        ("{'api_key': ['s3cret'], 'port': 1}", "'port': 1", "s3cret"),
        ("--api-key=s3cret --port 1", "--port 1", "s3cret"),
        ("VLLM_API_KEY=s3cret", "VLLM_API_KEY", "s3cret"),
        ("vllm serve m --api-key s3cret --port 1", "--port 1", "s3cret"),
        ("vllm serve m --api-key first s3cret --port 1", "--port 1", "s3cret"),
        ("vllm serve m --hf-token s3cret", "vllm serve m --hf-token", "s3cret"),
        ("vllm serve m --api_key 271828 --port 1", "--port 1", "271828"),
        ("--api-key=271828 --port 1", "--port 1", "271828"),
        ("['--api-key', 's3cret', '--port', '1']", "'--port', '1'", "s3cret"),
        ("mysqld --auth-token s3cret", "mysqld", "s3cret"),
        ("--max-num-batched-tokens 512 --tokenizer x", "tokens 512 --tokenizer x", "masked"),
        (
            "mask_token_id=512 max_tokens=8 api_key=None",
            "mask_token_id=512 max_tokens=8 api_key=None",
            "masked",
        ),
        ("'mask_token': 512, bos_token: '<|im_start|>'", "'mask_token': 512", "none of it"),
    ],
)
def test_credentials_are_masked(line: str, kept: str, hidden: str) -> None:
    masked = credentials.mask(line)
    assert kept in masked and hidden not in masked


# A watched start


class World:
    """A backend and a client whose engine follows a script, in a time that only sleep moves."""

    name = "fake"

    def __init__(self, healthy_after: float = 5, **script: Any) -> None:
        self.now = 100.0
        self.healthy_after = self.now + healthy_after
        self.states: Callable[[float], ServiceState] = script.get(
            "states", lambda now: ServiceState("running", 7, 70)
        )
        self.answer: Callable[[], None] = script.get("answer", lambda: None)
        self.served: List[str] = script.get("models", ["tiny"])
        self.log: List[str] = script.get("log", ["early"])
        self.asked: List[Dict[str, Any]] = []

    def clock(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds

    def state(self, name: str) -> ServiceState:
        return self.states(self.now - 100.0)

    def log_offset(self, name: str) -> int:
        return 1

    def log_tail(self, name: str, lines: int, since_offset: Optional[int] = None) -> List[str]:
        return self.log[:1] if since_offset is None else self.log[1:]

    def health(self) -> bool:
        return self.now >= self.healthy_after

    def version(self) -> str:
        return "0.32.0"

    def models(self) -> List[str]:
        if self.now < self.healthy_after + 2:
            raise MeasureError("asking", "not yet")
        return self.served

    def chat(self, model: str, messages: Any, **options: Any) -> ChatResult:
        self.asked.append({"model": model, **options})
        self.answer()
        return ChatResult("x", 1, "length", None, 0.1)

    def wait(self, seconds: float = 60) -> launch.Ready:
        self.stages: List[str] = []
        return launch.wait_ready(
            self,
            self,  # type: ignore[arg-type]
            "engine-a",
            served_model_name="tiny",
            deadline=self.now + seconds,
            clock=self.clock,
            sleep=self.sleep,
            progress=lambda stage, done, total, detail: self.stages.append(detail),
        )


def test_ready_means_healthy_listed_and_answered() -> None:
    world = World()
    assert world.wait() == launch.Ready(7.0, 7, "0.32.0")
    assert world.stages == ["waiting for /health", "waiting for its model", "waiting for its first answer"]
    assert len(world.asked) == 1
    assert world.asked[0]["temperature"] == 0.0 and world.asked[0]["max_tokens"] > 1, (
        "the drafter must have run"
    )
    assert world.asked[0]["timeout"] <= 53


def refuse() -> None:
    raise MeasureError("asking", "HTTP 500")


def until(moment: float, then: ServiceState) -> Callable[[float], ServiceState]:
    """Running as pid 7 until ``moment`` seconds after the start, then something else."""
    return lambda now: ServiceState("running", 7, 70) if now < moment else then


RESTARTING = ServiceState("starting")


@pytest.mark.parametrize(
    ("script", "cause", "said"),
    [
        ({"states": until(3, RESTARTING)}, "unknown", "ended after 3 s"),
        ({"states": until(3, ServiceState("running", 7, 71))}, "unknown", "was started again"),
        ({"states": until(3, ServiceState("running", 8, 70))}, "unknown", "was started again"),
        ({"states": until(0, ServiceState("failed", exit_code=3))}, "unknown", "the service is failed"),
        ({"states": until(3, ServiceState("failed", exit_code=137))}, "unknown", "exit code 137"),
        ({"healthy_after": 1000}, "timeout", "not healthy after 60 s"),
        ({"models": ["other"]}, "timeout", "does not list the model 'tiny'"),
        ({"answer": refuse}, "unknown", "healthy and does not answer (HTTP 500)"),
        ({"answer": refuse, "states": until(9, RESTARTING)}, "died_on_first_request", "at its first request"),
        (
            {"log": ["early", "OSError: [Errno 98] Address already in use"], "states": until(3, RESTARTING)},
            "port_taken",
            "port is taken",
        ),
    ],
)
def test_a_start_that_fails_is_told_at_once_with_its_log(
    script: Dict[str, Any], cause: str, said: str
) -> None:
    world = World(**script)
    with pytest.raises(LaunchError) as caught:
        world.wait()
    assert caught.value.details["cause"] == cause
    assert said in str(caught.value)
    assert caught.value.details["log_tail"][0] == "early"
    assert caught.value.code == launch.CODES[cause]
    if cause != "timeout":
        assert world.now < 100 + 35


HANDSHAKE = ["early", "ERROR [core.py:1510] EngineCore failed to start.", "RuntimeError: no response"]


@pytest.mark.parametrize(("log", "ends"), [(HANDSHAKE, 160), (["early", "loading"], 1100)])
def test_a_start_that_its_log_gives_up_is_not_waited_for(log: list[str], ends: float) -> None:
    """vllm 0.32: an EngineCore ends after the five minutes of its handshake, the API server never does."""
    world = World(healthy_after=5000, log=log)
    with pytest.raises(LaunchError):
        world.wait(1000)
    assert world.now < ends + 1
    assert world.now >= 100 + 20, "an engine that says so has some seconds to end"


KILLED = ServiceState("failed", exit_code=137)
OWN = ["early", "RuntimeError: index out of range", "EngineDeadError: EngineCore encountered an issue"]


@pytest.mark.parametrize(
    ("states", "log", "dying", "cause", "verdict"),
    [
        (until(500, KILLED), ["early"], True, None, None),
        (until(5, KILLED), ["early"], True, "unknown", "inconclusive"),
        (
            until(5, ServiceState("running", 8, 80)),
            ["early"],
            False,
            None,
            None,
        ),  # not yet, and not waited for
        (until(0, ServiceState("running", 8, 80)), ["early"], False, "unknown", "inconclusive"),
        (
            until(5, KILLED),
            OWN[:1] + OWN[2:],
            True,
            "unknown",
            "inconclusive",
        ),  # that says only that it is gone
        (until(5, KILLED), OWN, True, "died_on_first_request", "fail"),
        (until(5, KILLED), ["early", "CUDA out of memory"], True, "out_of_memory", "inconclusive"),
        (until(5, KILLED), ["early", "x.so: undefined symbol: y"], True, "import_error", "fail"),
    ],
)
def test_an_engine_that_ends_while_it_is_measured_is_red_by_its_own_error_alone(
    states: Callable[[float], ServiceState],
    log: list[str],
    dying: bool,
    cause: str | None,
    verdict: str | None,
) -> None:
    world = World(log=log)
    watch = launch.Watch(world, "engine-a", 900, world.clock, world.sleep)  # type: ignore[arg-type]
    world.states = states
    if cause is None:
        watch.require_survived(dying)
        return
    with pytest.raises(LaunchError) as caught:
        watch.require_survived(dying)
    assert "measuring engine-a" in str(caught.value)
    assert (caught.value.details["cause"], "the engine ended" in str(caught.value)) == (
        cause,
        cause not in ("import_error", "out_of_memory"),
    )
    problem = {"code": caught.value.code, "message": "", "field": "launch", "observed": "", "expected": ""}
    assert decide({"problem": problem}, {}).verdict == verdict


def test_what_an_engine_wrote_before_it_was_measured_did_not_end_it() -> None:
    world = World(log=["RuntimeError: of its start, survived"])
    watch = launch.Watch(world, "engine-a", 900, world.clock, world.sleep)  # type: ignore[arg-type]
    world.states = lambda _now: KILLED
    with pytest.raises(LaunchError) as caught:
        watch.require_survived(dying=False)
    assert caught.value.details["cause"] == "unknown" and "survived" not in str(caught.value)


def test_an_earlier_runs_errors_are_not_this_ones() -> None:
    log = ["OSError: [Errno 98] Address already in use", "INFO [draftgate] start: /r/bin/vllm", "fine"]
    assert launch.current_run(log) == log[1:]
    assert (
        launch.current_run(["x", "Starting draftgate-0af1-engine-a.service - Draftgate engine-a...", "y"])[-1]
        == "y"
    )
    assert launch.current_run(["no start"]) == ["no start"]


def test_no_secret_leaves_with_the_log() -> None:
    world = World(log=["api_key='s3cret'"], states=lambda now: ServiceState("stopped"))
    with pytest.raises(LaunchError) as caught:
        world.wait()
    assert "s3cret" not in str(caught.value.as_dict())


def test_another_process_is_named_without_its_secrets(monkeypatch: pytest.MonkeyPatch) -> None:
    holder = {"pid": 7, "command": "vllm serve m --api-key s3cret"}
    monkeypatch.setattr(processes, "port_free", lambda *_: False)
    monkeypatch.setattr(processes, "port_holder", lambda *_: holder)
    with pytest.raises(LaunchError, match="pid 7: vllm serve m") as caught:
        launch.require_port("127.0.0.1", 8000)
    assert "s3cret" not in str(caught.value.as_dict())


def test_a_taken_port_is_told_before_the_weights_are_read() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        with pytest.raises(LaunchError) as caught:
            launch.require_port("127.0.0.1", port)
    assert caught.value.details["holder"]["pid"] == os.getpid()
    assert (caught.value.code, caught.value.details["cause"]) == ("DG701", "port_taken")
    launch.require_port("127.0.0.1", port)


# The deployment


def deployed(**place: Any) -> Dict[str, Any]:
    return {
        "id": "0123456789ab",
        "release": "ba9876543210",
        "serve": {
            "engine": {"name": "vllm", "version": "0.32.0"},
            "runtime": {"lock": "c" * 64},
            "target": {"digest": "d" * 64, "source": "x"},
            "drafter": {"digest": "e" * 64},
            "num_speculative_tokens": 7,
            "served_model_name": "tiny",
            "args": {},
            "environment": {"LD_PRELOAD": "{runtime}/x.so"},
        },
        "place": {"host": "::1", "port": 8100, "candidate_port": 0, "home": "/h", "runtimes": "/rt",
                  "python": "/usr/bin/python3",
                  "backend": "auto", "gpus": [], "secrets": {}, **place},
    }  # fmt: skip


def test_a_deployment_becomes_a_service_with_this_hosts_paths() -> None:
    service = launch.service_for(deployed(secrets={"VLLM_API_KEY": "5" * 64}), Home("/h"))
    assert service.name == "engine-0123456789ab"
    assert service.argv[:3] == ("/rt/cccccccccccc/bin/vllm", "serve", "/h/models/dddddddddddd")
    assert any("/h/releases/ba9876543210/drafter" in word for word in service.argv)
    assert service.environment["LD_PRELOAD"] == "/rt/cccccccccccc/x.so"
    assert service.secret_files == {"VLLM_API_KEY": "/h/secrets/VLLM_API_KEY.555555555555"}
    assert "CUDA_VISIBLE_DEVICES" not in service.environment


def test_gpus_are_named_by_uuid_in_bus_order() -> None:
    environment = launch.service_for(deployed(gpus=["GPU-a", "GPU-b"]), Home("/h")).environment
    assert environment["CUDA_VISIBLE_DEVICES"] == "GPU-a,GPU-b"
    assert environment["CUDA_DEVICE_ORDER"] == "PCI_BUS_ID"


# The module


class Manager:
    """A backend that only remembers."""

    name = "supervisord"

    def __init__(self, status: str) -> None:
        self.status = status
        self.did: List[str] = []

    def state(self, name: str) -> ServiceState:
        return ServiceState(self.status, 7 if self.status == "running" else None)

    def __getattr__(self, method: str) -> Callable[..., Any]:
        def remember(*arguments: Any) -> None:
            self.did.append(method)
            self.status = {"start": "running", "stop": "stopped", "remove": "absent"}.get(method, self.status)

        return remember


@pytest.mark.parametrize(
    ("status", "state", "did"),
    [
        ("absent", "started", ["ensure", "define", "start"]),
        ("stopped", "started", ["ensure", "define", "start"]),
        ("failed", "started", ["ensure", "define", "start"]),
        ("running", "started", []),
        ("running", "restarted", ["ensure", "stop", "define", "start"]),
        ("stopped", "restarted", ["ensure", "define", "start"]),
        ("running", "stopped", ["ensure", "stop"]),
        ("starting", "stopped", ["ensure", "stop"]),
        ("stopped", "stopped", []),
        ("absent", "stopped", []),
        ("running", "absent", ["ensure", "remove"]),
        ("stopped", "absent", ["ensure", "remove"]),
        ("absent", "absent", []),
    ],
)
@pytest.mark.parametrize("check", [True, False])
def test_the_module_does_what_is_missing_and_check_mode_says_it(
    monkeypatch: pytest.MonkeyPatch, status: str, state: str, did: List[str], check: bool
) -> None:
    manager = Manager(status)
    monkeypatch.setattr(launch, "choose", lambda *_, **__: manager)
    monkeypatch.setattr(launch, "require_port", lambda *_: None)
    monkeypatch.setattr(launch, "wait_ready", lambda *_, **__: launch.Ready(1.5, 7, "0.32.0"))
    given = {key: value for key, value in deployed().items() if key in ("serve", "place")}
    result = launch.converge(given, state, 60, check)
    assert manager.did == ([] if check else did)
    assert result["changed"] == bool(did)
    waited = state in ("started", "restarted") and not check
    assert result["ready_seconds"] == (1.5 if waited else None)
    assert result["endpoint"] == "http://[::1]:8100"
    same = result["diff"]["before"] == result["diff"]["after"]
    assert same == (not did or (status, state) == ("running", "restarted"))


def test_an_engine_that_does_not_come_up_is_stopped_and_the_module_fails(
    monkeypatch: pytest.MonkeyPatch, call_module: Any
) -> None:
    from ansible.module_utils.draftgate import launch as shipped  # the name that the module imports it by

    manager = Manager("absent")

    def fail(*_: Any, **__: Any) -> None:
        raise shipped.LaunchError(
            "starting", "x", code="DG707", details={"cause": "timeout", "log_tail": ["last"]}
        )

    monkeypatch.setattr(shipped, "choose", lambda *_, **__: manager)
    monkeypatch.setattr(shipped, "require_port", lambda *_: None)
    monkeypatch.setattr(shipped, "wait_ready", fail)
    given = {key: value for key, value in deployed().items() if key in ("serve", "place")}
    result = call_module("vllm_server", {"spec": given})
    assert result["failed"] is True
    assert (result["cause"], result["log_tail"], result["error"]["code"]) == ("timeout", ["last"], "DG707")
    assert manager.did == ["ensure", "define", "start", "stop"]


def test_a_running_engine_that_does_not_answer_fails_and_is_left_as_it_is(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def fail(*_: Any, **__: Any) -> None:
        raise LaunchError("starting", "it does not answer", code="DG707")

    manager = Manager("running")
    monkeypatch.setattr(launch, "choose", lambda *_, **__: manager)
    monkeypatch.setattr(launch, "wait_ready", fail)
    with pytest.raises(LaunchError, match="does not answer"):
        launch.converge(deployed(), "started", 60, False)
    assert manager.did == []


@pytest.mark.parametrize(
    ("place", "argv0"),
    [
        ({"home": "/h", "runtimes": ""}, "/h/runtimes/cccccccccccc/bin/vllm"),
        ({"home": "/h", "runtimes": "~/rt"}, "/root-of-test/rt/cccccccccccc/bin/vllm"),
        ({"home": "~/d", "runtimes": ""}, "/root-of-test/d/runtimes/cccccccccccc/bin/vllm"),
        ({"home": "/h/../h", "runtimes": "/rt/"}, "/rt/cccccccccccc/bin/vllm"),
    ],
)
def test_the_filters_spec_names_the_engine_that_a_release_runs(
    monkeypatch: pytest.MonkeyPatch, place: Dict[str, Any], argv0: str
) -> None:
    started: List[str] = []
    monkeypatch.setenv("HOME", "/root-of-test")
    manager = Manager("stopped")
    monkeypatch.setattr(manager, "start", started.append, raising=False)
    for module in (launch, release):
        monkeypatch.setattr(module, "choose", lambda *_, **__: manager)
    monkeypatch.setattr(launch, "require_port", lambda *_: None)
    monkeypatch.setattr(launch, "wait_ready", lambda *_, **__: launch.Ready(1.5, 7, "0.32.0"))
    wished = {"serve": deployed()["serve"], "place": deployed(**place)["place"], "gate": SPEC["gate"]}
    assert launch.converge(wished, "started", 60, False)["argv"][0] == argv0
    switched = release.Request(home=Home.at(place["home"]), wished=wished).resolved()
    assert started == [f"engine-{spec.deployment(switched)['id']}"]


@pytest.mark.parametrize(
    ("host", "shown"),
    [
        ("127.0.0.1", "http://127.0.0.1:8100"),
        ("::1", "http://[::1]:8100"),
        ("gpu1.example", "http://gpu1.example:8100"),
    ],
)
def test_an_endpoint_can_be_typed(host: str, shown: str) -> None:
    assert spec.endpoint(deployed(host=host)["place"]) == shown


def test_a_wrong_spec_is_refused_by_name(call_module: Any) -> None:
    given = {key: value for key, value in deployed().items() if key in ("serve", "place")}
    given["serve"] = {**given["serve"], "args": {"port": 1}}
    assert "port is set by vllm_port" in call_module("vllm_server", {"spec": given})["msg"]
