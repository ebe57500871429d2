"""Make the pair from nothing and check it: ``python -m recipe`` in models/tiny-pair, one CPU thread."""

from __future__ import annotations

import argparse
from pathlib import Path

import torch

from . import check, prompts, tokenizer, train_drafter, train_target
from .progress import say

ROOT = Path(__file__).resolve().parent.parent
PROMPT_FILE = ROOT.parent.parent / "prompts" / "tiny-pair.jsonl"
STEPS = ("tokenizer", "target", "drafter", "prompts", "check")


def main() -> None:
    """Run all steps, or those that are named."""
    parser = argparse.ArgumentParser(prog="python -m recipe", description=__doc__)
    parser.add_argument("steps", nargs="*", metavar="step", help=f"of {', '.join(STEPS)}; default: all")
    parser.add_argument(
        "--out", type=Path, default=ROOT, help="where target/ and drafter/ are (default: %(default)s)"
    )
    arguments = parser.parse_args()
    steps = arguments.steps or STEPS
    unknown = sorted(set(steps) - set(STEPS))
    if unknown:
        parser.error(f"unknown step {', '.join(unknown)}; there are {', '.join(STEPS)}")
    # Two threads on two busy cores wait for each other more than they work.
    torch.set_num_threads(1)
    target, drafter = arguments.out / "target", arguments.out / "drafter"
    if "tokenizer" in steps:
        tokenizer.write(tokenizer.build(), target)
    if "target" in steps:
        train_target.run(target)
    if "drafter" in steps:
        train_drafter.run(target, drafter)
    if "prompts" in steps:
        PROMPT_FILE.write_text(prompts.lines(), encoding="utf-8")
        say(f"prompts | {prompts.digest(prompts.lines())} {PROMPT_FILE}")
    if "check" in steps:
        check.run(arguments.out, PROMPT_FILE, write=arguments.out == ROOT)


if __name__ == "__main__":
    main()
