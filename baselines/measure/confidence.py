"""Confidence of a search: AUROC, a threshold for a share of false answers, and nAUC.

A confidence is a number for each question, for example the score of the best passage. A system answers a question if
its confidence is above a threshold, and declines the others.

AUROC is the probability that a question with an answer has a higher confidence than a question without an answer, where
equal confidences count one half.

nAUC is the normalised area under the abstention curve (Gisserot-Boukhlef et al. 2024, "Towards Trustworthy Reranking: A
Simple yet Effective Abstention Mechanism", arXiv 2402.12997), as mteb 2.26 computes it. The curve has the mean of a
measure over the remaining questions, if the 0 %, 10 % ... 90 % of the questions with the lowest confidences are
declined. Let A be the area under this curve, F the area if declining changes nothing, and O the area if the questions
with the lowest values of the measure are declined. Then nAUC is (A - F) / (O - F). It is 1 for the best order of the
questions, 0 for a random order and negative for a worse order. Questions with equal confidences all have the mean of
their values.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fractions import Fraction

import numpy as np
import numpy.typing as npt

from baselines.measure.measures import Values
from baselines.measure.significance import LEVEL, RESAMPLES, Interval

# The declined shares of mteb's abstention curve: 0, 0.1 ... 0.9.
_DECLINED_SHARES = np.linspace(0, 1, 11)[:-1]
# mteb's functions of a question's scores.
NAUC_FUNCTIONS = ("max", "std", "diff1")

Rows = npt.NDArray[np.int64]


def auroc(answerable: Values, unanswerable: Values) -> float:
    """Return the probability that the first group has the higher confidence. Equal confidences count one half.

    The confidences of the two groups have the shapes (questions,) and (other questions,).
    """
    rising = np.sort(unanswerable)
    lower_counts = np.searchsorted(rising, answerable, "left")
    not_higher_counts = np.searchsorted(rising, answerable, "right")
    # A pair of equal confidences is counted by the second sum only, so it counts one half.
    higher_pairs = (lower_counts.sum() + not_higher_counts.sum()) / 2
    return float(higher_pairs / (len(answerable) * len(unanswerable)))


def auroc_interval(answerable: Values, unanswerable: Values, seed: int) -> Interval:
    """Return the 95 % bootstrap interval of :func:`auroc` over questions. Row i of both groups is the same question."""

    # Prepared once, because a rank of all values for each resample takes ten times as long.
    different_confidences, groups = np.unique(unanswerable, return_inverse=True)
    lower_groups = np.searchsorted(different_confidences, answerable, "left")
    not_higher_groups = np.searchsorted(different_confidences, answerable, "right")
    count = len(answerable)

    def auroc_of_rows(rows: Rows) -> float:
        # counts_below[g]: number of drawn unanswerable confidences in the g lowest groups of equal confidences
        counts_below = np.zeros(len(different_confidences) + 1, np.int64)
        np.cumsum(np.bincount(groups[rows], minlength=len(different_confidences)), out=counts_below[1:])
        lower_pairs = counts_below[lower_groups[rows]].sum()
        not_higher_pairs = counts_below[not_higher_groups[rows]].sum()
        return float((lower_pairs + not_higher_pairs) / 2 / (count * count))

    interval = _resampled_interval(auroc_of_rows, count, seed)
    assert interval is not None  # every resample has an AUROC
    return interval


def _resampled_interval(statistic: Callable[[Rows], float | None], count: int, seed: int) -> Interval | None:
    """Return the 95 % bootstrap interval of a statistic of ``count`` rows. Resamples without a statistic are skipped.

    ``statistic`` gets the row numbers of a resample. Returns None if no resample has a statistic.
    """
    random = np.random.default_rng(seed)
    resampled_values = []
    for _ in range(RESAMPLES):
        value = statistic(random.integers(count, size=count))
        if value is not None:
            resampled_values.append(value)
    if not resampled_values:
        return None
    low, high = np.quantile(resampled_values, [(1 - LEVEL) / 2, (1 + LEVEL) / 2]).tolist()
    return low, high


def choose_threshold(unanswerable: Values, false_answers: float) -> float:
    """Return the lowest threshold with at most the share ``false_answers`` of the confidences above it.

    ``false_answers`` is below 1. With a share of 0.1 and 44 confidences, 4 may be above, so the threshold is the fifth
    highest.
    """
    # The share as it is written: 0.29 of 100 is 29, but the product of floats is below 29.
    allowed_count = math.floor(Fraction(repr(float(false_answers))) * len(unanswerable))
    falling = np.sort(unanswerable)[::-1]
    return float(falling[allowed_count])


@dataclass(frozen=True)
class ThresholdTrial:
    """A threshold that was chosen on one half of the questions, and its errors on the other half.

    Attributes:
        threshold: a question is answered if its confidence is above this number.
        chosen_on: number of questions of the first half.
        questions: number of questions of the other half.
        false_answers: number of questions of the other half that are answered without their answering passages.
        answered: number of questions of the other half that are answered with their answering passages.
    """

    threshold: float
    chosen_on: int
    questions: int
    false_answers: int
    answered: int


def try_threshold(answerable: Values, unanswerable: Values, false_answers: float, seed: int) -> ThresholdTrial:
    """Choose a threshold on a random half of at least two questions, and count the answers to the other half.

    Row i of both groups is the same question, so both of its confidences are in the same half.
    """
    order = np.random.default_rng(seed).permutation(len(answerable))
    half = len(answerable) // 2
    threshold = choose_threshold(unanswerable[order[:half]], false_answers)
    other_half = order[half:]
    return ThresholdTrial(
        threshold=threshold,
        chosen_on=half,
        questions=len(other_half),
        false_answers=int((unanswerable[other_half] > threshold).sum()),
        answered=int((answerable[other_half] > threshold).sum()),
    )


def nauc_confidences(scores: Values) -> tuple[float, float, float]:
    """Return mteb's three confidences of a question: the highest score, the standard deviation of the scores, and the
    difference of the two highest scores. ``scores`` fall. Without scores, all are 0, and with one, the difference is 0.
    """
    if not len(scores):
        return 0.0, 0.0, 0.0
    gap = float(scores[0] - scores[1]) if len(scores) > 1 else 0.0
    return float(scores[0]), float(np.std(scores)), gap


def nauc(confidences: Values, values: Values) -> float | None:
    """Return nAUC, None if all values are equal.

    ``confidences`` has the confidence of each question, and ``values`` a measure's value of the same question.
    """
    return _nauc_of_ranks(_ranks_of(confidences), _ranks_of(values), values)


def nauc_interval(confidences: Values, values: Values, seed: int) -> Interval | None:
    """Return the 95 % bootstrap interval of :func:`nauc` over questions, None if all values are equal."""
    # A resample has the order of all questions. So they are ranked once.
    confidence_ranks = _ranks_of(confidences)
    value_ranks = _ranks_of(values)

    def nauc_of_rows(rows: Rows) -> float | None:
        return _nauc_of_ranks(confidence_ranks[rows], value_ranks[rows], values[rows])

    return _resampled_interval(nauc_of_rows, len(values), seed)


def _ranks_of(numbers: Values) -> Rows:
    """Return the rank of each number from 0. Equal numbers have the same rank."""
    _, ranks = np.unique(numbers, return_inverse=True)
    return np.asarray(ranks, np.int64)


def _nauc_of_ranks(confidence_ranks: Rows, value_ranks: Rows, values: Values) -> float | None:
    """Return nAUC, None if all values are equal. The ranks order the questions by confidence and by value."""
    if np.ptp(values) == 0:
        return None
    area = np.trapezoid(_abstention_curve(confidence_ranks, values), _DECLINED_SHARES)
    best_area = np.trapezoid(_abstention_curve(value_ranks, values), _DECLINED_SHARES)
    flat_area = values.mean() * (_DECLINED_SHARES[-1] - _DECLINED_SHARES[0])
    return float((area - flat_area) / (best_area - flat_area))


def _abstention_curve(ranks: Rows, values: Values) -> Values:
    """Return the mean value of the questions that are not declined, for each declined share.

    The questions with the lowest ranks are declined first. A rank may be that of no question.
    """
    group_sizes = np.bincount(ranks)
    # A group without questions is repeated 0 times below, so its mean does not matter.
    group_means = np.bincount(ranks, weights=values) / np.maximum(group_sizes, 1)
    # The values by rising rank, each replaced by the mean of its group of equal ranks.
    rising_values = np.repeat(group_means, group_sizes)
    # Means of the values from each position to the end.
    counts = np.arange(len(values), 0, -1)
    means = np.cumsum(rising_values[::-1])[::-1] / counts
    declined_counts: Sequence[int] = [
        # At least one question remains. Python rounds halves to even numbers, as mteb does.
        min(round(share * len(values)), len(values) - 1)
        for share in _DECLINED_SHARES.tolist()
    ]
    return np.asarray(means[declined_counts], np.float64)
