"""Equal scores: the order of tied passages, the queries that depend on this order, and exact means over all orders.

A retriever does not order passages with equal scores. A constant scorer has MRR@10 100 if its run lists the positives
first, and 0 if it lists them last. There are three rules for ties:

- ``listed``: ties keep the order of the ranks in a file, of a dictionary, or of a data frame;
- ``id``: ties are ordered by passage id, as in the runs that the verbs write;
- ``expected``: a measure is its mean over all orders of the tied passages, each order equally likely.

The means are exact. The formulas are those of McSherry and Najork, "Computing Information Retrieval Performance
Measures Efficiently in the Presence of Tied Scores" (ECIR 2008). A block holds n passages with equal scores, r of them
positive. s passages, R of them positive, are above the block. In a random order of the block,

- the passage at each of the ranks s + 1 ... s + n is positive with probability r / n, and its expected grade is the
  mean grade of the block. Sums over ranks (R@k, nDCG@k) follow from this.
- the passage at rank s + j is the block's first positive with probability C(n - j, r - 1) / C(n, r). RR@k needs only
  the first block with a positive. Success@k is 1 minus the probability that the first k - s passages of this block are
  negative, which is the product of (n - r - i) / (n - i) for i = 0 ... k - s - 1.
- if the passage at rank s + j is positive, the expected number of positives above it is R + (j - 1)(r - 1) / (n - 1).
  So AP is the sum of r / n * (1 + R + (j - 1)(r - 1) / (n - 1)) / (s + j) over all ranks, divided by the number of the
  query's positives.
"""

import bisect
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from baselines.measure.qrels import Qrels
from builders.store.runs import Run, best_first

LISTED, BY_ID, EXPECTED = "listed", "id", "expected"
TIE_RULES = {BY_ID: "by passage id", EXPECTED: "means over all orders"}  # for tables; the default is not named

Values = npt.NDArray[Any]


@dataclass(frozen=True)
class TiedBlock:
    """Passages with equal scores, at least one of them positive.

    Attributes:
        above: the number of passages above the block.
        size: the number of passages in the block.
        grades: the grades of the block's positive passages.
    """

    above: int
    size: int
    grades: list[int]

    @property
    def positives(self) -> int:
        return len(self.grades)

    def within(self, depth: int) -> int:
        """Return the number of the block's ranks that are among the first ``depth`` ranks of the list."""
        return min(max(depth - self.above, 0), self.size)


def order_ties(run: Run, ties: str) -> Run:
    """Return the run with its ties ordered by passage id if ``ties`` is ``id``. Otherwise return the run as it is."""
    if ties != BY_ID:
        return run
    hits_by_query = {}
    for query_id, hits in run.hits.items():
        scores = run.scores[query_id]
        has_ties = bool((scores[1:] == scores[:-1]).any())
        hits_by_query[query_id] = best_first(hits) if has_ties else hits
    ordered_run = Run(run.path, hits_by_query)
    ordered_run.is_in_memory, ordered_run.manifest = run.is_in_memory, run.manifest
    return ordered_run


def count_tied_queries(run: Run, qrels: Qrels, depth: int) -> int:
    """Return the number of reference queries with ties around a positive passage in the first ``depth`` ranks.

    Such ties are a block of equal scores that begins in the first ``depth`` ranks and holds a positive and another
    passage that is not positive.
    """
    count = 0
    for query_id, positives in qrels.positives.items():
        scores = run.scores.get(query_id)
        if scores is None:
            continue
        top_scores = scores[: depth + 1]
        if not (top_scores[1:] == top_scores[:-1]).any():
            continue
        ranking = run.rankings[query_id]
        for begin, end in _block_limits(scores):
            if begin >= depth:
                break
            labels = {passage in positives for passage in ranking[begin:end]}
            if len(labels) == 2:
                count += 1
                break
    return count


def without_repeats(ranking: Sequence[str], scores: Values) -> tuple[Sequence[str], Values]:
    """Return the ranking and its scores with only the first of each repeated passage, as ir-measures counts."""
    if len({*ranking}) == len(ranking):
        return ranking, scores
    first_ranks: dict[str, int] = {}
    for rank, passage in enumerate(ranking):
        first_ranks.setdefault(passage, rank)
    return [*first_ranks], scores[[*first_ranks.values()]]


