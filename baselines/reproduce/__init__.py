"""Run the steps behind the paper's tables, beside its figures.

Tables 4 to 9 and Figure 2; `builders check` prints Table 3, `errors --tally` Table 10. baselines/matrix.toml has the
rows: the steps, and what the paper prints. Steps that rows share run once; a step whose output is there already, from
the same input by the same version of the code, is not run again. Every figure has its 95 % interval over queries, and a
mark against the published one: OK, close or off where data and starting model are those of the published one, else "not
comparable", and why. A page has the same tables (reproduce.html under --out, or --html FILE), with Figure 2, the curves
of the trainings and the leaderboard; it opens from disk.

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
reports interpolation, extrapolation and the gap.

--leaderboard [RUN ...] prints the figures of baselines/leaderboard.toml with their sources: where each is printed, what
was searched, and whether the model declares training on data of DuReader. Figures on the whole collection and on the
sample of 100,001 passages (C-MTEB's DuRetrieval) never stand in one table. Runs are measured on --split of --release
and stand among those of the same collection, with 95 % intervals; on any other one they have a table of their own.

--dry-run prints the commands. Above them, as comments, it prints what each step costs by formula: rows, tokens,
operations (6 x parameters x tokens for training, 2 x for encoding and re-ranking) and bytes on the disk. Where the
release does not exist, the sizes are those of the paper's collection.

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
from collections.abc import Mapping, Sequence
from pathlib import Path

from baselines.reproduce.costs import plan_table
from baselines.reproduce.drawings import draw_figures
from baselines.reproduce.matrix import Matrix, Row, Step, fill, is_labelled, read_matrix, runnable
from baselines.reproduce.page import PAGE, write_page
from baselines.reproduce.report import measure, side_by_side, trainings
from baselines.reproduce.settings import Settings, read_settings
from baselines.reproduce.steps import call, printed, run_plan, sample_command
from baselines.reproduce.text import text
from builders.core.command import whole_number
from builders.core.errors import log
from builders.core.tables import print_result
from builders.store.reader import open_release

SAMPLE = Path("build/sample")
SMALL = Path(__file__).resolve().parents[1] / "settings" / "sample.toml"
_SAMPLE_IS = "this is the embedded sample, written for this project: it shows that every step runs"
_BLIND = "those of the official data were never published; %d rows end in files of predictions"


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
    parser.add_argument("--html", type=Path, metavar="FILE", help=f"where the page is put (default: OUT/{PAGE})")
    parser.add_argument("--any-code", action="store_true", help="keep what another version of the code has made, too")
    parser.add_argument(
        "--one-process",
        action="store_true",
        help="run every step in this process: libraries load once, but memory is not released between steps",
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
        "--dry-run", action="store_true", help="print the commands and, by formula, what their steps cost; run nothing"
    )
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
    if args.release is None:
        args.release = SAMPLE
        if not (args.small or args.scratch or args.settings):
            log.info("the embedded sample: --small, models from scratch in minutes (--release %s: else)", SAMPLE)
            args.small = True
    if args.small:
        args.scratch, args.settings = True, args.settings or SMALL
    if args.extrapolation is not None:
        from baselines.reproduce.extrapolation import reproduce_extrapolation

        reproduce_extrapolation(args)
        return
    matrix = read_matrix()
    rows = matrix.select(args.table, args.row, args.figure)
    settings = read_settings(args.settings) if args.settings else Settings()
    if args.dry_run:
        _show(matrix, rows, settings, args)
        return
    if args.release == SAMPLE and not args.release.exists():
        log.info("%s is missing: building the embedded sample", args.release)
        call(sample_command(args.release), args.quiet, args.one_process)
    release = open_release(args.release)
    rows = runnable(rows, release, args)
    labelled = [row for row in rows if is_labelled(row, release, args.split)]
    blind = [row for row in rows if row not in labelled]
    if blind:
        log.warning("%s has no labels of the %s split: %s", release.path, args.split, _BLIND % len(blind))
    plan = matrix.plan(rows, fill(args), settings)
    steps = plan | {step.name: step for step in (_predictions(row, plan, args) for row in blind)}
    done = run_plan(steps, release, args)
    measured, own = measure(labelled, plan, release, args.split)
    report = side_by_side(matrix, release, measured, steps, done, settings)
    report["images"] = list(map(str, draw_figures(measured, args.out)))
    # Other reasons stand under the tables.
    report["notes"] = [_SAMPLE_IS] if args.release == SAMPLE else []
    report["predictions"] = [
        {"table": row.table, "row": row.name, "split": row.split or args.split, "file": str(file)}
        for row in blind
        for file in (_predictions(row, plan, args).output / "predictions").iterdir()
    ]
    report["trainings"] = trainings(plan)
    report["page"] = str(write_page(args.html or args.out / PAGE, report, own))
    print_result(report, text(report), args.format)


def _show(matrix: Matrix, rows: Sequence[Row], settings: Settings, args: argparse.Namespace) -> None:
    """Print the commands of ``--dry-run``, and those that measure."""
    release = open_release(args.release) if args.release.exists() else None
    if release:
        rows = runnable(rows, release, args)
        labelled = [row for row in rows if is_labelled(row, release, args.split)]
    else:
        rows = [row for row in rows if not (args.scratch and row.official_negatives)]
        labelled = [row for row in rows if row.split or args.split != "test"]
    plan = matrix.plan(rows, fill(args), settings)
    if len(labelled) < len(rows):
        log.warning(_BLIND, len(rows) - len(labelled))
    before = [sample_command(args.release)] if args.release == SAMPLE and not release else []
    commands = [*before, *(step.command for step in plan.values())]
    commands += [_last_command(row, plan, args, row in labelled) for row in rows]
    if args.format == "text" and not before:  # nothing is known of a sample that is still to be built
        of = release.path if release else "the paper's collection"
        print("\n".join(f"# {line}" for line in [f"{of}, by formula:", *plan_table(plan, release).splitlines()]))
    print(printed(commands, args))


def _last_command(row: Row, plan: Mapping[str, Step], args: argparse.Namespace, labelled: bool) -> list[str]:
    """The command that measures a row's run as the report does, or writes its predictions."""
    if not labelled:
        return _predictions(row, plan, args).command
    some = [*["--queries", row.queries] * bool(row.queries), *["--qrels-config", row.qrels] * bool(row.qrels)]
    return ["baselines", "evaluate", *_of_row(row, args), *some, str(plan[row.step].output)]


def _predictions(row: Row, plan: Mapping[str, Step], args: argparse.Namespace) -> Step:
    """The step that exports a row's run as the official JSON, which a submission consists of."""
    run, split = plan[row.step].output, row.split or args.split
    out = args.out / "predictions" / f"table{row.table}.{row.name}.{split}"
    words = ["--release", str(args.release), *["--set", row.set] * (row.set != "main"), "--format", "official"]
    command = ["builders", "export", *words, "--runs-only", "--run", str(run), "--out", str(out)]
    return Step(f"predictions.table{row.table}.{row.name}", command, out, (row.step,))


def _of_row(row: Row, args: argparse.Namespace) -> list[str]:
    set_words = ["--set", row.set] if row.set != "main" else []
    return ["--release", str(args.release), *set_words, "--split", row.split or args.split]
