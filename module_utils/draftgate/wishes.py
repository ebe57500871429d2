"""Inventory variables → the spec: types are the roles' business, meaning is checked here."""

from __future__ import annotations

import difflib
import os
from typing import Any, Dict, Iterable, List, Mapping, Optional

from . import argv, gateway_variables, prompts
from .decision import validate_thresholds
from .errors import InputError
from .options import yes_or_no
from .runtime_lock import read_lock
from .sampling import Sampling
from .variables import VARIABLES

THRESHOLDS = (
    "acceptance_min_rate",
    "acceptance_min_mean_length",
    "acceptance_min_position_1",
    "acceptance_min_speedup",
    "acceptance_min_drafts",
    "acceptance_max_regression",
)


_PREFIXES = ("acceptance_", "draftgate_", "drafter_", "gateway_", "num_speculative", "target_", "vllm_")
_ELSEWHERE = frozenset(
    (
        "draftgate_purge",
        "drafter_contract_result",
        "gateway_wished",
        "vllm_runtime_accept",
        "vllm_server_spec",
    )
)
"""Names with our prefixes that are no part of the wish: switches of other playbooks, facts of our roles."""


def unknown(names: Iterable[str]) -> str:
    """The sentence about a variable that nothing reads; empty when all are known.

    A misspelt threshold would otherwise be a gate that somebody believes in and does not have.
    """
    known = set(VARIABLES) | _ELSEWHERE
    strange = sorted(name for name in names if name.startswith(_PREFIXES) and name not in known)
    told = []
    for name in strange:
        near = difflib.get_close_matches(name, known, 1)
        told.append(f"{name} (did you mean {near[0]}?)" if near else name)
    if not told:
        return ""
    return str(InputError("reading the variables", f"nothing reads {', '.join(told)}", "names of README.md"))


def spec_of(
    variables: Mapping[str, Any], models: Mapping[str, Any], contract: Mapping[str, Any]
) -> Dict[str, Any]:
    """The spec that these variables wish for.

    :param variables: names of :data:`variables.VARIABLES` → values.
    :param models: ``{"target": {"digest"}, "drafter": {"digest"}}``; no drafter = no speculation.
    :param contract: ``{"effective_config": {…}}`` of the drafter.
    :raises InputError: a value has no meaning; one error per kind names all of it.
    """
    serve = _serve(variables, models, contract)
    return {
        "serve": serve,
        "place": _place(variables),
        "gate": _gate(variables, serve["num_speculative_tokens"]),
    }


def _serve(
    variables: Mapping[str, Any], models: Mapping[str, Any], contract: Mapping[str, Any]
) -> Dict[str, Any]:
    drafter = models.get("drafter")
    args = _dict(variables, "vllm_server_args")
    argv.validate_args(args)
    return {
        "engine": {"name": "vllm", "version": str(variables["vllm_version"])},
        "runtime": {"lock": _lock_digest(variables)},
        "target": {"source": "local", "digest": models["target"]["digest"]},
        "drafter": {
            "source": "local",
            "digest": drafter["digest"],
            "config": contract["effective_config"],
        }
        if drafter
        else None,
        "num_speculative_tokens": _whole(variables, "num_speculative_tokens") if drafter else 0,
        "served_model_name": str(variables["vllm_served_model_name"]),
        "args": args,
        "environment": _environment(_dict(variables, "vllm_environment")),
    }


def _environment(given: Mapping[str, Any]) -> Dict[str, Any]:
    """What YAML reads as a number has a certain text; what it reads as true has not, and is refused."""
    texts = {name: str(value) if type(value) in (int, float) else value for name, value in given.items()}
    argv.validate_environment(texts)
    return texts


def _lock_digest(variables: Mapping[str, Any]) -> str:
    path = os.path.expanduser(str(variables["vllm_runtime_lock"]))
    lock = read_lock(path)
    if lock.engine_version != str(variables["vllm_version"]):
        raise InputError(
            "reading vllm_runtime_lock",
            f"{path} installs vLLM {lock.engine_version}",
            f"vllm_version {variables['vllm_version']}",
            "Set vllm_runtime_lock to a lock of that version (see locks/README.md).",
        )
    return lock.digest


