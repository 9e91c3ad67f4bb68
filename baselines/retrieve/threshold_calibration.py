"""Determine the threshold of a question-matching model from labelled pairs."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from builders.core.errors import InputError
from builders.core.results import Report, Table

Floats = npt.NDArray[Any]
_THRESHOLD_STEPS = 10_000  # thresholds are the multiples of 1 / _THRESHOLD_STEPS
_WIDEST_INTERVAL = 0.2  # of the precision
_LOWEST_RECALL = 0.2


def calibrate_threshold(scores: Sequence[float], labels: Sequence[int], precision: float) -> dict[str, Any]:
    """Return the lowest threshold that reaches ``precision``, with the measured precision and recall.

    Precision is the share of label 1 among pairs with a score above the threshold. ``scores`` are from 0 to 1. Each
    half of the pairs (drawn by a fixed seed) is measured with the threshold of the other half. The result has Wilson
    intervals of 95 %. Raises :class:`InputError` if the interval of the precision is wider than 0.2 or begins below the
    share of label 1 among all pairs, or if the interval of the recall ends below 0.2.
    """
    from scipy.stats import binomtest

    score_array = np.array(scores)
    label_array = np.array(labels)

    # Each half is measured with the threshold of the other half. A threshold that was chosen and measured on the same
    # pairs would look too good.
    is_first_half = np.random.default_rng(0).permutation(len(scores)) % 2 == 0
    first_threshold = _lowest_threshold(score_array[is_first_half], label_array[is_first_half], precision)
    second_threshold = _lowest_threshold(score_array[~is_first_half], label_array[~is_first_half], precision)
    is_above = score_array > np.where(is_first_half, second_threshold, first_threshold)

    correct_count = int(label_array[is_above].sum())
    above_count = int(is_above.sum())
    positive_count = int(label_array.sum())
    chance = float(label_array.mean())
    # At least one trial, because SciPy refuses none. The interval of none of one is wide enough to be refused below.
    low, high = binomtest(correct_count, max(above_count, 1)).proportion_ci(method="wilson")
    recall_interval = binomtest(correct_count, max(positive_count, 1)).proportion_ci(method="wilson")
    if high - low > _WIDEST_INTERVAL or low <= chance or recall_interval.high < _LOWEST_RECALL:
        raise InputError(
            f"the model cannot tell these {len(score_array)} pairs apart at --precision {precision:g}: {above_count} "
            f"pairs are above the threshold, with a precision of {low:.0%} to {high:.0%} (all pairs: {chance:.0%}) and "
            f"a recall of {recall_interval.low:.0%} to {recall_interval.high:.0%}; use another model, more pairs or "
            "another --precision"
        )
    return {
        "threshold": _lowest_threshold(score_array, label_array, precision),
        "pairs": len(score_array),
        "positive_pairs": positive_count,
        "precision": correct_count / above_count,
        "recall": correct_count / positive_count,
        "intervals": {"precision": [low, high], "recall": [recall_interval.low, recall_interval.high]},
    }


def _lowest_threshold(scores: Floats, labels: Floats, precision: float) -> float:
    """Return the lowest threshold (a multiple of 0.0001) that reaches ``precision``, or 1.0 if no threshold does."""
    thresholds = np.arange(_THRESHOLD_STEPS) / _THRESHOLD_STEPS
    order = np.argsort(scores)
    # For each threshold: the pairs whose score is at most the threshold, and those of them with label 1.
    below_counts = np.searchsorted(scores[order], thresholds, side="right")
    positives_below = np.concatenate([[0], labels[order].cumsum()])[below_counts]
    # The same for the pairs above the threshold.
    correct_counts = labels.sum() - positives_below
    above_counts = len(scores) - below_counts
    is_sufficient = (above_counts > 0) & (correct_counts >= precision * above_counts)
    return float(min(thresholds[is_sufficient], default=1.0))


def calibration_report(result: dict[str, Any]) -> Report:
    """Return the report of a result of :func:`calibrate_threshold`, which may also have the model's name."""
    measure_texts = {}
    rows = []
    for measure, (low, high) in result["intervals"].items():
        measure_texts[measure] = f"{result[measure]:.1%} ({low:.1%} to {high:.1%})"
        rows.append((measure, result[measure], low, high))
    text = (
        f"threshold {result['threshold']}, from {result['pairs']:,} pairs, {result['positive_pairs']:,} with label 1\n"
        f"on other pairs: precision {measure_texts['precision']}, recall {measure_texts['recall']}"
    )
    columns = ("measure", "value", "low", "high")
    threshold_row = (result["threshold"], result["pairs"], result["positive_pairs"])
    return Report(
        result,
        text,
        tables=[
            Table(("threshold", "pairs", "pairs with label 1"), [threshold_row], text_columns=0),
            Table(columns, rows, title="on other pairs", percent_columns=columns[1:]),
        ],
    )
