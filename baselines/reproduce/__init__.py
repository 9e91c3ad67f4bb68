"""Run the steps behind the paper's tables, beside its figures.

The rows stand in baselines/matrix.toml: the steps, and what the paper prints. Steps that rows share run once; a step
whose output is there already, from the same input by the same version of the code, is not run again. Every figure has
its 95 % interval over queries, and a mark against the published one: OK, close or off where data and starting model are
those of the published one, else "not comparable", and why. The same stands in a page of its own (reproduce.html under
--out, or --html FILE), with Figure 2, the curves of the trainings and the leaderboard; it opens from disk.

Without --release, the embedded sample is built first (build/sample), and run as --small says: it shows that every step
runs; its figures are not the paper's. --small is --scratch with the settings of baselines/settings/sample.toml: minutes
on two cores, for a release of some thousand passages.

--scratch takes the recipes for machines without pretrained weights: a small BERT, pretrained on the collection as the
first step. --settings FILE gives recipes other values (TOML, a table a recipe or "*" for all of them, keys as in the
recipes) and commands other options (a table [options.VERB]: top-k = 20): smaller models and shorter trainings for a
small machine; baselines/settings has some.

--table 6 needs the configs that `builders similar` writes, --figure 2 those of `builders annotate merge`; the bars of a
figure are also drawn, as PNG and SVG under --out.

--extrapolation [restrain-14K resttest] trains BM25, DE and CE (or other --row) on the sets that `builders add` drew. It
reports interpolation, extrapolation and the gap. --matrix FILE names systems of one's own for it: steps and
rows as in baselines/matrix.toml.

--dry-run prints the commands. Above them, as comments, it prints what each step costs by formula: rows, tokens,
operations (6 x parameters x tokens for training, 2 x for encoding and re-ranking) and bytes on the disk. Where the
release does not exist, the sizes are those of the paper's collection.

--leaderboard [RUN ...] prints the figures of baselines/leaderboard.toml with their sources: where each is printed, what
was searched, and whether the model declares training on data of DuReader. Figures on the whole collection and on the
sample of 100,001 passages (C-MTEB's DuRetrieval) never stand in one table. Runs are measured on --split of --release
and stand among those of the same collection, with 95 % intervals; on any other one they have a table of their own.

examples:
  python -m baselines reproduce
  python -m baselines reproduce --small --release build/demo
  python -m baselines reproduce --table 4 --row bm25
  python -m baselines reproduce --table 7 --release DIR --dry-run
  python -m baselines reproduce --table 6 --figure 2 --release DIR
  python -m baselines reproduce --extrapolation resttest --release DIR
  python -m baselines reproduce --leaderboard --searched sample --top 10 --format markdown
  python -m baselines reproduce --release build/sample --leaderboard build/runs/bm25.dev.run.gz
"""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from baselines.reproduce.commands import (
    commands_of,
    displayed,
    evaluate_command,
    fill,
    predictions,
    run_plan,
    sample_command,
)
from baselines.reproduce.curves import trainings
from baselines.reproduce.data import data_figures
from baselines.reproduce.figure import draw_figures
from baselines.reproduce.matrix import Matrix, Row, read_matrix
from baselines.reproduce.measure import measure
from baselines.reproduce.page import PAGE, write_page
from baselines.reproduce.plan import plan_table
from baselines.reproduce.report import side_by_side
from baselines.reproduce.rows import is_labelled, runnable
from baselines.reproduce.settings import Settings, read_settings
from baselines.reproduce.steps import call, shown
from baselines.reproduce.tally import WHY as TALLY_WANTED
from baselines.reproduce.tally import error_figures
from baselines.reproduce.text import text
from builders.core.command import whole_number
from builders.core.errors import InputError, log
from builders.store.reader import Release, open_release

