"""Run the steps behind the paper's tables, beside its figures.

The rows stand in baselines/matrix.toml: the steps, and what the paper prints. Steps that rows share run once; a step
whose output is there already, from the same input, is not run again. Without --release, the embedded sample is built
first (build/sample): it shows that every step runs; its figures are not the paper's.

--scratch takes the recipes for machines without pretrained weights: a small BERT, pretrained on the collection as the
first step. --settings FILE gives recipes other values (TOML, a table a recipe or "*" for all of them, keys as in the
recipes) and commands other options (a table [options.VERB]: top-k = 20): smaller models and shorter trainings for a
small machine; baselines/settings has some.

examples:
  python -m baselines reproduce --table 4 --row bm25
  python -m baselines reproduce --table 4 5 --scratch --settings baselines/settings/sample.toml
  python -m baselines reproduce --table 7 --release DIR --dry-run
"""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path

from baselines.reproduce.matrix import SCRATCH, Row, Step, read_matrix
from baselines.reproduce.report import Measured, side_by_side, text
from baselines.reproduce.settings import Settings, read_settings
from baselines.reproduce.steps import call, run_steps, shown
from baselines.runs.evaluate import evaluate
from baselines.runs.measures import PAPER
from baselines.runs.qrels import Qrels, release_qrels
from baselines.runs.run_file import read_run
from builders.common.command import InputError, add_format, log
from builders.store.layout import SETS
from builders.store.reader import Release, open_release

SAMPLE = Path("build/sample")
_CHECKOUT = Path(__file__).resolve().parents[2]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--table", type=int, nargs="+", metavar="N", help="of these tables of the paper (default: all)")
    parser.add_argument("--row", metavar="NAME", help="the rows of this name (default: all)")
    parser.add_argument(
        "--release", type=Path, default=SAMPLE, metavar="DIR", help=f"default: {SAMPLE}, built where it is missing"
    )
    parser.add_argument("--split", default="dev", help="the split to measure on, where a row has none (default: dev)")
    parser.add_argument("--scratch", action="store_true", help="recipes without pretrained weights")
    parser.add_argument("--settings", type=Path, metavar="FILE", help="other values for recipes (TOML)")
    parser.add_argument("--out", type=Path, default=Path("build/runs"), metavar="DIR", help="where all output is put")
    parser.add_argument("--no-resume", action="store_true", help="run steps that are done again")
    parser.add_argument(
        "--one-process",
        action="store_true",
        help="run the steps in this process: for small data, where starting is all",
    )
    parser.add_argument("--dry-run", action="store_true", help="print the commands, run nothing")
    add_format(parser)


def run(args: argparse.Namespace) -> None:
    matrix = read_matrix()
    rows = matrix.select(args.table, args.row)
    variant = SCRATCH if args.scratch else ""
    fill = {"release": str(args.release), "split": args.split, "out": str(args.out), "variant": variant}
    settings = read_settings(args.settings) if args.settings else Settings()
    before = [_sample_command(args.release)] if args.release == SAMPLE and not args.release.exists() else []
    if args.dry_run:
        plan = matrix.plan(rows, fill, settings)
        measures = [_evaluate_command(row, plan, args) for row in rows]
        commands = [*before, *(step.command for step in plan.values()), *measures]
        print(json.dumps(commands) if args.format == "json" else "\n".join(map(shown, commands)))
        return
    for command in before:
        log.info("%s is missing: building the embedded sample", args.release)
        call(command, args.quiet, args.one_process)
    release = open_release(args.release)
    rows = _measurable(rows, release, args)
    plan = matrix.plan(rows, fill, settings)
    run_steps(plan, release, resume=not args.no_resume, quiet=args.quiet, here=args.one_process)
    measured = _measured(rows, plan, release, args)
    report = side_by_side(matrix, release, measured, sample=args.release == SAMPLE, scratch=args.scratch)
    print(json.dumps(report, ensure_ascii=False, indent=1) if args.format == "json" else text(report))


def _measurable(rows: Sequence[Row], release: Release, args: argparse.Namespace) -> list[Row]:
    """The rows whose set the release holds; the others are named, or an error where nothing is left."""
    have = release.splits()
    kept = [row for row in rows if (SETS[row.set].queries, row.split or args.split) in have]
    lacking = sorted({row.set for row in rows if row not in kept})
    if lacking:
        words = f"has no queries of {', '.join(lacking)} to measure on; `python -m builders VERB --release` adds sets"
        if not kept or args.table or args.row:
            raise InputError(words, path=release.path)
        log.warning("%s %s; those rows are left out", release.path, words)
    return kept


def _measured(
    rows: Sequence[Row], plan: Mapping[str, Step], release: Release, args: argparse.Namespace
) -> list[Measured]:
    """Each row's run against the judgments of its set, which are read once."""
    reference: dict[tuple[str, str], Qrels] = {}
    found = []
    for row in rows:
        split = row.split or args.split
        if (row.set, split) not in reference:
            reference[row.set, split] = release_qrels(release, split, row.set)
        qrels = reference[row.set, split]
        result, _ = evaluate(read_run(plan[row.step].output), qrels)
        ours = {name: 100 * result["official"][key] for name, key in PAPER.items()}
        found.append(Measured(row, split, qrels, ours))
    return found


def _sample_command(release: Path) -> list[str]:
    raw = _CHECKOUT / "builders" / "sample"
    shown_raw = os.path.relpath(raw) if raw.is_relative_to(Path.cwd()) else str(raw)
    return ["builders", "release", "--raw", shown_raw, "--out", str(release)]


def _evaluate_command(row: Row, plan: dict[str, Step], args: argparse.Namespace) -> list[str]:
    where = ["--release", str(args.release), *(["--set", row.set] if row.set != "main" else [])]
    return ["baselines", "evaluate", *where, "--split", row.split or args.split, str(plan[row.step].output)]
