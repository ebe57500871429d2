"""The story of one server: deployed, measured, broken in every way, killed in every state, never taken down.

Real ansible-playbook, supervisord, vLLM and tiny pair. Each test begins with the plain release serving, which
costs nothing in this order and one start for a test that is run alone.

Engine starts, 35 s each on two quiet cores: first deploy 1, mask 2, layers 2, unknown argument 1, killed
controllers 1, rollback 1: 8 of the 11 of `make test`.
"""

from __future__ import annotations

import os
import re
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from draftgate import processes

from tests.e2e.conftest import Install
from tests.e2e.faults import assert_settled, deploy_with_killed_job, killed_controller
from tests.e2e.installation import Installation, Process

pytestmark = [pytest.mark.real, pytest.mark.timeout(1800)]

K = 7
API_KEY = "e2e-api-key-3f9c2b7d51"
OTHER_KEY = "e2e-api-key-8d06ee4410"
HUB_TOKEN = "hf_e2eHubToken4c81d2a90b"
ARGS: dict[str, Any] = {"dtype": "float32", "max_model_len": 1024, "max_num_seqs": 8, "enforce_eager": True}
# An ordinary piece of text as the mask, and layer ids shifted by one: in range, and silent in the engine.
BAD_MASK: dict[str, Any] = {"drafter_overrides": {"dflash_config": {"mask_token_id": 300}}}
ACCEPTED = {"code": "DG207", "reason": "what is it worth"}
BAD_LAYERS = {"drafter_overrides": {"dflash_config": {"target_layer_ids": [2, 6, 10]}}}


@dataclass(frozen=True)
class Served:
    """What serves before a test.

    :param engine: its API server, which only a restart replaces.
    """

    at: Installation
    release: str
    engine: Process

    def assert_untouched(self) -> None:
        assert self.at.engine() == self.engine
        assert self.at.status()["release"] == self.release


@pytest.fixture(scope="module")
def installation(install: Install) -> Installation:
    """With an API key, and with a hub token in the environment of everything that is run."""
    return install("main", secrets={"vllm_api_key": API_KEY}, environment={"HF_TOKEN": HUB_TOKEN})


@pytest.fixture(scope="module")
def plain() -> dict[str, Any]:
    """The deployment of the inventory as it is, once a test has seen it."""
    return {}


@pytest.fixture
def served(installation: Installation, plain: dict[str, Any]) -> Served:
    """The plain release serves, gated as the inventory says; deployed where a test has left another."""
    there = os.path.exists(installation.home.active) and installation.active()["deployment"] == plain
    if not (there and installation.status()["serving"]):
        done = installation.deploy()
        assert done.code == 0, done
        plain.update(installation.active()["deployment"])
        assert plain["serve"]["num_speculative_tokens"] == K
    state = installation.assert_one_serves(plain["release"])
    return Served(installation, state["release"], installation.engine())


# From nothing


def test_check_mode_on_a_bare_host_writes_nothing_and_shows_the_wish(installation: Installation) -> None:
    installation.remove()
    done = installation.deploy({}, "--check", "--diff")
    assert done.code == 0, done
    assert f"+serve.num_speculative_tokens: {K}" in done.diff(), done
    assert '+serve.served_model_name: "tiny"' in done.diff(), done
    assert [line for line in done.diff() if re.match(r"-(serve|place|gate)\.", line)] == []
    assert not installation.root.exists()


def test_first_deploy_measures_and_serves(installation: Installation) -> None:
    with Watched(API_KEY, HUB_TOKEN) as watched:
        done = installation.deploy({}, "-vvvv")
    assert done.code == 0, done
    assert watched.leaks == set(), "a secret stood in a command line"
    assert_progress(done.lines)
    state = installation.assert_one_serves(installation.status()["release"])
    evidence = installation.evidence("current")
    assert evidence == installation.evidence("last_attempt")
    assert_complete(evidence, state["release"])
    assert f"127.0.0.1:{installation.port}/v1/chat/completions" in done.output
    assert state["evidence"]["mean_acceptance_length"] == evidence["acceptance"]["mean_acceptance_length"]


