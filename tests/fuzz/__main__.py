"""Coverage-guided fuzzing of one reader: ``python -m tests.fuzz header --seconds 600``.

Ends with exit code 0 when the time is over. An input that breaks the reader is printed and kept below
``tests/fuzz/known``, which the unit tests read.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

REPO = Path(__file__).resolve().parents[2]
_BROKEN = ("crash", "oom", "timeout")  # what libFuzzer calls its files
NAMES = ("config", "header", "mask", "tokenizer")


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("reader", choices=NAMES)
    parser.add_argument("--seconds", type=int, default=20)
    arguments = parser.parse_args()
    shm = Path("/dev/shm")  # every input is written to a file
    with tempfile.TemporaryDirectory(prefix="draftgate-fuzz-", dir=shm if shm.is_dir() else None) as work:
        done = subprocess.run(
            [sys.executable, "-m", "tests.fuzz.guided", arguments.reader, str(arguments.seconds), work],
            cwd=REPO,
            env={**os.environ, "PYTHONPATH": f"{REPO}:{REPO / 'module_utils'}", "TMPDIR": work},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            check=False,
        )
        broke = [path for kind in _BROKEN for path in Path(work).glob(f"{kind}-*")]
        kept = [_keep(arguments.reader, path) for path in broke]
    counts = dict(re.findall(r"^stat::(\w+): +(\d+)$", done.stdout, re.MULTILINE))
    if done.returncode or not counts:
        sys.stdout.write("".join([done.stdout, *kept]))
    runs, ways = counts.get("number_of_executed_units", 0), counts.get("new_units_added", 0)
    sys.stdout.write(
        f"{arguments.reader}: {runs} executions in {arguments.seconds} s, {ways} ways through the code, "
        f"{counts.get('peak_rss_mb', 0)} MiB at most\n"
    )
    return done.returncode or (0 if counts else 1)


def _keep(reader: str, path: Path) -> str:
    """Put what broke a reader where the unit tests find it."""
    kept = REPO / "tests" / "fuzz" / "known" / reader / path.name[:16]
    kept.parent.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(path, kept)
    return f"{reader} broke on {path.read_bytes()!r}\nIt is kept as {kept}.\n"


if __name__ == "__main__":
    sys.exit(main())
