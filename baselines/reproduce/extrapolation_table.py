"""``reproduce --extrapolation``: compare scores on queries near the training queries and far from them.

The method is that of extrapolate-eval (Zhan et al., arXiv 2204.11447). ``builders add`` makes the configs.
ReSTrain trains every system twice: on questions near the test queries (interpolation) and on other questions
(extrapolation). The two models are measured on the same test queries. ReSTTest divides the questions into buckets. It
trains every system once for each bucket, without the bucket's questions. Extrapolation is measured on the bucket's test
queries, interpolation on all other test queries. Scores are means over the buckets. BM25 learns from no questions, so
its gap shows how much harder the test queries of extrapolation are.
"""

import re
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from baselines.measure.measures import PAPER, paper_by_query
from baselines.measure.qrels import release_qrels
from baselines.measure.significance import LEVEL, RESAMPLES
from baselines.reproduce.run_steps import run_steps
from baselines.reproduce.select_rows import RowSelection, TableRow, runnable_rows, select_rows
from baselines.reproduce.steps import Step, Steps, inputs_of
from baselines.train.recipe import read_recipe
from builders.core.errors import InputError
from builders.core.results import Report, Table
from builders.core.tables import text_table
from builders.store.manifest import read_stats
from builders.store.reader import Release, open_release
from builders.store.runs import read_run

ROWS = ("bm25", "de-bm25-neg", "ce-bm25-neg-on-bm25")  # measured by default
KINDS = ("interpolation", "extrapolation")
RESTTEST = "resttest"
_RESTRAIN = re.compile(r"(restrain-[^-]+)-interpolation")
Floats = npt.NDArray[np.float64]


class FoldSide(NamedTuple):
    """One side of a fold, interpolation or extrapolation: training questions and test judgments.

    Attributes:
        training_config: the config of the training questions.
        qrels_config: the config of the test judgments, or "" for the release's qrels.
        test_split: the split of the test judgments.
    """

    training_config: str
    qrels_config: str
    test_split: str


class Fold(NamedTuple):
    """The two sides that are compared. ReSTrain has one fold, ReSTTest one for each bucket."""

    interpolation: FoldSide
    extrapolation: FoldSide


ValuesByQuery = Mapping[str, Floats]  # query id -> the paper's measures, shape (measures,)
# For interpolation and for extrapolation, in the order of KINDS.
FoldValues = Sequence[ValuesByQuery]


class StepsOnQuestions(Steps):
    """Steps whose trainings read only the training questions of a config.

    A training on questions is repeated for the config, and so is every step that uses the checkpoint. Other steps are
    shared with ``shared``: BM25, masked language models, and the negatives of BM25.

    Attributes:
        config: the config of training questions, for example restrain-14K-interpolation.
        repeated: names of the steps that are recorded for this config alone.
    """

    def __init__(self, shared: Steps, config: str) -> None:
        super().__init__(shared.release, shared.out, shared.split, settings=shared.settings)
        self.variant = shared.variant
        self.recorded = shared.recorded
        self.config = config
        self.repeated: set[str] = set()

    def __call__(self, verb: str, *, out: str, after: Sequence[Step] = (), **arguments: Any) -> Step:
        # The pretraining of a masked language model reads passages only.
        # A step is repeated if it learns from questions, or if it reads the output of a repeated step.
        is_learning = verb == "train" and read_recipe(arguments["recipe"]).model.kind != "mlm"
        inputs = [step for value in arguments.values() for step in inputs_of(value)]
        is_reading = any(step.name in self.repeated for step in inputs)
        if is_learning:
            arguments["set"] = [f"data.set={self.config}", *arguments.get("set", ())]
            for start in after:
                # Otherwise the recipe finds its starting checkpoint itself, because that has its usual name.
                if start.name in self.repeated:
                    arguments["start"] = start
            # Beside the other checkpoints, where recipes look for starting checkpoints.
            out = f"{out}.{self.config}"
        elif is_reading:
            # The folder's name has the config already.
            out = f"{self.config}/{out.replace(f'.{self.config}', '')}"
        if is_learning or is_reading:
            self.repeated.add(out)
        return super().__call__(verb, out=out, after=after, **arguments)


