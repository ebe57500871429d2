"""The contract between drafter, target, tokenizer and engine, judged from files and arithmetic.

:func:`judge` gathers what the files tell into :class:`Facts` and asks every rule in :data:`RULES`. A rule
takes the facts and yields findings; a value that is not known is not judged, so one broken file never
hides what the others tell. A new rule is one function and one entry in the list.

Numbers: layer ids are 0-based and mean the OUTPUT of that decoder layer; positions of drafted tokens are
1-based; vocabularies are rows of the target's embedding.
"""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass, field
from typing import Any, Callable, Dict, Iterator, List, Mapping, Optional, Tuple

from . import drafter_weights
from .config_fields import Fields, is_integer, text_config
from .effective_config import CONFIG_NAME, merge
from .engine_support import MIXED, NO_WINDOW, UNIFORM, Engine, judge_engine
from .errors import InputError
from .files import read_json
from .findings import ERROR, INFO, WARNING, Finding
from .safetensors import Weights, read_weights
from .tokenizer import Tokenizer, read_tokenizer

# What transformers' Qwen3Config, which DFlash drafters use, takes for an absent field.
QWEN3_DEFAULTS = {
    "num_hidden_layers": 32,
    "hidden_size": 4096,
    "head_dim": 128,
    "num_attention_heads": 32,
    "num_key_value_heads": 32,
    "intermediate_size": 22016,
    "vocab_size": 151936,
}
NOT_IN_THE_WEIGHTS = ("dflash_config.mask_token_id", "dflash_config.target_layer_ids", "block_size", "rope_theta")
TOP_LEVEL_MASK_SINCE = (0, 32, 0)
_ORDER = {ERROR: 0, WARNING: 1, INFO: 2}


@dataclass(frozen=True)
class Verdict:
    """Everything :func:`judge` found: findings (errors first), what the weights prove, the merged config."""

    findings: List[Finding]
    inferred: Dict[str, Any]
    effective_config: Dict[str, Any]

    def as_dict(self) -> Dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True)
class Facts:
    """What the files tell, before anything is judged. None: not known, because absent or unreadable."""

    drafter: Optional[Fields]
    target: Fields
    weights: Optional[Weights]
    tokenizer: Optional[Tokenizer]
    engine: Engine
    num_speculative_tokens: int
    server: Mapping[str, Any]
    inferred: Dict[str, Any]
    unreadable: List[Finding] = field(default_factory=list)

    @property
    def is_speculators(self) -> bool:
        """The speculators format keeps its fields at the top, and counts layers from 1."""
        return self.drafter is not None and self.drafter.raw("speculators_model_type") is not None

    @property
    def rows(self) -> Optional[int]:
        return self.target.integer("vocab_size")

    @property
    def layers(self) -> Optional[int]:
        return self.target.integer("num_hidden_layers")


def judge(
    drafter_dir: str,
    target_dir: str,
    *,
    engine: Mapping[str, Any],
    num_speculative_tokens: int,
    overrides: Optional[Mapping[str, Any]] = None,
    gpu: Optional[Mapping[str, Any]] = None,
    server: Optional[Mapping[str, Any]] = None,
) -> Verdict:
    """Judge two local model directories; all findings at once, nothing is written.

    :param engine: ``{"name": "vllm", "version": "0.32.0"}``.
    :param overrides: merged over the drafter's config first: the result is what counts.
    :param gpu: ``{"count": 0}`` on a CPU.
    :param server: engine arguments; ``max_model_len`` counts here.
    :raises InputError: the wish itself cannot be understood, or the target has no readable config.json.
    """
    if not is_integer(num_speculative_tokens) or num_speculative_tokens < 1:
        observed = f"it is {num_speculative_tokens!r}"
        step = "Leave drafter_path empty to serve without speculation."
        raise InputError("reading num_speculative_tokens", observed, "an integer of at least 1", step)
    unreadable: List[Finding] = []
    config = merge(_drafter_config(drafter_dir, unreadable) or {}, overrides or {})
    target_config = read_json(os.path.join(target_dir, CONFIG_NAME), "reading the target's config.json")
    prefix, text = text_config(target_config)
    target = Fields(f"target.{prefix}".rstrip("."), text)
    weights = _attempt(lambda: read_weights(drafter_dir), "drafter.weights", unreadable)
    hidden = target.integer("hidden_size")
    inferred = drafter_weights.infer(weights, hidden) if weights else {}
    tokenizer = _attempt(lambda: read_tokenizer(target_dir, target_config), "target.tokenizer", unreadable)
    is_judged = bool(config) and not any(item.code == "DG202" for item in unreadable)
    facts = Facts(
        drafter=Fields("drafter", config) if is_judged else None,
        target=target,
        weights=weights,
        tokenizer=tokenizer,
        engine=Engine.of(engine, gpu),
        num_speculative_tokens=num_speculative_tokens,
        server=server or {},
        inferred=inferred,
        unreadable=unreadable,
    )
    return Verdict(_findings(facts), inferred, config)


