"""Every published pair, broken in every way that one hand or one download can break it.

A mutation changes one field of the drafter's config.json, or one thing about its tensors, and knows which
field that is. :func:`survey` says which of them the contract names, and which escape it.

What files cannot show is a closed list (:data:`NOT_CATCHABLE`); a change that leaves the engine with the same
values is no mutation. An absent field whose silent default is right counts as named by DG236 alone.
"""

from __future__ import annotations

import copy
import re
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from draftgate import drafter_weights
from draftgate.config_fields import Fields, is_integer
from draftgate.contract_facts import QWEN3_DEFAULTS, SLIDING, Facts, gather
from draftgate.contract_rules import RULES
from draftgate.contract_rules.layers import spaced_layer_ids
from draftgate.findings import INFO, Finding
from draftgate.published import PUBLISHED, Published
from draftgate.safetensors import Tensor, Weights

from tests.model_files import BASE, published_config, published_rows

NOT_CATCHABLE = (
    "another plausible mask in range",
    "other layer ids that fit the spacing as well, or of another published pair of these shapes",
    "a plausible other rope theta, epsilon or window",
)
ENGINE = {"name": "vllm", "version": "0.32.0"}
MASK, IDS = "dflash_config.mask_token_id", "dflash_config.target_layer_ids"
NAMED_BY_DG236 = {"vocab_size", "rope_theta", "rms_norm_eps", "max_position_embeddings", "layer_types"}
NAMED_BY_DG236 |= {"num_hidden_layers", "hidden_size", "head_dim", "num_attention_heads", "intermediate_size"}
NAMED_BY_DG236 |= {"num_key_value_heads"}
ABSENT: Any = object()
Config = dict[str, Any]
Tensors = dict[str, Tensor]


@dataclass(frozen=True)
class Mutation:
    """One change.

    :param kind: what was done, for the table of results: ``delete``, ``other dtype``.
    :param fields: what it is about; two only where two fields contradict each other and either may be wrong.
    :param config: the changed config.json; None: as it was.
    :param tensors: the changed headers; None: as they were.
    """

    pair: str
    kind: str
    fields: tuple[str, ...]
    what: str
    config: Config | None = None
    tensors: Tensors | None = None


@dataclass
class Survey:
    """The outcome: mutations by kind, and those that nothing named."""

    done: list[Mutation] = field(default_factory=list)
    escaped: list[Mutation] = field(default_factory=list)

    @property
    def total(self) -> int:
        return len(self.done)

    @property
    def caught(self) -> int:
        return self.total - len(self.escaped)

    @property
    def rate(self) -> float:
        return self.caught / self.total

    @property
    def pairs(self) -> set[str]:
        return {mutation.pair for mutation in self.done}

    @property
    def of_config(self) -> Survey:
        """Without the headers, which have more places to break and are easier to judge."""
        parts = ([each for each in part if each.config is not None] for part in (self.done, self.escaped))
        return Survey(*parts)

    def add_all(self, other: Survey) -> None:
        self.done.extend(other.done)
        self.escaped.extend(other.escaped)

    def table(self) -> str:
        """A line for each kind, and one for each group that escapes, with an example."""
        total = Counter(mutation.kind for mutation in self.done)
        missed = Counter(mutation.kind for mutation in self.escaped)
        lines = [f"{self.caught} of {self.total} mutations are named"]
        if self.of_config.total < self.total:
            lines.append(f"  of the config alone       {self.of_config.caught} of {self.of_config.total}")
        lines += [f"  {kind:<25} {count - missed[kind]} of {count}" for kind, count in sorted(total.items())]
        groups = Counter((mutation.kind, mutation.fields[0]) for mutation in self.escaped)
        examples = {(mutation.kind, mutation.fields[0]): mutation.what for mutation in self.escaped}
        for (kind, name), count in sorted(groups.items()):
            lines.append(f"  escapes: {kind} of {name} ({count}), as in {examples[kind, name]}")
        return "\n".join(lines)


def name_of(entry: Published) -> str:
    return f"{entry.repo} {entry.revision}".strip()


def facts_of(entry: Published, drafter: Path, target: Path) -> Facts:
    """The pair as it is published, read from generated files."""
    wish: dict[str, Any] = {"overrides": {}, "gpu": {}, "server": {}, "environment": {}, "packages": {}}
    tokens = entry.block_size - 1
    return gather(str(drafter), str(target), engine=ENGINE, num_speculative_tokens=tokens, **wish)


def findings(facts: Facts) -> list[Finding]:
    found = [finding for rule in RULES for finding in rule(facts)]
    return [*found, *facts.drafter.wrong, *facts.target.wrong]


def survey(entry: Published, facts: Facts) -> Survey:
    """All mutations of one pair, judged."""
    result = Survey()
    for mutation in mutations(entry, facts):
        result.done.append(mutation)
        if not is_named(mutation, findings(mutated(facts, mutation))):
            result.escaped.append(mutation)
    return result


