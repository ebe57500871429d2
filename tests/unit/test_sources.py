"""From a rule's source to the page that a reader can open."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest
from draftgate import sources

from tests.conftest import REPO

GITHUB = "https://github.com/"


@pytest.mark.parametrize(
    ("source", "path"),
    [
        ("vllm#40727", "vllm-project/vllm/issues/40727"),
        ("vllm PR #46435", "vllm-project/vllm/issues/46435"),
        ("sglang#39087", "sgl-project/sglang/issues/39087"),
        ("z-lab/dflash#66", "z-lab/dflash/issues/66"),
        ("syv-ai/qwen38-27b-rtx3090#73", "syv-ai/qwen38-27b-rtx3090/issues/73"),
        ("NeMo Automodel#2461", "NVIDIA-NeMo/Automodel/issues/2461"),
        ("NeMo Automodel PR #2461", "NVIDIA-NeMo/Automodel/issues/2461"),
        ("flash-attention#945", "Dao-AILab/flash-attention/issues/945"),
        ("club-3090#922", "noonghunna/club-3090/issues/922"),
        ("llama.cpp#26669", "ggml-org/llama.cpp/issues/26669"),
        ("vLLM 0.32.0", "vllm-project/vllm/releases/tag/v0.32.0"),
        ("vLLM 0.32.0: V1 runner only on a CPU", "vllm-project/vllm/releases/tag/v0.32.0"),
        ("SGLang 0.5.11 to 0.5.23", "sgl-project/sglang/releases/tag/v0.5.11"),
        ("the layer ids (vllm#40727), and vllm#46104", "vllm-project/vllm/issues/40727"),
    ],
)
def test_a_reference_has_an_address(source: str, path: str) -> None:
    assert sources.url(source) == GITHUB + path


@pytest.mark.parametrize(
    "source",
    [
        "",
        "published DFlash drafters",
        "transformers 5: rope_parameters",
        "vllm 0.32",
        "#40727",
        "xvllm#40727",
        "javascript:alert(1)",
        "../../etc#1",
        "vllm#",
        "a/b/c#12",
        "https://example.org/x/y#12",
    ],
)
def test_what_names_no_page_has_none(source: str) -> None:
    assert sources.url(source) is None


def test_the_pieces_are_the_text() -> None:
    text = "read one too early (vllm#40727), then z-lab/dflash#66."
    pieces = list(sources.references(text))
    assert "".join(piece for piece, _ in pieces) == text
    assert [piece for piece, address in pieces if address] == ["vllm#40727", "z-lab/dflash#66"]


def named_in_the_package() -> Iterator[str]:
    for path in sorted((REPO / "module_utils" / "draftgate").rglob("*.py")):
        yield from re.findall(r"(?:NeMo )?[A-Za-z][\w./-]*#\d+", path.read_text("utf-8"))


def test_every_issue_that_the_package_names_has_an_address() -> None:
    unknown = {reference for reference in named_in_the_package() if sources.url(reference) is None}
    assert unknown == set()
