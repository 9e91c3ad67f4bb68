"""Table 10: the kinds of errors, as people told them apart (`baselines errors`), beside the paper's shares."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

from msgspec import Meta, Struct

from baselines.reproduce.marks import NOT
from baselines.reproduce.matrix import Category, Matrix
from builders.core.errors import InputError
from builders.core.typed import Count, read_json

WHY = (
    "Table 10 is left out: its errors are told apart by people. `python -m baselines errors` draws them as a round; "
    "--errors FILE takes what its --tally ROUND --format json prints"
)
_Share = Annotated[float, Meta(ge=0, le=1)]


class _Kind(Struct):
    """Of one category: its share of the pairs that are decided, and the 95 % interval of that."""

    share: _Share
    low: _Share
    high: _Share


class _Tally(Struct):
    """What is read of a tally."""

    categories: dict[str, _Kind]
    decided: Count
    release: str = ""
    split: str = ""


def error_figures(matrix: Matrix, categories: Sequence[Category], path: Path) -> list[dict[str, Any]]:
    """A figure of each of ``categories``, in percent, from a tally as JSON.

    Raises :class:`InputError` where the file is none, or lacks a category.
    """
    try:
        tally = read_json(path, _Tally, any_file=True)
    except (FileNotFoundError, NotADirectoryError):
        raise InputError("no such file; expected what `errors --tally ROUND --format json` prints", path=path) from None
    found = []
    for each in categories:
        if (kind := tally.categories.get(each.name)) is None:
            raise InputError(f"categories: lacks {each.name}", path=path)
        of = f"{tally.decided:,} pairs of {tally.release or 'a release'}, {tally.split or 'a split'}"
        found.append(
            {
                "table": each.table,
                "row": each.name,
                "title": each.title,
                "metric": "share",
                "ours": round(100 * kind.share, 2),
                "interval": [round(100 * kind.low, 2), round(100 * kind.high, 2)],
                "published": each.published,
                "published_by": "paper, 500 pairs",
                "mark": NOT,
                "why": [f"{of}: a tally does not say of which models' errors it is"],
                "command": f"python -m {matrix.made_by['category']}",
            }
        )
    return found
