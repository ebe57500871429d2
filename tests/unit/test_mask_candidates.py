"""What may be the mask, in which order and why; what a claimed mask is told."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
from draftgate.mask_candidates import by_name, judge, rank
from draftgate.published import PUBLISHED
from draftgate.tokenizer import AddedToken, Tokenizer

FIELD = "drafter.dflash_config.mask_token_id"
BOTH = ("tokenizer.json", "tokenizer_config.json")
SLOW = ("tokenizer_config.json",)
PAIR_27B = {"target_layers": 64, "hidden_size": 5120}

# The ends of the real vocabularies; the others of their pieces change nothing here.
QWEN36_NAMES = (
    "<|endoftext|> <|im_start|> <|im_end|> <|object_ref_start|> <|object_ref_end|> <|box_start|> <|box_end|> "
    "<|quad_start|> <|quad_end|> <|vision_start|> <|vision_end|> <|vision_pad|> <|image_pad|> <|video_pad|> "
    "<tool_call> </tool_call> <|fim_prefix|> <|fim_middle|> <|fim_suffix|> <|fim_pad|> <|repo_name|> "
    "<|file_sep|> <tool_response> </tool_response> <think> </think>"
).split()
QWEN36_ONLY_IN_CONFIG = (
    "<|audio_start|> <|audio_end|> <|audio_pad|> <|tts_pad|> <|tts_text_bos|> <|tts_text_eod|> <|tts_end|>"
).split()


def tokenizer(
    rows: int | None,
    vocab: Mapping[str, int],
    added: Mapping[int, AddedToken],
    template: str = "",
    **roles: int,
) -> Tokenizer:
    special = {role: (roles[role],) if role in roles else () for role in ("eos", "pad", "bos")}
    return Tokenizer(rows, special, added, vocab, template=template)


def qwen36() -> Tokenizer:
    added = {248044 + number: AddedToken(name, True, BOTH) for number, name in enumerate(QWEN36_NAMES)}
    added.update(
        {248070 + number: AddedToken(name, True, SLOW) for number, name in enumerate(QWEN36_ONLY_IN_CONFIG)}
    )
    template = "<|im_start|><|im_end|><|vision_start|><|vision_end|><|image_pad|><|video_pad|>"
    return tokenizer(248320, {"Ġthe": 151669, "Ġmask": 99}, added, template, eos=248046, pad=248044)


def qwen3() -> Tokenizer:
    added = {151643 + number: AddedToken(name, number < 14, BOTH) for number, name in enumerate(QWEN36_NAMES)}
    return tokenizer(151936, {"!": 0}, added, "<|im_start|>", eos=151645, pad=151643)


def test_the_tokenizer_of_the_incident() -> None:
    """248070 is the mask, 248077 that of another drafter on the same tokenizer: both, with reasons."""
    found = rank(qwen36(), shape=PAIR_27B)
    assert [(one.id, one.token, one.known) for one in found[:2]] == [
        (248070, "<|audio_start|>", True),
        (248077, None, True),
    ]
    assert "z-lab/Qwen3.6-27B-DFlash, a drafter of exactly this shape" in found[0].reason
    assert "not in tokenizer.json, not in the chat template" in found[0].reason
    assert "whose target has as many rows" in found[1].reason
    assert "the first row after the tokenizer" in found[1].reason
    assert {one.id for one in rank(qwen36())[:2]} == {248070, 248077}
    assert by_name(qwen36()) == []  # "Ġmask" is a word of a text, and no token


@pytest.mark.parametrize("shape", [None, {}, {"target_layers": 36, "hidden_size": 4096}, PAIR_27B])
def test_the_first_unused_row_is_the_mask_of_qwen3(shape: dict[str, Any] | None) -> None:
    assert rank(qwen3(), shape=shape)[0].id == 151669


@pytest.mark.parametrize(
    ("given", "ids"),
    [
        # A name; of a role, of a token that the template mentions, of a word of the vocabulary.
        (tokenizer(9, {"a": 0}, {4: AddedToken("<mask>")}), [4, 5]),
        (tokenizer(9, {"a": 0}, {4: AddedToken("<mask>")}, pad=4), [5]),
        (tokenizer(9, {"a": 0}, {4: AddedToken("<mask>")}, "see <mask>"), [5, 4]),
        (tokenizer(9, {"a": 0, "mask": 4}, {}), [5]),
        # Reserved names before markers, before what is special and nowhere said; three of them at most.
        (
            tokenizer(
                9,
                {"a": 0},
                {
                    1: AddedToken("<|x|>", True, BOTH),
                    2: AddedToken("<|image|>", True, BOTH),
                    3: AddedToken("<|reserved_1|>", True, BOTH),
                    5: AddedToken("<unused2>", False, BOTH),
                },
                "a template",
            ),
            [3, 5, 2, 6],
        ),
        # Special alone says nothing where no template can say that it is unused.
        (tokenizer(9, {"a": 0}, {1: AddedToken("<|x|>", True, BOTH)}), [2]),
        (tokenizer(9, {"a": 0}, {1: AddedToken("<|x|>", True, BOTH)}, "a template"), [1, 2]),
        # No row after the tokenizer, and none beyond the embedding.
        (tokenizer(2, {"a": 0, "b": 1}, {}), []),
        (tokenizer(2, {"a": 0}, {7: AddedToken("<mask>")}), []),
        # Without a vocabulary nothing says where the tokenizer ends.
        (tokenizer(9, {}, {1: AddedToken("<|x|>", True, SLOW)}), []),
    ],
)
def test_hints_in_order(given: Tokenizer, ids: list[int]) -> None:
    assert [one.id for one in rank(given)] == ids


def test_the_number_of_alike_tokens_is_said_and_the_list_is_short() -> None:
    added = {1 + number: AddedToken(f"<|reserved_{number}|>", True, BOTH) for number in range(250)}
    given = tokenizer(1000, {"a": 0}, added)
    found = rank(given)
    assert [one.id for one in found] == [1, 2, 3, 251]
    assert "reserved (one of 250)" in found[0].reason
    assert len(rank(given, limit=2)) == 2


def test_a_published_mask_is_no_candidate_where_it_is_text_or_a_role() -> None:
    ordinary = tokenizer(248320, {"a": 0, "Ġthe": 248070}, {248077: AddedToken("<|x|>")}, eos=248077)
    assert [one.id for one in rank(ordinary) if one.known] == []


@pytest.mark.parametrize(
    ("shape", "is_exact"),
    [
        (PAIR_27B, True),
        ({**PAIR_27B, "num_hidden_layers": 5, "head_dim": 128}, True),
        ({**PAIR_27B, "num_hidden_layers": 6}, False),
        ({**PAIR_27B, "num_hidden_layers": None}, True),
        ({"target_layers": 64}, False),
        ({"target_layers": 64, "hidden_size": "5120"}, False),
        ({"target_layers": [64], "hidden_size": {}}, False),
    ],
)
def test_a_shape_names_a_published_pair(shape: dict[str, Any], is_exact: bool) -> None:
    assert ("exactly this shape" in rank(qwen36(), shape=shape)[0].reason) is is_exact


@pytest.mark.parametrize("entry", PUBLISHED, ids=lambda entry: f"{entry.repo} {entry.revision}".strip())
def test_every_published_mask_is_found_by_its_shape(entry: Any) -> None:
    """On a tokenizer that says nothing by itself; all of one shape are there."""
    given = tokenizer(entry.vocab_size or 300_000, {"a": 0}, {})
    shape = {"target_layers": entry.target_layers, "hidden_size": entry.hidden}
    known = [one.id for one in rank(given, shape=shape) if one.known]
    assert entry.mask_token_id is None or entry.mask_token_id in known


@pytest.mark.parametrize(
    ("mask", "code", "said"),
    [
        (248070, "", ""),
        (248077, "", ""),
        (248319, "", ""),
        (248320, "DG205", "The mask is 248320, and the target's embedding has rows 0 to 248319."),
        (-1, "DG205", "The mask is -1,"),
        (10**30, "DG205", "rows 0 to 248319"),
        (248046, "DG206", "The mask is <|im_end|>, the end of text (id 248046): drafts made from it are not"),
        (151669, "DG207", "The mask is the piece 'Ġthe' (id 151669): no published drafter has such a mask."),
    ],
)
def test_a_claimed_mask_is_judged(mask: int, code: str, said: str) -> None:
    found = judge(qwen36(), mask, FIELD, shape=PAIR_27B)
    assert [one.code for one in found] == ([code] if code else [])
    for finding in found:
        assert (finding.severity, finding.field) == ("error", FIELD)
        assert finding.message.startswith(said) or said in finding.message
        assert "248070 <|audio_start|> (the mask of z-lab/Qwen3.6-27B-DFlash" in finding.message
        assert "248077 without a token" in finding.message
        assert 'No token\'s name contains "mask", so a search by name cannot find it.' in finding.message
        assert finding.fix.startswith("Set dflash_config.mask_token_id to the value in the config.json")


def test_a_role_counts_before_what_the_row_is() -> None:
    both = tokenizer(9, {"a": 0, "</s>": 2}, {}, eos=2)
    assert [one.code for one in judge(both, 2, FIELD)] == ["DG206"]


def test_without_rows_and_vocabulary_only_a_role_is_judged() -> None:
    bare = tokenizer(None, {}, {}, eos=2)
    assert [one.code for mask in (0, 2, 10**9) for one in judge(bare, mask, "mask_token_id")] == ["DG206"]
    assert "search by name" not in judge(bare, 2, "mask_token_id")[0].message
