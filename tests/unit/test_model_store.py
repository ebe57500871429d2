"""A model's digest is its content, the store's copy is whole, and an unchanged model is not read again."""

from __future__ import annotations

import json
import os
import shutil
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from draftgate import model_store
from draftgate.canonical import file_digest
from draftgate.errors import DraftgateError, HostError, InputError
from draftgate.layout import Home
from draftgate.model_store import content_digest, ensure, inspect

from tests.conftest import CallModule, RunModule


@pytest.fixture
def model(tmp_path: Path) -> Path:
    path = tmp_path / "model"
    (path / "sub").mkdir(parents=True)
    (path / "config.json").write_text("{}")
    (path / "sub" / "weights.bin").write_bytes(os.urandom(100_000))
    (path / "z.txt").write_text("z")
    return path


@pytest.fixture
def home(tmp_path: Path) -> Home:
    return Home.at(str(tmp_path / "home"))


@pytest.fixture
def hashed(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Names of the files whose bytes were read for a digest."""
    names: list[str] = []
    real = file_digest

    def counting(path: str) -> str:
        names.append(os.path.basename(path))
        return real(path)

    monkeypatch.setattr(model_store, "file_digest", counting)
    return names


def digest(path: Path) -> str:
    return content_digest(str(path), None).digest


def test_the_digest_is_of_names_and_bytes(model: Path, tmp_path: Path) -> None:
    before = digest(model)
    shutil.copytree(model, tmp_path / "elsewhere")
    assert digest(tmp_path / "elsewhere") == before
    content = content_digest(str(model), None)
    assert [file.name for file in content.files] == ["config.json", "sub/weights.bin", "z.txt"]
    assert content.bytes == 100_003


@pytest.mark.parametrize(
    ("change", "counts"),
    [
        (lambda path: (path / "README.md").write_text("words"), False),
        (lambda path: (path / "sub" / "Notes.MD").write_text("words"), False),
        (lambda path: (path / ".gitattributes").write_text("x"), False),
        (lambda path: (path / ".git").mkdir() or (path / ".git" / "HEAD").write_text("x"), False),
        (lambda path: (path / "empty").mkdir(), False),
        (lambda path: (path / "z.txt").touch(), False),
        (lambda path: (path / "z.txt").chmod(0o600), False),
        (lambda path: (path / "z.txt").write_text("y"), True),
        (lambda path: (path / "new").write_text(""), True),
        (lambda path: (path / "z.txt").rename(path / "y.txt"), True),
        (lambda path: (path / "z.txt").unlink(), True),
    ],
)
def test_what_counts(model: Path, change: Callable[[Path], Any], counts: bool) -> None:
    before = digest(model)
    change(model)
    assert (digest(model) != before) is counts


def test_an_unchanged_model_is_not_read_again(model: Path, tmp_path: Path, hashed: list[str]) -> None:
    cache = str(tmp_path / "cache.json")
    first = content_digest(str(model), cache)
    assert len(hashed) == 3
    assert content_digest(str(model), cache) == first
    assert len(hashed) == 3
    (model / "z.txt").write_text("y")
    assert content_digest(str(model), cache).digest != first.digest
    assert hashed[3:] == ["z.txt"]


@pytest.mark.parametrize("content", ["", "{", "[]", '{"x": 1}'])
def test_a_broken_cache_costs_time_only(model: Path, tmp_path: Path, content: str) -> None:
    cache = tmp_path / "cache.json"
    cache.write_text(content)
    assert content_digest(str(model), str(cache)).digest == digest(model)
    assert len(json.loads(cache.read_text())) >= 3


def test_a_model_in_the_store_outlives_its_source(model: Path, home: Home) -> None:
    (model / "README.md").write_text("not copied")
    stored = ensure(home, str(model))
    assert stored.changed and stored.path == home.model(stored.digest)
    assert digest(Path(stored.path)) == stored.digest
    assert not os.path.exists(os.path.join(stored.path, "README.md"))
    with (model / "sub" / "weights.bin").open("r+b") as handle:  # an edit in place reaches no copy
        handle.write(b"other")
    assert digest(Path(stored.path)) == stored.digest
    assert os.listdir(os.path.dirname(stored.path)) == [os.path.basename(stored.path)]


def test_a_second_run_reads_no_weights(model: Path, home: Home, hashed: list[str]) -> None:
    ensure(home, str(model))
    hashed.clear()
    assert not ensure(home, str(model)).changed
    assert not inspect(home, str(model)).changed
    assert hashed == []


def test_a_killed_copy_goes_on_where_it_stopped(
    model: Path, home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = model_store._copy_bytes
    copied: list[int] = []

    def going_on(reader: int, writer: int, size: int) -> None:
        copied.append(size)
        real(reader, writer, size)

    def killed(reader: int, writer: int, size: int) -> None:
        if size == 1:
            os.write(writer, b"?")
            raise KeyboardInterrupt
        going_on(reader, writer, size)

    monkeypatch.setattr(model_store, "_copy_bytes", killed)
    with pytest.raises(KeyboardInterrupt):
        ensure(home, str(model))
    assert not os.path.exists(inspect(home, str(model)).path)
    monkeypatch.setattr(model_store, "_copy_bytes", going_on)
    stored = ensure(home, str(model))
    assert copied == [2, 100_000, 1]  # the last one is all that was left to do
    assert digest(Path(stored.path)) == stored.digest


def test_a_stray_in_a_killed_copy_does_not_get_into_the_store(model: Path, home: Home) -> None:
    path = inspect(home, str(model)).path
    partial = Path(model_store._partial(path))
    partial.mkdir(parents=True)
    (partial / "stray.bin").write_text("of another run")
    assert digest(Path(ensure(home, str(model)).path)) == digest(model)


def test_a_damaged_copy_is_made_again(model: Path, home: Home) -> None:
    stored = ensure(home, str(model))
    (Path(stored.path) / "z.txt").write_text("damaged")
    assert inspect(home, str(model)).changed
    assert ensure(home, str(model)).changed
    assert digest(Path(stored.path)) == stored.digest


def test_where_the_kernel_cannot_copy_bytes_are_copied(
    model: Path, home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(*arguments: int) -> int:
        raise OSError(95, "Operation not supported")

    monkeypatch.setattr(os, "copy_file_range", refused)
    stored = ensure(home, str(model))
    assert digest(Path(stored.path)) == stored.digest


def test_no_room_is_said_in_numbers_before_anything_is_copied(model: Path, home: Home) -> None:
    with pytest.raises(HostError) as caught:
        ensure(home, str(model), free_bytes=lambda path: 100_002)
    assert caught.value.code == "DG603"
    assert caught.value.details == {"free_bytes": 100_002, "needed_bytes": 100_003}
    assert "GiB free and the copy needs" in str(caught.value)
    assert not os.path.exists(inspect(home, str(model)).path)
    assert ensure(home, str(model), free_bytes=lambda path: 100_003).changed


def test_a_source_that_changes_while_it_is_read_is_refused(
    model: Path, home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = file_digest

    def writing(path: str) -> str:
        result = real(path)
        if path == str(model / "z.txt"):
            (model / "z.txt").write_text("longer")
        return result

    monkeypatch.setattr(model_store, "file_digest", writing)
    with pytest.raises(HostError, match="DG604.*changed while it was read"):
        ensure(home, str(model))


def test_a_source_that_changes_before_it_is_copied_is_refused(
    model: Path, home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = model_store._require_room

    def writing(*arguments: Any) -> None:
        real(*arguments)
        (model / "z.txt").write_text("y")

    monkeypatch.setattr(model_store, "_require_room", writing)
    with pytest.raises(HostError, match="DG604.*'z.txt' came out different"):
        ensure(home, str(model))


# What is no model, or cannot be copied.


def _file(path: Path) -> Path:
    return path / "config.json"


def _missing(path: Path) -> Path:
    return path / "absent"


def _empty(path: Path) -> Path:
    (path / "hollow").mkdir()
    (path / "hollow" / ".hidden").write_text("x")
    return path / "hollow"


def _pipe(path: Path) -> Path:
    os.mkfifo(path / "pipe")
    return path


def _socket(path: Path) -> Path:
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(path / "s"))
    return path


def _link_out(path: Path) -> Path:
    (path / "weights").symlink_to("/etc/hostname")
    return path


def _dangling(path: Path) -> Path:
    (path / "weights").symlink_to("nowhere")
    return path


def _directory_link(path: Path) -> Path:
    (path / "again").symlink_to("sub")
    return path


def _bad_name(path: Path) -> Path:
    Path(os.fsdecode(os.fsencode(path) + b"/caf\xe9.bin")).write_text("x")
    return path


@pytest.mark.parametrize(
    ("make", "code", "said"),
    [
        (_file, "DG601", "config.json' is a file"),
        (_missing, "DG601", "absent' does not exist"),
        (_empty, "DG601", "has no files"),
        (_pipe, "DG602", "pipe' is a pipe, socket or device"),
        (_socket, "DG602", "s' is a pipe, socket or device"),
        (_link_out, "DG602", "is a link to '/etc/hostname', outside of the model"),
        (_dangling, "DG602", "cannot be read: No such file"),
        (_directory_link, "DG602", "again' is a link to a directory"),
        (_bad_name, "DG602", "caf\\\\xe9.bin' has a name that is not UTF-8"),
    ],
)
def test_what_cannot_be_copied_is_named(
    model: Path, home: Home, make: Callable[[Path], Path], code: str, said: str
) -> None:
    with pytest.raises(InputError) as caught:
        ensure(home, str(make(model)))
    assert caught.value.code == code
    assert said in str(caught.value) and caught.value.next_step
    str(caught.value).encode("utf-8")  # it can be printed and sent
    assert not os.path.exists(home.root)


def test_a_link_within_the_model_is_copied_as_its_file(model: Path, home: Home) -> None:
    (model / "same.txt").symlink_to("z.txt")
    stored = ensure(home, str(model))
    assert not os.path.islink(os.path.join(stored.path, "same.txt"))
    assert digest(Path(stored.path)) == stored.digest == digest(model)


# The module.


def test_the_module_checks_without_a_trace_then_copies_once(
    call_module: CallModule, model: Path, home: Home
) -> None:
    wish = {"models": {"target": str(model), "drafter": str(model)}, "home": home.root}
    checked = call_module("model_store", wish, check_mode=True, diff=True)
    path = checked["models"]["target"]["path"]
    assert checked["changed"] and not os.path.exists(home.root)
    assert checked["diff"] == {
        "before": {"target": "", "drafter": ""},
        "after": {"target": path, "drafter": path},
    }
    inspected = call_module("model_store", {**wish, "state": "inspected"})
    assert not inspected["changed"] and not os.path.exists(path)
    done = call_module("model_store", wish)
    assert done["changed"] and os.path.isdir(path)
    assert done["models"]["drafter"]["source"] == str(model)
    again = call_module("model_store", wish, diff=True)
    assert not again["changed"] and again["diff"]["before"] == again["diff"]["after"]


@pytest.mark.parametrize("path", ["", None, 5, ["a"]])
def test_a_model_without_a_directory_is_refused(home: Home, path: Any) -> None:
    with pytest.raises(DraftgateError, match="DG601.*Set drafter_path"):
        model_store.converge(home, {"drafter": path}, wanted_present=True, check_mode=False)


def test_the_packed_module_runs(run_module: RunModule, model: Path, home: Home) -> None:
    wish = {"models": {"target": str(model)}, "home": home.root}
    assert run_module("model_store", wish)["changed"]
    assert not run_module("model_store", wish)["changed"]
