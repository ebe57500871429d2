"""The spec: the whole wish for a host as one dict in three parts, each with a digest.

``serve`` names no host, so the same wish has the same release id everywhere. Its paths and its
environment hold placeholders (``{runtime}``, ``{cache}``, ``{home}``) that ``place`` resolves.
"""

from __future__ import annotations

import math
import os
from typing import Any, Dict, List, Mapping, NamedTuple, Tuple

from .canonical import digest, short
from .errors import InputError
from .layout import Home

DOING = "checking the spec"


class _Field(NamedTuple):
    types: Tuple[type, ...]
    schema: Dict[str, Any]


def _text(**extra: Any) -> _Field:
    return _Field((str,), {"type": "string", **extra})


def _whole(minimum: int, maximum: int = 2**31 - 1) -> _Field:
    return _Field((int,), {"type": "integer", "minimum": minimum, "maximum": maximum})


def _mapping(**extra: Any) -> _Field:
    return _Field((dict,), {"type": "object", **extra})


FIELDS: Dict[str, Dict[str, _Field]] = {
    "serve": {
        "engine": _mapping(required=["name", "version"]),
        "runtime": _mapping(required=["lock"]),
        "target": _mapping(required=["source"]),
        "drafter": _Field((dict, type(None)), {"type": ["object", "null"]}),
        "num_speculative_tokens": _whole(0, 1024),
        "served_model_name": _text(minLength=1),
        "args": _mapping(),
        "environment": _mapping(additionalProperties={"type": "string"}),
    },
    "place": {
        "host": _text(minLength=1),
        "port": _whole(1, 65535),
        "candidate_port": _whole(0, 65535),
        "home": _text(minLength=1),
        "runtimes": _text(minLength=1),
        "python": _text(minLength=1),
        "backend": _text(enum=["auto", "systemd", "supervisord"]),
        "user": _text(),
        "gpus": _Field((list,), {"type": "array", "items": {"type": "string"}}),
        "secrets": _mapping(additionalProperties={"type": "string"}),
    },
    "gate": {
        "prompts": _mapping(required=["digest"]),
        "sampling": _mapping(),
        "template": _mapping(),
        "workloads": _Field((list, type(None)), {"type": ["array", "null"], "items": {"type": "string"}}),
        "concurrency": _whole(1, 1024),
        "thresholds": _mapping(),
    },
}
PARTS = tuple(FIELDS)


def validate(spec: Mapping[str, Any]) -> None:
    """Raise one :class:`InputError` that names every wrong field."""
    problems: List[str] = []
    for part, fields in FIELDS.items():
        value = spec.get(part)
        if not isinstance(value, dict):
            problems.append(f"{part} is {_kind(value)}, not an object")
            continue
        problems += [f"{part}.{name} is not a field" for name in sorted(set(value) - set(fields))]
        problems += [
            p for name, field in fields.items() for p in _check(f"{part}.{name}", value, name, field)
        ]
    problems += [f"{name} is not a part" for name in sorted(set(spec) - set(PARTS))]
    problems += list(_non_finite("", spec))
    if problems:
        raise InputError(
            DOING, "; ".join(problems), "the fields and types of the spec", details={"problems": problems}
        )


def _kind(value: Any) -> str:
    return "absent" if value is None else f"a {type(value).__name__}"


def _check(path: str, part: Mapping[str, Any], name: str, field: _Field) -> List[str]:
    if name not in part:
        return [f"{path} is absent"]
    value = part[name]
    if not isinstance(value, field.types) or (isinstance(value, bool) and int in field.types):
        wanted = " or ".join("null" if kind is type(None) else kind.__name__ for kind in field.types)
        return [f"{path} is {value!r} ({_kind(value)}), not {wanted}"]
    schema = field.schema
    problems = []
    if "minimum" in schema and not schema["minimum"] <= value <= schema["maximum"]:
        problems.append(f"{path} is {value}, not within {schema['minimum']}..{schema['maximum']}")
    if schema.get("minLength") and not value:
        problems.append(f"{path} is empty")
    if "enum" in schema and value not in schema["enum"]:
        problems.append(f"{path} is {value!r}, not one of {', '.join(schema['enum'])}")
    if isinstance(value, dict):
        problems += [f"{path}.{key} is absent" for key in schema.get("required", ()) if not value.get(key)]
    if isinstance(value, dict) and schema.get("additionalProperties") == {"type": "string"}:
        problems += [
            f"{path}.{key} is {_kind(item)}, not text"  # and not what: it may be a secret
            for key, item in value.items()
            if not isinstance(item, str)
        ]
    return problems


