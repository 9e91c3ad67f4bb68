"""Add a set to a copy of a release.

example:
  python -m builders add cmedqa --source cMedQA2 --release build/sample --out build/all
"""

import argparse

from builders.core.command import add_steps

# Each value names a module with ``add_arguments(parser)`` and ``run(args)``, or a function as MODULE:NAME. The
# function's options come from ``NAME_arguments``. The docstring of the module or function is the help.
SETS = {
    **{name: f"builders.add.{name}" for name in ("cmedqa", "ccovid", "crosslingual")},
    **{name: f"builders.add.extrapolation_sets:{name}" for name in ("restrain", "resttest")},
    "answers": "builders.add.add_answers",
    "samples": "builders.add.samples",
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_steps(parser, SETS)


def run(args: argparse.Namespace) -> int | None:
    return args.run_step(args)  # type: ignore[no-any-return]
