"""Typed reading of a config.json: a wrong type is a finding, and the value counts as not known.

Hand-written configs have numbers in quotes and bools for numbers. Neither may crash a rule, and each is
reported once, however many rules ask for the field.
"""

from __future__ import annotations

from typing import Any, Callable, Dict, List, Mapping, Optional, Tuple

from .findings import ERROR, Finding


def text_config(config: Mapping[str, Any]) -> Tuple[str, Mapping[str, Any]]:
    """The part that describes the language model, and its prefix (``.text_config`` or nothing).

    A multimodal target (Qwen3.5, Qwen3.6, Gemma) keeps these fields under ``text_config``.
    """
    nested = config.get("text_config")
    return (".text_config", nested) if isinstance(nested, Mapping) else ("", config)


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
        value: Optional[int] = self._typed(path, is_integer, "an integer")
        return value

    def number(self, path: str) -> Optional[float]:
        """An int or a float."""
        value: Optional[float] = self._typed(path, _is_number, "a number")
        return value

    def integers(self, path: str) -> Optional[List[int]]:
        """A list of ints."""
        value: Optional[List[int]] = self._typed(path, _list_of(is_integer), "a list of integers")
        return value

    def strings(self, path: str) -> Optional[List[str]]:
        """A list of strings."""
        value: Optional[List[str]] = self._typed(path, _list_of(_is_string), "a list of strings")
        return value

    def is_wrong(self, path: str) -> bool:
        """Whether the field, or an object on the way to it, has a type that was reported already."""
        return any(path == wrong or path.startswith(wrong + ".") for wrong in self._wrong)

    def _typed(self, path: str, is_right: Callable[[Any], bool], expected: str) -> Any:
        value = self.raw(path)
        if value is None or is_right(value):
            return value
        self._note(path, value, expected)
        return None

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
            source="JSON types of the config contract",
        )


def is_integer(value: Any) -> bool:
    """An int that is no bool (JSON's true is an int to Python)."""
    return isinstance(value, int) and not isinstance(value, bool)


def _is_number(value: Any) -> bool:
    return is_integer(value) or isinstance(value, float)


def _is_string(value: Any) -> bool:
    return isinstance(value, str)


def _list_of(is_right: Callable[[Any], bool]) -> Callable[[Any], bool]:
    return lambda value: isinstance(value, list) and all(map(is_right, value))


def _in_quotes(value: Any) -> str:
    items = value if isinstance(value, list) else [value]
    quoted = any(isinstance(item, str) and item.strip().lstrip("-").isdigit() for item in items)
    return ", without quotes" if quoted else ""
