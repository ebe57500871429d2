"""The contract between drafter, target, tokenizer and engine, judged from files and arithmetic.

Facts are gathered once (``contract_facts``), then every rule of ``contract_rules`` is asked. A value that
is not known is not judged, so one broken file never hides what the others tell.
"""

from __future__ import annotations

import datetime
import os
from dataclasses import asdict, dataclass, replace
from typing import Any, Dict, List, Mapping, Optional, Sequence

from . import effective_config
from .config_fields import is_integer
from .contract_facts import Facts, gather, read_own_config
from .contract_rules import RULES
from .contract_rules.engine import tree_is_not_the_cause
from .engine_support import Engine
from .errors import DraftgateError, InputError
from .files import read_json
from .findings import ERROR, INFO, WARNING, Finding, accept, blocking
from .layout import Home

_ORDER = {ERROR: 0, WARNING: 1, INFO: 2}


@dataclass(frozen=True)
class Comparison:
    """The same pair on two engines: findings that the change ends, brings, and leaves.

    Two findings are the same problem when code and field are.
    """

    engine_before: Dict[str, str]
    engine_after: Dict[str, str]
    gone: List[Finding]
    new: List[Finding]
    stay: List[Finding]


@dataclass(frozen=True)
class Verdict:
    """Findings (errors first), what the weights prove, and the config that the engine would be given.

    :param comparison: where another engine was named to compare with.
    """

    findings: List[Finding]
    inferred: Dict[str, Any]
    effective_config: Dict[str, Any]
    comparison: Optional[Comparison] = None

    def as_dict(self) -> Dict[str, Any]:
        return asdict(self)

    def accepted(self, acceptances: Sequence[Mapping[str, Any]], today: datetime.date) -> Verdict:
        """The same with the operator's acceptances on every finding."""

        def taken(findings: List[Finding]) -> List[Finding]:
            return accept(findings, acceptances, today)

        both = self.comparison
        if both is not None:
            both = replace(both, gone=taken(both.gone), new=taken(both.new), stay=taken(both.stay))
        return replace(self, findings=taken(self.findings), comparison=both)


def judge(
    drafter_dir: str,
    target_dir: str,
    *,
    engine: Mapping[str, Any],
    num_speculative_tokens: int,
    overrides: Optional[Mapping[str, Any]] = None,
    gpu: Optional[Mapping[str, Any]] = None,
    server: Optional[Mapping[str, Any]] = None,
    environment: Optional[Mapping[str, str]] = None,
    packages: Optional[Mapping[str, str]] = None,
    compare_with: Optional[Mapping[str, Any]] = None,
) -> Verdict:
    """Judge two local model directories: all findings at once, nothing is written.

    :param engine: ``{"name": "vllm", "version": "0.32.0"}``.
    :param overrides: merged over the drafter's config first: the result is what counts.
    :param gpu: ``{arch: "sm_86", count, memory_gib}``, each where it is known; ``count`` 0 means a CPU.
    :param server: engine arguments in snake case.
    :param environment: the engine's environment variables.
    :param packages: versions beside the engine (``{"flash-attn": "2.8.3"}``).
    :param compare_with: another engine; the files are read once.
    :raises InputError: the wish cannot be understood, or the target has no readable config.json.
    """
    if not is_integer(num_speculative_tokens) or num_speculative_tokens < 1:
        raise InputError(
            "reading num_speculative_tokens",
            f"it is {num_speculative_tokens!r}",
            "an integer of at least 1",
            "Leave drafter_path empty to serve without speculation.",
        )
    for variable, directory in (("drafter_path", drafter_dir), ("target_path", target_dir)):
        _check_directory(variable, directory)
    facts = gather(
        drafter_dir,
        target_dir,
        engine=engine,
        num_speculative_tokens=num_speculative_tokens,
        overrides={} if overrides is None else overrides,
        gpu=gpu or {},
        server=server or {},
        environment={name: str(value) for name, value in (environment or {}).items()},
        packages={name: str(version) for name, version in (packages or {}).items()},
    )
    found = _findings(facts)
    comparison = _compared(facts, found, compare_with, engine) if compare_with else None
    explained = found if facts.unreadable else [*found, *tree_is_not_the_cause(str(facts.engine), found)]
    return Verdict(explained, dict(facts.inferred), dict(facts.drafter.config), comparison)


def _check_directory(variable: str, path: str) -> None:
    if not os.path.isdir(path) or not os.access(path, os.R_OK | os.X_OK):
        is_there = os.path.lexists(path)
        observed = f"{path!r} is {'no directory that this user may read' if is_there else 'not there'}"
        step = f"Set {variable} to a directory of this host."
        raise InputError(f"reading {variable}", observed, "a model's directory", step, code="DG601")


