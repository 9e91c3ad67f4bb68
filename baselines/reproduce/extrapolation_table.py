"""``reproduce --extrapolation``: compare scores on queries near the training queries and far from them.

The method is that of extrapolate-eval (Zhan et al., arXiv 2204.11447). ``builders add`` makes the configs.
ReSTrain trains every system twice: on questions near the test queries (interpolation) and on other questions
(extrapolation). The two models are measured on the same test queries. ReSTTest divides the questions into buckets. It
trains every system once for each bucket, without the bucket's questions. Extrapolation is measured on the bucket's test
queries, interpolation on all other test queries. Scores are means over the buckets. BM25 learns from no questions, so
its gap shows how much harder the test queries of extrapolation are.
"""

import itertools
import re
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from baselines.measure.measures import PAPER, paper_by_query
from baselines.measure.qrels import release_qrels
from baselines.measure.significance import LEVEL, RESAMPLES
from baselines.reproduce.run_steps import run_steps
from baselines.reproduce.select_rows import Row, Selection, runnable_rows, select_rows
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

# Two pairs, for interpolation and for extrapolation: (training config, (config of the test judgments, split)). If the
# config of the test judgments is empty, the judgments are the release's qrels.
Fold = tuple[tuple[str, tuple[str, str]], tuple[str, tuple[str, str]]]


class StepsOnQuestions(Steps):
    """Steps whose trainings read only the training questions of a config.

    A training on questions is repeated for the config, and so is every step that uses the checkpoint. Other steps are
    shared with ``shared``: BM25, masked language models, and the negatives of BM25.
    """

    def __init__(self, shared: Steps, config: str) -> None:
        super().__init__(shared.release, shared.out, shared.split, settings=shared.settings)
        self.variant = shared.variant
        self.recorded = shared.recorded
        self.config = config
        self.repeated: set[str] = set()

    def __call__(self, verb: str, *, out: str, after: Sequence[Step] = (), **arguments: Any) -> Step:
        is_learning = verb == "train" and read_recipe(arguments["recipe"]).model.kind != "mlm"
        inputs = [step for value in arguments.values() for step in inputs_of(value)]
        is_reading = any(step.name in self.repeated for step in inputs)
        if is_learning:
            arguments["set"] = [f"data.set={self.config}", *arguments.get("set", ())]
            for start in after:
                if start.name in self.repeated:
                    arguments["start"] = start
            out = f"{out}.{self.config}"  # beside the other checkpoints, where recipes look for starting checkpoints
        elif is_reading:
            out = f"{self.config}/{out.replace(f'.{self.config}', '')}"  # the folder's name has the config already
        if is_learning or is_reading:
            self.repeated.add(out)
        return super().__call__(verb, out=out, after=after, **arguments)


def report_extrapolation(
    do: Steps,
    selection: Selection,
    names: Sequence[str],
    *,
    dry_run: bool,
    one_process: bool,
    processes: int,
) -> Report:
    """Run the missing steps and return the report. Raises :class:`InputError` if the release lacks the sets ``names``.

    With ``dry_run``, return the commands of the steps.
    """
    release = open_release(do.release)
    sets = _sets(release, do.split, names)
    row_names = [row.name for row in runnable_rows(_rows(do, selection), selection, release, do)]
    runs: dict[tuple[str, str], Step] = {}  # by the name of the row and the config of the training questions
    for config in dict.fromkeys(config for folds in sets.values() for fold in folds for config, _ in fold):
        for row in _rows(StepsOnQuestions(do, config), selection):
            if row.name in row_names:
                runs[row.name, config] = row.run()
    if dry_run:
        steps = do.recorded.values()
        return Report([step.words() for step in steps], "\n".join(step.shell_line(processes) for step in steps))
    run_steps(do.recorded, do.out, one_process=one_process, processes=processes)
    figures = []
    rows = [row for row in _rows(do, selection) if row.name in row_names]
    for (name, folds), row in itertools.product(sets.items(), rows):
        values = []
        for fold in folds:
            values.append([_values(release, runs[row.name, config], test) for config, test in fold])
        figures += _figures(name, row, values)
    report = {"release": str(release.path), "split": do.split, "unit": "percent", "rows": figures}
    return Report(report, lambda: text(report), lambda: [_table(figures)])


def _rows(do: Steps, selection: Selection) -> list[Row]:
    """Return the selected rows that measure whole splits of the set main."""
    rows = []
    for row in select_rows(do, selection):
        is_part = row.split or row.queries or row.qrels or row.figure
        is_default = selection.tables or selection.row or row.name in ROWS
        if row.set == "main" and not is_part and is_default:
            rows.append(row)
    if not rows:
        raise InputError("--extrapolation: no row measures the main set; name another --row or --table")
    return rows


