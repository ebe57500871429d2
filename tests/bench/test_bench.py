"""``make bench``: what is compared over time. Each ratio has both of its sides in this one run."""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from draftgate import runtime
from draftgate.published import PUBLISHED

from tests.cache import LOCK, RUNTIMES
from tests.e2e.conftest import Install, install, slot
from tests.model_files import QWEN_BASE, pieces, write_json, write_pair_27b, write_published_pair
from tests.mutations import Survey, facts_of, survey
from tests.results import Figure
from tests.tokenizers import FILES, REAL, fetched

__all__ = ["install", "slot"]  # fixtures

pytestmark = [pytest.mark.bench, pytest.mark.timeout(3600)]

REPO = Path(__file__).resolve().parents[2]
JUDGE = """
import json, sys
from draftgate.contract import judge
engine = {"name": "vllm", "version": "0.32.0"}
verdict = judge(sys.argv[1], sys.argv[2], engine=engine, num_speculative_tokens=15)
# Not getrusage: its maximum has what the parent had when it forked.
(peak,) = [line.split()[1] for line in open("/proc/self/status") if line.startswith("VmHWM:")]
json.dump([[finding.code for finding in verdict.findings], int(peak)], sys.stdout)
"""


def seconds(work: Callable[[], Any]) -> float:
    began = time.monotonic()
    work()
    return time.monotonic() - began


def test_contract_27b(tmp_path: Path, figure: Figure) -> None:
    """The whole process, files in the cache: what a preflight costs on a bare host."""
    drafter, target = write_pair_27b(tmp_path, pieces(QWEN_BASE))
    argv = [sys.executable, "-c", JUDGE, str(drafter), str(target)]
    environment = {"PYTHONPATH": str(REPO / "module_utils")}

    peaks: list[int] = []

    def judge() -> None:
        done = subprocess.run(argv, env=environment, capture_output=True, text=True, check=True)
        codes, kib = json.loads(done.stdout)
        assert codes == []
        peaks.append(kib)

    judge()
    figure("contract_27b_seconds", statistics.median(seconds(judge) for _ in range(5)))
    figure("contract_27b_rss_mib", max(peaks) / 1024)


LOAD = "import sys, transformers; transformers.AutoTokenizer.from_pretrained(sys.argv[1])"


def test_probe(tmp_path: Path, figure: Figure) -> None:
    """The real Qwen3 tokenizer, both as whole processes, by turns and with warm files."""
    runtime_python = runtime.install(runtime.read_lock(str(LOCK)), str(RUNTIMES)).python
    for name in FILES:
        (tmp_path / name).symlink_to(fetched("qwen3") / name)
    write_json(tmp_path / "config.json", {"model_type": "qwen3", "vocab_size": REAL["qwen3"].rows})
    environment = {"PYTHONPATH": str(REPO / "module_utils"), "OMP_NUM_THREADS": "1"}

    def timed(*argv: str) -> float:
        return seconds(lambda: subprocess.run(argv, env=environment, capture_output=True, check=True))

    turns = [
        (
            timed(sys.executable, "-m", "draftgate", "probe", str(tmp_path)),
            timed(runtime_python, "-c", LOAD, str(tmp_path)),
        )
        for _ in range(6)
    ][1:]
    probed, loaded = (statistics.median(side) for side in zip(*turns, strict=True))
    figure("probe_vs_autotokenizer_ratio", loaded / probed)


def test_contract_mutations(tmp_path: Path, figure: Figure) -> None:
    """Every published pair, broken in every way: the table of it is printed with ``-s``."""
    whole = Survey()
    for number, entry in enumerate(PUBLISHED):
        pair = write_published_pair(tmp_path / str(number), entry)
        whole.add_all(survey(entry, facts_of(entry, *pair)))
    sys.stdout.write(f"\n{whole.table()}\n")
    figure("contract_mutations_total", whole.total)
    figure("contract_mutations_caught", whole.caught)
    assert whole.rate >= 0.95


def test_deployments(install: Install, figure: Figure) -> None:
    """A first deploy with its runtime, the same again, its status, and the target alone."""
    one = install("bench")
    cold = one.deploy({"vllm_runtime_root": str(one.root / "runtimes")})
    assert cold.code == 0, cold
    figure("deploy_cold_seconds", cold.seconds)
    figure("gate_seconds", one.status()["last_switch"]["stages"]["gated"])
    again = [one.deploy({"vllm_runtime_root": str(one.root / "runtimes")}) for _ in range(3)]
    assert all(done.recap()["changed"] == 0 for done in again), again
    figure("no_change_seconds_1_host", statistics.median(done.seconds for done in again))
    command = statistics.median(seconds(one.status) for _ in range(3))
    figure("status_vs_ansible_ratio", one.playbook("status").seconds / command)
    with_drafter = one.evidence("current")["tokens_per_second"]
    alone = one.deploy({"vllm_runtime_root": str(one.root / "runtimes"), "drafter_path": ""})
    assert alone.code == 0, alone
    figure("speculation_speedup", with_drafter / one.evidence("current")["tokens_per_second"])