def mutated(facts: Facts, mutation: Mutation) -> Facts:
    config = facts.drafter.config if mutation.config is None else mutation.config
    weights = facts.weights if mutation.tensors is None else Weights(mutation.tensors)
    assert weights is not None
    return replace(
        facts,
        drafter=Fields("drafter", config),
        target=Fields(facts.target.owner, facts.target.config),
        weights=weights,
        inferred=drafter_weights.infer(weights, facts.target_hidden),
    )


def is_named(mutation: Mutation, found: list[Finding]) -> bool:
    """Whether an error or a warning is about the field, what it lies in or what lies in it.

    What the public record says of these shapes (DG219) does not count: the pairs are of that record.
    """
    return any(
        finding.code != "DG219"
        and (finding.severity != INFO or finding.code == "DG236")
        and any(_is_about(finding.field, name) for name in mutation.fields)
        for finding in found
    )


def _is_about(found: str, name: str) -> bool:
    is_above = name.startswith(f"{found}.") and "." in found
    return found == name or is_above or found.startswith(f"{name}.")


def mutations(entry: Published, facts: Facts) -> Iterator[Mutation]:
    """Every catchable mutation of one pair."""
    config = dict(facts.drafter.config)
    is_scaled = config["rope_scaling"] is not None
    for path, kind, value in _config_changes(entry, config):
        changed = with_value(config, path, value)
        said = "absent" if value is ABSENT else repr(value)
        if not _is_nothing(entry, config, changed, path, value) and not _is_beyond_files(entry, path, value):
            also = {"block_size": "num_speculative_tokens"}  # a smaller block does not hold the drafts
            if is_scaled:  # factor times original length is the length
                also["max_position_embeddings"] = "drafter.rope_scaling"
            fields = (f"drafter.{path}", *filter(None, [also.get(path)]))
            yield Mutation(name_of(entry), kind, fields, f"{path} {said}", config=changed)
    assert facts.weights is not None
    for kind, names, tensors in _header_changes(facts.weights.tensors):
        yield Mutation(name_of(entry), kind, names, names[0], tensors=tensors)


# The config.


