"""The mask token: the row of the target's embedding that fills every slot to be drafted."""

from __future__ import annotations

from typing import Iterator

from ..contract_facts import MASK, TOP_LEVEL_MASK, Facts
from ..findings import Finding
from .common import FROM_THE_REVISION, error, info, warning

TOP_LEVEL_MASK_SINCE = (0, 32, 0)


def mask_is_there(facts: Facts) -> Iterator[Finding]:
    path, mask = facts.mask
    if facts.has_config and mask is None and not facts.drafter.is_wrong(path):
        yield error(
            code="DG203",
            field=f"drafter.{path}",
            observed=None,
            expected="a row of the target's embedding",
            message=f"The drafter's config has no {path}: nothing says what fills the slots to be drafted.",
            fix=f"Set {path} {FROM_THE_REVISION}; the tokenizer does not tell it.",
            source="sglang#37475",
        )


def mask_is_where_it_is_read(facts: Facts) -> Iterator[Finding]:
    path, mask = facts.mask
    is_old = facts.engine.name == "vllm" and facts.engine.version < TOP_LEVEL_MASK_SINCE
    if mask is not None and path == TOP_LEVEL_MASK and is_old and not facts.is_speculators:
        yield error(
            code="DG208",
            field=f"drafter.{MASK}",
            observed={TOP_LEVEL_MASK: mask},
            expected={MASK: mask},
            message=f"mask_token_id is at the top level, where vLLM {facts.engine.text} does not read it.",
            fix=f"Set {MASK} to {mask} by drafter_overrides.",
            source="vLLM 0.32.0",
        )


def mask_is_a_row(facts: Facts) -> Iterator[Finding]:
    path, mask = facts.mask
    if mask is not None and facts.rows is not None and not 0 <= mask < facts.rows:
        yield error(
            code="DG205",
            field=f"drafter.{path}",
            observed=mask,
            expected={"first": 0, "last": facts.rows - 1},
            message=f"The mask is {mask}, and the target's embedding has rows 0 to {facts.rows - 1}.",
            fix=f"Set {path} {FROM_THE_REVISION}; this value may belong to another tokenizer.",
            source="vLLM VocabParallelEmbedding",
        )


def mask_means_mask(facts: Facts) -> Iterator[Finding]:
    """Every published mask is an added token without a role, or an unused row.

    A role is a contradiction; an ordinary piece is only unheard of, and the gate measures what it is worth.
    """
    path, mask = facts.mask
    if mask is None or facts.tokenizer is None:
        return
    roles = facts.tokenizer.roles(mask)
    name = facts.tokenizer.describe(mask)
    if roles or facts.tokenizer.is_ordinary(mask):
        finding = error if roles else warning
        yield finding(
            code="DG206" if roles else "DG207",
            field=f"drafter.{path}",
            observed={"id": mask, "token": facts.tokenizer.piece(mask), "roles": roles},
            expected="an added token without a role, or an unused row",
            message=f"The mask is {name} (id {mask}): "
            + ("drafts made from it are not accepted." if roles else "no published drafter has such a mask."),
            fix=f"Set {path} {FROM_THE_REVISION}.",
            source="NeMo Automodel#2461" if roles else "published DFlash drafters",
        )


def tokenizer_is_known(facts: Facts) -> Iterator[Finding]:
    if facts.tokenizer is not None and not facts.tokenizer.vocab:
        yield info(
            code="DG302",
            field="target.tokenizer",
            observed=None,
            expected="tokenizer.json",
            message="The target has no tokenizer.json: what the mask means is judged by its role alone.",
        )
