"""``published_scores.toml``: the rows of the paper's tables, their published scores, and the data of the scores."""

import functools
from pathlib import Path
from typing import Annotated

from msgspec import Meta, Struct

from builders.core.errors import InputError
from builders.core.read_files import read_toml
from builders.core.typed import convert_to

PUBLISHED_SCORES = Path(__file__).with_name("published_scores.toml")


class PublishedData(Struct, frozen=True, forbid_unknown_fields=True):
    """The data that published scores were measured on, and the source of the scores.

    ``queries``, ``positives`` (pairs) and ``passages`` are counts of this data. A count None is not compared with ours.
    """

    split: str
    source: str = "paper"
    queries: int | None = None
    positives: int | None = None
    passages: int | None = None


class PublishedRow(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """One row of a table, one bar in each panel of a figure, or one model of the pool.

    Attributes:
        title: the row's title in the paper. "A > B" means that B re-ranks the top passages of A.
        data: the name of the data that the scores were measured on. Empty for rows without scores.
        scores: the published scores in percent, by measure. Empty if the paper prints no number.
        set: the set of the release.
        split: the split to measure on. Empty: the user's --split.
        queries: measure only the questions of this config. Empty: all questions of the set.
        qrels: measure by the judgments of this config. Empty: the judgments of the set.
        needs: a further config that the release must have. Empty: none.
        like: name of another row of the table, whose scores are published on a split with published labels. Our scores
            are also compared with these scores. Empty: no such row.
        official_negatives: the steps read the hard negatives of the official data.
        series: tells the bars of a system in a figure apart: before or after. Empty outside of figures.
    """

    title: str
    data: str = ""
    scores: dict[str, Annotated[float, Meta(ge=0, le=100)]] = {}
    set: str = "main"
    split: str = ""
    queries: str = ""
    qrels: str = ""
    needs: str = ""
    like: str = ""
    official_negatives: bool = False
    series: str = ""


class PublishedScores(Struct, frozen=True, forbid_unknown_fields=True):
    """The content of the file: data by name, titles by table, and rows by number of the table (or figure) and name.

    The keys of ``titles`` are names of :class:`baselines.reproduce.report_text.Section`, for example table4. ``pool``
    has rows by name.
    """

    data: dict[str, PublishedData]
    titles: dict[str, str]
    table: dict[str, dict[str, PublishedRow]]
    figure: dict[str, dict[str, PublishedRow]]
    pool: dict[str, PublishedRow]


@functools.cache
def read_published_scores(path: Path = PUBLISHED_SCORES) -> PublishedScores:
    """Read the published scores. Raises :class:`InputError` for an unknown key, or data that the file lacks."""
    published = convert_to(read_toml(path), PublishedScores, path)
    # Only rows of tables have published scores, and so the name of their data.
    for rows in published.table.values():
        for name, row in rows.items():
            if row.data not in published.data:
                raise InputError(f"{name}: no data {row.data!r}; expected {', '.join(published.data)}", path=path)
    return published
