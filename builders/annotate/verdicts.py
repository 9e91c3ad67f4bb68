"""The acceptance of packages by the accuracy that reviewers find (Appendix A.3).

A package has 1,000 items: query-passage pairs, or translated queries. At least two reviewers independently judge 100
random items of each package. The accuracy is the share of these items that a reviewer finds right. A package is
accepted if its mean accuracy over the reviewers is at least 93 %. Otherwise annotators revise the package. An item is a
tie if its two most frequent labels have equally many votes. Ties do not count until an adjudicator decides them.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction

from builders.annotate.rounds import QualityRule


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
        accuracies = [Fraction(right, judged) for right, judged in self.reviews.values() if judged]
        if not accuracies:
            return None
        return sum(accuracies, Fraction(0)) / len(accuracies)


def judge_package(
    item_count: int,
    answers_by_reviewer: Mapping[str, Sequence[bool | None]],
    rule: QualityRule,
) -> Verdict:
    """Return the verdict on one package of ``item_count`` items.

    ``answers_by_reviewer`` has one value for each item that a reviewer judged: True for right, False for wrong, None
    for a tie. Ties do not count in the accuracy. In a package smaller than ``rule.review_pairs``, all items must be
    judged.
    """
    answers_by_reviewer = {reviewer: answers for reviewer, answers in answers_by_reviewer.items() if answers}
    answer_counts: dict[str, tuple[int, int]] = {}  # right and judged items, without ties
    for reviewer, answers in answers_by_reviewer.items():
        answer_counts[reviewer] = (answers.count(True), len(answers) - answers.count(None))
    # Without enough reviews, the package stays undecided.
    refusal = _incompleteness(item_count, answers_by_reviewer, answer_counts, rule)
    if refusal:
        return Verdict(answer_counts, refusal, reviewed=False)
    verdict = Verdict(answer_counts, refusal="", reviewed=True)
    # A rule that requires no reviewer accepts a package without reviews.
    if verdict.accuracy is None or verdict.accuracy >= rule.accuracy:
        return verdict
    # The accuracy is below the threshold, so annotators revise the package.
    refusal = f"has an accuracy of {percent_rounded_down(verdict.accuracy)}, expected at least "
    refusal += percent_rounded_down(rule.accuracy)
    return Verdict(answer_counts, refusal, reviewed=True)


def _incompleteness(
    item_count: int,
    answers_by_reviewer: Mapping[str, Sequence[bool | None]],
    answer_counts: Mapping[str, tuple[int, int]],
    rule: QualityRule,
) -> str:
    """Return why the reviews do not suffice for a decision, or "" if they do.

    ``answer_counts`` has each reviewer's right and judged items, without ties. The other parameters are those of
    :func:`judge_package`.
    """
    if len(answer_counts) < rule.reviewers:
        return f"has {len(answer_counts)} reviews, expected at least {rule.reviewers}"
    required_items = min(rule.review_pairs, item_count)
    for reviewer, answers in answers_by_reviewer.items():
        if len(answers) < required_items:
            return f"has {len(answers)} items judged by {reviewer}, expected at least {required_items}"
    for reviewer, (_, judged_count) in answer_counts.items():
        if not judged_count:
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
