"""``make bench``: what is compared over time. Each ratio has both of its sides in this one run."""

from __future__ import annotations

import json
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.conftest import Install, install, slot
from tests.model_files import write_pair_27b
from tests.results import Figure
from tests.unit.test_contract import MUTATIONS, codes, judged

__all__ = ["install", "slot"]  # fixtures

pytestmark = [pytest.mark.bench, pytest.mark.timeout(3600)]

REPO = Path(__file__).resolve().parents[2]
JUDGE = """
import json, sys
from draftgate.contract import judge
engine = {"name": "vllm", "version": "0.26.0"}
verdict = judge(sys.argv[1], sys.argv[2], engine=engine, num_speculative_tokens=15)
json.dump([finding.code for finding in verdict.findings], sys.stdout)
"""


def seconds(work: Callable[[], Any]) -> float:
    began = time.monotonic()
    work()
    return time.monotonic() - began


def test_contract_27b(tmp_path: Path, figure: Figure) -> None:
    """The whole process, files in the cache: what a preflight costs on a bare host."""
    drafter, target = write_pair_27b(tmp_path)
    argv = [sys.executable, "-c", JUDGE, str(drafter), str(target)]
    environment = {"PYTHONPATH": str(REPO / "module_utils")}

    def judge() -> None:
        done = subprocess.run(argv, env=environment, capture_output=True, text=True, check=True)
        assert json.loads(done.stdout) == []

    judge()
    figure("contract_27b_seconds", statistics.median(seconds(judge) for _ in range(5)))
    figure("contract_27b_rss_mib", resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 1024)


def test_contract_mutations(figure: Figure) -> None:
    wrong = [(overrides, expected) for overrides, expected, _said in MUTATIONS if expected]
    caught = [overrides for overrides, expected in wrong if codes(judged(overrides=overrides)) == expected]
    figure("contract_mutations_total", len(wrong))
    figure("contract_mutations_caught", len(caught))
    assert len(caught) == len(wrong)


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
