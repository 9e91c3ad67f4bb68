"""The report of ``reproduce`` as JSON values: our scores, the published scores, intervals and marks."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
from msgspec import Struct, to_builtins

from baselines.core.checkpoint import TRAINING
from baselines.measure.comparison import SignificanceRule
from baselines.measure.measures import PAPER, measure_run, values_of
from baselines.measure.qrels import Qrels, release_qrels
from baselines.measure.significance import Interval, holm
from baselines.reproduce.leaderboard import Own, own_of
from baselines.reproduce.marks import NOT, nearness, other_data, other_models
from baselines.reproduce.paper_tables import Row
from baselines.reproduce.plan import Step, steps_behind
from baselines.reproduce.published_scores import PublishedScores, read_published_scores
from baselines.reproduce.step_settings import Settings
from baselines.reproduce.steps import StepRun, shell_line
from builders.core.errors import InputError, log
from builders.core.typed import read_json
from builders.store.layout import SETS
from builders.store.reader import Release
from builders.store.runs import read_run


class Reference(NamedTuple):
    """The judgments that a row is measured by: a set's split, and configs that replace its questions and judgments."""

    set: str
    split: str
    queries: str
    qrels: str


@dataclass(frozen=True)
class MeasuredRow:
    """A row with our scores (in percent, under the paper's names) and their 95 % intervals.

    Attributes:
        row: the row.
        step: the step that wrote the row's run.
        reference: the judgments of the row.
        counts: the numbers of queries, positives and passages that the row was measured on.
        by_query: the values of every query (:func:`baselines.measure.measures.measure_run`).
    """

    row: Row
    step: Step
    reference: Reference
    counts: Mapping[str, int]
    ours: dict[str, float]
    intervals: dict[str, Interval]
    by_query: pa.Table


@dataclass(frozen=True)
class FinishedPlan:
    """The steps behind the measured rows, their durations, and the settings that they ran with."""

    steps: Mapping[str, Step]
    runs: Mapping[str, StepRun]
    settings: Settings


def measure_rows(runs: Mapping[Row, Step], release: Release, split: str) -> tuple[list[MeasuredRow], list[Own]]:
    """Measure the run of each row. Also return leaderboard entries for runs of the whole split of the set main."""
    qrels_of: dict[Reference, Qrels] = {}
    measured_rows: list[MeasuredRow] = []
    entries: dict[str, Own] = {}
    for row, step in runs.items():
        reference = Reference(row.set, row.split or split, row.queries, row.qrels)
        if reference not in qrels_of:
            qrels_of[reference] = release_qrels(release, reference.split, row.set, row.queries, row.qrels)
        qrels = qrels_of[reference]
        means, by_query = measure_run(read_run(step.output), qrels)
        entry = own_of(row.title, release, reference.split, (means, by_query))
        counts = {
            "queries": len(qrels.positives),
            "positives": qrels.pairs,
            "passages": release.rows(SETS[row.set].corpus, "corpus"),
        }
        scores, intervals = entry["figures"], entry["intervals"]
        measured_rows.append(MeasuredRow(row, step, reference, counts, scores, intervals, by_query))
        if row.set == "main" and not (row.queries or row.qrels):
            entries.setdefault(step.name, entry)
    return measured_rows, list(entries.values())


def side_by_side(measured_rows: Sequence[MeasuredRow], plan: FinishedPlan, release: Release) -> dict[str, Any]:
    """Return the report of the measured rows as a JSON value, beside the published scores."""
    counts_of = {measured.reference: measured.counts for measured in measured_rows}
    sets = []
    for reference in sorted(counts_of):
        about = {"set": reference.set, "split": reference.split, "of": reference.queries, "by": reference.qrels}
        sets.append({**about, **counts_of[reference]})
    published = read_published_scores()
    rows: list[dict[str, Any]] = []
    for measured in measured_rows:
        rows += _scores_of_row(measured, plan, published)
    steps = {}
    for name, step in plan.steps.items():
        run = plan.runs[name]
        steps[name] = {
            "command": shell_line(step, run.processes),
            "seconds": run.seconds,
            "processes": run.processes,
        }
    return {
        "release": str(release.path),
        "sets": sets,
        "unit": "percent",
        "rows": rows,
        "tests": paired_tests(measured_rows),
        "steps": steps,
    }


