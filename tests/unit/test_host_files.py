"""The journal, the agent, the secrets and the progress: what lies on a host and must survive a kill."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from draftgate import agent, files, front, host, journal, processes, progress, removal, spec
from draftgate.errors import HostError, InputError
from draftgate.layout import Home
from draftgate.options import checked, seconds_of


@pytest.mark.parametrize(
    "torn", [b'{"state": "previous_st', b"\0\0\0\0", b'{"state": \0\0\0\0"}\n', b"\0\0\0\n"]
)
def test_a_torn_last_line_is_dropped_and_the_next_is_whole(tmp_path: Path, torn: bytes) -> None:
    path = tmp_path / "journal.jsonl"
    log = journal.Journal(str(path), lambda: 1.0)
    log.append("prepared")
    with path.open("ab") as handle:
        handle.write(torn)
    assert [entry["state"] for entry in log.entries()] == ["prepared"]
    log.append("started")
    assert [entry["state"] for entry in log.entries()] == ["prepared", "started"]


@pytest.mark.parametrize("edited", ["not json\n", '\0\n{"state": "prepared"}\n'])
def test_an_edited_journal_is_one_clear_error(tmp_path: Path, edited: str) -> None:
    path = tmp_path / "journal.jsonl"
    path.write_text(edited)
    with pytest.raises(HostError, match="line 1"):
        journal.Journal(str(path), lambda: 1.0).entries()


def test_a_failed_write_leaves_the_old_file_and_no_litter(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "active.json"
    files.write_json(str(path), {"release": "old"})

    def full(_descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space left"):
        files.write_json(str(path), {"release": "new"})
    assert files.read_json(str(path), "reading") == {"release": "old"}
    assert os.listdir(tmp_path) == ["active.json"]


@pytest.mark.parametrize(
    ("content", "named"),
    [(b"{", "not JSON"), (b"[]", "a JSON list"), (b'"\xff"', "not UTF-8"), (None, "cannot be read")],
)
def test_a_bad_json_file_is_one_clear_error(tmp_path: Path, content: bytes | None, named: str) -> None:
    path = tmp_path / "x.json"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(InputError, match=named):
        files.read_json(str(path), "reading a file")


def test_the_agent_is_the_package_and_runs_from_its_home(tmp_path: Path, repo: Path) -> None:
    digest, archive = agent.build(str(repo / "module_utils" / "draftgate"))
    assert agent.build(str(repo / "module_utils" / "draftgate")) == (digest, archive)
    home = Home(str(tmp_path / "home with space"))
    assert agent.install(home, digest, archive, sys.executable)
    assert not agent.install(home, digest, archive, sys.executable), "the second time changes nothing"
    done = subprocess.run([home.command, "--version"], capture_output=True, text=True, check=True)
    assert done.stdout.strip()


def test_an_archive_under_a_wrong_digest_is_refused(tmp_path: Path, repo: Path) -> None:
    _digest, archive = agent.build(str(repo / "module_utils" / "draftgate"))
    home = Home(str(tmp_path))
    with pytest.raises(HostError, match="digest"):
        agent.install(home, "0" * 64, archive, sys.executable)
    assert agent.installed(home) == ""


def test_a_write_that_a_full_disk_cut_short_is_no_entry(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = journal.Journal(str(tmp_path / "j"), lambda: 1.0)
    log.append("prepared")
    real = os.write
    monkeypatch.setattr(os, "write", lambda descriptor, data: real(descriptor, data[: len(data) // 2]))
    with pytest.raises(OSError, match="No space left"):
        log.append("started")
    monkeypatch.undo()
    log.append("failed")
    assert [entry["state"] for entry in log.entries()] == ["prepared", "failed"]


@pytest.mark.parametrize("path", ["", " ", "/", "~", "~/", "/home/.."])
def test_a_home_is_a_directory_of_its_own(path: str) -> None:
    with pytest.raises(InputError, match="draftgate_home"):
        Home.at(path)


def test_removal_touches_only_an_installation(tmp_path: Path) -> None:
    home = Home(str(tmp_path / "photos"))
    (tmp_path / "photos" / "logs").mkdir(parents=True)
    (tmp_path / "photos" / "beach.jpg").touch()
    gone: list[str] = []
    manager: Any = SimpleNamespace(shutdown=lambda: gone.append("manager"), remove_job=gone.append)
    with pytest.raises(HostError, match=r"beach\.jpg"):
        removal.absent(home, manager, purge=True, check=False)
    (tmp_path / "photos" / "state").mkdir()
    result = removal.absent(home, manager, purge=True, check=False)
    assert os.listdir(home.root) == ["beach.jpg"] and result["kept"] == [home.path("beach.jpg")]
    assert gone == ["switch", "manager"]


def test_what_runs_until_it_is_stopped_leaves_nothing_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The switch's job leads the front and records its candidate until it is stopped, an engine logs."""
    home = Home(str(tmp_path / "home"))
    order: list[str] = []
    nginx = {"command": ["/nowhere/nginx"], "configuration": str(tmp_path), "state": str(tmp_path / "front")}
    led = tmp_path / "front" / processes.home_digest(home.root)
    files.write_json(home.front, {"nginx": nginx, "settings": {}})

    def job_ends(_name: str) -> None:
        order.append("job")
        files.write_json(os.path.join(home.evidence("r1"), "1.json"), {})
        front.lead(str(led), "8001")

    def manager_ends() -> None:
        order.append(f"manager, front {'there' if led.exists() else 'gone'}")
        files.write_atomic(home.path("logs", "engine.log"), b"bye")

    manager: Any = SimpleNamespace(shutdown=manager_ends, remove_job=job_ends)
    assert removal.absent(home, manager, purge=False, check=True) == {"changed": True, "kept": []}
    assert order == [] and os.path.exists(home.front)
    removal.absent(home, manager, purge=False, check=False)
    assert order == ["job", "manager, front gone"]
    assert not os.path.exists(home.root) and not (tmp_path / "front").exists()


