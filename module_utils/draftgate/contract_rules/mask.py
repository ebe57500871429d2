"""The mask, which is the row of the target's embedding that fills every slot to be drafted; tokenizers."""

from __future__ import annotations

from typing import Dict, Iterator, Optional

from .. import mask_candidates
from ..contract_facts import MASK, MASK_PLACES, SIZES, Facts
from ..findings import Finding, error, warning
from ..mask_embedding import FILE_NAME, MaskEmbedding
from ..tokenizer import Tokenizer
from ..tokenizer_findings import judge_files
from .record import COMPARE, FROM_THE_REVISION, hint

OTHER_PLACES_SINCE = (0, 32, 0)
NAMES = ("dflash_config.mask_token", "mask_token")


def mask_is_there(facts: Facts) -> Iterator[Finding]:
    path, mask = facts.mask
    told = hint(facts, "mask_token_id")
    if facts.has_config and mask is None and not facts.drafter.is_wrong(path):
        yield error(
            code="DG203",
            field=f"drafter.{path}",
            observed=None,
            expected="a row of the target's embedding",
            message=f"The drafter's config has no {path}: nothing says what fills the slots to be drafted.",
            fix=f"Set {path} {FROM_THE_REVISION}; the tokenizer does not tell it.{told}",
            source="sglang#37475",
        )


def mask_is_where_it_is_read(facts: Facts) -> Iterator[Finding]:
    path, mask = facts.mask
    is_old = facts.engine.name == "vllm" and facts.engine.version < OTHER_PLACES_SINCE
    if mask is not None and path != MASK and is_old and not facts.is_speculators:
        yield error(
            code="DG208",
            field=f"drafter.{MASK}",
            observed={path: mask},
            expected={MASK: mask},
            message=f"The mask is in {path}, where vLLM {facts.engine.text} does not read it.",
            fix=f"Set {MASK} to {mask} by drafter_overrides.",
            source="vLLM 0.32.0",
        )


def mask_means_mask(facts: Facts) -> Iterator[Finding]:
    path, mask = facts.mask
    if mask is None:
        return
    shape = {"target_layers": facts.layers, **{key: facts.inferred.get(key) for key in SIZES}}
    if facts.tokenizer is not None:
        yield from mask_candidates.judge(facts.tokenizer, mask, f"drafter.{path}", shape=shape)
    elif facts.rows is not None and not 0 <= mask < facts.rows:
        yield error(
            code="DG205",
            field=f"drafter.{path}",
            observed=mask,
            expected={"first": 0, "last": facts.rows - 1},
            message=f"The mask is {mask}, and the target's embedding has rows 0 to {facts.rows - 1}.",
            fix=f"Set {path} {FROM_THE_REVISION}; this value may belong to another tokenizer.",
            source="vLLM VocabParallelEmbedding",
        )


def masks_agree(facts: Facts) -> Iterator[Finding]:
    """Every place of the config that states the mask, as an id or by the token's name."""
    path, mask = facts.mask
    stated = _stated(facts)
    other = {place: number for place, number in stated.items() if mask is not None and number != mask}
    if not other:
        return
    places = ", ".join(f"{place} {number}" for place, number in other.items())
    yield error(
        code="DG210",
        field=f"drafter.{next(iter(other))}",
        observed=other,
        expected=mask,
        message=f"{path} is {mask}, and the same config says {places}: engines differ in which counts.",
        fix=f"{COMPARE}, and leave one of them.",
        source="vLLM 0.32.0: get_parallel_drafting_token_id",
    )


def _stated(facts: Facts) -> Dict[str, object]:
    """Ids by place; a name that the target's tokenizer does not know stands for itself."""
    ids = {place: facts.drafter.integer(place) for place in MASK_PLACES}
    stated: Dict[str, object] = {place: number for place, number in ids.items() if number is not None}
    by_name = {name: number for number, name in facts.tokenizer.added.items()} if facts.tokenizer else {}
    for place in NAMES if by_name else ():
        name = facts.drafter.string(place)
        if name is not None:
            stated[place] = by_name.get(name, name)
    return stated


def mask_embedding_fits(facts: Facts) -> Iterator[Finding]:
    row = facts.mask_embedding
    what = _misfit(facts, row) if row is not None else None
    if row is not None and what is not None:
        yield error(
            code="DG218",
            field="drafter.mask_embedding",
            observed={"shape": list(row.shape), "mask_token_id": row.mask_token_id},
            expected={"elements": facts.target_hidden, "mask_token_id": facts.mask[1]},
            message=f"{FILE_NAME} {what}.",
            fix="Fetch this file and config.json again from one revision of the drafter.",
            source="vLLM 0.32.0: _read_mask_embedding",
        )


def _misfit(facts: Facts, row: MaskEmbedding) -> Optional[str]:
    mask, hidden = facts.mask[1], facts.target_hidden
    if hidden and row.elements != hidden:
        return f"has {row.elements} numbers, and the target's embedding is {hidden} wide"
    if mask is not None and row.mask_token_id not in (None, mask):
        return f"is for the mask {row.mask_token_id}, and the config says {mask}: vLLM 0.32 refuses that"
    if row.is_zero:
        return "is all zeros: drafts made from it are not accepted"
    return None


def tokenizer_fits_the_target(facts: Facts) -> Iterator[Finding]:
    if facts.tokenizer is not None:
        yield from judge_files(facts.tokenizer)


def own_tokenizer_is_the_targets(facts: Facts) -> Iterator[Finding]:
    """Engines use the target's; another one beside the drafter says that it belongs to another target."""
    own, targets = facts.own_tokenizer, facts.tokenizer
    if own is None or targets is None:
        return
    what = _difference(own, targets, facts.mask[1])
    if what is not None:
        yield warning(
            code="DG303",
            field="drafter.tokenizer",
            observed={"length": own.length, "added tokens": len(own.added)},
            expected={"length": targets.length, "added tokens": len(targets.added)},
            message=f"The drafter's own tokenizer is not the target's: {what}.",
            fix="Check that the drafter belongs to this target; engines use the target's tokenizer.",
            source="DFlash config contract",
        )


def _difference(own: Tokenizer, targets: Tokenizer, mask: Optional[int]) -> Optional[str]:
    """The first difference, in words. A mask that only the drafter's files add is none."""
    added = {number: name for number, name in own.added.items() if number != mask}
    for number, name in sorted(added.items()):
        if targets.piece(number) != name:
            return f"{number} is {name} there and {targets.describe(number)} in the target's"
    if own.vocab and targets.vocab and own.vocab != targets.vocab:
        return f"its vocabulary has {len(own.vocab)} pieces, the target's {len(targets.vocab)}, or others"
    for role, ids in own.special.items():
        known = targets.special.get(role, ())
        if ids and known and not set(ids) & set(known):
            return f"its {role} is {', '.join(map(str, ids))}, the target's {', '.join(map(str, known))}"
    return None
