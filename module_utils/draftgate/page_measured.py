"""The parts of a report page that show what was measured: thresholds, the curve, the workloads."""

from __future__ import annotations

from typing import Any, List, Mapping, Optional, Sequence

from . import report
from .decision import meaning, percent
from .page_chart import Line, curve, meter, sparks
from .page_markup import Child, Element, el, section, table


def figures(evidence: Mapping[str, Any], before: Optional[Mapping[str, Any]]) -> Optional[Element]:
    """The thresholds: the table that the terminal shows, with a bar where there is a scale."""
    judged = report.rows(evidence, before)
    if not judged:
        return None
    body = [
        (
            [
                row.name.replace(" τ", "\u00a0τ"),
                meter(row.level, row.limit),
                el("div", row.remark, class_="soft"),
            ],
            el("b", row.measured),
            row.wished.replace(" ", "\u00a0") or el("span", "not judged", class_="soft"),
            el("span", "missed", class_="missed") if row.state == "missed" else row.state,
        )
        for row in judged
    ]
    heads = ("", "measured", "wished", "")
    return section("Measured against wished", "figures", table(heads, body, "What was measured and wished"))


def by_position(evidence: Mapping[str, Any], before: Optional[Mapping[str, Any]]) -> Optional[Element]:
    """The curve, with what it is compared with and the thresholds as lines."""
    rates = (evidence.get("acceptance") or {}).get("per_position")
    if not rates:
        return None
    known = before or {}
    told = known.get("acceptance") or known  # a whole evidence, or the short one that another refers to
    earlier = {**known, "per_position": told.get("per_position")}
    note = "How often the draft's token at each position was accepted. τ is 1 plus the sum of these shares."
    drawn = curve(rates, earlier, _lines(evidence), f"this release: {evidence.get('release')}")
    return section("Acceptance by position", "curve", drawn, note=note)


def _lines(evidence: Mapping[str, Any]) -> List[Line]:
    """The thresholds that are shares; a wished τ is one on average over the positions."""
    limits, k = evidence.get("thresholds") or {}, evidence.get("num_speculative_tokens") or 0
    first, length, rate = (
        limits.get(f"acceptance_min_{name}") for name in ("position_1", "mean_length", "rate")
    )
    lines = [] if first is None else [Line(first, f"wished at position 1: ≥ {percent(first)}", first=True)]
    if length is not None and k:
        share = (length - 1) / k
        lines.append(Line(share, f"on average for τ ≥ {length:.2f}: {percent(share)}"))
    if rate is not None:
        lines.append(Line(rate, f"wished on average: ≥ {percent(rate)} ({meaning(rate, k)})"))
    return lines


def workloads(evidence: Mapping[str, Any]) -> Optional[Element]:
    """One kind of prompts a line, since acceptance differs by more than 2x between kinds of text."""
    kinds = evidence.get("workloads") or []
    if not kinds:
        return None
    limit = (evidence.get("thresholds") or {}).get("acceptance_min_mean_length")
    k = evidence.get("num_speculative_tokens") or 0
    drafting = any(kind.get("mean_acceptance_length") is not None for kind in kinds)
    drafted: List[Child] = ["τ", "rate", el("span", "by position", class_="wide"), "drafts"]
    heads = ["", *(drafted if drafting else []), "tokens/s", "right"]
    body = [_workload(kind, limit, k, drafting) for kind in kinds]
    note = "Right: answers equal to the expected one." + (" τ: tokens per step." if drafting else "")
    return section("By workload", "workloads", table(heads, body, "Measured by workload"), note=note)


def _workload(kind: Mapping[str, Any], limit: Optional[float], k: int, drafting: bool) -> Sequence[Child]:
    tau, rate = kind.get("mean_acceptance_length"), kind.get("rate")
    bar = meter((tau - 1) / k, None if limit is None else (limit - 1) / k) if tau is not None and k else None
    drafted: Sequence[Child] = (
        el("b", _number(tau, 2)),
        "–" if rate is None else percent(rate),
        sparks(kind.get("per_position") or []),
        _number(kind.get("drafts"), 0),
    )
    right = f"{kind.get('right')}/{kind['compared']}" if kind.get("compared") else "–"
    name = [str(kind.get("workload")), bar]
    return [name, *(drafted if drafting else ()), _number(kind.get("tokens_per_second"), 1), right]


def _number(value: Optional[float], digits: int) -> str:
    return "–" if value is None else f"{value:.{digits}f}"
