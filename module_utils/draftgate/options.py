"""How to get there: the options of a switch. None of them is part of the spec."""

from __future__ import annotations

import re
from typing import Any, Dict, Mapping

from .errors import InputError

DEFAULTS: Dict[str, Any] = {
    "strategy": "auto",
    "on_failure": "restore",
    "retry": False,
    "time_limit": "30 m",
    "evidence_max_age": "30 d",
}
ON_FAILURE = ("restore", "fallback", "stop")
STRATEGIES = ("auto", "in_place", "side_by_side")
_UNITS = {"": 1, "s": 1, "m": 60, "h": 3600, "d": 86400}
_LONGEST = 10 * 365 * 86400.0
_SHOWN = 60  # characters of a wrong value
_WORDS = {"true": True, "yes": True, "false": False, "no": False}


def checked(given: Mapping[str, Any]) -> Dict[str, Any]:
    """Defaults filled in, meaning checked: times in seconds, ``retry`` a bool.

    ``-e name=value`` makes every value text, so text is read for what it says.

    :raises InputError: an unknown option or a value without meaning, by the variable's name.
    """
    options = {**DEFAULTS, **{name: value for name, value in given.items() if value is not None}}
    unknown = sorted(set(options) - set(DEFAULTS))
    if unknown:
        raise InputError("reading the options of the switch", f"{', '.join(unknown)} is no option")
    return {
        "strategy": _one_of("draftgate_strategy", options["strategy"], STRATEGIES),
        "on_failure": _one_of("acceptance_on_failure", options["on_failure"], ON_FAILURE),
        "retry": yes_or_no("acceptance_retry", options["retry"]),
        "time_limit": seconds_of("draftgate_switch_time_limit", options["time_limit"]),
        "evidence_max_age": seconds_of("acceptance_evidence_max_age", options["evidence_max_age"]),
    }


def seconds_of(name: str, value: Any) -> float:
    """``90``, ``"90 s"``, ``"30 m"``, ``"12 h"``, ``"30 d"`` → seconds above 0, ten years at most.

    :raises InputError: anything else, with ``name``.
    """
    found = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([smhd]?)", str(value).strip())
    seconds = float(found.group(1)) * _UNITS[found.group(2)] if found else 0.0
    if isinstance(value, bool) or not 0 < seconds <= _LONGEST:
        expected = "a time above 0 and up to 3650 d, as in 90, '30 m', '12 h' or '30 d'"
        raise InputError(f"reading {name}", shown(value), expected)
    return seconds


def shown(value: Any) -> str:
    """A wrong value, as far as it helps a person."""
    text = repr(value)
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}..."


def _one_of(name: str, value: Any, choices: tuple[str, ...]) -> str:
    if value not in choices:
        raise InputError(f"reading {name}", repr(value), " or ".join(choices))
    return str(value)


def yes_or_no(name: str, value: Any) -> bool:
    """A variable that is true or false, also as text.

    :raises InputError: anything else, with ``name``.
    """
    word = str(value).strip().lower()
    if word not in _WORDS:
        raise InputError(f"reading {name}", repr(value), "true or false")
    return _WORDS[word]
