"""A power cut at every step of a switch: what was not fsynced may be gone, each part of it on its own.

The real switch runs on a real directory; processes are played as in ``test_switch``. A shim around the calls
that change a file or a name remembers before each what is there, and what is certainly on the disk. Of each
such cut every state is made that a disk may be found in, and a host boots with it.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from draftgate import evidence, files, headroom, host, journal, judge
from draftgate.journal import Journal
from draftgate.layout import Home

from tests.unit import test_switch as played

stage = played.stage
"""The fixture: homes whose processes are played."""

Nodes = dict[int, bytes | dict[str, int]]
"""By inode: a file's content, or what a directory's names lead to."""
Tree = dict[str, bytes]
"""Path → content."""
SECRET = b"what a candidate needs to start"
CALLS = ("open", "mkdir", "write", "ftruncate", "fsync", "link", "replace", "rename", "unlink")


@dataclass(frozen=True)
class Cut:
    """What is there, what is on the disk, and each switch's journal as far as ``append`` has returned."""

    before: str
    now: Nodes
    durable: Nodes
    promised: dict[str, bytes]


@dataclass
class Disk:
    """Records what happens below ``root``; what is there at the beginning is on the disk."""

    root: Path
    durable: Nodes = field(default_factory=dict)
    promised: dict[str, bytes] = field(default_factory=dict)
    cuts: list[Cut] = field(default_factory=list)
    kept_open: list[int] = field(default_factory=list)

    def look(self) -> Nodes:
        nodes: Nodes = {}
        for folder, below, plain in os.walk(self.root):
            paths = {name: Path(folder, name) for name in below + plain}
            nodes[os.stat(folder).st_ino] = {name: path.stat().st_ino for name, path in paths.items()}
            nodes.update({paths[name].stat().st_ino: paths[name].read_bytes() for name in plain})
        return nodes

    def cut(self, before: str) -> None:
        self.cuts.append(Cut(before, self.look(), dict(self.durable), dict(self.promised)))

    def record(self, patch: pytest.MonkeyPatch, act: Callable[[], Any]) -> None:
        self.durable = self.look()
        with patch.context() as shim:
            for name in CALLS:
                shim.setattr(os, name, self._watched(name, getattr(os, name)))
            shim.setattr(Journal, "append", self._promising(Journal.append))
            act()
        self.cut("the end")
        for descriptor in self.kept_open:
            os.close(descriptor)

    def _watched(self, name: str, real: Callable[..., Any]) -> Callable[..., Any]:
        def call(target: Any, *rest: Any, **more: Any) -> Any:
            path = os.readlink(f"/proc/self/fd/{target}") if isinstance(target, int) else target
            self.cut(f"{name} {os.path.relpath(path, self.root)}")
            if name == "fsync":  # the content of a file, or the names of a directory, and nothing else
                inode = os.fstat(target).st_ino
                return self.durable.update({inode: self.look()[inode]})
            result = real(target, *rest, **more)
            if name == "open":  # kept, so that no later file has this one's inode
                self.kept_open.append(os.dup(result))
            return result

        return call

    def _promising(self, append: Callable[..., Any]) -> Callable[..., Any]:
        def promised(log: Journal, state: str, **fields: Any) -> Any:
            entry = append(log, state, **fields)
            self.promised[log.entries()[0]["switch"]] = Path(log.path).read_bytes()
            return entry

        return promised


# What may be found on the disk