SAMPLE = Path("build/sample")
SMALL = Path(__file__).resolve().parents[1] / "settings" / "sample.toml"
_NEVER = "the labels of the official test split were never published"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--table", type=int, nargs="+", metavar="N", help="of these tables of the paper (default: all)")
    parser.add_argument("--figure", type=int, nargs="+", metavar="N", help="of these figures of the paper")
    parser.add_argument("--row", metavar="NAME", help="the rows of this name (default: all)")
    parser.add_argument(
        "--release", type=Path, metavar="DIR", help=f"default: {SAMPLE}, built where it is missing, run as --small says"
    )
    parser.add_argument("--split", default="dev", help="the split to measure on, where a row has none (default: dev)")
    parser.add_argument("--scratch", action="store_true", help="recipes without pretrained weights")
    parser.add_argument("--small", action="store_true", help="--scratch, and the settings of the sample")
    parser.add_argument("--settings", type=Path, metavar="FILE", help="other values for recipes (TOML)")
    parser.add_argument("--out", type=Path, default=Path("build/runs"), metavar="DIR", help="where all output is put")
    parser.add_argument("--errors", type=Path, metavar="FILE", help="Table 10: the tally of `errors`, as JSON")
    parser.add_argument("--html", type=Path, metavar="FILE", help=f"where the page is put (default: OUT/{PAGE})")
    parser.add_argument("--no-resume", action="store_true", help="run steps that are done again")
    parser.add_argument("--any-code", action="store_true", help="keep what another version of the code has made, too")
    parser.add_argument(
        "--one-process",
        action="store_true",
        help="run the steps in this process: for small data, where starting is all",
    )
    parser.add_argument(
        "--processes", type=whole_number(1), default=1, metavar="N", help="of a training, by torchrun (default: 1)"
    )
    parser.add_argument(
        "--extrapolation",
        nargs="*",
        metavar="NAME",
        help="BM25, DE and CE on queries like those they were trained on, and on others (default: all such sets)",
    )
    parser.add_argument(
        "--matrix", type=Path, metavar="FILE", help="of --extrapolation: other systems (TOML, as baselines/matrix.toml)"
    )
    parser.add_argument(
        "--dry-run", action="store_true", help="print the commands and, by formula, what their steps cost; run nothing"
    )
    parser.add_argument("--display-commands", action="store_true", help="print the commands behind each row, too")
    parser.add_argument(
        "--leaderboard",
        type=Path,
        nargs="*",
        metavar="RUN",
        help="print the published figures, and own runs of --release among them, and run nothing",
    )
    parser.add_argument("--searched", choices=["whole", "sample"], help="of these on this collection alone")
    parser.add_argument("--top", type=whole_number(1), metavar="N", help="of these the N best of each table")
    parser.add_argument(
        "--format",
        choices=["text", "json", "markdown"],
        default="text",
        help="how the result is printed; markdown: of --leaderboard",
    )


