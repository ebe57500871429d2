"""What may be wrong, in the order to look at it.

A collapse rarely has one obvious cause, and a second fault is the normal case: so several suspects, those
first that a change since the last green release points at, then what the preflight found, then what the
shape of the per-position curve suggests. Shape alone cannot rank within its row.
"""

from __future__ import annotations

import re
from dataclasses import asdict, dataclass
from typing import Any, Callable, Dict, Iterator, List, Mapping, NamedTuple, Optional, Sequence, Tuple, Union

from .decision import INCONCLUSIVE, PASS, Decision, compared_lengths
from .findings import ERROR, INFO, Finding
from .spec import flatten

FINDING, DIFFERENCE, SHAPE = "finding", "difference", "shape"

_DRAFTER_CONFIG = "serve.drafter.config."
_SHOWN_CHANGES = 6


@dataclass(frozen=True)
class Suspect:
    """One possible cause.

    :param cause: what may be wrong, in a few words.
    :param evidence: what points at it: ``finding``, ``difference``, ``shape`` or ``experiment``.
    :param why: what was seen, and how it leads to this.
    :param next: what to type or look at.
    """

    cause: str
    evidence: str
    why: str
    next: str

    def as_dict(self) -> Dict[str, str]:
        return asdict(self)


class Topic(NamedTuple):
    """A thing that can be wrong.

    :param fields: the last part of dotted spec and finding fields that are about it (a regular expression).
    """

    cause: str
    fields: str
    why: str
    next: str


