"""The process that fuzzes: libFuzzer's loop around one reader. It never returns and cleans up nothing."""

from __future__ import annotations

import resource
import sys
from pathlib import Path

import atheris  # type: ignore[import-untyped]

with atheris.instrument_imports(include=["draftgate"]):
    from tests.fuzz.readers import READERS, known, mutated

MEMORY = 1 << 30
# What the readers compare with; libFuzzer cannot see into Python's JSON parser.
_WORDS = (
    '"dtype":"F32"', '"shape":[', '"data_offsets":[0,', '"__metadata__":{', '"weight_map":{',
    '"text_config":{', '"dflash_config":{', '"mask_token_id":', '"target_layer_ids":[', '"layer_types":[',
    '"rope_theta":', '"rope_parameters":{', '"rope_scaling":{', '"vocab_size":', '"added_tokens":[',
    '"added_tokens_decoder":{', '"model":{', '"vocab":{', '"content":"', '"special":true', '"eos_token":',
)  # fmt: skip


def main(name: str, seconds: str, work: str) -> None:
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))

    def mutate(file: bytes, longest: int, seed: int) -> bytes:
        changed = mutated(name, file, seed) if seed % 4 else file
        if changed != file and len(changed) <= longest:
            return changed
        return bytes(atheris.Mutate(file, longest))

    seeds, words = _prepare(Path(work), name)
    options = [f"-max_total_time={seconds}", "-max_len=32768", "-timeout=10", "-print_final_stats=1"]
    options += [f"-artifact_prefix={work}/", f"-dict={words}", "-verbosity=0", str(seeds)]
    atheris.Setup([sys.argv[0], *options], READERS[name].feed, custom_mutator=mutate)
    atheris.Fuzz()


def _prepare(work: Path, name: str) -> tuple[Path, Path]:
    """A directory of whole files to begin with, and the dictionary."""
    seeds, words = work / "seeds", work / "words"
    seeds.mkdir()
    for number, seed in enumerate([*READERS[name].seeds(), *(path.read_bytes() for path in known(name))]):
        (seeds / str(number)).write_bytes(seed)
    escaped = (word.replace('"', '\\"') for word in _WORDS)
    words.write_text("".join(f'"{word}"\n' for word in escaped), "utf-8")
    return seeds, words


if __name__ == "__main__":
    main(*sys.argv[1:])
