"""``playbooks/preflight.yml`` as an operator runs it: on a bare host, in seconds, and nothing is touched."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from tests.conftest import REPO
from tests.model_files import read_json, write_json, write_pair_27b

PLAYBOOK = REPO / ".venv" / "bin" / "ansible-playbook"
WRONG_MASK = {"drafter_overrides": {"dflash_config": {"mask_token_id": 0}}}


class Run(NamedTuple):
    code: int
    output: str

    @property
    def told(self) -> str:
        """The output with line breaks folded."""
        return " ".join(self.output.split())


@pytest.fixture
def models(tmp_path: Path) -> Path:
    """The tiny pair as it would lie on a host."""
    shutil.copytree(REPO / "models/tiny-pair/drafter", tmp_path / "models/drafter")
    shutil.copytree(REPO / "models/tiny-pair/target", tmp_path / "models/target")
    return tmp_path / "models"


def preflight(models: Path, *options: str, **variables: Any) -> Run:
    """With a home and reports of its own, neither of which is there before."""
    where = {
        "drafter_path": str(models / "drafter"),
        "target_path": str(models / "target"),
        "draftgate_home": str(models.parent / "home"),
        "draftgate_reports_dir": str(models.parent / "reports"),
    }
    extra = json.dumps({**where, **variables})
    environment = {"ANSIBLE_CONFIG": str(REPO / "ansible.cfg"), "ANSIBLE_NOCOLOR": "1", "LC_ALL": "C.UTF-8"}
    done = subprocess.run(
        [str(PLAYBOOK), "playbooks/preflight.yml", "-e", extra, *options],
        cwd=REPO,
        env={**os.environ, **environment},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    return Run(done.returncode, done.stdout)


def document(models: Path) -> Any:
    return read_json(models.parent / "reports" / "localhost" / "preflight.json")


def snapshot(root: Path) -> dict[str, tuple[int, str]]:
    """Every file below ``root``: when it was changed, and its content's digest."""
    files = [path for path in sorted(root.rglob("*")) if path.is_file()]
    return {
        str(path.relative_to(root)): (path.stat().st_mtime_ns, hashlib.sha256(path.read_bytes()).hexdigest())
        for path in files
    }


def test_a_right_pair_is_ready_and_nothing_is_changed(models: Path) -> None:
    before = snapshot(models.parent)
    done = preflight(models)
    assert done.code == 0 and "localhost READY nothing found" in done.told, done.output
    assert "changed=0" in done.output and "WARNING" not in done.output
    written = {name for name in snapshot(models.parent) if name not in before}
    assert written == {"reports/localhost/preflight.json"}
    assert {name: seen for name, seen in snapshot(models.parent).items() if name in before} == before
    told = document(models)
    assert (told["verdict"], told["host"], told["findings"]) == ("ready", "localhost", [])
    assert told["gpu"] == {"count": 0} and told["comparison"] is None


def test_a_wrong_mask_is_refused_with_the_table(models: Path) -> None:
    done = preflight(models, **WRONG_MASK)
    assert done.code == 2
    assert "localhost REFUSED 1 error" in done.told and "DG420" in done.told
    assert "msg: 'DG206: judging the drafter by its files:" in done.output, done.output
    assert "effective_config" not in done.output, "the table says it, not Ansible's dump of the result"
    assert document(models)["verdict"] == "refused"


def test_what_the_operator_accepts_is_shown_and_passes(models: Path) -> None:
    taken = [{"code": "DG206", "reason": "to see what it costs"}]
    done = preflight(models, **WRONG_MASK, drafter_accept_findings=taken)
    assert done.code == 0
    assert "READY 1 error (1 accepted)" in done.told and "accepted: to see what it costs" in done.told
    assert document(models)["findings"][0]["accepted"] == "to see what it costs"


def test_a_report_that_cannot_be_written_names_its_variable(models: Path) -> None:
    (models.parent / "file").touch()
    done = preflight(models, draftgate_reports_dir=str(models.parent / "file"))
    assert done.code == 2 and "Set draftgate_reports_dir to a directory of the controller" in done.told


def test_a_secret_in_the_environment_is_not_shown(models: Path) -> None:
    secret = "not-to-be-seen"
    done = preflight(
        models, "-vvv", vllm_environment={"HF_TOKEN": secret}, vllm_server_args={"api_key": secret}
    )
    assert done.code == 2 and secret not in done.output  # a deploy would refuse both places
    told = read_json(models.parent / "reports/localhost/preflight.json")
    assert told["verdict"] == "refused" and "api_key" in told["refused"] and secret not in str(told)