def _findings(facts: Facts) -> List[Finding]:
    found = [finding for rule in RULES for finding in rule(facts)]
    wrong = [*(facts.drafter.wrong if facts.drafter else []), *facts.target.wrong]
    return sorted([*facts.unreadable, *wrong, *found], key=lambda finding: _ORDER[finding.severity])


def _drafter_config(directory: str, unreadable: List[Finding]) -> Optional[Dict[str, Any]]:
    path = os.path.join(directory, CONFIG_NAME)
    if not os.path.lexists(path):
        return None
    return _attempt(lambda: read_json(path, "reading the drafter's config.json"), "drafter.config", unreadable, "DG202")


def _attempt(read: Callable[[], Any], name: str, unreadable: List[Finding], code: str = "DG231") -> Any:
    """What ``read`` returns; where it cannot, a finding, and None: the other files are judged all the same."""
    try:
        return read()
    except InputError as exc:
        message = f"{exc.doing[0].upper()}{exc.doing[1:]}: {exc.observed}."
        fix = exc.next_step or "Fetch this file again."
        unreadable.append(
            Finding(exc.code or code, ERROR, name, exc.observed, exc.expected or "a whole file", message, fix)
        )
        return None


# --- rules: the drafter's config.json -----------------------------------------------------------------


def config_is_there(facts: Facts) -> Iterator[Finding]:
    """Bare weights: say which fields the weights prove and which only the drafter's revision knows."""
    if facts.drafter is None and not any(item.code == "DG202" for item in facts.unreadable):
        proven = {key: facts.inferred[key] for key in QWEN3_DEFAULTS if key in facts.inferred}
        yield Finding(
            code="DG201",
            severity=ERROR,
            field="drafter.config",
            observed=None,
            expected={"proven by the weights": proven, "only the drafter's revision knows": list(NOT_IN_THE_WEIGHTS)},
            message=(
                "The drafter has no config.json, and its weights do not tell "
                f"{', '.join(NOT_IN_THE_WEIGHTS)} (nor windows and rope scaling)."
            ),
            fix=(
                "Take config.json from the drafter's own revision, or give drafter_overrides with those and "
                f"{json.dumps({'architectures': ['DFlashDraftModel'], 'model_type': 'qwen3', **proven})}."
            ),
            source="DFlash config contract",
        )


def architecture(facts: Facts) -> Iterator[Finding]:
    if facts.drafter is None or facts.is_speculators:
        return
    names = facts.drafter.strings("architectures")
    if not any("DFlash" in name for name in names or []) and not facts.drafter.is_wrong("architectures"):
        yield Finding(
            code="DG209",
            severity=ERROR,
            field="drafter.architectures",
            observed=names,
            expected=["DFlashDraftModel"],
            message=f"The drafter's architectures are {names!r}, none of them DFlash: method and drafter do not match.",
            fix="Set architectures to [DFlashDraftModel] if the weights are DFlash; use another drafter if not.",
            source="sglang#21272",
        )


# --- rules: the mask token ----------------------------------------------------------------------------


def _mask(facts: Facts) -> Tuple[str, Optional[int]]:
    """The field that the engine reads, and its value."""
    path = "mask_token_id" if facts.is_speculators else "dflash_config.mask_token_id"
    drafter = facts.drafter
    if drafter is None:
        return path, None
    value = drafter.integer(path)
    if value is None and not drafter.is_wrong(path) and drafter.raw("mask_token_id") is not None:
        path = "mask_token_id"
        value = drafter.integer(path)
    return path, value


