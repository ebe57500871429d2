"""The short table at the end of a host's run: what was decided, by which figures, and what to do."""

from __future__ import annotations

import textwrap
from typing import Any, Iterator, List, Mapping, NamedTuple, Optional, Sequence

from .decision import FAIL, INCONCLUSIVE, PASS, compared_lengths, meaning, percent
from .progress import span

WIDTH = 100
_BARS = "▁▂▃▄▅▆▇█"
_COLOURS = {PASS: "\x1b[32m", FAIL: "\x1b[31m", INCONCLUSIVE: "\x1b[33m"}
_EXPLAINED_SUSPECTS = 2  # the evidence has the others in full
_SHOWN_CHANGES = 12


class Row(NamedTuple):
    """One threshold: what was measured, what was wished, and the code that says it was missed.

    :param level: where the measured value lies on its scale from 0 to 1; ``limit``: the wished one.
    :param state: ``ok``, ``missed``, or empty where it was not judged.
    """

    name: str
    measured: str
    wished: str
    code: str
    remark: str = ""
    level: Optional[float] = None
    limit: Optional[float] = None
    state: str = ""


def table(
    evidence: Mapping[str, Any],
    *,
    previous: Optional[Mapping[str, Any]] = None,
    stages: Optional[Mapping[str, float]] = None,
    differs: Optional[Sequence[Mapping[str, Any]]] = None,
    curl: Optional[str] = None,
    colour: bool = False,
) -> str:
    """At most 100 columns.

    :param evidence: what was measured.
    :param previous: evidence to compare with; absent: the reference that the evidence names.
    :param stages: seconds per stage of this run.
    :param differs: ``{field, before, after}``: what this run changed.
    :param curl: the request to try.
    :param colour: ANSI colour for the verdict.
    """
    before = previous or evidence.get("reference")
    blocks = [
        _head(evidence, colour) + _reasons(evidence),
        _figures(evidence, before),
        _workloads(evidence) + _wrapped("time", _times(evidence, stages)),
        _changes(differs or []),
        _suspects(evidence),
        _findings(evidence) if evidence["verdict"] != PASS else [],
        _wrapped("note", [str(note["message"]) for note in evidence.get("notes") or []], "\n"),
        ["  try", "  " + curl] if curl else [],  # never broken: it is for copying
    ]
    return "\n\n".join("\n".join(block) for block in blocks if block)


def _head(evidence: Mapping[str, Any], colour: bool) -> List[str]:
    verdict = str(evidence["verdict"]).upper()
    if colour:
        verdict = f"{_COLOURS.get(evidence['verdict'], '')}{verdict}\x1b[0m"
    first = f"{evidence['host']}  {verdict}  release {evidence['release']}  measured {evidence['time']}"
    engine, drafter, k = evidence["engine"], evidence.get("drafter"), evidence["num_speculative_tokens"]
    told = [f"{engine['name']} {engine['version']}"]
    if drafter:
        told += [
            f"k {k}",
            f"mask {drafter.get('mask_token_id')}",
            f"target layers {drafter.get('target_layer_ids')}",
        ]
    else:
        told.append("without speculation")
    return [first, *_wrapped("", [", ".join(told)])]


def _reasons(evidence: Mapping[str, Any]) -> List[str]:
    told = [f"{reason['code']} {reason['message']}" for reason in evidence.get("reasons") or []]
    return [line for text in told for line in _indented("  ! ", text)]


def _figures(evidence: Mapping[str, Any], before: Optional[Mapping[str, Any]]) -> List[str]:
    judged = rows(evidence, before)
    if not judged:
        return []
    lines = [f"  {'':26}{'measured':>10}   wished"]
    for row in judged:
        mark = row.state.upper() if row.state == "missed" else row.state
        lines.append(f"  {row.name:26}{row.measured:>10}   {row.wished:12}{mark:8}{row.remark}".rstrip())
    return lines + _positions(evidence["acceptance"]["per_position"], before)


