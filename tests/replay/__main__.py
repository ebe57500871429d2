"""The incident again: its files judged for two engines, and the tiny pair broken for real.

``make replay`` (five minutes on two quiet cores), or ``make replay ARGS=--files-only`` (a second, no engine).
Exit code 0 when everything came as it has to.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "module_utils"))

from tests.replay import serving, story


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.replay", description=__doc__)
    parser.add_argument("--files-only", action="store_true", help="judge the incident's files, start nothing")
    parser.add_argument("--table", action="store_true", help="show every finding of the incident's files")
    arguments = parser.parse_args()
    good = story.tell(say, whole=arguments.table)
    if not arguments.files_only:
        good = replay() and good
    return 0 if good else 1


def replay() -> bool:
    say("")
    say("The same faults for real: the tiny pair on vLLM 0.32.0, on this machine.")
    with serving.installation() as at:
        rows = list(serving.Replay(at, say).run())
    say("")
    for line in serving.table(rows):
        say(line)
    return not any(row.wrong for row in rows)


def say(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
