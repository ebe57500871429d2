"""The engine's command line and environment, as functions of the spec."""

from __future__ import annotations

import json
import re
from typing import Any, Dict, List

import pytest
from draftgate import argv
from draftgate.errors import InputError

PLACE = {"host": "127.0.0.1", "port": 8100}
PATHS = {"runtime": "/r", "target": "/t", "drafter": "/d", "cache": "/c", "home": "/h"}


def serve(**changes: Any) -> Dict[str, Any]:
    return {
        "engine": {"name": "vllm", "version": "0.32.0"},
        "drafter": {"digest": "d"},
        "num_speculative_tokens": 7,
        "served_model_name": "tiny",
        "args": {},
        "environment": {},
        **changes,
    }


def test_the_whole_command_line() -> None:
    wish = serve(args={"max_model_len": 512, "dtype": "float32", "enforce_eager": True})
    assert argv.engine_argv(wish, PLACE, PATHS) == [
        "/r/bin/vllm", "serve", "/t",
        "--host", "127.0.0.1", "--port", "8100", "--served-model-name", "tiny",
        "--speculative-config", '{"method":"dflash","model":"/d","num_speculative_tokens":7}',
        "--per-request-spec-decode-metrics", "detailed",
        "--dtype", "float32", "--enforce-eager", "--max-model-len", "512",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("version", "drafter", "asked"),
    [
        ("0.32.0", True, True),
        ("0.32.0+cpu", True, True),
        ("0.100.1", True, True),
        ("1.0", True, True),
        ("0.31.9", True, False),
        ("0.32.0", False, False),
    ],
)
def test_per_request_metrics_only_where_the_engine_takes_them(
    version: str, drafter: bool, asked: bool
) -> None:
    wish = serve(engine={"name": "vllm", "version": version}, drafter={"digest": "d"} if drafter else None)
    line = argv.engine_argv(wish, PLACE, PATHS)
    assert ("--per-request-spec-decode-metrics" in line) == asked
    assert ("--speculative-config" in line) == drafter


def test_without_a_drafter_no_path_to_one_is_needed() -> None:
    paths = {"runtime": "/r", "target": "/t"}
    assert "/d" not in argv.engine_argv(serve(drafter=None), PLACE, paths)


@pytest.mark.parametrize(
    ("args", "options"),
    [
        ({"enforce_eager": True}, ["--enforce-eager"]),
        ({"enable_prefix_caching": False}, ["--no-enable-prefix-caching"]),
        ({"max_model_len": None}, []),
        ({"max_model_len": 512}, ["--max-model-len", "512"]),
        ({"gpu_memory_utilization": 0.9}, ["--gpu-memory-utilization", "0.9"]),
        ({"compilation_config": {"mode": 3, "a": [1]}}, ["--compilation-config", '{"a":[1],"mode":3}']),
        ({"middleware": ["a", "b"]}, ["--middleware", "a", "b"]),
        ({"lora_modules": [{"name": "x"}]}, ["--lora-modules", '{"name":"x"}']),
        ({"seed": -1}, ["--seed=-1"]),
        ({"chat_template": "--x"}, ["--chat-template=--x"]),
        ({"quantization": "ünï % $HOME ; #"}, ["--quantization", "ünï % $HOME ; #"]),
        ({"seed": 1, "dtype": "half"}, ["--dtype", "half", "--seed", "1"]),
    ],
)
def test_one_rule_for_all_server_arguments(args: Dict[str, Any], options: List[str]) -> None:
    assert argv.server_options(args) == options


@pytest.mark.parametrize(
    ("args", "said"),
    [
        ({"port": 1}, "port is set by vllm_port"),
        ({"speculative_config": {}}, "num_speculative_tokens"),
        ({"spec_model": "x"}, "drafter_path"),
        ({"served_model": "x"}, "would be completed to served_model_name"),
        ({"api_key": "k"}, "api_key is set by vllm_api_key"),
        ({"hf_token": "k"}, "a file of its own"),
        ({"config": "f.yaml"}, "escape the release's digest"),
        ({"max-model-len": 1}, "'max-model-len' is no option in snake_case"),
        ({"Dtype": 1}, "snake_case"),
        ({"": 1}, "snake_case"),
        ({1: 1, "x": 1}, "1 is no option in snake_case"),
        ({"middleware": []}, "empty list"),
        ({"middleware": ["--x"]}, "reads as an option"),
        ({"middleware": [None]}, "null in a list"),
        ({"middleware": [["a"]]}, "in a list"),
        ({"dtype": "a\0b"}, "NUL"),
        ({"seed": float("nan")}, "not JSON"),
        ({"override": {"x": float("inf")}}, "not JSON"),
    ],
)
def test_what_cannot_be_given_is_named(args: Dict[str, Any], said: str) -> None:
    with pytest.raises(InputError) as caught:
        argv.server_options(args)
    assert said in str(caught.value)


