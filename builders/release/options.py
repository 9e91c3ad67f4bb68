"""The options of ``release``. This module imports no slow library, so that ``--help`` appears at once."""

from dataclasses import dataclass
from fractions import Fraction

from builders.core.words import SEGMENTERS, segmenter_version

MIN_CHARS = 256  # characters of a full passage (Section 2.2.2)
THRESHOLD = Fraction(1, 2)  # threshold of span-F1 (Section 2.2.2, Algorithm 1)


@dataclass(frozen=True)
class Options:
    """The settings that change the bytes of a release."""

    unit: str = "word"
    threshold: Fraction = THRESHOLD
    match: str = "threshold"
    min_chars: int = MIN_CHARS
    segmenter: str = SEGMENTERS[0]

    def as_json(self, *, segmented: bool = True) -> dict[str, str | int]:
        """Return the options for keys and manifests. ``segmented`` is False if no row needed the segmenter."""
        return {
            "unit": self.unit,
            "threshold": str(self.threshold),
            "match": self.match,
            "min_chars": self.min_chars,
            **({"segmenter": segmenter_version(self.segmenter)} if segmented and self.unit == "word" else {}),
        }
