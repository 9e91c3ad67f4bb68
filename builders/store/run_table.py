"""TREC runs whose lines are plain, as this project writes them: read as columns.

Plain: six columns with one space between them, and nothing to find fault with. Any other file is left to the reader of
lines (``builders.store.runs``), which knows the line that it complains of. What both accept is the same to both.
"""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv

from builders.core.files import rereadable
from builders.store.columns import Columns

_BLOCK = 32 << 20  # bytes that are parsed at a time
_OTHERS = (b"\t", b"\r", b"\v", b"\f", b"\0")  # blanks that bytes.split() knows beside the space; and what no id holds
_BOM = b"\xef\xbb\xbf"
_TEXT = {name: pa.large_string() for name in ("query", "corpus", "rank")} | {"q0": pa.large_binary()}
_TYPES = pa.schema({**_TEXT, "tag": pa.large_binary(), "score": pa.float64()})
_NAMES = ["query", "q0", "corpus", "rank", "score", "tag"]


def read_plain(path: Path) -> tuple[Columns, int] | None:
    """A run's hits in order, and how many queries have ranks that contradict their scores; None where it is not plain.

    Queries come in the order of their first lines; hits by falling score, then by rank, then as they stand.
    """
    tables = []
    try:
        for block in _blocks(path):
            table = _parsed(block)
            if table is None:
                return None
            tables.append(table)
    except (EOFError, gzip.BadGzipFile, zlib.error):
        return None
    if not tables:
        return None
    table = pa.concat_tables(tables)
    queries = table["query"].combine_chunks().dictionary_encode()
    numbers = queries.indices.to_numpy(zero_copy_only=False)
    ranks, scores = table["rank"].to_numpy(), table["score"].to_numpy()
    corpus = table["corpus"].combine_chunks()
    order = np.lexsort((ranks, -scores, numbers))
    if (np.diff(order) != 1).any():
        numbers, ranks, scores, corpus = numbers[order], ranks[order], scores[order], corpus.take(pa.array(order))
    falls = (np.diff(numbers) == 0) & (np.diff(ranks) < 0)
    counts = np.bincount(numbers, minlength=len(queries.dictionary))
    return Columns(queries.dictionary.to_pylist(), counts, corpus, scores), len(np.unique(numbers[:-1][falls]))


def _blocks(path: Path) -> Iterator[bytes]:
    """The bytes of a file, gzipped where it ends in ``.gz``, cut at the ends of lines."""
    rest = b""
    found = rereadable(path)
    with gzip.open(found) if path.suffix == ".gz" else open(found, "rb") as file:
        while read := file.read(_BLOCK):
            whole, end, rest = (rest + read).rpartition(b"\n")
            if whole:
                yield whole + end
    if rest:
        yield rest


def _parsed(block: bytes) -> pa.Table | None:
    if any(each in block for each in _OTHERS) or block.startswith(_BOM):
        return None
    reading = pyarrow.csv.ReadOptions(use_threads=False, block_size=len(block) + 1, column_names=_NAMES)
    parsing = pyarrow.csv.ParseOptions(delimiter=" ", quote_char=False, double_quote=False)
    converting = pyarrow.csv.ConvertOptions(column_types=_TYPES, null_values=[], strings_can_be_null=False)
    try:
        table = pyarrow.csv.read_csv(pa.py_buffer(block), reading, parsing, converting)
    except pa.ArrowInvalid:
        return None
    if any(pc.min(pc.binary_length(table[name])).as_py() == 0 for name in _NAMES if name != "score"):
        return None
    # Arrow would take 0x10 for a number.
    if not (_all(pc.match_substring_regex(table["rank"], "^[0-9]{1,18}$")) and _all(pc.is_finite(table["score"]))):
        return None
    rank = table["rank"].cast(pa.int64())
    return table.select(["query", "corpus", "score"]).append_column("rank", rank)


def _all(values: pa.ChunkedArray) -> bool:
    return bool(pc.all(values).as_py())
