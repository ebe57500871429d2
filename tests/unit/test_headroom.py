"""Whether a second engine fits: the arithmetic by tables, the readers by recorded answers and small trees."""

from __future__ import annotations

import copy
import os
import re
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from draftgate import headroom, host_memory, options, processes
from draftgate.clocks import Clocks
from draftgate.errors import HostError, InputError
from draftgate.headroom import Headroom, choose, fits
from draftgate.host_memory import Card, HostMemory
from draftgate.layout import Home
from draftgate.reaper import MARK

from tests.specs import SPEC

GIB = 1 << 30
A6000 = ("GPU-83f78936-a6e1-3cb8-b6ab-41dd1af7bbd9", "GPU-c7b57be0-94ff-d352-a59b-d0ee00aeed43")


def deployment(
    name: str, args: Mapping[str, Any], environment: Mapping[str, str], gpus: Sequence[str]
) -> Any:
    made: dict[str, Any] = {"id": name, "release": name, **copy.deepcopy(SPEC)}
    made["serve"].update(
        args=dict(args), environment=dict(environment), target={"digest": f"{name}-target"}, drafter=None
    )
    made["place"]["gpus"] = list(gpus)
    return made


# nvidia-smi: --query-gpu=index,uuid,memory.total,memory.used,memory.free,mig.mode.current

BUSY = f"0, {A6000[0]}, 49140, 44500, 4198, [N/A]\n1, {A6000[1]}, 49140, 44490, 4208, [N/A]\n"
HALF = f"0, {A6000[0]}, 49140, 22840, 25858, [N/A]\n1, {A6000[1]}, 49140, 5, 48693, [N/A]\n"
FOREIGN = f"0, {A6000[0]}, 49140, 32840, 15858, [N/A]\n1, {A6000[1]}, 49140, 5, 48693, [N/A]\n"
MIG_OUTSIDE = "0, GPU-5f4c1d7e-0b51-4a4a-8a7c-0d54a0b5d0a1, 81920, 20012, 61123, Enabled\n"
MIG_IN_A_CONTAINER = (  # Stability-AI/StableSwarmUI#388
    "0, GPU-5f4c1d7e-0b51-4a4a-8a7c-0d54a0b5d0a1, [Insufficient Permissions], [Insufficient Permissions], "
    "[Insufficient Permissions], Enabled\n"
)
UNIFIED = "0, GPU-2dee1e25-b3b5-007e-2b55-79f2d0f2ebe5, [N/A], [N/A], [N/A], [N/A]\n"  # GB10
NO_DEVICES = (6, "No devices were found\n", "")
ABSENT = (127, "", "nvidia-smi: No such file or directory")
MISMATCH = (
    18,
    "Failed to initialize NVML: Driver/library version mismatch\nNVML library version: 535.161\n",
    "",
)
NO_DRIVER = (9, "NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver.\n", "")
HUNG = (124, "", "no answer within 30 s")
LOST = (
    f"Unable to determine the device handle for GPU0000:01:00.0: Unknown Error\n1, {A6000[1]}, 1, 1, 1, 1\n"
)


def answering(*answers: Any) -> Any:
    """A runner that gives these answers in turn, the last one for ever; text is an answer with status 0."""
    left = list(answers)

    def run(argv: Sequence[str], _timeout: float) -> tuple[int, str, str]:
        assert argv[0] == "nvidia-smi"
        answer = left.pop(0) if len(left) > 1 else left[0]
        return (0, answer, "") if isinstance(answer, str) else answer

    return run


@pytest.mark.parametrize(
    ("answer", "figures", "trouble"),
    [
        (BUSY, [("0", 49140, 44500, 4198, False), ("1", 49140, 44490, 4208, False)], ""),
        (MIG_OUTSIDE, [("0", 81920, 20012, 61123, True)], ""),
        (MIG_IN_A_CONTAINER, [("0", None, None, None, True)], ""),
        (UNIFIED, [("0", None, None, None, False)], ""),
        (NO_DEVICES, [], "No devices were found"),
        (ABSENT, [], "nvidia-smi: No such file"),
        (MISMATCH, [], "Driver/library version mismatch"),
        (NO_DRIVER, [], "couldn't communicate"),
        (HUNG, [], "no answer within 30 s"),
        (LOST, [], "Unable to determine the device handle"),
        ("", [], "said nothing"),
    ],
)
def test_what_nvidia_smi_says_is_read(answer: Any, figures: list[Any], trouble: str) -> None:
    cards, told = host_memory.cards(answering(answer))
    mib = [
        (card.number, *(size and size >> 20 for size in (card.total, card.used, card.free)), card.divided)
        for card in cards
    ]
    assert mib == figures
    assert trouble in told if trouble else not told


