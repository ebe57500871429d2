"""The drafter's config.json itself."""

from __future__ import annotations

import json
from typing import Iterator

from ..contract_facts import LAYER_IDS, MASK, QWEN3_DEFAULTS, Facts
from ..findings import Finding
from .common import error, warning

NOT_IN_THE_WEIGHTS = (MASK, LAYER_IDS, "block_size", "rope_theta")


def config_is_there(facts: Facts) -> Iterator[Finding]:
    """Bare weights: say which fields the weights prove and which only the drafter's revision knows."""
    if facts.has_config or any(finding.code == "DG202" for finding in facts.unreadable):
        return
    proven = {key: facts.inferred[key] for key in QWEN3_DEFAULTS if key in facts.inferred}
    given = {"architectures": ["DFlashDraftModel"], "model_type": "qwen3", **proven}
    unknown = ", ".join(NOT_IN_THE_WEIGHTS)
    yield error(
        code="DG201",
        field="drafter.config",
        observed=None,
        expected={
            "proven by the weights": given,
            "known to the drafter's revision": list(NOT_IN_THE_WEIGHTS),
        },
        message=f"The drafter has no config.json; weights do not tell {unknown}, windows or rope scaling.",
        fix=(
            f"Take config.json from the drafter's revision, or give drafter_overrides with {unknown} "
            f"and {json.dumps(given)}."
        ),
        source="DFlash config contract",
    )


def config_is_its_own(facts: Facts) -> Iterator[Finding]:
    """A config made by hand may be right, and nothing in the files can show it."""
    if facts.has_config and not facts.has_own_config:
        yield warning(
            code="DG201",
            field="drafter.config",
            observed=None,
            expected="config.json",
            message="The drafter has no config.json: nothing proves what drafter_overrides say.",
            fix="Take config.json from the drafter's revision where you can.",
            source="DFlash config contract",
        )


def architecture(facts: Facts) -> Iterator[Finding]:
    names = facts.drafter.strings("architectures") or []
    if not facts.has_config or facts.is_speculators or facts.drafter.is_wrong("architectures"):
        return
    if not any("DFlash" in name for name in names):
        yield error(
            code="DG209",
            field="drafter.architectures",
            observed=names,
            expected=["DFlashDraftModel"],
            message=f"The drafter's architectures are {names}, not DFlash: method and drafter do not match.",
            fix="Set architectures to [DFlashDraftModel] if the weights are; else use another drafter.",
            source="sglang#21272",
        )
