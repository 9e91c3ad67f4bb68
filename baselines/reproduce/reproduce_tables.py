"""Reproduce the paper's tables, and print the published scores.

The command covers Tables 4 to 9 and Figure 2. `builders check` prints Table 3, and `errors --tally` prints Table 10.
baselines/reproduce/matrix.toml lists the rows with steps and published scores. Rows can share steps. A step is skipped
if its output exists and was made from the same input by the same command. A new version of the code does not make a
step run again; use another --out for that.

Every score has a mark, and a 95 % interval over queries. The mark is OK, close or off if data and models are those of
the published score. Otherwise the mark is "not comparable", with the reasons. An HTML page (reproduce.html under --out,
or --html FILE) shows the tables, Figure 2, the training curves and the leaderboard.

Without --release, the command builds the embedded sample (build/sample) and runs as with --small. Scores on the sample
only show that every step runs. --small means --scratch with the settings of baselines/settings/sample.toml. On two
cores and some thousand passages, --small takes minutes.

--scratch uses recipes without pretrained weights: a small BERT is first pretrained on the collection. --settings FILE
(TOML) changes recipes and commands, for example for a small machine. A section [RECIPE] changes one recipe, ["*"]
changes all recipes, and [options.VERB] changes the options of a command. baselines/settings has examples.

--table 6 needs the configs that `builders similar` writes. --figure 2 needs the configs of `builders annotate merge`.
Figures are also drawn as PNG and SVG under --out.

--extrapolation [restrain-14K resttest] runs BM25, DE and CE (or another --row) on the sets that `builders add` drew.
The report has the scores for interpolation and for extrapolation, and the gap between the two scores.

--pool trains the nine models of the paper's pool (Section 2.3, A.1): BM25 and four dual-encoders, whose top 50 are the
candidates, and four re-rankers, whose mean score selects the best 5 of each query for people to judge.

--leaderboard [RUN ...] prints the scores of baselines/leaderboard.toml with their sources. The column "trained" shows
whether a model declares training on data of DuReader. The whole collection and the sample of 100,001 passages (C-MTEB's
DuRetrieval) have separate tables. Each RUN is measured on --split of --release, with 95 % intervals. A run on another
collection has a separate table.

--dry-run prints the estimated cost of each step as comments, and then the commands. Costs are rows, tokens, operations
and bytes on disk. Training takes 6 x parameters x tokens operations. Encoding and re-ranking take 2 x parameters x
tokens. If the release does not exist, the sizes are those of the paper's collection.

examples:
  python -m baselines reproduce
  python -m baselines reproduce --small --release build/demo
  python -m baselines reproduce --table 4 --row bm25
  python -m baselines reproduce --table 7 --release DIR --dry-run
  python -m baselines reproduce --table 6 --figure 2 --release DIR
  python -m baselines reproduce --pool --release DIR
  python -m baselines reproduce --extrapolation resttest --release DIR
  python -m baselines reproduce --leaderboard --searched sample --top 10 --format markdown
  python -m baselines reproduce --release build/sample --leaderboard build/runs/bm25.dev.run.gz
"""

import argparse
from collections.abc import Mapping, Sequence
from pathlib import Path

from msgspec.structs import replace

from baselines.reproduce.costs import plan_table
from baselines.reproduce.drawings import draw_figures
from baselines.reproduce.matrix import Matrix, Row, Step, fill, is_labelled, read_matrix, runnable
from baselines.reproduce.report import measure, side_by_side, trainings
from baselines.reproduce.report_page import PAGE, write_page
from baselines.reproduce.report_text import text
from baselines.reproduce.step_settings import Settings, read_settings
from baselines.reproduce.steps import call, printed, run_plan, sample_command
from builders.core.command import whole_number
from builders.core.errors import log
from builders.core.tables import print_result
from builders.store.reader import open_release

SAMPLE = Path("build/sample")
_POOL = "pool"  # the step of matrix.toml that selects the pool's best passages
SMALL = Path(__file__).resolve().parents[1] / "settings" / "sample.toml"
_SAMPLE_IS = "this is the embedded sample, written for this project: scores only show that every step runs"
_BLIND = "the official labels were never published; %d rows get files of predictions instead of scores"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--table", type=int, nargs="+", metavar="N", help="tables of the paper (default: all)")
    parser.add_argument("--figure", type=int, nargs="+", metavar="N", help="figures of the paper (default: all)")
    parser.add_argument("--row", metavar="NAME", help="rows with this name (default: all)")
    parser.add_argument(
        "--release", type=Path, metavar="DIR", help=f"release (default: {SAMPLE} with --small, built if missing)"
    )
    parser.add_argument("--split", default="dev", help="split to measure rows without a split on (default: dev)")
    parser.add_argument("--scratch", action="store_true", help="use recipes without pretrained weights")
    parser.add_argument("--small", action="store_true", help="use --scratch and the settings for the embedded sample")
    parser.add_argument("--settings", type=Path, metavar="FILE", help="TOML file that changes recipes and options")
    runs = Path("build/runs")
    parser.add_argument("--out", type=Path, default=runs, metavar="DIR", help=f"output directory (default: {runs})")
    parser.add_argument("--html", type=Path, metavar="FILE", help=f"file of the HTML page (default: OUT/{PAGE})")
    parser.add_argument(
        "--one-process",
        action="store_true",
        help="run every step in this process; libraries load once, but memory is not released between steps",
    )
    parser.add_argument(
        "--processes", type=whole_number(1), default=1, metavar="N", help="processes of a training (default: 1)"
    )
    parser.add_argument(
        "--extrapolation",
        nargs="*",
        metavar="NAME",
        help="compare interpolation with extrapolation on these sets (default: all such sets of the release)",
    )
    parser.add_argument(
        "--pool", action="store_true", help="train the nine models of the pool, pool their passages, select the best"
    )
    parser.add_argument(
        "--dry-run", action="store_true", help="print the commands and the estimated costs of their steps; run nothing"
    )
    parser.add_argument(
        "--leaderboard",
        type=Path,
        nargs="*",
        metavar="RUN",
        help="print the published scores, and the scores of each RUN on --release; run nothing",
    )
    parser.add_argument("--searched", choices=["whole", "sample"], help="leaderboard: only this collection")
    parser.add_argument("--top", type=whole_number(1), metavar="N", help="leaderboard: only the N best of each table")
    parser.add_argument(
        "--format",
        choices=["text", "json", "markdown"],
        default="text",
        help="format of the result; markdown only with --leaderboard (default: text)",
    )