def assert_progress(lines: list[tuple[float, str]]) -> None:
    """Something a person can read came at least every 30 s, and it said how long it has taken."""
    told = [(at, line) for at, line in lines if re.match(r"(TASK|PLAY) |localhost \| ", line)]
    gaps = [(after - before, line) for (before, _), (after, line) in zip(told, told[1:])]
    assert max(gaps)[0] <= 30, max(gaps)
    with_time = r"localhost \| switch \| .*\| (\d+m)?\d+s(, ~.* left)?$"
    shown = [line for _, line in told if re.match(with_time, line)]
    assert {line.split(" | ")[2] for line in shown} >= {"start", "gate"}, shown


def assert_complete(evidence: dict[str, Any], release: str) -> None:
    assert evidence["verdict"] == "pass" and evidence["release"] == release
    assert evidence["engine"] == {"name": "vllm", "version": "0.32.0"}
    drafter = evidence["drafter"]
    assert (drafter["mask_token_id"], drafter["target_layer_ids"]) == (512, [1, 5, 9])
    assert evidence["num_speculative_tokens"] == K
    acceptance = evidence["acceptance"]
    assert acceptance["drafts"] >= 200 and len(acceptance["per_position"]) == K
    assert acceptance["mean_acceptance_length"] == pytest.approx(
        1 + acceptance["accepted_tokens"] / acceptance["drafts"]
    )
    assert acceptance["rate"] == pytest.approx(acceptance["accepted_tokens"] / acceptance["draft_tokens"])
    lengths = {kind["workload"]: kind["mean_acceptance_length"] for kind in evidence["workloads"]}
    assert len(lengths) >= 5 and max(lengths.values()) >= 5
    assert evidence["thresholds"]["acceptance_min_mean_length"] == 2.0
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ", evidence["time"])
    for name in ("host", "target", "baseline", "suspects", "findings"):
        assert name in evidence


class Watched:
    """Looks at every command line of the machine for these words while a block runs."""

    def __init__(self, *words: str) -> None:
        self.leaks: set[str] = set()
        self._words = words
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._look, daemon=True)

    def __enter__(self) -> Watched:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    def _look(self) -> None:
        while not self._over.wait(0.2):
            for pid in filter(str.isdigit, os.listdir("/proc")):
                command = processes.command(int(pid))
                self.leaks |= {command for word in self._words if word in command}


# Again


def test_again_changes_nothing_and_takes_seconds(served: Served) -> None:
    done = served.at.deploy()
    if done.seconds > 12:  # somebody else had the machine
        done = served.at.deploy()
    assert done.code == 0 and done.recap()["changed"] == 0, done
    assert done.seconds <= 12
    served.assert_untouched()
    assert served.at.deploy({}, "-vvv").output.count(" EXEC ") <= 10, "module runs"


def test_diff_shows_exactly_the_changed_argument(served: Served) -> None:
    before = snapshot(served.at.root)
    done = served.at.deploy({"vllm_server_args": {**ARGS, "max_num_seqs": 4}}, "--check", "--diff")
    assert done.code == 0, done
    assert done.diff() == ["-serve.args.max_num_seqs: 8", "+serve.args.max_num_seqs: 4"], done
    assert snapshot(served.at.root) == before
    served.assert_untouched()


def snapshot(root: Path) -> dict[str, tuple[int, int]]:
    """Every file below ``root``, by size and time of change; logs and sockets live on."""
    return {
        str(path.relative_to(root)): (path.lstat().st_size, path.lstat().st_mtime_ns)
        for path in root.rglob("*")
        if path.is_file() and path.relative_to(root).parts[0] not in ("logs", "cache")
    }


