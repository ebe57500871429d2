"""The report of one release as a page that needs nothing but itself: for the one who is called at night.

Pure: evidence in, HTML out. The verdict with its reasons comes first, then the pictures, then what may be
wrong and what to do, and last what else was recorded. The table on the terminal says the same.
"""

from __future__ import annotations

from typing import Any, Dict, Iterator, List, Mapping, NamedTuple, Optional, Sequence

from . import __version__
from .decision import FAIL, INCONCLUSIVE, PASS
from .page_causes import badge, changes, explained, findings, suspects
from .page_markup import Child, Element, document, el, linked
from .page_measured import by_position, figures, workloads
from .page_record import measuring, record, repeating
from .page_style import STYLE

_POLICY = "default-src 'none'; style-src 'unsafe-inline'; img-src data:"
"""The browser itself refuses whatever would leave the page."""


class _Look(NamedTuple):
    """A verdict: the path of its sign, the colour of its icon in a tab, and what it means in one sentence."""

    sign: str
    colour: str
    meaning: str


_LOOKS: Dict[str, _Look] = {
    PASS: _Look("M7 12.5l3.5 3.5L17 8.5", "1b7a4a", "Good enough by every threshold that is set."),
    FAIL: _Look("M8 8l8 8M16 8l-8 8", "b3261e", ""),
    INCONCLUSIVE: _Look(
        "M8.8 9.6a3.2 3.2 0 1 1 4.6 2.9c-1 .5-1.4 1-1.4 2.1M12 18v.01",
        "8a5800",
        "Nothing was shown to be wrong, and nothing was proven.",
    ),
}


def page(
    evidence: Mapping[str, Any],
    *,
    previous: Optional[Mapping[str, Any]] = None,
    differs: Optional[Sequence[Mapping[str, Any]]] = None,
    stages: Optional[Mapping[str, float]] = None,
    command: str = "",
    serving: str = "",
) -> str:
    """The whole page.

    :param evidence: what was measured (:func:`record.build`); a field that an older one lacks is left out.
    :param previous: evidence to compare with; absent: the reference that the evidence names.
    :param differs: ``{field, before, after}``: what this run changed.
    :param stages: seconds per stage of this run.
    :param command: what to type to do it again.
    :param serving: what serves after this run, as a sentence.
    """
    before = previous or evidence.get("reference")
    body = [
        _header(evidence, serving),
        el(
            "main",
            el("div", figures(evidence, before), by_position(evidence, before), class_="pair"),
            workloads(evidence),
            suspects(evidence.get("suspects") or []),
            findings(evidence.get("findings") or []),
            changes(differs or []),
            measuring(evidence, stages),
            record(evidence),
            repeating(command),
        ),
        el(
            "footer",
            f"Draftgate {__version__}. Made from the evidence beside it; it loads nothing.",
            class_="soft",
        ),
    ]
    return document(_head(evidence), body, str(evidence.get("verdict")))


def _look(evidence: Mapping[str, Any]) -> _Look:
    return _LOOKS.get(str(evidence.get("verdict")), _LOOKS[INCONCLUSIVE])


def _head(evidence: Mapping[str, Any]) -> List[Child]:
    verdict = str(evidence.get("verdict")).upper()
    icon = "%3Csvg xmlns='http://www.w3.org/2000/svg' viewBox='0 0 2 2'%3E%3Ccircle cx='1' cy='1' r='1' "
    icon += f"fill='%23{_look(evidence).colour}'/%3E%3C/svg%3E"
    return [
        el("meta", http_equiv="Content-Security-Policy", content=_POLICY),
        el("meta", name="viewport", content="width=device-width, initial-scale=1"),
        el("meta", name="referrer", content="no-referrer"),
        el("title", f"{verdict}: release {evidence.get('release')} on {evidence.get('host')}"),
        el("link", rel="icon", href=f"data:image/svg+xml,{icon}"),
        el("style", STYLE),
    ]


def _header(evidence: Mapping[str, Any], serving: str) -> Element:
    look = _look(evidence)
    sign = el(
        "svg",
        el("circle", cx="12", cy="12", r="12"),
        el("path", d=look.sign),
        viewBox="0 0 24 24",
        aria_hidden="true",
    )
    model = f" of {evidence['model']}" if evidence.get("model") else ""
    where = f"release {evidence.get('release')}{model} on {evidence.get('host')}"
    title = el("h1", str(evidence.get("verdict")).upper(), el("span", where))
    return el(
        "header",
        el("div", sign, title, class_="verdict"),
        el(
            "div",
            el("div", *_said(evidence, look, serving), class_="said"),
            _first(evidence),
            class_="story",
        ),
        _facts(evidence),
    )


def _said(evidence: Mapping[str, Any], look: _Look, serving: str) -> Iterator[Element]:
    if serving:
        yield el("p", "After this run: ", el("b", serving))
    if _alone(evidence):
        yield el("p", "The target answers alone: nothing is drafted, so there is no acceptance to judge.")
    elif look.meaning:
        yield el("p", look.meaning)
    for reason in evidence.get("reasons") or []:
        yield _reason(reason)
    for note in evidence.get("notes") or []:
        yield _reason(note, "Note: ")


def _alone(evidence: Mapping[str, Any]) -> bool:
    return evidence.get("verdict") == PASS and not evidence.get("num_speculative_tokens")


def _reason(reason: Mapping[str, Any], kind: str = "") -> Element:
    code = str(reason.get("code"))
    told = el("p", badge(code), " ", kind, el("b", linked(str(reason.get("message")))))
    return el("div", told, explained(code))


def _first(evidence: Mapping[str, Any]) -> Optional[Element]:
    """What to do, for who reads no further."""
    for suspect in evidence.get("suspects") or []:
        cause = el("p", el("a", str(suspect["cause"]), href="#suspects"))
        step = el("p", linked(str(suspect["next"])), class_="next")
        return el("div", el("h2", "Look here first"), cause, step, class_="first")
    return None


def _facts(evidence: Mapping[str, Any]) -> Element:
    engine, drafter = evidence.get("engine") or {}, evidence.get("drafter")
    told: List[Sequence[Child]] = [
        ("measured", str(evidence.get("time")).replace("T", " ").replace("Z", " UTC")),
        ("engine", f"{engine.get('name')} {engine.get('version')}"),
    ]
    if drafter:
        layers = ", ".join(map(str, drafter.get("target_layer_ids") or ["absent"]))
        told += [
            ("drafted per step (k)", evidence.get("num_speculative_tokens")),
            ("mask token", str(drafter.get("mask_token_id"))),
            ("target layers", layers),
        ]
    else:
        told.append(("speculation", "none"))
    gpus = (evidence.get("identity") or {}).get("gpus")
    told += [("GPUs", ", ".join(map(str, gpus)))] if gpus else []
    return el("dl", *(el("div", el("dt", name), el("dd", value)) for name, value in told), class_="facts")
