"""What is wrong with a tokenizer's files, or what they leave open, whatever the mask is."""

from __future__ import annotations

from functools import partial
from typing import Iterator, List

from .findings import INFO, WARNING, Finding
from .tokenizer import FAST, NONE, ROLES, SENTENCEPIECE, TOKENIZER_FILE, Tokenizer
from .tokenizer_text import visible

# What turns another kind into a tokenizer.json; transformers does it in an engine's environment.
CONVERT = "AutoTokenizer.from_pretrained(…).save_pretrained(…) of transformers writes one"


def judge_files(tokenizer: Tokenizer, field: str = "target.tokenizer") -> List[Finding]:
    """DG302, DG304, DG305 kinds that are not read; DG306 to DG309 what does not fit together.

    :param field: what the files belong to.
    """
    return [
        *_kind(tokenizer, field),
        *_rows(tokenizer, field),
        *_unlisted(tokenizer, field),
        *_disagreements(tokenizer, field),
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
    rows, length = tokenizer.rows, tokenizer.length
    if rows is None:
        yield Finding(
            code="DG309",
            severity=INFO,
            field=f"{field}.vocab_size",
            observed=None,
            expected="vocab_size in config.json",
            message="How many rows the target's embedding has is not known: no id is judged by its range.",
            fix="Name the target's config.json.",
        )
    elif length > rows:
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


def _disagreements(tokenizer: Tokenizer, field: str) -> Iterator[Finding]:
    said = [*tokenizer.conflicts, *appended_elsewhere(tokenizer)]
    if said:
        more = f" (and {len(said) - 1} more)" if len(said) > 1 else ""
        yield Finding(
            code="DG308",
            severity=WARNING,
            field=f"{field}.added_tokens",
            observed=said,
            expected="one token for an id, one id for a token",
            message=f"The tokenizer's files disagree: {said[0]}{more}.",
            fix="Take all of the tokenizer's files from one revision.",
        )


def appended_elsewhere(tokenizer: Tokenizer) -> List[str]:
    """Tokens that tokenizer.json lacks get the next free id of transformers, whatever id their file says.

    Seen with 5.19. Where the ids of tokenizer.json have gaps nothing is said.
    """
    vocab, tokens = tokenizer.vocab, tokenizer.added_tokens
    others = [number for number in sorted(tokens) if TOKENIZER_FILE not in tokens[number].files]
    if not (others and vocab):
        return []
    own = {*vocab.values(), *(number for number, token in tokens.items() if TOKENIZER_FILE in token.files)}
    following = len(own)
    if max(own) != following - 1:
        return []
    known = {tokens[number].name for number in own if number in tokens}
    wrong = []
    for number in others:
        name = tokens[number].name
        if name in known or name in vocab:
            continue
        if number != following:
            file = tokens[number].files[0]
            says = f"{visible(name)} is id {number} in {file}"
            wrong.append(f"{says}, and transformers appends it as {following}")
        following += 1
    return wrong
