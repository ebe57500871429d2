"""The rules of the contract. A rule takes the facts and yields findings; a new one is a function and an
entry in :data:`RULES`.

Numbers: layer ids are 0-based and mean the OUTPUT of that decoder layer; positions of drafted tokens are
1-based; vocabularies are rows of the target's embedding.
"""

from __future__ import annotations

import json
from functools import partial
from typing import Callable, Iterator, List, Mapping, Optional, Tuple

from . import drafter_weights
from .config_fields import Fields, is_integer
from .contract_facts import LAYER_IDS, MASK, QWEN3_DEFAULTS, TOP_LEVEL_MASK, Facts
from .engine_support import MIXED, NO_WINDOW, UNIFORM, judge_engine
from .findings import ERROR, INFO, WARNING, Finding

_error = partial(Finding, severity=ERROR)
_warning = partial(Finding, severity=WARNING)
_info = partial(Finding, severity=INFO)

NOT_IN_THE_WEIGHTS = (MASK, LAYER_IDS, "block_size", "rope_theta")
TOP_LEVEL_MASK_SINCE = (0, 32, 0)
FROM_THE_REVISION = "to the value in the config.json of the drafter's revision"


# --- the drafter's config.json ------------------------------------------------------------------------


def config_is_there(facts: Facts) -> Iterator[Finding]:
    """Bare weights: say which fields the weights prove and which only the drafter's revision knows."""
    if facts.has_config or any(finding.code == "DG202" for finding in facts.unreadable):
        return
    proven = {key: facts.inferred[key] for key in QWEN3_DEFAULTS if key in facts.inferred}
    given = {"architectures": ["DFlashDraftModel"], "model_type": "qwen3", **proven}
    unknown = ", ".join(NOT_IN_THE_WEIGHTS)
    yield _error(
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
        yield _warning(
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
        yield _error(
            code="DG209",
            field="drafter.architectures",
            observed=names,
            expected=["DFlashDraftModel"],
            message=f"The drafter's architectures are {names}, not DFlash: method and drafter do not match.",
            fix="Set architectures to [DFlashDraftModel] if the weights are; else use another drafter.",
            source="sglang#21272",
        )


# --- the mask token -----------------------------------------------------------------------------------


def mask_is_there(facts: Facts) -> Iterator[Finding]:
    path, mask = facts.mask
    if facts.has_config and mask is None and not facts.drafter.is_wrong(path):
        yield _error(
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
        yield _error(
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
        yield _error(
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
        finding = _error if roles else _warning
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
        yield _info(
            code="DG302",
            field="target.tokenizer",
            observed=None,
            expected="tokenizer.json",
            message="The target has no tokenizer.json: what the mask means is judged by its role alone.",
        )


# --- captured target layers ---------------------------------------------------------------------------


def spaced_layer_ids(layers: int, count: int) -> Optional[List[int]]:
    """The usual choice, ``round(1 + i·(L−4)/(n−1))``: a hint, never proof. None below two ids."""
    if count < 2 or layers < 5:
        return None
    return [round(1 + index * (layers - 4) / (count - 1)) for index in range(count)]


def _usual_ids(facts: Facts) -> Optional[List[int]]:
    count = facts.inferred.get("captured_layers")
    return spaced_layer_ids(facts.layers, count) if facts.layers and count else None


def layer_ids_are_there(facts: Facts) -> Iterator[Finding]:
    path, ids = facts.layer_ids
    if not facts.has_config or ids or facts.drafter.is_wrong(path):
        return
    usual = _usual_ids(facts)
    hint = f" 18 of 20 published pairs follow a spacing that gives {usual} here." if usual else ""
    yield _error(
        code="DG211",
        field=f"drafter.{path}",
        observed=ids,
        expected="0-based ids of target layers",
        message=f"The drafter's config has no {path}: the engine takes layers of its own choice.{hint}",
        fix=f"Set {path} {FROM_THE_REVISION}.",
        source="sglang#37475",
    )


def layer_ids_are_layers(facts: Facts) -> Iterator[Finding]:
    path, ids = facts.layer_ids
    outside = [number for number in ids or [] if facts.layers and not 0 <= number < facts.layers]
    if facts.layers and outside:
        yield _error(
            code="DG212",
            field=f"drafter.{path}",
            observed=ids,
            expected={"first": 0, "last": facts.layers - 1},
            message=f"{path} has {outside}, the target layers 0 to {facts.layers - 1}: a request fails.",
            fix="Use 0-based ids; EAGLE and GGUF count from 1, so subtract 1 from theirs.",
            source="vLLM 0.32.0",
        )


def layer_ids_avoid_the_last_on_sglang(facts: Facts) -> Iterator[Finding]:
    path, ids = facts.layer_ids
    if facts.engine.name == "sglang" and facts.layers and facts.layers - 1 in (ids or []):
        yield _error(
            code="DG216",
            field=f"drafter.{path}",
            observed=ids,
            expected={"last": facts.layers - 2},
            message=f"{path} has {facts.layers - 1}, the last layer: SGLang stops with an IndexError.",
            fix="Compare with the drafter's own config.json, or serve with vLLM.",
            source="SGLang 0.5.11 to 0.5.23",
        )


def layer_ids_are_unique(facts: Facts) -> Iterator[Finding]:
    path, ids = facts.layer_ids
    repeated = sorted({number for number in ids or [] if (ids or []).count(number) > 1})
    if repeated:
        yield _error(
            code="DG213",
            field=f"drafter.{path}",
            observed=ids,
            expected="each id once",
            message=f"{path} has {repeated} more than once.",
            fix="Compare with the drafter's own config.json.",
            source="vLLM 0.32.0",
        )


def layer_ids_fit_fc(facts: Facts) -> Iterator[Finding]:
    path, ids = facts.layer_ids
    fc = facts.weights.tensors.get("fc.weight") if facts.weights else None
    hidden = facts.target_hidden
    if not ids or fc is None or len(fc.shape) != 2 or not hidden or fc.shape[1] == len(ids) * hidden:
        return
    captured = fc.shape[1] / hidden
    yield _error(
        code="DG214",
        field=f"drafter.{path}",
        observed={"ids": len(ids), "fc.weight": list(fc.shape)},
        expected={"ids": captured},
        message=f"{path} has {len(ids)} ids, fc.weight takes {captured:g} layers of a target {hidden} wide.",
        fix="Use the drafter's own ids, and the target it was trained for.",
        source="DFlash reference: fc = Linear(ids · target hidden, hidden)",
    )


def layer_ids_are_usual(facts: Facts) -> Iterator[Finding]:
    path, ids = facts.layer_ids
    usual = _usual_ids(facts)
    if ids and usual and len(ids) == len(usual) and sorted(ids) != usual:
        yield _warning(
            code="DG215",
            field=f"drafter.{path}",
            observed=ids,
            expected=usual,
            message=f"{path} is {ids}; 18 of 20 published pairs follow a spacing that gives {usual} here.",
            fix="Compare with the drafter's own config.json; nothing to do if it says the same.",
            source="DFlash reference: build_target_layer_ids",
        )


def target_depth(facts: Facts) -> Iterator[Finding]:
    trained = facts.drafter.integer("num_target_layers")
    if trained is not None and facts.layers is not None and trained != facts.layers:
        yield _error(
            code="DG217",
            field="drafter.num_target_layers",
            observed=trained,
            expected=facts.layers,
            message=f"The drafter was trained for a target of {trained} layers; this one has {facts.layers}.",
            fix="Use the target that the drafter's model card names.",
            source="DFlash config contract",
        )


# --- weights against config ---------------------------------------------------------------------------


def weights_are_complete(facts: Facts) -> Iterator[Finding]:
    """DFlash2 and speculators files have other tensors; this table does not describe them."""
    if facts.weights is None or facts.inferred.get("family") in ("dflash2", "speculators"):
        return
    tensors = facts.weights.tensors
    lost = drafter_weights.missing(tensors)
    odd = drafter_weights.unexpected_shapes(tensors, facts.inferred)
    if not lost and not odd:
        return
    parts = [f"{len(lost)} are missing, {lost[0]} first"] if lost else []
    parts += [f"{name} is {list(found)} instead of {list(wanted)}" for name, (found, wanted) in odd.items()][
        :1
    ]
    is_packed = any("packed" in name or "qweight" in name for name in tensors)
    hint = (
        " They are packed (quantised): engines leave at random what they cannot unpack." if is_packed else ""
    )
    yield _error(
        code="DG223",
        field="drafter.weights",
        observed={"missing": lost, "shapes": {name: list(found) for name, (found, _) in odd.items()}},
        expected={"shapes": {name: list(wanted) for name, (_, wanted) in odd.items()}},
        message=f"The drafter's tensors are not those of a DFlash drafter: {'; '.join(parts)}.{hint}",
        fix="Fetch the weights again, or use the unquantised drafter.",
        source="sglang#39087",
    )


def config_describes_weights(facts: Facts) -> Iterator[Finding]:
    if not facts.has_config or facts.is_speculators:
        return
    for key in QWEN3_DEFAULTS:
        proven = facts.inferred.get(key)
        if proven is not None:
            says = _disagreement(facts, key, proven)
            if says:
                yield _error(
                    code="DG221",
                    field=f"drafter.{key}",
                    observed=facts.drafter.integer(key),
                    expected=proven,
                    message=f"The drafter's config {says}; its weights have {proven}.",
                    fix=f"Set {key} to {proven} by drafter_overrides.",
                    source="drafter weights; transformers Qwen3Config",
                )


def vocabularies_agree(facts: Facts) -> Iterator[Finding]:
    if not facts.has_config or facts.is_speculators or facts.rows is None:
        return
    says = _disagreement(facts, "vocab_size", facts.rows)
    if says:
        yield _error(
            code="DG226",
            field="drafter.vocab_size",
            observed=facts.drafter.integer("vocab_size"),
            expected=facts.rows,
            message=f"The drafter's config {says}; the target has {facts.rows}, so lm_head is not shared.",
            fix=f"Set vocab_size to {facts.rows} if the drafter belongs to this target.",
            source="vllm#46435",
        )


def _disagreement(facts: Facts, key: str, right: int) -> str:
    """What the config says about ``key`` where the engine would not take ``right``; empty where it would.

    An absent field is no mistake by itself: the engine's silent default may be the right value.
    """
    said = facts.drafter.integer(key)
    taken = facts.default(key) if said is None else said
    if taken in (None, right) or facts.drafter.is_wrong(key):
        return ""
    return f"says {key} {said}" if said is not None else f"does not say {key}, so the engine takes {taken}"


def widths_agree(facts: Facts) -> Iterator[Finding]:
    width, hidden = facts.inferred.get("hidden_size"), facts.target_hidden
    if width and hidden and width != hidden:
        yield _error(
            code="DG222",
            field="drafter.hidden_size",
            observed=width,
            expected=hidden,
            message=f"The drafter is {width} wide, the target {hidden}: they cannot share an embedding.",
            fix="Use the target that the drafter's model card names.",
            source="DFlash reference",
        )


# --- block, rope, length ------------------------------------------------------------------------------


def block_is_known(facts: Facts) -> Iterator[Finding]:
    paths = ("block_size", "dflash_config.block_size")
    if facts.has_config and facts.block_size is None and not any(map(facts.drafter.is_wrong, paths)):
        yield _warning(
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
        yield _warning(
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
        yield _warning(
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
        yield _warning(
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
        yield _warning(
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
        yield _warning(
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


# --- engine -------------------------------------------------------------------------------------------


def windows_of(drafter: Fields) -> str:
    """Whether none, all or some of the drafter's layers have a window."""
    kinds = set(drafter.strings("layer_types") or [])
    if "sliding_attention" not in kinds:
        return NO_WINDOW
    return UNIFORM if len(kinds) == 1 else MIXED


def engine_reads_it_right(facts: Facts) -> Iterator[Finding]:
    yield from judge_engine(facts.engine, windows_of(facts.drafter))


RULES: Tuple[Callable[[Facts], Iterator[Finding]], ...] = (
    config_is_there,
    config_is_its_own,
    architecture,
    mask_is_there,
    mask_is_where_it_is_read,
    mask_is_a_row,
    mask_means_mask,
    tokenizer_is_known,
    layer_ids_are_there,
    layer_ids_are_layers,
    layer_ids_avoid_the_last_on_sglang,
    layer_ids_are_unique,
    layer_ids_fit_fc,
    layer_ids_are_usual,
    target_depth,
    weights_are_complete,
    config_describes_weights,
    widths_agree,
    vocabularies_agree,
    block_is_known,
    block_holds_the_draft,
    rope_theta_is_there,
    rope_thetas_agree,
    rope_theta_is_the_targets,
    drafter_reaches,
    engine_reads_it_right,
)
