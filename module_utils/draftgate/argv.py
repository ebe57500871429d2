"""From the spec to the engine's command line and environment. Pure: the same spec gives the same bytes."""

from __future__ import annotations

import json
import re
from typing import Any, Dict, List, Mapping, Tuple

from .canonical import canonical_json
from .errors import InputError

_DOING = "reading vllm_server_args"
_SECRET = "a variable with a file of its own: a command line can be read by every user of the host"

OWN_VARIABLE: Dict[str, str] = {
    "host": "vllm_host",
    "port": "vllm_port",
    "uds": "vllm_host and vllm_port",
    "model": "target_path",
    "model_tag": "target_path",
    "served_model_name": "vllm_served_model_name",
    "speculative_config": "drafter_path, drafter_overrides and num_speculative_tokens",
    "spec_method": "drafter_path",
    "spec_model": "drafter_path",
    "spec_tokens": "num_speculative_tokens",
    "per_request_spec_decode_metrics": "none: the gate sets it, where the engine has it",
    "api_key": "vllm_api_key",
    "hf_token": _SECRET,
    "config": "vllm_server_args: a file of its own would escape the release's digest",
    "headless": "none: a server without its HTTP interface cannot be gated",
}
"""Options that are not for ``vllm_server_args`` -> what sets them instead."""

_NO_HUB = "none: the engine asks no hub, its models lie in the store (target_path, drafter_path)"
_OWN_ENVIRONMENT: Dict[str, str] = {
    "VLLM_API_KEY": "vllm_api_key",
    "HF_TOKEN": _NO_HUB,
    "HUGGING_FACE_HUB_TOKEN": _NO_HUB,
    "TMPDIR": "none: each service has a private one",
    "CUDA_VISIBLE_DEVICES": "none: the engine may use every GPU of its host",
    "CUDA_DEVICE_ORDER": "none: it is PCI_BUS_ID",
    "DRAFTGATE_SERVICE": "none: it marks the service's processes",
    "SPT_NOENV": "none: the processes' mark depends on it",
}

_QUIET = {
    "DO_NOT_TRACK": "1",
    "GLOO_SOCKET_IFNAME": "lo",
    "HF_HUB_OFFLINE": "1",
    "TRANSFORMERS_OFFLINE": "1",
    "VLLM_HOST_IP": "127.0.0.1",
    "VLLM_NO_USAGE_STATS": "1",
    "XDG_CACHE_HOME": "{cache}",
    "XDG_CONFIG_HOME": "{cache}/config",
}
"""What every engine gets unless the spec says otherwise: everything is on the disk already, so nobody is
called at a start (an offline host must come up), what it writes lies below the home, and its own processes
meet on loopback: what they listen on trusts whoever connects (vLLM's security guide)."""

_PLACES = ("cache", "home", "runtime")
"""What a placeholder in an environment variable may name."""

_METRICS_SINCE = (0, 32)
_OPTION = re.compile(r"[a-z][a-z0-9_]*")
_PLACEHOLDER = re.compile(r"\{([a-z_]+)\}")
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
# A whole word of the name: TOKENIZERS_PARALLELISM and HF_TOKEN_PATH are none.
_SECRET_NAME = re.compile(
    r"(?i)(?:^|_)(?:api_?key|token|(?:access|private|secret)_key(?:_id)?|secret|password|passwd|credentials?)$"
)
_SECRET_TEXT = re.compile(r"\bhf_[A-Za-z0-9]{16,}|://[^/\s:@]*:[^/\s@]+@")


def engine_argv(serve: Mapping[str, Any], place: Mapping[str, Any], paths: Mapping[str, str]) -> List[str]:
    """The engine's whole command line.

    :param paths: ``runtime`` (environment), ``target`` and, with a drafter, ``drafter`` (directories).
    :raises InputError: an engine we do not know, or arguments that :func:`validate_args` refuses.
    """
    engine = serve["engine"]
    if engine["name"] != "vllm":
        raise InputError("building the engine's command", f"the engine is {engine['name']!r}", "vllm")
    argv = [f"{paths['runtime']}/bin/vllm", "serve", paths["target"]]
    argv += ["--host", str(place["host"]), "--port", str(place["port"])]
    argv += ["--served-model-name", serve["served_model_name"]]
    if serve["drafter"] is not None:
        argv += _speculation(serve, paths["drafter"])
    return argv + server_options(serve["args"])


def _speculation(serve: Mapping[str, Any], drafter: str) -> List[str]:
    config = {"method": "dflash", "model": drafter, "num_speculative_tokens": serve["num_speculative_tokens"]}
    options = ["--speculative-config", canonical_json(config).decode()]
    # Without a speculative config the engine refuses to start with this option.
    if release_of(serve["engine"]["version"]) >= _METRICS_SINCE:
        options += ["--per-request-spec-decode-metrics", "detailed"]
    return options


def release_of(version: str) -> Tuple[int, ...]:
    """``0.32.0+cpu`` -> ``(0, 32, 0)``.

    :raises InputError: it does not begin with numbers.
    """
    found = re.match(r"\d+(?:\.\d+)*", version)
    if not found:
        raise InputError("reading the engine's version", f"{version!r}", "numbers with dots, as in 0.32.0")
    return tuple(int(part) for part in found.group().split("."))


