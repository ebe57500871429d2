"""What is wrong with a tokenizer's files, or what they leave open, whatever the mask is."""

from __future__ import annotations

from functools import partial
from typing import Iterator, List

from .findings import INFO, WARNING, Finding
from .tokenizer import FAST, NONE, ROLES, SENTENCEPIECE, Tokenizer
from .tokenizer_json import LateVocabulary
from .tokenizer_text import visible

# What turns another kind into a tokenizer.json; transformers does it in an engine's environment.
CONVERT = "AutoTokenizer.from_pretrained(…).save_pretrained(…) of transformers writes one"


def judge_files(tokenizer: Tokenizer, field: str = "target.tokenizer") -> List[Finding]:
    """DG302, DG304, DG305 kinds that are not read; DG306, DG307 what does not fit together.

    :param field: what the files belong to.
    """
    return [
        *_kind(tokenizer, field),
        *_rows(tokenizer, field),
        *_unlisted(tokenizer, field),
    ]


def _kind(tokenizer: Tokenizer, field: str) -> Iterator[Finding]:
    if tokenizer.kind == FAST:
        return
    found = ", ".join(tokenizer.files)
    finding = partial(
        Finding, severity=INFO, field=field, observed=list(tokenizer.files), expected="tokenizer.json"
    )
    unjudged = "whether the mask is an ordinary piece of text is not judged"
    if tokenizer.kind == NONE:
        message = "The target has no tokenizer.json: what the mask means is judged by its role alone."
        yield finding(code="DG302", message=message)
    elif tokenizer.kind == SENTENCEPIECE:
        yield finding(
            code="DG304",
            message=f"The target's pieces are in {found} alone, for sentencepiece to read: {unjudged}.",
            fix=f"{CONVERT}; it needs sentencepiece and protobuf.",
        )
    else:
        yield finding(
            code="DG305",
            message=f"The target's pieces are in {found} alone, for tiktoken or code of its own to read: "
            f"{unjudged}.",
            fix=f"{CONVERT}, where it knows the model; it needs tiktoken.",
        )


def _rows(tokenizer: Tokenizer, field: str) -> Iterator[Finding]:
    rows = tokenizer.rows
    if rows is not None and _at_most(tokenizer) > rows and tokenizer.length > rows:
        length = tokenizer.length
        beyond = f"{rows}" if length == rows + 1 else f"{rows} to {length - 1}"
        yield Finding(
            code="DG306",
            severity=WARNING,
            field=field,
            observed={"length": length},
            expected={"vocab_size": rows},
            message=f"The tokenizer has {length} ids and the target's embedding {rows} rows: there is no row "
            f"for {beyond} ({tokenizer.describe(length - 1)}).",
            fix="Take config.json and the tokenizer's files from one revision of one target.",
        )


def _at_most(tokenizer: Tokenizer) -> int:
    """Not less than the length where ids have no gaps, without parsing a vocabulary for it."""
    vocab = tokenizer.vocab
    pieces = vocab.at_most if isinstance(vocab, LateVocabulary) else max(vocab.values(), default=-1) + 1
    return max(pieces, max(tokenizer.added_tokens, default=-1) + 1)


def _unlisted(tokenizer: Tokenizer, field: str) -> Iterator[Finding]:
    for role, name in tokenizer.unlisted.items():
        yield Finding(
            code="DG307",
            severity=WARNING,
            field=f"{field}.{role}_token",
            observed=name,
            expected="a token that a file lists",
            message=f"{role}_token ({ROLES[role]}) is {visible(name)}, and no file gives it an id: "
            f"transformers puts it after the last token, on row {tokenizer.length}.",
            fix="Take all of the tokenizer's files from one revision; added_tokens_decoder may be missing.",
            source="transformers tokenization_utils_tokenizers.py",
        )