def rows(evidence: Mapping[str, Any], before: Optional[Mapping[str, Any]] = None) -> List[Row]:
    """What was measured beside what was wished; empty where no acceptance was measured.

    :param before: what to compare with: a whole evidence, or the short one that an evidence refers to.
    """
    acceptance = evidence.get("acceptance")
    if not acceptance:
        return []
    codes = {reason["code"] for reason in evidence.get("reasons") or []}
    judged = not evidence.get("problem") and not codes & {"DG801", "DG811"}
    told = [*_drafting(evidence, acceptance), *_compared(evidence, before), *_amount(evidence, acceptance)]
    return [
        row._replace(state="missed" if row.code in codes else "ok" if row.wished and judged else "")
        for row in told
    ]


def _drafting(evidence: Mapping[str, Any], acceptance: Mapping[str, Any]) -> Iterator[Row]:
    limits, k = evidence["thresholds"], evidence["num_speculative_tokens"]
    tau, rate, curve = acceptance["mean_acceptance_length"], acceptance["rate"], acceptance["per_position"]
    length, share, first = (
        limits.get(f"acceptance_min_{name}") for name in ("mean_length", "rate", "position_1")
    )
    wished = "" if length is None else f"≥ {length:.2f}"
    worth = _worth(length, share, k)
    level, limit = ((value - 1) / k if value is not None and k else None for value in (tau, length))
    yield Row("mean acceptance length τ", _number(tau), wished, "DG802", worth, level, limit)
    wished = "" if share is None else f"≥ {percent(share)}"
    yield Row("acceptance rate", _percent(rate), wished, "DG803", "", rate, share)
    wished = "" if first is None else f"≥ {percent(first)}"
    at_first = curve[0] if curve else None
    yield Row("position 1", _percent(at_first), wished, "DG804", "", at_first, first)


def _compared(evidence: Mapping[str, Any], before: Optional[Mapping[str, Any]]) -> Iterator[Row]:
    lengths = compared_lengths(evidence, {"acceptance": (before or {}).get("acceptance") or before})
    if before and lengths:
        now, then, _common = lengths
        fall = evidence["thresholds"].get("acceptance_max_regression")
        wished, limit = ("", None) if fall is None else (f"≥ {percent(-fall, 0)}", 1 - fall)
        remark = f"τ {then:.2f} of {before.get('release')}, {str(before.get('time'))[:10]}"
        change = f"{100 * (now / then - 1):+.0f} %"
        yield Row("τ against the last green", change, wished, "DG805", remark, min(1.0, now / then), limit)


def _amount(evidence: Mapping[str, Any], acceptance: Mapping[str, Any]) -> Iterator[Row]:
    limits = evidence["thresholds"]
    least, faster = limits.get("acceptance_min_drafts"), limits.get("acceptance_min_speedup")
    yield Row("drafts", str(acceptance["drafts"]), "" if least is None else f"≥ {least:g}", "DG811")
    speed = evidence.get("tokens_per_second")
    baseline = (evidence.get("baseline") or {}).get("tokens_per_second")
    remark = f"{speed / baseline:.2f}x of {baseline:.1f} without speculation" if speed and baseline else ""
    yield Row("tokens/s", _number(speed, 1), "" if faster is None else f"≥ {faster:g}x", "DG806", remark)


def _worth(length: Optional[float], share: Optional[float], k: int) -> str:
    """What a rate means at this k: bare rates are not portable."""
    if share is not None:
        return meaning(share, k)
    return meaning((length - 1) / k, k) if length is not None and k else ""


def _positions(curve: Sequence[float], before: Optional[Mapping[str, Any]]) -> List[str]:
    if not curve:
        return []
    lines = _curve("per position %", curve)
    earlier = ((before or {}).get("acceptance") or before or {}).get("per_position")
    return lines + (_curve("  last green", earlier) if earlier else [])


def _curve(name: str, curve: Sequence[float]) -> List[str]:
    bars = "".join(_BARS[min(len(_BARS) - 1, int(rate * len(_BARS)))] for rate in curve)
    numbers = " ".join(f"{100 * rate:.0f}" for rate in curve)
    return _indented(f"  {name:26}", f"{numbers}  {bars}")


