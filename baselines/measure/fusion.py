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

Scores = dict[str, dict[str, float]]  # by query, then by passage


def scores_of(run: Run, method: str) -> Scores:
    """Return the scores of a run that a method (rrf or weighted) adds."""
    return reciprocal_ranks(run) if method == "rrf" else scale_scores(run)


def reciprocal_ranks(run: Run) -> Scores:
    """Return 1 / (60 + rank) of every passage, with ranks from 1."""
    scores: Scores = {}
    for query, hits in run.hits.items():
        passages = dict.fromkeys(corpus for corpus, _ in hits)
        scores[query] = {corpus: 1 / (RANK_OFFSET + rank) for rank, corpus in enumerate(passages, 1)}
    return scores


def scale_scores(run: Run) -> Scores:
    """Scale every query's scores to 0 ... 1. A repeated passage gets its first score, which is its highest."""
    scaled: Scores = {}
    for query, hits in run.hits.items():
        scores = dict(reversed(hits))
        low, high = min(scores.values(), default=0.0), max(scores.values(), default=0.0)
        scaled[query] = {c: (score - low) / (high - low) if high > low else 1.0 for c, score in scores.items()}
    return scaled


def fuse_scores(systems: Sequence[Scores], weights: Sequence[float], top_k: int) -> Iterator[tuple[str, list[Hit]]]:
    """Yield (query, hits) for every query of any run, in the order in which the queries first occur."""
    for query in dict.fromkeys(query for system in systems for query in system):
        terms: dict[str, list[float]] = {}
        for system, weight in zip(systems, weights, strict=True):
            for corpus, score in system.get(query, {}).items():
                terms.setdefault(corpus, []).append(weight * score)
        # fsum is exact, so the order of the runs does not change the score.
        hits = [(corpus, math.fsum(each)) for corpus, each in terms.items()]
        yield query, best_first(hits)[:top_k]


def weight_mixtures(runs: int, step: float) -> npt.NDArray[np.float64]:
    """Return every vector of ``runs`` weights that are multiples of ``step`` and sum to 1, shape (mixtures, runs)."""
    whole = round(1 / step)
    cuts = itertools.combinations(range(whole + runs - 1), runs - 1)
    return np.array([np.diff([-1, *each, whole + runs - 1]) - 1 for each in cuts], np.float64) / whole


def tune_weights(systems: Sequence[Scores], qrels: Qrels, step: float) -> tuple[list[float], float]:
    """Return (weights, MRR@10) of the best mixture. Ties go to the mixture nearest to equal weights."""
    every = weight_mixtures(len(systems), step)
    sums = np.zeros(len(every))
    for query, positives in qrels.positives.items():
        ids = sorted({corpus for system in systems for corpus in system.get(query, {})})
        good = np.array([corpus in positives for corpus in ids], bool)
        if not good.any():
            continue
        columns = np.array([[system.get(query, {}).get(corpus, 0.0) for system in systems] for corpus in ids])
        scores = (columns @ every.T).round(12)  # rounded, because the last bits are rounding errors
        # The row of the best positive. Ids are sorted and argmax returns the first maximum, so the lowest id wins ties.
        best = np.where(good[:, None], scores, -1.0).argmax(0)
        value = scores[best, np.arange(len(every))]
        above = (scores > value).sum(0) + ((scores == value) & (np.arange(len(ids))[:, None] < best)).sum(0)
        sums += np.where(above < MRR_DEPTH, 1 / (1 + above), 0.0)
    distance = ((every - 1 / len(systems)) ** 2).sum(1)
    first = np.lexsort((distance.round(12), -sums.round(9)))[0]
    return every[first].tolist(), float(sums[first] / len(qrels.positives))
