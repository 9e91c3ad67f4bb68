"""``published_scores.toml``: the scores that the paper and the official code published, and their data."""

from pathlib import Path
from typing import Annotated

from msgspec import Meta, Struct

from builders.core.errors import InputError
from builders.core.files import read_toml
from builders.core.typed import typed

PUBLISHED_SCORES = Path(__file__).with_name("published_scores.toml")


class PublishedData(Struct, frozen=True, forbid_unknown_fields=True):
    """The data that published scores were measured on, and the source of the scores."""

    split: str
    source: str = "paper"
    queries: int | None = None
    positives: int | None = None
    passages: int | None = None


class PublishedRow(Struct, frozen=True, forbid_unknown_fields=True):
    """The published scores of a row, in percent by measure, and the name of their data."""

    data: str
    scores: dict[str, Annotated[float, Meta(ge=0, le=100)]]


class PublishedScores(Struct, frozen=True, forbid_unknown_fields=True):
    """All published scores: data by name, and rows by table and name."""

    data: dict[str, PublishedData]
    table: dict[str, dict[str, PublishedRow]]

    def find_row(self, table: int | None, name: str) -> PublishedRow | None:
        """Return the published scores of a row. None for a figure and for the pool, whose scores are not published."""
        return self.table.get(str(table), {}).get(name)


def read_published_scores(path: Path = PUBLISHED_SCORES) -> PublishedScores:
    """Read the published scores. Raises :class:`InputError` for an unknown key, or data that the file lacks."""
    published = typed(read_toml(path), PublishedScores, path)
    for rows in published.table.values():
        for name, row in rows.items():
            if row.data not in published.data:
                raise InputError(f"{name}: no data {row.data!r}; expected {', '.join(published.data)}", path=path)
    return published
