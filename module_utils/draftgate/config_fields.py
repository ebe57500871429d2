"""Typed reading of a config.json: a wrong type is a finding, and the value counts as not known.

Hand-written configs have numbers in quotes and bools for numbers. Neither may crash a rule, and each is
reported once, however many rules ask for the field.
"""

from __future__ import annotations

from typing import Any, Callable, Dict, List, Mapping, Optional, Tuple

from .findings import ERROR, Finding
from .untrusted import shown


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
            if not isinstance(value, dict):
                self._note(walked, value, "an object")
                return None
            value = value.get(key)
            walked = f"{walked}.{key}" if walked else key
        return value

    def has(self, path: str) -> bool:
        """Whether the key is there, be it with null: engines tell a null from an absent field."""
        parent, _, key = path.rpartition(".")
        holder = self.raw(parent) if parent else self.config
        return isinstance(holder, dict) and key in holder

    def integer(self, path: str, null: bool = True) -> Optional[int]:
        """An int; a bool, a float and a string are findings, and so is null where ``null`` is false."""
        value: Optional[int] = self._typed(path, is_integer, "an integer", null)
        return value

    def number(self, path: str, null: bool = True) -> Optional[float]:
        """An int or a float."""
        value: Optional[float] = self._typed(path, _is_number, "a number", null)
        return value

    def boolean(self, path: str, null: bool = True) -> Optional[bool]:
        """JSON's true or false; a string or a number is a finding."""
        value: Optional[bool] = self._typed(path, _is_boolean, "true or false", null)
        return value

    def string(self, path: str, null: bool = True) -> Optional[str]:
        """A string."""
        value: Optional[str] = self._typed(path, _is_string, "a string", null)
        return value

    def mapping(self, path: str) -> Optional[Mapping[str, Any]]:
        """An object."""
        value: Optional[Mapping[str, Any]] = self._typed(path, _is_mapping, "an object")
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

    def _typed(self, path: str, is_right: Callable[[Any], bool], expected: str, null: bool = True) -> Any:
        value = self.raw(path)
        if is_right(value) or (value is None and (null or not self.has(path))):
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
            message=f"{field} is {_written(value)}, which is not {expected}.",
            fix=f"Set {path} to {expected}{_in_quotes(value)}{_or_remove(value)}.",
            source="JSON types of the config contract",
        )


def is_integer(value: Any) -> bool:
    """An int that is no bool (JSON's true is an int to Python)."""
    return isinstance(value, int) and not isinstance(value, bool)


def _is_number(value: Any) -> bool:
    return is_integer(value) or isinstance(value, float)


def _is_boolean(value: Any) -> bool:
    return isinstance(value, bool)


def _is_string(value: Any) -> bool:
    return isinstance(value, str)


def _is_mapping(value: Any) -> bool:
    return isinstance(value, dict)


def _list_of(is_right: Callable[[Any], bool]) -> Callable[[Any], bool]:
    return lambda value: isinstance(value, list) and all(map(is_right, value))


def _written(value: Any) -> str:
    return "null" if value is None else shown(value)


def _or_remove(value: Any) -> str:
    return ", or remove it" if value is None else ""


def _in_quotes(value: Any) -> str:
    items = value if isinstance(value, list) else [value]
    quoted = any(isinstance(item, str) and item.strip().lstrip("-").isdigit() for item in items)
    return ", without quotes" if quoted else ""


def written(value: Any) -> str:
    """As JSON has it, and large numbers without an exponent."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, float) and value.is_integer():
        return str(int(value))
    return str(value)
