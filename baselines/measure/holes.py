"""Effects of holes on a run's measures. A hole is a retrieved passage that nobody judged.

The plain measures count an unjudged passage as a negative. Further measures are

- ``Judged@10``: the share of judged passages in the first ten;
- ``Bpref``: counts judged negatives above each positive, and ignores unjudged passages (Buckley and Voorhees 2004);
- condensed: the measures of a list without its unjudged passages (Sakai 2007), ``judged_only`` in ir-measures;
- best: the highest value under any labels of the list's unjudged passages. A passage labelled positive gets the highest
  grade of its query, and becomes a further positive of the query. Passages outside the list keep their labels;
- residual: best minus plain.

All values are fractions.
"""

import math
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from baselines.measure import measures
from baselines.measure.measures import IR_MEASURES, PAPER, Rankings, exact_mean, reciprocal_ranks_by_query
from baselines.measure.qrels import Qrels
from builders.core.results import Table
from builders.core.tables import format_percent, text_table

SHOWN = ("Judged@10", "Bpref")
_LISTS = ("condensed", "best", "residual")  # the lists and labels beside the plain measures
_NO_NEGATIVES = """\
No passage is judged negative. Condensed lists and Bpref then depend only on the set of positives that were found, not
on the ranks of these positives. The best measures of any list are near 100."""

ByQuery = dict[str, list[float]]  # by measure: one value per reference query
Means = Mapping[str, Any]  # "official" and "ir_measures": by measure


def condensed_name(name: str) -> str:
    """Return ir-measures' name of a measure on condensed lists: ``R@10`` becomes ``R(judged_only=True)@10``."""
    measure, at, depth = name.partition("@")
    return f"{measure}(judged_only=True){at}{depth}"


# The measures by query of :func:`measure_holes`, in the order of its table.
HOLE_MEASURES = (
    *SHOWN,
    *(condensed_name(name) for name in ("RR@10", *IR_MEASURES)),
    *(f"best {name}" for name in ("RR@10", *IR_MEASURES)),
)


def drop_unjudged(rankings: Rankings, judged: Mapping[str, Collection[str]]) -> dict[str, list[str]]:
    """Return the rankings of the queries in ``judged`` without passages that are not judged for the query."""
    judged_lists = {}
    for query_id, judged_ids in judged.items():
        if query_id in rankings:
            judged_lists[query_id] = [passage_id for passage_id in rankings[query_id] if passage_id in judged_ids]
    return judged_lists


def measure_holes(rankings: Rankings, qrels: Qrels, plain: Means) -> tuple[dict[str, Any], ByQuery]:
    """Measure the holes of one run. Returns (means, values by query).

    ``plain`` has the means of :func:`baselines.measure.measures.measure_run`. The returned means have ``Judged@10``,
    ``Bpref``, ``condensed``, ``best`` and ``residual``. Each of the last three has ``official`` and ``ir_measures``.
    The values by query are ``Judged@10``, ``Bpref``, condensed measures under ir-measures' names, and ``best RR@10``,
    ``best AP`` and so on.
    """
    judged = qrels.judged()
    condensed_lists = drop_unjudged(rankings, judged)
    condensed_names = {name: condensed_name(name) for name in IR_MEASURES}
    by_query = measures.per_query(rankings, qrels, [*SHOWN, *condensed_names.values()], judged)
    best_values = _best_by_query(rankings, qrels)
    # The first positive has its best rank if every unjudged passage of the list is a positive.
    hopeful_qrels = _judge_all_positive(rankings, qrels)

    means: dict[str, Any] = {name: exact_mean(by_query[name]) for name in SHOWN}
    condensed_values = {name: by_query[long_name] for name, long_name in condensed_names.items()}
    means["condensed"] = _means(condensed_lists, qrels, condensed_values)
    means["best"] = _means(rankings, hopeful_qrels, best_values)
    means["residual"] = _subtract_means(means["best"], plain)

    # The columns of the table, in the order of HOLE_MEASURES.
    columns: ByQuery = {name: by_query[name] for name in SHOWN}
    columns[condensed_name("RR@10")] = reciprocal_ranks_by_query(condensed_lists, qrels)
    for long_name in condensed_names.values():
        columns[long_name] = by_query[long_name]
    columns["best RR@10"] = reciprocal_ranks_by_query(rankings, hopeful_qrels)
    for name, values in best_values.items():
        columns[f"best {name}"] = values
    return means, columns


