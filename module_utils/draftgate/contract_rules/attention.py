"""Block, rope and length. Positions of drafted tokens are 1-based."""

from __future__ import annotations

from typing import Iterator, List, Mapping

from ..config_fields import Fields, is_integer
from ..contract_facts import Facts
from ..findings import Finding
from .common import FROM_THE_REVISION, warning


def block_is_known(facts: Facts) -> Iterator[Finding]:
    paths = ("block_size", "dflash_config.block_size")
    if facts.has_config and facts.block_size is None and not any(map(facts.drafter.is_wrong, paths)):
        yield warning(
            code="DG225",
            field="drafter.block_size",
            observed=None,
            expected="anchor and drafted tokens, 16 for most drafters",
            message="The drafter's config has no block_size: how many tokens it can draft is not judged.",
            fix=f"Set block_size {FROM_THE_REVISION}.",
            source="DFlash config contract",
        )


def block_holds_the_draft(facts: Facts) -> Iterator[Finding]:
    """Position ``block_size`` is the first that was never trained: the anchor takes one slot."""
    block, asked = facts.block_size, facts.num_speculative_tokens
    if block is not None and asked > block - 1:
        yield warning(
            code="DG224",
            field="num_speculative_tokens",
            observed=asked,
            expected={"at most": block - 1},
            message=(
                f"num_speculative_tokens is {asked}, and a block of {block} drafts {block - 1}: "
                f"engines accept that silently, and acceptance ends at position {block}."
            ),
            fix=f"Set num_speculative_tokens to {block - 1} or less.",
            source="DFlash reference: block_size",
        )


def _thetas(fields: Fields) -> List[float]:
    """All rope thetas of a config, in both spellings; models with windows can have one per kind of layer."""
    parameters = fields.raw("rope_parameters")
    nested = parameters if isinstance(parameters, Mapping) else {}
    kinds = [kind for kind, value in nested.items() if isinstance(value, Mapping)]
    paths = ["rope_parameters.rope_theta", *(f"rope_parameters.{kind}.rope_theta" for kind in kinds)]
    found = map(fields.number, ["rope_theta", *paths])
    return [theta for theta in found if theta is not None]


def rope_theta_is_there(facts: Facts) -> Iterator[Finding]:
    own, targets = _thetas(facts.drafter), _thetas(facts.target)
    is_wrong = any(map(facts.drafter.is_wrong, ("rope_theta", "rope_parameters.rope_theta")))
    if facts.has_config and not facts.is_speculators and not own and not is_wrong:
        yield warning(
            code="DG227",
            field="drafter.rope_theta",
            observed=None,
            expected=targets[0] if targets else "the value of the drafter's revision",
            message="The drafter's config has no rope_theta: vLLM takes 1000000, transformers 10000.",
            fix=f"Set rope_theta{f' to {targets[0]:g}, as the target has' if targets else ''}.",
            source="vLLM and transformers rope defaults",
        )


def rope_thetas_agree(facts: Facts) -> Iterator[Finding]:
    """transformers 4 reads ``rope_theta``, transformers 5 ``rope_parameters``: both must say the same."""
    top, nested = facts.drafter.number("rope_theta"), facts.drafter.number("rope_parameters.rope_theta")
    if top is not None and nested is not None and top != nested:
        yield warning(
            code="DG229",
            field="drafter.rope_theta",
            observed=top,
            expected=nested,
            message=f"rope_theta is {top:g}, in rope_parameters {nested:g}: engines differ in which counts.",
            fix="Set both by drafter_overrides, or remove one with null.",
            source="transformers 5: rope_parameters",
        )


def rope_theta_is_the_targets(facts: Facts) -> Iterator[Finding]:
    targets = _thetas(facts.target)
    other = [theta for theta in _thetas(facts.drafter) if targets and theta not in targets]
    if other:
        yield warning(
            code="DG228",
            field="drafter.rope_theta",
            observed=other[0],
            expected=targets[0],
            message=f"The drafter's rope theta is {other[0]:g} and the target's {targets[0]:g}.",
            fix="Compare with the drafter's own config.json; a wrong theta costs nearly all acceptance.",
            source="published DFlash drafters",
        )


def drafter_reaches(facts: Facts) -> Iterator[Finding]:
    """vLLM drafts nothing in a step whose longest request does not fit. Scaled ropes are not judged."""
    reach = facts.drafter.integer("max_position_embeddings")
    served = facts.server.get("max_model_len", facts.target.integer("max_position_embeddings"))
    is_scaled = facts.drafter.raw("rope_scaling") or facts.drafter.raw("rope_parameters.factor")
    if reach is not None and is_integer(served) and reach < served and not is_scaled:
        yield warning(
            code="DG230",
            field="drafter.max_position_embeddings",
            observed=reach,
            expected={"at least": served},
            message=(
                f"The drafter reaches {reach} tokens and requests may have {served}: in a step with a longer "
                "one, vLLM drafts nothing for any request."
            ),
            fix=f"Set max_model_len to {reach} or less, unless longer requests are rare.",
            source="vLLM gpu_model_runner: input_fits_in_drafter",
        )
