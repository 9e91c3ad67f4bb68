"""Run the steps behind rows of the paper's tables, measure the rows, and report them."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from baselines.reproduce.drawings import draw_figures
from baselines.reproduce.paper_tables import select_pool
from baselines.reproduce.report import measure_rows, report_scores, training_curves
from baselines.reproduce.report_page import PAGE, write_page
from baselines.reproduce.report_text import report_text
from baselines.reproduce.run_steps import run_step, run_steps
from baselines.reproduce.select_rows import RowSelection, TableRow, is_labelled, runnable_rows, select_rows
from baselines.reproduce.steps import Step, Steps
from baselines.train.recipe import Recipe
from baselines.train.recipe_costs import CollectionSizes, ModelCost, call_cost
from builders.core.errors import InputError, log
from builders.core.results import Report, Table
from builders.core.tables import text_table
from builders.store.reader import Release, open_release

_CHECKOUT = Path(__file__).resolve().parents[2]
_SAMPLE_IS = "this is the embedded sample, written for this project: scores only show that every step runs"
_BLIND = "the official labels were never published; %d rows get files of predictions instead of scores"
_COLUMNS = ("table", "figure", "row", "title", "metric", "ours", "low", "high", "published", "published_by", "mark")


def show_plan(do: Steps, selection: RowSelection, *, is_sample: bool, processes: int) -> Report:
    """Return the commands of the selected rows and their costs: first the steps, then the commands that measure.

    The JSON value has, for each command, the words after ``python -m``. Rows without judgments have commands that
    export predictions instead. ``is_sample``: the release is the embedded sample. ``processes``: of each training.
    """
    rows = select_rows(do, selection)
    release = open_release(do.release) if do.release.exists() else None
    if release:
        rows = runnable_rows(rows, selection, release, do)
    else:
        # With --scratch, the rows of the official recipes cannot run on any release.
        rows = [row for row in rows if not (do.variant and row.official_negatives)]
    # Each of these calls records steps in ``do``.
    runs = {row: row.run() for row in rows}
    if selection.pool:
        select_pool(do)
    steps = list(do.recorded.values())
    blind_rows = 0
    for row, run in runs.items():
        if is_labelled(row, release, do.split):
            steps.append(_evaluation(do, row, run))
        else:
            steps.append(_predictions(do, row, run))
            blind_rows += 1
    if blind_rows:
        log.warning(_BLIND, blind_rows)
    lines = []
    if is_sample and not release:  # before the sample is built, its sizes are unknown
        steps.insert(0, _sample_step(do.release))
    else:
        collection = release.path if release else "the paper's collection"
        costs = f"{collection}, by formula:\n{_cost_table(do.recorded, release)}"
        lines += [f"# {line}" for line in costs.splitlines()]
    lines += [step.shell_line(processes) for step in steps]
    return Report([step.words() for step in steps], "\n".join(lines))


def run_tables(
    do: Steps, selection: RowSelection, *, is_sample: bool, html: Path | None, one_process: bool, processes: int
) -> Report:
    """Run the missing steps of the selected rows, measure the rows, and write the page.

    Args:
        do: records the steps. It has recorded none yet.
        selection: the tables, figures and row that the user names.
        is_sample: the release is the embedded sample, which is built if it is missing.
        html: file of the page (None: reproduce.html in ``do.out``).
        one_process: run every step in this process.
        processes: number of processes of a training.
    """
    rows = select_rows(do, selection)
    if is_sample and not do.release.exists():
        log.info("%s is missing: building the embedded sample", do.release)
        run_step(_sample_step(do.release), here=one_process)
    release = open_release(do.release)
    # Each call of row.run records the steps behind the row in ``do``.
    runs = {row: row.run() for row in runnable_rows(rows, selection, release, do)}
    notes = [_SAMPLE_IS] if is_sample else []
    if selection.pool:
        notes.append(f"the pool's best passages, for `builders annotate export`: {select_pool(do).output}")

    # Without judgments, the result of a row is a file of predictions for a submission.
    labelled: dict[TableRow, Step] = {}
    predictions: dict[TableRow, Step] = {}
    for row, run in runs.items():
        if is_labelled(row, release, do.split):
            labelled[row] = run
        else:
            predictions[row] = _predictions(do, row, run)
    if predictions:
        log.warning("%s has no labels of the %s split: %s", release.path, do.split, _BLIND % len(predictions))
    steps = do.recorded | {step.name: step for step in predictions.values()}
    step_runs = run_steps(steps, do.out, one_process=one_process, processes=processes)

    measured_rows, entries = measure_rows(labelled, release, do.split)
    report = {
        "release": str(release.path),
        **report_scores(measured_rows, steps, step_runs, do.settings),
        "images": [str(path) for path in draw_figures(measured_rows, do.out)],
        "notes": notes,
        "predictions": _prediction_files(predictions, do.split),
        "trainings": training_curves(steps),
    }
    report["page"] = str(write_page(html or do.out / PAGE, report, entries))
    return Report(report, lambda: report_text(report), lambda: [_table(report["rows"])])


def _cost_table(steps: Mapping[str, Step], release: Release | None) -> str:
    """Return the costs of the steps as a table, with the sum of the costs. Unknown costs are dashes.

    Without a release, the costs are those of the paper's collection.
    """
    recipes: dict[str, Recipe] = {}  # by name, and by the path of the checkpoint
    for step in steps.values():
        if step.verb == "train":
            recipe = step.recipe()
            recipes |= {str(step.output): recipe, recipe.name: recipe}
    costs = {}
    for name, step in steps.items():
        try:
            costs[name] = call_cost(step.verb, step.arguments, CollectionSizes(release), recipes)
        except (InputError, KeyError):  # the release, or the paper's tables, lack the config that the step reads
            costs[name] = ModelCost(0)
    operations = sum(cost.operations or 0 for cost in costs.values())
    disk_bytes = sum(cost.disk or 0 for cost in costs.values())
    costs["all"] = ModelCost(0, None, operations, disk_bytes)
    lines = []
    for name, cost in costs.items():
        rows = f"{cost.rows:,}" if cost.rows else "-"
        tokens = f"{cost.tokens:,}" if cost.tokens else "-"
        operations_text = f"{cost.operations:.1e}" if cost.operations else "-"
        disk_text = f"{cost.disk / 1e9:.3g} GB" if cost.disk else "-"
        lines.append([name, rows, tokens, operations_text, disk_text])
    return text_table(["step", "rows", "tokens", "operations", "disk"], lines)


def _sample_step(release: Path) -> Step:
    """Return the step that builds the embedded sample."""
    raw_folder = _CHECKOUT / "builders" / "sample"
    # A command that is printed for people should be short.
    if raw_folder.is_relative_to(Path.cwd()):
        raw_folder = raw_folder.relative_to(Path.cwd())
    return Step("sample", "release", {"raw": [str(raw_folder)], "out": str(release)}, release)


def _evaluation(do: Steps, row: TableRow, run: Step) -> Step:
    """Return the step that measures a row's run. It is only printed, so its output is the run, which it reads."""
    arguments = _release_and_set(do, row) | {"split": row.split or do.split, "runs": [str(run.output)]}
    if row.queries:
        arguments["queries"] = row.queries
    if row.qrels:
        arguments["qrels_config"] = row.qrels
    return Step(f"evaluation.{row.name}", "evaluate", arguments, run.output, (run.name,))


