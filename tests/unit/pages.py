"""Evidences of every kind for the tests of the report page, and a reader that is strict about markup."""

from __future__ import annotations

import json
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

from draftgate.page import page

from tests.unit.test_decision import INCIDENT, measured
from tests.unit.test_evidence import SERVE, build

RECORDINGS = Path(__file__).with_name("recordings")
PASS: dict[str, Any] = json.loads((RECORDINGS / "evidence-0.32.0-pass.json").read_text("utf-8"))
FAIL: dict[str, Any] = json.loads((RECORDINGS / "evidence-0.32.0-fail.json").read_text("utf-8"))

MASK = "serve.drafter.config.dflash_config.mask_token_id"
DIFFERS = [{"field": MASK, "before": 512, "after": 300}]
SERVING = "release cc6dc4824c56 serves at http://127.0.0.1:8000."
COMMAND = "ansible-playbook deploy.yml -i inventory/local --limit localhost -e acceptance_retry=true"

FEW_REASON = {
    "code": "DG811",
    "message": "Not enough samples: 20 drafts of the 200 wished (acceptance_min_drafts)",
    "field": "acceptance.drafts",
    "observed": 20,
    "expected": ">= 200",
}
FEW = {**build("healthy"), "verdict": "inconclusive", "reasons": [FEW_REASON], "findings": []}
ALONE = build("no-speculation", serve={**SERVE, "drafter": None, "num_speculative_tokens": 0}, findings=[])

EVIDENCES: dict[str, dict[str, Any]] = {
    "pass": PASS,
    "fail": FAIL,
    "few": FEW,
    "wrong-mask": build(),
    "unmeasured": build("layer-99"),
    "no-drafts": build("no-drafts"),
    "alone": ALONE,
    "k-1": {**PASS, **measured([0.93])},
    "k-15": {**FAIL, **measured(INCIDENT)},
    "k-15-good": {**PASS, **measured([1.0] * 9 + [0.99, 0.95, 0.9, 0.8, 0.7, 0.6])},
    "k-11-after-k-7": build("k-11", serve={**SERVE, "num_speculative_tokens": 11}, reference=PASS),
}


def shown(name: str, **told: Any) -> str:
    """The page of one of them, with all that a controller adds."""
    given: dict[str, Any] = {
        "differs": DIFFERS,
        "stages": {"start": 45.2, "gate": 13.4},
        "command": COMMAND,
        "serving": SERVING,
    }
    return page(EVIDENCES[name], **{**given, **told})


class Page(HTMLParser):
    """What a browser would make of it: elements with their attributes, and the text of each.

    :raises AssertionError: a tag that is not closed, or closed out of order.
    """

    VOID = frozenset(("br", "link", "meta"))

    def __init__(self, markup: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str]]] = []
        self.texts: list[tuple[str, str]] = []
        self._open: list[str] = []
        self.feed(markup)
        self.close()
        assert self._open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        names = [name for name, _ in attrs]
        assert len(names) == len(set(names)), f"{tag} has an attribute twice: {names}"
        self.elements.append((tag, {name: value or "" for name, value in attrs}))
        if tag not in self.VOID:
            self._open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self._open and self._open[-1] == tag, f"</{tag}> closes {self._open[-3:]}"
        self._open.pop()

    def handle_data(self, data: str) -> None:
        self.texts.append((self._open[-1] if self._open else "", data))

    def attributes(self, name: str) -> list[str]:
        return [given[name] for _, given in self.elements if name in given]

    def named(self, tag: str) -> list[dict[str, str]]:
        return [given for found, given in self.elements if found == tag]

    @property
    def text(self) -> str:
        """What is read, in order, with single spaces."""
        return " ".join(" ".join(text for tag, text in self.texts if tag != "style").split())