def found(cut: Cut, root: int) -> Iterator[Tree]:
    """Each name, and each file, as it is or as it was last fsynced; or one file torn in between."""
    pending = [
        (folder, name)
        for folder, names in cut.now.items()
        if isinstance(names, dict)
        for name in sorted(names.keys() | _names(cut.durable, folder).keys())
        if names.get(name) != _names(cut.durable, folder).get(name)
    ]
    certain = set(_paths(cut, root, set()).values()) & set(_paths(cut, root, set(pending)).values())
    for choice in itertools.product((True, False), repeat=len(pending)):
        lost = {place for place, kept in zip(pending, choice, strict=True) if not kept}
        paths = _paths(cut, root, lost)
        if not certain <= set(paths.values()):
            continue  # a rename is done or not: no file system loses both names
        contents = [_contents(cut, inode) for inode in paths.values()]
        for whole in itertools.product(*(some[:2] for some in contents)):
            yield dict(zip(paths, whole, strict=True))
        for place, some in zip(paths, contents, strict=True):
            rest = dict(zip(paths, (other[0] for other in contents), strict=True))
            yield from ({**rest, place: torn} for torn in some[2:])


def _names(nodes: Nodes, folder: int) -> dict[str, int]:
    names = nodes.get(folder, {})
    assert isinstance(names, dict)
    return names


def _paths(cut: Cut, folder: int, lost: set[tuple[int, str]], prefix: str = "") -> dict[str, int]:
    paths: dict[str, int] = {}
    now, durable = _names(cut.now, folder), _names(cut.durable, folder)
    for name in now.keys() | durable.keys():
        inode = (durable if (folder, name) in lost else now).get(name)
        if inode is not None and isinstance(cut.now.get(inode), dict):
            paths |= _paths(cut, inode, lost, f"{prefix}{name}/")
        elif inode is not None:
            paths[f"{prefix}{name}"] = inode
    return paths


def _contents(cut: Cut, inode: int) -> list[bytes]:
    """The file as it is, as it is on the disk, and what lies between: pages are written in any order."""
    old = cut.durable.get(inode, b"")
    new = cut.now.get(inode, old)
    assert isinstance(old, bytes) and isinstance(new, bytes)
    if old == new:
        return [new]
    common = len(os.path.commonprefix([old, new]))
    sized = old[: len(new)].ljust(len(new), b"\0")  # the new size, and none of the new pages
    ends = common + 1, (common + len(new)) // 2, len(new) - 1  # of a page
    torn = [(new[:end], new[:end] + sized[end:], sized[:end] + new[end:]) for end in ends]
    return [new, old, sized, *itertools.chain(*torn)]


# The host boots


def _boots(stage: Callable[[], tuple[Home, played.World]], on: played.Host, tree: Tree, cut: Cut) -> None:
    home, world = stage()
    on.furnish(world)
    world.boot = "the next"
    try:
        _recovers(home, world, tree, cut.promised)
    except Exception as exc:
        exc.add_note(f"power cut before {cut.before}")
        raise


def _recovers(home: Home, world: played.World, tree: Tree, promised: dict[str, bytes]) -> None:
    """The files put into ``home``: what they say is whole and fits together, and recovery ends well."""
    for name, content in tree.items():
        path = Path(home.path(name))
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    for switch, lines in promised.items():
        assert any(content.startswith(lines) for content in tree.values()), f"a line of {switch} is lost"
    entries, active = log(home).entries(), host.read_active(home)
    by = active["switch"] if active else None
    state = entries[-1]["state"] if entries else None
    assert state != journal.ACTIVATED or by == entries[0]["switch"], "activated, and the pointer is another's"
    assert state != journal.STOPPED or not active, "stopped, and this boot starts it"
    passed = [entry for entry in written(home) if entry.get("verdict") == "pass" or "deployment" in entry]
    assert by in {entry["by"] for entry in passed} | {None}, "activated, and nothing says that it passed"
    for entry in written(home):
        assert "evidence" not in entry or entry["evidence"] in tree, "a verdict without its evidence"
        assert tree.get(f"secrets/{entry['by']}") == SECRET, "a switch without the secret that it needs"
    played.machine(home, world).settle()
    serving = host.read_active(home)
    assert world.up == ({host.service_name(serving["deployment"]["id"])} if serving else set())
    must_serve = b"activated" in promised.get("first", b"")
    stops = any(entry.get("on_failure") == "stop" for entry in entries)
    assert world.up or stops or not must_serve, "nothing serves though something did before"
    ended = log(home).entries()
    told = serving["deployment"]["release"] if serving else None
    assert journal.finished(ended) and (not ended or ended[-1]["serving"] == told), "it tells another end"


