"""The target as the other parts need it: its dimensions, its greedy text and its hidden states."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import Qwen3Config, Qwen3ForCausalLM

from . import tokenizer


def new_model() -> Any:
    """An untrained target. Twelve layers leave room for wrong layer ids."""
    config = Qwen3Config(
        vocab_size=tokenizer.EMBEDDING_ROWS,
        hidden_size=128,
        intermediate_size=384,
        num_hidden_layers=12,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=32,
        max_position_embeddings=tokenizer.MAX_POSITIONS,
        rope_parameters={"rope_type": "default", "rope_theta": 10000.0},
        tie_word_embeddings=False,
        attention_bias=False,
        use_sliding_window=False,
        bos_token_id=tokenizer.END_OF_TEXT_ID,
        eos_token_id=tokenizer.END_OF_TURN_ID,
        pad_token_id=tokenizer.END_OF_TEXT_ID,
    )
    return Qwen3ForCausalLM(config)


def save(model: Any, directory: Path) -> None:
    """Write config.json, generation_config.json and model.safetensors; answers are greedy by default."""
    model.generation_config.do_sample = False
    model.generation_config.eos_token_id = [tokenizer.END_OF_TURN_ID, tokenizer.END_OF_TEXT_ID]
    model.save_pretrained(directory)
    # Written for the owner alone; a server may run as somebody else.
    (directory / "model.safetensors").chmod(0o644)


@dataclass(frozen=True)
class Target:
    """A trained target. ``embedding`` and ``head`` are its two matrices [rows, H]."""

    model: Any
    config: dict[str, Any]
    embedding: Tensor
    head: Tensor

    @classmethod
    def load(cls, directory: Path) -> Target:
        model: Any = Qwen3ForCausalLM.from_pretrained(directory, dtype=torch.float32)
        model.eval().requires_grad_(False)
        config = json.loads((directory / "config.json").read_text(encoding="utf-8"))
        return cls(model, config, model.model.embed_tokens.weight, model.lm_head.weight)

    def states(self, ids: Tensor) -> tuple[Tensor, ...]:
        """The output [B, T, H] of every layer for right-padded ids [B, T].

        The last layer's is taken after the final norm, so its id is of no use to a drafter here.
        """
        with torch.no_grad():
            output = self.model.model(ids, output_hidden_states=True, use_cache=False)
        return tuple(output.hidden_states[1:])

    def write(self, prompts: list[Tensor], tokens: int) -> Tensor:
        """The greedy continuation [n, tokens] of each prompt; it goes on after the end of the turn."""
        padded = torch.nn.utils.rnn.pad_sequence(prompts, batch_first=True, padding_side="left")
        length = torch.tensor([len(prompt) for prompt in prompts])
        attended = torch.arange(padded.shape[1]) >= (padded.shape[1] - length)[:, None]
        with torch.no_grad():
            ids = self.model.generate(
                padded,
                attention_mask=attended.long(),
                max_new_tokens=tokens,
                do_sample=False,
                eos_token_id=None,
            )
        continuation: Tensor = ids[:, padded.shape[1] :]
        return continuation
