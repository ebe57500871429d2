"""Real tokenizers, read from their files alone, against transformers in the engine's own environment.

The runtime is installed where no test has done it yet, into the cache that the deployments of the tests use.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from draftgate import runtime
from draftgate.mask_candidates import rank
from draftgate.tokenizer import Tokenizer, read_tokenizer
from draftgate.tokenizer_agreement import judge_agreement
from draftgate.tokenizer_findings import judge_files

from tests.cache import LOCK, RUNTIMES
from tests.conftest import REPO
from tests.model_files import read_json, write_json
from tests.tokenizers import FILES, REAL, fetched

pytestmark = [pytest.mark.real, pytest.mark.timeout(1800)]

SAMPLE = 4000

# Each id alone, as the window shows it. No template and no clean-up: what the id itself stands for.
REFERENCE = """
import json, sys
from transformers import AutoTokenizer
for line in sys.stdin:
    asked = json.loads(line)
    tokenizer = AutoTokenizer.from_pretrained(asked["path"])
    print("told " + json.dumps({
        "length": len(tokenizer),
        "roles": {role: getattr(tokenizer, role + "_token_id") for role in ("bos", "eos", "pad")},
        "named": [str(token) for token in tokenizer.special_tokens_map.values()],
        "added": {str(i): [t.content, t.special] for i, t in tokenizer.added_tokens_decoder.items()},
        "texts": [tokenizer.decode([i], skip_special_tokens=False, clean_up_tokenization_spaces=False)
                  for i in asked["ids"]],
    }), flush=True)
"""


class Reference:
    """transformers in one process, which takes seconds to start."""

    def __init__(self, python: str) -> None:
        self._process = subprocess.Popen(
            [python, "-c", REFERENCE],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            env={**os.environ, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"},
        )

    def ask(self, path: Path, ids: list[int]) -> dict[str, Any]:
        assert self._process.stdin and self._process.stdout
        self._process.stdin.write(json.dumps({"path": str(path), "ids": ids}) + "\n")
        self._process.stdin.flush()
        for line in self._process.stdout:
            if line.startswith("told "):
                told: dict[str, Any] = json.loads(line[5:])
                return told
        raise AssertionError(f"transformers cannot read {path}")

    def close(self) -> None:
        assert self._process.stdin and self._process.stdout
        self._process.stdin.close()
        self._process.wait(60)
        self._process.stdout.close()


@pytest.fixture(scope="module")
def reference() -> Iterator[Reference]:
    made = runtime.install(runtime.read_lock(str(LOCK)), str(RUNTIMES))
    one = Reference(made.python)
    yield one
    one.close()


def target(root: Path, name: str, **changed: Any) -> tuple[Path, dict[str, Any]]:
    """A target's directory with the real files; ``changed`` keys of its tokenizer_config.json."""
    root.mkdir(exist_ok=True)
    for file in FILES:
        (root / file).symlink_to(fetched(name) / file)
    if changed:
        slow = {**read_json(root / FILES[1]), **changed}
        (root / FILES[1]).unlink()
        write_json(root / FILES[1], slow)
    config = {"model_type": REAL[name].model_type, "vocab_size": REAL[name].rows}
    write_json(root / "config.json", config)
    return root, config


