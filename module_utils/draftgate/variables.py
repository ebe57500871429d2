"""Every variable people set, the part of the spec it belongs to, and what a change of it costs.

This table is the promise behind ``--check --diff``: a test changes each row and compares.
"""

from __future__ import annotations

from typing import Dict, List, NamedTuple

SERVE, PLACE, GATE, SECRET, NONE = "serve", "place", "gate", "secret", "none"

NEW_RELEASE = "new release"  # stop, start, gate, activate
RESTART = "restart"  # the same release, started again and gated
MEASURE = "measure"  # the running release is gated again
DECIDE = "decide"  # decided again from stored evidence
TEARDOWN = "teardown first"  # refused, with what to type
NOTHING = "nothing"  # how a deploy is done, not what it ends in

EFFECT_OF_PART = {SERVE: NEW_RELEASE, PLACE: RESTART, SECRET: RESTART, GATE: MEASURE, NONE: NOTHING}


class Variable(NamedTuple):
    """One variable: where it ends up in the spec and why it is there."""

    part: str
    field: str
    effect: str
    why: str


def _row(part: str, field: str, why: str, effect: str = "") -> Variable:
    return Variable(part, field, effect or EFFECT_OF_PART[part], why)


VARIABLES: Dict[str, Variable] = {
    # serve: what answers, wherever it runs
    "vllm_version": _row(SERVE, "engine.version", "the engine decides how a drafter's config is read"),
    "vllm_runtime_lock": _row(SERVE, "runtime.lock", "every package of the engine's environment, by hash"),
    "target_path": _row(SERVE, "target.digest", "the target's files, by content"),
    "drafter_path": _row(SERVE, "drafter.digest", "the drafter's files, by content"),
    "drafter_overrides": _row(SERVE, "drafter.config", "the config that the engine is given"),
    "num_speculative_tokens": _row(SERVE, "num_speculative_tokens", "how many tokens a step drafts"),
    "vllm_served_model_name": _row(SERVE, "served_model_name", "the name that clients send"),
    "vllm_server_args": _row(SERVE, "args", "all other engine arguments"),
    "vllm_environment": _row(SERVE, "environment", "the engine's environment variables"),
    # place: where it runs
    "vllm_host": _row(PLACE, "host", "the address that the engine listens on"),
    "vllm_port": _row(PLACE, "port", "the port that the engine listens on"),
    # Of no effect unless the active engine is on it: then it is what differs in place.port, and a switch
    "vllm_candidate_port": _row(PLACE, "candidate_port", "the other port, behind a front", NOTHING),
    "draftgate_home": _row(PLACE, "home", "where state lies; another home is another installation"),
    "vllm_runtime_root": _row(PLACE, "runtimes", "where environments lie"),
    "vllm_runtime_python": _row(PLACE, "python", "the interpreter that environments are made with"),
    "draftgate_user": _row(PLACE, "user", "whom engines run as under systemd"),
    "draftgate_service_backend": _row(PLACE, "backend", "systemd or supervisord", TEARDOWN),
    # secret: counted through a salted digest, never stored in the spec
    "vllm_api_key": _row(SECRET, "secrets.VLLM_API_KEY", "clients must send it; lives in a 0600 file"),
    # gate: how a release is judged
    "acceptance_prompts": _row(GATE, "prompts.digest", "the held-out prompts, by content"),
    "acceptance_sampling": _row(GATE, "sampling", "how the gate asks"),
    "acceptance_template": _row(GATE, "template", "chat template settings, thinking among them"),
    "acceptance_workloads": _row(GATE, "workloads", "which kinds of prompts count"),
    "acceptance_concurrency": _row(GATE, "concurrency", "how many requests at once"),
    "acceptance_min_rate": _row(GATE, "thresholds.acceptance_min_rate", "accepted / drafted", DECIDE),
    "acceptance_min_mean_length": _row(GATE, "thresholds.acceptance_min_mean_length", "τ", DECIDE),
    "acceptance_min_position_1": _row(GATE, "thresholds.acceptance_min_position_1", "first position", DECIDE),
    "acceptance_min_speedup": _row(
        GATE, "thresholds.acceptance_min_speedup", "against no speculation", DECIDE
    ),
    "acceptance_min_drafts": _row(GATE, "thresholds.acceptance_min_drafts", "enough samples", DECIDE),
    "acceptance_max_regression": _row(
        GATE, "thresholds.acceptance_max_regression", "of τ against the last green evidence", DECIDE
    ),
    # none: how a deploy is done
    "acceptance_on_failure": _row(NONE, "on_failure", "restore, fallback or stop"),
    "acceptance_retry": _row(NONE, "retry", "try a release again that has red evidence"),
    "acceptance_evidence_max_age": _row(NONE, "evidence_max_age", "older evidence is measured again"),
    "drafter_accept_findings": _row(NONE, "accept_findings", "findings taken on oneself; recorded"),
    "drafter_gpu": _row(NONE, "gpu", "what the contract knows of the host's cards"),
    "drafter_packages": _row(NONE, "packages", "what lies beside the engine, for the contract"),
    "drafter_compare_with": _row(NONE, "compare_with", "the version that an upgrade is compared with"),
    "draftgate_strategy": _row(NONE, "strategy", "in place, or the candidate beside what serves"),
    "draftgate_switch_time_limit": _row(NONE, "time_limit", "after it the host restores by itself"),
    "gateway_enabled": _row(NONE, "gateway", "whether clients come through nginx"),
    "gateway_host": _row(NONE, "gateway", "the public address"),
    "gateway_port": _row(NONE, "gateway", "the public port"),
    "gateway_paths": _row(NONE, "gateway", "what of the engine is public"),
    "gateway_read_timeout": _row(NONE, "gateway", "how long the engine may be silent in a request"),
    "gateway_client_max_body_size": _row(NONE, "gateway", "the largest request"),
    "gateway_retry_after": _row(NONE, "gateway", "when a refused client should come back"),
    "gateway_drain_seconds": _row(NONE, "gateway", "how long a switch waits for requests that run"),
    "gateway_tls_certificate": _row(NONE, "gateway", "the front's certificate, a file on the host"),
    "gateway_tls_key": _row(NONE, "gateway", "and its key"),
    "gateway_remove_default_site": _row(NONE, "gateway", "whether nginx's welcome page goes"),
    "draftgate_reports_dir": _row(NONE, "reports_dir", "where the controller keeps evidence"),
    "vllm_runtime_extra_index": _row(NONE, "extra_index", "where pip finds torch's CPU build"),
    "vllm_runtime_find_links": _row(NONE, "find_links", "a directory of wheels"),
}


def effect_of(spec_field: str) -> str:
    """What a change of this dotted spec field costs (``serve.args.dtype`` → ``new release``).

    A field below a table row takes the row's effect; an unknown one takes its part's.
    """
    part, _, rest = spec_field.partition(".")
    for row in VARIABLES.values():
        home = PLACE if row.part == SECRET else row.part
        if home == part and (rest == row.field or rest.startswith(row.field + ".")):
            return row.effect
    return EFFECT_OF_PART.get(part, NOTHING)


def strongest(effects: List[str]) -> str:
    """The effect that covers all others: a new release restarts and measures anyway."""
    order = [NOTHING, DECIDE, MEASURE, RESTART, NEW_RELEASE, TEARDOWN]
    return max(effects, key=order.index, default=NOTHING)
