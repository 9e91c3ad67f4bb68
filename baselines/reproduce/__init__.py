"""Run the steps behind the paper's tables, beside its figures.

The rows stand in baselines/matrix.toml: the steps, and what the paper prints. Steps that rows share run once; a step
whose output is there already, from the same input, is not run again. Without --release, the embedded sample is built
first (build/sample): it shows that every step runs; its figures are not the paper's.

--scratch takes the recipes for machines without pretrained weights: a small BERT, pretrained on the collection as the
first step. --settings FILE gives recipes other values (TOML, a table a recipe or "*" for all of them, keys as in the
recipes) and commands other options (a table [options.VERB]: top-k = 20): smaller models and shorter trainings for a
small machine; baselines/settings has some.

--table 6 needs the configs that `builders similar` writes, --figure 2 those of `builders annotate merge`; the bars of a
figure are also drawn, as PNG and SVG under --out.

--samples measures systems of the main set on every sample of the collection that `builders samples` put into the
release, and on the whole: with the same models and embeddings, how figures rise and how the order of the systems moves.
--extrapolation [restrain-14K resttest] trains BM25, DE and CE (or other --row) on the sets that `builders extrapolate`
drew, and reports interpolation, extrapolation and the gap. --matrix FILE names systems of one's own for both: steps and
rows as in baselines/matrix.toml.

examples:
  python -m baselines reproduce --table 4 --row bm25
  python -m baselines reproduce --table 4 5 --scratch --settings baselines/settings/sample.toml
  python -m baselines reproduce --table 7 --release DIR --dry-run
  python -m baselines reproduce --table 6 --figure 2 --release DIR
  python -m baselines reproduce --samples --table 4 5 --release DIR
  python -m baselines reproduce --extrapolation resttest --release DIR
"""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from baselines.reproduce.figure import draw_figures
from baselines.reproduce.matrix import SCRATCH, Matrix, Reference, Row, Step, read_matrix
from baselines.reproduce.report import Measured, side_by_side, text
from baselines.reproduce.rows import is_labelled, runnable
from baselines.reproduce.settings import Settings, read_settings
from baselines.reproduce.steps import call, run_steps, shown
from baselines.runs.evaluate import evaluate
from baselines.runs.intervals import official_intervals
from baselines.runs.measures import PAPER
from baselines.runs.qrels import Qrels, release_qrels
from builders.common.command import add_format, log, whole_number
from builders.store.reader import Release, open_release
from builders.store.runs import read_run

SAMPLE = Path("build/sample")
_CHECKOUT = Path(__file__).resolve().parents[2]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--table", type=int, nargs="+", metavar="N", help="of these tables of the paper (default: all)")
    parser.add_argument("--figure", type=int, nargs="+", metavar="N", help="of these figures of the paper")
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
    parser.add_argument(
        "--processes", type=whole_number(1), default=1, metavar="N", help="of a training, by torchrun (default: 1)"
    )
    parser.add_argument(
        "--samples", action="store_true", help="the systems on samples of the collection, and how their order moves"
    )
    parser.add_argument(
        "--extrapolation",
        nargs="*",
        metavar="NAME",
        help="BM25, DE and CE on queries like those they were trained on, and on others (default: all such sets)",
    )
    parser.add_argument(
        "--matrix", type=Path, metavar="FILE", help="of these two: other systems (TOML, as baselines/matrix.toml)"
    )
    parser.add_argument("--dry-run", action="store_true", help="print the commands, run nothing")
    add_format(parser)


def run(args: argparse.Namespace) -> None:
    if args.samples:
        from baselines.reproduce.samples import reproduce_samples

        reproduce_samples(args)
        return
    if args.extrapolation is not None:
        from baselines.reproduce.extrapolation import reproduce_extrapolation

        reproduce_extrapolation(args)
        return
    matrix = read_matrix()
    rows = matrix.select(args.table, args.row, args.figure)
    variant = SCRATCH if args.scratch else ""
    fill = {"release": str(args.release), "split": args.split, "out": str(args.out), "variant": variant}
    settings = read_settings(args.settings) if args.settings else Settings()
    if args.dry_run:
        _show(matrix, rows, fill, settings, args)
        return
    if args.release == SAMPLE and not args.release.exists():
        log.info("%s is missing: building the embedded sample", args.release)
        call(_sample_command(args.release), args.quiet, args.one_process)
    release = open_release(args.release)
    rows = _runnable(rows, release, args)
    labelled = [row for row in rows if is_labelled(row, release, args.split)]
    blind = [row for row in rows if row not in labelled]
    if blind:
        log.warning(
            "%s has no labels of the %s split (those of the official data were never published): nothing can be "
            "measured on it; %d rows end in files of predictions",
            *(release.path, args.split, len(blind)),
        )
    plan = matrix.plan(rows, fill, settings)
    steps = plan | {step.name: step for step in (_predictions(row, plan, args) for row in blind)}
    done = run_steps(
        steps, release, resume=not args.no_resume, quiet=args.quiet, here=args.one_process, processes=args.processes
    )
    measured = _measured(labelled, plan, release, args)
    report = side_by_side(matrix, release, measured, steps, done)
    report["images"] = list(map(str, draw_figures(measured, args.out)))
    report["notes"] = [*_warnings(report, settings, args), *report["notes"]]
    report["predictions"] = [
        {
            "table": row.table,
            "row": row.name,
            "split": row.split or args.split,
            "file": str(_predictions(row, plan, args).output),
        }
        for row in blind
    ]
    print(json.dumps(report, ensure_ascii=False, indent=1) if args.format == "json" else text(report))