def leaves(config: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Every field by its dotted path, objects before what is in them."""
    for key, value in config.items():
        yield f"{prefix}{key}", value
        if isinstance(value, Mapping):
            yield from leaves(value, f"{prefix}{key}.")


def with_value(config: Config, path: str, value: Any) -> Config:
    result = copy.deepcopy(config)
    *parents, key = path.split(".")
    holder = result
    for parent in parents:
        holder = holder[parent]
    if value is ABSENT:
        del holder[key]
    else:
        holder[key] = value
    return result


def value_at(config: Mapping[str, Any], path: str) -> Any:
    value: Any = config
    for key in path.split("."):
        value = value.get(key, ABSENT) if isinstance(value, Mapping) else ABSENT
    return value


def _config_changes(entry: Published, config: Config) -> Iterator[tuple[str, str, Any]]:
    """``(path, kind, new value)``, duplicates and the old value left out."""
    for path, value in leaves(config):
        seen = [value]
        for kind, new in [*_any_value(value), *_of_type(value, entry), *_of_others(entry, path)]:
            if not any(new is old or (type(new) is type(old) and new == old) for old in seen):
                seen.append(new)
                yield path, kind, new


def _any_value(value: Any) -> Iterator[tuple[str, Any]]:
    yield "delete", ABSENT
    yield "null", None
    yield "wrong type", "some text"
    yield "wrong type", [value]
    yield "wrong type", {"value": value}
    if not isinstance(value, bool):
        yield "bool", True
    if not is_integer(value):
        yield "wrong type", 7


def _of_type(value: Any, entry: Published) -> Iterator[tuple[str, Any]]:
    if isinstance(value, bool):
        yield from (("other value", not value), ("in quotes", str(value).lower()), ("wrong type", int(value)))
    elif isinstance(value, (int, float)):
        yield from _numbers(value)
    elif isinstance(value, str):
        yield from (("other value", f"{value}X"), ("other value", ""), ("wrong type", [value, value]))
    elif isinstance(value, list) and all(map(is_integer, value)):
        yield from _id_lists(value, entry.target_layers)
    elif isinstance(value, list):
        yield from _text_lists(value)


def _numbers(value: float) -> Iterator[tuple[str, Any]]:
    yield "in quotes", str(value)
    yield "negative", -value
    yield "zero", 0
    yield "twice", value * 2
    yield "half", value // 2 if isinstance(value, int) else value / 2
    yield "far off", value * 1000
    if isinstance(value, int):
        yield from (("one more", value + 1), ("one less", value - 1), ("wrong type", value + 0.5))


def _id_lists(ids: list[int], layers: int) -> Iterator[tuple[str, Any]]:
    yield "list shorter", ids[:-1]
    yield "list shorter", ids[1:]
    yield "list longer", [*ids, ids[-1] + 1]
    yield "list empty", []
    yield "list twice the same", [*ids[:-1], ids[-2]]
    yield "list out of range", [*ids[:-1], layers]
    yield "list out of range", [-1, *ids[1:]]
    yield "list in another order", ids[::-1]
    yield "list in another order", [ids[1], ids[0], *ids[2:]]
    yield "list in quotes", [str(number) for number in ids]
    yield "list of bools", [True, *ids[1:]]
    yield "one number", ids[0]
    for step in (-1, 1, 2):
        yield "list shifted", [number + step for number in ids]
    for index in range(len(ids)):
        yield "list with another id", [*ids[:index], ids[index] + 1, *ids[index + 1 :]]
    yield "list of the last layers", list(range(layers - len(ids), layers))
    yield (
        "list evenly over all",
        [round(number * (layers - 1) / (len(ids) - 1)) for number in range(len(ids))],
    )


def _text_lists(words: list[str]) -> Iterator[tuple[str, Any]]:
    yield "list shorter", words[:-1]
    yield "list longer", [*words, words[-1]]
    yield "list empty", []
    yield "list in another order", words[::-1]
    yield "list with another word", [*words[:-1], "other"]
    yield "list of numbers", list(range(len(words)))
    yield "one word", words[0]
    for kind in ("sliding_attention", "full_attention") if "attention" in words[0] else ():
        yield "list of one kind", [kind] * len(words)
        yield "list with another word", [kind, *words[1:]]
        yield "list with another word", [*words[:-1], kind]


def _of_others(entry: Published, path: str) -> Iterator[tuple[str, Any]]:
    """The same field in the configs of all other pairs: a config that was copied from the wrong place."""
    for other in PUBLISHED:
        value = value_at(published_config(other), path)
        if other is not entry and value is not ABSENT:
            yield "another pair's value", value


def _is_nothing(entry: Published, config: Config, changed: Config, path: str, value: Any) -> bool:
    """The engine is left with the same values, and that does not deserve a word."""
    if value is ABSENT and path in NAMED_BY_DG236:
        return False
    return effective(entry, config) == effective(entry, changed)


def effective(entry: Published, config: Config) -> dict[str, Any]:
    """What vLLM makes of a config: defaults filled in, what it does not read left out. Wrong types stay."""
    taken = {key: config.get(key, default) for key, default in QWEN3_DEFAULTS.items()}
    if taken["num_key_value_heads"] is None:
        taken["num_key_value_heads"] = taken["num_attention_heads"]
    reach = taken["max_position_embeddings"]
    if is_integer(reach) and reach >= 262144:  # a longer table of positions is the same table
        taken["max_position_embeddings"] = "enough"
    taken["layer_types"] = config.get("layer_types") or ["full_attention"] * entry.draft_layers
    if not isinstance(taken["layer_types"], list) or SLIDING not in taken["layer_types"]:
        is_off = config.get("use_sliding_window", False) is False
        if is_off and (config.get("sliding_window") is None or is_integer(config["sliding_window"])):
            taken["sliding_window"] = None
    taken["architectures"] = config.get("architectures")
    taken["use_sliding_window"] = config.get("use_sliding_window", False)
    taken["hidden_act"] = config.get("hidden_act", "silu")
    taken["dtype"] = config.get("dtype") or "bfloat16"  # the target's, which the weights have
    taken["rope_scaling"] = config.get("rope_scaling") or None
    if isinstance(taken["rope_scaling"], Mapping) and not {"rope_type", "factor"} & set(
        taken["rope_scaling"]
    ):
        taken["rope_scaling"] = None
    taken["num_target_layers"] = config.get("num_target_layers") or entry.target_layers  # not read
    if taken["architectures"] == ["DFlashDraftModel"] * 2:
        taken["architectures"] = ["DFlashDraftModel"]
    for key in ("model_type", "block_size", "dflash_config"):
        taken[key] = config.get(key)
    return {key: _typed(value) for key, value in taken.items()}


def _typed(value: Any) -> Any:
    """True is not 1 and 16.0 is not 16 to a config class; a theta of 1e7 is one of 10000000."""
    if isinstance(value, Mapping):
        return {key: _typed(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_typed(item) for item in value]
    return (type(value).__name__, value)


def _is_beyond_files(entry: Published, path: str, value: Any) -> bool:
    """:data:`NOT_CATCHABLE`, said without the contract's own rules."""
    if path == MASK and is_integer(value):
        base = BASE[published_rows(entry)]
        return bool(base + 2 < value < published_rows(entry))
    if path == "dflash_config" and isinstance(value, Mapping):
        return all(_is_beyond_files(entry, f"{path}.{key}", item) for key, item in value.items())
    if path == IDS and isinstance(value, list):
        usual = spaced_layer_ids(entry.target_layers, len(entry.layer_ids))
        alike = [list(other.layer_ids) for other in PUBLISHED if _shapes(other) == _shapes(entry)]
        return value == usual or value in alike
    if not isinstance(value, (int, float)) or isinstance(value, bool):
        return False
    if path == "sliding_window":
        return 0 < value < 262144 and value % 64 == 0
    return (path == "rope_theta" and value >= 1000) or (path == "rms_norm_eps" and 1e-8 <= value <= 1e-4)


def _shapes(entry: Published) -> tuple[Any, ...]:
    sizes = (entry.draft_layers, entry.hidden, entry.ffn, entry.heads, entry.kv_heads, entry.head_dim)
    return (*sizes, entry.target_layers, entry.vocab_size, len(entry.layer_ids))


# The headers.


def _header_changes(tensors: Tensors) -> Iterator[tuple[str, tuple[str, ...], Tensors]]:
    """``(kind, fields, changed tensors)``: each tensor of the first and the last layer, and all others."""
    last = max(int(name.split(".")[1]) for name in tensors if name.startswith("layers."))
    for name, tensor in _matching(tensors, rf"layers\.(0|{last})\.|(?!layers\.)").items():
        about = (f"drafter.weights.{name}",)
        yield "tensor missing", about, _without(tensors, name)
        yield "tensor renamed", about, {**_without(tensors, name), f"{name}_": tensor}
        yield "tensor packed", (*about, "drafter.quantization_config"), _packed(tensors, name)
        for dtype in ("F16", "F8_E4M3"):
            fields = about if dtype == "F16" else (*about, "drafter.quantization_config")
            yield "tensor of another dtype", fields, {**tensors, name: tensor._replace(dtype=dtype)}
        for kind, shape in _shapes_around(tensor.shape):
            fields = (*about, f"drafter.{IDS}") if kind == "tensor wider" and name == "fc.weight" else about
            yield kind, fields, {**tensors, name: tensor._replace(shape=shape)}
    yield from _of_all(tensors)


def _shapes_around(shape: tuple[int, ...]) -> Iterator[tuple[str, tuple[int, ...]]]:
    if len(shape) == 2 and shape[0] != shape[1]:
        yield "tensor transposed", shape[::-1]
    yield "tensor of other rank", (*shape, 1)
    yield "tensor truncated", (shape[0] - 1, *shape[1:])
    yield "tensor truncated", (*shape[:-1], shape[-1] // 2 + 1)
    yield "tensor wider", (*shape[:-1], shape[-1] * 2)


def _of_all(tensors: Tensors) -> Iterator[tuple[str, tuple[str, ...], Tensors]]:
    weights, depth = ("drafter.weights",), ("drafter.weights", "drafter.num_hidden_layers")
    first = tensors["layers.0.mlp.up_proj.weight"]
    last = max(int(name.split(".")[1]) for name in tensors if name.startswith("layers."))
    for extra in ("mask_hidden", f"layers.{last}.mlp.experts.weight", "fc.bias", "layers.0.self_attn.rotary"):
        yield "tensor extra", (f"drafter.weights.{extra}",), {**tensors, extra: first}
    yield "layer missing", depth, _matching(tensors, rf"(?!layers\.{last}\.)")
    yield "layer missing", depth, _matching(tensors, r"(?!layers\.0\.)")
    more = {name.replace(f"layers.{last}", f"layers.{last + 1}"): each for name, each in tensors.items()}
    yield "layer extra", depth, {**tensors, **more}
    yield "names with a prefix", weights, {f"model.{name}": each for name, each in tensors.items()}
    yield "nothing but layers", weights, _matching(tensors, r"layers\.")
    yield "no layers", (*depth,), _matching(tensors, r"(?!layers\.)")
    biases = _matching(tensors, r"(?!.*_proj\.bias$)")
    if len(biases) < len(tensors):
        yield "biases missing", (*weights, "drafter.attention_bias"), biases
    for dtype in ("F16", "F32"):
        every = {name: each._replace(dtype=dtype) for name, each in tensors.items()}
        yield "all of another dtype", (*weights, "drafter.dtype"), every


def _without(tensors: Tensors, name: str) -> Tensors:
    return {other: tensor for other, tensor in tensors.items() if other != name}


def _packed(tensors: Tensors, name: str) -> Tensors:
    packed = {f"{name}_packed": tensors[name]._replace(dtype="I32"), f"{name}_scale": tensors[name]}
    return {**_without(tensors, name), **packed}


def _matching(tensors: Tensors, pattern: str) -> Tensors:
    return {name: tensor for name, tensor in tensors.items() if re.match(pattern, name)}
