"""Agreement between people: Cohen's and Fleiss' kappa."""

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import combinations
from typing import Any


def cohen(first: Sequence[int], second: Sequence[int]) -> float | None:
    """Return Cohen's kappa of two people's labels of the same pairs, or None if chance explains the whole agreement."""
    import numpy as np
    from statsmodels.stats.inter_rater import cohens_kappa, to_table

    with np.errstate(all="ignore"):
        return finite(cohens_kappa(to_table(np.array([first, second]).T)[0], return_results=False))


def fleiss(labels: Sequence[Sequence[int]]) -> float | None:
    """Return Fleiss' kappa. ``labels`` has one row for each pair. All rows have the same number of labels."""
    import numpy as np
    from statsmodels.stats.inter_rater import aggregate_raters, fleiss_kappa

    with np.errstate(all="ignore"):
        return finite(fleiss_kappa(aggregate_raters(np.array(labels))[0]))


def finite(value: float) -> float | None:
    """Return a statistic as a float, or None if it is undefined (not finite)."""
    return float(value) if math.isfinite(value) else None


def cohen_of(votes: Mapping[Any, Mapping[str, int]]) -> dict[str, dict[str, float | int | None]]:
    """Return Cohen's kappa of every two people, by their names, with the number of pairs that both people judged."""
    people: set[str] = set()
    for labels in votes.values():
        people.update(labels)
    kappas: dict[str, dict[str, float | int | None]] = {}
    for one, other in combinations(sorted(people), 2):
        both = [(labels[one], labels[other]) for labels in votes.values() if one in labels and other in labels]
        if both:
            first, second = zip(*both, strict=True)
            kappas[f"{one}, {other}"] = {"kappa": cohen(first, second), "pairs": len(both)}
    return kappas


def fleiss_of(votes: Mapping[Any, Mapping[str, int]]) -> dict[str, float | int | None]:
    """Return Fleiss' kappa of the pairs that several people judged.

    Fleiss' kappa needs an equal number of people for every pair, so only pairs with the most frequent number count.
    """
    numbers = Counter(len(labels) for labels in votes.values() if len(labels) > 1)
    if not numbers:
        return {"kappa": None, "pairs": 0, "people": 0}
    people = max(numbers, key=lambda number: (numbers[number], number))
    chosen = [[*labels.values()] for labels in votes.values() if len(labels) == people]
    return {"kappa": fleiss(chosen), "pairs": len(chosen), "people": people}
