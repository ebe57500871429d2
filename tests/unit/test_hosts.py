"""What of the test hosts can be judged without booting one."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.hosts import base, recipe
from tests.hosts.network import Network


@pytest.mark.parametrize(("part", "other"), [
    ("SUITE", "trixie"),
    ("PACKAGES", (*recipe.PACKAGES, "gdb")),
    ("USER", "somebody"),
    ("SETUP", recipe.SETUP[::-1]),
])  # fmt: skip
def test_another_recipe_is_another_base(monkeypatch: pytest.MonkeyPatch, part: str, other: object) -> None:
    before = recipe.digest()
    assert recipe.digest() == before
    monkeypatch.setattr(recipe, part, other)
    assert recipe.digest() != before


def test_no_two_hosts_share_an_address_or_a_name_and_the_kernel_takes_the_names() -> None:
    sets = [Network(number) for number in range(200)]
    names = [name for net in sets for name in (net.bridge, *(net.link(index) for index in range(1, 20)))]
    addresses = [a for net in sets for a in (net.gateway, *(net.address(index) for index in range(1, 20)))]
    spaces = [net.namespace(index) for net in sets for index in range(1, 20)]
    for made in (names, addresses, spaces):
        assert len(set(made)) == len(made)
    assert max(map(len, names)) <= 15  # IFNAMSIZ, with its end


def test_a_base_whose_building_was_killed_is_built_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tools = tmp_path / "bin"
    tools.mkdir()
    (tools / "mmdebstrap").write_text(
        '#!/bin/sh\nfor last; do :; done\nmkdir "$last" && touch "$last/$BUILT"\n[ "$BUILT" = whole ]\n'
    )
    (tools / "mmdebstrap").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tools}:{os.environ['PATH']}")
    monkeypatch.setattr(base, "CACHE", tmp_path)
    monkeypatch.setattr(base, "require", lambda: None)
    monkeypatch.setenv("BUILT", "half")
    with pytest.raises(RuntimeError, match="ended with 1"):
        base.built()
    monkeypatch.setenv("BUILT", "whole")
    target = base.built()
    assert target == tmp_path / "hosts" / recipe.digest()
    assert os.listdir(target) == ["whole"], "nothing of the half one"
    monkeypatch.setenv("BUILT", "half")
    assert base.built() == target, "it is there: nothing is built"