# Thresholds and the gate: the process stays


def test_changed_threshold_is_decided_from_stored_evidence(served: Served) -> None:
    measured = served.at.status()["evidence"]["path"]
    for wish in ({"acceptance_min_mean_length": 1.5}, {}):
        done = served.at.deploy(wish)
        assert done.code == 0 and done.recap()["changed"] >= 1, done
        assert "| gate |" not in done.output and done.seconds < 60
        evidence = served.at.evidence("current")
        assert evidence["thresholds"]["acceptance_min_mean_length"] == wish.get(
            "acceptance_min_mean_length", 2.0
        )
        assert evidence["passes"] == served.at.evidence_at(measured)["passes"], "measured again"
        served.assert_untouched()


def test_changed_gate_is_measured_again_and_survives_its_controller_killed_at_the_end(served: Served) -> None:
    before = served.at.evidence("current")
    done = served.at.deploy({"acceptance_concurrency": 2})
    assert done.code == 0, done
    assert "| gate |" in done.output
    evidence = served.at.evidence("current")
    assert evidence["verdict"] == "pass" and evidence["settings"]["concurrency"] == 2
    assert evidence["gate_digest"] != before["gate_digest"]
    served.assert_untouched()

    with killed_controller(served.at, {}, "activated"):
        pass
    served.assert_untouched()
    assert_settled(served.at, {}, served.release)


# A drafter that is not accepted


def test_mask_that_is_the_end_of_text_stops_before_anything_starts(served: Served) -> None:
    done = served.at.deploy({"drafter_overrides": {"dflash_config": {"mask_token_id": 0}}})
    assert "DG206" in done.error() and "<|endoftext|>" in done.output
    assert "TASK [vllm_server" not in done.output
    served.assert_untouched()


def test_mask_that_is_text_is_refused_from_files_and_when_accepted_measured_and_undone(
    served: Served,
) -> None:
    refused = served.at.deploy(BAD_MASK)
    assert "DG207" in refused.error() and "TASK [vllm_server" not in refused.output
    served.assert_untouched()

    wish = {**BAD_MASK, "drafter_accept_findings": [ACCEPTED]}
    done = served.at.deploy(wish)
    assert served.at.assert_one_serves(served.release)["release"] == served.release
    told = done.error()
    assert f"Release {served.release} serves." in told
    assert "drafter_overrides sets dflash_config.mask_token_id to 300" in told
    tried = served.at.evidence("last_attempt")
    assert tried["verdict"] == "fail" and tried["release"] != served.release
    assert tried["acceptance"]["mean_acceptance_length"] < 1.5
    assert tried["suspects"][0]["evidence"] == "difference"
    assert "drafter_overrides" in tried["suspects"][0]["cause"] and "mask" in tried["suspects"][0]["cause"]
    assert served.at.evidence("current")["release"] == served.release
    accepted = [finding["accepted"] for finding in tried["findings"] if finding["code"] == "DG207"]
    assert accepted == [ACCEPTED["reason"]] and f"accepted: {ACCEPTED['reason']}" in done.told

    # The same wish again: known to be bad, so that what serves is not taken down for it.
    engine = served.at.engine()
    again = served.at.deploy(wish)
    assert "DG830" in again.error() and again.seconds < 60
    assert served.at.engine() == engine

    back = served.at.deploy()
    assert back.code == 0 and back.recap()["changed"] == 0, back
    assert served.at.engine() == engine


def test_shifted_layers_are_a_regression_even_when_nobody_watches(served: Served) -> None:
    with killed_controller(served.at, BAD_LAYERS, "restored"):
        pass
    ended = served.at.journal()[-1]
    assert ended["state"] == "restored" and ended["serving"] == served.release
    (gated,) = (entry for entry in served.at.journal() if entry["state"] == "gated")
    tried = served.at.evidence_at(gated["evidence"])
    assert tried["verdict"] == "fail"
    assert [reason["code"] for reason in tried["reasons"]] == ["DG805"]
    assert "target_layer_ids" in tried["suspects"][0]["cause"]
    assert_settled(served.at, {}, served.release)
    assert "DG830" in served.at.deploy(BAD_LAYERS).error()


