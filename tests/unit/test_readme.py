"""What the README shows of commands is what they print."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys

import pytest

from tests.conftest import REPO

README = (REPO / "README.md").read_text("utf-8")


def block(command: str) -> list[str]:
    """The lines of the code block that has this command, from it on."""
    blocks: list[str] = re.findall(r"```\w+\n(.*?)```", README, re.DOTALL)
    (found,) = [text for text in blocks if f"$ {command}" in text]
    return found.partition(f"$ {command}")[2].splitlines()


def printed(words: list[str]) -> list[str]:
    environment = {**os.environ, "PYTHONPATH": f"{REPO / 'module_utils'}:{REPO}"}
    done = subprocess.run(words, cwd=REPO, env=environment, capture_output=True, text=True, check=True)
    return done.stdout.splitlines()


def plain(line: str) -> str:
    """Without the seconds of this run, and what an ellipsis leaves out."""
    return re.sub(r"\d+\.\d+ s", "… s", line).partition("…")[0].rstrip()


@pytest.mark.parametrize(
    ("command", "words"),
    [
        ("PYTHONPATH=module_utils python3 -m draftgate probe", ["-m", "draftgate", "probe"]),
        ("make replay", ["-m", "tests.replay", "--files-only"]),
    ],
)
def test_shown_output_is_printed(command: str, words: list[str]) -> None:
    rest, *shown = block(command)
    lines = iter(map(plain, printed([sys.executable, *words, *shlex.split(rest)])))
    for line in filter(None, map(plain, shown)):
        assert any(one.startswith(line) for one in lines), f"not printed, or not in this order: {line!r}"
