"""A minute of coverage-guided fuzzing: nothing but InputError comes out of a reader, within a GiB of memory.

``DRAFTGATE_FUZZ_SECONDS=600 pytest tests/integration/test_fuzz.py`` looks longer.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys

import pytest

from tests.conftest import REPO
from tests.fuzz.__main__ import NAMES

SECONDS = int(os.environ.get("DRAFTGATE_FUZZ_SECONDS", "20"))


@pytest.mark.timeout(SECONDS + 100)
@pytest.mark.parametrize("name", NAMES)
def test_a_reader_takes_anything(name: str) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "tests.fuzz", name, "--seconds", str(SECONDS)],
        cwd=REPO,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    found = re.search(r": (\d+) executions in \d+ s, (\d+) ways", done.stdout)
    assert found, done.stdout
    # Far below what a busy machine does: a reader that is hardly run finds nothing.
    assert int(found.group(1)) > 20 * SECONDS and int(found.group(2)) > 50, done.stdout