def _best_by_query(rankings: Rankings, qrels: Qrels) -> ByQuery:
    """Return the values of :func:`best_of` for every query, by measure."""
    best_values: ByQuery = {name: [] for name in IR_MEASURES}
    for query_id, positives in qrels.positives.items():
        unique_passages = list(dict.fromkeys(rankings.get(query_id, ())))
        best_of_query = best_of(unique_passages, positives, qrels.negatives.get(query_id, set()))
        for name, value in best_of_query.items():
            best_values[name].append(value)
    return best_values


def _judge_all_positive(rankings: Rankings, qrels: Qrels) -> Qrels:
    """Return the judgments with grade 1 for every unjudged passage of the lists."""
    hopeful_qrels = Qrels(qrels.name)
    for query_id, positives in qrels.positives.items():
        not_negative = set(rankings.get(query_id, ())) - qrels.negatives.get(query_id, set())
        hopeful_qrels.positives[query_id] = dict.fromkeys(not_negative, 1) | positives
    return hopeful_qrels


def _subtract_means(best: Means, plain: Means) -> Means:
    """Return best minus plain, at least 0, because sums of two libraries can differ by 1e-16."""
    residual: dict[str, dict[str, float]] = {}
    for group, best_means in best.items():
        residual[group] = {}
        for name, value in best_means.items():
            residual[group][name] = max(0.0, value - plain[group][name])
    return residual


def _means(rankings: Rankings, qrels: Qrels, by_query: ByQuery) -> Means:
    """Return the means of the paper's three measures, computed from the rankings, and of the values in ``by_query``."""
    official_means = measures.official_figures(rankings, qrels)
    return {
        "official": {name: official_means[name] for name in PAPER.values()},
        "ir_measures": {name: exact_mean(values) for name, values in by_query.items()},
    }


def best_of(ranking: Sequence[str], positives: Mapping[str, int], negatives: Collection[str]) -> dict[str, float]:
    """Return the highest value of each of ``IR_MEASURES`` under any labels of a ranking's unjudged passages.

    ``positives`` has the grades of all positives of the query, and ``negatives`` its judged negatives.

    If n unjudged passages are labelled positive, the measure is highest if these are the upper n. The best value is the
    maximum over n. The largest n is not always best, because a positive at a low rank can lower AP or nDCG.
    """
    gains = np.array([positives.get(passage_id, 0) for passage_id in ranking], np.float64)
    is_unjudged = np.array(
        [passage_id not in positives and passage_id not in negatives for passage_id in ranking], bool
    )
    best_values: dict[str, float] = {}
    for name in IR_MEASURES:
        measure, _, depth_text = name.partition("@")
        depth = int(depth_text) if depth_text else len(ranking)
        top_gains = gains[:depth]
        top_unjudged = is_unjudged[:depth]
        if measure == "Success":
            best_values[name] = float(bool(top_gains.any() or top_unjudged.any()))
        elif measure == "R":
            # Every unjudged passage in the top adds 1 to both numbers, which cannot lower the share.
            unjudged_count = int(top_unjudged.sum())
            positive_count = int((top_gains > 0).sum())
            best_values[name] = (positive_count + unjudged_count) / (len(positives) + unjudged_count)
        elif measure == "nDCG":
            falling_grades = sorted(positives.values(), reverse=True)
            best_values[name] = _best_ndcg(top_gains, top_unjudged, falling_grades, depth)
        else:  # AP
            best_values[name] = _best_ap(gains > 0, is_unjudged, len(positives))
    return best_values


def _label_cases(is_unjudged: npt.NDArray[np.bool_]) -> npt.NDArray[np.bool_]:
    """Return a mask of shape (unjudged + 1, ranks). Row n marks the upper n unjudged passages.

    For example, a list with unjudged passages at the ranks 1 and 3 has three rows::

        0 0 0
        1 0 0
        1 0 1
    """
    # The number of an unjudged passage among the unjudged, from 1.
    unjudged_numbers = np.cumsum(is_unjudged)
    case_numbers = np.arange(is_unjudged.sum() + 1)[:, None]
    return is_unjudged & (unjudged_numbers <= case_numbers)


