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
    from scipy.stats import rankdata

    # The Mann-Whitney statistic: the ranks of the first group, minus the smallest ranks that it can have.
    ranks = rankdata(np.concatenate([answerable, unanswerable]))
    count = len(answerable)
    higher_pairs = ranks[:count].sum() - count * (count + 1) / 2
    return float(higher_pairs / (count * len(unanswerable)))


def auroc_interval(answerable: Values, unanswerable: Values, seed: int) -> Interval:
    """Return the 95 % bootstrap interval of :func:`auroc` over questions. Row i of both groups is the same question."""

    def auroc_of_rows(rows: Rows) -> float:
        return auroc(answerable[rows], unanswerable[rows])

    interval = resampled_interval(auroc_of_rows, len(answerable), seed)
    assert interval is not None  # every resample has an AUROC
    return interval


def resampled_interval(statistic: Callable[[Rows], float | None], count: int, seed: int) -> Interval | None:
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
    from scipy.integrate import trapezoid

    if np.ptp(values) == 0:
        return None
    area = trapezoid(_abstention_curve(confidences, values), _DECLINED_SHARES)
    best_area = trapezoid(_abstention_curve(values, values), _DECLINED_SHARES)
    flat_area = values.mean() * (_DECLINED_SHARES[-1] - _DECLINED_SHARES[0])
    return float((area - flat_area) / (best_area - flat_area))


def _abstention_curve(confidences: Values, values: Values) -> Values:
    """Return the mean value of the questions that are not declined, for each declined share."""
    _, group_numbers, group_sizes = np.unique(confidences, return_inverse=True, return_counts=True)
    group_means = np.bincount(group_numbers, weights=values) / group_sizes
    # The values by rising confidence, each replaced by the mean of its group of equal confidences.
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
