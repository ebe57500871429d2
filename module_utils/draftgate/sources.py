"""Where a rule comes from, as an address: ``vllm#40727`` → its page on GitHub."""

from __future__ import annotations

import re
from typing import Iterator, Optional, Tuple

_GITHUB = "https://github.com/"

REPOSITORIES = {
    "vllm": "vllm-project/vllm",
    "sglang": "sgl-project/sglang",
    "dflash": "z-lab/dflash",
    "nemo automodel": "NVIDIA-NeMo/Automodel",
    "flash-attention": "Dao-AILab/flash-attention",
    "club-3090": "noonghunna/club-3090",
    "llama.cpp": "ggml-org/llama.cpp",
    "gpustack": "gpustack/gpustack",
    "localai": "mudler/LocalAI",
    "skypilot": "skypilot-org/skypilot",
    "nvidia-docker": "NVIDIA/nvidia-docker",
}
"""What people call a project, in lower case → its repository."""

_NAME = "|".join(re.escape(name) for name in sorted(REPOSITORIES, key=len, reverse=True))
_REFERENCE = re.compile(
    r"(?<![\w/.-])(?:"
    rf"(?:(?P<repository>[A-Za-z0-9][\w-]*/[\w.-]+)|(?P<name>{_NAME}))(?: PR )?#(?P<number>\d+)"
    r"|(?P<engine>vLLM|SGLang) (?P<version>\d+\.\d+\.\d+)"
    r")(?![\w-])",
    re.IGNORECASE,
)


def url(source: str) -> Optional[str]:
    """The address of the first issue, pull request or release that ``source`` names; None without one."""
    return next((address for _, address in references(source) if address), None)


def references(text: str) -> Iterator[Tuple[str, Optional[str]]]:
    """``text`` in pieces, in order: ``(piece, its address or None)``; joined they are ``text``."""
    end = 0
    for found in _REFERENCE.finditer(text):
        if found.start() > end:
            yield text[end : found.start()], None
        yield found.group(), _address(found)
        end = found.end()
    if end < len(text):
        yield text[end:], None


def _address(found: re.Match[str]) -> str:
    """GitHub leads from ``issues/`` on to a pull request of that number."""
    if found["engine"]:
        return f"{_GITHUB}{REPOSITORIES[found['engine'].lower()]}/releases/tag/v{found['version']}"
    repository = found["repository"] or REPOSITORIES[found["name"].lower()]
    return f"{_GITHUB}{repository}/issues/{found['number']}"
