"""What labelling hands on: for each block of raw rows a folder of three Arrow files, one for each class here.

The folder ``NNNNNN`` appears under its name only when it is whole; a killed build goes on from those that are there.

A row of these files is known by its *place*: ``(block << 32) + its number in the block's file``. Places are in the
order of the input.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple, get_type_hints

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from builders.common.arrow_files import new_arrow, read_arrow

Places = npt.NDArray[np.int64]


class Question(NamedTuple):
    """A raw row."""

    split: str
    question_id: str  # the raw row's own
    query: str  # its id in the release
    text: str
    chars: int
    answered: bool
    blank_passages: int
    cut: bool  # the row carried no words: this build cut them
    source: str
    offset: int  # where its line begins in the source


class Passage(NamedTuple):
    """A passage; there is one each time that the text comes."""

    docid: str
    text: bytes  # UTF-8
    chars: int


class Positive(NamedTuple):
    """A positive passage of a question; ``passage`` is its number in the block's file of passages."""

    split: str
    query: str
    docid: str
    passage: int


Kind = type[Question] | type[Passage] | type[Positive]
_GIVEN = {str: pa.string(), bytes: pa.binary(), int: pa.int64(), bool: pa.bool_()}
_WRITTEN = _GIVEN | {bytes: pa.string()}


def schema_of(kind: Kind) -> pa.Schema:
    """The columns of a file."""
    return pa.schema([(name, _WRITTEN[found]) for name, found in get_type_hints(kind).items()])


def block_folder(work: Path, block: int) -> Path:
    return work / f"{block:06d}"


def _file(folder: Path, kind: Kind) -> Path:
    return folder / f"{kind.__name__.lower()}s.arrow"


def write_labelled(folder: Path, kind: Kind, rows: Sequence[Question] | Sequence[Passage] | Sequence[Positive]) -> None:
    """Write one of a block's files."""
    schema = schema_of(kind)
    columns = zip(*rows, strict=True) if rows else [[]] * len(schema)
    given = [_GIVEN[found] for found in get_type_hints(kind).values()]
    arrays = [pa.array(column, of) for column, of in zip(columns, given, strict=True)]
    with new_arrow(_file(folder, kind), schema) as out:
        out.write_table(pa.table(arrays, names=schema.names).cast(schema))


def read_labelled(work: Path, block: int, kind: Kind, columns: Sequence[str] | None = None) -> pa.Table:
    """One of a block's files, or some columns of it."""
    return read_arrow(_file(block_folder(work, block), kind), schema_of(kind), columns)


def rows_at(places: Places, work: Path, kind: Kind, columns: Sequence[str]) -> pa.Table:
    """The rows at these places, in this order, whatever blocks they are in."""
    if not places.size:
        return schema_of(kind).empty_table().select(columns)
    order = np.argsort(places, kind="stable")
    blocks, numbers = np.divmod(places[order], 1 << 32)
    found, starts = np.unique(blocks, return_index=True)
    tables = [
        read_labelled(work, block, kind, columns).take(some)
        for block, some in zip(found.tolist(), np.split(numbers, starts[1:]), strict=True)
    ]
    table = pa.concat_tables(tables)
    if (order[1:] > order[:-1]).all():
        return table
    back = np.empty_like(order)
    back[order] = np.arange(order.size)
    return table.combine_chunks().take(back)
