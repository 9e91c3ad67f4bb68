"""The measures: the four official keys, and the usual ones under the names of ir-measures.

The official ``recall@k`` is a hit rate (the share of queries with a positive passage in the top k, ``Success@k``
elsewhere), which is what the paper prints as Recall@k (Section 3.2, Table 4). The share of all positives that were
found, which others call recall, is ``R@k`` here. All values are fractions.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence

from baselines.runs.qrels import Qrels

# As the paper prints them (Section 3.2), and the official script's keys.
PAPER = {"MRR@10": "MRR@10", "Recall@1": "recall@1", "Recall@50": "recall@50"}
OFFICIAL = ("MRR@10", "recall@1", "recall@50", "QueriesRanked")
IR_MEASURES = ("Success@1", "Success@5", "Success@10", "Success@50", "R@10", "R@50", "nDCG@10", "AP")

MRR_DEPTH = 10
LIST_DEPTH = 50  # the official script looks no deeper

Rankings = Mapping[str, Sequence[str]]


def first_positive_rank(ranking: Sequence[str], positives: Mapping[str, int]) -> int | None:
    """The rank (from 1) of the first positive passage. A passage that comes twice takes two ranks."""
    return next((rank for rank, passage in enumerate(ranking, 1) if passage in positives), None)


def reciprocal_rank(rank: int | None) -> float:
    """1 / rank down to rank 10, then 0."""
    return 0.0 if rank is None or rank > MRR_DEPTH else 1 / rank


def official(rankings: Rankings, qrels: Qrels) -> dict[str, float]:
    """The official keys, in the official order: fractions, but for ``QueriesRanked``, a count.

    Means are over all reference queries: one that the run lacks counts 0. ``QueriesRanked`` counts the run's queries,
    also those that the reference lacks, which are otherwise ignored.
    """
    ranks = [first_positive_rank(rankings.get(query, ()), good) for query, good in qrels.positives.items()]
    return {
        "MRR@10": math.fsum(map(reciprocal_rank, ranks)) / len(ranks),
        "recall@1": sum(rank == 1 for rank in ranks) / len(ranks),
        "recall@50": sum(rank is not None and rank <= LIST_DEPTH for rank in ranks) / len(ranks),
        "QueriesRanked": len(rankings),
    }


def paper_by_query(rankings: Rankings, qrels: Qrels) -> list[tuple[float, float, float]]:
    """The paper's measures (``PAPER``, in its order) of every reference query, in the reference's order: fractions."""
    ranks = [first_positive_rank(rankings.get(query, ()), good) for query, good in qrels.positives.items()]
    return [(reciprocal_rank(rank), float(rank == 1), float(rank is not None and rank <= LIST_DEPTH)) for rank in ranks]


def per_query(
    rankings: Rankings,
    qrels: Qrels,
    names: Sequence[str] = IR_MEASURES,
    judged: Mapping[str, Mapping[str, int]] | None = None,
) -> dict[str, list[float]]:
    """Each of ``names`` for every reference query, in the reference's order; 0 where the run lacks the query.

    A passage that comes twice in a ranking counts once, at its first place (the ranks below it move up).

    Args:
        names: measures as ir-measures reads them.
        judged: the grades in the place of the reference's positives: for measures that know what was judged negative.
    """
    import ir_measures

    wanted = {ir_measures.parse_measure(name): name for name in names}
    row = {query: number for number, query in enumerate(qrels.positives)}
    values = {name: [0.0] * len(row) for name in names}
    if run := scored(rankings, row):
        for found in ir_measures.iter_calc(list(wanted), judged or qrels.positives, run):
            values[wanted[found.measure]][row[found.query_id]] = float(found.value)
    return values


def scored(rankings: Rankings, queries: Iterable[str]) -> dict[str, dict[str, float]]:
    """The rankings of some queries for tools that sort by score: falling ones, each passage once.

    All are different, because the tools break ties in their own ways. Queries without a ranking are left out.
    """
    run = {}
    for query in queries:
        if unique := dict.fromkeys(rankings.get(query, ())):
            run[query] = {passage: float(len(unique) - rank) for rank, passage in enumerate(unique)}
    return run


def mean(values: Sequence[float]) -> float:
    """The mean, summed exactly, so that the order of the queries cannot change it."""
    return math.fsum(values) / len(values)