def test_pruning_keeps_what_is_needed(tmp_path: Path) -> None:
    home = Home(str(tmp_path))
    place = {"secrets": {"VLLM_API_KEY": "a" * 64}}
    active = {
        "deployment": {"id": "d1", "release": "r1", "place": place},
        "previous": {"id": "d0", "release": "r0", "place": place},
    }
    files.write_json(home.active, active)
    for age, name in enumerate(["r9", "r8", "r7", "r1", "r0"]):
        files.write_json(home.release_spec(name), {})
        os.utime(home.release(name), (1000 - age, 1000 - age))
    kept = ["VLLM_API_KEY.aaaaaaaaaaaa", "engine-d0.env", "engine-d1.env", "key"]
    for name in (*kept, "VLLM_API_KEY.bbbbbbbbbbbb", "engine-d9.env"):
        files.write_atomic(os.path.join(home.secrets, name), b"x", 0o600)
    assert sorted(removal.pruned(home, 2, check=True)["removed"]) == [
        "releases/r7",
        "secrets/VLLM_API_KEY.bbbbbbbbbbbb",
        "secrets/engine-d9.env",
    ]
    removal.pruned(home, 2, check=False)
    assert sorted(os.listdir(tmp_path / "releases")) == ["r0", "r1", "r8", "r9"]
    assert sorted(os.listdir(home.secrets)) == kept


def _deployment(home: Home, key: str, **serve: Any) -> dict[str, Any]:
    place = {"home": home.root, "secrets": {"VLLM_API_KEY": key * 64}}
    return spec.deployment({"serve": {"drafter": {}, **serve}, "place": place, "gate": {}})


