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
from baselines.measure.measures import IR_MEASURES, PAPER, Rankings, first_ranks, mean, reciprocal_rank
from baselines.measure.qrels import Qrels
from builders.core.results import Table
from builders.core.tables import percent, text_table

SHOWN = ("Judged@10", "Bpref")
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


def condensed(rankings: Rankings, judged: Mapping[str, Collection[str]]) -> dict[str, list[str]]:
    """Return the rankings of the judged queries without their unjudged passages."""
    return {
        query: [passage for passage in rankings[query] if passage in known]
        for query, known in judged.items()
        if query in rankings
    }


def measure_holes(rankings: Rankings, qrels: Qrels, plain: Means) -> tuple[dict[str, Any], ByQuery]:
    """Measure the holes of one run. Returns (means, values by query).

    ``plain`` has the means of :func:`baselines.measure.measures.measure_run`. The returned means have ``Judged@10``,
    ``Bpref``, ``condensed``, ``best`` and ``residual``. Each of the last three has ``official`` and ``ir_measures``.
    The values by query are ``Judged@10``, ``Bpref``, condensed measures under ir-measures' names, and ``best RR@10``,
    ``best AP`` and so on.
    """
    judged = qrels.judged()
    lists = condensed(rankings, judged)
    names = {condensed_name(name): name for name in IR_MEASURES}
    found = measures.per_query(rankings, qrels, [*SHOWN, *names], judged)
    best_values = [
        best_of(list(dict.fromkeys(rankings.get(query, ()))), positives, qrels.negatives.get(query, set()))
        for query, positives in qrels.positives.items()
    ]
    best = {name: [values[name] for values in best_values] for name in IR_MEASURES}
    # The first positive has its best rank if every unjudged passage of the list is a positive.
    possible = {query: set(rankings.get(query, ())) - qrels.negatives.get(query, set()) for query in qrels.positives}
    hopeful = Qrels(qrels.name, {q: dict.fromkeys(possible[q], 1) | good for q, good in qrels.positives.items()})
    means: dict[str, Any] = {name: mean(found[name]) for name in SHOWN}
    means["condensed"] = _means(lists, qrels, {name: found[each] for each, name in names.items()})
    means["best"] = _means(rankings, hopeful, best)
    means["residual"] = {  # at least 0: sums of two libraries can differ by 1e-16
        kind: {name: max(0.0, value - plain[kind][name]) for name, value in values.items()}
        for kind, values in means["best"].items()
    }
    return means, {
        **{name: found[name] for name in SHOWN},
        condensed_name("RR@10"): _reciprocal(lists, qrels),
        **{name: found[name] for name in names},
        "best RR@10": _reciprocal(rankings, hopeful),
        **{f"best {name}": values for name, values in best.items()},
    }


def _means(rankings: Rankings, qrels: Qrels, by_query: ByQuery) -> Means:
    found = measures.official(rankings, qrels)
    return {
        "official": {name: found[name] for name in PAPER.values()},
        "ir_measures": {name: mean(values) for name, values in by_query.items()},
    }


def _reciprocal(rankings: Rankings, qrels: Qrels) -> list[float]:
    return list(map(reciprocal_rank, first_ranks(rankings, qrels)))


def best_of(ranking: Sequence[str], positives: Mapping[str, int], negatives: Collection[str]) -> dict[str, float]:
    """Return the highest value of each of ``IR_MEASURES`` under any labels of a ranking's unjudged passages.

    For each n, the measure is highest if the upper n unjudged passages of the ranking are the positives. The best value
    is the maximum over n. The largest n is not always best, because a positive at a low rank can lower AP or nDCG.
    """
    gains = np.array([positives.get(passage, 0) for passage in ranking], np.float64)
    open_ = np.array([passage not in positives and passage not in negatives for passage in ranking], bool)
    found: dict[str, float] = {}
    for name in IR_MEASURES:
        measure, _, depth = name.partition("@")
        top = int(depth) if depth else len(ranking)
        if measure == "Success":
            found[name] = float(bool(gains[:top].any() or open_[:top].any()))
        elif measure == "R":
            more = int(open_[:top].sum())
            found[name] = (int((gains[:top] > 0).sum()) + more) / (len(positives) + more)
        elif measure == "nDCG":
            found[name] = _best_ndcg(gains[:top], open_[:top], sorted(positives.values(), reverse=True), top)
        else:
            found[name] = _best_ap(gains > 0, open_, len(positives))
    return found


