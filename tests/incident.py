"""The incident as the public record tells it: Qwen3.6-27B on two RTX A6000, and a drafter without a config.

Weights came from ``z-lab/Qwen3.6-27B-DFlash`` without a config.json, and somebody wrote one by hand. What the
drafter's own revision says is :data:`tests.model_files.CONFIG_27B`.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tests.model_files import CONFIG_27B, QWEN_BASE, pieces, write_json, write_pair_27b

# What was reported of the hand-written config. Fields that nobody reported are absent.
REPORTED: dict[str, Any] = {
    "architectures": ["DFlashDraftModel"],
    "num_hidden_layers": 5,
    "hidden_size": 5120,
    "head_dim": 128,
    "vocab_size": 248320,
    "dflash_config": {"target_layer_ids": [1, 17, 33, 49, 63], "mask_token_id": 151669},
}
# The server started, and without these it does not: whatever else was missing, they were there.
GUESSED = {
    **REPORTED,
    **{
        key: CONFIG_27B[key]
        for key in ("model_type", "num_attention_heads", "num_key_value_heads", "intermediate_size")
    },
}
TRUE = CONFIG_27B

DRAFTER_NAME, TARGET_NAME = "z-lab/Qwen3.6-27B-DFlash", "Qwen/Qwen3.6-27B"
VERSION, RIGHT_VERSION = "0.20.1", "0.32.0"
WISH: dict[str, Any] = {
    "num_speculative_tokens": 15,
    "gpu": {"arch": "sm_86", "count": 2, "memory_gib": 48},
    "server": {"tensor_parallel_size": 2, "max_model_len": 32768},
    "packages": {"flash-attn": "2.8.3", "flash-attn-4": "4.0.0b12"},
}
# Counters of the server, which was healthy and answered right.
MEASURED = {"acceptance_rate": 0.008, "mean_acceptance_length": 1.12, "position_1": 0.079}


def write_pair(root: Path) -> tuple[Path, Path]:
    """Drafter and target as directories: headers of the real shapes, and the target's special tokens.

    The ordinary pieces of the vocabulary are made up; as many as the real one has, so that 151669 is one.
    """
    return write_pair_27b(root, pieces(QWEN_BASE))


def write_config(drafter: Path, config: Mapping[str, Any]) -> None:
    """Put another config.json beside the same weights."""
    write_json(drafter / "config.json", config)
