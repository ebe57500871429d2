"""Names, shapes and dtypes of the tensors against the config and the target."""

from __future__ import annotations

from typing import Any, Iterator, List, Mapping, Optional

from .. import drafter_weights
from ..config_fields import written
from ..contract_facts import SIZES, Facts
from ..drafter_weights import DFLASH_FAMILIES, SPECULATORS
from ..findings import Finding, error, warning
from .record import COMPARE, FROM_THE_REVISION, assumed

DTYPES = {"bfloat16": "BF16", "float16": "F16", "half": "F16", "float32": "F32"}
FIVE = 5  # names in a message; all of them are in the finding's fields


def weights_are_dflash(facts: Facts) -> Iterator[Finding]:
    kind = facts.inferred.get("family", SPECULATORS)
    if kind not in DFLASH_FAMILIES:
        what = "of no kind that is known here" if kind == drafter_weights.UNKNOWN else f"those of {kind}"
        yield error(
            code="DG241",
            field="drafter.weights",
            observed=kind,
            expected=list(DFLASH_FAMILIES),
            message=f"The drafter's tensors are {what}, not a DFlash drafter's.",
            fix="Use a DFlash drafter; this one needs another speculative method.",
            source="sglang#21272",
        )


def weights_are_complete(facts: Facts) -> Iterator[Finding]:
    lost = facts.differences.missing if facts.tensors else []
    if lost:
        yield error(
            code="DG223",
            field=_field(lost),
            observed={"missing": lost},
            expected="every tensor of each layer",
            message=f"{_listed(lost)} missing: vLLM does not notice, and leaves them at random.",
            fix="Fetch the weights again.",
            source="vLLM 0.32.0: DFlashQwen3ForCausalLM.load_weights",
        )


def shapes_fit(facts: Facts) -> Iterator[Finding]:
    odd = dict(facts.differences.shapes)
    fc, hidden = facts.tensors.get("fc.weight"), facts.target_hidden
    if fc is not None and hidden and ("fc.weight" in odd or fc.shape[-1] % hidden):
        width = facts.inferred.get("hidden_size", hidden)
        odd["fc.weight"] = (fc.shape, (width, hidden * len(facts.layer_ids[1] or ())))
    if odd:
        name, (found, wanted) = next(iter(odd.items()))
        more = f", and {len(odd) - 1} more tensors" if len(odd) > 1 else ""
        yield error(
            code="DG223",
            field=_field(list(odd)),
            observed={"shapes": {name: list(found) for name, (found, _) in odd.items()}},
            expected={"shapes": {name: list(wanted) for name, (_, wanted) in odd.items()}},
            message=f"{name} is {list(found)} instead of {list(wanted)}{more}.",
            fix="Fetch the weights again, and check that the drafter belongs to this target.",
            source="DFlash reference: its layers",
        )


def nothing_else_is_there(facts: Facts) -> Iterator[Finding]:
    extra = facts.differences.unexpected
    if extra:
        yield error(
            code="DG242",
            field=_field(extra),
            observed=extra,
            expected="the tensors of a DFlash drafter",
            message=f"{_listed(extra)} not part of a DFlash drafter: vLLM stops at what it has no place for.",
            fix="Fetch the weights again; if they are the same, this engine does not know this drafter.",
            source="vLLM 0.32.0: AutoWeightsLoader",
        )


def dtypes_agree(facts: Facts) -> Iterator[Finding]:
    """Among the tensors, with the config, and with the target, in whose dtype vLLM runs the drafter."""
    usual, odd = drafter_weights.odd_dtypes(facts.weights.tensors if facts.weights else {})
    if odd:
        yield _other_dtype(_field(odd), odd, usual, f"{_listed(odd)} not {usual}, as the other tensors are")
    for key in ("dtype", "torch_dtype"):
        path = facts.at(key)
        said = facts.drafter.string(path)
        name = None if said is None else DTYPES.get(said.replace("torch.", ""))
        if said is not None and name is None:
            what = f"{path} is {said!r}, which is no dtype"
            yield _other_dtype(path, said, sorted(DTYPES), what, is_error=True)
        elif said is not None and usual and name != usual:
            yield _other_dtype(path, said, usual, f"{path} is {said} and the tensors are {usual}")
    target = _target_dtype(facts)
    if "F16" in (usual, target) and target and usual not in ("", target):
        what = f"The drafter is {usual} and the target {target}: one of them loses range or digits"
        yield _other_dtype("weights", usual, target, what)


def _other_dtype(path: str, observed: Any, expected: Any, what: str, is_error: bool = False) -> Finding:
    finding = error if is_error else warning
    return finding(
        code="DG234",
        field=path if path.startswith("drafter.") else f"drafter.{path}",
        observed=observed,
        expected=expected,
        message=f"{what}.",
        fix=f"{COMPARE} and weights; published drafters are bfloat16 throughout.",
        source="vLLM 0.32.0: the drafter runs in the target's dtype",
    )


def _target_dtype(facts: Facts) -> Optional[str]:
    """What it is served in; a multimodal target says it beside or inside its ``text_config``."""
    configs = (facts.server, facts.target.config, facts.target_config)
    keys = ("dtype", "torch_dtype")
    said = [str(config.get(key)) for config in configs for key in keys]
    return next((DTYPES[name] for name in said if name in DTYPES), None)


def quantisation_is_said(facts: Facts) -> Iterator[Finding]:
    if facts.weights is None or not facts.has_config:
        return
    packed = drafter_weights.quantised(facts.weights.tensors)
    is_said = bool(facts.drafter.raw("quantization_config"))
    if bool(packed) == is_said:
        return
    yield error(
        code="DG239",
        field="drafter.quantization_config",
        observed=facts.drafter.raw("quantization_config"),
        expected="quantization_config" if packed else None,
        message=(
            f"{_listed(packed)} quantised, and no quantization_config says how: engines skip them or fail."
            if packed
            else "quantization_config says that the drafter is quantised, and no tensor of it is."
        ),
        fix="Use the unquantised drafter, or the config.json that belongs to these weights.",
        source="sglang#39087",
    )


