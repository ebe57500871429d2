"""What a wish changes on this host and what that costs. Pure: check mode, the module and the job ask it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Dict, List, Mapping, Optional

from . import variables
from .errors import HostError
from .spec import deployment, differences, without_speculation

NONE, START, DECIDE, MEASURE, SWITCH, REFUSE = "none", "start", "decide", "measure", "switch", "refuse"
IN_PLACE, SIDE_BY_SIDE = "in_place", "side_by_side"


@dataclass(frozen=True)
class Facts:
    """What the host says of itself.

    :param active: ``active.json``'s content, or None.
    :param answers: whether the active deployment's service runs and is healthy.
    :param evidence_valid: the active deployment's evidence still counts for the wished gate.
    :param evidence_why: why not, for the operator.
    :param red: newest valid red evidence of the wished release and gate, decided with the wished thresholds.
    """

    active: Optional[Mapping[str, Any]] = None
    answers: bool = False
    evidence_valid: bool = False
    evidence_why: str = ""
    red: Optional[Mapping[str, Any]] = None


@dataclass(frozen=True)
class Plan:
    """``action`` is one of this module's constants; ``differs`` is ``[{field, before, after, effect}]``.

    :param strategy: how a switch is made (``IN_PLACE`` or ``SIDE_BY_SIDE``); :param why: why so.
    :param error: why a wish is refused, where that is not :attr:`reason` alone.
    """

    action: str
    differs: List[Dict[str, Any]] = field(default_factory=list)
    reason: str = ""
    warning: str = ""
    strategy: str = ""
    why: str = ""
    error: Optional[HostError] = None

    @property
    def changes(self) -> bool:
        return self.action not in (NONE, REFUSE)


def plan_change(spec: Mapping[str, Any], options: Mapping[str, Any], facts: Facts) -> Plan:
    """The cheapest action that makes the host equal the wish."""
    wished = deployment(spec)
    active = facts.active or {}
    current = active.get("deployment") or {}
    differs = [{**row, "effect": variables.effect_of(row["field"])} for row in differences(current, wished)]
    if facts.red and current.get("id") != wished["id"] and not options.get("retry"):
        return _refuse(wished, differs, options, facts, current)
    if not current:
        return Plan(SWITCH, differs, "nothing is deployed here yet")
    effect = variables.strongest([row["effect"] for row in differs])
    if effect == variables.TEARDOWN:
        return Plan(REFUSE, differs, "another service manager cannot take over what runs under this one")
    if effect in (variables.NEW_RELEASE, variables.RESTART):
        return Plan(SWITCH, differs, f"{len(differs)} field(s) of the spec differ: {effect}")
    if not facts.answers:
        return Plan(START, differs, "the activated release does not answer")
    if effect == variables.MEASURE or not facts.evidence_valid:
        return Plan(MEASURE, differs, facts.evidence_why or "the gate differs")
    if effect == variables.DECIDE:
        return Plan(DECIDE, differs, "only thresholds differ")
    return Plan(NONE, differs)


def _refuse(
    wished: Mapping[str, Any],
    differs: List[Dict[str, Any]],
    options: Mapping[str, Any],
    facts: Facts,
    current: Mapping[str, Any],
) -> Plan:
    """A re-run of a wish that was measured and refused must not take the server down again."""
    red: Mapping[str, Any] = facts.red or {}
    why = (
        f"release {wished['release']} was measured at {red.get('time')} and refused: {red.get('reason', '')}"
    )
    if options.get("on_failure") == "fallback" and current.get("id") == without_speculation(wished)["id"]:
        return Plan(
            NONE if facts.answers else START, [], warning=f"{why}; the target serves without speculation"
        )
    return Plan(REFUSE, differs, why)
