"""Agreement between people: Cohen's and Fleiss' kappa."""

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import combinations
from typing import Any


def kappa_of_two(first_labels: Sequence[int], second_labels: Sequence[int]) -> float | None:
    """Return Cohen's kappa of two people's labels of the same pairs, or None if chance explains the whole agreement."""
    import numpy as np
    from statsmodels.stats.inter_rater import cohens_kappa, to_table

    labels_by_pair = np.array([first_labels, second_labels]).T
    # If chance explains the whole agreement, the formula divides zero by zero.
    with np.errstate(all="ignore"):
        confusion_matrix, _ = to_table(labels_by_pair)
        return finite_or_none(cohens_kappa(confusion_matrix, return_results=False))


def kappa_of_many(pair_labels: Sequence[Sequence[int]]) -> float | None:
    """Return Fleiss' kappa. ``pair_labels`` has one row for each pair. All rows have the same number of labels."""
    import numpy as np
    from statsmodels.stats.inter_rater import aggregate_raters, fleiss_kappa

    with np.errstate(all="ignore"):
        # How often each pair has each label.
        label_counts, _ = aggregate_raters(np.array(pair_labels))
        return finite_or_none(fleiss_kappa(label_counts))


def finite_or_none(statistic: float) -> float | None:
    """Return a statistic as a float, or None if it is undefined (not finite)."""
    return float(statistic) if math.isfinite(statistic) else None


def cohen_of(votes: Mapping[Any, Mapping[str, int]]) -> dict[str, dict[str, float | int | None]]:
    """Return Cohen's kappa of every two people who judged a pair in common.

    ``votes`` maps a pair to person -> label. The result maps two names, such as ``anna, ben``, to ``kappa`` (None if
    undefined) and ``pairs``, the number of pairs that both people judged.
    """
    people: set[str] = set()
    for labels in votes.values():
        people.update(labels)
    kappas: dict[str, dict[str, float | int | None]] = {}
    for first_person, second_person in combinations(sorted(people), 2):
        first_labels = []
        second_labels = []
        for labels in votes.values():
            if first_person in labels and second_person in labels:
                first_labels.append(labels[first_person])
                second_labels.append(labels[second_person])
        # Two people without a common pair have no kappa.
        if first_labels:
            kappa = kappa_of_two(first_labels, second_labels)
            kappas[f"{first_person}, {second_person}"] = {"kappa": kappa, "pairs": len(first_labels)}
    return kappas


def fleiss_of(votes: Mapping[Any, Mapping[str, int]]) -> dict[str, float | int | None]:
    """Return Fleiss' kappa of the pairs that several people judged.

    Fleiss' kappa needs an equal number of people for every pair, so only pairs with the most frequent number count. Of
    equally frequent numbers, the largest is used. ``votes`` maps a pair to person -> label.

    The result has ``kappa`` (None if undefined), ``pairs`` (the pairs that count) and ``people`` (the people of each
    pair). If no pair has several people, both numbers are 0.
    """
    pairs_by_judges = Counter(len(labels) for labels in votes.values() if len(labels) > 1)
    if not pairs_by_judges:
        return {"kappa": None, "pairs": 0, "people": 0}
    judge_count = max(pairs_by_judges, key=lambda count: (pairs_by_judges[count], count))
    pair_labels = [list(labels.values()) for labels in votes.values() if len(labels) == judge_count]
    return {"kappa": kappa_of_many(pair_labels), "pairs": len(pair_labels), "people": judge_count}
