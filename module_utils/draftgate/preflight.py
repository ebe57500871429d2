"""The contract's verdict for people: one table that ends in what to do, and the same as a document.

Pure: it takes what the module ``drafter_contract`` returned and what was asked of it.
"""

from __future__ import annotations

import json
import re
import textwrap
from typing import Any, Dict, Iterator, List, Mapping, NamedTuple, Optional, Sequence

from . import sources
from .codes import CODES
from .engine_support import DISPLAY, VLLM
from .errors import InputError
from .findings import ERROR, INFO, WARNING

WIDTH = 100
READY, REFUSED = "ready", "refused"
_GROUPS = {
    ERROR: ("error", "errors", "Errors: they stop a deploy until they are corrected, or accepted by code"),
    WARNING: ("warning", "warnings", "Warnings: they cost acceptance if they are wrong, and may be right"),
    INFO: ("for information", "for information", "For information"),
}
_LONGEST_VALUE = 60

Finding = Mapping[str, Any]


class Subject(NamedTuple):
    """What was judged.

    :param host: the inventory's name; empty on the command line.
    :param engine: ``{name, version}``.
    :param gpu: ``{arch, count, memory_gib}``, each where it is known; ``count`` 0 is a CPU.
    """

    host: str
    drafter: str
    target: str
    engine: Mapping[str, Any]
    gpu: Mapping[str, Any]
    num_speculative_tokens: int


def table(subject: Subject, result: Mapping[str, Any], notes: Sequence[str] = (), refused: str = "") -> str:
    """At most 100 columns, but for addresses, which are never broken.

    :param result: ``findings``, ``inferred`` and ``comparison`` as the module returns them.
    :param notes: what else is to be known (:func:`acceptance_notes`).
    :param refused: why a deploy would refuse the wish whatever the files say; empty where it would not.
    """
    findings: Sequence[Finding] = result["findings"]
    blocks = [
        _head(subject, findings, result.get("inferred") or {}, refused),
        *(_group(severity, findings) for severity in _GROUPS),
        _comparison(result.get("comparison")),
        [line for note in [refused, *notes] if note for line in _lines("  note  ", note)],
    ]
    return "\n\n".join("\n".join(block) for block in blocks if block)


def document(subject: Subject, result: Mapping[str, Any], refused: str = "") -> Dict[str, Any]:
    """``preflight.json``: the same for a program.

    :param refused: as :func:`table` takes it.
    """
    told = ("findings", "inferred", "effective_config", "comparison")
    return {
        "verdict": verdict(result["findings"], refused),
        "refused": refused,
        **subject._asdict(),
        **{key: result.get(key) for key in told},
    }


def acceptance_notes(acceptances: Sequence[Any], findings: Sequence[Finding]) -> List[str]:
    """A sentence for each of ``drafter_accept_findings`` that does not count here, and why."""
    found = {finding["code"]: finding["accepted"] for finding in findings}
    notes = []
    for entry in acceptances:
        code = str(entry.get("code")) if isinstance(entry, Mapping) else ""
        if code and code not in CODES:
            notes.append(f"drafter_accept_findings has {code}, which is no finding's code.")
        elif found.get(code, "") is None:  # found, and not accepted: the entry has ended
            notes.append(f"The acceptance of {code} ended on {entry.get('until')}.")
    return notes


def check_gpu(gpu: Mapping[str, Any]) -> None:
    """An architecture in words would leave unjudged what depends on it.

    :raises InputError: ``arch`` is none.
    """
    arch = gpu.get("arch")
    if arch is not None and not re.fullmatch(r"(sm_?)?\d+(\.\d)?a?", str(arch)):
        step = "nvidia-smi --query-gpu=compute_cap --format=csv tells it: 8.6 is sm_86 (an RTX A6000)."
        raise InputError("reading drafter_gpu", f"arch is {arch!r}", "as in sm_86", step)


def verdict(findings: Sequence[Finding], refused: str = "") -> str:
    """``refused`` where there is an error that nobody accepted, or the wish itself is."""
    stops = any(finding["severity"] == ERROR and not finding["accepted"] for finding in findings)
    return REFUSED if stops or refused else READY


def _head(
    subject: Subject, findings: Sequence[Finding], inferred: Mapping[str, Any], refused: str
) -> List[str]:
    counts = ", ".join(_counts(findings)) or "nothing found"
    first = f"{subject.host}  {verdict(findings, refused).upper()}  {counts}".lstrip()
    pair = f"{subject.drafter} for {subject.target}, k {subject.num_speculative_tokens}"
    lines = [first, *_lines("  pair     ", pair)]
    lines += _lines("  engine   ", f"{named(subject.engine)} on {_gpu(subject.gpu)}")
    return lines + (_lines("  weights  ", _weights(inferred)) if inferred else [])


def _counts(findings: Sequence[Finding]) -> Iterator[str]:
    for severity, (one, many, _) in _GROUPS.items():
        group = [finding for finding in findings if finding["severity"] == severity]
        accepted = sum(bool(finding["accepted"]) for finding in group)
        if group:
            note = f" ({accepted} accepted)" if accepted else ""
            yield f"{len(group)} {one if len(group) == 1 else many}{note}"


