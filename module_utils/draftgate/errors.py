"""The one exception hierarchy.

Every failure that a person can act on is a :class:`DraftgateError`: what was being done, what was
observed, what was expected, and what to do next. Anything else is a bug and keeps its traceback.
"""

from __future__ import annotations

from typing import Any, Dict, Optional


class DraftgateError(Exception):
    """A failure a person can act on.

    :param doing: what was being done, a phrase without a subject ("reading the drafter's config.json").
    :param observed: what was found instead.
    :param expected: what would have been right; empty when the observation says it all.
    :param next_step: what to do or type now.
    :param code: the finding's stable code (``DG203``), where there is one.
    :param details: numbers and lists for a program (JSON types only, never a secret).
    """

    def __init__(
        self,
        doing: str,
        observed: str,
        expected: str = "",
        next_step: str = "",
        code: Optional[str] = None,
        details: Optional[Dict[str, Any]] = None,
    ) -> None:
        self.doing = doing
        self.observed = observed
        self.expected = expected
        self.next_step = next_step
        self.code = code
        self.details: Dict[str, Any] = dict(details or {})
        super().__init__(str(self))

    def __str__(self) -> str:
        head = f"{self.code}: " if self.code else ""
        expected = f" (expected: {self.expected})" if self.expected else ""
        step = f" {self.next_step}" if self.next_step else ""
        return f"{head}{self.doing}: {self.observed}{expected}.{step}"

    def as_dict(self) -> Dict[str, Any]:
        """The same as fields, for a module's result or a journal entry."""
        return {
            "code": self.code,
            "doing": self.doing,
            "observed": self.observed,
            "expected": self.expected,
            "next_step": self.next_step,
            "details": self.details,
        }


class InputError(DraftgateError):
    """The wish itself cannot be understood: a wrong type, an unreadable file, an unknown name."""


class HostError(DraftgateError):
    """The host cannot carry the wish: no room, a port taken, a missing library, a lock that is held."""


class LaunchError(DraftgateError):
    """The engine did not come up. ``details`` has ``cause`` and ``log_tail``."""


class MeasureError(DraftgateError):
    """The gate could not measure (which is neither "measured and bad" nor "not enough samples")."""


class TimeLimitError(DraftgateError):
    """An absolute deadline passed."""
