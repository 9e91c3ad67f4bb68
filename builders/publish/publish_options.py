"""Options of `publish`."""

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class SplitScores:
    """A file with scores of runs on a split, for example on ``dev`` or ``cmedqa_test``."""

    split: str
    file: Path

    def __str__(self) -> str:
        return f"{self.split}={self.file}"


def read_split_scores(text: str) -> SplitScores:
    """Return the value of ``SPLIT=FILE``. Raise ValueError with the expected form for another text."""
    split, _, file_name = text.partition("=")
    if not (split and file_name):
        raise ValueError("SPLIT=FILE")
    return SplitScores(split, Path(file_name))
