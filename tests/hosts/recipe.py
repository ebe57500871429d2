"""What a test host's root file system is made of. Its digest names the base: a change builds another."""

from __future__ import annotations

import hashlib
import json

SUITE = "bookworm"

# What a freshly installed server has, and what the roles would install: the hosts have no route out.
PACKAGES = (
    "systemd", "systemd-sysv", "dbus", "openssh-server", "sudo", "procps", "iproute2", "curl",
    "ca-certificates", "python3", "python3-venv", "python3-apt", "python3-packaging",
    "libnuma1", "nginx-light",
)  # fmt: skip

USER = "deploy"

# Run with the new root as $1, in this order.
SETUP = (
    f'chroot "$1" useradd --create-home --shell /bin/bash {USER}',
    f'echo "{USER} ALL=(ALL) NOPASSWD:ALL" > "$1/etc/sudoers.d/{USER}"',
    f'install -d -m 700 -o 1000 -g 1000 "$1/home/{USER}/.ssh"',
    'rm -f "$1"/etc/ssh/ssh_host_*',
    ': > "$1/etc/machine-id"',
)


def digest() -> str:
    """12 hex digits of everything above."""
    recipe = json.dumps([SUITE, PACKAGES, USER, SETUP])
    return hashlib.sha256(recipe.encode()).hexdigest()[:12]
