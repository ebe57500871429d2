"""The gate for any endpoint, without a spec: what the ``acceptance_gate`` module does."""

from __future__ import annotations

import time
from typing import Any, Dict, Mapping, Optional

from . import decision, gate, prompts, suspects
from .engine_client import EngineClient
from .errors import DraftgateError, InputError
from .progress import silent
from .sampling import Sampling

_DOING = "gating an endpoint"


def run(given: Mapping[str, Any], check: bool = False) -> Dict[str, Any]:
    """Measure ``given["endpoint"]`` and judge it; the fields of an evidence, as far as they are known.

    :param given: the options of the ``acceptance_gate`` module.
    :param check: check the input and ask for the engine's health, no more.
    :raises InputError: an option that has no meaning.
    :raises DraftgateError: in mode ``gate``, a verdict that is not pass; ``details`` has the fields.
    """
    prompt_set = _read(given["prompts"], "prompts")
    settings = _settings(given, prompts.digest(prompt_set))
    loaded = prompts.load(prompt_set)
    gate.select(loaded, settings["workloads"])
    Sampling.of(settings)
    client = EngineClient.at(given["endpoint"], _api_key(given))
    told = {"changed": False, "prompts": settings["prompts"], "thresholds": settings["thresholds"]}
    if check:
        return {**told, "healthy": client.health()}
    engine = {"name": "vllm", "version": client.version()}
    model = given.get("model") or client.models()[0]
    measured = gate.measure(
        client,
        model,
        loaded,
        settings,
        num_speculative_tokens=given["num_speculative_tokens"],
        clock=time.monotonic,
        progress=silent,
        request_timeout=float(given["timeout"]),
    ).as_dict()
    decided = decision.decide(measured, settings["thresholds"])
    named = [suspect.as_dict() for suspect in suspects.suspects(measured, [], [], decided)]
    result = {**told, **measured, **decided.as_dict(), "suspects": named, "engine": engine, "model": model}
    if given["mode"] == "gate" and decided.verdict != decision.PASS:
        raise _red(client, result)
    return result


def _settings(given: Mapping[str, Any], prompts_digest: str) -> Dict[str, Any]:
    """The options as the spec's ``gate`` part."""
    k, concurrency = given["num_speculative_tokens"], given["concurrency"]
    if k < 0 or concurrency < 1 or given["timeout"] <= 0:
        observed = f"num_speculative_tokens {k}, concurrency {concurrency}, timeout {given['timeout']}"
        raise InputError(_DOING, observed, "at least 0, at least 1, and more than 0")
    return {
        "prompts": {"digest": prompts_digest},
        "sampling": given["sampling"],
        "template": given["template"],
        "workloads": given.get("workloads"),
        "concurrency": concurrency,
        "thresholds": decision.validate_thresholds(given["thresholds"], k),
    }


def _api_key(given: Mapping[str, Any]) -> Optional[str]:
    path = given.get("api_key_path")
    if not path:
        return given.get("api_key")
    try:
        return _read(path, "api_key_path").decode("ascii").strip()
    except UnicodeDecodeError:
        raise InputError(
            "reading api_key_path", f"{path!r} is not ASCII", "a file with the key alone"
        ) from None


def _read(path: str, option: str) -> bytes:
    try:
        with open(path, "rb") as handle:
            return handle.read()
    except OSError as exc:
        raise InputError(f"reading {option}", f"{path!r}: {exc.strerror}", "a readable file") from exc


def _red(client: EngineClient, result: Mapping[str, Any]) -> DraftgateError:
    first = result["suspects"][0] if result["suspects"] else None
    return DraftgateError(
        f"{_DOING} ({client})",
        f"the verdict is {result['verdict']}: "
        + "; ".join(reason["message"] for reason in result["reasons"]),
        next_step=f"First suspect: {first['cause']}. {first['next']}" if first else "",
        code=result["reasons"][0]["code"],
        details=dict(result),
    )
