"""What an engine's unit may do, as one table: each setting, the profiles it is in, and why.

The CPU profile was measured with vLLM 0.32.0. The GPU profile leaves off what is known to take the GPUs away;
each such row names that failure. docs/hardening.md is this table, generated.
"""

from __future__ import annotations

import glob
import os
from typing import Any, List, Mapping, NamedTuple, Tuple

CPU, GPU = "cpu", "gpu"
"""The two profiles: an engine has the one of its device."""
LOOPBACK = "loopback"
"""An engine that only this host can reach."""

_BOTH = (CPU, GPU)
_MAN = "systemd.exec(5)"
_MEASURED = "measured"
_DEVICE_NODES = ("/dev/nvidiactl", "/dev/kfd", "/proc/driver/nvidia/version")


class Setting(NamedTuple):
    """One line of the unit.

    :param profiles: the profiles that have it; none is a setting that was tried and has to stay away.
    :param why: what it takes away from a process that was taken over.
    :param without: where a profile lacks it, what would fail there.
    :param source: where ``without`` (or else ``why``) comes from.
    :param only: LOOPBACK when it is for such engines alone.
    """

    name: str
    value: str
    profiles: Tuple[str, ...]
    why: str
    without: str = ""
    source: str = ""
    only: str = ""

    @property
    def line(self) -> str:
        return f"{self.name}={self.value}"


SETTINGS: Tuple[Setting, ...] = (
    Setting(
        "NoNewPrivileges", "yes", _BOTH,
        "no setuid program makes it root; nvidia-modprobe is one, so root runs it before the engine starts",
        source="FoldingAtHome/fah-client-bastet#315",
    ),
    Setting("CapabilityBoundingSet", "", _BOTH, "it needs no capability"),
    Setting("AmbientCapabilities", "", _BOTH, "it needs no capability"),
    Setting("ProtectSystem", "strict", _BOTH, "it writes into its cache and its own /tmp, nowhere else"),
    Setting("ProtectHome", "yes", _BOTH, "people's files are not there for it"),
    Setting(
        "PrivateTmp", "yes", _BOTH, "nobody else's sockets; and each start leaves about ten of its own there",
        source=_MEASURED,
    ),
    Setting(
        "TemporaryFileSystem", "/dev/shm:mode=1777", _BOTH,
        "its own shared memory; what a killed engine leaves there (400 MB each time) goes with it",
        source=_MEASURED,
    ),
    Setting(
        "PrivateDevices", "yes", (CPU,), "no device but null, zero, random and their like",
        "there is no /dev/nvidia0 and no /dev/kfd: the engine finds no GPU", "NixOS/nixpkgs#266167",
    ),
    Setting(
        "DevicePolicy", "closed", (CPU,), "the same once more, by the kernel's device filter",
        "a list of devices is applied anew at each daemon-reload, which every deploy does, and takes GPUs"
        " away from what runs; and it has to name drivers that load only with the first CUDA program",
        "NVIDIA/nvidia-container-toolkit#48",
    ),
    Setting("ProtectKernelTunables", "yes", _BOTH, "/proc/sys and /sys are read-only"),
    Setting("ProtectKernelModules", "yes", _BOTH, "no module is loaded for it"),
    Setting("ProtectKernelLogs", "yes", _BOTH, "the kernel's log is not there for it"),
    Setting("ProtectControlGroups", "yes", _BOTH, "it cannot leave its control group's limits"),
    Setting(
        "ProtectClock", "yes", (CPU,), "it cannot set the clock",
        "before systemd 252 it implies a list of devices without the GPUs; the system call filter below"
        " keeps the clock as well",
        "systemd/systemd#18142",
    ),
    Setting("ProtectHostname", "yes", _BOTH, "it cannot rename the host"),
    Setting("ProtectProc", "invisible", _BOTH, "it does not see other users' processes"),
    Setting(
        "ProcSubset", "pid", (), "nothing of /proc but processes",
        "vLLM reads /proc/cpuinfo and /proc/meminfo at its start", _MEASURED,
    ),
    Setting("RestrictNamespaces", "yes", _BOTH, "it makes no user or mount namespace"),
    Setting("RestrictRealtime", "yes", _BOTH, "it cannot keep a processor to itself"),
    Setting("RestrictSUIDSGID", "yes", _BOTH, "it leaves no setuid file"),
    Setting(
        "RestrictAddressFamilies", "AF_INET AF_INET6 AF_UNIX AF_NETLINK", _BOTH,
        "no raw packets; gloo lists the host's interfaces by AF_NETLINK and fails without it",
        source=_MEASURED,
    ),
    Setting("LockPersonality", "yes", _BOTH, "no other system call ABI by personality(2)"),
    Setting("RemoveIPC", "yes", _BOTH, "what it leaves of System V and POSIX IPC is removed"),
    Setting(
        "PrivateIPC", "yes", _BOTH, "no System V IPC or message queue of others, as in a container"
    ),
    Setting("UMask", "0077", _BOTH, "what it writes is its own"),
    Setting("SystemCallArchitectures", "native", _BOTH, "no 32-bit system calls"),
    Setting(
        "SystemCallFilter", "@system-service", (CPU,),
        "what ordinary services call; without @resources in it threads could not be bound to cores",
        "CUDA IPC of expandable segments needs pidfd_getfd, which is not in it",
        "pytorch/pytorch#165685",
    ),
    Setting(
        "SystemCallFilter", "~@clock @cpu-emulation @module @mount @obsolete @raw-io @reboot @swap", (GPU,),
        "what no engine calls, instead of a list of all that it may",
        "CPU engines have the stricter filter above",
    ),
    Setting("SystemCallErrorNumber", "EPERM", _BOTH, "a refused call is an error in the log, not a SIGSYS"),
    Setting(
        "MemoryDenyWriteExecute", "yes", (), "no code is made at run time",
        "on the CPU oneDNN makes its kernels so: bfloat16 fails with 'could not create a primitive', and"
        " float32 loses vLLM's fast matrix product without a word; CUDA and Triton compile as well",
        "measured; pytorch/pytorch#143651",
    ),
    Setting(
        "PrivateUsers", "yes", (CPU,), "root of the host is nobody's root in there",
        "only root and the engine's own user and group exist in it: the groups video and render, and with"
        " them /dev/kfd and /dev/dri, are gone",
        _MAN,
    ),
    Setting(
        "IPAddressDeny", "any", (CPU,),
        "it neither calls nor is called from outside the host; without GLOO_SOCKET_IFNAME=lo two ranks wait"
        " for each other on the host's address for ten minutes and die (measured)",
        "NCCL's ranks meet on an interface of the host, on lo only where there is no other",
        "NCCL user guide, NCCL_SOCKET_IFNAME", LOOPBACK,
    ),
    Setting(
        "IPAddressAllow", "localhost", (CPU,), "the front, the gate and the engine's own processes",
        "as IPAddressDeny", only=LOOPBACK,
    ),
)  # fmt: skip
"""In the unit's order."""


