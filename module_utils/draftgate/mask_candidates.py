"""Which rows of the target's embedding may be the mask, each with its reason. Nothing here chooses.

The mask is neither in the weights nor in the tokenizer: 248070 and 248077 are both published masks on one.
"""

from __future__ import annotations

import re
from dataclasses import asdict, dataclass
from typing import Any, Dict, Iterator, List, Mapping, Optional, Sequence, Tuple

from .findings import ERROR, Finding
from .published import PUBLISHED, Published
from .tokenizer import TOKENIZER_FILE, Tokenizer
from .tokenizer_text import visible

FITTING = "an added token without a role, or an unused row"
NOT_A_CHOICE = "They are hints: the drafter's own revision, or a measurement, decides."
NO_NAME = 'No token\'s name contains "mask", so a search by name cannot find it.'

# Of the many reserved names and markers that a tokenizer has, the first few are worth a try.
SPECIAL_AT_MOST = 3

# A shape under the names of a drafter's config, and the same in the public record.
SHAPE = {
    "target_layers": "target_layers",
    "num_hidden_layers": "draft_layers",
    "hidden_size": "hidden",
    "intermediate_size": "ffn",
    "num_attention_heads": "heads",
    "num_key_value_heads": "kv_heads",
    "head_dim": "head_dim",
}

# Tokens that no text holds by their names, the likeliest first; then special ones, where a template can tell.
_UNUSED = (
    (re.compile("mask", re.IGNORECASE), "named mask"),
    (re.compile(r"reserved|unused|place[^a-z]?holder", re.IGNORECASE), "reserved"),
    (re.compile("audio|vision|image|video", re.IGNORECASE), "for audio, image or video"),
    (re.compile(""), "special"),
)


@dataclass(frozen=True)
class Candidate:
    """One row that may be the mask.

    :param token: the added token of this row; None for a row without one.
    :param reason: why it is in the list, a phrase; several joined by ``; ``.
    :param known: the public record has a drafter with this mask.
    """

    id: int
    token: Optional[str]
    reason: str
    known: bool

    def as_dict(self) -> Dict[str, Any]:
        return asdict(self)

    @property
    def name(self) -> str:
        return f"{self.id} {visible(self.token) if self.token else 'without a token'}"


Hint = Tuple[int, str, bool]


def rank(
    tokenizer: Tokenizer, *, shape: Optional[Mapping[str, Any]] = None, limit: int = 8
) -> List[Candidate]:
    """Rows that may be the mask, the best hint first, in the order of :func:`_hints`.

    :param shape: what is known of :data:`SHAPE`; it names a published pair only with both ``target_layers``
        and ``hidden_size``.
    """
    reasons: Dict[int, List[Tuple[str, bool]]] = {}
    for token_id, reason, known in _hints(tokenizer, shape or {}):
        if _may_be_mask(tokenizer, token_id):
            reasons.setdefault(token_id, []).append((reason, known))
    return [
        Candidate(
            token_id,
            tokenizer.piece(token_id),
            "; ".join(reason for reason, _ in given),
            any(known for _, known in given),
        )
        for token_id, given in list(reasons.items())[:limit]
    ]


def by_name(tokenizer: Tokenizer) -> List[Tuple[int, str]]:
    """Added tokens whose name contains "mask": what a search by hand finds, and for most targets nothing."""
    return [(number, name) for number, name in sorted(tokenizer.added.items()) if says_mask(name)]


def says_mask(name: str) -> bool:
    return "mask" in name.lower()


def judge(
    tokenizer: Tokenizer, mask: int, field: str, *, shape: Optional[Mapping[str, Any]] = None
) -> List[Finding]:
    """What is wrong with a claimed mask: DG205 no row, DG206 a role, DG207 ordinary text; empty when nothing.

    :param field: where it is claimed, as in ``drafter.dflash_config.mask_token_id``.
    """
    wrong = _verdict(tokenizer, mask)
    if wrong is None:
        return []
    code, expected, message, source = wrong
    candidates = rank(tokenizer, shape=shape, limit=4)
    candidates = [one for one in candidates if one.known] or candidates
    return [
        Finding(
            code=code,
            severity=ERROR,
            field=field,
            observed={"id": mask, "token": tokenizer.piece(mask), "roles": tokenizer.roles(mask)},
            expected=expected,
            message=" ".join([message, *_hints_in_words(tokenizer, candidates)]),
            fix=f"Set {field.partition('drafter.')[2] or field} to the value in the config.json of the "
            "drafter's revision; this one may belong to another tokenizer.",
            source=source,
        )
    ]