@pytest.mark.parametrize("end", [None, "activated"], ids=["open", "finished"])
def test_pruning_keeps_what_a_switch_may_start_yet(tmp_path: Path, end: str | None) -> None:
    """Another controller's switch: its wish is written, its candidate runs or is about to."""
    home = Home(str(tmp_path))
    wished, candidate = _deployment(home, "a", args={"a": 1}), _deployment(home, "b", args={"b": 1})
    fallback = spec.without_speculation(candidate)
    files.write_json(home.wish, {"spec": {part: wished[part] for part in spec.PARTS}})
    opened = journal.Journal(home.journal, lambda: 1.0)
    opened.append("prepared", candidate=candidate, fallback=fallback, previous=None)
    if end:
        opened.append(end)
    parts: dict[str, list[str]] = {}
    for name, deployed in (("wished", wished), ("candidate", candidate), ("fallback", fallback)):
        secret = home.secret("VLLM_API_KEY", deployed["place"]["secrets"]["VLLM_API_KEY"])
        environment = os.path.join(home.secrets, f"engine-{deployed['id']}.env")
        parts[name] = [secret, environment, home.release_spec(deployed["release"])]
        for path in parts[name]:
            files.write_json(path, {})
    removal.pruned(home, 0, check=False)
    left = {name for name, paths in parts.items() if all(map(os.path.exists, paths))}
    assert left == ({"wished"} if end else {"wished", "candidate", "fallback"})


@pytest.mark.parametrize(("value", "meant"), [("false", False), ("no", False), (True, True), ("true", True)])
def test_text_of_a_switch_option_means_what_it_says(value: object, meant: bool) -> None:
    assert checked({"retry": value})["retry"] is meant


@pytest.mark.parametrize(
    "given",
    [{"retry": "maybe"}, {"on_failure": "panic"}, {"strategy": "yolo"}, {"typo": 1}, {"time_limit": "x"}],
)
def test_an_option_without_meaning_is_refused(given: dict[str, Any]) -> None:
    with pytest.raises(InputError):
        checked(given)


def test_a_secret_is_a_private_file_and_a_keyed_digest(tmp_path: Path) -> None:
    home, other = Home(str(tmp_path / "a")), Home(str(tmp_path / "b"))
    secret = {"VLLM_API_KEY": "hunter2hunter2"}
    digests = host.salted(home, secret, create=True)
    host.store_secrets(home, secret, digests)
    path = home.secret("VLLM_API_KEY", digests["VLLM_API_KEY"])
    assert stat.S_IMODE(os.stat(path).st_mode) == 0o600
    assert stat.S_IMODE(os.stat(home.secrets).st_mode) == 0o700
    assert host.salted(home, secret, create=False) == digests, "the same secret counts the same"
    assert host.salted(other, secret, create=True) != digests, "equal secrets on two hosts do not look equal"
    assert "hunter2" not in str(digests)


def test_what_remains_comes_from_last_time_and_from_the_count(tmp_path: Path) -> None:
    now = [100.0]
    path = str(tmp_path / "p.json")
    report = progress.ProgressFile(path, ["start", "gate"], {"start": 40.0, "gate": 20.0}, lambda: now[0])
    report("start", 0, 0, "")
    now[0] += 10
    report("start", 0, 0, "loading")
    assert progress.read(path)["remaining"] == 50.0
    now[0] += 30
    report("gate", 0, 10, "")
    now[0] += 4
    report("gate", 2, 10, "prose")
    assert progress.read(path)["remaining"] == pytest.approx(16.0)
    assert (
        progress.line("gpu1", "switch", progress.read(path))
        == "gpu1 | switch | gate | 20 % | prose | 44s, ~16s left"
    )


@pytest.mark.parametrize(
    ("text", "seconds"),
    [(90, 90), ("90 s", 90), ("30 m", 1800), ("12h", 43200), ("30 d", 2592000), ("1.5 m", 90)],
)
def test_times_are_read(text: object, seconds: float) -> None:
    assert seconds_of("x", text) == seconds


@pytest.mark.parametrize("text", ["", "soon", "-3 m", 0, True, "nan", "5 w"])
def test_bad_times_are_refused(text: object) -> None:
    with pytest.raises(InputError, match="reading x"):
        seconds_of("x", text)