TOPICS: Dict[str, Topic] = {
    "mask": Topic(
        "mask token: a wrong row of the embedding, or a row of zeros",
        r"mask_token_id|mask_token|mask_embedding(\.pt)?",
        "the drafter is fed this row at every slot to be drafted, and any row in range is accepted silently",
        "Compare dflash_config.mask_token_id with the config.json of the drafter's pinned revision.",
    ),
    "rope": Topic(
        "rope of the drafter: theta, scaling or partial factor",
        r"rope_theta|rope_scaling|rope_parameters(\.\w+)?|rope_type|partial_rotary_factor",
        "positions that are rotated otherwise than in training cost nearly all acceptance",
        "Compare rope_theta and rope_scaling with the drafter's own config.json and with the target's.",
    ),
    "extraction": Topic(
        "hidden states that the engine hands to the drafter (its version or model runner)",
        r"engine\.\w+|runtime\.\w+|VLLM_USE_\w+|VLLM_ATTENTION_\w+|attention_backend|compilation_config|async_scheduling",
        "vLLM before 0.22 read layers one too early, and 0.25.1's V2 runner accepted nothing (vllm#49559)",
        'Go back to the engine version that was green; on 0.25 set VLLM_USE_V2_MODEL_RUNNER: "0".',
    ),
    "layers": Topic(
        "target layer ids: other layers than the drafter was trained on",
        r"target_layer_ids|aux_hidden_state_layer_ids|num_target_layers",
        "ids in range are accepted silently, and each wrong one weakens every position",
        "Compare dflash_config.target_layer_ids with the drafter's pinned revision (0-based).",
    ),
    "window": Topic(
        "windowed layers of the drafter: dropped, or run as full attention",
        r"layer_types|sliding_window|use_sliding_window|max_window_layers",
        "without use_sliding_window and layer_types, or on vLLM before 0.26, windows are dropped",
        "Set layer_types, sliding_window and use_sliding_window as in the drafter's revision.",
    ),
    "head": Topic(
        "lm_head not shared: drafter and target differ in vocabulary",
        r"vocab_size|draft_vocab_size|tie_word_embeddings",
        "the drafter shares the target's lm_head only if the vocabularies agree (vllm#46435)",
        "Compare vocab_size of both config.json files.",
    ),
    "dtype": Topic(
        "precision of the drafter: float16 in place of bfloat16",
        r"dtype|torch_dtype",
        "a drafter trained in bfloat16 can overflow in float16",
        "Leave dtype to the model, or set bfloat16.",
    ),
    "method": Topic(
        "speculative method that does not fit the drafter",
        r"method|architectures|model_type|speculators_model_type|speculative_config(\.model)?|drafter",
        "the wrong method drafts with the wrong inputs, or with none",
        "Compare the drafter's architectures with the speculative config in the engine's log.",
    ),
    "weights": Topic(
        "the drafter's weights: another revision, or tensors that were not loaded (fc stays random)",
        r"drafter\.(source|digest|repo|revision|weights)|fc(\.\w+)*",
        "one repository has had revisions with other masks and layers; packed tensors may be skipped",
        "Check the drafter's revision and digest, and the engine's log for weights it did not load.",
    ),
    "precision": Topic(
        "precision pair: quantised target, or an fp8 KV cache shared with the drafter",
        r"quantization|quantization_config(\.\w+)*|kv_cache_dtype|calculate_kv_scales",
        "half-precision drafters on INT4 targets and shared fp8 caches have accepted nothing (vllm#41789)",
        "Try kv_cache_dtype auto, and the drafter that was trained for this quantisation.",
    ),
    "target": Topic(
        "another target than the drafter was trained for: fine-tuned, or another revision",
        r"target\.\w+",
        "a drafter predicts one target's text; a fine-tune weakens every position, later ones most",
        "Compare the target's revision with the one that the drafter's model card names.",
    ),
    "template": Topic(
        "chat template or thinking mode: other text than the drafter was trained on",
        r"template(\.\w+)*|enable_thinking|chat_template\w*|reasoning_parser|default_chat_template_kwargs(\.\w+)?",
        "thinking mode alone has turned 60 % into 25 % (z-lab/dflash#133)",
        "Gate with the thinking mode that your users have: acceptance_template.",
    ),
    "temperature": Topic(
        "sampling: a temperature above 0",
        r"sampling(\.\w+)*|temperature|generation_config|override_generation_config(\.\w+)?",
        "drafts are greedy guesses; what is sampled agrees with them less often",
        "Gate with temperature 0.",
    ),
    "prefix": Topic(
        "prefix cache: it restores tokens for which the drafter has no keys",
        r"enable_prefix_caching|prefix_caching\w*",
        "on some versions a warm shared prefix brought τ from 2.98 to 1.0 (vllm#47930)",
        "Try enable_prefix_caching: false in vllm_server_args.",
    ),
    "block": Topic(
        "more tokens drafted than the drafter's block was trained for",
        r"drafter\.config\.block_size|drafter\.block_size|dflash_config\.block_size|num_speculative_tokens",
        "positions beyond the trained block are never right, and the engine takes any number",
        "Set num_speculative_tokens to the drafter's block_size - 1 or less.",
    ),
    "length": Topic(
        "the drafter reaches less far than the requests: max_position_embeddings or max_model_len too small",
        r"max_position_embeddings|max_model_len",
        "vLLM does not run the drafter on a longer sequence; 0.32 then counts drafts, all rejected",
        "Compare the drafter's max_position_embeddings with prompt and answer lengths.",
    ),
    "unengaged": Topic(
        "speculation never engaged: the config did not reach the drafting engine",
        r"num_speculative_tokens_per_batch_size|disable_by_batch_size",
        "tokens flowed and not one draft was made (as in vllm PR #25250)",
        "Look in the engine's log for its speculative config, and at num_speculative_tokens_per_batch_size.",
    ),
    "statistics": Topic(
        "the engine keeps no statistics: disable_log_stats",
        r"disable_log_stats",
        "without statistics no counter exists, whatever the engine drafts",
        "Remove disable_log_stats from vllm_server_args.",
    ),
    "load": Topic(
        "concurrency: the drafter's work costs more than the steps it saves",
        r"concurrency|max_num_seqs|max_num_batched_tokens|tensor_parallel_size|draft_tensor_parallel_size",
        "above some concurrency verifying drafts competes with other requests (vllm#42505)",
        "Gate at the concurrency of your traffic, and try a smaller num_speculative_tokens.",
    ),
    "arms": Topic(
        "the two sides of the comparison differ in more than the drafter",
        r"enforce_eager|baseline",
        "other flags or another load than at the baseline decide a speed-up too (vllm#50722)",
        "Measure both sides anew, from the same spec.",
    ),
    "loop": Topic(
        "degenerate text: answers that repeat one unit to the end",
        r"repetition_penalty|frequency_penalty|presence_penalty",
        "repetition is easy to draft, so the acceptance says nothing about useful text",
        "Read an answer: ask the server one of the named prompts.",
    ),
    "architecture": Topic(
        "a field of the drafter's config that its weights were not trained with",
        r"rms_norm_eps|head_dim|hidden_act|\w*bias|is_causal|causal|num_\w+|hidden_size|intermediate_size|logit_\w+",
        "absent or wrong fields take the engine's defaults without an error",
        "Compare the field with the config.json of the drafter's pinned revision.",
    ),
}