def lines(traits: Tuple[str, ...]) -> List[str]:
    """The unit's lines for an engine with these traits; one without a device gets what both profiles have."""
    profiles = [trait for trait in traits if trait in _BOTH] or list(_BOTH)
    return [
        row.line
        for row in SETTINGS
        if set(profiles) <= set(row.profiles) and (not row.only or row.only in traits)
    ]


def traits(place: Mapping[str, Any], runtime: str) -> Tuple[str, ...]:
    """What decides about an engine's profile.

    :param place: the deployment's; ``gpus`` and ``host`` count.
    :param runtime: the environment that it runs from.
    """
    local = place["host"] in ("localhost", "::1") or place["host"].startswith("127.")
    return (device(place["gpus"], runtime), *([LOOPBACK] if local else []))


def device(gpus: List[str], runtime: str, nodes: Tuple[str, ...] = _DEVICE_NODES) -> str:
    """CPU or GPU: as vLLM itself sees it, from its version's ``+cpu``; where no runtime lies, by the host.

    The host alone would mislead at a boot: NVIDIA's device nodes come with the first program that asks.
    """
    if gpus:
        return GPU
    installed = glob.glob(
        os.path.join(glob.escape(runtime), "lib", "python3*", "site-packages", "vllm-*.dist-info")
    )
    if installed:
        return CPU if any("cpu" in os.path.basename(path) for path in installed) else GPU
    return GPU if any(os.path.exists(node) for node in nodes) else CPU
