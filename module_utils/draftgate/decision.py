"""The verdict, as a pure function of a measurement, the thresholds and the last green evidence.

It reads the evidence's own fields, so a threshold-only change is decided again from what is stored.
Three failures are told apart, in each reason's first words: measured and bad, not enough samples,
could not measure.
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, field
from typing import Any, Dict, Iterator, List, Mapping, Optional, Tuple

from .errors import InputError

PASS, FAIL, INCONCLUSIVE = "pass", "fail", "inconclusive"

DEFAULTS: Dict[str, Optional[float]] = {
    "acceptance_min_rate": None,
    "acceptance_min_mean_length": 2.0,
    "acceptance_min_position_1": 0.4,
    "acceptance_min_speedup": None,
    "acceptance_min_drafts": 200,
    "acceptance_max_regression": 0.15,
}
"""Every threshold with its default; null = not judged."""

BAD, FEW, UNMEASURED = "Measured and bad", "Not enough samples", "Could not measure"

# Numbers allowed for each threshold: (minimum, maximum, what it is).
_RANGES: Dict[str, Tuple[float, float, str]] = {
    "acceptance_min_rate": (0.0, 1.0, "a share from 0 to 1"),
    "acceptance_min_mean_length": (1.0, math.inf, "tokens per step, at least 1"),
    "acceptance_min_position_1": (0.0, 1.0, "a share from 0 to 1"),
    "acceptance_min_speedup": (0.0, math.inf, "a factor such as 1.3"),
    "acceptance_min_drafts": (1, math.inf, "a whole number, at least 1"),
    "acceptance_max_regression": (0.0, 1.0, "a share from 0 to 1"),
}
# What a busy server or a rerun can cure is inconclusive; the others say that the engine is broken.
CURABLE = frozenset({"DG823", "DG827", "DG701", "DG702", "DG707", "DG708"})
_LEAST_WORKLOAD_DRAFTS = 20


@dataclass(frozen=True)
class Decision:
    """A verdict with its reasons.

    :param verdict: ``pass``, ``fail`` or ``inconclusive``.
    :param reasons: why not ``pass``; each ``{code, message, field, observed, expected}``.
    :param notes: the same shape; worth a look, and without effect on the verdict.
    """

    verdict: str
    reasons: List[Dict[str, Any]] = field(default_factory=list)
    notes: List[Dict[str, Any]] = field(default_factory=list)

    def as_dict(self) -> Dict[str, Any]:
        return asdict(self)


def validate_thresholds(
    thresholds: Mapping[str, Any], num_speculative_tokens: Optional[int] = None
) -> Dict[str, Any]:
    """The thresholds with the defaults filled in.

    :param num_speculative_tokens: k; given, a mean length that k can never reach is refused too.
    :raises InputError: one error that names every wrong threshold.
    """
    complete = {**DEFAULTS, **thresholds}
    problems = [f"{name} is no threshold" for name in sorted(set(complete) - set(DEFAULTS))]
    problems += [_wrong(name, complete[name]) for name in DEFAULTS if _wrong(name, complete[name])]
    if complete["acceptance_min_rate"] is None and complete["acceptance_min_mean_length"] is None:
        problems.append("acceptance_min_rate and acceptance_min_mean_length are both null: one has to be set")
    wished = complete["acceptance_min_mean_length"]
    if num_speculative_tokens and not problems and wished is not None and wished > num_speculative_tokens + 1:
        problems.append(
            f"acceptance_min_mean_length is {wished} and can be at most {num_speculative_tokens + 1} "
            f"with num_speculative_tokens {num_speculative_tokens}"
        )
    if problems:
        raise InputError("checking the thresholds", "; ".join(problems), details={"problems": problems})
    return complete


def _wrong(name: str, value: Any) -> str:
    """What is wrong with a threshold's value; empty when nothing is."""
    low, high, what = _RANGES[name]
    if value is None:
        return ""
    number = isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)
    whole = name != "acceptance_min_drafts" or (number and value == int(value))
    if number and whole and low <= value <= high:
        return ""
    return f"{name} is {value!r}, not {what} or null"


