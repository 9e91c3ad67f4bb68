"""Compare a system's runs on perturbed questions with its run on the questions as asked, kind by kind."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from operator import itemgetter
from typing import Any

import pyarrow as pa

from baselines.measure.comparison import SignificanceRule, table_of_run
from baselines.measure.measure_options import TESTS
from baselines.measure.measures import Values, exact_mean, values_of
from baselines.measure.qrels import read_queries, release_qrels
from baselines.measure.significance import detectable_difference, holm_correction
from builders.core.errors import InputError, shown_value
from builders.store.layout import SETS, STRESS, STRESS_KINDS
from builders.store.reader import Release
from builders.store.runs import Run

AS_ASKED = "main"


@dataclass(frozen=True)
class StressRun:
    """The values of a run on the queries of a kind, and the values of their originals in the run as asked.

    Attributes:
        kind: the kind of perturbation.
        table: the values of the perturbed queries (:func:`baselines.measure.comparison.table_of_run`).
        asked: the rows of the originals in the table of the run as asked, in the same order.
        texts: perturbed text by query id.
        original_ids: id of the original by query id.
    """

    kind: str
    table: pa.Table
    asked: pa.Table
    texts: Mapping[str, str]
    original_ids: Mapping[str, str]


def sort_runs(runs: Sequence[Run], release: Release, split: str) -> dict[str, Run]:
    """Return the runs by the set of their queries: ``main`` for the run as asked, and stress-KIND in their order.

    A run belongs to the set that has most of the run's queries. Raises :class:`InputError` for a run of no such set,
    two runs of a set, or if the run as asked, or every other run, is missing. Also if the release has no perturbed
    queries of the split.
    """
    ids_by_set: dict[str, set[str]] = {}
    for set_name in (AS_ASKED, *(f"{STRESS}{kind}" for kind in STRESS_KINDS)):
        config = SETS[set_name].queries
        if (config, split) in release.splits():
            ids_by_set[set_name] = {query_id for query_id, _ in read_queries(release, split, config)}
    if not ids_by_set.keys() - {AS_ASKED}:
        problem = f"has no perturbed {split} queries; run `python -m builders add stress --release DIR --out DIR`"
        raise InputError(problem, path=release.path)

    runs_by_set: dict[str, Run] = {}
    for run in runs:
        shared_counts = {name: len(ids & run.rankings.keys()) for name, ids in ids_by_set.items()}
        best_set = max(shared_counts, key=shared_counts.__getitem__)
        if not shared_counts[best_set]:
            problem = f"shares no query with the {split} queries of {release.path} or their perturbations"
            raise InputError(problem, path=run.path)
        if best_set in runs_by_set:
            problem = f"is a second run of {best_set} beside {runs_by_set[best_set].path}; compare one system at a time"
            raise InputError(problem, path=run.path)
        runs_by_set[best_set] = run
    if AS_ASKED not in runs_by_set:
        raise InputError(f"no run has the {split} queries as asked; add the system's run of --set main")
    if len(runs_by_set) == 1:
        raise InputError("no run has perturbed queries; add a run of --set stress-KIND")
    return {set_name: runs_by_set[set_name] for set_name in ids_by_set if set_name in runs_by_set}


def compare_with_asked(
    runs_by_set: Mapping[str, Run],
    release: Release,
    split: str,
    measures: Sequence[str],
    *,
    settings: SignificanceRule,
    ties: str,
    changed: int,
) -> dict[str, Any]:
    """Compare the runs of :func:`sort_runs`. docs/stress.md describes the result. All figures are fractions.

    A perturbed query is paired with its original. Differences are perturbed minus as asked, so a drop is negative.
    Holm's correction is over the kinds under one measure. ``changed`` is the number of the queries of each kind that
    fell deepest under the first measure.
    """
    asked_run = runs_by_set[AS_ASKED]
    asked_table = table_of_run(asked_run, release_qrels(release, split), measures, ties)
    stress_runs = []
    for set_name, run in runs_by_set.items():
        if set_name != AS_ASKED:
            table = table_of_run(run, release_qrels(release, split, set_name), measures, ties)
            stress_runs.append(_pair_with_asked(set_name, table, asked_table, release, split))

    comparisons = {}
    for measure in measures:
        comparisons[measure] = [_compare_kind(stress_run, measure, settings) for stress_run in stress_runs]
        _add_corrected(comparisons[measure], settings)

    asked_texts = dict(read_queries(release, split))
    fallen = []
    if changed:
        for stress_run in stress_runs:
            fallen_queries = _fallen_queries(stress_run, measures[0], asked_texts)
            fallen.append({"kind": stress_run.kind, "queries": fallen_queries[:changed]})
    return {
        "split": split,
        "runs": {set_name: str(run.path) for set_name, run in runs_by_set.items()},
        "queries": len(asked_table),
        "means": {measure: exact_mean(values_of(asked_table, measure).tolist()) for measure in measures},
        **asdict(settings),
        "measures": comparisons,
        "fallen": fallen,
    }


def _pair_with_asked(set_name: str, table: pa.Table, asked: pa.Table, release: Release, split: str) -> StressRun:
    """Pair each query of a run on perturbed queries with its original in the run as asked.

    ``set_name`` is the set of the perturbed queries. ``table`` and ``asked`` are the tables of the two runs.
    """
    dataset_set = SETS[set_name]
    queries = release.table(dataset_set.queries, split)
    query_ids = queries["_id"].to_pylist()
    original_ids = dict(zip(query_ids, queries[dataset_set.original_column].to_pylist(), strict=True))
    asked_ids = {query_id for query_id, _ in read_queries(release, split)}
    for row, (query_id, original_id) in enumerate(original_ids.items()):
        if original_id not in asked_ids:
            problem = f"original_id {shown_value(original_id)} of {query_id} is no {split} query"
            raise InputError(problem, path=release.describe_row(dataset_set.queries, split, row))
    row_of_query = {query_id: row for row, query_id in enumerate(asked["query_id"].to_pylist())}
    # Perturbed queries have the judgments of their originals, so an original with a positive is in both tables.
    rows = [row_of_query[original_ids[query_id]] for query_id in table["query_id"].to_pylist()]
    if len(rows) < 2:
        raise InputError(f"{set_name}: expected at least two queries with a positive passage, found one")
    texts = dict(zip(query_ids, queries["text"].to_pylist(), strict=True))
    return StressRun(set_name.removeprefix(STRESS), table, asked.take(pa.array(rows)), texts, original_ids)


def _compare_kind(stress_run: StressRun, measure: str, settings: SignificanceRule) -> dict[str, Any]:
    """Return the figures of a kind under one measure: both means, and those of a paired comparison."""
    perturbed = values_of(stress_run.table, measure)
    asked = values_of(stress_run.asked, measure)
    return {
        "kind": stress_run.kind,
        "queries": len(perturbed),
        "asked": exact_mean(asked.tolist()),
        "perturbed": exact_mean(perturbed.tolist()),
        **settings.paired(perturbed, asked),
    }


def _add_corrected(rows: Sequence[dict[str, Any]], settings: SignificanceRule) -> None:
    """Add to the row of each kind the p-values after Holm's correction over the kinds, and two figures.

    ``told_apart`` is True if the difference is significant. ``detectable`` is the smallest detectable difference, None
    if all differences of the kind are equal.
    """
    for test in TESTS:
        corrected_p_values = holm_correction([row[test]["p"] for row in rows])
        for row, corrected in zip(rows, corrected_p_values, strict=True):
            row[test]["corrected"] = corrected
    for row in rows:
        row["told_apart"] = row[settings.test]["corrected"] <= settings.alpha
        row["detectable"] = None
        if row["deviation"]:
            row["detectable"] = detectable_difference(
                row["deviation"], row["queries"], alpha=settings.alpha / len(rows), power=settings.power
            )


def _fallen_queries(stress_run: StressRun, measure: str, asked_texts: Mapping[str, str]) -> list[dict[str, Any]]:
    """Return the queries whose value fell, the deepest fall first. Equal falls keep the order of the queries."""
    perturbed = stress_run.table.to_pydict()
    asked_ranks = stress_run.asked["first_positive_rank"].to_pylist()
    differences: Values = values_of(stress_run.table, measure) - values_of(stress_run.asked, measure)
    fallen = []
    for row, difference in enumerate(differences.tolist()):
        if difference < 0:
            query_id = perturbed["query_id"][row]
            original_id = stress_run.original_ids[query_id]
            fallen.append(
                {
                    "query_id": query_id,
                    "original_id": original_id,
                    "text": stress_run.texts[query_id],
                    "original_text": asked_texts[original_id],
                    "difference": difference,
                    "rank": perturbed["first_positive_rank"][row],
                    "original_rank": asked_ranks[row],
                }
            )
    return sorted(fallen, key=itemgetter("difference"))