def paired_tests(measured_rows: Sequence[MeasuredRow]) -> list[dict[str, Any]]:
    """Compare the series "after" of each system in a figure with the series "before", on the same queries.

    The paper says that the corrections of the judgments significantly improve all measures (Section 3.4). A test has
    ``figure``, ``title``, ``metric``, ``queries`` (the number of queries that both judgments have), ``difference`` and
    ``interval`` (after minus before, in percentage points), and the p-values of Student's paired t-test (``p``) and of
    the same test with Holm's correction over all tests (``corrected``).
    """
    tests: list[dict[str, Any]] = []
    series = {(each.row.figure, each.row.title, each.row.series): each for each in measured_rows if each.row.figure}
    for (figure, title, name), after in series.items():
        before = series.get((figure, title, "before"))
        if name != "after" or before is None:
            continue
        both = pc.is_in(after.by_query["query_id"], value_set=before.by_query["query_id"])
        tables = [after.by_query.filter(both).sort_by("query_id")]
        shared = pc.is_in(before.by_query["query_id"], value_set=tables[0]["query_id"])
        tables.append(before.by_query.filter(shared).sort_by("query_id"))
        if len(tables[0]) < 2:
            continue
        for metric, key in PAPER.items():
            compared = SignificanceRule().paired(*(values_of(table, key) for table in tables))
            tests.append(
                {
                    "figure": figure,
                    "title": title,
                    "metric": metric,
                    "queries": len(tables[0]),
                    "difference": round(100 * compared["difference"], 2),
                    "interval": [round(100 * end, 2) for end in compared["interval"]],
                    "p": compared["t"]["p"],
                }
            )
    for test, corrected in zip(tests, holm([test["p"] for test in tests]), strict=True):
        test["corrected"] = corrected
    return tests


def _scores_of_row(measured: MeasuredRow, plan: FinishedPlan, published: PublishedScores) -> Iterator[dict[str, Any]]:
    """Yield a JSON value for each measure of a row."""
    row = measured.row
    steps = steps_behind(plan.steps, measured.step.name)
    model_differences = other_models(steps.values(), plan.settings)

    def beside(name: str, metric: str) -> dict[str, Any]:
        """Return the published score of the table's row ``name``, and the mark of our score."""
        published_row = published.find_row(row.table, name)
        if published_row is None or metric not in published_row.scores:
            why = ["the paper prints no number"]
            return {"published": None, "published_by": None, "mark": None, "why": why}
        score, data = published_row.scores[metric], published.data[published_row.data]
        why = [*other_data(measured.counts, measured.reference.split, data), *model_differences]
        mark = NOT if why else nearness(measured.intervals[metric], score)
        return {"published": score, "published_by": f"{data.source}, {data.split}", "mark": mark, "why": why}

    published_row = published.find_row(row.table, row.name)
    like = published.find_row(row.table, row.like)
    # The scores of a similar system are only shown if they are from the split that we measure on.
    has_like = like is not None and published.data[like.data].split == measured.reference.split
    place = {"pool": True} if row.pool else {"figure": row.figure, "series": row.series} if row.figure else {}
    for metric in published_row.scores if published_row else PAPER:  # all measures if the paper prints no number
        yield {
            "table": row.table,
            **place,
            "row": row.name,
            "title": f"{row.title}, {row.series}" if row.series else row.title,
            "metric": metric,
            "ours": round(measured.ours[metric], 2),
            "interval": [round(end, 2) for end in measured.intervals[metric]],
            **beside(row.name, metric),
            "like_for_like": beside(row.like, metric) if has_like else None,
            "step": measured.step.name,
            "seconds": round(sum(plan.runs[name].seconds for name in steps), 1),
        }


class _Training(Struct):
    """The part of a ``training.json`` that the page shows."""

    losses: list[tuple[int, float]] = []
    dev: list[dict[str, float]] = []
    steps: int = 0
    seconds: float = 0.0
    device: str = ""


def training_curves(steps: Mapping[str, Step]) -> list[dict[str, Any]]:
    """Return the curves of a plan's trainings: ``losses`` as [step, loss], ``dev`` as [step, fraction] of ``measure``.

    A training with an unreadable record is skipped, with a warning.
    """
    curves = []
    for step in steps.values():
        if step.verb != "train":
            continue
        try:
            training = read_json(step.output / TRAINING, _Training)
        except (InputError, OSError) as error:
            log.warning("skipping the curve of %s: %s", step.output, error)
            continue
        metric = next((name for row in training.dev for name in row if name != "step"), "")
        dev = [[row["step"], row[metric]] for row in training.dev if "step" in row and metric in row]
        about = {"recipe": step.arguments["recipe"], "measure": metric}
        curves.append(about | to_builtins(training) | {"dev": dev})
    return curves
