"""The measures: the four official keys, and the usual ones under the names of ir-measures.

The official ``recall@k`` is a hit rate (the share of queries with a positive passage in the top k, ``Success@k``
elsewhere), which is what the paper prints as Recall@k (Section 3.2, Table 4). The share of all positives that were
found, which others call recall, is ``R@k`` here. All values are fractions.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.types as types

from baselines.measure.qrels import Qrels
from builders.core.errors import InputError
from builders.core.tables import percent

# As the paper prints them (Section 3.2), and the official script's keys.
PAPER = {"MRR@10": "MRR@10", "Recall@1": "recall@1", "Recall@50": "recall@50"}
OFFICIAL = (*PAPER.values(), "QueriesRanked")
IR_MEASURES = ("Success@1", "Success@5", "Success@10", "Success@50", "R@10", "R@50", "nDCG@10", "AP")

MRR_DEPTH = 10
LIST_DEPTH = 50  # the official script looks no deeper

Rankings = Mapping[str, Sequence[str]]
Values = npt.NDArray[np.float64]


def reciprocal_rank(rank: int | None) -> float:
    """1 / rank down to rank 10, then 0."""
    return 0.0 if rank is None or rank > MRR_DEPTH else 1 / rank


def first_ranks(rankings: Rankings, qrels: Qrels) -> list[int | None]:
    """The rank (from 1) of the first positive passage of every reference query, in the reference's order.

    A passage that comes twice takes two ranks.
    """
    return [
        next((rank for rank, passage in enumerate(rankings.get(query, ()), 1) if passage in positives), None)
        for query, positives in qrels.positives.items()
    ]


def official(rankings: Rankings, qrels: Qrels) -> dict[str, float]:
    """The official keys, in the official order: fractions, but for ``QueriesRanked``, a count.

    Means are over all reference queries: one that the run lacks counts 0. ``QueriesRanked`` counts the run's queries,
    also those that the reference lacks, which are otherwise ignored.
    """
    means = map(mean, zip(*paper_by_query(rankings, qrels), strict=True))
    return {**dict(zip(PAPER.values(), means, strict=True)), "QueriesRanked": len(rankings)}


def paper_by_query(rankings: Rankings, qrels: Qrels) -> list[tuple[float, float, float]]:
    """The paper's measures (``PAPER``, in its order) of every reference query, in the reference's order: fractions."""
    return list(map(_paper_values, first_ranks(rankings, qrels)))


def _paper_values(rank: int | None) -> tuple[float, float, float]:
    return reciprocal_rank(rank), float(rank == 1), float(rank is not None and rank <= LIST_DEPTH)


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
    if run := _scored(rankings, row):
        for found in ir_measures.iter_calc(list(wanted), judged or qrels.positives, run):
            values[wanted[found.measure]][row[found.query_id]] = float(found.value)
    return values


def _scored(rankings: Rankings, queries: Iterable[str]) -> dict[str, dict[str, float]]:
    """The rankings of some queries as falling scores, all different: the library breaks ties in a way of its own.

    Each passage once; queries without a ranking are left out.
    """
    run = {}
    for query in queries:
        if unique := dict.fromkeys(rankings.get(query, ())):
            run[query] = {passage: float(len(unique) - rank) for rank, passage in enumerate(unique)}
    return run


def measure(rankings: Rankings, qrels: Qrels) -> tuple[dict[str, dict[str, float]], dict[str, list[float]]]:
    """(means: ``official`` and ``ir_measures``, each by measure; values by query: RR@10 and ``IR_MEASURES``)."""
    by_query = per_query(rankings, qrels)
    means = {name: mean(values) for name, values in by_query.items()}
    by_query = {"RR@10": list(map(reciprocal_rank, first_ranks(rankings, qrels))), **by_query}
    return {"official": official(rankings, qrels), "ir_measures": means}, by_query


def cells(means: Mapping[str, Any]) -> list[str]:
    """The means of :func:`measure` in percent: the paper's measures, then ``IR_MEASURES``."""
    every = means["official"] | means["ir_measures"]
    return [percent(every[name]) for name in (*PAPER.values(), *IR_MEASURES)]


def mean(values: Sequence[float]) -> float:
    """The mean, summed exactly, so that the order of the queries cannot change it."""
    return math.fsum(values) / len(values)


def values_of(by_query: pa.Table, measure: str) -> Values:
    """One value a query, as fractions, in the order of a table of :func:`baselines.measure.evaluate.evaluate`.

    ``measure`` is an official key (MRR@10, recall@1, recall@50; the mean of the values is the official value) or a
    column of the table. Raises :class:`InputError` for another name.
    """
    if measure not in measured(by_query):
        raise InputError(f"no measure {measure!r} of single queries; expected one of {', '.join(measured(by_query))}")
    if measure in OFFICIAL:
        values = map(_paper_values, by_query["first_positive_rank"].to_pylist())
        return np.array([each[OFFICIAL.index(measure)] for each in values])
    return np.asarray(by_query[measure].to_numpy(), np.float64)


def measured(by_query: pa.Table) -> list[str]:
    """Every measure of the table: the official keys, then its columns."""
    return [*PAPER.values(), *(field.name for field in by_query.schema if types.is_floating(field.type))]
