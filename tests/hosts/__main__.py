"""``python -m tests.hosts up NAME [COUNT] | down NAME | list | inventory NAME | ssh HOST [COMMAND]``."""

from __future__ import annotations

import argparse
import os
import re
import sys
import time

from tests.cache import engine
from tests.hosts import STATE, Hosts, NoHosts, Refused, base


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.hosts", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    booting = commands.add_parser("up", help="boot a set of hosts; its inventory is printed")
    booting.add_argument("name")
    booting.add_argument("count", type=int, nargs="?", default=1)
    for name, what in (("down", "leave nothing of a set"), ("inventory", "print its Ansible inventory")):
        commands.add_parser(name, help=what).add_argument("name")
    commands.add_parser("list", help="every host and its address")
    entering = commands.add_parser("ssh", help="log in, or run one command")
    entering.add_argument("host", help="as list prints it")
    entering.add_argument("words", nargs=argparse.REMAINDER)
    given = parser.parse_args()
    try:
        return _run(given)
    except (NoHosts, RuntimeError, TimeoutError) as exc:
        sys.stderr.write(f"{exc}\n")
        return 1


def _run(given: argparse.Namespace) -> int:
    if given.command == "up":
        base.require()  # before 2.5 GB are installed for somebody who cannot boot
        engine()
        began = time.monotonic()
        hosts = Hosts.up(given.name, given.count)
        sys.stderr.write(f"{given.count} host(s) after {time.monotonic() - began:.1f} s\n")
        sys.stdout.write(hosts.inventory())
    elif given.command == "down":
        Hosts.down(given.name)
    elif given.command == "inventory":
        sys.stdout.write(Hosts.found(given.name).inventory())
    elif given.command == "list":
        for state in sorted(STATE.glob("*/number")):
            for host in Hosts.found(state.parent.name):
                sys.stdout.write(f"{host.name}\t{host.address}\t{'up' if host.machine.running else 'down'}\n")
    else:
        return _enter(given.host, given.words)
    return 0


def _enter(name: str, words: list[str]) -> int:
    hosts = {host.name: host for host in Hosts.found(re.sub(r"\d+$", "", name))}
    if name not in hosts:
        raise Refused(f"There is no host {name!r}; python -m tests.hosts list shows them.")
    host = hosts[name]
    os.execvp("ssh", ["ssh", *host.ssh_options, f"deploy@{host.address}", *words])


if __name__ == "__main__":
    sys.exit(main())
