# Copyright: Draftgate contributors
# SPDX-License-Identifier: Apache-2.0
"""Inventory data → the spec. The only filter, and the only place where variables become spec fields."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any, Callable, Dict, Mapping, Sequence

_PACKAGES = Path(__file__).resolve().parent.parent / "module_utils"
if str(_PACKAGES) not in sys.path:  # plugins beside a playbook cannot import its module_utils otherwise
    sys.path.insert(0, str(_PACKAGES))

from draftgate import wishes  # noqa: E402 - needs the path above
from draftgate.errors import DraftgateError  # noqa: E402


def draftgate_spec(
    variables: Mapping[str, Any],
    models: Mapping[str, Any],
    contract: Mapping[str, Any],
    given: Sequence[str] = (),
) -> Dict[str, Any]:
    """``{spec, error}``: the spec of a host, or the one sentence that says why there is none.

    A filter that raises is printed by Ansible four times with the template around it; the role fails by the
    sentence instead.

    :param variables: the role's public variables, by name.
    :param models: ``model_store``'s result: name → digest.
    :param contract: ``drafter_contract``'s result, with the effective config.
    :param given: names of all variables that the host has: a misspelt one is an error.
    """
    unknown = wishes.unknown(given)
    if unknown:
        return {"spec": {}, "error": unknown}
    try:
        return {"spec": wishes.spec_of(variables, models, contract), "error": ""}
    except DraftgateError as exc:
        return {"spec": {}, "error": str(exc)}


class FilterModule:
    """Found by Ansible by this name."""

    def filters(self) -> Dict[str, Callable[..., Any]]:
        return {"draftgate_spec": draftgate_spec}