def of(text: str) -> dict[str, Any]:
    return {"gpu_memory_utilization": text}


GPU_CASES: dict[str, tuple[Any, Any, Any, bool, str, str]] = {
    # candidate (args, gpus), active, nvidia-smi → fits, sentence, remedy
    "two that each want nearly all": (
        (of("0.9"), []), (of("0.9"), []), BUSY, False,
        "side_by_side needs 2 x 0.90 of GPU 0's 48.0 GiB; 4.1 GiB are free",
        "lower gpu_memory_utilization to 0.45 in both",
    ),
    "neither says how much: vLLM's default": (
        ({}, []), ({}, []), BUSY, False,
        r"needs 2 x 0.92 of GPU 0's 48.0 GiB \(0.92 is assumed, vLLM's default\)", "0.45",
    ),
    "only the other says how much": (
        (of("0.5"), []), ({}, []), BUSY, False, r"needs 0.92 \+ 0.50 of .* assumed", "0.45",
    ),
    "two halves fit": (
        (of("0.45"), []), (of("0.45"), []), HALF, True,
        r"needs 2 x 0.45 of GPU 0's 48.0 GiB; 25.3 GiB are free$", "",
    ),
    "the same by the option's other name": (
        ({"device_memory_utilization": 0.45}, []), ({"device_memory_utilization": 0.45}, []), HALF, True,
        "2 x 0.45", "",
    ),
    "free now, and yet more than all is promised": (
        (of("0.52"), []), (of("0.5"), []), HALF, False, r"0.50 \+ 0.52", "0.45 in both",
    ),
    "somebody else holds what would be free": (
        (of("0.45"), []), (of("0.45"), []), FOREIGN, False, "2 x 0.45 of .*; 15.5 GiB are free",
        "to 0.35 in both",
    ),
    "the second GPU is the one that is full": (
        ({**of("0.45"), "tensor_parallel_size": 2}, []), (of("0.45"), ["1"]),
        HALF.replace("5, 48693", "43000, 5693"), False, "2 x 0.45 of GPU 1's", "0.25",
    ),
    "tensor parallelism takes as many as it says": (
        ({**of("0.9"), "tensor_parallel_size": "2"}, ["1", "0"]), (of("0.45"), ["0"]),
        HALF, False, r"0.45 \+ 0.90 of GPU 0's", "0.45",
    ),
    "what it does not use may be full": (
        (of("0.45"), []), (of("0.45"), []), HALF.replace("5, 48693", "48000, 698"), True, "GPU 0's", "",
    ),
    "nearly nothing would be left for it": (
        (of("0.9"), ["1"]), (of("0.9"), ["0"]), HALF.replace("5, 48693", "43000, 5698"), False, "GPU 1's", "",
    ),
    "pipelines count": (
        ({**of("0.9"), "pipeline_parallel_size": 2}, []), (of("0.9"), ["1"]),
        f"0, {A6000[0]}, 49140, 5, 48693, [N/A]\n1, {A6000[1]}, 49140, 44490, 4208, [N/A]\n",
        False, "2 x 0.90 of GPU 1's", "0.45",
    ),
    "copies count": (
        ({**of("0.9"), "data_parallel_size": 2}, []), (of("0.9"), ["1"]),
        f"0, {A6000[0]}, 49140, 5, 48693, [N/A]\n1, {A6000[1]}, 49140, 44490, 4208, [N/A]\n",
        False, "2 x 0.90 of GPU 1's", "0.45",
    ),
    "each on a GPU of its own": (
        (of("0.9"), ["1"]), (of("0.9"), ["0"]), HALF, True,
        "needs 0.90 of GPU 1's 48.0 GiB; 47.6 GiB are free", "",
    ),
    "on a GPU of its own, by the UUID's beginning": (
        (of("0.9"), [A6000[1][:12]]), (of("0.9"), [A6000[0]]), HALF, True, "0.90 of GPU 1's", "",
    ),
    "its own GPU is not free": (
        (of("0.9"), ["1"]), (of("0.9"), ["0"]), BUSY, False,
        "needs 0.90 of GPU 1's 48.0 GiB; 4.1 GiB are free", "",
    ),
    "a GPU that is not there": ((of("0.4"), ["7"]), (of("0.4"), []), HALF, False, "lists no GPU 7", ""),
    "a slice": ((of("0.4"), ["MIG-9f3c"]), (of("0.4"), []), MIG_OUTSIDE, False, "lists no GPU MIG-9f3c", ""),
    "a GPU that is divided": (
        (of("0.4"), []), (of("0.4"), []), MIG_OUTSIDE, False, r"GPU 0 is divided \(MIG\)", "",
    ),
    "unified memory": (
        (of("0.4"), []), (of("0.4"), []), UNIFIED, False, "does not tell how much memory GPU 0", "",
    ),
    "no nvidia-smi": (
        (of("0.4"), []), (of("0.4"), []), ABSENT, False, "is not known: nvidia-smi: No such", "",
    ),
    "what is no number counts as not said": (
        (of("half"), []), (of("nan"), []), BUSY, False, "2 x 0.92", "0.45",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", GPU_CASES)
def test_two_engines_on_the_gpus(name: str) -> None:
    (args, gpus), (serving, taken), answer, fit, sentence, remedy = GPU_CASES[name]
    cards, trouble = host_memory.cards(answering(answer))
    host = HostMemory(64 * GIB, 60 * GIB, held=3 * GIB, cards=cards, trouble=trouble)
    room = fits(deployment("new", args, {}, gpus), deployment("old", serving, {}, taken), host)
    assert room.fits is fit
    assert re.search(sentence, room.sentence), room.sentence
    assert (remedy in room.remedy) if remedy else not room.remedy, room.remedy


def test_nobody_is_told_to_halve_what_the_weights_do_not_fit_into() -> None:
    cards, _ = host_memory.cards(answering(BUSY))
    for size, told in ((20, True), (90, False)):
        host = HostMemory(64 * GIB, 60 * GIB, held=GIB, cards=cards, models={"new-target": size * GIB})
        args = {**of("0.9"), "tensor_parallel_size": 2}
        room = fits(deployment("new", args, {}, []), deployment("old", args, {}, []), host)
        assert not room.fits and bool(room.remedy) is told


# The host's memory

KV = "VLLM_CPU_KVCACHE_SPACE"
CPU_CASES: dict[str, tuple[Any, Any, dict[str, Any], bool, str, str]] = {
    # candidate (args, environment), active, what the host has (GiB) → fits, sentence, remedy
    "as large as the one that runs": (
        ({}, {KV: "1"}), ({}, {KV: "1"}), {"available": 4.0}, True,
        r"needs 2.4 GiB of memory \(2.4 GiB as the running engine\) and leaves 1.0 GiB; 4.0 GiB of 16.0",
        "",
    ),
    "and the reserve would be gone": (
        ({}, {KV: "1"}), ({}, {KV: "1"}), {"available": 3.3}, False, "3.3 GiB of 16.0 GiB",
         "(the KV cache has 1.0 GiB)",
    ),
    "a larger KV cache": (
        ({}, {KV: "4"}), ({}, {KV: "1"}), {"available": 6.0}, False,
        r"needs 5.4 .*, \+3.0 GiB for its KV cache\)", "4.0 GiB",
    ),
    "a smaller one, by the argument": (
        ({"kv_cache_memory_bytes": GIB}, {}), ({}, {KV: "2"}), {"available": 2.5}, True,
         "-1.0 GiB for its KV cache", "",
    ),
    "the environment wins over the argument": (
        ({"kv_cache_memory_bytes": GIB}, {KV: "3"}), ({}, {KV: "1"}), {"available": 5.5}, True,
         r"\+2.0 GiB for its KV", "",
    ),
    "one for each worker": (
        ({"tensor_parallel_size": 2}, {KV: "1"}), ({}, {KV: "1"}), {"available": 5.0}, True,
         r"\+1.0 GiB for its KV", "",
    ),
    "a larger model": (
        ({}, {KV: "1"}), ({}, {KV: "1"}),
        {"available": 6.0, "models": {"new-target": 5 * GIB, "old-target": GIB}},
        False, r"needs 6.4 .*, \+4.0 GiB for its models\)", "",
    ),
    "a model that is not there yet is as large as the other": (
        ({}, {KV: "1"}), ({}, {KV: "1"}), {"available": 4.0, "models": {"old-target": GIB}}, True,
         "needs 2.4 GiB", "",
    ),
    "no size: vLLM takes its share of everything": (
        ({}, {}), ({}, {KV: "1"}), {"available": 13.0}, False,
        r"needs 0.92 of 16.0 GiB of memory \(0.92 is assumed, vLLM's default\), because nothing says",
        f"set {KV}",
    ),
    "an empty size is none": (
        ({}, {KV: ""}), ({}, {KV: "1"}), {"available": 13.0}, False, "0.92 of 16.0", f"set {KV}",
    ),
    "a share that is there": (
        (of("0.25"), {}), (of("0.25"), {}), {"available": 4.5}, True,
        "needs 0.25 of 16.0 GiB of memory, because", "",
    ),
    "the running engine cannot be read": (
        ({}, {KV: "1"}), ({}, {KV: "1"}), {"available": 15.0, "held": None}, False, "cannot be read", "",
    ),
    "shared memory": (
        ({}, {KV: "1"}), ({}, {KV: "1"}), {"available": 15.0, "shared": 64 << 20}, False,
        "/dev/shm has 0.1 GiB free, and an engine wants 0.4 GiB", "enlarge it",
    ),
    "shared memory that is just enough": (
        ({}, {KV: "1"}), ({}, {KV: "1"}), {"available": 15.0, "shared": 400 << 20}, True,
         "side_by_side needs", "",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", CPU_CASES)
def test_two_engines_on_the_cpu(name: str) -> None:
    (args, environment), (serving, around), given, fit, sentence, remedy = CPU_CASES[name]
    held = given.pop("held", 2.4) if "held" not in given or given["held"] else given.get("held")
    host = HostMemory(
        16 * GIB,
        int(given["available"] * GIB),
        held=None if held is None else int(held * GIB),
        shared=given.get("shared"),
        on_cpu=frozenset(("new", "old")),
        models=given.get("models", {}),
    )
    room = fits(deployment("new", args, environment, []), deployment("old", serving, around, []), host)
    assert room.fits is fit, room.sentence
    assert re.search(sentence, room.sentence), room.sentence
    assert remedy in room.remedy


def test_a_gpu_engine_needs_memory_of_the_host_too() -> None:
    cards, _ = host_memory.cards(answering(HALF))
    new, old = deployment("new", of("0.45"), {}, []), deployment("old", of("0.45"), {}, [])
    for held, fit in ((6 * GIB, False), (4 * GIB, True), (None, True)):
        room = fits(new, old, HostMemory(16 * GIB, 6 * GIB, held=held, cards=cards))
        assert room.fits is fit, room.sentence
    assert "GPU 0" in room.sentence


# The choice

ROOM, NO_ROOM = Headroom(True, "both fit"), Headroom(False, "2 x 0.90 of 48.0 GiB", "lower it")


@pytest.mark.parametrize(
    ("wished", "front", "serving", "room", "strategy", "why"),
    [
        ("auto", True, True, ROOM, "side_by_side", "both fit"),
        ("auto", True, True, NO_ROOM, "in_place", r"2 x 0.90 of 48.0 GiB \(for side_by_side lower it\)"),
        ("auto", True, False, None, "in_place", "no release answers here"),
        ("auto", False, True, None, "in_place", "no front"),
        ("auto", False, False, None, "in_place", "no front"),
        ("in_place", True, True, None, "in_place", "draftgate_strategy is in_place"),
        ("side_by_side", True, True, ROOM, "side_by_side", "both fit"),
        ("side_by_side", True, False, None, "in_place", "nothing to stay beside"),
        ("side_by_side", True, True, NO_ROOM, "DG156",
         "2 x 0.90 .* Use draftgate_strategy=in_place, or lower it"),
        ("side_by_side", True, True, Headroom(False, "no"), "DG156",
         r"no\. Use draftgate_strategy=in_place\.$"),
        ("side_by_side", False, True, None, "DG157", "no front .* set gateway_enabled: true"),
        ("side_by_side", False, False, None, "DG157", "no front"),
    ],
)  # fmt: skip
def test_the_way_of_a_switch(
    wished: str, front: bool, serving: bool, room: Headroom | None, strategy: str, why: str
) -> None:
    def ask() -> Headroom:
        assert room, "the memory is read only where it decides"
        return room

    if strategy.startswith("DG"):
        with pytest.raises(HostError, match=why) as refused:
            choose(wished, front, serving, ask)
        assert refused.value.code == strategy
        return
    choice = choose(wished, front, serving, ask)
    assert choice.strategy == strategy
    assert re.search(why, choice.why), choice.why


def test_the_strategy_is_an_option() -> None:
    assert options.checked({})["strategy"] == "auto"
    assert [options.checked({"strategy": name})["strategy"] for name in ("in_place", "side_by_side")]
    with pytest.raises(InputError, match="draftgate_strategy"):
        options.checked({"strategy": "beside"})


# /proc and control groups

MEMINFO = "MemTotal:       16777216 kB\nMemFree:         1000000 kB\nMemAvailable:   12582912 kB\n"
UNIFIED_MOUNT = "30 23 0:26 / /sys/fs/cgroup rw,nosuid - cgroup2 cgroup2 rw,nsdelegate\n"
LEGACY_MOUNT = "35 31 0:33 {root} /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n"
UNLIMITED = "9223372036854771712\n"
UNIFIED_OWN, LEGACY_OWN = "0::/system.slice/job.service\n", "11:cpu:/\n4:memory:/docker/abc\n0::/\n"

TREES: dict[str, tuple[dict[str, str], float, float]] = {
    # files → GiB in all, GiB available
    "no control groups": ({}, 16, 12),
    "unified, without a limit": (
        {"proc/self/mountinfo": UNIFIED_MOUNT, "proc/self/cgroup": UNIFIED_OWN,
         "sys/fs/cgroup/system.slice/job.service/memory.max": "max\n",
         "sys/fs/cgroup/system.slice/job.service/memory.current": "100\n"}, 16, 12,
    ),
    "unified, a limit of our own, files of the cache given back": (
        {"proc/self/mountinfo": UNIFIED_MOUNT, "proc/self/cgroup": UNIFIED_OWN,
         "sys/fs/cgroup/system.slice/job.service/memory.max": str(8 * GIB),
         "sys/fs/cgroup/system.slice/job.service/memory.current": str(5 * GIB),
         "sys/fs/cgroup/system.slice/job.service/memory.stat": f"anon 1\nfile 9\ninactive_file {2 * GIB}\n"},
        8, 5,
    ),
    "unified, an ancestor's limit": (
        {"proc/self/mountinfo": UNIFIED_MOUNT, "proc/self/cgroup": UNIFIED_OWN,
         "sys/fs/cgroup/system.slice/job.service/memory.max": "max\n",
         "sys/fs/cgroup/system.slice/job.service/memory.current": str(GIB),
         "sys/fs/cgroup/system.slice/memory.max": str(6 * GIB),
         "sys/fs/cgroup/system.slice/memory.current": str(4 * GIB)}, 6, 2,
    ),
    "unified, slowed down before it is refused": (
        {"proc/self/mountinfo": UNIFIED_MOUNT, "proc/self/cgroup": "0::/\n",
         "sys/fs/cgroup/memory.max": str(8 * GIB), "sys/fs/cgroup/memory.high": str(4 * GIB),
         "sys/fs/cgroup/memory.current": str(GIB)}, 4, 3,
    ),
    "unified, a container's own root (Docker, LXC)": (
        {"proc/self/mountinfo": UNIFIED_MOUNT, "proc/self/cgroup": "0::/\n",
         "sys/fs/cgroup/memory.max": str(4 * GIB), "sys/fs/cgroup/memory.current": str(GIB)}, 4, 3,
    ),
    "unified, our path told from outside": (
        {"proc/self/mountinfo": UNIFIED_MOUNT, "proc/self/cgroup": "0::/../../lxc/101/ns/x\n",
         "sys/fs/cgroup/memory.max": str(4 * GIB), "sys/fs/cgroup/memory.current": str(GIB)}, 4, 3,
    ),
    "LXC, where lxcfs has /proc/meminfo tell the limit": (
        {"proc/meminfo": "MemTotal: 4194304 kB\nMemAvailable: 3145728 kB\n",
         "proc/self/mountinfo": UNIFIED_MOUNT, "proc/self/cgroup": "0::/init.scope\n"}, 4, 3,
    ),
    "legacy, without a limit": (
        {"proc/self/mountinfo": LEGACY_MOUNT.format(root="/"), "proc/self/cgroup": LEGACY_OWN,
         "sys/fs/cgroup/memory/docker/abc/memory.limit_in_bytes": UNLIMITED,
         "sys/fs/cgroup/memory/docker/abc/memory.usage_in_bytes": "1000"}, 16, 12,
    ),
    "legacy, the mount shows our group as its root": (
        {"proc/self/mountinfo": LEGACY_MOUNT.format(root="/docker/abc"), "proc/self/cgroup": LEGACY_OWN,
         "sys/fs/cgroup/memory/memory.limit_in_bytes": str(4 * GIB),
         "sys/fs/cgroup/memory/memory.usage_in_bytes": str(3 * GIB),
         "sys/fs/cgroup/memory/memory.stat": f"inactive_file 5\ntotal_inactive_file {GIB}\n"}, 4, 2,
    ),
    "legacy, a group below the mount's root": (
        {"proc/self/mountinfo": LEGACY_MOUNT.format(root="/docker"), "proc/self/cgroup": LEGACY_OWN,
         "sys/fs/cgroup/memory/abc/memory.limit_in_bytes": str(4 * GIB),
         "sys/fs/cgroup/memory/abc/memory.usage_in_bytes": str(3 * GIB)}, 4, 1,
    ),
    "legacy, an ancestor's limit": (
        {"proc/self/mountinfo": LEGACY_MOUNT.format(root="/"), "proc/self/cgroup": LEGACY_OWN,
         "sys/fs/cgroup/memory/docker/abc/memory.limit_in_bytes": UNLIMITED,
         "sys/fs/cgroup/memory/docker/memory.limit_in_bytes": str(6 * GIB),
         "sys/fs/cgroup/memory/docker/memory.usage_in_bytes": str(5 * GIB)}, 6, 1,
    ),
    "legacy, over its limit": (
        {"proc/self/mountinfo": LEGACY_MOUNT.format(root="/"), "proc/self/cgroup": LEGACY_OWN,
         "sys/fs/cgroup/memory/docker/abc/memory.limit_in_bytes": str(2 * GIB),
         "sys/fs/cgroup/memory/docker/abc/memory.usage_in_bytes": str(3 * GIB)}, 2, 0,
    ),
    "hybrid: the unified hierarchy has no memory": (
        {"proc/self/mountinfo": LEGACY_MOUNT.format(root="/")
         + "40 31 0:39 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw\n",
         "proc/self/cgroup": LEGACY_OWN, "sys/fs/cgroup/unified/cgroup.procs": "",
         "sys/fs/cgroup/memory/docker/abc/memory.limit_in_bytes": str(8 * GIB),
         "sys/fs/cgroup/memory/docker/abc/memory.usage_in_bytes": str(1 * GIB)}, 8, 7,
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", TREES)
def test_the_smallest_limit_counts(tmp_path: Path, name: str) -> None:
    files, total, available = TREES[name]
    for path, text in {"proc/meminfo": MEMINFO, **files}.items():
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text(text)
    assert host_memory.memory(str(tmp_path)) == (total * GIB, available * GIB)


def test_this_host_has_memory() -> None:
    total, available = host_memory.memory()
    assert 0 < available <= total
    assert available <= processes.memory_available_bytes() + GIB
    assert host_memory.shared_free("/nowhere") == 0


@pytest.mark.parametrize(
    ("rollup", "status", "held"),
    [
        ("55d0-7ffd ---p 00000000 00:00 0 [rollup]\nRss: 900 kB\nPss: 700 kB\nSwapPss: 50 kB\n",
         "VmRSS: 9 kB\n", 750),
        (None, "Name: python3\nVmRSS:\t    900 kB\n", 900),
        (None, None, None),
    ],
)  # fmt: skip
def test_what_processes_hold(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, rollup: str | None, status: str | None, held: int | None
) -> None:
    monkeypatch.setattr(processes, "owned", lambda service, home: [7, 8] if service == "engine-a" else [])
    for pid in ("7", "8"):
        (tmp_path / pid).mkdir()
        for name, text in (("smaps_rollup", rollup), ("status", status)):
            if text:
                (tmp_path / pid / name).write_text(text)
    assert host_memory.held("engine-a", "/h", str(tmp_path)) == (None if held is None else 2 * held * 1024)
    assert host_memory.held("engine-b", "/h", str(tmp_path)) is None


def test_what_a_real_process_holds(tmp_path: Path) -> None:
    home = str(tmp_path)
    code = "data = bytearray(b'x' * (64 << 20)); print(1, flush=True); input()"
    with subprocess.Popen(
        [sys.executable, "-c", code],
        env={MARK: processes.mark("engine-x", home)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as child:
        assert child.stdout and child.stdout.readline()
        held = host_memory.held("engine-x", home)
        child.communicate(b"\n")
    assert held and 64 << 20 < held < 128 << 20


# What this host shows


def installed(tmp_path: Path, build: str) -> tuple[Home, Any]:
    """A home with two models, and a deployment whose runtime has vLLM's ``build``."""
    home = Home(str(tmp_path / "home"))
    one = deployment("new", of("0.45"), {KV: "1"}, [])
    one["place"].update(runtimes=str(tmp_path), backend="supervisord")
    one["serve"].update(target={"digest": "t" * 64}, drafter={"digest": "d" * 64})
    below = f"{one['serve']['runtime']['lock'][:12]}/lib/python3.11/site-packages/vllm-{build}.dist-info"
    (tmp_path / below).mkdir(parents=True)
    for digest, size in (("t" * 64, 1000), ("d" * 64, 100)):
        directory = Path(home.model(digest))
        (directory / "sub").mkdir(parents=True)
        (directory / "sub" / "model.safetensors").write_bytes(b"x" * size)
    return home, one


def test_the_device_decides_what_is_read(tmp_path: Path) -> None:
    home, on_gpu = installed(tmp_path / "gpu", "0.32.0")
    read = headroom.read(home, on_gpu, on_gpu, answering(HALF))
    assert len(read.cards) == 2 and not read.on_cpu and read.shared is not None
    assert read.models == {"t" * 64: 1000, "d" * 64: 100}
    home, on_cpu = installed(tmp_path / "cpu", "0.32.0+cpu")
    on_cpu["place"]["backend"] = "systemd"
    read = headroom.read(home, on_cpu, on_cpu, answering("nobody asks"))
    assert read.on_cpu == {"new"} and not read.cards and read.shared is None
    assert (
        headroom.measured(home, on_cpu, on_cpu).sentence
        == "what the running engine holds in memory cannot be read"
    )


# After a stop


class Time:
    def __init__(self) -> None:
        self.now = 0.0

    def sleep(self, seconds: float) -> None:
        self.now += seconds

    def clocks(self) -> Clocks:
        return Clocks(now=lambda: self.now, boottime=lambda: self.now, sleep=self.sleep)


@pytest.mark.parametrize(
    ("answers", "args", "waited"),
    [
        ([HALF], of("0.45"), 0.0),
        ([BUSY, BUSY, HALF], of("0.45"), 1.0),
        ([BUSY, BUSY, BUSY, HALF], {**of("0.45"), "tensor_parallel_size": 2}, 1.5),
        ([ABSENT], of("0.9"), 0.0),
        ([NO_DEVICES], of("0.9"), 0.0),
        ([UNIFIED], of("0.9"), 0.0),
        ([MIG_OUTSIDE], of("0.9"), 0.0),
    ],
)
def test_a_start_waits_for_the_memory(tmp_path: Path, answers: list[Any], args: Any, waited: float) -> None:
    home, one = installed(tmp_path, "0.32.0")
    one["serve"]["args"] = args
    assert headroom.wait_until_free(home, one, Time().clocks(), answering(*answers)) == waited


HERE = f"{A6000[0]}, {os.getpid()}, 43912, VLLM::Worker_TP0\n{A6000[1]}, 99, 43912, VLLM::Worker_TP1\n"


@pytest.mark.parametrize(
    ("apps", "uses_a_gpu", "told", "step"),
    [
        (HERE, True, rf"pid {os.getpid()} \(VLLM::Worker_TP0\) holds 42.9 GiB", f"kill {os.getpid()}"),
        (HERE, False, rf"outside this container \(pid {os.getpid()} there\) holds 42.9 GiB", "End it there"),
        (f"{HERE}{A6000[0]}, 4000000, 5, x\n", True, r"free; pid \d+ \(VLLM.* holds 42.9 GiB \(exp", "kill"),
        (HERE.replace("43912", "[N/A]"), True, "holds memory", f"kill {os.getpid()}"),
        ("", True, "nvidia-smi names no process", "End it there"),
        (NO_DEVICES, True, "nvidia-smi names no process", "End it there"),
    ],
)  # fmt: skip
def test_who_keeps_the_memory_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, apps: Any, uses_a_gpu: bool, told: str, step: str
) -> None:
    home, one = installed(tmp_path, "0.32.0")
    monkeypatch.setattr(host_memory, "_uses_a_gpu", lambda pid, _proc: uses_a_gpu and pid == os.getpid())
    time = Time()

    def run(argv: Sequence[str], _timeout: float) -> Any:
        answer = apps if "--query-compute-apps=" in argv[1] else BUSY
        return (0, answer, "") if isinstance(answer, str) else answer

    with pytest.raises(HostError, match=told) as refused:
        headroom.wait_until_free(home, one, time.clocks(), run)
    assert refused.value.code == "DG158" and step in refused.value.next_step
    assert "GPU 0 has 4.1 GiB free" in str(refused.value) and "0.45 of its 48.0 GiB" in str(refused.value)
    assert 60 <= time.now < 62


def test_a_pid_is_only_ours_to_kill_when_it_has_a_gpu_open(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for pid, target in (("7", "/dev/nvidia0"), ("8", "/dev/null")):
        (tmp_path / pid / "fd").mkdir(parents=True)
        (tmp_path / pid / "fd" / "3").symlink_to(target)
    apps = "".join(f"{A6000[0]}, {pid}, 100, python3, with a comma\n" for pid in (7, 8, 9))
    found = host_memory.holders(answering(apps + "[N/A], [N/A], [N/A], [N/A]\n"), str(tmp_path))
    assert [(holder.pid, holder.here, holder.name) for holder in found] == [
        (7, True, "python3, with a comma"),
        (8, False, "python3, with a comma"),
        (9, False, "python3, with a comma"),
    ]

    def forbidden(_path: str) -> list[str]:
        raise PermissionError

    monkeypatch.setattr(os, "listdir", forbidden)
    assert host_memory.holders(answering(HERE))[0].here, "another user's process may be the one"


@pytest.mark.parametrize(
    ("space", "available", "waited"),
    [("1", 2.0, 0.0), ("3", 2.0, 10.0), ("", 15.0, 0.0), ("", 7.0, 10.0)],
)
def test_a_cpu_engine_waits_for_a_while(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, space: str, available: float, waited: float
) -> None:
    home, one = installed(tmp_path, "0.32.0+cpu")
    one["serve"]["environment"] = {KV: space}
    monkeypatch.setattr(host_memory, "memory", lambda: (16 * GIB, int(available * GIB)))
    assert headroom.wait_until_free(home, one, Time().clocks(), answering("nobody asks")) == waited


def test_cards_are_told_by_index_and_by_uuid() -> None:
    card = Card("1", A6000[1], 1, 1, 1)
    names = {"1": True, "0": False, A6000[1]: True, A6000[1][:9]: True, A6000[0]: False, "": False}
    assert {name: headroom._is(card, name) for name in names} == names
