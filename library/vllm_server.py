#!/usr/bin/python
# Copyright: Draftgate contributors
# SPDX-License-Identifier: Apache-2.0
"""Start, stop or remove one engine as a service."""

from __future__ import annotations

DOCUMENTATION = r"""
---
module: vllm_server
short_description: Start, stop or remove a vLLM engine as a service
description:
  - Runs the engine of one deployment under systemd or supervisord and waits until it has answered a request.
  - It does not measure and does not restore. A deploy uses M(release), which calls the same functions.
options:
  spec:
    description:
      - The deployment, with C(serve), C(place) and C(gate) as the filter C(draftgate_spec) makes them,
        or as C(state/active.json) on the host has them. An engine with an API key needs the latter, whose
        C(place.secrets) names the key's file.
    type: dict
    required: true
  state:
    description:
      - V(started) waits until the engine has answered, whether it ran before or not; V(restarted) always
        starts it anew; V(stopped) returns when none of its processes is left; V(absent) also forgets the
        service. Its log stays.
    type: str
    choices: [started, stopped, restarted, absent]
    default: started
  timeout:
    description: Seconds until the engine must have answered, or must have stopped.
    type: int
    default: 600
author: Draftgate
attributes:
  check_mode:
    support: full
  diff_mode:
    support: full
"""

EXAMPLES = r"""
- name: Start the engine and wait for its first answer
  vllm_server:
    spec: "{{ draftgate_spec }}"
    timeout: 900

- name: Stop it
  vllm_server:
    spec: "{{ draftgate_spec }}"
    state: stopped
"""

RETURN = r"""
endpoint: {description: Where it answers., type: str, returned: success}
pid: {description: The service's process; null when it does not run., type: int, returned: success}
version: {description: What the engine says it is; null when it does not run., type: str, returned: success}
argv: {description: The engine's whole command line., type: list, elements: str, returned: success}
ready_seconds: {description: Seconds to its first answer, or null., type: float, returned: success}
cause:
  description: >-
    Why it did not start: port_taken, out_of_memory, contract, bad_argument, import_error,
    died_on_first_request, timeout or unknown.
  type: str
  returned: failure
log_tail:
  description: The last lines of its log, credentials masked.
  type: list
  elements: str
  returned: failure
"""

from typing import Any, Dict  # noqa: E402 - documentation first, as Ansible wants it

from ansible.module_utils.basic import AnsibleModule  # noqa: E402
from ansible.module_utils.draftgate import launch  # noqa: E402
from ansible.module_utils.draftgate.ansible_glue import run_module  # noqa: E402


def argument_spec() -> Dict[str, Any]:
    return {
        "spec": {"type": "dict", "required": True},
        "state": {"type": "str", "choices": list(launch.STATES), "default": "started"},
        "timeout": {"type": "int", "default": 600},
    }


def main() -> None:
    module = AnsibleModule(argument_spec=argument_spec(), supports_check_mode=True)
    given = module.params
    wish = (given["spec"], given["state"], given["timeout"], module.check_mode)
    run_module(module, lambda: launch.converge(*wish))


if __name__ == "__main__":
    main()