def run(args: argparse.Namespace) -> None:
    if args.leaderboard is not None:
        from baselines.reproduce.leaderboard import print_leaderboard

        print_leaderboard(args)
        return
    if args.release is None:
        args.release = SAMPLE
        if not (args.small or args.scratch or args.settings):
            log.info("no --release: using the embedded sample and --small (add --release %s to omit --small)", SAMPLE)
            args.small = True
    if args.small:
        args.scratch, args.settings = True, args.settings or SMALL
    if args.extrapolation is not None:
        from baselines.reproduce.extrapolation_table import reproduce_extrapolation

        reproduce_extrapolation(args)
        return
    matrix = read_matrix()
    rows = matrix.select(args.table, args.row, args.figure, pool=args.pool)
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
    plan = _plan(matrix, rows, settings, args)
    steps = plan | {step.name: step for step in (_predictions(row, plan, args) for row in blind)}
    done = run_plan(steps, release, args)
    measured, own = measure(labelled, plan, release, args.split)
    report = side_by_side(matrix, release, measured, steps, done, settings) | {
        "images": list(map(str, draw_figures(measured, args.out))),
        "notes": [
            *[_SAMPLE_IS] * (args.release == SAMPLE),
            *[
                f"the pool's best passages, for `builders annotate export`: {plan[_POOL].output}"
                for _ in range(args.pool)
            ],
        ],
        "predictions": [
            {"table": row.table, "row": row.name, "split": row.split or args.split, "file": str(file)}
            for row in blind
            for file in (_predictions(row, plan, args).output / "predictions").iterdir()
        ],
        "trainings": trainings(plan),
    }
    report["page"] = str(write_page(args.html or args.out / PAGE, report, own))
    print_result(report, text(report), args.format)


def _show(matrix: Matrix, rows: Sequence[Row], settings: Settings, args: argparse.Namespace) -> None:
    """Print the commands of ``--dry-run``: first the steps, then the commands that measure."""
    release = open_release(args.release) if args.release.exists() else None
    if release:
        rows = runnable(rows, release, args)
        labelled = [row for row in rows if is_labelled(row, release, args.split)]
    else:
        rows = [row for row in rows if not (args.scratch and row.official_negatives)]
        labelled = [row for row in rows if row.split or args.split != "test"]
    plan = _plan(matrix, rows, settings, args)
    if len(labelled) < len(rows):
        log.warning(_BLIND, len(rows) - len(labelled))
    before = [sample_command(args.release)] if args.release == SAMPLE and not release else []
    last = (_last_command(row, plan, args, row in labelled) for row in rows)
    if args.format == "text" and not before:  # before the sample is built, its sizes are unknown
        costed = release.path if release else "the paper's collection"
        print("\n".join(f"# {line}" for line in [f"{costed}, by formula:", *plan_table(plan, release).splitlines()]))
    print(printed([*before, *(step.command for step in plan.values()), *last], args))


def _plan(matrix: Matrix, rows: Sequence[Row], settings: Settings, args: argparse.Namespace) -> dict[str, Step]:
    """Return the steps behind the rows, and with --pool the step that selects the pool's best passages."""
    steps = [*rows, *([replace(rows[0], step=_POOL)] if args.pool else ())]
    return matrix.plan(steps, fill(args), settings)


def _last_command(row: Row, plan: Mapping[str, Step], args: argparse.Namespace, labelled: bool) -> list[str]:
    """Return the command that measures a row's run, or that exports predictions if the run's split has no labels."""
    if not labelled:
        return _predictions(row, plan, args).command
    words = ["--release", str(args.release), *_set_of(row), "--split", row.split or args.split]
    words += [*["--queries", row.queries] * bool(row.queries), *["--qrels-config", row.qrels] * bool(row.qrels)]
    return ["baselines", "evaluate", *words, str(plan[row.step].output)]


def _predictions(row: Row, plan: Mapping[str, Step], args: argparse.Namespace) -> Step:
    """Return the step that exports a row's run as the official JSON for a submission."""
    run, split = plan[row.step].output, row.split or args.split
    name = f"{'pool' if row.pool else f'table{row.table}'}.{row.name}"
    out = args.out / "predictions" / f"{name}.{split}"
    command = ["builders", "export", "--release", str(args.release), *_set_of(row), "--format", "official"]
    command += ["--runs-only", "--run", str(run), "--out", str(out)]
    return Step(f"predictions.{name}", command, out, (row.step,))


def _set_of(row: Row) -> list[str]:
    return ["--set", row.set] if row.set != "main" else []
