"""``leaderboard.toml``: published figures, each with the place where it is printed."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from msgspec import Meta, Struct

from builders.core.errors import InputError
from builders.core.files import read_toml
from builders.core.typed import typed

LEADERBOARD = Path(__file__).parents[1] / "leaderboard.toml"
Searched = Literal["whole", "sample"]
# What is printed of each, the measure that orders it first. On the whole: as the paper prints them (Recall@k: a hit
# rate). On the sample: MTEB's (R@k: the share of the positives that is found).
MEASURES: dict[str, tuple[str, ...]] = {
    "whole": ("MRR@10", "Recall@1", "Recall@50"),
    "sample": ("nDCG@10", "MRR@10", "R@10"),
}
PASSAGES = {"whole": 8_096_668, "sample": 100_001}
_Text = Annotated[str, Meta(min_length=1)]
_Date = Annotated[str, Meta(pattern=r"\A\d{4}-\d\d(-\d\d)?\Z")]


class Source(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Where figures are printed: a ``document``, or a ``repository`` at a ``commit``.

    ``date``: of the document or the commit; where it is another day, ``note`` says which.
    """

    title: _Text
    date: _Date
    document: str = ""
    repository: str = ""
    commit: str = ""
    note: str = ""

    def __post_init__(self) -> None:
        if bool(self.document) == bool(self.repository) or bool(self.repository) != bool(self.commit):
            raise ValueError("expected a document, or a repository and its commit")

    @property
    def place(self) -> str:
        """The document, or the repository with its commit."""
        return self.document or f"{self.repository} at {self.commit[:8]}"


class Figure(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """One published figure, in percent; ``file``: where in its source it stands (a table, a path).

    ``trained``: whether the model declares that it was trained on data of DuReader.
    """

    model: _Text
    metric: _Text
    value: Annotated[float, Meta(ge=0, le=100)]
    searched: Searched
    split: Literal["dev", "test"]
    trained: Literal["yes", "no", "undeclared"]
    source: _Text
    file: _Text

    def __post_init__(self) -> None:
        if self.metric not in MEASURES[self.searched]:
            raise ValueError(f"metric: expected one of {', '.join(MEASURES[self.searched])}, found {self.metric!r}")


class Published(Struct, frozen=True, forbid_unknown_fields=True):
    """All figures, and where they are printed."""

    sources: dict[str, Source]
    figures: list[Figure]


def read_leaderboard(path: Path = LEADERBOARD) -> Published:
    """Read the figures. :class:`InputError` for one without a source, or that is there twice."""
    found = typed(read_toml(path), Published, path)
    seen = set()
    for figure in found.figures:
        what = f"{figure.model}, {figure.metric}, {figure.searched} ({figure.split})"
        if figure.source not in found.sources:
            raise InputError(f"{what}: has no source {figure.source!r}", path=path)
        if what in seen:
            raise InputError(f"{what}: is there twice", path=path)
        seen.add(what)
    return found
