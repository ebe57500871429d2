"""Pictures of a report page: the per-position curve, and a bar with the wished value marked on it.

A drawing is as wide as its place: horizontal positions are percentages, so that text keeps its size on a
phone and on a screen.
"""

from __future__ import annotations

from typing import Any, Iterator, List, Mapping, NamedTuple, Optional, Sequence

from .decision import percent
from .page_markup import Child, Element, el

_TOP, _BOTTOM = 12.0, 212.0  # px: 100 % and 0 %
_HEIGHT = 218
_BAR = 0.64  # of a position's width
_LEAST = 1.5  # px: a position that is never accepted has a bar too
_WIDEST = 5.5  # rem: one position of a short curve


class Line(NamedTuple):
    """A threshold in the picture: a share, what it says, and whether it is about position 1 alone."""

    share: float
    text: str
    first: bool = False


def curve(
    now: Sequence[float], before: Optional[Mapping[str, Any]], lines: Sequence[Line], name: str
) -> Element:
    """The share of drafts of which each position was accepted, as bars, above the same figures as a table.

    :param now: per-position rates, position 1 first.
    :param before: ``{release, time, per_position}`` to compare with: a dashed line.
    :param name: of this curve, for the legend.
    """
    earlier = list((before or {}).get("per_position") or [])
    told = _told(before) if earlier else ""
    columns = max(len(now), len(earlier))
    return el(
        "figure",
        _legend(name, told, lines),
        el("div", _plot(now, earlier, lines, columns, told), _table(now, earlier, columns, name, told)),
        class_="curve many" if columns > 10 else "curve",
        style=f"--columns:{columns};--widest:{_WIDEST}rem",
    )


def meter(level: Optional[float], limit: Optional[float]) -> Optional[Element]:
    """A bar from 0 to 1 with a mark at ``limit``. Its figures stand beside it."""
    if level is None:
        return None
    width = f"{100 * min(max(level, 0.0), 1.0):.1f}%"
    drawn: List[Child] = [
        el("rect", class_="track", width="100%", height="6", y="3", rx="3"),
        el("rect", class_="level", width=width, height="6", y="3", rx="3"),
    ]
    if limit is not None:
        at = f"{100 * min(max(limit, 0.0), 1.0):.1f}%"
        drawn += [el("line", class_=name, x1=at, x2=at, y1="0", y2="12") for name in ("halo", "limit")]
    return el("svg", *drawn, class_="meter", aria_hidden="true", focusable="false")


def sparks(rates: Sequence[float]) -> Optional[Element]:
    """The curve as small bars, for a line of a table."""
    if not rates:
        return None
    told = ", ".join(percent(rate, 0) for rate in rates)
    drawn = [
        el(
            "rect",
            class_="level",
            x=f"{100 * (place + 0.1) / len(rates):.2f}%",
            width=f"{80 / len(rates):.2f}%",
            y=f"{22 - max(1.0, 22 * min(rate, 1.0)):.1f}",
            height=f"{max(1.0, 22 * min(rate, 1.0)):.1f}",
        )
        for place, rate in enumerate(rates)
    ]
    return el("svg", el("title", told), *drawn, class_="sparks wide", role="img", height="22")


def _told(before: Optional[Mapping[str, Any]]) -> str:
    known = before or {}
    return f"last green: {known.get('release')}, {str(known.get('time'))[:10]}"


def _plot(
    now: Sequence[float], earlier: Sequence[float], lines: Sequence[Line], columns: int, told: str
) -> Element:
    described = _described("This release", now) + (_described(told, earlier) if earlier else "")
    described += "".join(f" {line.text}." for line in lines)
    return el(
        "svg",
        el("title", "Acceptance by position", id="curve-title"),
        el("desc", described.strip(), id="curve-desc"),
        _scale(),
        [_bar(place, rate, columns) for place, rate in enumerate(now)],
        list(_earlier(earlier, columns)),
        [_threshold(line, columns) for line in lines],
        class_="plot",
        role="img",
        aria_labelledby="curve-title curve-desc",
        width="100%",
        height=_HEIGHT,
    )


