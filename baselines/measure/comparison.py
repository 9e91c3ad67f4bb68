"""Compare systems pairwise on the same queries: tests, groups, and the queries that changed most."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import combinations
from statistics import median
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from baselines.measure.groups import Groups
from baselines.measure.holes import HOLE_MEASURES, measure_holes
from baselines.measure.measure_options import TEST_RESAMPLES, TESTS
from baselines.measure.measures import (
    LIST_DEPTH,
    Values,
    exact_mean,
    measure_run,
    values_of,
    with_columns,
)
from baselines.measure.qrels import Qrels
from baselines.measure.significance import (
    compare_paired,
    detectable_difference,
    holm_correction,
    indistinguishable_groups,
)
from baselines.measure.ties import LISTED
from builders.core.errors import InputError, log
from builders.store.runs import Run

# One per system; q is omitted, because few fonts have a superscript q.
LABELS = "abcdefghijklmnoprstuvwxyz"


@dataclass(frozen=True)
class SignificanceRule:
    """The settings of the tests of significance.

    Attributes:
        test: the test that decides, a name of ``measure_options.TESTS``.
        alpha: level of the test.
        power: power for the detectable difference.
        resamples: number of resamples of the randomisation test.
        seed: seed of the resamples.
    """

    test: str = TESTS[0]
    alpha: float = 0.05
    power: float = 0.8
    resamples: int = TEST_RESAMPLES
    seed: int = 0

    def paired(self, better: Values, worse: Values) -> dict[str, Any]:
        """Return the figures of :func:`baselines.measure.significance.compare_paired` for two systems."""
        return compare_paired(better, worse, level=1 - self.alpha, resamples=self.resamples, seed=self.seed)


def table_of_run(run: Run, qrels: Qrels, measures: Sequence[str], ties: str = LISTED) -> pa.Table:
    """Return a run's values by query, with the columns of ``measures``. The columns of holes are added together.

    ``measures`` are names of :func:`baselines.measure.measure_names.resolve_measures`. ``ties`` is the rule of
    :func:`baselines.measure.measures.measure_run` for equal scores.
    """
    hole_names = set(measures).intersection(HOLE_MEASURES)
    result, table = measure_run(run, qrels, ties, [name for name in measures if name not in hole_names])
    if not hole_names:
        return table
    _, hole_values = measure_holes(run.rankings, qrels, result)
    return with_columns(table, hole_values)


def compare_systems(
    names: Sequence[str],
    tables: Sequence[pa.Table],
    measures: Sequence[str],
    *,
    settings: SignificanceRule,
    query_groups: Groups | None = None,
    texts: Mapping[str, str] | None = None,
    changed: int = 0,
) -> dict[str, Any]:
    """Compare systems by their tables from :func:`table_of_run`, with the same queries.

    Holm's correction is over all pairs of systems under one measure. The difference of a pair is significant if the
    corrected p-value of the chosen test is at most alpha. docs/compare.md describes the result. All figures are
    fractions.

    Args:
        names: name of each system.
        measures: the compared columns of the tables. The first one selects the queries that changed most.
        settings: the test that decides, its level and its resamples.
        query_groups: groups of the queries, to compare the systems in each group, too.
        texts: texts of queries by id, for the queries that changed most.
        changed: number of changed queries of each pair.

    Raises:
        InputError: there are fewer than two queries, or a measure is unknown.
    """
    if len(tables[0]) < 2:
        raise InputError("expected at least two queries with a positive passage, found one")
    pair_count = len(tables) * (len(tables) - 1) // 2
    _warn_of_few_resamples(pair_count, settings)
    # The table of each system by the system's label, a letter.
    systems = dict(zip(LABELS, tables, strict=False))

    # Compare all pairs under each measure.
    values_by_measure: dict[str, dict[str, Values]] = {}
    comparisons: dict[str, dict[str, Any]] = {}
    for measure in measures:
        values = {label: values_of(table, measure) for label, table in systems.items()}
        comparison = _compare_pairs(values, settings)
        if query_groups is not None:
            comparison["by"] = _compare_groups(values, comparison["pairs"], query_groups, settings)
        values_by_measure[measure] = values
        comparisons[measure] = comparison

    system_rows = []
    for name, (label, table) in zip(names, systems.items(), strict=True):
        means = {measure: exact_mean(values[label].tolist()) for measure, values in values_by_measure.items()}
        system_rows.append({"label": label, "name": name, "run": table["run"][0].as_py(), "means": means})

    # The first measure selects the queries that changed most.
    changes = []
    if changed:
        first_measure = measures[0]
        for pair in comparisons[first_measure]["pairs"]:
            changed_queries = _changed_queries(
                pair["better"], pair["worse"], systems, values_by_measure[first_measure], texts or {}
            )
            changes.append({"better": pair["better"], "worse": pair["worse"], "queries": changed_queries[:changed]})

    result: dict[str, Any] = {"queries": len(tables[0]), "pairs": pair_count}
    result.update(asdict(settings))
    result["systems"] = system_rows
    result["measures"] = comparisons
    result["changed"] = changes
    return result


def compare_on_shared_queries(after: pa.Table, before: pa.Table, measures: Mapping[str, str]) -> list[dict[str, Any]]:
    """Compare two tables of values by query, on the queries that both tables have, by Student's paired t-test.

    Args:
        after, before: tables of :func:`table_of_run`, whose references may have different queries.
        measures: the column of each measure, by the measure's name, as in ``measures.PAPER``.

    Returns:
        For each measure ``metric``, ``queries`` (the number of shared queries), ``difference`` and ``interval`` (after
        minus before, in percentage points), and the p-value ``p``. Empty for fewer than two shared queries.
    """
    shared_after = after.filter(pc.is_in(after["query_id"], value_set=before["query_id"])).sort_by("query_id")
    shared_before = before.filter(pc.is_in(before["query_id"], value_set=after["query_id"])).sort_by("query_id")
    if len(shared_after) < 2:
        return []
    tests = []
    for name, column in measures.items():
        figures = SignificanceRule().paired(values_of(shared_after, column), values_of(shared_before, column))
        tests.append(
            {
                "metric": name,
                "queries": len(shared_after),
                "difference": round(100 * figures["difference"], 2),
                "interval": [round(100 * end, 2) for end in figures["interval"]],
                "p": figures["t"]["p"],
            }
        )
    return tests


def _warn_of_few_resamples(pair_count: int, settings: SignificanceRule) -> None:
    """Warn if even the smallest possible p-value of the randomisation test is above alpha after Holm's correction."""
    smallest_p = 2 / (settings.resamples + 1)
    if settings.test == "randomisation" and pair_count * smallest_p > settings.alpha:
        log.warning(
            "no difference can be significant: with %d resamples, the smallest p-value is %.2g, and %.2g after the "
            "correction over %d pairs; raise --resamples",
            settings.resamples,
            smallest_p,
            pair_count * smallest_p,
            pair_count,
        )