def _non_finite(path: str, value: Any) -> List[str]:
    """NaN and infinity have no canonical JSON and no order: refuse them with their name."""
    if isinstance(value, float) and not math.isfinite(value):
        return [f"{path} is {value}, not a finite number"]
    if isinstance(value, Mapping):
        return [p for key, item in value.items() for p in _non_finite(f"{path}.{key}".lstrip("."), item)]
    if isinstance(value, (list, tuple)):
        return [p for index, item in enumerate(value) for p in _non_finite(f"{path}[{index}]", item)]
    return []


def release_id(serve: Mapping[str, Any]) -> str:
    """The first 12 hex digits of the digest of ``serve``."""
    return short(digest(serve))


def gate_digest(gate: Mapping[str, Any]) -> str:
    """Digest of ``gate`` without its thresholds: what was measured, not how it was judged."""
    return digest({key: value for key, value in gate.items() if key != "thresholds"})


def resolved_place(place: Mapping[str, Any], home: Home, backend: str, user: str) -> Dict[str, Any]:
    """``place`` with absolute paths of this host; no ``runtimes`` means those of the home.

    Part of a deployment's id: whoever names the same place must get the same text.

    :param backend: the service manager's name here; :param user: whom engines run as there, empty = us.
    """
    runtimes = os.path.abspath(os.path.expanduser(place.get("runtimes") or home.runtimes))
    return {**place, "home": home.root, "runtimes": runtimes, "backend": backend, "user": user}


def seated(spec: Mapping[str, Any], serving: Mapping[str, Any]) -> Dict[str, Any]:
    """``spec`` on that of its two ports that ``serving`` has: after a switch beside the old release the
    active one listens on the other, and that is no difference.

    :param serving: the active deployment's place; ``{}`` on a host without one.
    """
    place = spec["place"]
    ports = place["port"], place["candidate_port"]
    if ports != (serving.get("candidate_port"), serving.get("port")):
        return dict(spec)
    return _on_the_other(spec)


def beside(spec: Mapping[str, Any], serving: Mapping[str, Any]) -> Dict[str, Any]:
    """``spec`` on a port that the active deployment does not have."""
    return dict(spec) if spec["place"]["port"] != serving.get("port") else _on_the_other(spec)


def _on_the_other(spec: Mapping[str, Any]) -> Dict[str, Any]:
    place = spec["place"]
    swapped = {**place, "port": place["candidate_port"], "candidate_port": place["port"]}
    return {**spec, "place": swapped}


def endpoint(place: Mapping[str, Any], scheme: str = "http") -> str:
    """Where the engine answers: ``http://host:port``, an IPv6 address in brackets."""
    host = place["host"]
    return f"{scheme}://{f'[{host}]' if ':' in host else host}:{place['port']}"


def deployment(spec: Mapping[str, Any]) -> Dict[str, Any]:
    """A release at a place. Its id is that of ``serve`` and ``place``: a gate change is no new process.

    Nor is another port for the next candidate.
    """
    serve, place = spec["serve"], spec["place"]
    taken = {name: value for name, value in place.items() if name != "candidate_port"}
    return {
        "id": short(digest({"serve": serve, "place": taken})),
        "release": release_id(serve),
        "serve": serve,
        "place": place,
        "gate": spec["gate"],
    }


def without_speculation(deployed: Mapping[str, Any]) -> Dict[str, Any]:
    """The same target at the same place without a drafter: what ``fallback`` serves."""
    serve = {**deployed["serve"], "drafter": None, "num_speculative_tokens": 0}
    return deployment({"serve": serve, "place": deployed["place"], "gate": deployed["gate"]})


def flatten(value: Mapping[str, Any], prefix: str = "") -> Dict[str, Any]:
    """Dotted path → leaf. Lists and empty objects are leaves."""
    flat: Dict[str, Any] = {}
    for key, item in value.items():
        path = f"{prefix}{key}"
        if isinstance(item, Mapping) and item:
            flat.update(flatten(item, path + "."))
        else:
            flat[path] = item
    return flat


def differences(before: Mapping[str, Any], after: Mapping[str, Any]) -> List[Dict[str, Any]]:
    """``[{field, before, after}]`` by dotted path, sorted; an absent side is null."""
    old, new = flatten(_parts(before)), flatten(_parts(after))
    paths = [path for path in sorted(set(old) | set(new)) if not _filled(path, old, new)]
    return [
        {"field": path, "before": old.get(path), "after": new.get(path)}
        for path in paths
        if (path in old) != (path in new) or old.get(path) != new.get(path)
    ]


def _filled(path: str, old: Mapping[str, Any], new: Mapping[str, Any]) -> bool:
    """An empty object whose other side has fields: those fields are the difference."""
    return any(
        side.get(path) == {} and any(name.startswith(path + ".") for name in other)
        for side, other in ((old, new), (new, old))
    )


def _parts(side: Mapping[str, Any]) -> Dict[str, Any]:
    return {part: side[part] for part in PARTS if part in side}
