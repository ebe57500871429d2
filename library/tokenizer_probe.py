#!/usr/bin/python
# Copyright: Draftgate contributors
# SPDX-License-Identifier: Apache-2.0
"""Show what a target's tokenizer files tell about its ids, and which rows may be a drafter's mask."""

from __future__ import annotations

DOCUMENTATION = r"""
---
module: tokenizer_probe
short_description: Show what a tokenizer's ids are, and which rows may be a drafter's mask
description:
  - Reads the files of a target's tokenizer, without any library for tokenizers, and reports the length, the
    roles, the added tokens of all files, the rows of the embedding that no token uses, and a window of ids
    with their pieces as people read them.
  - Ranks the rows that may be the mask of a drafter, each with its reason. It never chooses one, because the
    mask is a fact of the drafter's revision and not of the tokenizer.
  - A claimed mask gets findings with the codes that M(drafter_contract) uses. They are reported, and the
    module does not fail because of them.
options:
  path:
    description: The target's directory on the host, or its tokenizer.json.
    type: path
    required: true
  config:
    description:
      - The target's config.json or its directory. A multimodal target's C(text_config) is resolved.
      - Without it the one beside the tokenizer counts, where there is one.
    type: path
  window:
    description:
      - The ids to show. Without it they are the last ones of the tokenizer, the first rows after it, and
        those around O(mask_token_id).
    type: dict
    suboptions:
      first:
        description: The first id.
        type: int
        required: true
      last:
        description: The last id, that one included; 4096 of them at most.
        type: int
        required: true
  mask_token_id:
    description: A claimed mask, to be judged.
    type: int
attributes:
  check_mode:
    description: It only reads, in check mode too.
    support: full
  diff_mode:
    description: It changes nothing.
    support: none
author: [Draftgate contributors]
"""

EXAMPLES = r"""
- name: Look at the end of the tokenizer, and judge the mask of another one
  tokenizer_probe:
    path: /srv/models/Qwen3.6-27B
    window: {first: 248040, last: 248080}
    mask_token_id: 151669
  register: probe

- name: Show it
  ansible.builtin.debug:
    msg: "{{ probe.report }}"
"""

RETURN = r"""
vocab_size:
  description: Rows of the target's embedding; null where no config.json says it.
  type: int
  returned: success
length:
  description: One more than the highest id in use; null where the kind of tokenizer is not read.
  type: int
  returned: success
bos_token_id:
  description: The beginning of text, from all files that name it; an id, a list of several, or null.
  type: raw
  returned: success
eos_token_id:
  description: The end of text, likewise.
  type: raw
  returned: success
pad_token_id:
  description: Padding, likewise.
  type: raw
  returned: success
added_tokens:
  description: Each with C(id), C(token), C(special) and C(files), the files that list it.
  type: list
  elements: dict
  returned: success
unused_rows:
  description: C(first) and C(last) of the rows after the tokenizer; null where there are none, or it is not
    known.
  type: dict
  returned: success
mask_candidates:
  description: Rows that may be the mask, the best hint first, each with C(id), C(token), C(reason) and
    C(known) (the public record has a drafter with it).
  type: list
  elements: dict
  returned: success
window:
  description: Ids with C(token), C(text) (the piece as people read it), C(kind) (added, piece, unused, no_row
    or unknown), C(special) and C(roles).
  type: list
  elements: dict
  returned: success
findings:
  description: What is wrong with the files, or with the claimed mask.
  type: list
  elements: dict
  returned: success
kind:
  description: V(fast) (tokenizer.json), V(sentencepiece), V(tiktoken) or V(none).
  type: str
  returned: success
model:
  description: BPE, WordPiece, WordLevel or Unigram; empty where it is not known.
  type: str
  returned: success
files:
  description: The files that make it this kind.
  type: list
  elements: str
  returned: success
mask_token_id:
  description: The claimed mask.
  type: int
  returned: success
report:
  description: The same for people, one line each.
  type: list
  elements: str
  returned: success
"""

from typing import Any, Dict  # noqa: E402 - documentation first, as Ansible wants it

from ansible.module_utils.basic import AnsibleModule  # noqa: E402
from ansible.module_utils.draftgate import probe  # noqa: E402
from ansible.module_utils.draftgate.ansible_glue import run_module  # noqa: E402


def argument_spec() -> Dict[str, Any]:
    edge = {"type": "int", "required": True}
    return {
        "path": {"type": "path", "required": True},
        "config": {"type": "path"},
        "window": {"type": "dict", "options": {"first": edge, "last": edge}},
        "mask_token_id": {"type": "int"},
    }


def main() -> None:
    module = AnsibleModule(argument_spec=argument_spec(), supports_check_mode=True)
    given = module.params
    run_module(
        module,
        lambda: probe.reported(
            given["path"],
            config=given["config"],
            window=given["window"],
            mask_token_id=given["mask_token_id"],
        ),
    )


if __name__ == "__main__":
    main()
