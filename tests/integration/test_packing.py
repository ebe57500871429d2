"""Every module starts as Ansible packs it, with all it imports, and judges its arguments first."""

from __future__ import annotations

import re

import pytest

from tests.conftest import REPO, CallModule, RunModule

MODULES = sorted(path.stem for path in (REPO / "library").glob("*.py"))
UNKNOWN = {"no_such_option": 1}


@pytest.mark.parametrize("name", MODULES)
def test_packed_module_starts(name: str, run_module: RunModule, call_module: CallModule) -> None:
    for result in (run_module(name, UNKNOWN, "--check"), call_module(name, UNKNOWN, check_mode=True)):
        assert result["failed"] is True
        assert re.search(r"^missing required arguments|no_such_option", result["msg"]), result["msg"]