def sample(tokenizer: Tokenizer) -> list[int]:
    """The beginning, all around the first added tokens, a share of everything, and of what is not ASCII."""
    length = tokenizer.length
    every = [token_id for token_id in range(length) if tokenizer.piece(token_id) is not None]
    foreign = [token_id for token_id in every if not (tokenizer.text(token_id) or "").isascii()]
    parts = [token_id for token_id in every if b"\xef\xbf\xbd" in _told(tokenizer, token_id).encode()]
    chosen = {*every[:300], *every[-300:], *list(tokenizer.added_tokens)[:300]}
    for group in (every, foreign, parts):
        chosen |= set(group[:: max(1, len(group) // SAMPLE)])
    return sorted(chosen)


def _told(tokenizer: Tokenizer, token_id: int) -> str:
    """A part of a letter as transformers writes it."""
    data = tokenizer.data(token_id)
    assert data is not None, token_id
    return data.decode("utf-8", "replace")


@pytest.mark.parametrize("name", REAL)
def test_ids_are_what_transformers_says(name: str, reference: Reference, tmp_path: Path) -> None:
    directory, config = target(tmp_path / name, name)
    tokenizer = read_tokenizer(str(directory), config)
    ids = sample(tokenizer)
    assert len(ids) > SAMPLE
    told = reference.ask(directory, ids)

    assert tokenizer.length == told["length"] == REAL[name].length
    for role, token_id in told["roles"].items():
        assert tokenizer.special[role] == (() if token_id is None else (token_id,)), role
    # Gemma's <mask> is special by a default of its class in transformers, and in no file.
    added = {
        str(number): [token.name, token.special or token.name in told["named"]]
        for number, token in tokenizer.added_tokens.items()
    }
    assert added == told["added"]
    different = {
        token_id: (_told(tokenizer, token_id), text)
        for token_id, text in zip(ids, told["texts"], strict=True)
        if _told(tokenizer, token_id) != text
    }
    assert different == {}
    readable = {
        token_id
        for token_id, text in zip(ids, told["texts"], strict=True)
        if "\ufffd" not in text and tokenizer.text(token_id) != text
    }
    assert readable == set()


NOT_SPLIT = {"lstrip": False, "rstrip": False, "normalized": False, "single_word": False, "special": True}


@pytest.mark.parametrize(
    ("listed", "roles", "said"),
    [
        # As Qwen3.5 and 3.6 have their last tokens: tokenizer.json does not know them.
        ({151669: "<|audio_start|>", 151670: "<|audio_end|>"}, {}, ""),
        (
            {151700: "<|far|>"},
            {},
            "is id 151700 in tokenizer_config.json, and transformers appends it as 151669",
        ),
        ({}, {"pad_token": "<|nowhere|>"}, "<|nowhere|>"),
    ],
)
def test_tokens_outside_of_tokenizer_json(
    listed: dict[int, str], roles: dict[str, str], said: str, reference: Reference, tmp_path: Path
) -> None:
    slow = read_json(fetched("qwen3") / "tokenizer_config.json")
    decoder = {str(number): {"content": name, **NOT_SPLIT} for number, name in listed.items()}
    changed = {**roles, "added_tokens_decoder": {**slow["added_tokens_decoder"], **decoder}}
    directory, config = target(tmp_path / "qwen3", "qwen3", **changed)
    tokenizer = read_tokenizer(str(directory), config)
    told = reference.ask(directory, [151669])

    if not said:
        assert tokenizer.length == told["length"] == 151671
        assert tokenizer.text(151669) == told["texts"][0] == "<|audio_start|>"
    else:
        assert told["texts"][0] in ("<|far|>", "<|nowhere|>")
        assert said in " ".join(
            finding.message for finding in [*judge_files(tokenizer), *judge_agreement(tokenizer)]
        )


@pytest.mark.parametrize(
    ("name", "shape", "first"),
    [
        ("qwen3", {"target_layers": 36, "hidden_size": 2560}, 151669),
        ("qwen3", {}, 151669),
        ("llama3_1", {}, 128002),
        ("gptoss", {"target_layers": 24, "hidden_size": 2880}, 200000),
        ("gptoss", {}, 200000),
        ("gemma3", {}, 4),
    ],
)
def test_the_published_mask_is_the_best_hint(
    name: str, shape: dict[str, int], first: int, tmp_path: Path
) -> None:
    """Gemma's and gpt-oss' without a shape by the names of their tokens alone."""
    directory, config = target(tmp_path / name, name)
    assert rank(read_tokenizer(str(directory), config), shape=shape)[0].id == first


READ = """
import re, sys
from draftgate.probe import probe
probe(sys.argv[1])
print(re.search(r"VmHWM:\\s+(\\d+) kB", open("/proc/self/status").read())[1])
"""


def test_a_probe_takes_less_memory_than_json(tmp_path: Path) -> None:
    """Python's json takes 95 for Qwen3's tokenizer.json by itself."""
    directory, _ = target(tmp_path / "qwen3", "qwen3")
    environment = {"PYTHONPATH": str(REPO / "module_utils")}
    argv = [sys.executable, "-c", READ, str(directory)]
    done = subprocess.run(argv, env=environment, capture_output=True, text=True, check=True)
    assert int(done.stdout) < 80 << 10
