"""Quality control of human work in packages (Appendix A.3): when a package is accepted, and how far people agree.

Work is handed out in packages of 1,000. At least two reviewers judge 100 random items of a package, each on their own;
it is accepted when the mean of their accuracies is at least 93 %, and revised until it is. An item on which as many
annotators say one thing as another is a tie: nobody's error. Accuracy is over the items that are decided.

Agreement beyond chance is Cohen's kappa of two people, and Fleiss' of several, by statsmodels.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import combinations
from typing import Any

import msgspec

from builders.core.typed import Count

PACKAGE = 1_000  # items

Votes = Mapping[Any, Mapping[str, int]]  # by pair and person: the label


class Rule(msgspec.Struct, frozen=True, rename="kebab"):
    """The bounds, and the seed of the reviewers' draws; the defaults are the paper's."""

    reviewers: Count = 2
    review_pairs: Count = 100
    min_accuracy: str = "93"  # percent
    seed: int = 0

    def __post_init__(self) -> None:
        try:
            is_share = len(self.min_accuracy) < 30 and 0 <= self.accuracy <= 1
        except (ValueError, ZeroDivisionError):
            is_share = False
        if not is_share:
            raise ValueError(f"min-accuracy: expected percent from 0 to 100, found {self.min_accuracy[:30]!r}")

    @property
    def accuracy(self) -> Fraction:
        return Fraction(self.min_accuracy) / 100


@dataclass(frozen=True)
class Verdict:
    """The outcome of the reviews of one package.

    Attributes:
        reviews: by reviewer, the numbers of items found right and judged, without ties.
        refusal: why it is not accepted; empty where it is.
        reviewed: by as many reviewers, and on as many items each, as the rule asks; refused all the same, it is sent
            back.
    """

    reviews: Mapping[str, tuple[int, int]]
    refusal: str
    reviewed: bool

    @property
    def accuracy(self) -> Fraction | None:
        """The mean of the reviewers' accuracies, from 0 to 1; None without a review."""
        shares = [Fraction(right, judged) for right, judged in self.reviews.values() if judged]
        return sum(shares, Fraction(0)) / len(shares) if shares else None


def judge(size: int, reviews: Mapping[str, Sequence[bool | None]], rule: Rule) -> Verdict:
    """Return the verdict on one package.

    Args:
        size: the package's items; one smaller than ``rule.review_pairs`` is judged whole.
        reviews: by reviewer, for each item that they judged, whether it is right; None for a tie, which counts as
            judged, but not for or against the package.
    """
    reviews = {reviewer: found for reviewer, found in reviews.items() if found}
    counts = {each: (sum(map(bool, found)), len(found) - found.count(None)) for each, found in reviews.items()}
    needed, refusal = min(rule.review_pairs, size), ""
    if len(counts) < rule.reviewers:
        refusal = f"has {len(counts)} reviews, expected at least {rule.reviewers}"
    elif few := [reviewer for reviewer, found in reviews.items() if len(found) < needed]:
        refusal = f"has {len(reviews[few[0]])} items judged by {few[0]}, expected at least {needed}"
    elif ties := [reviewer for reviewer, (_, judged) in counts.items() if not judged]:
        refusal = f"has nothing but ties among the items judged by {ties[0]}; decide the ties first"
    if refusal:
        return Verdict(counts, refusal, reviewed=False)
    accuracy = Verdict(counts, "", reviewed=True).accuracy
    if accuracy is not None and accuracy < rule.accuracy:
        refusal = f"has an accuracy of {percent(accuracy)}, expected at least {percent(rule.accuracy)}"
    return Verdict(counts, refusal, reviewed=True)


def percent(share: Fraction) -> str:
    """Format a share with two decimals, rounded down: what is below the bound never looks as if it reached it."""
    hundredths = share * 10_000 // 1
    return f"{hundredths // 100}.{hundredths % 100:02d} %"


def cohen(first: Sequence[int], second: Sequence[int]) -> float | None:
    """Return Cohen's kappa of two people's labels of the same pairs; None where chance alone explains all."""
    import numpy as np
    from statsmodels.stats.inter_rater import cohens_kappa

    labels = sorted({0, 1, *first, *second})
    table = np.zeros((len(labels), len(labels)))
    for one, other in zip(first, second, strict=True):
        table[labels.index(one), labels.index(other)] += 1
    with np.errstate(all="ignore"):
        return _finite(cohens_kappa(table, return_results=False)) if first else None


def fleiss(counts: Sequence[Sequence[int]]) -> float | None:
    """Return Fleiss' kappa; ``counts``: a row a pair, how many people gave each label, of as many people each."""
    import numpy as np
    from statsmodels.stats.inter_rater import fleiss_kappa

    with np.errstate(all="ignore"):
        return _finite(fleiss_kappa(np.array(counts)))


def _finite(kappa: float) -> float | None:
    return float(kappa) if math.isfinite(kappa) else None


def cohen_of(votes: Votes) -> dict[str, dict[str, float | int | None]]:
    """Return Cohen's kappa of each two people, by their names, with the number of pairs that both have judged."""
    found: dict[str, dict[str, float | int | None]] = {}
    for one, other in combinations(sorted({person for labels in votes.values() for person in labels}), 2):
        both = [(labels[one], labels[other]) for labels in votes.values() if one in labels and other in labels]
        if both:
            first, second = zip(*both, strict=True)
            found[f"{one}, {other}"] = {"kappa": cohen(first, second), "pairs": len(both)}
    return found


def fleiss_of(votes: Votes) -> dict[str, float | int | None]:
    """Return Fleiss' kappa of the pairs that several people have judged.

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