def positive_blocks(ranking: Sequence[str], scores: Values, positives: Mapping[str, int]) -> list[TiedBlock]:
    """Return the blocks of equal scores that hold a positive passage, best first. A block may hold one passage."""
    limits = _block_limits(scores)
    begins = [begin for begin, _ in limits]
    grades_by_block: dict[int, list[int]] = {}
    for rank, passage in enumerate(ranking):
        if passage in positives:
            block_number = bisect.bisect_right(begins, rank) - 1
            grades_by_block.setdefault(block_number, []).append(positives[passage])
    blocks = []
    for block_number, grades in grades_by_block.items():
        begin, end = limits[block_number]
        blocks.append(TiedBlock(begin, end - begin, grades))
    return blocks


def _block_limits(scores: Values) -> list[tuple[int, int]]:
    """Return (begin, end) of each block of equal scores, best first."""
    begins = [0, *(np.flatnonzero(scores[1:] != scores[:-1]) + 1).tolist()]
    return list(zip(begins, [*begins[1:], len(scores)], strict=True))


def expected_reciprocal_rank(blocks: Sequence[TiedBlock], depth: int) -> float:
    """Return the expected reciprocal rank of the first positive, 0 below ``depth``."""
    if not blocks:
        return 0.0
    block = blocks[0]
    terms = []
    probability = block.positives / block.size  # that the first positive is the block's first passage
    for place in range(1, block.within(depth) + 1):
        terms.append(probability / (block.above + place))
        remaining = block.size - place
        if remaining == 0:
            break
        probability *= max(remaining - block.positives + 1, 0) / remaining
    return math.fsum(terms)


def expected_success(blocks: Sequence[TiedBlock], depth: int) -> float:
    """Return the probability of a positive in the first ``depth`` ranks."""
    if not blocks:
        return 0.0
    block = blocks[0]
    all_negative = 1.0
    for drawn in range(block.within(depth)):
        all_negative *= max(block.size - block.positives - drawn, 0) / (block.size - drawn)
    return 1 - all_negative


def expected_recall(blocks: Sequence[TiedBlock], depth: int, positive_count: int) -> float:
    """Return the expected share of the query's positives in the first ``depth`` ranks."""
    return math.fsum(block.positives * block.within(depth) / block.size for block in blocks) / positive_count


def expected_ndcg(blocks: Sequence[TiedBlock], depth: int, grades: Sequence[int]) -> float:
    """Return the expected nDCG. ``grades`` has the grades of all positives of the query."""
    gains = []
    for block in blocks:
        discounts = math.fsum(1 / math.log2(block.above + place + 1) for place in range(1, block.within(depth) + 1))
        gains.append(sum(block.grades) / block.size * discounts)
    ideal_grades = sorted(grades, reverse=True)[:depth]
    ideal = math.fsum(grade / math.log2(rank + 1) for rank, grade in enumerate(ideal_grades, start=1))
    return math.fsum(gains) / ideal


def expected_average_precision(blocks: Sequence[TiedBlock], positive_count: int) -> float:
    """Return the expected average precision (AP)."""
    terms = []
    positives_above = 0
    for block in blocks:
        # Of the other passages of the block, this share is positive if one passage is known to be positive.
        others_positive = (block.positives - 1) / (block.size - 1) if block.size > 1 else 0.0
        for place in range(1, block.size + 1):
            positives_until = 1 + positives_above + (place - 1) * others_positive
            terms.append(block.positives / block.size * positives_until / (block.above + place))
        positives_above += block.positives
    return math.fsum(terms) / positive_count


def expected_measure(name: str, blocks: Sequence[TiedBlock], positives: Mapping[str, int]) -> float:
    """Return the expectation of a measure in the notation of ir-measures: Success@k, R@k, nDCG@k or AP.

    ``blocks`` are those of :func:`positive_blocks`, and ``positives`` has the grades of the query's positives.
    """
    measure, _, depth = name.partition("@")
    if measure == "Success":
        return expected_success(blocks, int(depth))
    if measure == "R":
        return expected_recall(blocks, int(depth), len(positives))
    if measure == "nDCG":
        return expected_ndcg(blocks, int(depth), [*positives.values()])
    return expected_average_precision(blocks, len(positives))
