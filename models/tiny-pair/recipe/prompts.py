"""Write the prompt set of the pair: held-out questions of every kind, with their only right answers."""

from __future__ import annotations

import hashlib
import json

from .grammar import held_out_exercises

PER_KIND = 10
MAX_TOKENS = 160


def lines() -> str:
    """The JSONL text."""
    rows = []
    for number, exercise in enumerate(held_out_exercises(PER_KIND)):
        row = {
            "id": f"{exercise.kind}-{number % PER_KIND + 1:02d}",
            "workload": exercise.kind,
            "messages": [{"role": "user", "content": exercise.question}],
            "max_tokens": MAX_TOKENS,
            "expected": exercise.answer,
        }
        rows.append(json.dumps(row, ensure_ascii=False) + "\n")
    return "".join(rows)


def digest(text: str) -> str:
    """SHA-256 of the file's bytes."""
    return hashlib.sha256(text.encode()).hexdigest()
