"""A page as a tree of elements: text becomes markup in one place, so that nobody can forget to escape it."""

from __future__ import annotations

import html
import re
from dataclasses import dataclass
from typing import Iterator, List, Sequence, Tuple, Union

from .sources import references

Child = Union[None, str, int, float, "Element", Sequence["Child"]]
"""Text is always text; nothing and lists may stand where a child does."""

Attribute = Union[None, bool, str, int, float]

_VOID = frozenset(("br", "link", "meta"))
_ADDRESSES = ("https://", "#", "data:image/svg+xml,")
# Control characters, those that turn the direction of what follows, and halves of a surrogate pair.
_UNPRINTABLE = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u202a-\u202e\u2066-\u2069\ud800-\udfff]")


@dataclass(frozen=True)
class Element:
    """One element with its attributes and children, in order."""

    tag: str
    attributes: Tuple[Tuple[str, str], ...]
    children: Tuple[Child, ...]

    def __str__(self) -> str:
        return "".join(_rendered(self))


def el(tag: str, *children: Child, **attributes: Attribute) -> Element:
    """``el("a", "text", class_="x", aria_label="y", href="#z")``.

    In names ``_`` is ``-``, and a trailing one is dropped (``class_``). None and False leave an attribute
    out, True gives it without a value.

    :raises ValueError: an address that is neither on the page nor https.
    """
    given = [
        (name.rstrip("_").replace("_", "-"), "" if value is True else str(value))
        for name, value in attributes.items()
        if value is not None and value is not False
    ]
    for name, value in given:
        if name in ("href", "src") and not value.startswith(_ADDRESSES):
            raise ValueError(f"an address of a page: {value!r}")
    return Element(tag, tuple(given), children)


def document(head: Sequence[Child], body: Sequence[Child], class_: str) -> str:
    """A whole page, in English."""
    top = el("head", el("meta", charset="utf-8"), *head)
    return f"<!doctype html>\n{el('html', top, el('body', *body), lang='en', class_=class_)}\n"


def section(title: str, id_: str, *content: Child, note: Child = None) -> Element:
    """A part of a page under its heading.

    :param note: what has to be known to read it.
    """
    said = el("p", note, class_="soft") if note else None
    return el("section", el("h2", title, id=id_), said, *content, aria_labelledby=id_)


def table(heads: Sequence[Child], body: Sequence[Sequence[Child]], name: str, words: int = 0) -> Element:
    """A table that scrolls inside the page where it is too wide.

    :param body: rows; the first cell of each names it.
    :param name: what it shows, for who does not see it.
    :param words: how many of the columns after the first hold words: those break and stand to the left.
    """
    kinds = [None, *["words"] * words, *[None] * len(heads)]
    top = el("tr", *(el("th", head, scope="col", class_=kind) for head, kind in zip(heads, kinds)))
    rows = [
        el(
            "tr",
            el("th", first, scope="row"),
            *(el("td", cell, class_=kind) for cell, kind in zip(rest, kinds[1:])),
        )
        for first, *rest in body
    ]
    caption = el("caption", name, class_="unseen")
    inside = el("table", caption, el("thead", top), el("tbody", *rows))
    return el("div", inside, class_="scroll", tabindex=0, role="region", aria_label=name)


def linked(text: str) -> List[Child]:
    """``text`` with every public issue and release that it names as a link."""
    return [el("a", piece, href=url, rel="noreferrer") if url else piece for piece, url in references(text)]


def _rendered(child: Child) -> Iterator[str]:
    if child is None:
        return
    if isinstance(child, Element):
        yield from _tag(child)
    elif isinstance(child, (str, int, float)):
        yield _escaped(str(child))
    else:
        for inner in child:
            yield from _rendered(inner)


def _tag(element: Element) -> Iterator[str]:
    written = "".join(
        f' {name}="{_escaped(value)}"' if value else f" {name}" for name, value in element.attributes
    )
    yield f"<{element.tag}{written}>"
    if element.tag in _VOID:
        return
    if element.tag == "style":  # knows no entities: it ends at "</", and a stylesheet has none
        css = "".join(str(child) for child in element.children)
        if "</" in css:
            raise ValueError("a stylesheet with a closing tag in it")
        yield css
    else:
        yield from _rendered(element.children)
    yield f"</{element.tag}>"


def _escaped(text: str) -> str:
    return html.escape(_UNPRINTABLE.sub("\ufffd", text))