def _runnable(rows: Sequence[Row], release: Release, args: argparse.Namespace) -> list[Row]:
    asked = bool(args.table or args.figure or args.row)
    return runnable(rows, release, args.split, scratch=args.scratch, asked=asked, named=args.row is not None)


def _show(
    matrix: Matrix, rows: Sequence[Row], fill: Mapping[str, str], settings: Settings, args: argparse.Namespace
) -> None:
    """Print the commands of ``--dry-run``, and those that measure."""
    release = open_release(args.release) if args.release.exists() else None
    before = [_sample_command(args.release)] if args.release == SAMPLE and not release else []
    if release:
        rows = _runnable(rows, release, args)
    elif args.scratch:
        rows = [row for row in rows if not row.official_negatives]
    plan = matrix.plan(rows, fill, settings)
    last = []
    for row in rows:
        measured = (
            is_labelled(row, release, args.split) if release else (row.split or args.split) != "test" or row.split
        )
        last.append(_evaluate_command(row, plan, args) if measured else _predictions(row, plan, args).command)
    commands = [*before, *(step.command for step in plan.values()), *last]
    if args.format == "json":
        print(json.dumps(commands))
        return
    for command in commands:
        print(shown(command, args.processes if command[1] == "train" else 1))


def _warnings(report: Mapping[str, Any], settings: Settings, args: argparse.Namespace) -> list[str]:
    """What keeps our figures from being those of the paper's models, whatever they were measured on."""
    notes = []
    if args.release == SAMPLE and not all(each["same_collection"] for each in report["sets"]):
        notes.append("this is the embedded sample, written for this project: it shows that every step runs")
    if args.scratch:
        notes.append("ours are trained from scratch: small models without pretrained weights, not the paper's models")
    if args.settings:
        options = "".join(f"; {words}" for words in settings.shown())
        notes.append(f"ours have the values of {args.settings}, not the recipes'{options}")
    return notes


def _measured(
    rows: Sequence[Row], plan: Mapping[str, Step], release: Release, args: argparse.Namespace
) -> list[Measured]:
    """Each row's run against the judgments of its reference, which are read once."""
    known: dict[Reference, Qrels] = {}
    found = []
    for row in rows:
        reference = row.reference(args.split)
        if reference not in known:
            known[reference] = release_qrels(release, reference.split, row.set, row.queries, row.qrels)
        qrels = known[reference]
        result, by_query = evaluate(read_run(plan[row.step].output), qrels)
        ours = {name: 100 * result["official"][key] for name, key in PAPER.items()}
        sure = official_intervals(by_query)
        intervals = {name: (100 * sure[key][0], 100 * sure[key][1]) for name, key in PAPER.items()}
        found.append(Measured(row, reference.split, qrels, ours, intervals))
    return found


def _sample_command(release: Path) -> list[str]:
    raw = _CHECKOUT / "builders" / "sample"
    shown_raw = os.path.relpath(raw) if raw.is_relative_to(Path.cwd()) else str(raw)
    return ["builders", "release", "--raw", shown_raw, "--out", str(release)]


def _evaluate_command(row: Row, plan: Mapping[str, Step], args: argparse.Namespace) -> list[str]:
    some = [*["--queries", row.queries] * bool(row.queries), *["--qrels-config", row.qrels] * bool(row.qrels)]
    return ["baselines", "evaluate", *_of_row(row, args), *some, str(plan[row.step].output)]


def _predictions(row: Row, plan: Mapping[str, Step], args: argparse.Namespace) -> Step:
    """The step that writes a row's run as the official JSON, which a submission consists of."""
    out = args.out / "predictions" / f"table{row.table}.{row.name}.{row.split or args.split}.json"
    command = ["baselines", "predictions", *_of_row(row, args), str(plan[row.step].output), "--out", str(out)]
    return Step(f"predictions.table{row.table}.{row.name}", command, out, (row.step,))


def _of_row(row: Row, args: argparse.Namespace) -> list[str]:
    set_words = ["--set", row.set] if row.set != "main" else []
    return ["--release", str(args.release), *set_words, "--split", row.split or args.split]
