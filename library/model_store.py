#!/usr/bin/python
# Copyright: Draftgate contributors
# SPDX-License-Identifier: Apache-2.0
"""Keep local model directories under the digest of their content."""

from __future__ import annotations

DOCUMENTATION = r"""
---
module: model_store
short_description: Keep local model directories under the digest of their content
description:
  - Copies model directories of the host into C(models/) below O(home), each under the digest of its
    content, so that a server outlives the directory that it came from. A copy is verified, and complete or
    not there at all; a killed one goes on where it stopped.
  - Every file that an engine may read counts. Hidden files and C(*.md) do not.
  - Digests are remembered by path, size, modification time and inode, so that an unchanged model is not read
    again. The memory is a file below O(home); losing it costs time, nothing else.
options:
  models:
    description: Name of a model (C(target), C(drafter)) to its directory on the host.
    type: dict
    required: true
  home:
    description:
      - Where the installation's state lies on the host.
      - V(auto) is C(/var/lib/draftgate) for root under systemd, C(~/.draftgate) elsewhere.
    type: path
    default: auto
  state:
    description:
      - V(inspected) computes digests and says where the models lie or would lie.
      - V(present) has them in the store.
    type: str
    choices: [inspected, present]
    default: present
attributes:
  check_mode:
    description: Computes digests, says what would be copied, and writes nothing.
    support: full
  diff_mode:
    description: Shows which directories of the store would be added.
    support: full
author: [Draftgate contributors]
"""

EXAMPLES = r"""
- name: Put target and drafter into the store
  model_store:
    models:
      target: /srv/models/Qwen3.6-27B
      drafter: /srv/models/Qwen3.6-27B-DFlash
  register: stored

- name: Only know the models by their content
  model_store:
    models: {target: /srv/models/Qwen3.6-27B}
    state: inspected
"""

RETURN = r"""
models:
  description: One entry for each model, under the name that was given.
  type: dict
  returned: success
  sample:
    drafter:
      path: /home/me/.draftgate/models/3f2a9c0d1b4e
      source: /srv/models/Qwen3.6-27B-DFlash
      digest: 3f2a9c0d1b4e5f60718293a4b5c6d7e8f90a1b2c3d4e5f60718293a4b5c6d7e8
      bytes: 3460431000
      files: [{name: config.json, bytes: 1043, sha256: 9d1c...}]
      changed: false
  contains:
    path: {description: The directory in the store., type: str, returned: always}
    source: {description: The directory that was given., type: str, returned: always}
    digest: {description: SHA-256 over the sorted names and their SHA-256., type: str, returned: always}
    bytes: {description: Size of all files that count., type: int, returned: always}
    files: {description: Name, bytes and sha256 of each., type: list, elements: dict, returned: always}
    changed: {description: Whether it was not in the store before., type: bool, returned: always}
"""

from typing import Any, Dict  # noqa: E402 - documentation first, as Ansible wants it

from ansible.module_utils.basic import AnsibleModule  # noqa: E402
from ansible.module_utils.draftgate import model_store  # noqa: E402
from ansible.module_utils.draftgate.ansible_glue import run_module  # noqa: E402
from ansible.module_utils.draftgate.layout import Home  # noqa: E402


def argument_spec() -> Dict[str, Any]:
    return {
        "models": {"type": "dict", "required": True},
        "home": {"type": "path", "default": "auto"},
        "state": {"type": "str", "choices": ["inspected", "present"], "default": "present"},
    }


def main() -> None:
    module = AnsibleModule(argument_spec=argument_spec(), supports_check_mode=True)
    given = module.params
    run_module(
        module,
        lambda: model_store.converge(
            Home.at(given["home"]),
            given["models"],
            wanted_present=given["state"] == "present",
            check_mode=module.check_mode,
        ),
    )


if __name__ == "__main__":
    main()
