"""The acceptance of packages by the accuracy that reviewers find (Appendix A.3).

A package has 1,000 items: query-passage pairs, or translated queries. At least two reviewers independently judge 100
random items of each package. The accuracy is the share of these items that a reviewer finds right. A package is
accepted if its mean accuracy over the reviewers is at least 93 %. Otherwise annotators revise the package. An item is a
tie if its two most frequent labels have equally many votes. Ties do not count until an adjudicator decides them.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction

from builders.annotate.rounds import Rule


@dataclass(frozen=True)
class Verdict:
    """The outcome of the reviews of one package.

    ``reviews`` has the number of right items and the number of judged items of each reviewer, without ties. ``refusal``
    is the reason for not accepting the package, or empty. ``reviewed`` is True if enough people reviewed enough items.
    """

    reviews: Mapping[str, tuple[int, int]]
    refusal: str
    reviewed: bool

    @property
    def accuracy(self) -> Fraction | None:
        """The mean accuracy over the reviewers, from 0 to 1; None without a review."""
        shares = [Fraction(right, judged) for right, judged in self.reviews.values() if judged]
        return sum(shares, Fraction(0)) / len(shares) if shares else None


def judge_package(size: int, reviews: Mapping[str, Sequence[bool | None]], rule: Rule) -> Verdict:
    """Return the verdict on one package of ``size`` items.

    ``reviews`` has one value for each item that a reviewer judged: True for right, False for wrong, None for a tie.
    Ties do not count in the accuracy. In a package smaller than ``rule.review_pairs``, all items must be judged.
    """
    reviews = {reviewer: answers for reviewer, answers in reviews.items() if answers}
    counts: dict[str, tuple[int, int]] = {}
    for reviewer, answers in reviews.items():
        counts[reviewer] = (answers.count(True), len(answers) - answers.count(None))
    refusal = _incompleteness(size, reviews, counts, rule)
    if refusal:
        return Verdict(counts, refusal, reviewed=False)
    verdict = Verdict(counts, refusal="", reviewed=True)
    if verdict.accuracy is None or verdict.accuracy >= rule.accuracy:
        return verdict
    refusal = f"has an accuracy of {percent_rounded_down(verdict.accuracy)}, expected at least "
    refusal += percent_rounded_down(rule.accuracy)
    return Verdict(counts, refusal, reviewed=True)


def _incompleteness(
    size: int,
    reviews: Mapping[str, Sequence[bool | None]],
    counts: Mapping[str, tuple[int, int]],
    rule: Rule,
) -> str:
    """Return why the reviews do not suffice for a decision, or "" if they do."""
    if len(counts) < rule.reviewers:
        return f"has {len(counts)} reviews, expected at least {rule.reviewers}"
    needed = min(rule.review_pairs, size)
    for reviewer, answers in reviews.items():
        if len(answers) < needed:
            return f"has {len(answers)} items judged by {reviewer}, expected at least {needed}"
    for reviewer, (_, judged) in counts.items():
        if not judged:
            return f"has nothing but ties among the items judged by {reviewer}; decide the ties first"
    return ""


def hundredths_of_percent(share: Fraction) -> int:
    """Return a share in hundredths of a percent, rounded down so that no share below a threshold looks equal to it."""
    return share * 10_000 // 1


def percent_rounded_down(share: Fraction) -> str:
    """Format a share with two decimals, rounded down."""
    hundredths = hundredths_of_percent(share)
    return f"{hundredths // 100}.{hundredths % 100:02d} %"


def fraction_rounded_down(share: Fraction | None) -> float | None:
    """Return a share as a float with four decimals, rounded down. None stays None."""
    return None if share is None else hundredths_of_percent(share) / 10_000
