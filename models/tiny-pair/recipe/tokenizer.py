"""Byte-level BPE tokenizer of the pair, in the shape of Qwen3.6's.

``tokenizer.json`` has ids 0-511. Ids 512-514 are named by ``tokenizer_config.json`` alone, and the first of
them is the drafter's mask: a reader of tokenizer.json does not see it, and no token has "mask" in its name.
The target's embedding has ``EMBEDDING_ROWS`` rows; those after 514 belong to no token.
"""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

from . import chat
from .grammar import KINDS

CONTROL = (
    *("<|endoftext|>", "<|im_start|>", "<|im_end|>"),
    *("<|object_ref_start|>", "<|object_ref_end|>", "<|box_start|>", "<|box_end|>"),
    *("<|vision_start|>", "<|vision_end|>", "<|image_pad|>", "<|video_pad|>"),
)
MARKUP = (
    *("<|fim_prefix|>", "<|fim_middle|>", "<|fim_suffix|>"),
    *("<tool_call>", "</tool_call>", "<think>", "</think>"),
)
CONFIG_ONLY = ("<|audio_start|>", "<|audio_end|>", "<|audio_pad|>")
MASK_TOKEN = CONFIG_ONLY[0]
VOCABULARY = 512
EMBEDDING_ROWS = 544
MASK_ID = VOCABULARY
END_OF_TEXT_ID, END_OF_TURN_ID = 0, 2
MAX_POSITIONS = 4096
# Qwen2's: transformers puts it into every Qwen2Tokenizer, whatever the file says.
SPLIT = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)


def _corpus(documents: int, seed: int) -> list[str]:
    rng = random.Random(seed)
    texts = []
    for _ in range(documents):
        conversation = chat.draw_conversation(rng, [1.0] * len(KINDS), short_share=1.0)
        thinking = rng.random() < 0.3
        text = conversation.prompt(thinking=thinking) + conversation.reply(thinking=thinking)
        for token in (*CONTROL, *MARKUP):
            text = text.replace(token, "\n")
        texts.append(text)
    return texts


def build(documents: int = 7500, seed: int = 0) -> Tokenizer:
    """Learn the merges from generated conversations."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(SPLIT), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY,
        special_tokens=[*CONTROL, *MARKUP],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(_corpus(documents, seed), trainer)
    if tokenizer.get_vocab_size() != VOCABULARY:
        raise SystemExit(
            f"building the tokenizer: {tokenizer.get_vocab_size()} entries learned, {VOCABULARY} expected; "
            "give it a larger corpus"
        )
    return tokenizer


def _added_token(content: str, *, special: bool) -> dict[str, Any]:
    flags = dict.fromkeys(("lstrip", "normalized", "rstrip", "single_word"), False)
    return {"content": content, **flags, "special": special}


def write(tokenizer: Tokenizer, directory: Path) -> None:
    """Write tokenizer.json, tokenizer_config.json and chat_template.jinja."""
    directory.mkdir(parents=True, exist_ok=True)
    data = json.loads(tokenizer.to_str())
    for token in data["added_tokens"]:
        token["special"] = token["content"] in CONTROL
    named = {
        str(token["id"]): _added_token(token["content"], special=token["special"])
        for token in data["added_tokens"]
    }
    named.update(
        {str(VOCABULARY + i): _added_token(name, special=True) for i, name in enumerate(CONFIG_ONLY)}
    )
    config = {
        "add_bos_token": False,
        "add_prefix_space": False,
        "added_tokens_decoder": named,
        "additional_special_tokens": [],
        "bos_token": None,
        "clean_up_tokenization_spaces": False,
        "eos_token": "<|im_end|>",
        "errors": "replace",
        "model_max_length": MAX_POSITIONS,
        "pad_token": "<|endoftext|>",
        "split_special_tokens": False,
        "tokenizer_class": "Qwen2Tokenizer",
        "unk_token": None,
    }
    (directory / "tokenizer.json").write_text(json.dumps(data, ensure_ascii=False) + "\n", encoding="utf-8")
    (directory / "tokenizer_config.json").write_text(json.dumps(config, indent=1) + "\n", encoding="utf-8")
    (directory / "chat_template.jinja").write_text(chat.TEMPLATE, encoding="utf-8")


def load(directory: Path) -> Tokenizer:
    """The plain tokenizer: fast, enough for text, and without the config-only names."""
    return Tokenizer.from_file(str(directory / "tokenizer.json"))
