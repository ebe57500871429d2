#!/usr/bin/python
# Copyright: Draftgate contributors
# SPDX-License-Identifier: Apache-2.0
"""Put the host's own copy of the logic and its service manager in place."""

from __future__ import annotations

DOCUMENTATION = r"""
---
module: host_agent
short_description: Install the host's agent, its command and its service manager
description:
  - The switch lives on the host, so the host gets a copy of the logic under its digest, the command
    C(draftgate) in C(bin/), and a service manager that runs (systemd, or supervisord without root).
  - In a playbook the action plugin of the same name fills in O(archive), O(digest) and O(supervisor_lock).
options:
  home:
    description:
      - Where the installation's state lies on the host.
      - V(auto) is C(/var/lib/draftgate) for root under systemd, C(~/.draftgate) elsewhere.
    type: path
    default: auto
  backend:
    description: V(auto) is systemd where that is process 1 and we are root, supervisord elsewhere.
    type: str
    choices: [auto, systemd, supervisord]
    default: auto
  user:
    description:
      - Whom engines run as under systemd; where the manager has no choice it does not matter.
      - The module does not create it, it says whether it is missing.
    type: str
    default: draftgate
  archive:
    description: The agent as a base64 zip. Filled in by the action plugin.
    type: str
    default: ""
  digest:
    description: The agent's digest. Filled in by the action plugin.
    type: str
    default: ""
  supervisor_lock:
    description: The hashed lock of supervisord's own small environment. Filled in by the action plugin.
    type: str
    default: ""
author: [Draftgate contributors]
"""

EXAMPLES = r"""
- name: Install the host's agent
  host_agent:
    home: /var/lib/draftgate
    backend: systemd
"""

RETURN = r"""
agent: {description: The agent's directory on the host., type: str, returned: success}
backend: {description: The service manager that was chosen., type: str, returned: success}
command: {description: The host's own command., type: str, returned: success}
user: {description: Whom engines run as; empty without a choice., type: str, returned: success}
user_missing: {description: Whether the host has no such user yet., type: bool, returned: success}
"""

import base64  # noqa: E402 - documentation first, as Ansible wants it
import sys  # noqa: E402
from typing import Any, Dict  # noqa: E402

from ansible.module_utils.basic import AnsibleModule  # noqa: E402
from ansible.module_utils.draftgate import agent  # noqa: E402
from ansible.module_utils.draftgate.ansible_glue import run_module  # noqa: E402
from ansible.module_utils.draftgate.backend import choose, users  # noqa: E402
from ansible.module_utils.draftgate.layout import Home  # noqa: E402


def argument_spec() -> Dict[str, Any]:
    return {
        "home": {"type": "path", "default": "auto"},
        "backend": {"type": "str", "choices": ["auto", "systemd", "supervisord"], "default": "auto"},
        "user": {"type": "str", "default": "draftgate"},
        "archive": {"type": "str", "default": ""},
        "digest": {"type": "str", "default": ""},
        "supervisor_lock": {"type": "str", "default": ""},
    }


def install(module: AnsibleModule) -> Dict[str, Any]:
    given = module.params
    home = Home.at(given["home"])
    backend = choose(home, given["backend"], supervisor_lock=given["supervisor_lock"])
    user = users.engine_user(backend.name, given["user"])
    users.require_reachable({"user": user, "home": home.root, "runtimes": home.runtimes})
    changed = agent.installed(home) != given["digest"][:12]
    if not module.check_mode:
        archive = base64.b64decode(given["archive"])
        changed = agent.install(home, given["digest"], archive, sys.executable)
        changed = backend.ensure() or changed
    return {
        "changed": changed,
        "agent": home.agent(given["digest"]),
        "backend": backend.name,
        "command": home.command,
        "user": user,
        "user_missing": bool(user) and users.entry(user) is None,
    }


def main() -> None:
    module = AnsibleModule(argument_spec=argument_spec(), supports_check_mode=True)
    run_module(module, lambda: install(module))


if __name__ == "__main__":
    main()