class View(NamedTuple):
    """What the shapes look at: ``curve`` has the per-position rates, position 1 first."""

    drafts: int
    tokens: int
    tau: float
    curve: Tuple[float, ...]
    fallen: Optional[float]  # (τ - 1) now / then, over the common positions
    kept: Tuple[float, ...]  # each position's rate now / then
    workloads: Sequence[Mapping[str, Any]]
    passes: Sequence[Mapping[str, Any]]
    repeating: Sequence[str]
    codes: frozenset[str]


class Shape(NamedTuple):
    """A row of the table: what the counters show, when they do, and what to suspect, in order."""

    shows: str
    fits: Callable[[View], bool]
    topics: Tuple[str, ...]


def _cannot_count(view: View) -> bool:
    return "DG821" in view.codes


def _died(view: View) -> bool:
    return bool(view.codes & {"DG706", "DG824", "DG825"})


def _never(view: View) -> bool:
    return view.drafts == 0 and view.tokens > 0


def _nothing(view: View) -> bool:
    return view.drafts > 0 and view.tau <= 1.03


def _garbage(view: View) -> bool:
    """Position 1 is a lucky guess and nothing follows it: what a drafter does without its conditioning."""
    return view.tau > 1.03 and view.curve[0] < 0.30 and (len(view.curve) < 3 or view.curve[2] <= 0.03)


def _decays(view: View) -> bool:
    """Against the reference, later positions lost clearly more than the first."""
    return len(view.kept) > 1 and view.kept[-1] < 0.75 * view.kept[0]


def _weak(view: View) -> bool:
    if view.fallen is not None and 0.3 <= view.fallen < 0.97 and _decays(view):
        return True
    fast = len(view.curve) < 2 or view.curve[1] < 0.75 * view.curve[0]
    return view.tau > 1.03 and 0.30 <= view.curve[0] <= 0.75 and fast


def _slightly(view: View) -> bool:
    return view.fallen is not None and 0.75 < view.fallen < 0.97 and not _decays(view)


def _half(view: View) -> bool:
    return view.fallen is not None and 0.3 <= view.fallen <= 0.75 and not _decays(view)


def _by_context(view: View) -> bool:
    kinds = [
        kind for kind in view.workloads if kind.get("mean_acceptance_length") and kind.get("longest_prompt")
    ]
    if len(kinds) < 2:
        return False
    short, *_, long = sorted(kinds, key=lambda kind: int(kind["longest_prompt"]))
    apart = long["longest_prompt"] >= max(1024, 4 * short["longest_prompt"])
    return bool(apart and long["mean_acceptance_length"] - 1 < 0.5 * (short["mean_acceptance_length"] - 1))


def _warm(view: View) -> bool:
    lengths = [passed.get("mean_acceptance_length") or 1.0 for passed in view.passes]
    return len(lengths) > 1 and lengths[0] > 1.5 and lengths[-1] - 1 < 0.5 * (lengths[0] - 1)