def meaning(rate: float, num_speculative_tokens: int) -> str:
    """What a bare rate is worth: 33 % is τ 2 at k = 3 and 6 at k = 15."""
    length = 1 + num_speculative_tokens * rate
    return f"a rate of {percent(rate)} at k={num_speculative_tokens} is τ {length:.2f}"


def percent(share: float, digits: int = 1) -> str:
    """``0.724`` → ``72.4 %``."""
    return f"{100 * share:.{digits}f} %"


def decide(
    measurement: Mapping[str, Any],
    thresholds: Mapping[str, Any],
    reference: Optional[Mapping[str, Any]] = None,
) -> Decision:
    """Judge a measurement.

    :param measurement: :meth:`Measurement.as_dict`, or the evidence that holds the same fields.
    :param reference: the last green evidence with the same gate digest, or None.
    :raises InputError: a threshold that cannot be one.
    """
    limits = validate_thresholds(thresholds)
    unmeasured = measurement.get("problem")
    if unmeasured:
        verdict = INCONCLUSIVE if unmeasured["code"] in CURABLE else FAIL
        return Decision(verdict, [{**unmeasured, "message": f"{UNMEASURED}: {unmeasured['message']}"}])
    notes = list(_notes(measurement, limits, reference))
    if not measurement.get("num_speculative_tokens"):
        return Decision(PASS, [], notes)  # the target alone: it answered, and there is no drafting to judge
    failures, doubts = _judged(measurement, limits, reference)
    verdict = FAIL if failures else INCONCLUSIVE if doubts else PASS
    return Decision(verdict, failures + doubts, notes)


def _judged(
    measurement: Mapping[str, Any], limits: Mapping[str, Any], reference: Optional[Mapping[str, Any]]
) -> Tuple[List[Dict[str, Any]], List[Dict[str, Any]]]:
    """(what is bad, what cannot be told)."""
    acceptance = measurement["acceptance"]
    drafts, wished = acceptance["drafts"], limits["acceptance_min_drafts"]
    if drafts == 0:
        tokens = measurement["generation_tokens"]
        message = f"{BAD}: no draft at all while {tokens} tokens were generated: speculation never engaged"
        return [_reason("DG801", message, "acceptance.drafts", 0, "> 0")], []
    if wished is not None and drafts < wished:
        message = f"{FEW}: {drafts} drafts of the {wished} wished (acceptance_min_drafts)"
        return [], [_reason("DG811", message, "acceptance.drafts", drafts, f">= {wished}")]
    failures = [
        *_below(acceptance, limits, measurement["num_speculative_tokens"]),
        *_fallen(measurement, limits, reference),
    ]
    slower, unknown = _speed(measurement, limits["acceptance_min_speedup"])
    return failures + slower, unknown


def _below(acceptance: Mapping[str, Any], limits: Mapping[str, Any], k: int) -> Iterator[Dict[str, Any]]:
    tau, rate, first = acceptance["mean_acceptance_length"], acceptance["rate"], acceptance["per_position"][0]
    wished = limits["acceptance_min_mean_length"]
    if wished is not None and tau < wished:
        message = f"{BAD}: mean acceptance length τ {tau:.2f}, wished ≥ {wished:g}"
        yield _reason("DG802", message, "acceptance.mean_acceptance_length", tau, f">= {wished:g}")
    wished = limits["acceptance_min_rate"]
    if wished is not None and rate < wished:
        message = f"{BAD}: acceptance rate {percent(rate)}, wished ≥ {percent(wished)} ({meaning(wished, k)})"
        yield _reason("DG803", message, "acceptance.rate", rate, f">= {wished:g}")
    wished = limits["acceptance_min_position_1"]
    if wished is not None and first < wished:
        message = f"{BAD}: position 1 is accepted {percent(first)} of the time, wished ≥ {percent(wished)}"
        yield _reason("DG804", message, "acceptance.per_position[0]", first, f">= {wished:g}")


def truncated_length(acceptance: Mapping[str, Any], positions: int) -> float:
    """Mean acceptance length as it would be at this smaller k: 1 + the first positions' rates."""
    return 1.0 + float(sum(acceptance["per_position"][:positions]))


