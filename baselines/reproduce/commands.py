"""The commands behind a table's rows, as one types them."""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from baselines.reproduce.matrix import SCRATCH, Row, Step
from baselines.reproduce.report import behind
from baselines.reproduce.steps import Finished, run_steps, shown
from builders.store.reader import Release

_CHECKOUT = Path(__file__).resolve().parents[2]


def fill(args: argparse.Namespace) -> dict[str, str]:
    """What stands in the place of the words in braces of a matrix's steps."""
    variant = SCRATCH if args.scratch else ""
    return {"release": str(args.release), "split": args.split, "out": str(args.out), "variant": variant}


def run_plan(plan: Mapping[str, Step], release: Release, args: argparse.Namespace) -> dict[str, Finished]:
    """Run what is missing of a plan, as the options say."""
    return run_steps(
        *(plan, release),
        resume=not args.no_resume,
        quiet=args.quiet,
        here=args.one_process,
        processes=args.processes,
        any_code=args.any_code,
    )


def command_lines(plan: Mapping[str, Step], args: argparse.Namespace) -> str:
    """The commands of a plan, a line each; as JSON, lists of their words."""
    commands = [step.command for step in plan.values()]
    if args.format == "json":
        return json.dumps(commands)
    return "\n".join(shown(command, args.processes if command[1] == "train" else 1) for command in commands)


def sample_command(release: Path) -> list[str]:
    """What builds the embedded sample."""
    raw = _CHECKOUT / "builders" / "sample"
    shown_raw = os.path.relpath(raw) if raw.is_relative_to(Path.cwd()) else str(raw)
    return ["builders", "release", "--raw", shown_raw, "--out", str(release)]


def evaluate_command(row: Row, plan: Mapping[str, Step], args: argparse.Namespace) -> list[str]:
    """What measures a row's run as the report does."""
    some = [*["--queries", row.queries] * bool(row.queries), *["--qrels-config", row.qrels] * bool(row.qrels)]
    return ["baselines", "evaluate", *_of_row(row, args), *some, str(plan[row.step].output)]


def predictions(row: Row, plan: Mapping[str, Step], args: argparse.Namespace) -> Step:
    """The step that exports a row's run as the official JSON, which a submission consists of."""
    run, split = plan[row.step].output, row.split or args.split
    out = args.out / "predictions" / f"table{row.table}.{row.name}.{split}"
    words = ["--release", str(args.release), *["--set", row.set] * (row.set != "main"), "--format", "official"]
    command = ["builders", "export", *words, "--runs-only", "--run", str(run), "--out", str(out)]
    return Step(f"predictions.table{row.table}.{row.name}", command, out, (row.step,))


def commands_of(
    row: Row, plan: Mapping[str, Step], args: argparse.Namespace, *, labelled: bool, processes: int = 1
) -> dict[str, Any]:
    """A row and the commands behind it: its steps in their order, then what measures it or writes its predictions."""
    own = behind(plan, row.step)
    commands = [step.command for name, step in plan.items() if name in own]
    commands.append(evaluate_command(row, plan, args) if labelled else predictions(row, plan, args).command)
    typed = [shown(command, processes if command[1] == "train" else 1) for command in commands]
    kind, number = row.place
    return {kind: number, "row": row.name, "commands": typed}


def displayed(found: Sequence[Mapping[str, Any]]) -> str:
    """The rows of :func:`commands_of`, the commands under each."""
    lines = []
    for each in found:
        kind = "figure" if "figure" in each else "table"
        lines += [f"{kind.capitalize()} {each[kind]}, {each['row']}:", *(f"  {line}" for line in each["commands"]), ""]
    return "\n".join(lines[:-1])


def _of_row(row: Row, args: argparse.Namespace) -> list[str]:
    set_words = ["--set", row.set] if row.set != "main" else []
    return ["--release", str(args.release), *set_words, "--split", row.split or args.split]