def _workloads(evidence: Mapping[str, Any]) -> List[str]:
    kinds = evidence.get("workloads") or []
    if not kinds:
        return []
    width = max(8, *(len(str(kind["workload"])) for kind in kinds))
    lines = [f"  {'workload':{width}}  {'τ':>6} {'rate':>7} {'drafts':>7} {'tok/s':>8} {'answers right':>14}"]
    for kind in kinds:
        right = f"{kind['right']}/{kind['compared']}" if kind.get("compared") else ""
        drafts = kind.get("drafts")
        figures = f"{_number(kind.get('mean_acceptance_length')):>6} {_percent(kind.get('rate')):>7} "
        speed = _number(kind.get("tokens_per_second"), 1)
        figures += f"{'-' if drafts is None else drafts:>7} {speed:>8} {right:>14}"
        lines.append(f"  {kind['workload']:{width}}  {figures}".rstrip())
    return lines


def _times(evidence: Mapping[str, Any], stages: Optional[Mapping[str, float]]) -> List[str]:
    told = [f"{stage} {span(seconds)}" for stage, seconds in (stages or {}).items() if seconds >= 0.5]
    if not told and evidence.get("seconds"):
        told = [f"measuring {span(evidence['seconds'])}"]
    counted = {"requests": "counted by our requests", "counters": "counted by the engine"}
    by = counted.get(str(evidence.get("counted_by")))
    share = evidence.get("own_share")
    if by:
        told.append(by + (f", own share {percent(share, 0)}" if share is not None else ""))
    return [" · ".join(told)] if told else []


def _changes(differs: Sequence[Mapping[str, Any]]) -> List[str]:
    told = [
        f"{change['field']}: {_value(change['before'])} → {_value(change['after'])}" for change in differs
    ]
    rest = len(told) - _SHOWN_CHANGES
    more = [f"and {rest} more"] if rest > 0 else []
    return _wrapped("changed", told[:_SHOWN_CHANGES] + more, "\n")


def _suspects(evidence: Mapping[str, Any]) -> List[str]:
    suspects = evidence.get("suspects") or []
    lines = ["  suspects, in the order to look at them"] if suspects else []
    for number, suspect in enumerate(suspects, 1):
        lines += _indented(f"  {number}. ", f"{suspect['cause']}  [{suspect['evidence']}]")
        if number <= _EXPLAINED_SUSPECTS:
            lines += _indented("     ", str(suspect["why"]))
            lines += _indented("     → ", str(suspect["next"]))
    return lines


def _findings(evidence: Mapping[str, Any]) -> List[str]:
    lines: List[str] = []
    for finding in evidence.get("findings") or []:
        taken = f" (accepted: {finding['accepted']})" if finding.get("accepted") else ""
        lines += _indented("  ", f"{finding['code']} {finding['severity']} {finding['message']}{taken}")
    return (["  findings of the preflight"] if lines else []) + lines


def _wrapped(name: str, texts: Sequence[str], joint: str = "") -> List[str]:
    """Texts under one name: each on lines of its own with ``joint`` "\\n"."""
    if not texts:
        return []
    head = f"  {name}  " if name else "  "
    lines = _indented(head, texts[0])
    for text in texts[1:]:
        lines += _indented(" " * len(head) if joint else head, text)
    return lines


def _indented(head: str, text: str) -> List[str]:
    """``text`` broken at :data:`WIDTH`, its later lines below its first."""
    inside = textwrap.wrap(text, WIDTH - len(head)) or [""]
    return [head + inside[0], *(" " * len(head) + line for line in inside[1:])]


def _number(value: Optional[float], digits: int = 2) -> str:
    return "-" if value is None else f"{value:.{digits}f}"


def _percent(value: Optional[float]) -> str:
    return "-" if value is None else percent(value)


def _value(value: Any) -> str:
    return "absent" if value is None else str(value)
