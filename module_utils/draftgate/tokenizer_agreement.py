"""What a probe says of a tokenizer beside :mod:`tokenizer_findings`: files that disagree, rows not known."""

from __future__ import annotations

from typing import Iterator, List

from .findings import INFO, WARNING, Finding
from .tokenizer import TOKENIZER_FILE, Tokenizer
from .tokenizer_text import visible


def judge_agreement(tokenizer: Tokenizer, field: str = "target.tokenizer") -> Iterator[Finding]:
    """DG308, DG309. Parses the whole vocabulary, which a preflight has no time for."""
    if tokenizer.rows is None:
        yield Finding(
            code="DG309",
            severity=INFO,
            field=f"{field}.vocab_size",
            observed=None,
            expected="vocab_size in config.json",
            message="How many rows the target's embedding has is not known: no id is judged by its range.",
            fix="Name the target's config.json.",
        )
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
