"""What is written on a host: whole after a kill, and never more open than it should be."""

from __future__ import annotations

import os
import shutil
import stat
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from draftgate import agent, effective_config, files, model_store
from draftgate.layout import Home

Package = tuple[str, bytes]


@pytest.fixture(params=[0o000, 0o022, 0o077], ids=oct)
def umask(request: pytest.FixtureRequest) -> Iterator[int]:
    before = os.umask(request.param)
    yield request.param
    os.umask(before)


def modes(root: Path) -> dict[str, int]:
    """Relative name → mode of everything below ``root``; a link has none of its own."""
    found = (path for path in root.rglob("*") if not path.is_symlink())
    return {str(path.relative_to(root)): stat.S_IMODE(path.stat().st_mode) for path in found}


def test_a_directory_has_its_mode_whatever_the_umask(tmp_path: Path, umask: int) -> None:
    files.make_directory(str(tmp_path / "home" / "state" / "secrets"), 0o700)
    files.write_json(str(tmp_path / "other" / "state" / "active.json"), {})
    assert modes(tmp_path) == {
        "home": 0o755,
        "home/state": 0o755,
        "home/state/secrets": 0o700,
        "other": 0o755,
        "other/state": 0o755,
        "other/state/active.json": 0o644,
    }


def test_a_directory_that_is_there_is_left_alone_and_a_file_is_not_one(tmp_path: Path) -> None:
    (tmp_path / "d").mkdir(mode=0o750)
    (tmp_path / "f").touch()
    files.make_directory(str(tmp_path / "d"), 0o700)
    assert modes(tmp_path)["d"] == 0o750
    for name in ("f", "f/below"):
        with pytest.raises(OSError, match="exists|directory"):
            files.make_directory(str(tmp_path / name))


@pytest.mark.parametrize(
    ("before", "written"), [(None, True), (b"old", True), (b"\xff", True), ("new ü".encode(), False)]
)
def test_only_a_change_is_written(tmp_path: Path, before: bytes | None, written: bool) -> None:
    path = tmp_path / "d" / "unit"
    if before is not None:
        path.parent.mkdir()
        path.write_bytes(before)
    assert files.write_changed(str(path), "new ü", 0o600) is written
    assert path.read_text("utf-8") == "new ü"


@pytest.fixture
def package(tmp_path: Path) -> Package:
    """A small agent: its digest and its archive."""
    source = tmp_path / "source"
    (source / "backend").mkdir(parents=True)
    for name in ("__init__.py", "__main__.py", "backend/__init__.py"):
        (source / name).write_text(f"name = {name!r}\n")
    return agent.build(str(source))


def test_nobody_else_may_write_what_a_host_is_given(tmp_path: Path, umask: int, package: Package) -> None:
    model = tmp_path / "model"
    (model / "deep").mkdir(parents=True)
    (model / "config.json").write_text("{}")
    (model / "deep" / "model.safetensors").write_bytes(b"x")
    home = Home(str(tmp_path / "home"))
    agent.install(home, *package, sys.executable)
    model_store.ensure(home, str(model))
    effective_config.write(home.release_drafter("0123456789ab"), str(model), {})
    open_to_others = {name: oct(mode) for name, mode in modes(Path(home.root)).items() if mode & 0o022}
    assert not open_to_others


def empty(path: Path) -> None:
    path.write_bytes(b"")


@pytest.mark.parametrize(
    ("damaged", "how"),
    [
        ("draftgate/__main__.py", empty),
        ("draftgate/backend/__init__.py", Path.unlink),
        ("draftgate/extra.py", Path.touch),
        ("draftgate", shutil.rmtree),
        ("draftgate/__init__.py", lambda path: path.unlink() or path.symlink_to("nowhere")),
    ],
)
def test_a_damaged_agent_is_seen_and_made_whole(
    tmp_path: Path, package: Package, damaged: str, how: Callable[[Path], object]
) -> None:
    home, digest = Home(str(tmp_path / "home")), package[0]
    assert agent.install(home, *package, sys.executable)
    assert agent.installed(home) == digest[:12]
    how(Path(home.agent(digest)) / damaged)
    assert agent.installed(home) == "", "so that a deploy does not take the host for up to date"
    assert agent.install(home, *package, sys.executable)
    assert agent.installed(home) == digest[:12]
    assert not agent.install(home, *package, sys.executable)
    assert sorted(os.listdir(home.path("agent"))) == sorted([digest[:12], "current"])


def test_an_agent_is_on_the_disk_before_it_has_its_name(
    tmp_path: Path, package: Package, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[str] = []
    before_the_name: list[str] = []
    real_fsync, real_rename = os.fsync, os.rename

    def fsync(descriptor: int) -> None:
        synced.append(os.readlink(f"/proc/self/fd/{descriptor}"))
        real_fsync(descriptor)

    def rename(source: str, target: str) -> None:
        before_the_name.extend(synced)
        real_rename(source, target)

    monkeypatch.setattr(os, "fsync", fsync)
    monkeypatch.setattr(os, "rename", rename)
    agent.install(Home(str(tmp_path / "home")), *package, sys.executable)
    written = [
        os.path.basename(path).split(".py")[0].lstrip(".") for path in before_the_name if ".py" in path
    ]
    assert sorted(written) == ["__init__", "__init__", "__main__"]