@pytest.mark.parametrize(
    ("variables", "said"),
    [
        ({"drafter_overides": {}}, "drafter_overides (did you mean drafter_overrides?)"),
        ({"vllm_server_args": {"max-model-len": 8192}}, "'max-model-len' is no option in snake_case"),
        ({"vllm_environment": {"CUDA_VISIBLE_DEVICES": "0"}}, "CUDA_VISIBLE_DEVICES"),
        ({"drafter_gpu": {"arch": "A6000"}}, "8.6 is sm_86 (an RTX A6000)"),
        ({"drafter_overrides": {"dflash_config.mask_token_id": 300}}, "is a key with a dot in it"),
    ],
)
def test_what_a_deploy_refuses_is_never_ready(models: Path, variables: dict[str, Any], said: str) -> None:
    """An older verdict does not stay beside a wish that cannot be judged."""
    report = models.parent / "reports/localhost/preflight.json"
    write_json(report, {"verdict": "ready"})
    done = preflight(models, **variables)
    assert done.code == 2 and said in done.told and "READY" not in done.output
    assert not report.exists() or read_json(report)["verdict"] == "refused"


def test_an_acceptance_that_does_not_count_is_said(models: Path) -> None:
    entries = [
        {"code": "DG206", "reason": "old", "until": "2026-01-31"},
        {"code": "DG999", "reason": "no such code"},
    ]
    done = preflight(models, **WRONG_MASK, drafter_accept_findings=entries)
    assert done.code == 2 and "The acceptance of DG206 ended on 2026-01-31." in done.told
    assert "DG999, which is no finding's code" in done.told
    both = [*entries[:1], {"code": "DG206", "reason": "again"}]
    for acceptances in (both, both[::-1]):
        assert preflight(models, **WRONG_MASK, drafter_accept_findings=acceptances).code == 0


def test_check_mode_says_the_same_and_writes_nothing(models: Path) -> None:
    before = snapshot(models.parent)
    assert preflight(models, "--check", "--diff").code == 0
    assert preflight(models, "--check", **WRONG_MASK).code == 2
    assert snapshot(models.parent) == before


def test_without_a_drafter_there_is_nothing_to_judge(models: Path) -> None:
    done = preflight(models, drafter_path="")
    assert done.code == 0 and "drafter_path is empty" in done.told
    assert not (models.parent / "reports").exists()


@pytest.mark.parametrize("variable", ["drafter_path", "target_path"])
def test_a_missing_directory_is_named_with_its_variable(models: Path, variable: str) -> None:
    done = preflight(models, **{variable: "/nope"})
    assert done.code == 2
    assert f"DG601: reading {variable}: ''/nope'' is not there" in done.told, done.output


def test_an_upgrade_shows_old_against_new_before_anything_is_touched(models: Path) -> None:
    drafter, target = write_pair_27b(models.parent / "27b")
    pair = {
        "drafter_path": str(drafter),
        "target_path": str(target),
        "drafter_gpu": {"arch": "sm_86", "count": 2, "memory_gib": 48},
        "num_speculative_tokens": 15,
    }
    serve = {"engine": {"name": "vllm", "version": "0.20.1"}}
    write_json(models.parent / "home/state/active.json", {"deployment": {"serve": serve}})
    before = snapshot(models.parent / "home")
    done = preflight(models, **pair, vllm_version="0.32.0")
    assert done.code == 0
    told = "From vLLM 0.20.1 to vLLM 0.32.0 goes DG402 engine.version: vLLM 0.20.1 reads each target layer"
    assert told in done.told and "goes DG403 engine.version: vLLM 0.20.1 ignores the windows" in done.told
    assert "comes nothing" in done.told and "on 2x sm_86, 48 GiB each" in done.told
    both = document(models)["comparison"]
    assert [finding["code"] for finding in both["gone"]] == ["DG402", "DG403", "DG409"]
    back = preflight(models, **pair, vllm_version="0.25.1", drafter_compare_with="0.32.0")
    assert back.code == 2
    assert "From vLLM 0.32.0 to vLLM 0.25.1 goes nothing comes DG404 engine.version" in back.told
    assert snapshot(models.parent / "home") == before
