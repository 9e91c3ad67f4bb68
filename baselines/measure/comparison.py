"""Compare systems pairwise on the same queries: tests, groups, and the queries that changed most."""

import difflib
from collections.abc import Iterable, Mapping, Sequence
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
    IR_MEASURES,
    LIST_DEPTH,
    PAPER,
    Values,
    mean,
    measure_run,
    measured,
    values_of,
    with_columns,
)
from baselines.measure.qrels import Qrels
from baselines.measure.significance import detectable, groups, holm, paired
from baselines.measure.ties import EXPECTED, LISTED
from builders.core.errors import InputError, UsageError, log
from builders.store.runs import Run

LABELS = "abcdefghijklmnoprstuvwxyz"  # one per system; q is omitted, because few fonts have a superscript q


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
        """Return the figures of :func:`baselines.measure.significance.paired` for two systems."""
        return paired(better, worse, level=1 - self.alpha, resamples=self.resamples, seed=self.seed)


def resolve_measures(names: Iterable[str], ties: str = LISTED) -> list[str]:
    """Return the measures that names in any case mean, each once. No run is needed.

    Raises :class:`InputError` for unknown names, with near names. Raises :class:`UsageError` for a measure of holes if
    ``ties`` is ``expected``, because such a measure needs an order of the passages.
    """
    ordered_or_not = (*PAPER.values(), "RR@10", *IR_MEASURES)
    names_by_lower_case = {name.lower(): name for name in (*ordered_or_not, *HOLE_MEASURES)}
    resolved: dict[str, None] = {}
    unknown, near = list[str](), dict[str, None]()
    for name in names:
        if name.lower() in names_by_lower_case:
            resolved[names_by_lower_case[name.lower()]] = None
            continue
        unknown.append(repr(name))
        for lower_case in difflib.get_close_matches(name.lower(), names_by_lower_case):
            near[names_by_lower_case[lower_case]] = None
    if unknown:
        noun = "measure" if len(unknown) == 1 else "measures"
        hint = f"; did you mean {', '.join(near)}?" if near else ""
        expected = ", ".join(names_by_lower_case.values())
        raise InputError(f"unknown {noun} {', '.join(unknown)}{hint}; expected one of {expected}")
    for name in resolved:
        if ties == EXPECTED and name in HOLE_MEASURES:
            raise UsageError(
                f"--ties expected: measure {name!r} needs an order of the passages; expected one of "
                f"{', '.join(ordered_or_not)}"
            )
    return list(resolved)


def table_of_run(run: Run, qrels: Qrels, measures: Sequence[str], ties: str = LISTED) -> pa.Table:
    """Return a run's values by query. The columns of holes are added if ``measures`` names such a column.

    ``measures`` are names of :func:`resolve_measures`. ``ties`` is the rule of
    :func:`baselines.measure.measures.measure_run` for equal scores.
    """
    result, table = measure_run(run, qrels, ties)
    if set(measures) <= set(measured(table)):
        return table
    return with_columns(table, measure_holes(run.rankings, qrels, result)[1])


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
    systems = dict(zip(LABELS, tables, strict=False))
    values = {name: {label: values_of(table, name) for label, table in systems.items()} for name in measures}
    compared = {name: _compare_pairs(by_label, settings) for name, by_label in values.items()}
    if query_groups is not None:
        for name, result in compared.items():
            result["by"] = _compare_groups(values[name], result["pairs"], query_groups, settings)
    system_rows = []
    for name, (label, table) in zip(names, systems.items(), strict=True):
        means = {measure: mean(by_label[label].tolist()) for measure, by_label in values.items()}
        system_rows.append({"label": label, "name": name, "run": table["run"][0].as_py(), "means": means})
    changes = []
    if changed:
        for pair in compared[measures[0]]["pairs"]:
            better, worse = pair["better"], pair["worse"]
            changes.append(_changed_most(better, worse, systems, values[measures[0]], texts or {}, changed))
    return {
        "queries": len(tables[0]),
        "pairs": pair_count,
        **asdict(settings),
        "systems": system_rows,
        "measures": compared,
        "changed": changes,
    }