def server_options(args: Mapping[str, Any]) -> List[str]:
    """``vllm_server_args`` as options, sorted by name.

    true is a flag, false ``--no-…``, null leaves it out, a dict is one JSON value, a list is several
    values after one option.

    :raises InputError: see :func:`validate_args`.
    """
    validate_args(args)
    options: List[str] = []
    for name, value in sorted(args.items()):
        option = name.replace("_", "-")
        if value is True:
            options.append(f"--{option}")
        elif value is False:
            options.append(f"--no-{option}")
        elif isinstance(value, list):
            options += [f"--{option}", *(_text(item) for item in value)]
        elif value is not None:
            options += _with_value(option, _text(value))
    return options


def _with_value(option: str, text: str) -> List[str]:
    # argparse takes a separate word that begins with a dash for the next option
    return [f"--{option}={text}"] if text.startswith("-") else [f"--{option}", text]


def _text(value: Any) -> str:
    if isinstance(value, str):
        return value
    return canonical_json(value).decode() if isinstance(value, (dict, list)) else json.dumps(value)


def validate_args(args: Mapping[str, Any]) -> None:
    """Raise one :class:`InputError` that names every entry of ``vllm_server_args`` that cannot be given."""
    problems = [
        problem for name, value in sorted(args.items(), key=str) for problem in _problems(name, value)
    ]
    if problems:
        raise InputError(
            _DOING,
            "; ".join(problems),
            "options that have no variable of their own, in snake_case",
            details={"problems": problems},
        )


def _problems(name: Any, value: Any) -> List[str]:
    if not isinstance(name, str) or not _OPTION.fullmatch(name):
        return [f"{name!r} is no option in snake_case"]
    if name in OWN_VARIABLE:
        return [f"{name} is set by {OWN_VARIABLE[name]}"]
    # argparse completes unambiguous beginnings: `served_model` would set served_model_name
    meant = [option for option in OWN_VARIABLE if option.startswith(name)]
    if meant:
        return [f"{name} would be completed to {meant[0]}, which is set by {OWN_VARIABLE[meant[0]]}"]
    if value == []:
        return [f"{name} is an empty list (null leaves it out)"]
    items = value if isinstance(value, list) else [value]
    return [problem for item in items for problem in _value_problems(name, item, isinstance(value, list))]


def _value_problems(name: str, value: Any, in_list: bool) -> List[str]:
    """Of one value; a list's items are looked at one by one."""
    if in_list and (value is None or isinstance(value, list)):
        return [f"{name} has {json.dumps(value)} in a list"]
    if isinstance(value, str):
        if "\0" in value:
            return [f"{name} holds a NUL byte"]
        if in_list and value.startswith("-"):
            return [f"{name} has {value!r} in a list, which reads as an option"]
        return []
    try:
        canonical_json(value)
    except (TypeError, ValueError):
        return [f"{name} is {value!r}, which is not JSON"]
    return []


def validate_environment(environment: Mapping[Any, Any]) -> None:
    """Raise one :class:`InputError` that names every variable of ``vllm_environment`` that cannot be given.

    No value is shown: what was put here may be a secret, and an error ends up in logs.
    """
    problems = [
        problem for name in sorted(environment, key=str) for problem in _refusals(name, environment[name])
    ]
    if problems:
        raise InputError(
            "reading vllm_environment",
            "; ".join(problems),
            "variables without one of their own, as text and without secrets",
            details={"problems": problems},
        )


def _refusals(name: Any, text: Any) -> List[str]:
    if not isinstance(name, str) or not _VARIABLE.fullmatch(name):
        return [f"{name!r} is no variable's name"]
    if name in _OWN_ENVIRONMENT:
        return [f"{name} is set by {_OWN_ENVIRONMENT[name]}"]
    if not isinstance(text, str):
        return [f"{name} is of type {type(text).__name__}, not text (put it in quotes)"]
    if "\0" in text:
        return [f"{name} holds a NUL byte"]
    if looks_secret(name, text):
        return [
            f"{name} looks like a secret, and vllm_environment is shown by --diff and kept as it is "
            "(the engine's own key is vllm_api_key; give any other as a file that the engine reads)"
        ]
    unknown = sorted(set(_PLACEHOLDER.findall(text)) - set(_PLACES))
    choices = ", ".join(f"{{{place}}}" for place in _PLACES)
    return [f"{name} holds {{{unknown[0]}}}, which is none of {choices}"] if unknown else []


def looks_secret(name: str, text: str) -> bool:
    """Whether a variable of this name, or this text wherever it stands, had better not be shown."""
    return bool(_SECRET_NAME.search(name) or _SECRET_TEXT.search(text))


def engine_environment(serve: Mapping[str, Any], paths: Mapping[str, str]) -> Dict[str, str]:
    """The engine's environment, sorted, without secrets.

    :param paths: what the placeholders mean: ``runtime``, ``cache``, ``home``.
    :raises InputError: see :func:`validate_environment`.
    """
    validate_environment(serve["environment"])
    merged = {**_QUIET, **serve["environment"]}
    return {
        name: _PLACEHOLDER.sub(lambda found: paths[found.group(1)], merged[name]) for name in sorted(merged)
    }