def mask_is_read(facts: Facts) -> Iterator[Finding]:
    if facts.drafter is None:
        return
    path, mask = _mask(facts)
    if mask is None and not facts.drafter.is_wrong(path):
        yield Finding(
            code="DG203",
            severity=ERROR,
            field=f"drafter.{path}",
            observed=None,
            expected="a row of the target's embedding",
            message=f"The drafter's config has no {path}: the engine does not know what to fill drafted slots with.",
            fix=f"Set {path} to the value of the drafter's revision; it cannot be derived from the tokenizer.",
            source="sglang#37475",
        )
    old = facts.engine.name == "vllm" and facts.engine.version < TOP_LEVEL_MASK_SINCE
    if mask is not None and path == "mask_token_id" and not facts.is_speculators and old:
        yield Finding(
            code="DG208",
            severity=ERROR,
            field="drafter.dflash_config.mask_token_id",
            observed={"mask_token_id": mask},
            expected={"dflash_config": {"mask_token_id": mask}},
            message=f"mask_token_id {mask} is at the top level, where vLLM {facts.engine.text} does not read it.",
            fix=f"Set dflash_config.mask_token_id to {mask} by drafter_overrides.",
            source="vLLM 0.32.0 release",
        )


def mask_is_a_row(facts: Facts) -> Iterator[Finding]:
    path, mask = _mask(facts)
    rows = facts.rows
    if mask is not None and rows is not None and not 0 <= mask < rows:
        yield Finding(
            code="DG205",
            severity=ERROR,
            field=f"drafter.{path}",
            observed=mask,
            expected={"first": 0, "last": rows - 1},
            message=f"The mask is {mask}, and the target's embedding has rows 0 to {rows - 1}.",
            fix=f"Set {path} to the value of the drafter's revision; this one may belong to another tokenizer.",
            source="vLLM VocabParallelEmbedding",
        )


def mask_means_mask(facts: Facts) -> Iterator[Finding]:
    path, mask = _mask(facts)
    if mask is None or facts.tokenizer is None:
        return
    roles = facts.tokenizer.roles(mask)
    name = facts.tokenizer.describe(mask)
    if roles or facts.tokenizer.is_ordinary(mask):
        yield Finding(
            code="DG206" if roles else "DG207",
            severity=ERROR,
            field=f"drafter.{path}",
            observed={"id": mask, "token": facts.tokenizer.piece(mask), "roles": roles},
            expected="an added token without a role, or an unused row",
            message=(
                f"The mask is {name} (id {mask}): this row means something else to the target, and "
                "nothing that is drafted from it will be accepted."
            ),
            fix=f"Set {path} to the value of the drafter's revision.",
            source="NeMo Automodel#2461" if roles else "published DFlash drafters",
        )


def tokenizer_is_known(facts: Facts) -> Iterator[Finding]:
    if facts.tokenizer is not None and not facts.tokenizer.vocab:
        yield Finding(
            code="DG302",
            severity=INFO,
            field="target.tokenizer",
            observed=None,
            expected="tokenizer.json",
            message="The target has no tokenizer.json: whether the mask is an ordinary piece of text is not judged.",
        )


# --- rules: captured target layers --------------------------------------------------------------------


def _layer_ids(facts: Facts) -> Tuple[str, Optional[List[int]]]:
    """The field, and 0-based ids (the speculators format counts from 1)."""
    if facts.drafter is None:
        return "", None
    if facts.is_speculators:
        path = "aux_hidden_state_layer_ids"
        ids = facts.drafter.integers(path)
        return path, None if ids is None else [number - 1 for number in ids]
    path = "dflash_config.target_layer_ids"
    return path, facts.drafter.integers(path)


def spaced_layer_ids(layers: int, count: int) -> Optional[List[int]]:
    """The usual choice, ``round(1 + i·(L−4)/(n−1))``: a hint, never proof. None below two ids."""
    if count < 2 or layers < 5:
        return None
    return [round(1 + index * (layers - 4) / (count - 1)) for index in range(count)]


def _usual_ids(facts: Facts) -> Optional[List[int]]:
    count = facts.inferred.get("captured_layers")
    return spaced_layer_ids(facts.layers, count) if facts.layers and count else None


def layer_ids_are_there(facts: Facts) -> Iterator[Finding]:
    path, ids = _layer_ids(facts)
    if facts.drafter is None or ids or facts.drafter.is_wrong(path):
        return
    usual = _usual_ids(facts)
    hint = f" 18 of 20 published pairs follow a spacing that gives {usual} here." if usual else ""
    yield Finding(
        code="DG211",
        severity=ERROR,
        field=f"drafter.{path}",
        observed=ids,
        expected="0-based ids of target layers",
        message=f"The drafter's config has no {path}: the engine would take layers of its own choice.{hint}",
        fix=f"Set {path} to the value of the drafter's revision.",
        source="sglang#37475",
    )