def _best_ap(is_positive: npt.NDArray[np.bool_], is_unjudged: npt.NDArray[np.bool_], positive_count: int) -> float:
    """Return the best average precision. ``is_positive`` and ``is_unjudged`` have a value for each rank of the list.

    ``positive_count`` counts all positives of the query, listed or not.
    """
    if not len(is_positive):
        return 0.0
    cases = is_positive | _label_cases(is_unjudged)
    precision = np.cumsum(cases, axis=1) / np.arange(1, len(is_positive) + 1)
    sums = np.where(cases, precision, 0.0).sum(axis=1)
    positive_counts = positive_count + np.arange(len(cases))  # case n has n further positives
    return float((sums / positive_counts).max())


def _best_ndcg(
    gains: npt.NDArray[np.float64], is_unjudged: npt.NDArray[np.bool_], grades: Sequence[int], depth: int
) -> float:
    """Return the best nDCG. ``gains`` and ``is_unjudged`` have a value for each rank, at most ``depth`` values.

    A gain is the grade of a positive, else 0. ``grades`` has the grades of the query's positives, the highest first.
    """
    highest_grade = grades[0]
    discounts = np.log2(np.arange(2, len(gains) + 2))
    sums = ((gains + highest_grade * _label_cases(is_unjudged)) / discounts).sum(axis=1)
    # Each case has one more passage of the highest grade than the case before it, also in the ideal list.
    best = 0.0
    for added_count, value in enumerate(sums.tolist()):
        ideal_grades = ([highest_grade] * added_count + list(grades))[:depth]
        ideal_gain = math.fsum(grade / math.log2(position + 2) for position, grade in enumerate(ideal_grades))
        best = max(best, value / ideal_gain)
    return best


def holes_text(results: Sequence[Mapping[str, Any]], qrels: Qrels) -> str:
    """Format the tables of holes. ``results`` has the form of the JSON that ``errors holes`` prints."""
    negative_count = sum(map(len, qrels.negatives.values()))
    judged_rows = []
    measure_rows = []
    for result in results:
        judged_cells = [format_percent(result["holes"][name]) for name in SHOWN]
        judged_rows.append([result["run"], *judged_cells])
        measure_rows.append([result["run"], "plain", *measures.format_cells(result)])
        for lists in _LISTS:
            measure_rows.append(["", lists, *measures.format_cells(result["holes"][lists])])
    judged_text = f"{qrels.pairs} positives and {negative_count} negatives are judged"
    lines = [
        f"holes, percent ({judged_text}, other passages are unjudged)",
        text_table(["run", *SHOWN], judged_rows),
        "",
        "measures in percent. plain: unjudged passages are negatives; condensed: lists without unjudged passages;",
        "best: unjudged passages have the labels that are best for the run; residual: best minus plain",
        text_table(["run", "lists", *PAPER.values(), *IR_MEASURES], measure_rows),
    ]
    if not negative_count:
        lines += ["", _NO_NEGATIVES]
    return "\n".join(lines)


def holes_tables(results: Sequence[Mapping[str, Any]]) -> list[Table]:
    """Return the tables of :func:`holes_text`: the shares of judged passages, and the measures of each kind of list."""
    judged_rows = []
    measure_rows = []
    for result in results:
        figures = result["holes"]
        judged_rows.append([result["run"]] + [figures[name] for name in SHOWN])
        measure_rows.append([result["run"], "plain", *measures.mean_fractions(result)])
        for lists in _LISTS:
            measure_rows.append([result["run"], lists, *measures.mean_fractions(figures[lists])])
    measure_columns = [*PAPER.values(), *IR_MEASURES]
    return [
        Table(["run", *SHOWN], judged_rows, title="holes, percent", percent_columns=SHOWN),
        Table(
            ["run", "lists", *measure_columns],
            measure_rows,
            title="measures with and without unjudged passages, percent",
            percent_columns=measure_columns,
            text_columns=2,
        ),
    ]
