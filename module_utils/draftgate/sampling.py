"""How the gate asks: the spec's ``gate.sampling``, read in one place by the controller and by the host."""

from __future__ import annotations

from typing import Any, Dict, Mapping, NamedTuple, Optional

from .errors import InputError


class Sampling(NamedTuple):
    """How answers are sampled. ``max_tokens`` null: as each prompt says."""

    temperature: float
    seed: Optional[int]
    max_tokens: Optional[int]

    @classmethod
    def of(cls, settings: Mapping[str, Any]) -> Sampling:
        """From the spec's ``gate`` part; greedy where it says nothing.

        :raises InputError: an unknown key, or a value of another type.
        """
        given: Dict[str, Any] = dict(settings.get("sampling") or {})
        temperature, seed, limit = (
            given.pop("temperature", 0),
            given.pop("seed", None),
            given.pop("max_tokens", None),
        )
        numbers = (int, float)
        rules = [
            (not given, f"{', '.join(given)} is no setting"),
            (type(temperature) in numbers and temperature >= 0, f"temperature is {temperature!r}"),
            (seed is None or type(seed) is int, f"seed is {seed!r}"),
            (limit is None or (type(limit) is int and limit > 0), f"max_tokens is {limit!r}"),
        ]
        wrong = [message for holds, message in rules if not holds]
        if wrong:
            expected = "temperature (a number from 0), seed and max_tokens (whole numbers or null)"
            raise InputError("reading the gate's sampling", "; ".join(wrong), expected)
        return cls(float(temperature), seed, limit)
