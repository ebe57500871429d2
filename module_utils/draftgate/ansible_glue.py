"""Ansible glue: the only file of the package that may know Ansible exists.

It is handed an ``AnsibleModule`` and needs nothing else of it, so the import stays in ``library/``.
"""

from __future__ import annotations

from typing import Any, Callable, Dict

from .errors import DraftgateError


def run_module(module: Any, work: Callable[[], Dict[str, Any]]) -> None:
    """Run ``work`` and end the module: the one funnel from exceptions to ``fail_json``.

    ``work`` returns the module's result (with ``changed``). A :class:`DraftgateError` becomes a failure
    whose ``msg`` is the sentence and whose ``error`` has the fields; its ``details`` are merged into the
    result so that a caller finds partial results (findings, journal) where success would have put them.
    """
    try:
        result = work()
    except DraftgateError as exc:
        fields = exc.as_dict()
        partial = {key: value for key, value in fields.pop("details").items() if key not in ("msg", "error")}
        module.fail_json(msg=str(exc), error=fields, **partial)
    except OSError as exc:
        name = f" {exc.filename!r}" if exc.filename else ""
        module.fail_json(msg=f"The operating system refused{name}: {exc.strerror or exc}.")
    module.exit_json(**result)