def _compare_pairs(values: Mapping[str, Values], settings: SignificanceRule) -> dict[str, Any]:
    """Compare all pairs under one measure. ``values`` has the values by query of each system, by its label.

    Returns ``pairs`` (figures of each pair, the better system first; ``told_apart`` is True if the difference is
    significant), ``better_than`` (for each system, the labels of the significantly worse systems), ``groups`` (of
    systems without significant differences), and ``detectable`` (the spread over the pairs of the smallest detectable
    difference).
    """
    # The sort is stable, so equal systems keep their order.
    best_first_labels = sorted(values, key=lambda label: -exact_mean(values[label].tolist()))
    pair_rows: list[dict[str, Any]] = []
    for better, worse in combinations(best_first_labels, 2):
        pair_rows.append({"better": better, "worse": worse, **settings.paired(values[better], values[worse])})
    _add_corrected(pair_rows)

    # The level of a pair's test, without and with the correction: Holm compares the smallest p-value with alpha divided
    # by the number of pairs.
    query_count = len(values[best_first_labels[0]])
    alphas = {"alone": settings.alpha, "corrected": settings.alpha / len(pair_rows)}
    for row in pair_rows:
        row["told_apart"] = row[settings.test]["corrected"] <= settings.alpha
        # Without a deviation of the differences, no detectable difference can be estimated.
        row["detectable"] = dict.fromkeys(alphas)
        if row["deviation"]:
            for name, alpha in alphas.items():
                row["detectable"][name] = detectable_difference(
                    row["deviation"], query_count, alpha=alpha, power=settings.power
                )

    significant_pairs = [(row["better"], row["worse"]) for row in pair_rows if row["told_apart"]]
    better_than: dict[str, str] = {}
    for label in values:
        worse_labels = [worse for better, worse in significant_pairs if better == label]
        better_than[label] = "".join(sorted(worse_labels))
    detectable_spreads = {}
    for name in alphas:
        detectable_spreads[name] = _spread([row["detectable"][name] for row in pair_rows])
    return {
        "pairs": pair_rows,
        "better_than": better_than,
        "groups": indistinguishable_groups(best_first_labels, significant_pairs),
        "detectable": detectable_spreads,
    }


