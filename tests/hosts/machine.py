"""One systemd-nspawn machine: its disk, its processes, its end. As a program it is the machine's keeper."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from draftgate import processes

from tests.cache import REPO
from tests.hosts.network import Network, ignored, run

REBOOT = 133
"""nspawn's exit code when the guest reboots: with --keep-unit it leaves the restart to its caller."""

_TREES = ("/sys/fs/cgroup/systemd", "/sys/fs/cgroup/unified")
"""Those that systemd manages itself where there are cgroups v1; memory and the like stay the caller's."""


def groups(name: str) -> list[Path]:
    """The control groups of one machine. Without one of its own it would share its neighbours'."""
    trees = [Path(tree) for tree in _TREES if os.path.isdir(tree)] or [Path("/sys/fs/cgroup")]
    return [tree / "draftgate-hosts" / name for tree in trees]


@dataclass(frozen=True)
class Machine:
    """:param directory: its disk and its keeper's pid; :param binds: read-only, at the same path."""

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

    @property
    def _keeper_file(self) -> Path:
        return self.directory / "keeper"

    def boot(self) -> None:
        """Start its keeper, which starts it again when it reboots."""
        argv = [sys.executable, "-m", "tests.hosts.machine", self.namespace, str(self._keeper_file), "--"]
        argv += ["systemd-nspawn", "--quiet", "--boot", "--console=read-only", "--register=no", "--keep-unit"]
        argv += [f"--directory={self.root}", f"--machine={self.name}", f"--hostname={self.name}"]
        argv += [f"--network-namespace-path=/run/netns/{self.namespace}"]
        argv += ["--system-call-filter=bpf"]  # or the guests' IPAddressDeny would deny nothing
        argv += ["--resolv-conf=off", "--timezone=off", "--link-journal=no"]
        argv += [f"--bind-ro={path}" for path in self.binds]
        with open(self.directory / "console.log", "ab") as console:
            subprocess.Popen(
                argv,
                stdin=subprocess.DEVNULL,
                stdout=console,
                stderr=console,
                start_new_session=True,
                cwd=REPO,
                env={**os.environ, "PYTHONPATH": str(REPO / "module_utils")},
            )

    def kill(self) -> None:
        """As pulling the plug: the keeper first, so that it starts nothing again."""
        keeper = self._keeper()
        if keeper is None:
            return
        doomed = [keeper, *processes.descendants(keeper)]
        for pid in doomed:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        for group in groups(self.namespace):  # the guest's processes are no children of ours any more
            for pid in _pids(group):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
        end = time.monotonic() + 20
        while any(os.path.exists(f"/proc/{pid}") and not _zombie(pid) for pid in doomed):
            assert time.monotonic() < end, f"{self.name} does not end"
            time.sleep(0.05)

    def _keeper(self) -> int | None:
        """Its pid, unless another process has that number now."""
        with contextlib.suppress(OSError, ValueError):
            pid, ticks = map(int, self._keeper_file.read_text("ascii").split())
            if processes.start_ticks(pid) == ticks:
                return pid
        return None

    @property
    def running(self) -> bool:
        return self._keeper() is not None


def _pids(group: Path) -> Iterator[int]:
    for directory, _, _ in os.walk(group):
        with contextlib.suppress(OSError):
            yield from map(int, (Path(directory) / "cgroup.procs").read_text("ascii").split())


def _zombie(pid: int) -> bool:
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text("ascii", "replace").rpartition(")")[2].split()[0] == "Z"
    return True


def keep(group: str, pid_file: Path, argv: Sequence[str]) -> int:
    """The keeper: join the machine's control groups, then run it until it is switched off."""
    for directory in groups(group):
        directory.mkdir(parents=True, exist_ok=True)
        (directory / "cgroup.procs").write_text(str(os.getpid()), "ascii")
    pid_file.write_text(f"{os.getpid()} {processes.start_ticks(os.getpid())}", "ascii")
    while True:
        code = subprocess.run(argv, check=False).returncode
        if code != REBOOT:
            return code


if __name__ == "__main__":
    sys.exit(keep(sys.argv[1], Path(sys.argv[2]), sys.argv[sys.argv.index("--") + 1 :]))
