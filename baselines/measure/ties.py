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
  mean grade of the block. Sums over ranks (R@k, P@k, nDCG@k) follow from this.
- the passage at rank s + j is the block's first positive with probability C(n - j, r - 1) / C(n, r). RR@k needs only
  the first block with a positive. Success@k is 1 minus the probability that the first k - s passages of this block are
  negative, which is the product of (n - r - i) / (n - i) for i = 0 ... k - s - 1.
- if the passage at rank s + j is positive, the expected number of positives above it is R + (j - 1)(r - 1) / (n - 1).
  So AP is the sum of r / n * (1 + R + (j - 1)(r - 1) / (n - 1)) / (s + j) over all ranks, divided by the number of the
  query's positives.
"""

import bisect
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt

from baselines.measure.qrels import Qrels
from builders.store.runs import Run, best_first

LISTED, BY_ID, EXPECTED = "listed", "id", "expected"
# For tables; the default is not named.
TIE_RULES = {BY_ID: "by passage id", EXPECTED: "means over all orders"}
# The measures with formulas for expectations.
_EXPECTED_FORM = re.compile(r"(Success|R|P|Precision|RR|MRR|nDCG)@\d+|AP|MAP")

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
    ordered_run.is_in_memory = run.is_in_memory
    ordered_run.manifest = run.manifest
    return ordered_run


def count_tied_queries(run: Run, qrels: Qrels, depth: int) -> int:
    """Return the number of reference queries with ties around a positive passage in the first ``depth`` ranks.

    Such ties are a block of equal scores that begins in the first ``depth`` ranks and holds a positive and another
    passage that is not positive.
    """
    tied_count = 0
    for query_id, positives in qrels.positives.items():
        scores = run.scores.get(query_id)
        if scores is None:
            continue
        # Most lists have no equal scores, and need no look at their passages.
        top_scores = scores[: depth + 1]
        if not (top_scores[1:] == top_scores[:-1]).any():
            continue
        ranking = run.rankings[query_id]
        for begin, end in _block_limits(scores):
            if begin >= depth:
                break
            labels = {passage_id in positives for passage_id in ranking[begin:end]}
            if len(labels) == 2:  # a positive, and a passage that is not positive
                tied_count += 1
                break
    return tied_count


def without_repeats(ranking: Sequence[str], scores: Values) -> tuple[Sequence[str], Values]:
    """Return the ranking and its scores with only the first of each repeated passage, as ir-measures counts."""
    if len(set(ranking)) == len(ranking):
        return ranking, scores
    first_positions: dict[str, int] = {}
    for position, passage_id in enumerate(ranking):
        first_positions.setdefault(passage_id, position)
    return list(first_positions), scores[list(first_positions.values())]


def positive_blocks(ranking: Sequence[str], scores: Values, positives: Mapping[str, int]) -> list[TiedBlock]:
    """Return the blocks of equal scores that hold a positive passage, best first. A block may hold one passage."""
    block_limits = _block_limits(scores)
    begins = [begin for begin, _ in block_limits]
    grades_by_block: dict[int, list[int]] = {}
    for position, passage_id in enumerate(ranking):
        if passage_id in positives:
            # The last block that begins at or before this position.
            block_number = bisect.bisect_right(begins, position) - 1
            grades_by_block.setdefault(block_number, []).append(positives[passage_id])
    blocks = []
    for block_number, grades in grades_by_block.items():
        begin, end = block_limits[block_number]
        blocks.append(TiedBlock(begin, end - begin, grades))
    return blocks


def _block_limits(scores: Values) -> list[tuple[int, int]]:
    """Return (begin, end) of each block of equal scores, best first.

    For example, the scores 9, 7, 7, 4 have the blocks (0, 1), (1, 3) and (3, 4).
    """
    later_begins = (np.flatnonzero(scores[1:] != scores[:-1]) + 1).tolist()
    return list(pairwise([0, *later_begins, len(scores)]))


def expected_reciprocal_rank(blocks: Sequence[TiedBlock], depth: int) -> float:
    """Return the expected reciprocal rank of the first positive, 0 below ``depth``.

    ``blocks`` are those of :func:`positive_blocks`.
    """
    if not blocks:
        return 0.0
    block = blocks[0]  # always has the first positive
    terms = []
    # The probability that the block's first positive is its passage number ``position``.
    probability = block.positives / block.size
    for position in range(1, block.within(depth) + 1):
        terms.append(probability / (block.above + position))
        remaining_size = block.size - position
        if remaining_size == 0:
            break
        # From C(n - j, r - 1) / C(n, r) for position j to the same for j + 1: the factor is (n - j - r + 1) / (n - j).
        probability *= max(remaining_size - block.positives + 1, 0) / remaining_size
    return math.fsum(terms)


def expected_success(blocks: Sequence[TiedBlock], depth: int) -> float:
    """Return the probability of a positive in the first ``depth`` ranks.

    ``blocks`` are those of :func:`positive_blocks`.
    """
    if not blocks:
        return 0.0
    block = blocks[0]  # always has the first positive
    negative_count = block.size - block.positives
    all_negative = 1.0  # the probability that the block's first passages are all negative
    for position in range(block.within(depth)):
        all_negative *= max(negative_count - position, 0) / (block.size - position)
    return 1 - all_negative


def expected_recall(blocks: Sequence[TiedBlock], depth: int, positive_count: int) -> float:
    """Return the expected share of the query's positives in the first ``depth`` ranks."""
    expected_counts = [block.positives * block.within(depth) / block.size for block in blocks]
    return math.fsum(expected_counts) / positive_count