def run(args: argparse.Namespace) -> None:
    if args.leaderboard is not None:
        from baselines.reproduce.leaderboard import print_leaderboard

        print_leaderboard(args)
        return
    _settle(args)
    if args.extrapolation is not None:
        from baselines.reproduce.extrapolation import reproduce_extrapolation

        reproduce_extrapolation(args)
        return
    matrix = read_matrix()
    chosen = (args.table, args.row, args.figure)
    rows = matrix.select(*chosen)
    settings = read_settings(args.settings) if args.settings else Settings()
    if args.dry_run:
        _show(matrix, rows, settings, args)
        return
    if args.release == SAMPLE and not args.release.exists():
        if args.split == "test":
            log.warning("%s; those of the sample neither: its rows end in files of predictions", _NEVER)
        log.info("%s is missing: building the embedded sample", args.release)
        call(sample_command(args.release), args.quiet, args.one_process)
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
    data = data_figures(matrix, matrix.select_counts(*chosen), release)
    categories = matrix.select_categories(*chosen)
    errors = error_figures(matrix, categories, args.errors) if categories and args.errors else []
    if categories and not errors and not (rows or data):
        raise InputError(TALLY_WANTED)
    plan = matrix.plan(rows, fill(args), settings)
    steps = plan | {step.name: step for step in (predictions(row, plan, args) for row in blind)}
    done = run_plan(steps, release, args)
    measured, own = measure(labelled, plan, release, args.split)
    report = side_by_side(matrix, release, measured, steps, done, settings)
    report["data"], report["errors"] = data, errors
    report["images"] = list(map(str, draw_figures(measured, args.out)))
    report["notes"] = [*_warnings(report, settings, args), *report["notes"]]
    report["notes"] += [TALLY_WANTED] * bool(categories and not errors)
    report["predictions"] = [
        {
            "table": row.table,
            "row": row.name,
            "split": row.split or args.split,
            "file": str(next((predictions(row, plan, args).output / "predictions").iterdir())),
        }
        for row in blind
    ]
    report["commands"] = [
        commands_of(row, plan, args, labelled=row in labelled, processes=args.processes) for row in rows
    ]
    report["trainings"] = trainings(plan)
    report["page"] = str(write_page(args.html or args.out / PAGE, report, own))
    _print(report, args)


def _settle(args: argparse.Namespace) -> None:
    """``--small``, which is also the way of the embedded sample where nothing else is said."""
    if args.release is None:
        args.release = SAMPLE
        if not (args.small or args.scratch or args.settings):
            log.info("the embedded sample: --small, models from scratch in minutes (--release %s: else)", SAMPLE)
            args.small = True
    if args.small:
        args.scratch, args.settings = True, args.settings or SMALL


def _print(report: dict[str, Any], args: argparse.Namespace) -> None:
    if args.format == "json":
        print(json.dumps(report, ensure_ascii=False, indent=1))
        return
    print(text(report))
    if args.display_commands:
        print(f"\n{displayed(report['commands'])}")


def _runnable(rows: Sequence[Row], release: Release, args: argparse.Namespace) -> list[Row]:
    asked = bool(args.table or args.figure or args.row)
    return runnable(rows, release, args.split, scratch=args.scratch, asked=asked, named=args.row is not None)


def _show(matrix: Matrix, rows: Sequence[Row], settings: Settings, args: argparse.Namespace) -> None:
    """Print the commands of ``--dry-run``, and those that measure."""
    release = open_release(args.release) if args.release.exists() else None
    before = [sample_command(args.release)] if args.release == SAMPLE and not release else []
    if release:
        rows = _runnable(rows, release, args)
    elif args.scratch:
        rows = [row for row in rows if not row.official_negatives]
    plan = matrix.plan(rows, fill(args), settings)

    def labelled(row: Row) -> bool:
        if release:
            return is_labelled(row, release, args.split)
        return (row.split or args.split) != "test" or bool(row.split)

    if args.split == "test" and not all(map(labelled, rows)):
        log.warning("%s: rows without labels end in files of predictions", _NEVER)
    if args.display_commands:
        found = [commands_of(row, plan, args, labelled=labelled(row), processes=args.processes) for row in rows]
        print(json.dumps(found, ensure_ascii=False, indent=1) if args.format == "json" else displayed(found))
        return
    last = [
        evaluate_command(row, plan, args) if labelled(row) else predictions(row, plan, args).command for row in rows
    ]
    commands = [*before, *(step.command for step in plan.values()), *last]
    if args.format == "json":
        print(json.dumps(commands))
        return
    if not before:  # of a sample that is still to be built nothing is known
        of = release.path if release else "the paper's collection"
        print(
            "".join(f"# {line}\n" for line in [f"{of}, by formula:", *plan_table(plan, release).splitlines()]), end=""
        )
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
        path = os.path.relpath(args.settings) if args.settings == SMALL else args.settings
        notes.append(f"ours have the values of {path}, not the recipes'{options}")
    return notes
