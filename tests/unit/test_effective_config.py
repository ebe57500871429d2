"""Overrides merge as documented; the engine's drafter is whole, and the download untouched."""

from __future__ import annotations

import datetime
import os
from pathlib import Path
from typing import Any

import pytest
from draftgate import effective_config
from draftgate.errors import InputError
from draftgate.model_store import content_digest

from tests.conftest import REPO
from tests.model_files import read_json

DRAFTER = REPO / "models/tiny-pair/drafter"
CONFIG = {"a": 1, "list": [1, 2], "dflash_config": {"mask_token_id": 5, "target_layer_ids": [1]}}


@pytest.mark.parametrize(
    ("overrides", "changed"),
    [
        ({}, {}),
        ({"a": 2}, {"a": 2}),
        ({"list": [3]}, {"list": [3]}),
        (
            {"dflash_config": {"mask_token_id": 6}},
            {"dflash_config": {"mask_token_id": 6, "target_layer_ids": [1]}},
        ),
        ({"dflash_config": {"mask_token_id": None}}, {"dflash_config": {"target_layer_ids": [1]}}),
        ({"a": {"b": {"c": 1, "d": None}}}, {"a": {"b": {"c": 1}}}),
        ({"dflash_config": [1]}, {"dflash_config": [1]}),
        ({"absent": None}, {}),
    ],
)
def test_merge(overrides: dict[str, Any], changed: dict[str, Any]) -> None:
    before = repr(CONFIG)
    assert effective_config.merge(CONFIG, overrides) == {**CONFIG, **changed}
    assert repr(CONFIG) == before


def test_null_removes_a_key() -> None:
    assert "a" not in effective_config.merge(CONFIG, {"a": None})


@pytest.mark.parametrize(
    "overrides",
    [None, "dflash_config", [1], 5, {"a": datetime.date(2026, 1, 1)}, {"a": float("nan")}],
)
def test_overrides_that_make_no_config(overrides: Any) -> None:
    with pytest.raises(InputError, match="drafter_overrides"):
        effective_config.merge(CONFIG, overrides)


def test_the_effective_drafter_is_a_config_and_links(tmp_path: Path) -> None:
    before = content_digest(str(DRAFTER), None).digest
    dest = tmp_path / "release" / "drafter"
    config = {"our": "config"}
    assert effective_config.write(str(dest), str(DRAFTER), config) is True
    assert read_json(dest / "config.json") == config
    assert os.readlink(dest / "model.safetensors") == str(DRAFTER / "model.safetensors")
    assert sorted(os.listdir(dest)) == sorted(os.listdir(DRAFTER))
    assert content_digest(str(DRAFTER), None).digest == before
    assert effective_config.write(str(dest), str(DRAFTER), config) is False
    assert os.listdir(dest.parent) == ["drafter"]


def _edit(dest: Path) -> None:
    (dest / "config.json").write_text("{}")


def _truncate(dest: Path) -> None:
    (dest / "config.json").write_text("{")


def _remove_link(dest: Path) -> None:
    (dest / "model.safetensors").unlink()


def _replace_link(dest: Path) -> None:
    (dest / "model.safetensors").unlink()
    (dest / "model.safetensors").write_text("a file")


def _add(dest: Path) -> None:
    (dest / "adapter.bin").write_text("stray")


@pytest.mark.parametrize("damage", [_edit, _truncate, _remove_link, _replace_link, _add])
def test_what_was_damaged_is_made_again(tmp_path: Path, damage: Any) -> None:
    dest = tmp_path / "drafter"
    effective_config.write(str(dest), str(DRAFTER), {"our": "config"})
    damage(dest)
    assert effective_config.write(str(dest), str(DRAFTER), {"our": "config"}) is True
    assert effective_config.is_written(str(dest), str(DRAFTER), {"our": "config"})
    assert (DRAFTER / "model.safetensors").is_file()
