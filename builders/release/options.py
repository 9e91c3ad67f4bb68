"""The options of ``release``. Nothing heavy is imported here: the command line needs them at once."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction

from builders.core.words import SEGMENTERS, segmenter_version

MIN_CHARS = 256  # of a full passage (Section 2.2.2)
THRESHOLD = Fraction(1, 2)  # of span-F1 (Section 2.2.2, Algorithm 1)


@dataclass(frozen=True)
class Options:
    """What decides the bytes of a release, apart from its sources."""

    unit: str = "word"
    threshold: Fraction = THRESHOLD
    match: str = "threshold"
    min_chars: int = MIN_CHARS
    segmenter: str = SEGMENTERS[0]

    def as_json(self, *, segmented: bool = True) -> dict[str, str | int]:
        """For keys and manifests; ``segmented`` is False where no row needed the segmenter."""
        options: dict[str, str | int] = {
            "unit": self.unit,
            "threshold": str(self.threshold),
            "match": self.match,
            "min_chars": self.min_chars,
        }
        if segmented and self.unit == "word":
            options["segmenter"] = segmenter_version(self.segmenter)
        return options