def test_unknown_argument_is_named_and_the_previous_release_serves_again(served: Served) -> None:
    done = served.at.deploy({"vllm_server_args": {**ARGS, "no_such_option": 1}})
    told = done.error()
    assert "no-such-option" in told and f"Release {served.release} serves." in told
    assert re.search(r"cause: bad_argument", done.output), "no machine-readable cause"
    assert "unrecognized arguments: --no-such-option 1" in done.output, "not the engine's own words"
    served.at.assert_one_serves(served.release)


# Killed


def test_controller_killed_in_every_state_and_rollback_with_its_job_killed(served: Served) -> None:
    wish = {"num_speculative_tokens": 6}
    with killed_controller(served.at, wish, "prepared", "previous_stopped", "started", "gated"):
        pass
    other = served.at.active()["deployment"]["release"]
    assert other != served.release
    assert_settled(served.at, wish, other)
    assert served.at.status()["previous"] == served.release

    # Back again by rollback, whose host job is killed while the candidate runs and is not yet gated.
    done = deploy_with_killed_job(served.at, "playbooks/rollback.yml", {}, "started")
    assert done.code == 0, done
    assert served.at.evidence("last_attempt")["verdict"] == "pass"
    assert_settled(served.at, {}, served.release)


# At last


def test_status_reads_and_says_serving(served: Served) -> None:
    assert "serving" in served.at.command("status").stdout
    done = served.at.playbook("status")
    assert done.code == 0 and done.recap()["changed"] == 0, done
    assert served.release in done.output and f"http://127.0.0.1:{served.at.port}" in done.output


def test_clients_need_the_key_and_no_secret_was_ever_shown(served: Served) -> None:
    assert [served.at.refusal(key) for key in ("", OTHER_KEY, API_KEY)] == [401, 401, 200]
    other = served.at.start(
        "deploy.yml", {}, "--check", "--diff", "-vvvv", "-e", f"@{key_file(served.at)}"
    ).wait()
    assert other.code == 0, other
    assert {line.split(":")[0] for line in other.diff()} == {
        "-place.secrets.VLLM_API_KEY",
        "+place.secrets.VLLM_API_KEY",
    }
    secrets = (API_KEY, OTHER_KEY, HUB_TOKEN)
    for run in served.at.runs:
        shown = run.output.replace("\n", "")  # a wrapped line hides nothing
        assert not [word for word in secrets if word in shown]
    for root in (served.at.root, served.at.reports):
        for path in root.rglob("*"):
            if path.is_file() and any(word.encode() in path.read_bytes() for word in secrets):
                assert path.stat().st_mode & 0o777 == 0o600, path
                assert path.parent == Path(served.at.home.secrets) or path in served.at.secret_files, path
    for pid in processes.owned_by_home(str(served.at.root)):
        assert HUB_TOKEN.encode() not in Path(f"/proc/{pid}/environ").read_bytes()


def key_file(at: Installation) -> Path:
    return at.write_secrets("other", {"vllm_api_key": OTHER_KEY})


def test_teardown_leaves_nothing_but_the_caches_it_names(served: Served) -> None:
    done = served.at.playbook("teardown")
    assert done.code == 0, done
    left = os.listdir(served.at.root)
    assert set(left) <= {"models", "cache", "runtimes"}
    assert all(f"{served.at.root}/{name}" in done.output for name in left)
    again = served.at.playbook("teardown")
    assert again.code == 0 and again.recap()["changed"] == 0, again
    assert served.at.playbook("teardown", {"draftgate_purge": True}).code == 0
    served.at.assert_nothing_left()
    assert not served.at.root.exists()
