"""Files of hard negatives, as `baselines mine` writes them: JSON lines of a query's id and its negatives' ids."""

from __future__ import annotations

from pathlib import Path

from msgspec import Struct, field

from builders.core.errors import InputError
from builders.core.files import raw_lines
from builders.core.typed import json_of


class _Row(Struct):
    query: str = field(name="query-id")
    negatives: list[str] = field(name="negative-ids")


def read_negative_ids(path: Path) -> list[tuple[str, list[str], int]]:
    """(query id, ids of its negatives, number of the line) of every line that is not blank.

    Raises :class:`InputError` naming the line that is none of these.
    """
    found = []
    for number, line in raw_lines(path):
        if line.strip():
            row = json_of(line, _Row, path, number, 'expected {"query-id": ID, "negative-ids": [ID, ...]}')
            found.append((row.query, row.negatives, number))
    if not found:
        raise InputError("is empty; expected hard negatives, JSON lines as `baselines mine` writes them", path=path)
    return found