def _verdict(tokenizer: Tokenizer, mask: int) -> Optional[Tuple[str, Any, str, str]]:
    """Code, what is expected, the message and its source; None where nothing is wrong."""
    rows = tokenizer.rows
    if rows is not None and not 0 <= mask < rows:
        says = f"The mask is {mask}, and the target's embedding has rows 0 to {rows - 1}."
        return "DG205", {"first": 0, "last": rows - 1}, says, "vLLM VocabParallelEmbedding"
    says = f"The mask is {tokenizer.describe(mask)} (id {mask}):"
    if tokenizer.roles(mask):
        return "DG206", FITTING, f"{says} drafts made from it are not accepted.", "NeMo Automodel#2461"
    if tokenizer.is_ordinary(mask):
        return "DG207", FITTING, f"{says} no published drafter has such a mask.", "published DFlash drafters"
    return None


def _hints_in_words(tokenizer: Tokenizer, candidates: Sequence[Candidate]) -> Iterator[str]:
    if candidates:
        listed = "; ".join(f"{one.name} ({one.reason.partition('; ')[0]})" for one in candidates)
        yield f"Candidates, best first: {listed}. {NOT_A_CHOICE}"
    if tokenizer.vocab and not by_name(tokenizer):
        yield NO_NAME


def _may_be_mask(tokenizer: Tokenizer, token_id: int) -> bool:
    is_row = tokenizer.rows is None or token_id < tokenizer.rows
    return is_row and not tokenizer.roles(token_id) and not tokenizer.is_ordinary(token_id)


def _hints(tokenizer: Tokenizer, shape: Mapping[str, Any]) -> Iterator[Hint]:
    exact = [entry for entry in PUBLISHED if _has_shape(entry, shape)]
    yield from _published(exact, "a drafter of exactly this shape")
    others = [entry for entry in PUBLISHED if entry not in exact and entry.vocab_size]
    same_rows = [entry for entry in others if entry.vocab_size == tokenizer.rows]
    yield from _published(same_rows, "whose target has as many rows")
    unused = dict(_unused_in_text(tokenizer))
    yield from ((token_id, reason, False) for token_id, reason in unused.items())
    if tokenizer.vocab:
        yield tokenizer.length, "the first row after the tokenizer", False
    yield from ((token_id, "its name", False) for token_id, _ in by_name(tokenizer) if token_id not in unused)


def _has_shape(entry: Published, shape: Mapping[str, Any]) -> bool:
    given = {key: shape[key] for key in SHAPE if shape.get(key) is not None}
    is_enough = {"target_layers", "hidden_size"} <= set(given)
    return is_enough and all(getattr(entry, SHAPE[key]) == value for key, value in given.items())


def _published(entries: Sequence[Published], what: str) -> Iterator[Hint]:
    """Each mask of these drafters, the one of most drafters first."""
    repos: Dict[int, List[str]] = {}
    for entry in entries:
        if entry.mask_token_id is not None:
            name = f"{entry.repo} ({entry.revision})" if entry.revision else entry.repo
            repos.setdefault(entry.mask_token_id, []).append(name)
    for token_id, names in sorted(repos.items(), key=lambda item: -len(item[1])):
        others = f" and {len(names) - 1} more" if len(names) > 1 else ""
        yield token_id, f"the mask of {names[0]}{others}, {what}", True


def _unused_in_text(tokenizer: Tokenizer) -> Iterator[Tuple[int, str]]:
    """Added tokens without a role that the chat template does not mention: the likeliest few, and why."""
    ranked = []
    for token_id, token in tokenizer.added_tokens.items():
        kinds = [kind for kind, (pattern, _) in enumerate(_UNUSED) if pattern.search(token.name)]
        is_unused = (token.special and tokenizer.template) or kinds[0] < len(_UNUSED) - 1
        if is_unused and not tokenizer.roles(token_id) and token.name not in tokenizer.template:
            ranked.append((kinds[0], TOKENIZER_FILE in token.files, token_id))
    where = "not in the chat template" if tokenizer.template else "and there is no chat template"
    for kind, is_in_tokenizer, token_id in sorted(ranked)[:SPECIAL_AT_MOST]:
        alike = sum(1 for other in ranked if other[:2] == (kind, is_in_tokenizer))
        one_of = f" (one of {alike})" if alike > 1 else ""
        only = "" if is_in_tokenizer else f", not in {TOKENIZER_FILE}"
        yield token_id, f"{_UNUSED[kind][1]}{one_of}{only}, {where}"