def report_extrapolation(
    do: Steps,
    selection: RowSelection,
    names: Sequence[str],
    *,
    dry_run: bool,
    one_process: bool,
    processes: int,
) -> Report:
    """Run the missing steps and return the report. Raises :class:`InputError` if the release lacks the sets ``names``.

    ``names`` are for example restrain-14K and resttest. Empty: all sets of the release. With ``dry_run``, return the
    commands of the steps.
    """
    release = open_release(do.release)
    folds_by_set = _folds_by_set(release, do.split, names)
    rows = runnable_rows(_rows(do, selection), selection, release, do)
    row_names = {row.name for row in rows}
    training_configs: dict[str, None] = {}  # a set that keeps the order
    for folds in folds_by_set.values():
        for fold in folds:
            training_configs |= dict.fromkeys(side.training_config for side in fold)

    # Every training config has its own trainings, so the steps behind each row are recorded once per config.
    runs: dict[tuple[str, str], Step] = {}  # by the name of the row and the training config
    for config in training_configs:
        for row in _rows(StepsOnQuestions(do, config), selection):
            if row.name in row_names:
                runs[row.name, config] = row.run()
    if dry_run:
        steps = do.recorded.values()
        return Report([step.words() for step in steps], "\n".join(step.shell_line(processes) for step in steps))
    run_steps(do.recorded, do.out, one_process=one_process, processes=processes)

    figures = []
    for set_name, folds in folds_by_set.items():
        for row in rows:
            fold_values = []
            for fold in folds:
                fold_values.append([_values(release, runs[row.name, side.training_config], side) for side in fold])
            figures += _figures(set_name, row, fold_values)
    report = {"release": str(release.path), "split": do.split, "unit": "percent", "rows": figures}
    return Report(report, lambda: report_as_text(report), lambda: [_table(figures)])


def _rows(do: Steps, selection: RowSelection) -> list[TableRow]:
    """Return the selected rows that measure whole splits of the set main: those of ``ROWS`` if nothing is named.

    Raises :class:`InputError` if no row remains.
    """
    has_named_rows = bool(selection.tables or selection.row)
    rows = []
    for row in select_rows(do, selection):
        # Rows with questions or judgments of their own cannot be measured with the sets' judgments.
        has_own_data = row.split or row.queries or row.qrels or row.figure
        is_wanted = has_named_rows or row.name in ROWS
        if row.set == "main" and not has_own_data and is_wanted:
            rows.append(row)
    if not rows:
        raise InputError("--extrapolation: no row measures the main set; name another --row or --table")
    return rows


def _folds_by_set(release: Release, split: str, set_names: Sequence[str]) -> dict[str, list[Fold]]:
    """Return the release's folds for the split's queries, by the name of the set (``restrain-SIZE``, ``resttest``).

    Raises :class:`InputError` if the release has no such set, or lacks one of ``set_names``.
    """
    stats = read_stats(release.path).get("extrapolation", {})
    configs = {config for config, _ in release.splits()}
    query_ids = release_qrels(release, split).positives.keys()
    folds_by_set: dict[str, list[Fold]] = {}
    bucket_folds = []
    for config in sorted(configs & stats.keys(), key=_numbers_in):
        match = _RESTRAIN.fullmatch(config)
        config_stats = stats[config]
        # The statistics of ReSTrain are an object, those of ReSTTest a list. "test" has names of splits: "dev+test".
        is_tested = isinstance(config_stats, dict) and split in config_stats["test"].split("+")
        if match and is_tested and f"{match[1]}-extrapolation" in configs:
            near = FoldSide(config, "", split)
            far = FoldSide(f"{match[1]}-extrapolation", "", split)
            folds_by_set[match[1]] = [Fold(near, far)]
        elif config.startswith(f"{RESTTEST}-"):
            # The config has training questions, and the two sides of the test queries as splits of their own.
            near = FoldSide(config, config, KINDS[0])
            far = FoldSide(config, config, KINDS[1])
            # The statistics of ReSTTest do not name the split that its queries were drawn from.
            if release_qrels(release, KINDS[0], qrels=config).positives.keys() <= query_ids:
                bucket_folds.append(Fold(near, far))
    if bucket_folds:
        folds_by_set[RESTTEST] = bucket_folds
    if not folds_by_set or not set(set_names) <= folds_by_set.keys():
        expected_sets = " and ".join(set_names) or "sets for interpolation and extrapolation"
        other_sets = f"; it has {', '.join(folds_by_set)}" if folds_by_set else ""
        raise InputError(
            f"has no {expected_sets} of the {split} queries{other_sets}; `python -m builders add` makes these sets",
            path=release.path,
        )
    return {name: folds for name, folds in folds_by_set.items() if not set_names or name in set_names}


def _numbers_in(config: str) -> list[int]:
    """Return the numbers in a config's name, by which configs are sorted: resttest-2 comes before resttest-10."""
    return [int(digits) for digits in re.findall(r"\d+", config)] or [0]


