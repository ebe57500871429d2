"""The contract between drafter, target, tokenizer and engine, judged from files and arithmetic.

Facts are gathered once (``contract_facts``), then every rule of ``contract_rules`` is asked. A value that
is not known is not judged, so one broken file never hides what the others tell.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, Dict, List, Mapping, Optional

from .config_fields import is_integer
from .contract_facts import Facts, gather
from .contract_rules import RULES
from .errors import InputError
from .findings import ERROR, INFO, WARNING, Finding

_ORDER = {ERROR: 0, WARNING: 1, INFO: 2}


@dataclass(frozen=True)
class Verdict:
    """Findings (errors first), what the weights prove, and the config that the engine would be given."""

    findings: List[Finding]
    inferred: Dict[str, Any]
    effective_config: Dict[str, Any]

    def as_dict(self) -> Dict[str, Any]:
        return asdict(self)


def judge(
    drafter_dir: str,
    target_dir: str,
    *,
    engine: Mapping[str, Any],
    num_speculative_tokens: int,
    overrides: Optional[Mapping[str, Any]] = None,
    gpu: Optional[Mapping[str, Any]] = None,
    server: Optional[Mapping[str, Any]] = None,
) -> Verdict:
    """Judge two local model directories: all findings at once, nothing is written.

    :param engine: ``{"name": "vllm", "version": "0.32.0"}``.
    :param overrides: merged over the drafter's config first: the result is what counts.
    :param gpu: ``{"count": 0}`` means a CPU; an empty dict means not known.
    :param server: engine arguments; ``max_model_len`` counts here.
    :raises InputError: the wish itself cannot be understood, or the target has no readable config.json.
    """
    if not is_integer(num_speculative_tokens) or num_speculative_tokens < 1:
        raise InputError(
            "reading num_speculative_tokens",
            f"it is {num_speculative_tokens!r}",
            "an integer of at least 1",
            "Leave drafter_path empty to serve without speculation.",
        )
    facts = gather(
        drafter_dir,
        target_dir,
        engine=engine,
        num_speculative_tokens=num_speculative_tokens,
        overrides={} if overrides is None else overrides,
        gpu=gpu or {},
        server=server or {},
    )
    return Verdict(_findings(facts), dict(facts.inferred), dict(facts.drafter.config))


def _findings(facts: Facts) -> List[Finding]:
    """A field of a wrong type is known only after the rules have asked for it."""
    found = [finding for rule in RULES for finding in rule(facts)]
    wrong = [*facts.drafter.wrong, *facts.target.wrong]
    return sorted([*facts.unreadable, *wrong, *found], key=lambda finding: _ORDER[finding.severity])
