"""One systemd-nspawn machine: its disk, its processes, its end."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.hosts.network import Network, ignored, run

KEEPER = 'while "$@"; [ $? -eq 133 ]; do :; done'
"""133 is nspawn's exit code when the guest reboots: with --keep-unit it leaves the restart to its caller."""

_TREES = ("/sys/fs/cgroup/systemd", "/sys/fs/cgroup/unified")
"""Those that systemd manages itself where there are cgroups v1; memory and the like stay the caller's."""


def groups(name: str) -> list[Path]:
    """The control groups of one machine. Without one of its own it would share its neighbours'."""
    trees = [Path(tree) for tree in _TREES if os.path.isdir(tree)] or [Path("/sys/fs/cgroup")]
    return [tree / "draftgate-hosts" / name for tree in trees]


@dataclass(frozen=True)
class Machine:
    """:param directory: its disk and what its console said; :param binds: read-only, at the same path."""

    name: str
    index: int
    network: Network
    directory: Path
    base: Path
    binds: tuple[str, ...] = ()

    @property
    def root(self) -> Path:
        return self.directory / "root"

    # The disk

    def make(self, neighbours: Sequence[Machine], public_key: str, user: str) -> None:
        """A disk over the base, with the machine's own name, host key and who may log in."""
        for name in ("upper", "work", "root"):
            (self.directory / name).mkdir(parents=True, exist_ok=True)
        self.mount()
        etc, home = self.root / "etc", self.root / "home" / user / ".ssh"
        lines = [f"{each.network.address(each.index)} {each.name}" for each in neighbours]
        # Its own name too, or sudo warns at each call.
        (etc / "hosts").write_text("\n".join(["127.0.0.1 localhost", "::1 localhost", *lines, ""]), "utf-8")
        (etc / "hostname").write_text(f"{self.name}\n", "utf-8")
        key = etc / "ssh" / "ssh_host_ed25519_key"
        run("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(key))
        for authorized in (home / "authorized_keys", self.root / "root" / ".ssh" / "authorized_keys"):
            authorized.parent.mkdir(mode=0o700, exist_ok=True)
            authorized.write_text(public_key, "utf-8")
            owner = authorized.parent.stat()
            os.chown(authorized, owner.st_uid, owner.st_gid)

    def mount(self) -> None:
        if not os.path.ismount(self.root):
            layers = f"lowerdir={self.base},upperdir={self.directory}/upper,workdir={self.directory}/work"
            run("mount", "-t", "overlay", "overlay", "-o", layers, str(self.root))

    def host_key(self) -> str:
        """``ssh-ed25519 AAAA…``."""
        text = (self.root / "etc" / "ssh" / "ssh_host_ed25519_key.pub").read_text("utf-8")
        return " ".join(text.split()[:2])

    def remove(self) -> None:
        """Everything of it. Nothing when there is nothing."""
        self.kill()
        self.network.unplug(self.index)
        for mounted in self._mounts():
            ignored("umount", "--lazy", mounted)
        for group in groups(self.namespace):
            for directory, _, _ in os.walk(group, topdown=False):
                with contextlib.suppress(OSError):
                    os.rmdir(directory)
        shutil.rmtree(self.directory, ignore_errors=True)

    def _mounts(self) -> list[str]:
        """Below our directory, the innermost first."""
        with open("/proc/self/mounts", encoding="utf-8") as table:
            points = [line.split()[1] for line in table]
        return [point for point in reversed(points) if point.startswith(f"{self.directory}/")]

    # Its processes

    @property
    def namespace(self) -> str:
        """Of its network, and the name of its control groups."""
        return self.network.namespace(self.index)

    def boot(self) -> None:
        """Start its keeper, which starts it again when it reboots."""
        argv = ["sh", "-c", KEEPER, "keeper"]
        argv += ["systemd-nspawn", "--quiet", "--boot", "--console=read-only", "--register=no", "--keep-unit"]
        argv += [f"--directory={self.root}", f"--machine={self.name}", f"--hostname={self.name}"]
        argv += [f"--network-namespace-path=/run/netns/{self.namespace}"]
        argv += ["--system-call-filter=bpf"]  # or the guests' IPAddressDeny would deny nothing
        argv += ["--resolv-conf=off", "--timezone=off", "--link-journal=no"]
        argv += [f"--bind-ro={path}" for path in self.binds]
        joined = [group / "cgroup.procs" for group in groups(self.namespace)]
        for path in joined:
            path.parent.mkdir(parents=True, exist_ok=True)

        def join() -> None:
            for path in joined:
                path.write_text("0", "ascii")  # whoever writes it

        with open(self.directory / "console.log", "ab") as console:
            subprocess.Popen(
                argv,
                stdin=subprocess.DEVNULL,
                stdout=console,
                stderr=console,
                start_new_session=True,
                cwd="/",
                preexec_fn=join,  # not by us afterwards: killed in between, we would leave what nobody finds
            )

    def kill(self) -> None:
        """As pulling the plug, whatever of it is left: a guest outlives a keeper that was killed."""
        end = time.monotonic() + 60
        while doomed := self.processes():
            assert time.monotonic() < end, f"{self.name} does not end"
            for pid in doomed:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            time.sleep(0.05)

    def processes(self) -> list[int]:
        """All that its control groups hold: its keeper, nspawn, the guest's."""
        found = dict.fromkeys(pid for group in groups(self.namespace) for pid in _pids(group))
        return [pid for pid in found if not _zombie(pid)]

    @property
    def running(self) -> bool:
        return bool(self.processes())


def _pids(group: Path) -> Iterator[int]:
    for directory, _, _ in os.walk(group):
        with contextlib.suppress(OSError):
            yield from map(int, (Path(directory) / "cgroup.procs").read_text("ascii").split())


def _zombie(pid: int) -> bool:
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text("ascii", "replace").rpartition(")")[2].split()[0] == "Z"
    return True