def layer_ids_are_layers(facts: Facts) -> Iterator[Finding]:
    path, ids = _layer_ids(facts)
    layers = facts.layers
    if not ids or not layers:
        return
    outside = [number for number in ids if not 0 <= number < layers]
    if outside:
        yield Finding(
            code="DG212",
            severity=ERROR,
            field=f"drafter.{path}",
            observed=ids,
            expected={"first": 0, "last": layers - 1},
            message=f"{path} has {outside}, and the target has layers 0 to {layers - 1}: the first request would fail.",
            fix="Use 0-based ids; EAGLE and GGUF count from 1, so subtract 1 from theirs.",
            source="vLLM 0.32.0",
        )
    if facts.engine.name == "sglang" and layers - 1 in ids:
        yield Finding(
            code="DG216",
            severity=ERROR,
            field=f"drafter.{path}",
            observed=ids,
            expected={"last": layers - 2},
            message=f"{path} has {layers - 1}, the target's last layer: SGLang stops with an IndexError at the start.",
            fix="Compare with the drafter's own config.json, or serve with vLLM.",
            source="SGLang 0.5.11 to 0.5.23",
        )


def layer_ids_fit_fc(facts: Facts) -> Iterator[Finding]:
    path, ids = _layer_ids(facts)
    if not ids:
        return
    repeated = sorted({number for number in ids if ids.count(number) > 1})
    if repeated:
        yield Finding(
            code="DG213",
            severity=ERROR,
            field=f"drafter.{path}",
            observed=ids,
            expected="each id once",
            message=f"{path} has {repeated} more than once.",
            fix="Compare with the drafter's own config.json.",
            source="vLLM 0.32.0",
        )
    fc = facts.weights.tensors.get("fc.weight") if facts.weights else None
    hidden = facts.target.integer("hidden_size")
    if fc is not None and len(fc.shape) == 2 and hidden and fc.shape[1] != len(ids) * hidden:
        yield Finding(
            code="DG214",
            severity=ERROR,
            field=f"drafter.{path}",
            observed={"ids": len(ids), "fc.weight": list(fc.shape)},
            expected={"ids": fc.shape[1] / hidden},
            message=(
                f"{len(ids)} ids of a target {hidden} wide need {len(ids) * hidden} columns, and fc.weight has "
                f"{fc.shape[1]}, which is {fc.shape[1] / hidden:g} layers."
            ),
            fix="Use the drafter's own ids, and the target it was trained for.",
            source="DFlash reference: fc = Linear(ids · target hidden, hidden)",
        )


def layer_ids_are_usual(facts: Facts) -> Iterator[Finding]:
    path, ids = _layer_ids(facts)
    usual = _usual_ids(facts)
    if ids and usual and len(ids) == len(usual) and sorted(ids) != usual:
        yield Finding(
            code="DG215",
            severity=WARNING,
            field=f"drafter.{path}",
            observed=ids,
            expected=usual,
            message=f"{path} is {ids}; 18 of 20 published pairs follow a spacing that gives {usual} here.",
            fix="Compare with the drafter's own config.json; nothing to do if it says the same.",
            source="DFlash reference: build_target_layer_ids",
        )


def target_depth(facts: Facts) -> Iterator[Finding]:
    trained = facts.drafter.integer("num_target_layers") if facts.drafter else None
    if trained is not None and facts.layers is not None and trained != facts.layers:
        yield Finding(
            code="DG217",
            severity=ERROR,
            field="drafter.num_target_layers",
            observed=trained,
            expected=facts.layers,
            message=f"The drafter was trained for a target of {trained} layers; this one has {facts.layers}.",
            fix="Use the target that the drafter's model card names.",
            source="DFlash config contract",
        )


# --- rules: weights against config --------------------------------------------------------------------


def weights_are_complete(facts: Facts) -> Iterator[Finding]:
    if facts.weights is None or facts.inferred.get("family") in ("speculators", "dflash2"):
        return
    tensors = facts.weights.tensors
    lost = drafter_weights.missing(tensors)
    odd = drafter_weights.unexpected_shapes(tensors, facts.inferred)
    if not lost and not odd:
        return
    packed = any("packed" in name or "qweight" in name for name in tensors)
    hint = " The weights are packed (quantised), and engines leave what they cannot unpack random." if packed else ""
    parts = [f"{len(lost)} are missing, {lost[0]} first"] if lost else []
    parts += [f"{name} is {found} instead of {wanted}" for name, (found, wanted) in list(odd.items())[:1]]
    yield Finding(
        code="DG223",
        severity=ERROR,
        field="drafter.weights",
        observed={"missing": lost, "shapes": {name: found for name, (found, _) in odd.items()}},
        expected={"shapes": {name: wanted for name, (_, wanted) in odd.items()}},
        message=f"The drafter's tensors are not those of a DFlash drafter: {'; '.join(parts)}.{hint}",
        fix="Fetch the weights again, or use the unquantised drafter.",
        source="sglang#39087",
    )


