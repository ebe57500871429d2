#!/usr/bin/python
# Copyright: Draftgate contributors
# SPDX-License-Identifier: Apache-2.0
"""Measure a drafter's acceptance on a running engine and judge it."""

from __future__ import annotations

DOCUMENTATION = r"""
---
module: acceptance_gate
short_description: Measure a drafter's acceptance on a running engine and judge it
description:
  - Sends prompts of its own to an OpenAI-compatible vLLM server, counts how many drafted tokens were accepted
    by its own requests, and judges the figures by thresholds. Nothing on the host is changed.
  - Own requests are counted by the engine's per-request metrics where it has them (vLLM 0.32 with
    C(--per-request-spec-decode-metrics)), cross-checked with its counters; elsewhere by differences of those.
  - Works against any endpoint, so also against a server in a container or one that somebody else set up.
options:
  endpoint:
    description: Where the engine answers, as in V(http://127.0.0.1:8000).
    type: str
    required: true
  model:
    description: The served model name. Absent, the engine's only or first model is taken.
    type: str
  prompts:
    description: A prompt set on the host that runs the module (JSON Lines).
    type: path
    required: true
  num_speculative_tokens:
    description:
      - How many tokens a step drafts at most, as the engine was configured.
      - V(0) measures a server without speculation, speed alone.
    type: int
    required: true
  mode:
    description:
      - V(gate) judges a release before it is exposed and fails unless the verdict is C(pass).
      - V(verify) measures a serving release and reports the verdict without failing.
    type: str
    choices: [gate, verify]
    default: gate
  thresholds:
    description:
      - C(acceptance_min_rate) (null), C(acceptance_min_mean_length) (2.0), C(acceptance_min_position_1)
        (0.4), C(acceptance_min_speedup) (null), C(acceptance_min_drafts) (200) and
        C(acceptance_max_regression) (0.15) with their defaults.
      - null is not judged; the rate or the mean length has to be set.
    type: dict
    default: {}
  sampling:
    description: C(temperature), C(seed), and C(max_tokens), which overrides that of the prompts.
    type: dict
    default: {temperature: 0, seed: 0}
  template:
    description: The chat template's arguments (C(chat_template_kwargs)).
    type: dict
    default: {enable_thinking: false}
  workloads:
    description: The kinds of prompts to send. Absent, all of them.
    type: list
    elements: str
  concurrency:
    description: Requests at a time.
    type: int
    default: 1
  timeout:
    description: Seconds to wait for one answer.
    type: float
    default: 300
  api_key:
    description: The engine's API key.
    type: str
  api_key_path:
    description: A file that holds the engine's API key.
    type: path
attributes:
  check_mode:
    support: full
    description: Checks the input and asks the engine for its health; sends no prompt and gives no verdict.
author: [Draftgate contributors]
"""

EXAMPLES = r"""
- name: Judge what answers at this port
  acceptance_gate:
    endpoint: http://127.0.0.1:8000
    prompts: prompts/tiny-pair.jsonl
    num_speculative_tokens: 7
    thresholds:
      acceptance_min_mean_length: 3.0

- name: Look at somebody else's server
  acceptance_gate:
    endpoint: https://models.example.org/qwen
    api_key_path: /etc/draftgate/api-key
    prompts: /srv/prompts/code.jsonl
    num_speculative_tokens: 15
    mode: verify
  register: measured
"""

RETURN = r"""
verdict: {description: C(pass), C(fail) or C(inconclusive)., type: str, returned: measured}
reasons:
  description: Why not C(pass); each has C(code), C(message), C(field), C(observed), C(expected).
  type: list
  elements: dict
  returned: measured
notes:
  description: The same shape; without effect on the verdict.
  type: list
  elements: dict
  returned: measured
acceptance:
  description: Counts and rates. The per-position rates are unconditional.
  type: dict
  returned: measured with speculation
  contains:
    drafts: {description: Verified steps., type: int}
    draft_tokens: {description: Tokens drafted., type: int}
    accepted_tokens: {description: Tokens accepted., type: int}
    rate: {description: Accepted by drafted tokens., type: float}
    mean_acceptance_length: {description: Tokens per step; 1 is no gain., type: float}
    per_position: {description: Share of drafts accepted at each position., type: list}
workloads: {description: The same per kind of prompts., type: list, elements: dict, returned: measured}
suspects:
  description: What may be wrong, in the order to look at it - C(cause), C(evidence), C(why), C(next).
  type: list
  elements: dict
  returned: measured
tokens_per_second: {description: Generated tokens per second., type: float, returned: measured}
counted_by: {description: C(requests) or C(counters)., type: str, returned: measured}
own_share: {description: Own share of what the engine counted meanwhile., type: float, returned: measured}
engine: {description: Name and version., type: dict, returned: measured}
model: {description: The model that was asked., type: str, returned: measured}
prompts: {description: Digest of the prompt set., type: dict, returned: success}
thresholds: {description: What it was judged by., type: dict, returned: success}
healthy: {description: Whether the engine's C(/health) answered., type: bool, returned: check mode}
"""

from ansible.module_utils.basic import AnsibleModule  # noqa: E402 - after the documentation, as Ansible wants it
from ansible.module_utils.draftgate import endpoint_gate  # noqa: E402
from ansible.module_utils.draftgate.ansible_glue import run_module  # noqa: E402


def main() -> None:
    module = AnsibleModule(
        argument_spec={
            "endpoint": {"type": "str", "required": True},
            "model": {"type": "str"},
            "prompts": {"type": "path", "required": True},
            "num_speculative_tokens": {"type": "int", "required": True},
            "mode": {"type": "str", "choices": ["gate", "verify"], "default": "gate"},
            "thresholds": {"type": "dict", "default": {}},
            "sampling": {"type": "dict", "default": {"temperature": 0, "seed": 0}},
            "template": {"type": "dict", "default": {"enable_thinking": False}},
            "workloads": {"type": "list", "elements": "str"},
            "concurrency": {"type": "int", "default": 1},
            "timeout": {"type": "float", "default": 300},
            "api_key": {"type": "str", "no_log": True},
            "api_key_path": {"type": "path", "no_log": False},
        },
        mutually_exclusive=[("api_key", "api_key_path")],
        supports_check_mode=True,
    )
    run_module(module, lambda: endpoint_gate.run(module.params, check=module.check_mode))


if __name__ == "__main__":
    main()