def _values(release: Release, step: Step, side: FoldSide) -> dict[str, Floats]:
    """Return the paper's measures of every test query of a run, as fractions, by query id.

    ``step`` has written the run.
    """
    qrels = release_qrels(release, side.test_split, qrels=side.qrels_config)
    values = np.array(paper_by_query(read_run(step.output).rankings, qrels))
    return dict(zip(qrels.positives, values, strict=True))


def _figures(set_name: str, row: TableRow, folds: Sequence[FoldValues]) -> list[dict[str, Any]]:
    """Return a system's scores for interpolation and extrapolation in percent, one JSON value for each measure.

    A score is the mean of the folds' means. ``relative_gap`` is None if the score for interpolation is 0.
    """
    means = []  # for interpolation and extrapolation, shape (measures,) each
    for side in range(len(KINDS)):
        fold_means = [np.mean(list(fold[side].values()), axis=0) for fold in folds]
        means.append(np.mean(fold_means, axis=0))
    lows, highs = gap_interval(folds)

    def percent(fraction: float) -> float:
        return round(100 * float(fraction), 2)

    figures = []
    for number, metric in enumerate(PAPER):
        interpolation = means[0][number]
        extrapolation = means[1][number]
        figures.append(
            {
                "test": set_name,
                "row": row.name,
                "title": row.title,
                "metric": metric,
                "interpolation": percent(interpolation),
                "extrapolation": percent(extrapolation),
                "gap": percent(extrapolation - interpolation),
                "gap_interval": [percent(lows[number]), percent(highs[number])],
                "relative_gap": percent(extrapolation / interpolation - 1) if interpolation else None,
            }
        )
    return figures


def gap_interval(folds: Sequence[FoldValues], seed: int = 0) -> tuple[Floats, Floats]:
    """Return (low, high) of the gap's percentile bootstrap interval, as fractions for each measure of ``PAPER``.

    The gap is extrapolation minus interpolation. Test queries are resampled with replacement, once for all folds. If a
    resample has no queries of a fold, this fold is skipped in the resample.
    """
    all_query_ids: set[str] = set()
    for fold in folds:
        for values_by_query in fold:
            all_query_ids.update(values_by_query)
    query_ids = sorted(all_query_ids)
    column_of_query = {query_id: column for column, query_id in enumerate(query_ids)}
    # counts[resample, column]: how often the resample has the query.
    equal_shares = np.full(len(query_ids), 1 / len(query_ids))
    counts = np.random.default_rng(seed).multinomial(len(query_ids), equal_shares, RESAMPLES)

    means = []  # for interpolation and extrapolation, shape (resamples, measures) each
    for side in range(len(KINDS)):
        fold_means = []
        for fold in folds:
            columns = [column_of_query[query_id] for query_id in fold[side]]
            fold_counts = counts[:, columns].astype(float)
            values = np.array(list(fold[side].values()))
            # A resample without the fold's queries divides 0 by 0. nanmean skips the fold there.
            with np.errstate(invalid="ignore"):
                fold_means.append(fold_counts @ values / fold_counts.sum(axis=1, keepdims=True))
        means.append(np.nanmean(fold_means, axis=0))
    gaps = means[1] - means[0]
    low, high = np.nanquantile(gaps, [(1 - LEVEL) / 2, (1 + LEVEL) / 2], axis=0)
    return low, high


def _table(figures: Sequence[Mapping[str, Any]]) -> Table:
    """Return all figures as one table, in percent."""
    columns = [name for name in figures[0] if name != "gap_interval"]
    rows = []
    for figure in figures:
        rows.append([figure[name] for name in columns] + figure["gap_interval"])
    return Table([*columns, "gap_low", "gap_high"], rows, text_columns=4)


def report_as_text(report: Mapping[str, Any]) -> str:
    """Return the report as text, with one table for each set."""
    lines = [f"release {report['release']}, split {report['split']}; percent; gap: extrapolation minus interpolation"]
    tables: dict[str, list[list[str]]] = {}
    for figure in report["rows"]:
        gap_interval_text = "{:+.1f} to {:+.1f}".format(*figure["gap_interval"])
        relative_gap = "-" if figure["relative_gap"] is None else f"{figure['relative_gap']:+.1f} %"
        scores = [f"{figure[kind]:.2f}" for kind in KINDS]
        cells = [f"{figure['title']}: {figure['metric']}", *scores, f"{figure['gap']:+.2f}"]
        tables.setdefault(figure["test"], []).append([*cells, gap_interval_text, relative_gap])
    for set_name, body in tables.items():
        lines += ["", text_table([set_name, *KINDS, "gap", "95 %", "relative"], body)]
    return "\n".join(lines)