def config_describes_weights(facts: Facts) -> Iterator[Finding]:
    if facts.drafter is None or facts.is_speculators:
        return
    is_qwen3 = facts.drafter.raw("model_type") in (None, "qwen3")
    for key in QWEN3_DEFAULTS:
        proven, said = facts.inferred.get(key), facts.drafter.integer(key)
        default = QWEN3_DEFAULTS[key] if is_qwen3 else None
        taken = default if said is None else said
        if proven is None or taken is None or proven == taken or facts.drafter.is_wrong(key):
            continue
        says = f"does not say {key}, so the engine takes {taken}" if said is None else f"says {key} is {said}"
        yield Finding(
            code="DG221",
            severity=ERROR,
            field=f"drafter.{key}",
            observed=said,
            expected=proven,
            message=f"The drafter's config {says}; its weights have {proven}.",
            fix=f"Set {key} to {proven} by drafter_overrides.",
            source="transformers Qwen3Config" if said is None else "drafter weights",
        )


def widths_agree(facts: Facts) -> Iterator[Finding]:
    width, hidden = facts.inferred.get("hidden_size"), facts.target.integer("hidden_size")
    if width and hidden and width != hidden:
        yield Finding(
            code="DG222",
            severity=ERROR,
            field="drafter.hidden_size",
            observed=width,
            expected=hidden,
            message=f"The drafter is {width} wide and the target {hidden}: they cannot share embedding and lm_head.",
            fix="Use the target that the drafter's model card names.",
            source="DFlash reference",
        )


def vocabularies_agree(facts: Facts) -> Iterator[Finding]:
    if facts.drafter is None or facts.is_speculators or facts.drafter.is_wrong("vocab_size"):
        return
    said = facts.drafter.integer("vocab_size")
    is_qwen3 = facts.drafter.raw("model_type") in (None, "qwen3")
    taken = QWEN3_DEFAULTS["vocab_size"] if said is None and is_qwen3 else said
    if taken is None or facts.rows is None or taken == facts.rows or facts.drafter.is_wrong("vocab_size"):
        return
    says = f"does not say vocab_size, so the engine takes {taken}" if said is None else f"says vocab_size is {said}"
    yield Finding(
        code="DG226",
        severity=ERROR,
        field="drafter.vocab_size",
        observed=said,
        expected=facts.rows,
        message=f"The drafter's config {says}; the target has {facts.rows} rows, and its lm_head is not shared then.",
        fix=f"Set vocab_size to {facts.rows} if the drafter belongs to this target.",
        source="vllm#46435",
    )


# --- rules: block, rope, length -----------------------------------------------------------------------


def block_holds_draft(facts: Facts) -> Iterator[Finding]:
    """Position ``block_size`` is the first one that was never trained: the anchor takes one slot."""
    if facts.drafter is None:
        return
    paths = ("block_size", "dflash_config.block_size")
    block = next((size for size in map(facts.drafter.integer, paths) if size is not None), None)
    asked = facts.num_speculative_tokens
    if block is None:
        if not any(map(facts.drafter.is_wrong, paths)):
            yield Finding(
                code="DG225",
                severity=WARNING,
                field="drafter.block_size",
                observed=None,
                expected="anchor + drafted tokens, 16 for most drafters",
                message=f"The drafter's config has no block_size: whether it can draft {asked} tokens is not judged.",
                fix="Set block_size to the value of the drafter's revision.",
                source="DFlash config contract",
            )
    elif asked > block - 1:
        yield Finding(
            code="DG224",
            severity=WARNING,
            field="num_speculative_tokens",
            observed=asked,
            expected={"at most": block - 1},
            message=(
                f"num_speculative_tokens is {asked}, and a block of {block} drafts {block - 1}: engines accept it "
                f"silently, and acceptance falls off a cliff at position {block}."
            ),
            fix=f"Set num_speculative_tokens to {block - 1} or less.",
            source="DFlash reference: block_size",
        )