def _predictions(do: Steps, row: TableRow, run: Step) -> Step:
    """Return the step that exports a row's run as the official JSON for a submission."""
    # For example table4.bm25.
    name = f"{row.selector.removeprefix('--').replace(' ', '')}.{row.name}"
    out = do.out / "predictions" / f"{name}.{row.split or do.split}"
    arguments = _release_and_set(do, row) | {"format": "official", "runs_only": True}
    arguments |= {"run": [str(run.output)], "out": str(out)}
    return Step(f"predictions.{name}", "export", arguments, out, (run.name,))


def _release_and_set(do: Steps, row: TableRow) -> dict[str, Any]:
    """Return the arguments ``release`` and, unless it is main, ``set`` of a verb that reads a row's run."""
    arguments = {"release": str(do.release)}
    if row.set != "main":
        arguments["set"] = row.set
    return arguments


def _prediction_files(predictions: Mapping[TableRow, Step], split: str) -> list[dict[str, Any]]:
    """Return the files of a submission as JSON values: ``table`` (None for the pool), ``row``, ``split``, ``file``.

    ``predictions`` has the finished step of each row that exports its run.
    """
    files = []
    for row, step in predictions.items():
        for path in (step.output / "predictions").iterdir():
            files.append({"table": row.table, "row": row.name, "split": row.split or split, "file": str(path)})
    return files


def _table(rows: Sequence[Mapping[str, Any]]) -> Table:
    """Return all scores of a report as one table, in percent."""
    cells = []
    for row in rows:
        low, high = row["interval"]
        values = dict(row) | {"low": low, "high": high}
        cells.append([values.get(column) for column in _COLUMNS])
    return Table(_COLUMNS, cells, text_columns=4)
