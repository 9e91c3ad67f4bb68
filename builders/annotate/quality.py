"""Quality control of human work in packages (Appendix A.3): when a package is accepted.

Work is handed out in packages of 1,000. At least two reviewers judge 100 random items of a package, each on their own;
it is accepted when the mean of their accuracies is at least 93 %, and revised until it is. An item on which as many
annotators say one thing as another is a tie: nobody's error. Accuracy is over the items that are decided.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction

from builders.core.command import whole_number

PACKAGE = 1_000  # items

# What people write into a sheet.
_ANSWERS = {
    **dict.fromkeys(("1", "yes", "true", "对", "是", "相关"), True),
    **dict.fromkeys(("0", "no", "false", "错", "否", "不相关"), False),
}


def answer_of(cell: str) -> bool | None:
    """The answer in a cell of a sheet: 1 or 0, or what stands for it; None where it is none of these."""
    return _ANSWERS.get(cell.strip().lower())


def percentage(text: str) -> Fraction:
    """An argparse type: percent from 0 to 100, exactly as written."""
    try:
        value = Fraction(text)
    except (ValueError, ZeroDivisionError):
        raise argparse.ArgumentTypeError(f"expected percent, such as 93, found {text}") from None
    if not 0 <= value <= 100:
        raise argparse.ArgumentTypeError(f"expected 0 to 100, found {text}")
    return value


@dataclass(frozen=True)
class Acceptance:
    """The bounds; the defaults are the paper's."""

    reviewers: int = 2
    items: int = 100
    accuracy: Fraction = Fraction(93, 100)


def add_acceptance(group: argparse._ArgumentGroup, items: str) -> None:
    """``--reviewers``, ``--min-accuracy`` and the option ``items``: how many of a package each reviewer judges."""
    paper = Acceptance()
    group.add_argument(
        "--reviewers",
        type=whole_number(1),
        default=paper.reviewers,
        metavar="N",
        help=f"at least (default: {paper.reviewers})",
    )
    group.add_argument(
        items,
        type=whole_number(1),
        default=paper.items,
        metavar="N",
        help=f"of a package, for each reviewer (default: {paper.items})",
    )
    group.add_argument(
        "--min-accuracy",
        type=percentage,
        default=100 * paper.accuracy,
        metavar="PERCENT",
        help=f"of a package (default: {100 * paper.accuracy})",
    )


@dataclass(frozen=True)
class Verdict:
    """What the reviews say of one package.

    Attributes:
        size: its items.
        reviews: by reviewer, the numbers of items found right and judged, without ties.
        refusal: why it is not accepted; empty where it is.
        reviewed: by as many reviewers, and on as many items each, as the rule asks; refused all the same, it is sent
            back.
    """

    package: str
    size: int
    reviews: Mapping[str, tuple[int, int]]
    refusal: str
    reviewed: bool = False

    @property
    def accuracy(self) -> Fraction | None:
        """The mean of the reviewers' accuracies, from 0 to 1; None without a review."""
        shares = [Fraction(right, judged) for right, judged in self.reviews.values() if judged]
        return sum(shares, Fraction(0)) / len(shares) if shares else None


def judge(package: str, size: int, reviews: Mapping[str, Sequence[bool | None]], rule: Acceptance) -> Verdict:
    """The verdict on one package.

    Args:
        size: the package's items; one smaller than ``rule.items`` is judged whole.
        reviews: by reviewer, for each item that they judged, whether it is right; None for a tie, which counts as
            judged, but not for or against the package.
    """
    reviews = {reviewer: found for reviewer, found in reviews.items() if found}
    decided = {reviewer: [right for right in found if right is not None] for reviewer, found in reviews.items()}
    counts = {reviewer: (sum(found), len(found)) for reviewer, found in decided.items()}
    needed = min(rule.items, size)
    verdict = Verdict(package, size, counts, "", reviewed=True)
    if len(counts) < rule.reviewers:
        refusal = f"has {len(counts)} reviews, expected at least {rule.reviewers}"
    elif few := [reviewer for reviewer, found in reviews.items() if len(found) < needed]:
        refusal = f"has {len(reviews[few[0]])} items judged by {few[0]}, expected at least {needed}"
    elif ties := [reviewer for reviewer, (_, judged) in counts.items() if not judged]:
        refusal = f"has nothing but ties among the items judged by {ties[0]}; decide the ties first"
    elif verdict.accuracy is not None and verdict.accuracy < rule.accuracy:
        refusal = f"has an accuracy of {percent(verdict.accuracy)}, expected at least {percent(rule.accuracy)}"
        return replace(verdict, refusal=refusal)
    else:
        return verdict
    return replace(verdict, refusal=refusal, reviewed=False)


def percent(share: Fraction) -> str:
    """Two decimals, rounded down: what is below the bound never looks as if it reached it."""
    hundredths = share * 10_000 // 1
    return f"{hundredths // 100}.{hundredths % 100:02d} %"