def expected_ndcg(blocks: Sequence[TiedBlock], depth: int, grades: Sequence[int]) -> float:
    """Return the expected nDCG. ``grades`` has the grades of all positives of the query."""
    expected_gains = []
    for block in blocks:
        ranks = range(block.above + 1, block.above + block.within(depth) + 1)
        discounts = math.fsum(1 / math.log2(rank + 1) for rank in ranks)
        mean_grade = sum(block.grades) / block.size
        expected_gains.append(mean_grade * discounts)
    ideal_grades = sorted(grades, reverse=True)[:depth]
    ideal_gain = math.fsum(grade / math.log2(rank + 1) for rank, grade in enumerate(ideal_grades, start=1))
    return math.fsum(expected_gains) / ideal_gain


def expected_average_precision(blocks: Sequence[TiedBlock], positive_count: int) -> float:
    """Return the expected average precision (AP)."""
    terms = []
    positives_above = 0
    for block in blocks:
        # If a passage of the block is positive, this share of the remaining passages is positive.
        remaining_share = 0.0
        if block.size > 1:
            remaining_share = (block.positives - 1) / (block.size - 1)
        positive_share = block.positives / block.size
        for position in range(1, block.size + 1):
            positives_until = 1 + positives_above + (position - 1) * remaining_share
            terms.append(positive_share * positives_until / (block.above + position))
        positives_above += block.positives
    return math.fsum(terms) / positive_count


def has_expectation(name: str) -> bool:
    """True if :func:`expected_measure` knows the measure."""
    return _EXPECTED_FORM.fullmatch(name) is not None


def expected_measure(name: str, blocks: Sequence[TiedBlock], positives: Mapping[str, int]) -> float:
    """Return the expectation of a measure in ir-measures' notation: Success@k, R@k, P@k, RR@k, MRR@k, nDCG@k or AP.

    ``blocks`` are those of :func:`positive_blocks`, and ``positives`` has the grades of the query's positives.
    """
    measure, _, depth = name.partition("@")
    if measure == "Success":
        return expected_success(blocks, int(depth))
    if measure == "R":
        return expected_recall(blocks, int(depth), len(positives))
    if measure in ("P", "Precision"):
        # Precision counts the same positives as recall, but divides their number by k.
        return expected_recall(blocks, int(depth), int(depth))
    if measure in ("RR", "MRR"):
        return expected_reciprocal_rank(blocks, int(depth))
    if measure == "nDCG":
        return expected_ndcg(blocks, int(depth), list(positives.values()))
    return expected_average_precision(blocks, len(positives))
