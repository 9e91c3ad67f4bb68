"""How runs are combined: reciprocal ranks, or weighted scores; and which weights are best on a split."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence

import numpy as np
import numpy.typing as npt

from baselines.runs.measures import MRR_DEPTH
from baselines.runs.qrels import Qrels
from builders.store.runs import Hit, Run

RRF_K = 60

Scores = dict[str, dict[str, float]]  # by query, by passage


def reciprocal_ranks(run: Run, k: int = RRF_K) -> Scores:
    """1 / (k + rank) of every passage, ranks from 1."""
    return {
        query: {corpus: 1 / (k + rank) for rank, corpus in enumerate(dict.fromkeys(c for c, _ in hits), 1)}
        for query, hits in run.hits.items()
    }


def normalised(run: Run) -> Scores:
    """Every query's scores between 0 and 1. A passage that comes twice has its first, higher score."""
    found: Scores = {}
    for query, hits in run.hits.items():
        scores = dict(reversed(hits))
        low, high = min(scores.values(), default=0.0), max(scores.values(), default=0.0)
        found[query] = {c: (score - low) / (high - low) if high > low else 1.0 for c, score in scores.items()}
    return found


def fused(systems: Sequence[Scores], weights: Sequence[float], top_k: int) -> Iterator[tuple[str, list[Hit]]]:
    """(query, hits) for every query of any run, in the order of the first run that has it."""
    for query in dict.fromkeys(query for system in systems for query in system):
        terms: dict[str, list[float]] = {}
        for system, weight in zip(systems, weights, strict=True):
            for corpus, score in system.get(query, {}).items():
                terms.setdefault(corpus, []).append(weight * score)
        # Summed exactly: the order of the runs changes nothing.
        hits = [(corpus, math.fsum(each)) for corpus, each in terms.items()]
        yield query, sorted(hits, key=lambda hit: (-hit[1], hit[0]))[:top_k]


def mixtures(runs: int, step: float) -> npt.NDArray[np.float64]:
    """Every vector of ``runs`` weights that are multiples of ``step`` and add up to 1, shape (mixtures, runs)."""
    whole = round(1 / step)
    cuts = itertools.combinations(range(whole + runs - 1), runs - 1)
    found = [np.diff([-1, *each, whole + runs - 1]) - 1 for each in cuts]
    return np.array(found, np.float64) / whole


def tune(systems: Sequence[Scores], qrels: Qrels, step: float) -> tuple[list[float], float]:
    """(weights, MRR@10) of the best mixture; of equally good ones that nearest to equal weights."""
    every = mixtures(len(systems), step)
    sums = np.zeros(len(every))
    for query, positives in qrels.positives.items():
        ids = sorted({corpus for system in systems for corpus in system.get(query, {})})
        good = np.array([corpus in positives for corpus in ids], bool)
        if not good.any():
            continue
        columns = np.array([[system.get(query, {}).get(corpus, 0.0) for system in systems] for corpus in ids])
        scores = (columns @ every.T).round(12)  # what is equal but for the last bits is equal
        # The first positive by falling score, then by id: ids are sorted, argmax takes the first.
        best = np.where(good[:, None], scores, -1.0).argmax(0)
        value = scores[best, np.arange(len(every))]
        above = (scores > value).sum(0) + ((scores == value) & (np.arange(len(ids))[:, None] < best)).sum(0)
        sums += np.where(above < MRR_DEPTH, 1 / (1 + above), 0.0)
    distance = ((every - 1 / len(systems)) ** 2).sum(1)
    first = np.lexsort((distance.round(12), -sums.round(9)))[0]
    return every[first].tolist(), float(sums[first] / len(qrels.positives))
