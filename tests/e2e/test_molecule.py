"""Molecule's first scenario as a person types it: a bare systemd host, checked, deployed, and left alone.

`make molecule` walks the others too.
"""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

from tests.hosts import NoHosts, base

ROOT = Path(__file__).parents[2]


@pytest.mark.real
@pytest.mark.timeout(1200)
def test_the_default_scenario_of_molecule_is_green() -> None:
    try:
        base.require()
    except NoHosts as exc:
        pytest.skip(str(exc))
    done = subprocess.run(
        ["make", "molecule", "ARGS=-s default"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    told = re.sub(r"\x1b\[[0-9;]*m", "", done.stdout + done.stderr)
    assert done.returncode == 0, told[-8000:]
    for action in ("check", "converge", "idempotence", "side_effect", "verify", "destroy"):
        assert f"default ➜ {action}: Executed: Successful" in told, f"{action} did not run\n{told[-8000:]}"