def _sets(release: Release, split: str, asked: Sequence[str]) -> dict[str, list[Fold]]:
    """Return the release's folds for the split's queries, by the name of the set (``restrain-SIZE``, ``resttest``)."""
    stats, have = read_stats(release.path).get("extrapolation", {}), {config for config, _ in release.splits()}
    found: dict[str, list[Fold]] = {}
    buckets = []
    for config in sorted(have & set(stats), key=lambda name: [int(n) for n in re.findall(r"\d+", name)] or [0]):
        match, row = _RESTRAIN.fullmatch(config), stats[config]
        # A row of ReSTrain is an object, a row of ReSTTest is a list.
        is_tested = isinstance(row, dict) and split in row["test"].split("+")
        if match and is_tested and f"{match[1]}-extrapolation" in have:
            found[match[1]] = [((config, ("", split)), (f"{match[1]}-extrapolation", ("", split)))]
        elif config.startswith(f"{RESTTEST}-"):
            buckets.append(((config, (config, KINDS[0])), (config, (config, KINDS[1]))))
    if buckets:
        found[RESTTEST] = buckets
    if not found or not {*asked} <= {*found}:
        raise InputError(
            f"has no {' and '.join(asked) or 'sets for interpolation and extrapolation'} of the {split} queries; it "
            f"has {', '.join(found) or 'none'}; `python -m builders add` makes these sets",
            path=release.path,
        )
    return {name: folds for name, folds in found.items() if not asked or name in asked}


def _values(release: Release, step: Step, test: tuple[str, str]) -> dict[str, Floats]:
    """Return the paper's measures of every test query, by query id."""
    qrels = release_qrels(release, test[1], qrels=test[0])
    return dict(zip(qrels.positives, np.array(paper_by_query(read_run(step.output).rankings, qrels)), strict=True))


def _figures(name: str, row: Row, folds: Sequence[Sequence[Mapping[str, Floats]]]) -> list[dict[str, Any]]:
    """Return a system's scores for interpolation and extrapolation. A score is the mean of the folds' means."""
    near, far = (np.mean([np.mean(list(fold[kind].values()), axis=0) for fold in folds], axis=0) for kind in (0, 1))

    def percent(fraction: float) -> float:
        return round(100 * float(fraction), 2)

    return [
        {
            "test": name,
            "row": row.name,
            "title": row.title,
            "metric": metric,
            "interpolation": percent(interpolation),
            "extrapolation": percent(extrapolation),
            "gap": percent(extrapolation - interpolation),
            "gap_interval": [percent(low), percent(high)],
            "relative_gap": percent(extrapolation / interpolation - 1) if interpolation else None,
        }
        for metric, interpolation, extrapolation, low, high in zip(PAPER, near, far, *gap_interval(folds), strict=True)
    ]


def gap_interval(folds: Sequence[Sequence[Mapping[str, Floats]]], seed: int = 0) -> tuple[Floats, Floats]:
    """Return (low, high) of the gap's percentile bootstrap interval. Both arrays have the shape (measures,).

    The gap is extrapolation minus interpolation. Test queries are resampled with replacement, once for all folds. If a
    resample has no queries of a fold, this fold is skipped in the resample.
    """
    queries = sorted({query for fold in folds for kind in fold for query in kind})
    drawn = np.random.default_rng(seed).multinomial(len(queries), np.full(len(queries), 1 / len(queries)), RESAMPLES)
    place = {query: number for number, query in enumerate(queries)}
    means = []
    for kind in (0, 1):
        own = []
        for fold in folds:
            counts = drawn[:, [place[query] for query in fold[kind]]].astype(float)
            with np.errstate(invalid="ignore"):
                own.append(counts @ np.array(list(fold[kind].values())) / counts.sum(axis=1, keepdims=True))
        means.append(np.nanmean(own, axis=0))
    low, high = np.nanquantile(means[1] - means[0], [(1 - LEVEL) / 2, (1 + LEVEL) / 2], axis=0)
    return low, high


def _table(figures: Sequence[Mapping[str, Any]]) -> Table:
    """Return all figures as one table, in percent."""
    columns = [name for name in figures[0] if name != "gap_interval"]
    rows = [[*(figure[name] for name in columns), *figure["gap_interval"]] for figure in figures]
    return Table([*columns, "gap_low", "gap_high"], rows, text_columns=4)


def text(report: Mapping[str, Any]) -> str:
    """Return the report as text, with one table for each set."""
    lines = [f"release {report['release']}, split {report['split']}; percent; gap: extrapolation minus interpolation"]
    tables: dict[str, list[list[str]]] = {}
    for row in report["rows"]:
        relative = "-" if row["relative_gap"] is None else f"{row['relative_gap']:+.1f} %"
        ends = "{:+.1f} to {:+.1f}".format(*row["gap_interval"])
        cells = [f"{row['title']}: {row['metric']}", *(f"{row[kind]:.2f}" for kind in KINDS), f"{row['gap']:+.2f}"]
        tables.setdefault(row["test"], []).append([*cells, ends, relative])
    for name, body in tables.items():
        lines += ["", text_table([name, *KINDS, "gap", "95 %", "relative"], body)]
    return "\n".join(lines)
