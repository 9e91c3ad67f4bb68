"""How far people agree beyond chance: Cohen's kappa of two, Fleiss' of several, by statsmodels."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import combinations
from typing import Any

Votes = Mapping[Any, Mapping[str, int]]  # by pair and person: the label


def cohen(first: Sequence[int], second: Sequence[int], labels: Sequence[int] = (0, 1)) -> float | None:
    """Cohen's kappa of two people's labels of the same pairs; None where chance alone explains all (one label only)."""
    import numpy as np
    from statsmodels.stats.inter_rater import cohens_kappa

    table = np.zeros((len(labels), len(labels)))
    for one, other in zip(first, second, strict=True):
        table[labels.index(one), labels.index(other)] += 1
    with np.errstate(all="ignore"):
        return _number(cohens_kappa(table, return_results=False)) if len(first) else None


def fleiss(counts: Sequence[Sequence[int]]) -> float | None:
    """Fleiss' kappa; ``counts``: a row a pair, how many people gave each label, of as many people each."""
    import numpy as np
    from statsmodels.stats.inter_rater import fleiss_kappa

    with np.errstate(all="ignore"):
        return _number(fleiss_kappa(np.array(counts))) if len(counts) else None


def _number(kappa: float) -> float | None:
    return float(kappa) if math.isfinite(kappa) else None


def cohen_of(votes: Votes) -> dict[str, dict[str, float | int | None]]:
    """Cohen's kappa of each two people, by their names, with the number of pairs that both have judged."""
    by_person: dict[str, dict[Any, int]] = {}
    for pair, labels in votes.items():
        for person, label in labels.items():
            by_person.setdefault(person, {})[pair] = label
    found: dict[str, dict[str, float | int | None]] = {}
    for one, other in combinations(sorted(by_person), 2):
        both = [pair for pair in by_person[one] if pair in by_person[other]]
        if both:
            first, second = ([by_person[each][pair] for pair in both] for each in (one, other))
            kappa = cohen(first, second, sorted({0, 1, *first, *second}))
            found[f"{one}, {other}"] = {"kappa": kappa, "pairs": len(both)}
    return found


def fleiss_of(votes: Votes) -> dict[str, float | int | None]:
    """Fleiss' kappa of the pairs that several people have judged.

    It asks for as many people a pair: of the pairs with two or more, those of the most frequent number are taken.
    """
    numbers = Counter(len(labels) for labels in votes.values() if len(labels) > 1)
    if not numbers:
        return {"kappa": None, "pairs": 0, "people": 0}
    people = max(numbers, key=lambda number: (numbers[number], number))
    chosen = [[*labels.values()] for labels in votes.values() if len(labels) == people]
    every = sorted({0, 1}.union(*chosen))
    kappa = fleiss([[labels.count(label) for label in every] for labels in chosen])
    return {"kappa": kappa, "pairs": len(chosen), "people": people}