def config_describes_weights(facts: Facts) -> Iterator[Finding]:
    """Each size that the weights prove; an absent one is what the engine takes by default."""
    if not facts.has_config or not facts.tensors:
        return
    for key in (*SIZES, "attention_bias"):
        proven = facts.inferred.get(key)
        if proven is not None:
            yield from _against(facts, key, proven, "its weights have", "DG221")


def vocabularies_agree(facts: Facts) -> Iterator[Finding]:
    if facts.has_config and facts.rows is not None:
        yield from _against(facts, "vocab_size", facts.rows, "the target has", "DG226")


def _against(facts: Facts, key: str, right: Any, prover: str, code: str) -> Iterator[Finding]:
    """An absent field is no mistake by itself: the engine's silent default may be the right value."""
    path = facts.at(key)
    said = facts.drafter.boolean(path) if isinstance(right, bool) else facts.drafter.integer(path)
    taken = facts.default(key) if said is None else said
    if taken is None or facts.drafter.is_wrong(path):
        return
    if taken == right:
        if facts.is_absent(path) and not isinstance(right, bool):
            yield from assumed(facts, key, right, prover)
        return
    says = f"absent, so the engine takes {written(taken)}" if said is None else written(said)
    loss = ", so lm_head is not shared" if code == "DG226" else ""
    belongs = ", if the drafter belongs to this target" if loss and said is not None else ""
    yield error(
        code=code,
        field=f"drafter.{path}",
        observed=said,
        expected=right,
        message=f"{path} is {says}; {prover} {written(right)}{loss}.",
        fix=f"Set {path} to {written(right)} by drafter_overrides{belongs}.",
        source="vllm#46435" if code == "DG226" else "drafter weights; transformers Qwen3Config",
    )


def own_vocabulary_fits(facts: Facts) -> Iterator[Finding]:
    """A smaller vocabulary of the drafter's own needs ``d2t``, which leads from its ids to the target's."""
    tensors = facts.tensors
    axes = drafter_weights.measure(tensors)
    said, rows = facts.drafter.integer("draft_vocab_size"), axes.get("draft_rows")
    if said is None and rows is None:
        return
    lost = [name for name in ("d2t", "lm_head.weight") if name not in tensors]
    if said is not None and rows is not None and said != rows:
        what, expected = f"draft_vocab_size is {said}, and lm_head and d2t have {rows} rows", rows
    elif (said or rows) != facts.rows and lost and tensors and facts.rows:
        expected = facts.rows
        what = f"The drafter has {said or rows} tokens, the target {expected}, and there is no {lost[0]}"
    else:
        return
    yield error(
        code="DG226",
        field="drafter.draft_vocab_size",
        observed=said,
        expected=expected,
        message=f"{what}: drafts are other tokens than meant, and nothing is accepted.",
        fix=f"Set draft_vocab_size {FROM_THE_REVISION}, and fetch the weights again.",
        source="vllm#46435",
    )


def widths_agree(facts: Facts) -> Iterator[Finding]:
    said = facts.drafter.integer("target_hidden_size")
    width, hidden = facts.inferred.get("hidden_size"), facts.target_hidden
    path, width = ("target_hidden_size", said) if said is not None else (facts.at("hidden_size"), width)
    if width and hidden and width != hidden:
        yield error(
            code="DG222",
            field=f"drafter.{path}",
            observed=width,
            expected=hidden,
            message=f"The drafter is {width} wide, the target {hidden}: they cannot share an embedding.",
            fix="Use the target that the drafter's model card names.",
            source="DFlash reference",
        )


def heads_can_be_divided(facts: Facts) -> Iterator[Finding]:
    heads, keys = (_taken(facts, key) for key in ("num_attention_heads", "num_key_value_heads"))
    if not heads or not keys or min(heads, keys) < 1:
        return
    if heads % keys:
        what = f"{heads} attention heads cannot share {keys} key-value heads evenly"
        yield _undivided(facts.at("num_key_value_heads"), keys, {"divides": heads}, what)
    gpus = facts.server.get("tensor_parallel_size")
    if not isinstance(gpus, int) or gpus < 2:
        return
    if heads % gpus or (keys % gpus if keys >= gpus else gpus % keys):
        what = f"{heads} heads and {keys} key-value heads cannot be divided among {gpus} GPUs"
        yield _undivided("num_attention_heads", heads, {"tensor_parallel_size": gpus}, what)


def _taken(facts: Facts, key: str) -> Optional[int]:
    said = facts.drafter.integer(facts.at(key))
    taken = facts.inferred.get(key) if said is None else said
    return taken if isinstance(taken, int) else None


def _undivided(path: str, observed: int, expected: Mapping[str, int], what: str) -> Finding:
    return error(
        code="DG243",
        field=f"drafter.{path}",
        observed=observed,
        expected=dict(expected),
        message=f"{what}.",
        fix="Set another tensor_parallel_size, or correct the config.",
        source="vLLM 0.32.0: DFlashQwen3Attention",
    )


def _field(names: List[str]) -> str:
    return f"drafter.weights.{names[0]}" if len(names) == 1 else "drafter.weights"


def _listed(names: List[str]) -> str:
    """``a, b and 3 more are``."""
    more = f" and {len(names) - FIVE} more" if len(names) > FIVE else ""
    return f"{', '.join(names[:FIVE])}{more} {'is' if len(names) == 1 else 'are'}"