def _cliff(view: View) -> bool:
    steps = zip(view.curve, view.curve[1:])
    return view.tau > 1.3 and any(before >= 0.2 and after < 0.1 * before for before, after in steps)


SHAPES: Tuple[Shape, ...] = (
    Shape("no speculative counters", _cannot_count, ("unengaged", "statistics")),
    # vLLM 0.32 is healthy with a mask of null or beyond the embedding, and with a layer id beyond the
    # target's depth, until the first request kills it.
    Shape("healthy, and then it did not survive a request", _died, ("mask", "layers")),
    Shape("no draft at all while tokens flowed", _never, ("unengaged", "length", "method")),
    Shape(
        "τ 1.0: no position is ever accepted",
        _nothing,
        ("mask", "head", "dtype", "method", "weights", "precision", "extraction", "length"),
    ),
    Shape(
        "position 1 is rarely accepted and nothing from position 3 on: a drafter without its conditioning",
        _garbage,
        ("mask", "rope", "extraction", "window"),
    ),
    Shape(
        "the first positions are drafted well enough, the later ones decay fast",
        _weak,
        ("layers", "window", "precision", "target", "template"),
    ),
    Shape("a good shape, a little lower everywhere", _slightly, ("layers", "temperature", "extraction")),
    Shape("good on short prompts, worse with context", _by_context, ("window", "rope", "prefix")),
    Shape("good at first, bad when the same prompts come again", _warm, ("prefix",)),
    Shape("acceptance breaks off at one position", _cliff, ("block",)),
    Shape(
        "drafts are accepted and yet it is not faster", lambda view: "DG806" in view.codes, ("load", "arms")
    ),
    Shape("the text repeats itself", lambda view: bool(view.repeating), ("loop",)),
    Shape("much less than was recorded, evenly", _half, ("template", "target")),
)


def suspects(
    measurement: Mapping[str, Any],
    findings: Sequence[Union[Finding, Mapping[str, Any]]],
    differences: Sequence[Mapping[str, Any]],
    decision: Decision,
    context: Optional[Mapping[str, Any]] = None,
) -> List[Suspect]:
    """Suspects, the first one to look at first; empty where nothing was shown to be wrong.

    :param findings: of the preflight, accepted ones included.
    :param differences: ``{field, before, after}`` against the last green release, dotted spec fields.
    :param context: what is known beyond: ``drafter_overrides``, ``drafter`` (its effective config),
        ``reference`` (the last green evidence).
    """
    known = context or {}
    view = _view(measurement, decision, known.get("reference"))
    shapes = [shape for shape in SHAPES if shape.fits(view)]
    if decision.verdict == PASS:
        shapes = [shape for shape in shapes if shape.topics == ("loop",)]
        return _distinct(_from_shapes(shapes, measurement, known))
    if decision.verdict == INCONCLUSIVE:
        return []  # nothing was shown to be wrong
    row = [topic for shape in shapes for topic in shape.topics]
    changed, unlikely = _from_differences(differences, row, known, engaged=not _never(view))
    overridden = _from_overrides(row, known)
    return _distinct(
        [
            *changed,
            *([] if known.get("reference") else overridden),
            *_from_findings(findings, row),
            *_from_shapes(shapes, measurement, known),
            *(overridden if known.get("reference") else []),
            *unlikely,
        ]
    )


_Named = Tuple[str, Suspect]  # (topic or field, suspect)


