"""Options of span-F1, which labels passages. This module imports no slow library, so that ``--help`` is quick."""

import numbers
import sys
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import Annotated, Literal

from builders.core.options import Help, OneOf, Parsed, Placeholder
from builders.core.words import SEGMENTERS, segmenter_version
from builders.store.span_threshold import parse_threshold

MIN_CHARS = 256  # characters of a full passage (Section 2.2.2)
THRESHOLD = Fraction(1, 2)  # threshold of span-F1 (Section 2.2.2, Algorithm 1)


@dataclass(frozen=True)
class SpanOptions:
    """The settings of passages and labels that change the bytes of a release.

    Attributes:
        unit: tokens of span-F1, ``word`` or ``char``.
        threshold: least span-F1 of a positive passage.
        match: ``threshold``, or ``best`` for v2 of the paper (:func:`.span_f1.label_questions`).
        min_chars: characters of a full passage.
        segmenter: segmenter of texts without word lists.
        whole_documents: True if each document is one passage; ``min_chars`` then has no effect.
    """

    unit: str = "word"
    threshold: Fraction = THRESHOLD
    match: str = "threshold"
    min_chars: int = MIN_CHARS
    segmenter: str = SEGMENTERS[0]
    whole_documents: bool = False

    @property
    def passage_chars(self) -> int:
        """The number of characters from which a passage is full, so that the next paragraph begins another passage."""
        # With whole documents, no passage is ever full, so each document becomes one passage.
        return sys.maxsize if self.whole_documents else self.min_chars

    def rule_as_json(self) -> dict[str, str]:
        """Return the unit, the threshold and the segmenter of span-F1 for manifests."""
        rule = {"unit": self.unit, "threshold": str(self.threshold)}
        if self.unit == "word":
            rule["segmenter"] = segmenter_version(self.segmenter)
        return rule

    def as_json(self) -> dict[str, str | int]:
        """Return all options for keys and manifests."""
        options: dict[str, str | int] = {**self.rule_as_json(), "match": self.match}
        if self.whole_documents:
            options["whole_documents"] = True
        else:
            options["min_chars"] = self.min_chars
        return options


def raw_path(text: str | Path) -> Path:
    """Return the value of an option for raw rows. Outside a checkout, ``builders/sample`` is the package's sample.

    Raises ValueError with the expected form for a text that is no path.
    """
    if not str(text) or "\0" in str(text):
        raise ValueError("a path")
    raw_rows = Path(text)
    if raw_rows == Path("builders/sample") and not raw_rows.exists():
        return Path(__file__).parents[1] / "sample"
    return raw_rows


RawPath = Annotated[Path, Parsed(raw_path, accepts=(str, Path)), Placeholder("PATH")]
Unit = Annotated[Literal["word", "char"], Help("tokens of span-F1")]
Segmenter = Annotated[str, OneOf(SEGMENTERS), Help("segmenter for texts without word lists; rjieba is a faster jieba")]
SpanThreshold = Annotated[
    Fraction, Parsed(parse_threshold, accepts=(numbers.Real,)), Placeholder("X"), Help("threshold of span-F1")
]