def _findings(facts: Facts) -> List[Finding]:
    """A field of a wrong type is known only after the rules have asked for it."""
    found = [finding for rule in RULES for finding in rule(facts)]
    wrong = [*facts.drafter.wrong, *facts.target.wrong]
    return sorted([*facts.unreadable, *wrong, *found], key=lambda finding: _ORDER[finding.severity])


def _compared(
    facts: Facts, after: List[Finding], compare_with: Mapping[str, Any], engine: Mapping[str, Any]
) -> Comparison:
    """The same facts judged for the other engine, and what differs."""
    before = _findings(replace(facts, engine=Engine.of(compare_with, facts.gpu)))
    was = {(finding.code, finding.field) for finding in before}
    becomes = {(finding.code, finding.field) for finding in after}
    return Comparison(
        _named(compare_with),
        _named(engine),
        gone=[finding for finding in before if (finding.code, finding.field) not in becomes],
        new=[finding for finding in after if (finding.code, finding.field) not in was],
        stay=[finding for finding in after if (finding.code, finding.field) in was],
    )


def _named(engine: Mapping[str, Any]) -> Dict[str, str]:
    return {"name": str(engine["name"]), "version": str(engine["version"])}


def serving_engine(active: str) -> Optional[Dict[str, str]]:
    """The engine that an installation has activated: what an upgrade starts from. None: nothing is.

    :param active: its pointer (``layout.Home.active``).
    :raises InputError: it cannot be read, or names no engine.
    """
    if not os.path.exists(active):
        return None
    doing = "reading what is activated"
    try:
        return _named(read_json(active, doing)["deployment"]["serve"]["engine"])
    except (KeyError, TypeError):
        step = "Set drafter_compare_with, or deploy again."
        raise InputError(doing, f"{active!r} names no engine", "", step) from None


def converge(
    drafter_dir: str,
    target_dir: str,
    *,
    acceptances: Sequence[Mapping[str, Any]] = (),
    today: datetime.date,
    dest: Optional[str] = None,
    active: Optional[str] = None,
    check_mode: bool = False,
    **wish: Any,
) -> Dict[str, Any]:
    """Judge, put the operator's acceptances on the findings, and write the effective drafter to ``dest``.

    :param acceptances: ``{code, reason, until}`` each.
    :param dest: where the effective drafter goes; None: nowhere.
    :param active: an installation's pointer; its engine is compared with, unless ``compare_with`` names one.
    :param wish: what :func:`judge` takes.
    :returns: the verdict's fields, ``changed`` and a ``diff``.
    :raises DraftgateError: errors that nobody accepted; ``details`` are the verdict's fields.
    """
    if active and not wish.get("compare_with"):
        serves = serving_engine(active)
        wish = {**wish, "compare_with": None if serves == _named(wish["engine"]) else serves}
    verdict = judge(drafter_dir, target_dir, **wish).accepted(acceptances, today)
    stopping = blocking(verdict.findings)
    if stopping:
        raise _refusal(stopping, verdict)
    config = verdict.effective_config
    changed = dest is not None and not effective_config.is_written(dest, drafter_dir, config)
    if dest is not None and not check_mode:
        effective_config.write(dest, drafter_dir, config)
    diff = {"before": read_own_config(drafter_dir), "after": config}
    return {"changed": changed, "diff": diff, **verdict.as_dict()}


def module_result(given: Mapping[str, Any], check: bool) -> Dict[str, Any]:
    """The module ``drafter_contract``.

    :param given: the module's arguments.
    """
    return converge(
        given["drafter"],
        given["target"],
        engine=given["engine"],
        num_speculative_tokens=given["num_speculative_tokens"],
        overrides=given["overrides"],
        gpu=given["gpu"],
        server=given["server"],
        environment=given["environment"],
        packages=given["packages"],
        compare_with=given["compare_with"],
        active=Home.at(given["home"]).active if given["home"] else None,
        acceptances=given["accept_findings"],
        today=datetime.date.today(),
        dest=given["dest"] if given["state"] == "present" else None,
        check_mode=check,
    )


def _refusal(stopping: List[Finding], verdict: Verdict) -> DraftgateError:
    """The first error in a sentence, and all of them for a program."""
    first, more = stopping[0], len(stopping) - 1
    sentence = first.message.split(". ")[0].rstrip(".")
    return DraftgateError(
        "judging the drafter by its files",
        sentence + (f", and {more} more" if more else ""),
        "",
        first.fix,
        code=first.code,
        details=verdict.as_dict(),
    )
