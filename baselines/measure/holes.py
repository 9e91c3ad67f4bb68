"""Effects of holes on a run's measures. A hole is a retrieved passage that nobody judged.

The plain measures take an unjudged passage for a negative. Beside them stand

- ``Judged@10``: the share of the first ten that was judged;
- ``Bpref``: how many judged negatives stand above each positive; the unjudged do not count (Buckley and Voorhees 2004);
- condensed lists: the measures of the list without its unjudged passages (Sakai 2007), ``judged_only`` in ir-measures;
- the best: the highest value under any judging of the list's unjudged passages; what that is above the plain value is
  the residual. An unjudged passage that counts as positive has the highest grade of its query, and is one more that
  there was to find. Passages that the run did not retrieve stay what they are.

All values are fractions.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from baselines.measure import measures
from baselines.measure.measures import IR_MEASURES, PAPER, Rankings, first_ranks, mean, reciprocal_rank
from baselines.measure.qrels import Qrels
from builders.core.tables import percent, text_table

SHOWN = ("Judged@10", "Bpref")
LISTS = ("plain", "condensed", "best", "residual")
_NO_NEGATIVES = """\
No passage is judged negative: condensed lists and Bpref say which positives were found, not where; and the best judging
of any list is near 100."""

ByQuery = dict[str, list[float]]  # by measure, a value for each reference query
Means = Mapping[str, Any]  # "official" and "ir_measures": by measure


def condensed_name(name: str) -> str:
    """A measure of ir-measures on lists without their unjudged passages: ``R@10`` is ``R(judged_only=True)@10``."""
    measure, at, depth = name.partition("@")
    return f"{measure}(judged_only=True){at}{depth}"


def condensed(rankings: Rankings, judged: Mapping[str, Collection[str]]) -> dict[str, list[str]]:
    """The rankings of the judged queries without their unjudged passages."""
    return {
        query: [passage for passage in rankings[query] if passage in known]
        for query, known in judged.items()
        if query in rankings
    }


def holes(rankings: Rankings, qrels: Qrels, plain: Means) -> tuple[dict[str, Any], ByQuery]:
    """(means, values by query) of one run; ``plain``: the means of :func:`baselines.measure.evaluate.evaluate`.

    The means: ``Judged@10``, ``Bpref``, and for ``condensed``, ``best`` and ``residual`` the measures under
    ``official`` and ``ir_measures``. The values by query: ``Judged@10``, ``Bpref``, condensed ones under ir-measures'
    names, and ``best RR@10``, ``best AP`` ...
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
    # For a first positive it is best that every retrieved passage which nobody judged is a positive.
    hopeful = Qrels(qrels.name)
    for query, positive in qrels.positives.items():
        negative = qrels.negatives.get(query, set())
        hopeful.positives[query] = {each: 1 for each in rankings.get(query, ()) if each not in negative} | positive
    means: dict[str, Any] = {name: mean(found[name]) for name in SHOWN}
    means["condensed"] = _means(lists, qrels, {name: found[each] for each, name in names.items()})
    means["best"] = _means(rankings, hopeful, best)
    means["residual"] = {  # sums of the same numbers in two libraries differ by 1e-16
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
    others = {name: mean(values) for name, values in by_query.items()}
    return {"official": {name: found[name] for name in PAPER.values()}, "ir_measures": others}


def _reciprocal(rankings: Rankings, qrels: Qrels) -> list[float]:
    return list(map(reciprocal_rank, first_ranks(rankings, qrels)))


def best_of(ranking: Sequence[str], positives: Mapping[str, int], negatives: Collection[str]) -> dict[str, float]:
    """The highest value of each of ``IR_MEASURES`` under any judging of a ranking's unjudged passages.

    Of two unjudged passages the upper one is always the better positive. So there is one case a number of positives
    among them, and the highest of these values is the best: more is not better where a positive far down lowers a mean.
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
    """Shape (unjudged + 1, ranks): in case n, the upper n unjudged passages."""
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
    """``ideal``: the grades of the query's positives, the highest first."""
    highest = ideal[0]
    sums = ((gains + highest * _cases(open_)) / np.log2(np.arange(2, len(gains) + 2))).sum(axis=1)
    values = []
    for more, value in enumerate(sums.tolist()):
        possible = ([highest] * more + list(ideal))[:depth]
        values.append(value / math.fsum(gain / math.log2(rank + 2) for rank, gain in enumerate(possible)))
    return float(max(values))


def text(results: Sequence[Mapping[str, Any]], qrels: Qrels) -> str:
    """The tables of the runs' holes. ``results``: as the verb ``evaluate`` prints them as JSON, with ``holes``."""
    negatives = sum(map(len, qrels.negatives.values()))
    first = [[each["run"], *(percent(each["holes"][name]) for name in SHOWN)] for each in results]
    rows = []
    for each in results:
        for kind in LISTS:
            plain = kind == "plain"
            rows.append([each["run"] * plain, kind, *measures.cells(each if plain else each["holes"][kind])])
    lines = [
        f"holes, percent ({qrels.pairs} positives and {negatives} negatives are judged, everything else is unjudged)",
        text_table(["run", *SHOWN], first),
        "",
        "percent of the lists as they are (plain), without what is unjudged (condensed), under the judging of it that",
        "is best for the run (best); residual: best less plain",
        text_table(["run", "lists", *PAPER.values(), *IR_MEASURES], rows),
    ]
    if not negatives:
        lines += ["", _NO_NEGATIVES]
    return "\n".join(lines)
