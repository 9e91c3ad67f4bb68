"""The rule of span-F1 by which a release's ``answers`` were made, as the builds of ``manifest.json`` record it."""

from typing import Literal

import msgspec

from builders.core.errors import shown_value
from builders.core.words import SEGMENTERS
from builders.store.span_threshold import parse_threshold


class AnswerRule(msgspec.Struct, frozen=True):
    """The options of `release` and `add answers` that the answers of later releases depend on.

    Attributes:
        unit: tokens that span-F1 compares.
        threshold: threshold of span-F1 as a fraction, for example ``1/2``.
        segmenter: the segmenter and its version, for example ``rjieba 0.2.1``. The default has no version.
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
            segmenter_names = " or ".join(SEGMENTERS)
            return f"segmenter: expected {segmenter_names} and a version, found {shown_value(self.segmenter)}"
        return ""

    @property
    def segmenter_name(self) -> str:
        """The segmenter without its version."""
        return self.segmenter.partition(" ")[0]