def _place(variables: Mapping[str, Any]) -> Dict[str, Any]:
    """Without what only the host can know: resolved paths and the secrets' digests."""
    port, candidate_port = _whole(variables, "vllm_port"), _candidate_port(variables)
    if candidate_port:
        gateway_variables.check(variables, str(variables["vllm_host"]), port, candidate_port)
    return {
        "host": str(variables["vllm_host"]),
        "port": port,
        "candidate_port": candidate_port,
        "home": str(variables["draftgate_home"]),
        "runtimes": str(variables["vllm_runtime_root"]),
        "python": str(variables["vllm_runtime_python"]),
        "backend": str(variables["draftgate_service_backend"]),
        "user": str(variables["draftgate_user"]),
        "gpus": [],
        "secrets": {},
    }


def _candidate_port(variables: Mapping[str, Any]) -> int:
    """The second port of a place that has a front; 0 without one, because clients know one address then."""
    if not yes_or_no("gateway_enabled", variables.get("gateway_enabled", False)):
        return 0
    return _whole(variables, "vllm_candidate_port") or _whole(variables, "vllm_port") + 1


def _gate(variables: Mapping[str, Any], num_speculative_tokens: int) -> Dict[str, Any]:
    prompt_set = _read(str(variables["acceptance_prompts"]), "acceptance_prompts")
    sampling = _dict(variables, "acceptance_sampling")
    Sampling.of({"sampling": sampling})
    return {
        "prompts": {"digest": prompts.digest(prompt_set)},
        "sampling": sampling,
        "template": _dict(variables, "acceptance_template"),
        "workloads": _workloads(variables["acceptance_workloads"], prompt_set),
        "concurrency": _whole(variables, "acceptance_concurrency"),
        "thresholds": _thresholds(variables, num_speculative_tokens),
    }


def _thresholds(variables: Mapping[str, Any], num_speculative_tokens: int) -> Dict[str, Any]:
    thresholds = {name: number(variables[name]) for name in THRESHOLDS}
    validate_thresholds(thresholds, num_speculative_tokens)
    if thresholds["acceptance_min_speedup"] is not None:
        raise InputError(
            "reading acceptance_min_speedup",
            "not judged yet, because no baseline without speculation is measured",
            "null",
            "Leave it null.",
        )
    return thresholds


def _workloads(wanted: Any, prompt_set: bytes) -> Optional[List[str]]:
    """Sorted names; None = all of the set. ``-e acceptance_workloads=json,code`` is text."""
    wanted = number(wanted)
    names = [name.strip() for name in wanted.split(",")] if isinstance(wanted, str) else wanted or []
    if not isinstance(names, (list, tuple)):
        raise InputError("reading acceptance_workloads", repr(wanted), "a list of names")
    known = {prompt.workload for prompt in prompts.load(prompt_set)}
    wished = {str(name) for name in names if name}
    if wished - known:
        observed = ", ".join(sorted(wished - known))
        raise InputError("reading acceptance_workloads", observed, ", ".join(sorted(known)))
    return sorted(wished) or None


def _whole(variables: Mapping[str, Any], name: str) -> int:
    value = number(variables[name])
    if isinstance(value, bool) or not isinstance(value, int):
        raise InputError(f"reading {name}", repr(variables[name]), "a whole number")
    return value


def number(value: Any) -> Any:
    """``-e name=value`` makes every value text: a number's text as the number, ``null`` as None."""
    if not isinstance(value, str):
        return value
    text = value.strip()
    if text in ("", "null", "None", "~"):
        return None
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return value


def _dict(variables: Mapping[str, Any], name: str) -> Dict[str, Any]:
    value = variables[name]
    if not isinstance(value, Mapping):
        # vllm_environment is one, and may hold a secret: its value is not shown
        raise InputError(f"reading {name}", f"it is of type {type(value).__name__}", "a dict")
    return {str(key): _plain(item) for key, item in value.items()}


def _plain(value: Any) -> Any:
    """Ansible's tagged strings and containers as the plain ones they stand for."""
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    for kind in (str, int, float):
        if isinstance(value, kind) and not isinstance(value, bool):
            return kind(value)
    return value


def _read(path: str, variable: str) -> bytes:
    try:
        with open(os.path.expanduser(path), "rb") as handle:
            return handle.read()
    except OSError as exc:
        raise InputError(
            f"reading {variable}", f"{path!r}: {exc.strerror}", "a file on the controller"
        ) from exc
