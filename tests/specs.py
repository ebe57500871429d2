"""A right spec, and the same with one field changed."""

from __future__ import annotations

import copy
from typing import Any

SPEC: dict[str, Any] = {
    "serve": {
        "engine": {"name": "vllm", "version": "0.32.0"},
        "runtime": {"lock": "a" * 64},
        "target": {"source": "local", "digest": "b" * 64},
        "drafter": {
            "source": "local",
            "digest": "c" * 64,
            "config": {"dflash_config": {"mask_token_id": 512, "target_layer_ids": [1, 5, 9]}},
        },
        "num_speculative_tokens": 7,
        "served_model_name": "tiny",
        "args": {"dtype": "float32"},
        "environment": {"A": "1"},
    },
    "place": {
        "host": "127.0.0.1",
        "port": 8000,
        "candidate_port": 8001,
        "home": "/h",
        "runtimes": "/r",
        "python": "/usr/bin/python3",
        "backend": "auto",
        "user": "",
        "gpus": [],
        "secrets": {},
    },
    "gate": {
        "prompts": {"digest": "d" * 64},
        "sampling": {"temperature": 0},
        "template": {},
        "workloads": None,
        "concurrency": 1,
        "thresholds": {"acceptance_min_mean_length": 2.0, "acceptance_min_rate": None},
    },
}


def changed(field: str, value: Any) -> dict[str, Any]:
    whole = copy.deepcopy(SPEC)
    *path, name = field.split(".")
    part = whole
    for key in path:
        part = part[key]
    part[name] = value
    return whole