def compared_lengths(
    measurement: Mapping[str, Any], reference: Optional[Mapping[str, Any]]
) -> Optional[Tuple[float, float, int]]:
    """(τ now, τ of the reference, common k), or None without two curves to compare."""
    curves = [
        ((side or {}).get("acceptance") or {}).get("per_position") or [] for side in (measurement, reference)
    ]
    common = min(len(curve) for curve in curves)
    if reference is None or not common:
        return None
    now, before = (truncated_length(side["acceptance"], common) for side in (measurement, reference))
    return now, before, common


def _fallen(
    measurement: Mapping[str, Any], limits: Mapping[str, Any], reference: Optional[Mapping[str, Any]]
) -> Iterator[Dict[str, Any]]:
    allowed, lengths = limits["acceptance_max_regression"], compared_lengths(measurement, reference)
    if allowed is None or lengths is None or reference is None:
        return
    now, before, common = lengths
    floor = before * (1 - allowed)
    if now < floor:
        at = f" over the first {common} positions" if common < measurement["num_speculative_tokens"] else ""
        message = (
            f"{BAD}: τ {now:.2f}{at} is {percent(1 - now / before, 0)} below the {before:.2f} of release "
            f"{reference.get('release')} ({reference.get('time')}), allowed {percent(allowed, 0)}"
        )
        yield _reason("DG805", message, "acceptance.mean_acceptance_length", now, f">= {floor:.4g}")


def _speed(
    measurement: Mapping[str, Any], wished: Optional[float]
) -> Tuple[List[Dict[str, Any]], List[Dict[str, Any]]]:
    if wished is None:
        return [], []
    baseline = (measurement.get("baseline") or {}).get("tokens_per_second")
    speed = measurement.get("tokens_per_second")
    if not baseline or not speed:
        message = f"{UNMEASURED}: acceptance_min_speedup is {wished:g}, and no baseline was measured"
        return [], [_reason("DG806", message, "baseline.tokens_per_second", baseline, "a measured baseline")]
    factor = speed / baseline
    if factor >= wished:
        return [], []
    message = f"{BAD}: {speed:.1f} tok/s is {factor:.2f}x the speed without speculation, wished ≥ {wished:g}x"
    return [_reason("DG806", message, "tokens_per_second", factor, f">= {wished:g}")], []


def _notes(
    measurement: Mapping[str, Any], limits: Mapping[str, Any], reference: Optional[Mapping[str, Any]]
) -> Iterator[Dict[str, Any]]:
    wished = limits["acceptance_min_mean_length"]
    overall = (measurement.get("acceptance") or {}).get("mean_acceptance_length") or 0.0
    kinds = measurement.get("workloads") or []
    for kind in kinds if wished is None or overall >= wished else []:  # else all of it is bad, and said so
        tau = kind.get("mean_acceptance_length")
        if (
            wished is not None
            and tau is not None
            and tau < wished
            and kind["drafts"] >= _LEAST_WORKLOAD_DRAFTS
        ):
            message = f"{kind['workload']} alone has τ {tau:.2f}, below {wished:g}"
            yield _reason(
                "DG831",
                message,
                f"workloads.{kind['workload']}.mean_acceptance_length",
                tau,
                f">= {wished:g}",
            )
    repeating = measurement.get("repeating") or []
    if repeating:
        message = (
            f"Answers that end in one repeating unit: {', '.join(repeating)}; repetition is easy to draft"
        )
        yield _reason("DG832", message, "repeating", repeating, [])
    if (
        reference is not None
        and measurement.get("acceptance")
        and compared_lengths(measurement, reference) is None
    ):
        message = (
            f"The green evidence of {reference.get('release')} has no per-position rates to compare with"
        )
        yield _reason("DG833", message, "acceptance.per_position", None, "rates")


def _reason(code: str, message: str, where: str, observed: Any, expected: Any) -> Dict[str, Any]:
    return {"code": code, "message": message, "field": where, "observed": observed, "expected": expected}