def compare_on_shared_queries(after: pa.Table, before: pa.Table, measures: Mapping[str, str]) -> list[dict[str, Any]]:
    """Compare two tables of values by query, on the queries that both tables have, by Student's paired t-test.

    Args:
        after, before: tables of :func:`table_of_run`, whose references may have different queries.
        measures: the column of each measure, by the measure's name, as in ``measures.PAPER``.

    Returns:
        For each measure ``metric``, ``queries`` (the number of shared queries), ``difference`` and ``interval`` (after
        minus before, in percentage points), and the p-value ``p``. Empty for fewer than two shared queries.
    """
    in_both = pc.is_in(after["query_id"], value_set=before["query_id"])
    shared_after = after.filter(in_both).sort_by("query_id")
    in_both = pc.is_in(before["query_id"], value_set=after["query_id"])
    shared_before = before.filter(in_both).sort_by("query_id")
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
    smallest = 2 / (settings.resamples + 1)
    if settings.test == "randomisation" and pair_count * smallest > settings.alpha:
        log.warning(
            "no difference can be significant: with %d resamples, the smallest p-value is %.2g, and %.2g after the "
            "correction over %d pairs; raise --resamples",
            settings.resamples, smallest, pair_count * smallest, pair_count,
        )  # fmt: skip


def _compare_pairs(values: Mapping[str, Values], settings: SignificanceRule) -> dict[str, Any]:
    """Compare all pairs under one measure. In a pair, the better system comes first."""
    ordered = sorted(values, key=lambda label: -mean(values[label].tolist()))  # the sort is stable
    rows: list[dict[str, Any]] = []
    for better, worse in combinations(ordered, 2):
        rows.append({"better": better, "worse": worse, **settings.paired(values[better], values[worse])})
    _correct(rows)
    query_count = len(values[ordered[0]])
    levels = {"alone": settings.alpha, "corrected": settings.alpha / len(rows)}
    for row in rows:
        row["told_apart"] = row[settings.test]["corrected"] <= settings.alpha
        # Without a deviation of the differences, no detectable difference can be estimated.
        row["detectable"] = dict.fromkeys(levels)
        if row["deviation"]:
            for name, alpha in levels.items():
                smallest = detectable(row["deviation"], query_count, alpha=alpha, power=settings.power)
                row["detectable"][name] = smallest
    apart = [(row["better"], row["worse"]) for row in rows if row["told_apart"]]
    better_than = {}
    for label in values:
        better_than[label] = "".join(sorted(worse for better, worse in apart if better == label))
    return {
        "pairs": rows,
        "better_than": better_than,
        "groups": groups(ordered, apart),
        "detectable": {name: _spread([row["detectable"][name] for row in rows]) for name in levels},
    }


def _compare_groups(
    values: Mapping[str, Values], pairs: Sequence[Mapping[str, Any]], query_groups: Groups, settings: SignificanceRule
) -> list[dict[str, Any]]:
    """Compare the pairs in each group of at least two queries. Holm's correction is over all pairs in all groups."""
    rows: list[dict[str, Any]] = []
    for group, members in query_groups.items():
        if len(members) < 2:
            continue
        for pair in pairs:
            better, worse = pair["better"], pair["worse"]
            figures = settings.paired(values[better][members], values[worse][members])
            rows.append({"group": group, "queries": len(members), "better": better, "worse": worse, **figures})
    _correct(rows)
    return rows


def _correct(rows: Sequence[dict[str, Any]]) -> None:
    for name in TESTS:
        for row, corrected in zip(rows, holm([row[name]["p"] for row in rows]), strict=True):
            row[name]["corrected"] = corrected


def _spread(found: Sequence[float | None]) -> dict[str, float] | None:
    known = [value for value in found if value is not None]
    return {"lowest": min(known), "median": median(known), "highest": max(known)} if known else None


def _changed_most(
    better: str,
    worse: str,
    tables: Mapping[str, pa.Table],
    values: Mapping[str, Values],
    texts: Mapping[str, str],
    most: int,
) -> dict[str, Any]:
    """Return up to ``most`` changed queries of a pair, the largest absolute change first.

    Equal changes are sorted by the change of the first positive passage's rank, then by the reference's order.
    ``tables`` and ``values`` are by system. Each query has ``query_id``, ``text`` (None if ``texts`` lacks the query),
    and ``difference`` (a fraction, above 0 if the better system is better on this query). ``rank`` and
    ``rank_of_worse`` are the first positive's ranks under the two systems (None if a list has no positive).
    """
    ids = tables[better]["query_id"].to_pylist()
    ranks, ranks_of_worse = (tables[label]["first_positive_rank"].to_pylist() for label in (better, worse))
    differences = (values[better] - values[worse]).tolist()
    found = [
        {"query_id": id_, "text": texts.get(id_), "difference": difference, "rank": rank, "rank_of_worse": other}
        for id_, difference, rank, other in zip(ids, differences, ranks, ranks_of_worse, strict=True)
        if difference
    ]

    def size(query: dict[str, Any]) -> tuple[float, int]:
        last = LIST_DEPTH + 1
        rank, other = (min(query[key] or last, last) for key in ("rank", "rank_of_worse"))
        return -abs(query["difference"]), -abs(rank - other)

    return {"better": better, "worse": worse, "queries": sorted(found, key=size)[:most]}