def named(engine: Mapping[str, Any]) -> str:
    """``vLLM 0.32.0`` of ``{"name": "vllm", "version": "0.32.0"}``."""
    name = str(engine.get("name") or VLLM)
    return f"{DISPLAY.get(name, name)} {engine['version']}"


def _gpu(gpu: Mapping[str, Any]) -> str:
    if gpu.get("count") == 0:
        return "a CPU"
    cards = f"{gpu['count']}x {gpu.get('arch') or 'a GPU'}" if gpu.get("count") else gpu.get("arch")
    if not cards:
        return "GPUs that are not named: what depends on them is not judged"
    return f"{cards}, {gpu['memory_gib']} GiB each" if gpu.get("memory_gib") else str(cards)


def _weights(inferred: Mapping[str, Any]) -> str:
    """What the headers prove, in one line."""
    told = [f"family {inferred['family']}"] if inferred.get("family") else []
    for key, what in (
        ("tensors", "tensors"),
        ("num_hidden_layers", "layers"),
        ("captured_layers", "captured layers"),
    ):
        if key in inferred:
            told.append(f"{inferred[key]} {what}")
    told += [f"{key} {inferred[key]}" for key in ("hidden_size", "head_dim") if key in inferred]
    types = " and ".join(inferred.get("dtype") or [])
    if inferred.get("parameters"):
        told.append(f"{_large(inferred['parameters'])} parameters {types}".rstrip())
    return ", ".join(told)


def _large(number: int) -> str:
    return f"{number / 1e9:.2f} billion" if number >= 1e9 else f"{number / 1e6:.1f} million"


def _group(severity: str, findings: Sequence[Finding]) -> List[str]:
    lines = [f"  {_GROUPS[severity][2]}"]
    for finding in findings:
        if finding["severity"] == severity:
            lines += _finding(finding)
    return lines if len(lines) > 1 else []


def _finding(finding: Finding) -> Iterator[str]:
    gap = " " * 9
    yield f"  {finding['code']}  {finding['field']}"
    if finding["observed"] != finding["expected"]:
        is_text = isinstance(finding["observed"], str) and finding["code"] == "DG204"  # 512 or "512"
        observed = json.dumps(finding["observed"]) if is_text else _value(finding["observed"])
        yield from _lines(gap, f"{observed} → {_value(finding['expected'])}")
    yield from _lines(gap, str(finding["message"]))
    if finding["accepted"]:
        yield from _lines(gap + "accepted: ", str(finding["accepted"]))
    elif finding["fix"]:
        yield from _lines(gap + "→ ", str(finding["fix"]))
    address = sources.url(str(finding["source"]))
    if address:
        yield gap + address


def _value(value: Any) -> str:
    """A value on one line: text as it is, anything else as JSON."""
    if value is None:
        return "absent"
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    return text if len(text) <= _LONGEST_VALUE else text[: _LONGEST_VALUE - 1] + "…"


def _comparison(comparison: Optional[Mapping[str, Any]]) -> List[str]:
    if not comparison:
        return []
    before, after = named(comparison["engine_before"]), named(comparison["engine_after"])
    lines = [f"  From {before} to {after}"]
    for finding in comparison["gone"]:  # the others stand above
        told = str(finding["message"]).partition(". ")[0].rstrip(".")
        lines += _lines("    goes  ", f"{finding['code']} {finding['field']}: {told}.")
    lines += [] if comparison["gone"] else ["    goes  nothing"]
    for verb, key in (("comes", "new"), ("stays", "stay")):
        lines += _lines(f"    {verb:6}", ", ".join(_briefly(comparison[key])) or "nothing")
    return lines


def _briefly(findings: Sequence[Finding]) -> Iterator[str]:
    """Each code once, with its field or how many it has."""
    fields: Dict[str, List[str]] = {}
    for finding in findings:
        fields.setdefault(finding["code"], []).append(finding["field"])
    for code, where in fields.items():
        yield f"{code} {where[0] if len(where) == 1 else f'at {len(where)} fields'}"


def _lines(head: str, text: str) -> List[str]:
    """``text`` broken at :data:`WIDTH`, its later lines below its first."""
    inside = textwrap.wrap(text, WIDTH - len(head), break_on_hyphens=False) or [""]
    return [(head + inside[0]).rstrip(), *(" " * len(head) + line for line in inside[1:])]


def engine_of(text: str) -> Dict[str, str]:
    """``vllm==0.32.0`` as the module takes it.

    :raises InputError: it is written in another way.
    """
    name, equals, version = text.partition("==")
    if not (name and equals and version):
        raise InputError("reading the engine", repr(text), "name and version, as in vllm==0.32.0")
    return {"name": name, "version": version}


def gpu_of(text: str) -> Dict[str, Any]:
    """``sm_86x2`` (two cards), ``sm_86`` (any number) or ``cpu`` as the module takes it; empty: not known.

    :raises InputError: it is written in another way.
    """
    if not text:
        return {}
    if text == "cpu":
        return {"count": 0}
    found = re.fullmatch(r"(sm_\d+a?)(?:x(\d+))?", text)
    if not found:
        raise InputError("reading the GPU", repr(text), "cpu, or its architecture as in sm_86 or sm_86x2")
    return {"arch": found.group(1), **({"count": int(found.group(2))} if found.group(2) else {})}
