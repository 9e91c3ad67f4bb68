"""The report of ``reproduce`` as JSON values: our scores, the published scores, intervals and marks."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import pyarrow as pa
from msgspec import to_builtins

from baselines.hub.training_curve import read_training_curve
from baselines.measure.comparison import compare_on_shared_queries
from baselines.measure.measures import PAPER, measure_run
from baselines.measure.qrels import Qrels, release_qrels
from baselines.measure.significance import Interval, holm_correction
from baselines.reproduce.leaderboard import Own, own_of
from baselines.reproduce.published_scores import PublishedData, PublishedRow, PublishedScores, read_published_scores
from baselines.reproduce.run_steps import StepRun
from baselines.reproduce.select_rows import TableRow
from baselines.reproduce.step_settings import StepSettings
from baselines.reproduce.steps import Step, steps_behind
from baselines.train.recipe_changes import differences_from_recipe
from builders.core.errors import InputError, log
from builders.store.layout import SETS
from builders.store.reader import Release
from builders.store.runs import read_run

OK, CLOSE, OFF, NOT = "OK", "close", "off", "not comparable"
# Options that change only speed, memory or the layout of files.
_NEUTRAL_OPTIONS = {"batch-tokens", "tokenizers", "shard-rows", "threads", "device", "cache"}
_ROUNDING = 0.005  # published scores are rounded to two decimals


class Reference(NamedTuple):
    """The judgments that a row is measured by: a set's split, and configs that replace its questions and judgments.

    ``queries`` and ``qrels`` are "" if the set's own configs are used.
    """

    set: str
    split: str
    queries: str
    qrels: str


@dataclass(frozen=True)
class MeasuredRow:
    """A row with our scores and their 95 % intervals.

    Attributes:
        row: the row.
        step: the step that wrote the row's run.
        reference: the judgments of the row.
        counts: the numbers of ``queries``, ``positives`` (pairs) and ``passages`` that the row was measured on.
        ours: our scores in percent, by the paper's names (``PAPER``). nDCG@10 and R@10 are also present.
        intervals: (low, high) in percent, by the same names.
        by_query: the values of every query (:func:`baselines.measure.measures.measure_run`).
    """

    row: TableRow
    step: Step
    reference: Reference
    counts: Mapping[str, int]
    ours: dict[str, float]
    intervals: dict[str, Interval]
    by_query: pa.Table


def measure_rows(runs: Mapping[TableRow, Step], release: Release, split: str) -> tuple[list[MeasuredRow], list[Own]]:
    """Measure the run of each row. Also return leaderboard entries for runs of the whole split of the set main.

    ``runs`` has the finished step that wrote each row's run. ``split`` is for rows without a split.
    """
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
        # The entry counts the passages of main, so it is used for main only. A run that rows share is listed once.
        if row.set == "main" and not (row.queries or row.qrels):
            entries.setdefault(step.name, entry)
    return measured_rows, list(entries.values())


def report_scores(
    measured_rows: Sequence[MeasuredRow],
    steps: Mapping[str, Step],
    step_runs: Mapping[str, StepRun],
    settings: StepSettings,
) -> dict[str, Any]:
    """Return the measured rows beside the published scores, and the steps behind the rows, as JSON values.

    Args:
        measured_rows: the rows, in the order of the report.
        steps: all recorded steps, by name.
        step_runs: the durations of the steps, by name.
        settings: the settings of the steps, which can make a score incomparable with the published score.

    Returns:
        ``sets`` (the judgments and their counts), ``unit``, ``rows`` (for each row and measure, the value of
        :func:`_scores_of_row` with the ``step`` of the run and the ``seconds`` of all steps behind it), ``tests`` (of
        :func:`paired_tests`) and ``steps`` (by name: ``command``, ``seconds``, ``processes``).
    """
    counts_of = {measured.reference: measured.counts for measured in measured_rows}
    sets = []
    for reference in sorted(counts_of):
        sets.append(
            {
                "set": reference.set,
                "split": reference.split,
                "of": reference.queries,
                "by": reference.qrels,
                **counts_of[reference],
            }
        )
    published = read_published_scores()
    rows: list[dict[str, Any]] = []
    for measured in measured_rows:
        behind = steps_behind(steps, measured.step.name)
        seconds = round(sum(step_runs[step.name].seconds for step in behind), 1)
        for scores in _scores_of_row(measured, published, other_models(behind, settings)):
            rows.append(scores | {"step": measured.step.name, "seconds": seconds})
    described_steps = {}
    for name, step in steps.items():
        run = step_runs[name]
        command = step.shell_line(run.processes)
        described_steps[name] = {"command": command, "seconds": run.seconds, "processes": run.processes}
    tests = paired_tests(measured_rows)
    return {"sets": sets, "unit": "percent", "rows": rows, "tests": tests, "steps": described_steps}


def paired_tests(measured_rows: Sequence[MeasuredRow]) -> list[dict[str, Any]]:
    """Compare the series "after" of each system in a figure with the series "before", on the same queries.

    The paper says that the corrections of the judgments significantly improve all measures (Section 3.4). A test has
    ``figure``, ``title``, and the values of :func:`baselines.measure.comparison.compare_on_shared_queries`.
    ``corrected`` is the p-value with Holm's correction over all tests.
    """
    tests: list[dict[str, Any]] = []
    bars = {}
    for measured in measured_rows:
        if measured.row.figure:
            bars[measured.row.figure, measured.row.title, measured.row.series] = measured
    for (figure, title, series), after in bars.items():
        before = bars.get((figure, title, "before"))
        if series == "after" and before is not None:
            for test in compare_on_shared_queries(after.by_query, before.by_query, PAPER):
                tests.append({"figure": figure, "title": title, **test})
    for test, corrected in zip(tests, holm_correction([test["p"] for test in tests]), strict=True):
        test["corrected"] = corrected
    return tests


def _scores_of_row(
    measured: MeasuredRow, published: PublishedScores, model_differences: Sequence[str]
) -> list[dict[str, Any]]:
    """Return a JSON value for each measure of a row. ``model_differences`` are reasons against a comparison.

    ``ours`` and ``published`` are in percent. ``why`` has the reasons for a ``mark`` "not comparable". If the paper
    prints no number, ``published``, ``published_by`` and ``mark`` are None, and ``why`` says so. ``like_for_like`` has
    the same four keys for the similar system of ``PublishedRow.like``, or is None.
    """
    row = measured.row

    def beside(published_row: PublishedRow, metric: str) -> dict[str, Any]:
        """Return a published score and the mark of our score."""
        if metric not in published_row.scores:
            why = ["the paper prints no number"]
            return {"published": None, "published_by": None, "mark": None, "why": why}
        score = published_row.scores[metric]
        data = published.data[published_row.data]
        why = [*other_data(measured.counts, measured.reference.split, data), *model_differences]
        mark = NOT if why else rate_nearness(measured.intervals[metric], score)
        return {"published": score, "published_by": f"{data.source}, {data.split}", "mark": mark, "why": why}

    like = published.table[str(row.table)][row.like] if row.like else None
    # The scores of a similar system are only shown if they are from the split that we measure on.
    if like is not None and published.data[like.data].split != measured.reference.split:
        like = None
    location: dict[str, Any] = {"table": row.table}
    if row.figure:
        location["figure"] = row.figure
        location["series"] = row.series
    elif not row.table:
        location["pool"] = True
    scores = []
    for metric in row.scores or PAPER:  # all measures if the paper prints no number
        scores.append(
            {
                **location,
                "row": row.name,
                "title": f"{row.title}, {row.series}" if row.series else row.title,
                "metric": metric,
                "ours": round(measured.ours[metric], 2),
                "interval": [round(end, 2) for end in measured.intervals[metric]],
                **beside(row, metric),
                "like_for_like": beside(like, metric) if like else None,
            }
        )
    return scores


def rate_nearness(interval: Interval, published: float) -> str:
    """Return OK if the published score lies in our 95 % interval, close if in an interval twice as wide, else off."""
    low, high = interval
    half_width = (high - low) / 2
    if low - _ROUNDING <= published <= high + _ROUNDING:
        return OK
    if low - half_width - _ROUNDING <= published <= high + half_width + _ROUNDING:
        return CLOSE
    return OFF


def other_data(ours: Mapping[str, int], split: str, published: PublishedData) -> list[str]:
    """Describe the differences between our data and the data of the published score. Empty: the data are the same.

    ``ours`` has ``MeasuredRow.counts``. ``split`` is the split that we measure on.
    """
    differences = []
    if split != published.split:
        differences.append(f"measured on {split}, published on {published.split}")
    for key in ("passages", "queries", "positives"):
        theirs = getattr(published, key)
        # Different splits always have different queries, so only their passages are compared.
        if theirs and ours[key] != theirs and (key == "passages" or split == published.split):
            differences.append(f"{ours[key]:,} {key}, not {theirs:,}")
    return differences


def other_models(steps: Iterable[Step], settings: StepSettings) -> list[str]:
    """Describe the changed recipes and options because of which a row's scores are not those of the paper's models.

    ``steps`` are all steps behind the row. Empty: nothing is changed that changes the models.
    """
    differences: list[str] = []
    for step in steps:
        if step.verb == "train":
            recipe = step.arguments["recipe"]
            differences += differences_from_recipe(recipe, settings.of_recipe(recipe))
        for option, value in settings.options.get(step.verb, {}).items():
            if option not in _NEUTRAL_OPTIONS:
                is_flag = value is True
                differences.append(f"{step.verb} --{option}" if is_flag else f"{step.verb} --{option} {value}")
    return list(dict.fromkeys(differences))


def training_curves(steps: Mapping[str, Step]) -> list[dict[str, Any]]:
    """Return the curves of the trainings among the steps as JSON values. An unreadable record is skipped and logged.

    A curve has ``recipe`` and the fields of :class:`baselines.hub.training_curve.TrainingCurve`.
    """
    curves = []
    for step in steps.values():
        if step.verb == "train":
            try:
                curve = read_training_curve(step.output)
                curves.append({"recipe": step.arguments["recipe"], **to_builtins(curve)})
            except (InputError, OSError) as error:
                log.warning("skipping the curve of %s: %s", step.output, error)
    return curves