def _cases(open_: npt.NDArray[np.bool_]) -> npt.NDArray[np.bool_]:
    """Return a mask of shape (unjudged + 1, ranks). Row n marks the upper n unjudged passages."""
    number = np.cumsum(open_)
    return open_ & (number <= np.arange(open_.sum() + 1)[:, None])


def _best_ap(positive: npt.NDArray[np.bool_], open_: npt.NDArray[np.bool_], positives: int) -> float:
    if not len(positive):
        return 0.0
    cases = positive | _cases(open_)
    precision = np.cumsum(cases, axis=1) / np.arange(1, len(positive) + 1)
    sums = np.where(cases, precision, 0.0).sum(axis=1)
    return float((sums / (positives + np.arange(len(cases)))).max())


def _best_ndcg(gains: npt.NDArray[np.float64], open_: npt.NDArray[np.bool_], ideal: Sequence[int], depth: int) -> float:
    """Return the best nDCG. ``ideal`` has the grades of the query's positives, the highest first."""
    highest = ideal[0]
    sums = ((gains + highest * _cases(open_)) / np.log2(np.arange(2, len(gains) + 2))).sum(axis=1)
    best = 0.0
    for more, value in enumerate(sums.tolist()):
        possible = ([highest] * more + list(ideal))[:depth]
        best = max(best, value / math.fsum(gain / math.log2(rank + 2) for rank, gain in enumerate(possible)))
    return best


def holes_text(results: Sequence[Mapping[str, Any]], qrels: Qrels) -> str:
    """Format the tables of holes. ``results`` has the form of the JSON that ``errors holes`` prints."""
    negatives = sum(map(len, qrels.negatives.values()))
    first = [[each["run"], *(percent(each["holes"][name]) for name in SHOWN)] for each in results]
    rows = []
    for each in results:
        rows.append([each["run"], "plain", *measures.cells(each)])
        rows += [["", kind, *measures.cells(each["holes"][kind])] for kind in ("condensed", "best", "residual")]
    lines = [
        f"holes, percent ({qrels.pairs} positives and {negatives} negatives are judged, other passages are unjudged)",
        text_table(["run", *SHOWN], first),
        "",
        "measures in percent. plain: unjudged passages are negatives; condensed: lists without unjudged passages;",
        "best: unjudged passages have the labels that are best for the run; residual: best minus plain",
        text_table(["run", "lists", *PAPER.values(), *IR_MEASURES], rows),
    ]
    if not negatives:
        lines += ["", _NO_NEGATIVES]
    return "\n".join(lines)


def holes_tables(results: Sequence[Mapping[str, Any]]) -> list[Table]:
    """Return the tables of :func:`holes_text`: the shares of judged passages, and the measures of each kind of list."""
    judged_rows, measure_rows = [], []
    for result in results:
        by_kind = result["holes"]
        judged_rows.append([result["run"], *(by_kind[name] for name in SHOWN)])
        measure_rows.append([result["run"], "plain", *measures.fractions(result)])
        for kind in ("condensed", "best", "residual"):
            measure_rows.append([result["run"], kind, *measures.fractions(by_kind[kind])])
    names = [*PAPER.values(), *IR_MEASURES]
    return [
        Table(["run", *SHOWN], judged_rows, title="holes, percent", percent_columns=SHOWN),
        Table(
            ["run", "lists", *names],
            measure_rows,
            title="measures with and without unjudged passages, percent",
            percent_columns=names,
            text_columns=2,
        ),
    ]