def _view(measurement: Mapping[str, Any], decision: Decision, reference: Optional[Mapping[str, Any]]) -> View:
    acceptance = measurement.get("acceptance") or {}
    curve = tuple(acceptance.get("per_position") or ())
    before = ((reference or {}).get("acceptance") or {}).get("per_position") or ()
    lengths = compared_lengths(measurement, reference)
    return View(
        drafts=acceptance.get("drafts") or 0,
        tokens=(measurement.get("generation_tokens") or 0) if acceptance else 0,
        tau=acceptance.get("mean_acceptance_length") or 1.0,
        curve=curve or (0.0,),
        fallen=(lengths[0] - 1) / (lengths[1] - 1) if lengths and lengths[1] > 1 else None,
        kept=tuple(now / then for now, then in zip(curve, before) if then >= 0.05),
        workloads=measurement.get("workloads") or [],
        passes=measurement.get("passes") or [],
        repeating=measurement.get("repeating") or [],
        codes=frozenset(reason["code"] for reason in decision.reasons),
    )


def topic_of(field: str) -> Optional[str]:
    """The topic that a dotted spec or finding field is about."""
    for name, topic in TOPICS.items():
        if re.search(rf"(^|\.)({topic.fields})$", field):
            return name
    # Whatever else the drafter's config says was right when its weights were trained.
    return "architecture" if field.startswith(_DRAFTER_CONFIG) else None


def _from_differences(
    differences: Sequence[Mapping[str, Any]], row: Sequence[str], known: Mapping[str, Any], engaged: bool
) -> Tuple[List[_Named], List[_Named]]:
    """(likely, unlikely): what fits the shape first, then what touches acceptance at all; then the rest.

    Without any draft nothing about the drafter's quality can be the cause.
    """
    overrides = {_DRAFTER_CONFIG + path for path in flatten(known.get("drafter_overrides") or {})}
    likely: List[Tuple[int, _Named]] = []
    others: List[str] = []
    for change in differences:
        field = str(change["field"])
        topic = topic_of(field)
        if topic is None or (topic not in row and not engaged):
            others.append(f"{field} ({_text(change['before'])} → {_text(change['after'])})")
        else:
            place = row.index(topic) if topic in row else len(row)
            likely.append((place, (topic, _changed(change, topic, field in overrides))))
    return [named for _, named in sorted(likely, key=lambda pair: pair[0])], _rest(others)


def _rest(changes: Sequence[str]) -> List[_Named]:
    """One suspect for all that changed too and does not explain what was seen."""
    if not changes:
        return []
    shown = ", ".join(changes[:_SHOWN_CHANGES]) + (", ..." if len(changes) > _SHOWN_CHANGES else "")
    why = "changed since the last green release, and is not known to have this effect."
    step = "Look here when nothing above is it."
    return [("", Suspect(f"something else that changed: {shown}", DIFFERENCE, why, step))]


def _changed(change: Mapping[str, Any], topic: str, overridden: bool) -> Suspect:
    field, before, after = change["field"], _text(change["before"]), _text(change["after"])
    path = field[len(_DRAFTER_CONFIG) :] if field.startswith(_DRAFTER_CONFIG) else field
    if overridden:
        cause = f"drafter_overrides sets {path} to {after} ({_subject(topic)})"
        step = f"Remove {path} from drafter_overrides, or set it to {before} again, and deploy."
    else:
        cause = f"{path} changed from {before} to {after} ({_subject(topic)})"
        step = f"Set it back to {before} and deploy."
    why = f"{field} was {before} in the last green release and is {after}: {TOPICS[topic].why}."
    return Suspect(cause, DIFFERENCE, why, f"{step} {TOPICS[topic].next}")


def _from_overrides(row: Sequence[str], known: Mapping[str, Any]) -> List[_Named]:
    """What an operator put over the drafter's own config: what the shape points at first."""
    found: List[Tuple[int, _Named]] = []
    for path, value in flatten(known.get("drafter_overrides") or {}).items():
        topic = topic_of(_DRAFTER_CONFIG + path) or ""
        about = TOPICS[topic]
        cause = f"drafter_overrides sets {path} to {_text(value)} ({_subject(topic)})"
        why = f"it replaces what the drafter's own config says, and {about.why}."
        step = f"Remove {path} from drafter_overrides and deploy. {about.next}"
        place = row.index(topic) if topic in row else len(row)
        found.append((place, (topic, Suspect(cause, DIFFERENCE, why, step))))
    return [named for _, named in sorted(found, key=lambda pair: pair[0])]