def _compare_groups(
    values: Mapping[str, Values], pairs: Sequence[Mapping[str, Any]], query_groups: Groups, settings: SignificanceRule
) -> list[dict[str, Any]]:
    """Compare the pairs in each group of at least two queries. Holm's correction is over all pairs in all groups.

    ``values`` has the values by query of each system, by its label. ``pairs`` are those over all queries, so the system
    that is better on all queries comes first in every group.
    """
    group_rows: list[dict[str, Any]] = []
    for group_name, query_numbers in query_groups.items():
        if len(query_numbers) < 2:
            continue
        for pair in pairs:
            better, worse = pair["better"], pair["worse"]
            row: dict[str, Any] = {"group": group_name, "queries": len(query_numbers), "better": better, "worse": worse}
            row.update(settings.paired(values[better][query_numbers], values[worse][query_numbers]))
            group_rows.append(row)
    _add_corrected(group_rows)
    return group_rows


def _add_corrected(pair_rows: Sequence[dict[str, Any]]) -> None:
    """Add the p-values after Holm's correction over all rows, for each test."""
    for test in TESTS:
        corrected_p_values = holm_correction([row[test]["p"] for row in pair_rows])
        for row, corrected in zip(pair_rows, corrected_p_values, strict=True):
            row[test]["corrected"] = corrected


def _spread(differences: Sequence[float | None]) -> dict[str, float] | None:
    """Return the lowest, the median and the highest of the values that are not None, or None if all are None."""
    estimated = [difference for difference in differences if difference is not None]
    if not estimated:
        return None
    return {"lowest": min(estimated), "median": median(estimated), "highest": max(estimated)}


def _changed_queries(
    better: str,
    worse: str,
    tables: Mapping[str, pa.Table],
    values: Mapping[str, Values],
    texts: Mapping[str, str],
) -> list[dict[str, Any]]:
    """Return the changed queries of a pair, the largest absolute change first.

    Equal changes are sorted by the change of the first positive passage's rank, then by the reference's order.
    ``tables`` and ``values`` are by system. Each query has ``query_id``, ``text`` (None if ``texts`` lacks the query),
    and ``difference`` (a fraction, above 0 if the better system is better on this query). ``rank`` and
    ``rank_of_worse`` are the first positive's ranks under the two systems (None if a list has no positive).
    """
    query_ids = tables[better]["query_id"].to_pylist()
    ranks = tables[better]["first_positive_rank"].to_pylist()
    ranks_of_worse = tables[worse]["first_positive_rank"].to_pylist()
    differences = (values[better] - values[worse]).tolist()
    changed_queries = []
    for query_id, difference, rank, rank_of_worse in zip(query_ids, differences, ranks, ranks_of_worse, strict=True):
        if difference:
            changed_queries.append(
                {
                    "query_id": query_id,
                    "text": texts.get(query_id),
                    "difference": difference,
                    "rank": rank,
                    "rank_of_worse": rank_of_worse,
                }
            )
    return sorted(changed_queries, key=_change_order)


def _change_order(query: Mapping[str, Any]) -> tuple[float, int]:
    """Return the sort key of a changed query. Every rank below the list counts as the first rank below the list."""
    lowest_rank = LIST_DEPTH + 1
    rank = min(query["rank"] or lowest_rank, lowest_rank)
    rank_of_worse = min(query["rank_of_worse"] or lowest_rank, lowest_rank)
    return -abs(query["difference"]), -abs(rank - rank_of_worse)
