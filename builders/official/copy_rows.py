"""The rows of copies: JSON lines or Parquet, known by their columns."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, TypeVar

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
from msgspec import Struct

from builders.core.errors import InputError
from builders.core.files import raw_lines
from builders.core.typed import json_of, typed

DATA = re.compile(r"\.(jsonl(\.gz)?|parquet)$")  # not dataset_infos.json and the like
_ROWS = 256  # a row with its passages can be 100 kB
_NAMES = {"id": "_id", "qid": "query-id", "pid": "corpus-id"}  # C-MTEB's to mteb's
_KINDS = "query and positive_passages; _id and text; query-id, corpus-id and score"


class Passage(Struct, gc=False):
    text: str
    docid: str | int = ""
    title: str | None = None


class Ranked(Struct, gc=False):
    """A query with its passages."""

    query: str
    positive_passages: list[Passage]
    query_id: str | int = ""
    negative_passages: list[Passage] = []


class Text(Struct, gc=False):
    """A passage or a query."""

    id: str | int = msgspec.field(name="_id")
    text: str = ""
    title: str | None = None


class Judgment(Struct, gc=False):
    query: str | int = msgspec.field(name="query-id")
    passage: str | int = msgspec.field(name="corpus-id")
    score: int | float = 1


T = TypeVar("T", Ranked, Text, Judgment)


def kind_of(path: Path, *names: str) -> str:
    """``ranking``, ``corpus``, ``queries`` or ``qrels``: by the columns, texts by the first of ``names`` that says it.

    Raises :class:`InputError` for a file of no such columns, and for texts whose name says neither.
    """
    columns = {_NAMES.get(column, column) for column in _columns(path)}
    if {"query", "positive_passages"} <= columns:
        return "ranking"
    if {"query-id", "corpus-id"} <= columns:
        return "qrels"
    if not {"_id", "text"} <= columns:
        raise InputError(f"has the columns {', '.join(sorted(columns))}; expected {_KINDS}", path=path)
    for name in names:
        said = [kind for kind, word in (("queries", "quer"), ("corpus", "corpus")) if word in name.lower()]
        if len(said) == 1:
            return said[0]
    raise InputError("texts of what? expected a name with corpus or queries in it", path=path)


def rows_of(path: Path, kind: type[T]) -> Iterator[tuple[str, T]]:
    """(place, row) of every row as a ``kind``; the place is the file with the line or the row.

    Raises :class:`InputError` naming it for a row that is none, and for a damaged file.
    """
    if path.name.endswith(".parquet"):
        for number, row in enumerate(_parquet(path), 1):
            place = f"{path}, row {number}"
            yield place, typed({_NAMES.get(name, name): value for name, value in row.items()}, kind, place)
        return
    for number, line in raw_lines(path):
        if not line.strip():
            continue
        if kind is Ranked:
            yield f"{path}:{number}", json_of(line, kind, path, number)
        else:
            row = json_of(line, dict[str, Any], path, number)
            named = {_NAMES.get(name, name): value for name, value in row.items()}
            yield f"{path}:{number}", typed(named, kind, f"{path}:{number}")


def _columns(path: Path) -> list[str]:
    """The columns of a Parquet file, or the keys of the first line."""
    if path.name.endswith(".parquet"):
        try:
            return list(pq.read_schema(path).names)
        except (pa.ArrowException, OSError, ValueError) as error:
            raise InputError(f"is no Parquet file ({error})", path=path) from None
    for number, line in raw_lines(path):
        if line.strip():
            return list(json_of(line, dict[str, Any], path, number))
    raise InputError("is empty", path=path)


def _parquet(path: Path) -> Iterator[dict[str, Any]]:
    try:
        with pq.ParquetFile(path) as file:
            for batch in file.iter_batches(batch_size=_ROWS):
                yield from batch.to_pylist()
    except (pa.ArrowException, OSError, ValueError) as error:
        raise InputError(f"is damaged ({error})", path=path) from None
