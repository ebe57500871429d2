"""What the public record says of published DFlash drafters: the registry that hints are taken from.

Collected in 2026-11 from public configs, logs and discussions. None is not established and never judged.
One repository has had revisions with different values, so an entry is a hint and the config of the pinned
revision wins.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Mapping, Optional, Tuple


@dataclass(frozen=True)
class Published:
    """One drafter of the public record.

    :param target_layers: decoder layers of its target.
    :param windows: one letter a drafter layer, ``S`` sliding and ``F`` full attention.
    :param layer_ids: 0-based, the OUTPUT of that decoder layer of the target.
    :param vocab_size: rows of the target's embedding.
    :param rope_scaling: as in the drafter's config.
    """

    repo: str
    target: str
    target_layers: int
    draft_layers: int
    hidden: int
    ffn: int
    heads: int
    kv_heads: int
    head_dim: int
    block_size: int
    windows: str
    layer_ids: Tuple[int, ...]
    mask_token_id: Optional[int] = None
    vocab_size: Optional[int] = None
    sliding_window: Optional[int] = None
    rope_theta: Optional[int] = None
    attention_bias: bool = False
    revision: str = ""
    rope_scaling: Optional[Mapping[str, Any]] = None


# Decoder layers of target and drafter, hidden, ffn, heads, kv heads, head_dim, block.
# fmt: off
PUBLISHED: Tuple[Published, ...] = (
    Published("z-lab/Qwen3-4B-DFlash-b16", "Qwen/Qwen3-4B",
              36, 5, 2560, 9728, 32, 8, 128, 16, "FFFFF", (1, 9, 17, 25, 33),
              mask_token_id=151669, vocab_size=151936),
    Published("z-lab/Qwen3-8B-DFlash-b16", "Qwen/Qwen3-8B",
              36, 5, 4096, 12288, 32, 8, 128, 16, "FFFFF", (1, 9, 17, 25, 33),
              mask_token_id=151669, vocab_size=151936),
    Published("z-lab/Qwen3-Coder-30B-A3B-DFlash", "Qwen/Qwen3-Coder-30B-A3B-Instruct",
              48, 8, 2048, 6144, 32, 4, 128, 16, "FFFFFFFF", (1, 12, 23, 34, 45),
              vocab_size=151936),
    Published("z-lab/Qwen3-Coder-Next-DFlash", "Qwen/Qwen3-Coder-Next",
              48, 8, 2048, 6144, 32, 4, 128, 16, "FFFFFFFF", (3, 11, 23, 35, 43),
              vocab_size=151936),
    Published("z-lab/Qwen3.5-4B-DFlash", "Qwen/Qwen3.5-4B",
              32, 5, 2560, 9728, 32, 8, 128, 16, "FFFFF", (1, 8, 15, 22, 29),
              mask_token_id=248070, vocab_size=248320, revision="2026-04 revision"),
    Published("z-lab/Qwen3.5-9B-DFlash", "Qwen/Qwen3.5-9B",
              32, 6, 4096, 12288, 32, 8, 128, 16, "SSSSSF", (1, 5, 9, 13, 17, 21, 25, 29),
              mask_token_id=248077, vocab_size=248320, sliding_window=4096, revision="newer revision"),
    Published("z-lab/Qwen3.5-27B-DFlash", "Qwen/Qwen3.5-27B",
              64, 6, 5120, 17408, 32, 8, 128, 16, "SSSSSF", (1, 10, 18, 27, 35, 44, 52, 61),
              vocab_size=248320, sliding_window=4096, revision="newer revision"),
    Published("z-lab/Qwen3.5-35B-A3B-DFlash", "Qwen/Qwen3.5-35B-A3B",
              40, 6, 2048, 6144, 32, 8, 128, 16, "SSSSSF", (1, 6, 11, 16, 22, 27, 32, 37),
              mask_token_id=248077, vocab_size=248320, sliding_window=4096),
    Published("z-lab/Qwen3.6-27B-DFlash", "Qwen/Qwen3.6-27B",
              64, 5, 5120, 17408, 32, 8, 128, 16, "SSSSF", (1, 16, 31, 46, 61),
              mask_token_id=248070, vocab_size=248320, sliding_window=2048, rope_theta=10000000),
    Published("z-lab/Qwen3.6-35B-A3B-DFlash", "Qwen/Qwen3.6-35B-A3B",
              40, 8, 2048, 6144, 32, 4, 128, 16, "FFFFFFFF", (1, 10, 19, 28, 37),
              mask_token_id=248070, vocab_size=248320, revision="older revision",
              rope_scaling={"rope_type": "yarn", "factor": 64.0, "original_max_position_embeddings": 4096}),
    Published("z-lab/Qwen3.6-35B-A3B-DFlash", "Qwen/Qwen3.6-35B-A3B",
              40, 6, 2048, 6144, 32, 8, 128, 16, "SSSSSF", (1, 6, 11, 16, 22, 27, 32, 37),
              mask_token_id=248077, vocab_size=248320, sliding_window=4096, revision="newer revision"),
    Published("z-lab/gpt-oss-20b-DFlash", "openai/gpt-oss-20b",
              24, 8, 2880, 7680, 64, 8, 64, 8, "FFFFFFFF", (1, 6, 11, 16, 21),
              mask_token_id=200000, attention_bias=True),
    Published("z-lab/gpt-oss-120b-DFlash", "openai/gpt-oss-120b",
              36, 8, 2880, 7680, 64, 8, 64, 10, "FFFFFFFF", (1, 9, 17, 25, 33),
              mask_token_id=200000, attention_bias=True),
    Published("z-lab/Kimi-K2.5-DFlash", "moonshotai/Kimi-K2.5",
              61, 6, 7168, 18432, 64, 8, 128, 8, "FFFFFF", (1, 12, 24, 35, 47, 58),
              mask_token_id=163838,
              rope_scaling={"rope_type": "yarn", "factor": 64.0}),
    Published("z-lab/LLaMA3.1-8B-Instruct-DFlash-UltraChat", "meta-llama/Llama-3.1-8B-Instruct",
              32, 5, 4096, 12288, 32, 8, 128, 10, "FFFFF", (1, 8, 15, 22, 29),
              mask_token_id=128002, vocab_size=128256),
    Published("z-lab/gemma-4-31B-it-DFlash", "google/gemma-4-31B-it",
              60, 5, 5376, 10752, 64, 8, 128, 16, "SSSSF", (1, 12, 23, 35, 46, 57),
              mask_token_id=4, sliding_window=2048),
)
# fmt: on
