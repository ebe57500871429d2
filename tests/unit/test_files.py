"""What is written on a host: whole after a kill, and never more open than it should be."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest
from draftgate import files


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
    open_to = 0o755 & ~umask
    assert modes(tmp_path) == {
        "home": open_to,
        "home/state": open_to,
        "home/state/secrets": 0o700,
        "other": open_to,
        "other/state": open_to,
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
