"""The rule of span-F1 by which a release's ``answers`` were made, as the builds of ``manifest.json`` record it."""

import re
from fractions import Fraction
from typing import Literal

import msgspec

from builders.core.errors import shown_value
from builders.core.words import SEGMENTERS

_LARGEST_DENOMINATOR = 10**6
# Python's Fraction computes 10**99999999 for the text "1e99999999", which takes hours. So the length and the exponent
# of a text are limited before the text is converted.
_SHORT_NUMBER = re.compile(r"[+-]?[\d._/ ]{1,60}(?:[eE][+-]?\d{1,3})?")


def parse_threshold(value: str | float | Fraction) -> Fraction:
    """Return a threshold of span-F1 as an exact fraction. 0.1 is 1/10, although no float is exactly 1/10.

    Raises ValueError with the expected value.
    """
    text = str(value).strip()
    try:
        threshold = Fraction(text) if _SHORT_NUMBER.fullmatch(text) else None
    except (ValueError, ZeroDivisionError):
        threshold = None
    if threshold is None:
        raise ValueError("a number such as 0.5 or 1/2")
    # Denominators up to 10**6 keep every product of the integer comparison within 64 bits.
    if not 0 < threshold <= 1 or threshold.denominator > _LARGEST_DENOMINATOR:
        raise ValueError("a number above 0 and at most 1, with a denominator of at most 1,000,000")
    return threshold


class AnswerRule(msgspec.Struct, frozen=True):
    """The options of `release` and `add answers` that the answers of later releases depend on.

    Attributes:
        unit: tokens that span-F1 compares.
        threshold: threshold of span-F1 as a fraction, for example ``1/2``.
        segmenter: the segmenter and its version, for example ``rjieba 0.2.1``.
    """

    unit: Literal["word", "char"] = "word"
    threshold: str = "1/2"
    segmenter: str = SEGMENTERS[0]

    def problem(self) -> str:
        """Describe a wrong value as ``OPTION: expected ..., found ...``; empty if every value is right."""
        try:
            parse_threshold(self.threshold)
        except ValueError as error:
            return f"threshold: expected {error}, found {shown_value(self.threshold)}"
        if self.segmenter_name not in SEGMENTERS:
            expected = " or ".join(SEGMENTERS)
            return f"segmenter: expected {expected} and a version, found {shown_value(self.segmenter)}"
        return ""

    @property
    def segmenter_name(self) -> str:
        """The segmenter without its version."""
        return self.segmenter.partition(" ")[0]
