#!/usr/bin/python
# Copyright: Draftgate contributors
# SPDX-License-Identifier: Apache-2.0
"""Inspect, prepare, switch, roll back, prune or remove a release."""

from __future__ import annotations

DOCUMENTATION = r"""
---
module: release
short_description: Inspect, prepare, switch, roll back, prune or remove a release of vLLM
description:
  - A release is one immutable deployed state. It is switched by a named job on the host that keeps a journal,
    gates the candidate before it counts as activated, and restores what served before when the gate is red.
  - In a playbook the action plugin of the same name shows the job's progress and fetches the evidence.
    Without it the module waits silently and does the same.
options:
  state:
    description:
      - V(inspected) reads only and says what a deploy would do and why.
      - V(prepared) puts the release's files on the host; nothing that serves is touched.
      - V(switched) makes the host equal the wish, and fails when something else serves in the end.
      - V(restored) goes back to the release that the active one replaced; it is gated like any other.
      - V(pruned) removes old release directories.
      - V(absent) leaves no process, no port and no file but the caches it names.
    type: str
    choices: [inspected, prepared, switched, restored, pruned, absent]
    required: true
  home:
    description:
      - Where the installation's state lies on the host.
      - V(auto) is C(/var/lib/draftgate) for root under systemd, C(~/.draftgate) elsewhere.
    type: path
    default: auto
  spec:
    description: The wish as the filter P(draftgate_spec#filter) builds it.
    type: dict
    default: {}
  options:
    description: How to get there - C(strategy), C(on_failure), C(retry), C(time_limit), C(evidence_max_age).
    type: dict
    default: {}
  findings:
    description: The contract's findings, recorded with the evidence.
    type: list
    elements: dict
    default: []
  drafter_overrides:
    description: What the operator overrode in the drafter's config; suspects name it.
    type: dict
    default: {}
  secrets:
    description: Environment name to value (C(VLLM_API_KEY)). Kept in 0600 files, counted by a keyed digest.
    type: dict
    default: {}
  prompts:
    description: The prompt set's content. The action plugin reads it from O(prompts_path).
    type: str
    default: ""
  prompts_path:
    description: The prompt set on the controller. Read by the action plugin.
    type: str
    default: ""
  drafter_source:
    description: The drafter's directory in the host's model store; empty without speculation.
    type: str
    default: ""
  keep:
    description: How many release directories V(pruned) leaves, besides the active and the previous one.
    type: int
    default: 5
  purge:
    description: Whether V(absent) removes the caches too (runtimes, models).
    type: bool
    default: false
  reports_dir:
    description: Where the action plugin writes the evidence on the controller; empty = nowhere.
    type: str
    default: ""
  gateway:
    description: The wished front, by the variables C(gateway_*); empty = the front is no part of the wish.
    type: dict
    default: {}
  wait_seconds:
    description: Return after this long with RV(job) still running. Without it the call waits for the end.
    type: float
  seen:
    description: The stage that the caller has shown; another stage returns at once.
    type: str
    default: ""
  attempt:
    description: The attempt that an earlier call began. Without it one begins, or a running one is joined.
    type: str
    default: ""
  agent:
    description:
      - Digest of the agent that the controller ships. The module's logic runs from the host's agent of this
        digest. Filled in by the action plugin.
    type: str
    default: ""
  agent_archive:
    description: The agent itself, for a host that lacks it. Filled in by the action plugin.
    type: str
    default: ""
author: [Draftgate contributors]
"""

EXAMPLES = r"""
- name: Compare the wish with the host
  release:
    state: inspected
    spec: "{{ vllm_server_spec }}"
  register: __vllm_server_inspected

- name: Go back to the release before
  release:
    state: restored
    options: {on_failure: restore}
"""

RETURN = r"""
agent_missing: {description: The host lacks O(agent) and must be sent it., type: bool, returned: then}
status_text: {description: The same for a person., type: str, returned: inspected without a spec}
release: {description: Id of the wished release., type: str, returned: success}
current: {description: Id of the release that is activated., type: str, returned: inspected}
previous: {description: Id of the release that it replaced., type: str, returned: inspected}
action:
  description: What the wish costs here (none, start, decide, measure, switch, refuse).
  type: str
  returned: success
reason: {description: Why., type: str, returned: inspected}
strategy: {description: In place or side by side, type: str, returned: inspected}
why: {description: Why it would be made so., type: str, returned: inspected}
warning: {description: What is in order but not what one would want to see., type: str, returned: success}
refusal: {description: Why the wish is not even tried; empty = it is., type: str, returned: inspected}
differs:
  description: What differs between the activated deployment and the wish.
  type: list
  elements: dict
  returned: success
front_differs:
  description: What differs between the front and the wish.
  type: list
  elements: dict
  returned: inspected
unchanged: {description: Whether a deploy would do nothing., type: bool, returned: inspected}
agent_differs: {description: Whether the host's agent is another one., type: bool, returned: inspected}
evidence_valid: {description: Whether stored evidence counts for this wish., type: bool, returned: inspected}
evidence:
  description: The attempt's evidence (inspected - that of what serves).
  type: dict
  returned: when there is one
current_evidence: {description: The evidence of what serves in the end., type: dict, returned: switched}
status: {description: What C(draftgate status) says., type: dict, returned: success}
lock: {description: Whether a switch is running here., type: dict, returned: inspected}
journal: {description: The switch's journal., type: list, elements: dict, returned: success}
result: {description: How the switch ended., type: dict, returned: switched}
job: {description: The running job's progress., type: dict, returned: with wait_seconds}
attempt: {description: The attempt to follow., type: str, returned: with wait_seconds}
path: {description: The release's directory., type: str, returned: prepared}
removed: {description: Removed release directories., type: list, elements: str, returned: pruned}
kept: {description: Caches that were left., type: list, elements: str, returned: absent}
"""

from typing import Any, Dict  # noqa: E402 - documentation first, as Ansible wants it

from ansible.module_utils.basic import AnsibleModule  # noqa: E402
from ansible.module_utils.draftgate import agent_code  # noqa: E402


def argument_spec() -> Dict[str, Any]:
    return {
        "state": {
            "type": "str",
            "required": True,
            "choices": ["inspected", "prepared", "switched", "restored", "pruned", "absent"],
        },
        "home": {"type": "path", "default": "auto"},
        "spec": {"type": "dict", "default": {}},
        "options": {"type": "dict", "default": {}},
        "findings": {"type": "list", "elements": "dict", "default": []},
        "drafter_overrides": {"type": "dict", "default": {}},
        "secrets": {"type": "dict", "default": {}, "no_log": True},
        "prompts": {"type": "str", "default": ""},
        "prompts_path": {"type": "str", "default": ""},
        "drafter_source": {"type": "str", "default": ""},
        "keep": {"type": "int", "default": 5},
        "purge": {"type": "bool", "default": False},
        "reports_dir": {"type": "str", "default": ""},
        "gateway": {"type": "dict", "default": {}},
        "wait_seconds": {"type": "float"},
        "seen": {"type": "str", "default": ""},
        "attempt": {"type": "str", "default": ""},
        **agent_code.ARGUMENTS,
    }


def main() -> None:
    module = AnsibleModule(argument_spec=argument_spec(), supports_check_mode=True)
    agent_code.run(module, "release")


if __name__ == "__main__":
    main()