def _thetas(fields: Fields) -> List[float]:
    """rope thetas in the order in which they count; a target with windows can have one per kind of layer."""
    parameters = fields.raw("rope_parameters")
    kinds = [key for key, value in parameters.items() if isinstance(value, Mapping)] if isinstance(
        parameters, Mapping
    ) else []
    paths = ["rope_parameters.rope_theta", *(f"rope_parameters.{kind}.rope_theta" for kind in kinds), "rope_theta"]
    return [theta for theta in map(fields.number, paths) if theta is not None]


def rope_theta(facts: Facts) -> Iterator[Finding]:
    if facts.drafter is None or facts.is_speculators:
        return
    thetas, targets = _thetas(facts.drafter), _thetas(facts.target)
    if any(map(facts.drafter.is_wrong, ("rope_theta", "rope_parameters.rope_theta", "rope_parameters"))):
        return
    if not thetas:
        yield Finding(
            code="DG227",
            severity=WARNING,
            field="drafter.rope_theta",
            observed=None,
            expected=targets[0] if targets else "the value of the drafter's revision",
            message="The drafter's config has no rope_theta: vLLM silently takes 1000000, transformers 10000.",
            fix=f"Set rope_theta{f'; the target has {targets[0]:g}' if targets else ''}.",
            source="vLLM and transformers rope defaults",
        )
        return
    if len(set(thetas)) > 1 and facts.drafter.raw("rope_theta") is not None:
        yield Finding(
            code="DG229",
            severity=WARNING,
            field="drafter.rope_theta",
            observed=thetas[-1],
            expected=thetas[0],
            message=(
                f"rope_theta is {thetas[-1]:g} and rope_parameters.rope_theta {thetas[0]:g}: which one counts "
                "depends on the engine's transformers."
            ),
            fix="Set both by drafter_overrides, or remove one with null.",
            source="transformers 5: rope_parameters",
        )
    other = [theta for theta in thetas if theta not in targets]
    if targets and other:
        yield Finding(
            code="DG228",
            severity=WARNING,
            field="drafter.rope_theta",
            observed=other[0],
            expected=targets[0],
            message=f"The drafter's rope theta is {other[0]:g} and the target's {targets[0]:g}.",
            fix="Compare with the drafter's own config.json; a wrong theta costs nearly all acceptance.",
            source="published DFlash drafters",
        )


def drafter_reaches(facts: Facts) -> Iterator[Finding]:
    """vLLM skips drafting for a whole step when its longest request does not fit the drafter."""
    if facts.drafter is None:
        return
    reach = facts.drafter.integer("max_position_embeddings")
    served = facts.server.get("max_model_len", facts.target.integer("max_position_embeddings"))
    scaled = any(facts.drafter.raw(path) for path in ("rope_scaling", "rope_parameters.factor"))
    if reach is None or not is_integer(served) or scaled or reach >= served:
        return
    yield Finding(
        code="DG230",
        severity=WARNING,
        field="drafter.max_position_embeddings",
        observed=reach,
        expected={"at least": served},
        message=(
            f"The drafter reaches {reach} tokens and requests may have {served}: in every step with a longer "
            "one, vLLM drafts nothing for any request."
        ),
        fix=f"Set max_model_len to {reach} or less, unless longer requests are rare.",
        source="vLLM gpu_model_runner: input_fits_in_drafter",
    )


# --- rules: engine ------------------------------------------------------------------------------------


def windows_of(drafter: Fields) -> str:
    """Whether none, all or some of the drafter's layers have a window."""
    kinds = set(drafter.strings("layer_types") or [])
    if "sliding_attention" not in kinds:
        return NO_WINDOW
    return UNIFORM if len(kinds) == 1 else MIXED


def engine_reads_it_right(facts: Facts) -> Iterator[Finding]:
    windows = windows_of(facts.drafter) if facts.drafter else NO_WINDOW
    yield from judge_engine(facts.engine, windows)


RULES: Tuple[Callable[[Facts], Iterator[Finding]], ...] = (
    config_is_there,
    architecture,
    mask_is_read,
    mask_is_a_row,
    mask_means_mask,
    tokenizer_is_known,
    layer_ids_are_there,
    layer_ids_are_layers,
    layer_ids_fit_fc,
    layer_ids_are_usual,
    target_depth,
    weights_are_complete,
    config_describes_weights,
    widths_agree,
    vocabularies_agree,
    block_holds_draft,
    rope_theta,
    drafter_reaches,
    engine_reads_it_right,
)