def log(home: Home) -> Journal:
    return Journal(home.journal, lambda: 0.0)


def written(home: Home) -> Iterator[dict[str, Any]]:
    """The lines of all journals, each with the switch that wrote it."""
    for path in [home.journal, *map(str, Path(home.finished_journals).glob("*.jsonl"))]:
        entries = Journal(path, lambda: 0.0).entries()
        yield from ({**entry, "by": entries[0]["switch"]} for entry in entries)


CUT_AGAIN = "a cut, and another while that is recovered"
SWITCHES: dict[str, tuple[str, str, played.Host]] = {
    "in place": ("pass", "restore", played.NO_FRONT),
    "refused": ("fail", "restore", played.NO_FRONT),
    "refused, fallback": ("fail", "fallback", played.NO_FRONT),
    "refused, stop": ("fail", "stop", played.NO_FRONT),
    "side by side": ("pass", "restore", played.ROOM_FOR_TWO),
    CUT_AGAIN: ("killed", "restore", played.NO_FRONT),
}
"""The second switch's verdict, its ``on_failure``, and the host. The first is a green first deploy."""


@pytest.mark.parametrize("name", SWITCHES)
def test_a_power_cut_anywhere(
    stage: Callable[[], tuple[Home, played.World]],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    name: str,
) -> None:
    verdict, on_failure, on = SWITCHES[name]
    home, world = stage()
    on.furnish(world)
    monkeypatch.setattr(headroom, "wait_until_free", lambda *_: 0.0)
    monkeypatch.setattr(
        judge, "gate_candidate", lambda home, entries, *_: _measured(home, entries[0], world.verdict)
    )

    def switches() -> None:
        files.write_atomic(home.path("secrets", "first"), SECRET)
        played.first(home, world)
        files.write_atomic(home.path("secrets", "second"), SECRET)
        wished = played.wish(home, num_speculative_tokens=5)
        wished["options"]["on_failure"] = on_failure
        world.verdict = verdict
        played.converged(home, world, "second", wished)

    disk = Disk(tmp_path)
    if name == CUT_AGAIN:
        _first_cut(home, world, switches)
        disk.record(monkeypatch, played.machine(home, world).settle)
    else:
        disk.record(monkeypatch, switches)
    monkeypatch.setattr(os, "fsync", lambda _descriptor: None)
    seen = set()
    for (
        cut
    ) in disk.cuts:  # in their order: a product that fsyncs too little ends here before the states are many
        for tree in found(cut, tmp_path.stat().st_ino):
            state = frozenset(tree.items()), frozenset(cut.promised.items())
            if state not in seen:
                seen.add(state)
                _boots(stage, on, {path.partition("/")[2]: tree[path] for path in tree}, cut)
    assert len(seen) > len(disk.cuts)


def _measured(home: Home, opened: journal.Entry, verdict: str) -> tuple[str, dict[str, Any]]:
    """The played gate, with evidence that is really stored; its path below the home."""
    if verdict == "killed":
        raise played.Killed
    result = {"verdict": verdict, "release": opened["candidate"]["release"], "time": "20260101T000000Z"}
    return os.path.relpath(evidence.store(home, result), home.root), result


def _first_cut(home: Home, world: played.World, switches: Callable[[], None]) -> None:
    """The second switch ends in the middle of a line, which is longer than the one that a boot will write."""
    with pytest.raises(played.Killed):
        switches()
    world.reboot()
    with open(home.journal, "ab") as handle:
        handle.write(b'{"state": "gated", ' + b" " * 500)
