"""Fuse runs by reciprocal rank or by scaled scores, and find the weights of the runs that are best on judgments."""

import itertools
import math
from collections.abc import Iterator, Sequence

import numpy as np
import numpy.typing as npt

from baselines.measure.measures import MRR_DEPTH
from baselines.measure.qrels import Qrels
from builders.store.runs import Hit, Run, best_first

RANK_OFFSET = 60  # the usual constant of reciprocal rank fusion
_BELOW_ALL_SCORES = -1.0  # fused scores are at least 0
# Decimals in which two values must differ. Later decimals are rounding errors.
_SCORE_DIGITS = 12
_SUM_DIGITS = 9

Scores = dict[str, dict[str, float]]  # by query, then by passage


def scores_of(run: Run, method: str) -> Scores:
    """Return the scores of a run that a method (rrf or weighted) adds."""
    return reciprocal_ranks(run) if method == "rrf" else scale_scores(run)


def reciprocal_ranks(run: Run) -> Scores:
    """Return 1 / (60 + rank) of every passage, with ranks from 1."""
    scores_by_query: Scores = {}
    for query_id, hits in run.hits.items():
        unique_passages = dict.fromkeys(passage_id for passage_id, _ in hits)
        scores = {}
        for rank, passage_id in enumerate(unique_passages, start=1):
            scores[passage_id] = 1 / (RANK_OFFSET + rank)
        scores_by_query[query_id] = scores
    return scores_by_query


def scale_scores(run: Run) -> Scores:
    """Scale every query's scores to 0 ... 1. A repeated passage gets its first score, which is its highest."""
    scores_by_query: Scores = {}
    for query_id, hits in run.hits.items():
        # A dictionary keeps the last value of a key, so the first hit comes last.
        scores = dict(reversed(hits))
        lowest = min(scores.values(), default=0.0)
        highest = max(scores.values(), default=0.0)
        if highest > lowest:
            scaled = {passage_id: (score - lowest) / (highest - lowest) for passage_id, score in scores.items()}
        else:
            scaled = dict.fromkeys(scores, 1.0)
        scores_by_query[query_id] = scaled
    return scores_by_query


def fuse_scores(systems: Sequence[Scores], weights: Sequence[float], top_k: int) -> Iterator[tuple[str, list[Hit]]]:
    """Yield (query, best ``top_k`` hits) for every query of any run, in the order in which the queries first occur.

    ``systems`` has the scores of each run (:func:`scores_of`). A fused score is the weighted sum of a passage's scores.
    """
    for query_id in dict.fromkeys(itertools.chain.from_iterable(systems)):
        terms_by_passage: dict[str, list[float]] = {}
        for system, weight in zip(systems, weights, strict=True):
            for passage_id, score in system.get(query_id, {}).items():
                terms_by_passage.setdefault(passage_id, []).append(weight * score)
        # fsum is exact, so the order of the runs does not change the score.
        hits = [(passage_id, math.fsum(terms)) for passage_id, terms in terms_by_passage.items()]
        yield query_id, best_first(hits)[:top_k]


def weight_mixtures(runs: int, step: float) -> npt.NDArray[np.float64]:
    """Return every vector of ``runs`` weights that are multiples of ``step`` and sum to 1, shape (mixtures, runs).

    The steps are stars in a row, and bars divide the row into a part for each run. For example, of 5 steps and 3 runs,
    the bars at the positions 1 and 4 give the weights 1/5, 2/5 and 2/5::

        position  0 1 2 3 4 5 6
                  * | * * | * *
    """
    step_count = round(1 / step)
    row_length = step_count + runs - 1
    mixtures = []
    for bars in itertools.combinations(range(row_length), runs - 1):
        # The stars between two neighbours are the difference of their positions, minus 1.
        mixtures.append(np.diff([-1, *bars, row_length]) - 1)
    return np.array(mixtures, np.float64) / step_count


def tune_weights(systems: Sequence[Scores], qrels: Qrels, step: float) -> tuple[list[float], float]:
    """Return (weights, MRR@10) of the mixture with the best MRR@10. Ties go to the one nearest to equal weights.

    ``systems`` has the scores of each run (:func:`scores_of`). Every mixture of :func:`weight_mixtures` is tried.
    """
    mixtures = weight_mixtures(len(systems), step)
    mrr_sums = np.zeros(len(mixtures))
    for query_id, positives in qrels.positives.items():
        system_scores = [system.get(query_id, {}) for system in systems]
        passage_ids = sorted(set[str]().union(*system_scores))
        is_positive = np.array([passage_id in positives for passage_id in passage_ids], bool)
        if not is_positive.any():
            continue
        score_columns = [[scores.get(passage_id, 0.0) for passage_id in passage_ids] for scores in system_scores]
        # The fused scores, shape (passages, mixtures), rounded because the last digits are rounding errors.
        fused_scores = (np.column_stack(score_columns) @ mixtures.T).round(_SCORE_DIGITS)
        # The row of the best positive. Ids are sorted and argmax returns the first maximum, so the lowest id wins ties.
        best_positive_rows = np.where(is_positive[:, None], fused_scores, _BELOW_ALL_SCORES).argmax(0)
        best_scores = fused_scores[best_positive_rows, np.arange(len(mixtures))]
        # Passages with a higher score, or with the same score and a lower id, are above the best positive.
        has_lower_id = np.arange(len(passage_ids))[:, None] < best_positive_rows
        higher_count = (fused_scores > best_scores).sum(0)
        tied_count = ((fused_scores == best_scores) & has_lower_id).sum(0)
        above_count = higher_count + tied_count
        mrr_sums += np.where(above_count < MRR_DEPTH, 1 / (1 + above_count), 0.0)
    equal_weight = 1 / len(systems)
    distances = ((mixtures - equal_weight) ** 2).sum(1)
    # lexsort sorts by its last key first: the highest MRR, then the smallest distance.
    best_mixture = np.lexsort((distances.round(_SCORE_DIGITS), -mrr_sums.round(_SUM_DIGITS)))[0]
    return mixtures[best_mixture].tolist(), float(mrr_sums[best_mixture] / len(qrels.positives))
