"""Typed reading of a config.json: a wrong type is a finding, and the value counts as not known.

Hand-written configs have numbers in quotes and bools for numbers. Neither may crash a rule, and each is
reported once, however many rules ask for the field.
"""

from __future__ import annotations

from typing import Any, Dict, List, Mapping, Optional, Tuple

from .findings import ERROR, Finding


def text_config(config: Mapping[str, Any]) -> Tuple[str, Mapping[str, Any]]:
    """The part that describes the language model, and its prefix.

    A multimodal target (Qwen3.5, Qwen3.6, Gemma) keeps these fields under ``text_config``.
    """
    nested = config.get("text_config")
    return ("text_config.", nested) if isinstance(nested, Mapping) else ("", config)


class Fields:
    """One config read by dotted paths.

    :param owner: the name in messages and in a finding's ``field`` (``drafter``, ``target``).
    """

    def __init__(self, owner: str, config: Mapping[str, Any]) -> None:
        self.owner = owner
        self.config = config
        self._wrong: Dict[str, Finding] = {}

    @property
    def wrong(self) -> List[Finding]:
        """DG204 for every field that was asked for and had another type."""
        return list(self._wrong.values())

    def raw(self, path: str) -> Any:
        """The value at a dotted path; None where it is absent or null."""
        value: Any = self.config
        walked = ""
        for key in path.split("."):
            if value is None:
                return None
            if not isinstance(value, Mapping):
                self._note(walked, value, "an object")
                return None
            value = value.get(key)
            walked = f"{walked}.{key}" if walked else key
        return value

    def integer(self, path: str) -> Optional[int]:
        """An int; a bool, a float and a string are findings."""
        value = self.raw(path)
        if value is None or is_integer(value):
            return value
        return self._note(path, value, "an integer")

    def number(self, path: str) -> Optional[float]:
        """An int or a float."""
        value = self.raw(path)
        if value is None or is_integer(value) or isinstance(value, float):
            return value
        return self._note(path, value, "a number")

    def integers(self, path: str) -> Optional[List[int]]:
        """A list of ints."""
        value = self.raw(path)
        if value is None or (isinstance(value, list) and all(is_integer(item) for item in value)):
            return value
        return self._note(path, value, "a list of integers")

    def strings(self, path: str) -> Optional[List[str]]:
        """A list of strings."""
        value = self.raw(path)
        if value is None or (isinstance(value, list) and all(isinstance(item, str) for item in value)):
            return value
        return self._note(path, value, "a list of strings")

    def is_wrong(self, path: str) -> bool:
        """Whether the field, or an object on the way to it, has a type that was reported already."""
        return any(path == wrong or path.startswith(wrong + ".") for wrong in self._wrong)

    def _note(self, path: str, value: Any, expected: str) -> None:
        field = f"{self.owner}.{path}"
        self._wrong[path] = Finding(
            code="DG204",
            severity=ERROR,
            field=field,
            observed=value,
            expected=expected,
            message=f"{field} is {value!r}, which is not {expected}.",
            fix=f"Set {path} to {expected}{_in_quotes(value)}.",
        )


def is_integer(value: Any) -> bool:
    """An int that is no bool (JSON's true is an int to Python)."""
    return isinstance(value, int) and not isinstance(value, bool)


def _in_quotes(value: Any) -> str:
    items = value if isinstance(value, list) else [value]
    quoted = any(isinstance(item, str) and item.strip().lstrip("-").isdigit() for item in items)
    return ", without quotes" if quoted else ""