def _described(name: str, rates: Sequence[float]) -> str:
    told = ", ".join(f"{place} {percent(rate, 0)}" for place, rate in enumerate(rates, 1))
    return f" {name}: {told}."


def _scale() -> List[Element]:
    drawn = []
    for share in (0.0, 0.5, 1.0):
        height = _y(share)
        drawn.append(el("line", class_="grid", x1="0", x2="100%", y1=height, y2=height))
        drawn.append(el("text", f"{100 * share:.0f}", class_="scale", x="-6", y=height, dy="4"))
    return drawn


def _bar(place: int, rate: float, columns: int) -> Element:
    height = max(_LEAST, (_BOTTOM - _TOP) * min(rate, 1.0))
    return el(
        "rect",
        class_="bar",
        x=f"{100 * (place + (1 - _BAR) / 2) / columns:.2f}%",
        width=f"{100 * _BAR / columns:.2f}%",
        y=f"{_BOTTOM - height:.1f}",
        height=f"{height:.1f}",
        rx="2",
    )


def _earlier(rates: Sequence[float], columns: int) -> Iterator[Element]:
    """A dashed line with a diamond at each position; told from the bars by its form alone."""
    points = [(f"{100 * (place + 0.5) / columns:.2f}%", _y(rate)) for place, rate in enumerate(rates)]
    for name in ("halo", "before"):
        for (x1, y1), (x2, y2) in zip(points, points[1:]):
            yield el("line", class_=name, x1=x1, y1=y1, x2=x2, y2=y2)
    for x, y in points:
        yield el("svg", _diamond(), x=x, y=y, overflow="visible", width="1", height="1")


def _diamond() -> Element:
    return el("path", class_="diamond", d="M0-5L5 0 0 5-5 0Z")


def _threshold(line: Line, columns: int) -> Element:
    y, end = _y(line.share), f"{100 / columns:.2f}%" if line.first else "100%"
    kind = "limit" if line.first else "limit even"
    return el("g", *(el("line", class_=name, x1="0", x2=end, y1=y, y2=y) for name in ("halo", kind)))


def _y(share: float) -> str:
    return f"{_BOTTOM - (_BOTTOM - _TOP) * min(share, 1.0):.1f}"


def _legend(name: str, told: str, lines: Sequence[Line]) -> Element:
    entries = [_entry(name, el("rect", class_="bar", x="6", y="1", width="10", height="12", rx="2"))]
    if told:
        middle = el("svg", _diamond(), x="11", y="7", overflow="visible", width="1", height="1")
        entries.append(_entry(told, _stroke("before"), middle))
    entries += [_entry(line.text, _stroke("limit" if line.first else "limit even")) for line in lines]
    return el("figcaption", el("ul", *entries, class_="legend"))


def _stroke(name: str) -> Element:
    return el("line", class_=name, x1="0", x2="22", y1="7", y2="7")


def _entry(text: str, *drawn: Element) -> Element:
    return el("li", _glyph(*drawn), el("span", text))


def _glyph(*drawn: Element) -> Element:
    return el("svg", *drawn, class_="glyph", aria_hidden="true", focusable="false", width="22", height="14")


def _table(now: Sequence[float], earlier: Sequence[float], columns: int, name: str, told: str) -> Element:
    """The figures below their bars, column by column."""
    positions: List[Child] = [el("th", "pos.", scope="col")]
    positions += [el("th", place, scope="col") for place in range(1, columns + 1)]
    lines = [_figures(now, columns, name, el("rect", class_="bar", x="6", y="1", width="10", height="12"))]
    if earlier:
        middle = el("svg", _diamond(), x="11", y="7", overflow="visible", width="1", height="1")
        lines.append(_figures(earlier, columns, told, middle))
    caption = el("caption", "Accepted share of the drafts by position, in percent", class_="unseen")
    return el("table", caption, el("thead", el("tr", *positions)), el("tbody", *lines))


def _figures(rates: Sequence[float], columns: int, name: str, drawn: Element) -> Element:
    head = el("th", _glyph(drawn), el("span", name, class_="unseen"), scope="row")
    cells = [f"{100 * rate:.0f}" for rate in rates] + [""] * (columns - len(rates))
    return el("tr", head, *(el("td", cell) for cell in cells))
