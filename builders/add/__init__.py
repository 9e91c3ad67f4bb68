"""Add a set to a copy of a release.

example:
  python -m builders add cmedqa --source cMedQA2 --release build/sample --out build/all
"""

from __future__ import annotations

import argparse

from builders.core.command import add_steps

# A file each, with ``add_arguments(parser)`` and ``run(args)``; its docstring is the help of the set.
SETS = {
    name: f"builders.add.{name}" for name in ("cmedqa", "ccovid", "crosslingual", "restrain", "resttest", "samples")
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_steps(parser, SETS)


def run(args: argparse.Namespace) -> int | None:
    found: int | None = args.run_step(args)
    return found