def test_every_refused_entry_is_named_at_once() -> None:
    with pytest.raises(InputError) as caught:
        argv.validate_args({"host": "x", "port": 1, "dtype": "half"})
    assert len(caught.value.details["problems"]) == 2


@pytest.mark.parametrize(
    "engine", [{"name": "sglang", "version": "0.5"}, {"name": "vllm", "version": "main"}]
)
def test_an_engine_we_cannot_start_is_refused(engine: Dict[str, str]) -> None:
    with pytest.raises(InputError):
        argv.engine_argv(serve(engine=engine), PLACE, PATHS)


def test_the_environment_resolves_placeholders_and_is_quiet() -> None:
    wish = serve(
        environment={"LD_PRELOAD": "{runtime}/lib/x.so:{home}/y", "JSON": '{"a": {}}', "HF_HUB_OFFLINE": "0"}
    )
    found = argv.engine_environment(wish, PATHS)
    assert found["LD_PRELOAD"] == "/r/lib/x.so:/h/y"
    assert found["JSON"] == '{"a": {}}'
    assert found["XDG_CACHE_HOME"] == "/c"
    assert (found["HF_HUB_OFFLINE"], found["VLLM_NO_USAGE_STATS"]) == ("0", "1")
    assert list(found) == sorted(found)


@pytest.mark.parametrize(
    ("environment", "said"),
    [
        ({"A": "{root}/x"}, "A holds {root}, which is none of {cache}, {home}, {runtime}"),
        ({"A": "{target}"}, "{target}"),
        ({"A B": "x"}, "'A B' is no variable's name"),
        ({"": "x"}, "'' is no variable's name"),
        ({3: "x"}, "3 is no variable's name"),
        ({"A": 31337}, "A is of type int, not text"),
        ({"A": None}, "A is of type NoneType, not text"),
        ({"A": {"b": "hunter2"}}, "A is of type dict, not text"),
        ({"A": "hunter2\0"}, "NUL"),
        ({"VLLM_API_KEY": "hunter2"}, "VLLM_API_KEY is set by vllm_api_key"),
        ({"HF_TOKEN": "hunter2"}, "target_path"),
        ({"OPENAI_API_KEY": "hunter2"}, "OPENAI_API_KEY looks like a secret"),
        ({"db_password": "hunter2"}, "db_password looks like a secret"),
        ({"S3_ACCESS_KEY_ID": "hunter2"}, "looks like a secret"),
        ({"S3_SECRET_ACCESS_KEY": "hunter2"}, "looks like a secret"),
        ({"WANDB_TOKEN": "hunter2"}, "the engine's own key is vllm_api_key"),
        ({"HTTPS_PROXY": "http://me:hunter2@proxy:3128"}, "HTTPS_PROXY looks like a secret"),
        ({"NOTE": "use hf_abcdefghijklmnop0123"}, "NOTE looks like a secret"),
        ({"CUDA_VISIBLE_DEVICES": "0"}, "every GPU of its host"),
        ({"SPT_NOENV": ""}, "mark depends on it"),
    ],
)
def test_an_environment_that_cannot_be_given_is_named_and_not_shown(
    environment: Dict[Any, Any], said: str
) -> None:
    for refuse in (
        lambda: argv.validate_environment(environment),
        lambda: argv.engine_environment(serve(environment=environment), PATHS),
    ):
        with pytest.raises(InputError) as caught:
            refuse()
        assert said in str(caught.value)
        assert not re.search("hunter2|hf_abc|31337", f"{caught.value} {caught.value.as_dict()}")


def test_every_refused_variable_is_named_at_once() -> None:
    with pytest.raises(InputError) as caught:
        argv.validate_environment({"HF_TOKEN": "x", "A": 1, "B": "fine"})
    assert len(caught.value.details["problems"]) == 2


def test_what_only_resembles_a_secret_is_given() -> None:
    argv.validate_environment(
        {
            "TOKENIZERS_PARALLELISM": "false",
            "HF_TOKEN_PATH": "/etc/draftgate/hf",
            "VLLM_MAX_TOKENS_PER_EXPERT_FP4_MOE": "163840",
            "HTTPS_PROXY": "http://proxy:3128",
            "KEYRING": "{home}/hf_home",
        }
    )


def test_the_same_wish_gives_the_same_bytes() -> None:
    one = serve(args={"seed": 1, "override_x": {"y": 1, "x": 2}}, environment={"B": "1", "A": "2"})
    two = json.loads(json.dumps(one, sort_keys=True))
    assert argv.engine_argv(one, PLACE, PATHS) == argv.engine_argv(two, PLACE, PATHS)
    assert list(argv.engine_environment(one, PATHS).items()) == list(
        argv.engine_environment(two, PATHS).items()
    )
