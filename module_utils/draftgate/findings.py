"""Findings: one problem each, with a code that never changes its meaning.

Ranges: DG1xx host and GPU, 2xx config and weights, 3xx tokenizer, 4xx engine version, 5xx runtime and
wheels, 6xx models and hub, 7xx launch, 8xx gate, 9xx watch and access.
"""

from __future__ import annotations

import datetime
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any, Dict, Iterable, List, Mapping, Optional, Sequence

from .errors import InputError

ERROR, WARNING, INFO = "error", "warning", "info"


@dataclass(frozen=True)
class Finding:
    """One problem.

    :param code: ``DGnnn``.
    :param severity: ``error`` stops a deploy unless it is accepted; ``warning`` and ``info`` are printed.
    :param field: what it is about, as a dotted path (``drafter.dflash_config.mask_token_id``).
    :param observed: the value found (JSON type).
    :param expected: the value or rule it breaks (JSON type).
    :param message: one or two sentences for a person.
    :param fix: what to set or type.
    :param source: where the rule comes from: a public issue, a page, a file.
    :param accepted: the operator's reason, when they took it on themselves.
    """

    code: str
    severity: str
    field: str
    observed: Any
    expected: Any
    message: str
    fix: str = ""
    source: str = ""
    accepted: Optional[str] = None

    def as_dict(self) -> Dict[str, Any]:
        return asdict(self)


error = partial(Finding, severity=ERROR)
warning = partial(Finding, severity=WARNING)
info = partial(Finding, severity=INFO)


def accept(
    findings: Iterable[Finding], acceptances: Sequence[Mapping[str, Any]], today: datetime.date
) -> List[Finding]:
    """The same findings with the operator's acceptances (``{code, reason, until}``) put on them.

    An acceptance counts through the whole day ``until`` (ISO date; absent: for good).

    :raises InputError: an acceptance without code or reason, or with a date that is none.
    """
    reasons: Dict[str, Optional[str]] = {}
    for code, reason in (_reason(entry, today) for entry in acceptances):
        reasons[code] = reasons.get(code) or reason  # an expired entry does not end a valid one
    return [Finding(**{**finding.as_dict(), "accepted": reasons.get(finding.code)}) for finding in findings]


def _reason(entry: Mapping[str, Any], today: datetime.date) -> tuple[str, Optional[str]]:
    doing = "reading drafter_accept_findings"
    if not isinstance(entry, Mapping) or set(entry) - {"code", "reason", "until"}:
        raise InputError(doing, f"an entry is {entry!r}", "a dict with code, reason and, at most, until")
    code, reason = str(entry.get("code") or ""), str(entry.get("reason") or "").strip()
    if not code.startswith("DG") or not reason:
        raise InputError(
            doing, f"the entry has code {code!r} and reason {reason!r}", "both, as in DG204 and why"
        )
    until = entry.get("until")
    if until in (None, ""):
        return code, reason
    try:
        last_day = datetime.date.fromisoformat(str(until))
    except ValueError:
        raise InputError(doing, f"{code} has until {until!r}", "a date as in 2027-01-31") from None
    return code, reason if today <= last_day else None


def blocking(findings: Iterable[Finding]) -> List[Finding]:
    """The errors that nobody accepted: they stop a deploy."""
    return [finding for finding in findings if finding.severity == ERROR and not finding.accepted]
