"""A bridge per set of hosts, a network namespace and an address per host."""

from __future__ import annotations

import contextlib
import subprocess
from dataclasses import dataclass


def run(*argv: str) -> str:
    """stdout; a failure is an error with the command's own words."""
    done = subprocess.run(argv, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise RuntimeError(f"{' '.join(argv)} ended with {done.returncode}: {done.stderr.strip()}")
    return done.stdout


def ignored(*argv: str) -> None:
    """What may have happened already."""
    with contextlib.suppress(RuntimeError):
        run(*argv)


@dataclass(frozen=True)
class Network:
    """The network of the set with this number: ``10.77.<number>.0/24``."""

    number: int

    @property
    def bridge(self) -> str:
        return f"dghosts{self.number}"

    @property
    def gateway(self) -> str:
        """The controller's own address on it."""
        return f"10.77.{self.number}.1"

    def address(self, index: int) -> str:
        return f"10.77.{self.number}.{10 + index}"

    def up(self) -> None:
        run("ip", "link", "add", self.bridge, "type", "bridge")
        run("ip", "addr", "add", f"{self.gateway}/24", "dev", self.bridge)
        run("ip", "link", "set", self.bridge, "up")

    def down(self) -> None:
        ignored("ip", "link", "del", self.bridge)

    def namespace(self, index: int) -> str:
        return f"{self.bridge}-{index}"

    def link(self, index: int) -> str:
        """Our end of the host's cable; the kernel allows 15 characters."""
        return f"dgh{self.number}p{index}"

    def plug(self, index: int) -> None:
        name, link = self.namespace(index), self.link(index)
        run("ip", "netns", "add", name)
        run("ip", "link", "add", link, "type", "veth", "peer", "name", "eth0", "netns", name)
        run("ip", "link", "set", link, "master", self.bridge, "up")
        run("ip", "-n", name, "addr", "add", f"{self.address(index)}/24", "dev", "eth0")
        for device in ("lo", "eth0"):
            run("ip", "-n", name, "link", "set", device, "up")

    def unplug(self, index: int) -> None:
        # The link at once: orphaned TCP sockets can pin a deleted namespace, and its cable, for minutes.
        ignored("ip", "link", "del", self.link(index))
        ignored("ip", "netns", "del", self.namespace(index))
