"""What looks like a credential is not shown: in logs of the engine, and in other processes' command lines."""

from __future__ import annotations

import re

_SECRET_OPTION = r"(?i)(--[\w-]*(?:api[-_]?key|token|password|secret)"
_SECRETS = (
    (re.compile(_SECRET_OPTION + r"=)\S+"), r"\1(masked)"),
    # of a command line, or of a list of its words; --api-key takes several
    (re.compile(_SECRET_OPTION + r"['\"]?,?\s+)(?!['\"]?-)\S+(?:\s+(?!['\"]?-)\S+)*"), r"\1(masked)"),
    (re.compile(r"\bhf_[A-Za-z0-9]{8,}"), "hf_(masked)"),
    (re.compile(r"(?i)(bearer\s+)\S+"), r"\1(masked)"),
    (
        re.compile(
            r"(?i)((?:api[-_]?key|hf[-_]token|(?<![\w-])token|password|secret)['\"]?\s*[=:]\s*\[?['\"]?)"
            r"(?!None\b|null\b|\d+\b)[^\s'\",\])]+"
        ),
        r"\1(masked)",
    ),
)


def mask(line: str) -> str:
    """The line without what looks like a credential (vllm PR #53625 is about one in a log)."""
    for pattern, replacement in _SECRETS:
        line = pattern.sub(replacement, line)
    return line
