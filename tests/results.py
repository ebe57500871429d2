"""What outlives a test run: the figures of ``make bench`` and the finished cases of ``make test-long``."""

from __future__ import annotations

import datetime
import hashlib
import json
import subprocess
from collections.abc import Callable, Generator
from pathlib import Path
from typing import Any

import pytest

REPO = Path(__file__).resolve().parent.parent
BENCH_JSON = REPO / "reports" / "bench.json"
LONG_JSON = REPO / "docs" / "results" / "long.json"

# What a finished long case speaks for: a change of any of these runs it again.
COVERED = ["action_plugins", "filter_plugins", "inventory", "library", "locks", "models", "module_utils"]
COVERED += ["playbooks", "prompts", "roles", "tests", "ansible.cfg", "deploy.yml", "requirements.txt"]

FIGURES = frozenset(
    """
    deploy_cold_seconds no_change_seconds_1_host no_change_ratio_4_hosts contract_27b_seconds
    contract_27b_rss_mib probe_vs_autotokenizer_ratio contract_mutations_total contract_mutations_caught
    calibrate_vs_restart_ratio calibrate_seconds download_vs_curl_ratio fleet_hub_bytes_ratio
    rolling_failed_requests side_by_side_failed_requests in_place_downtime_ratio
    front_first_token_added_ms front_flip_requests front_flip_failed_requests
    speculation_speedup status_vs_ansible_ratio
    diagnosis_verdict_right diagnosis_first diagnosis_top3 false_alarms gate_seconds baseline_seconds
    """.split()
)

Figure = Callable[[str, float], None]
_figures = pytest.StashKey[dict[str, float]]()
_long = pytest.StashKey["LongCases"]()


@pytest.fixture
def figure(request: pytest.FixtureRequest) -> Figure:
    """``figure(name, value)``: one measured figure; the unit is in the name."""

    def record(name: str, value: float) -> None:
        assert name in FIGURES, f"{name} is not one of the figures that are compared over time"
        request.config.stash.setdefault(_figures, {})[name] = round(float(value), 4)

    return record


class LongCases:
    """The passed cases of one state of the code, written after each case: a killed run goes on from there."""

    def __init__(self, path: Path, code: str) -> None:
        self._path = path
        self._code = code
        stored = json.loads(path.read_text("utf-8")) if path.exists() else {}
        self.passed: dict[str, Any] = stored["cases"] if stored.get("code") == code else {}

    def add(self, case: str, seconds: float) -> None:
        """Record a passed case (seconds of its call, not of its fixtures)."""
        now = datetime.datetime.now(datetime.timezone.utc)
        self.passed[case] = {"seconds": round(seconds, 1), "time": now.isoformat(timespec="seconds")}
        record = {
            "code": self._code,
            "commit": _git("rev-parse", "HEAD").strip(),
            "date": now.date().isoformat(),
            "cases": self.passed,
        }
        self._path.parent.mkdir(parents=True, exist_ok=True)
        temporary = self._path.with_suffix(".tmp")
        temporary.write_text(json.dumps(record, indent=2, sort_keys=True) + "\n", "utf-8")
        temporary.replace(self._path)


def _git(*arguments: str) -> str:
    # A clone that another user owns (a mounted checkout) is still only read.
    argv = ["git", "-c", f"safe.directory={REPO}", "-C", str(REPO), *arguments]
    return subprocess.run(argv, check=True, capture_output=True, text=True).stdout


def tracked_files(*under: str) -> list[Path]:
    """The files that git tracks and that exist, in a fixed order."""
    names = _git("ls-files", "-z", "--", *under).split("\0")
    return [REPO / name for name in sorted(filter(None, names)) if (REPO / name).is_file()]


def code_digest() -> str:
    """SHA-256 over names and contents of the tracked files in ``COVERED``."""
    hasher = hashlib.sha256()
    for path in tracked_files(*COVERED):
        content = hashlib.sha256(path.read_bytes()).hexdigest()
        hasher.update(f"{path.relative_to(REPO)} {content}\n".encode())
    return hasher.hexdigest()


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out the long cases that passed with exactly this code; the summary counts them as deselected.

    Only for ``-m long``: a case that is asked for by name runs.
    """
    if config.option.markexpr != "long":
        return
    cases = config.stash[_long] = LongCases(LONG_JSON, code_digest())
    finished = [item for item in items if item.nodeid in cases.passed]
    if finished:
        items[:] = [item for item in items if item.nodeid not in cases.passed]
        config.hook.pytest_deselected(items=finished)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    cases = item.config.stash.get(_long, None)
    if cases is not None and report.when == "call" and report.passed:
        cases.add(item.nodeid, report.duration)
    return report


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session: pytest.Session) -> None:
    """Nothing left to run is a success when that is because everything has passed."""
    cases = session.config.stash.get(_long, None)
    if session.exitstatus == pytest.ExitCode.NO_TESTS_COLLECTED and cases is not None and cases.passed:
        session.exitstatus = pytest.ExitCode.OK


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """The table of figures, and the same flat in ``reports/bench.json``."""
    figures = config.stash.get(_figures, {})
    if not figures:
        return
    terminalreporter.section("figures")
    for name, value in sorted(figures.items()):
        terminalreporter.write_line(f"{name:32} {value:g}")
    if config.option.markexpr == "bench":
        BENCH_JSON.parent.mkdir(exist_ok=True)
        BENCH_JSON.write_text(json.dumps(figures, indent=2, sort_keys=True) + "\n", "utf-8")
