"""The threshold of span-F1, as an option and in a manifest. The module imports no library, so ``--help`` is quick."""

import contextlib
import re
from fractions import Fraction

_LARGEST_DENOMINATOR = 10**6
# Python's Fraction computes 10**99999999 for the text "1e99999999", which takes hours. So the length and the exponent
# of a text are limited before the text is converted.
_SHORT_NUMBER = re.compile(r"[+-]?[\d._/ ]{1,60}(?:[eE][+-]?\d{1,3})?")


def parse_threshold(value: str | float | Fraction) -> Fraction:
    """Return a threshold of span-F1 as an exact fraction. 0.1 is 1/10, although no float is exactly 1/10.

    Raises ValueError with the expected value.
    """
    text = str(value).strip()
    threshold = None
    if _SHORT_NUMBER.fullmatch(text):
        with contextlib.suppress(ValueError, ZeroDivisionError):
            threshold = Fraction(text)
    if threshold is None:
        raise ValueError("a number such as 0.5 or 1/2")
    # Denominators up to 10**6 keep every product of the integer comparison within 64 bits.
    if not 0 < threshold <= 1 or threshold.denominator > _LARGEST_DENOMINATOR:
        raise ValueError("a number above 0 and at most 1, with a denominator of at most 1,000,000")
    return threshold
