"""Canonical JSON and digests: the same wish gives the same bytes on every host."""

from __future__ import annotations

import hashlib
import json
import os
from typing import Any

RELEASE_ID_LENGTH = 12
_CHUNK = 1 << 20


def canonical_json(value: Any) -> bytes:
    """Sorted keys, no spaces, UTF-8, no NaN (``ValueError``): the input of every digest."""
    return json.dumps(
        value, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False
    ).encode("utf-8")


def digest(value: Any) -> str:
    """SHA-256 of :func:`canonical_json`, 64 hex digits."""
    return hashlib.sha256(canonical_json(value)).hexdigest()


def short(hex_digest: str) -> str:
    """The first 12 hex digits: a release id, a directory name."""
    return hex_digest[:RELEASE_ID_LENGTH]


def file_digest(path: str | os.PathLike[str]) -> str:
    """SHA-256 of a file's bytes, read in 1 MiB pieces (``OSError`` when it cannot be read)."""
    hasher = hashlib.sha256()
    with open(path, "rb") as handle:
        for piece in iter(lambda: handle.read(_CHUNK), b""):
            hasher.update(piece)
    return hasher.hexdigest()
