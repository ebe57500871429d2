"""The parts of a report page that say what may be wrong: suspects, findings, changes, codes explained."""

from __future__ import annotations

import json
from typing import Any, List, Mapping, Optional, Sequence

from .codes import CODES
from .page_markup import Child, Element, el, linked, section, table

_EVIDENCE = {
    "difference": "changed since the last green",
    "finding": "found in the files",
    "shape": "fits what was counted",
    "experiment": "tried out",
}
"""What points at a suspect, in words."""


def suspects(told: Sequence[Mapping[str, Any]]) -> Optional[Element]:
    """All of them, in the order to look at them."""
    if not told:
        return None
    note = "In the order to look at them. A second fault is the normal case."
    shown = el("ol", *(_suspect(suspect) for suspect in told), class_="suspects")
    return section("Suspects", "suspects", shown, note=note)


def _suspect(suspect: Mapping[str, Any]) -> Element:
    kind = str(suspect.get("evidence"))
    return el(
        "li",
        el("h3", linked(str(suspect.get("cause"))), " ", el("span", _EVIDENCE.get(kind, kind), class_="tag")),
        el("p", linked(str(suspect.get("why")))),
        el("p", linked(str(suspect.get("next"))), class_="next"),
    )


def findings(told: Sequence[Mapping[str, Any]]) -> Optional[Element]:
    """What the preflight read from the files, accepted ones included."""
    if not told:
        return None
    note = "Read from the files before anything started. What was accepted was measured all the same."
    shown = el("ul", *(_finding(finding) for finding in told), class_="findings")
    return section("Findings of the preflight", "findings", shown, note=note)


def _finding(finding: Mapping[str, Any]) -> Element:
    code, severity = str(finding.get("code")), str(finding.get("severity"))
    head = el(
        "h3",
        badge(code),
        " ",
        el("span", severity, class_="tag error" if severity == "error" else "tag"),
        " ",
        linked(str(finding.get("message"))),
    )
    source, fix = str(finding.get("source") or ""), str(finding.get("fix") or "")
    accepted = finding.get("accepted")
    return el(
        "li",
        head,
        el("p", el("b", "Accepted: "), str(accepted)) if accepted else None,
        el(
            "p",
            el("code", str(finding.get("field"))),
            f" is {shown(finding.get('observed'))}; expected: {shown(finding.get('expected'))}.",
            [" Source: ", linked(source), "."] if source else None,
        ),
        el("p", linked(fix), class_="next") if fix else None,
        explained(code),
    )


def badge(code: str) -> Element:
    """A code as it is written into ``drafter_accept_findings``."""
    return el("span", code, class_="code", title=CODES[code].title if code in CODES else None)


def explained(code: str) -> Optional[Element]:
    """What a code means and what to do, in place."""
    row = CODES.get(code)
    return el("p", linked(f"{row.meaning} {row.fix}"), class_="soft") if row else None


def changes(differs: Sequence[Mapping[str, Any]]) -> Optional[Element]:
    """What this run changed against what was activated before."""
    if not differs:
        return None
    body: List[Sequence[Child]] = [
        (el("code", str(change.get("field"))), shown(change.get("before")), shown(change.get("after")))
        for change in differs
    ]
    return section(
        "What changed", "changes", table(("field", "before", "after"), body, "What changed", words=2)
    )


def shown(value: Any) -> str:
    """A value of a spec or a finding as people write it."""
    if value is None:
        return "absent"
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