def _from_findings(
    findings: Sequence[Union[Finding, Mapping[str, Any]]], row: Sequence[str]
) -> Iterator[_Named]:
    """Errors and warnings about config, tokenizer or version; hints only where the shape agrees."""
    told = [finding.as_dict() if isinstance(finding, Finding) else finding for finding in findings]
    ranked: List[Tuple[Tuple[int, int], _Named]] = []
    for finding in told:
        topic = topic_of(str(finding["field"]))
        about_drafting = topic is not None or str(finding["code"])[:3] in ("DG2", "DG3", "DG4")
        is_right = finding["severity"] == INFO and finding["observed"] == finding["expected"]
        if not about_drafting or is_right or (finding["severity"] == INFO and topic not in row):
            continue
        place = row.index(topic) if topic in row else len(row)
        order = (place, 0 if finding["severity"] == ERROR else 1)
        ranked.append((order, (topic or str(finding["code"]), _found(finding))))
    yield from (named for _, named in sorted(ranked, key=lambda pair: pair[0]))


def _found(finding: Mapping[str, Any]) -> Suspect:
    accepted = finding.get("accepted")
    taken = f" It was accepted: {accepted}." if accepted else ""
    seen, wished = _text(finding["observed"]), _text(finding["expected"])
    why = f"{finding['code']}: {finding['field']} is {seen}, {wished} expected."
    cause = str(finding["message"]).split(". ")[0].rstrip(".")
    return Suspect(cause, FINDING, why + taken, str(finding.get("fix") or "Correct it and deploy."))


def _from_shapes(
    shapes: Sequence[Shape], measurement: Mapping[str, Any], known: Mapping[str, Any]
) -> Iterator[_Named]:
    reach = _reach(measurement, known)
    for shape in shapes:
        if reach and "length" in shape.topics:
            yield (
                "length",
                Suspect(
                    TOPICS["length"].cause, SHAPE, f"{reach}: {TOPICS['length'].why}.", TOPICS["length"].next
                ),
            )
        for name in shape.topics:
            topic = TOPICS[name]
            yield name, Suspect(topic.cause, SHAPE, f"{shape.shows}: {topic.why}.", topic.next)


def _reach(measurement: Mapping[str, Any], known: Mapping[str, Any]) -> str:
    """The figures, where the drafter cannot reach the end of our own prompts; otherwise empty."""
    limit = (known.get("drafter") or {}).get("max_position_embeddings")
    longest = max((kind.get("longest_prompt") or 0 for kind in measurement.get("workloads") or []), default=0)
    needed = longest + int(measurement.get("num_speculative_tokens") or 0) + 1
    if not isinstance(limit, int) or limit >= needed:
        return ""
    return f"max_position_embeddings is {limit}, and a prompt of {longest} tokens needs {needed}"


def _distinct(named: Union[Sequence[_Named], Iterator[_Named]]) -> List[Suspect]:
    """One suspect a topic: the first one stands, and a finding on the same topic is added to its reasons.

    Differences stay apart from each other: two changed fields are two things to set back.
    """
    kept: Dict[str, Suspect] = {}
    for topic, suspect in named:
        first = kept.get(topic)
        if first is None:
            kept[topic] = suspect
        elif suspect.evidence == DIFFERENCE and first.cause != suspect.cause:
            kept.setdefault(f"{topic}: {suspect.cause}", suspect)
        elif suspect.evidence == FINDING and suspect.why not in first.why:
            kept[topic] = Suspect(first.cause, first.evidence, f"{first.why} {suspect.why}", first.next)
    return list(kept.values())


def _subject(topic: str) -> str:
    """The first words of a topic's cause: what it is about."""
    return re.split(r":|,", TOPICS[topic].cause)[0]


def _text(value: Any) -> str:
    return "absent" if value is None else str(value)
