"""Read runs that are lines of columns: TREC runs, and MS MARCO's TSV.

A line of a TREC run is ``query-id Q0 corpus-id rank score tag``, separated by white space. A line of MS MARCO's TSV is
``query-id corpus-id rank``, or ``query-id corpus-id rank score``, separated by tabs. A file may be gzipped, whatever
its name. Lines may be blank, and may begin with a byte order mark.
"""

import contextlib
import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv

from builders.core.errors import InputError
from builders.core.read_files import (
    BOM,
    LONGEST_LINE,
    id_of,
    line_too_long,
    open_text,
    parse_integer,
    quote_column,
    raw_lines,
)

# The hits of a run. Hits of a query are in the order of score, rank and row.
HITS_SCHEMA = pa.schema(
    {"query": pa.large_string(), "corpus": pa.large_string(), "score": pa.float64(), "rank": pa.int64()}
)
_BLOCK_BYTES = 32 << 20  # bytes parsed at a time
# Arrow reads ranks as texts, because its integers may have other forms than those of parse_lines. Q0 and the tag are
# bytes, because no reader needs them and they may be invalid UTF-8.
_COLUMN_TYPES = {
    "query": pa.large_string(),
    "corpus": pa.large_string(),
    "rank": pa.large_string(),
    "q0": pa.large_binary(),
    "tag": pa.large_binary(),
    "score": pa.float64(),
}


class LineFormat(NamedTuple):
    """The columns of a line.

    Attributes:
        columns: names of the columns, keys of ``_COLUMN_TYPES``.
        separator: the byte between two columns, or None for any white space.
        expected: the columns in words, for an error.
    """

    columns: tuple[str, ...]
    separator: bytes | None
    expected: str

    @property
    def unusual_bytes(self) -> tuple[bytes, ...]:
        """Bytes that Arrow's CSV reader treats differently from :func:`parse_lines`."""
        # Arrow knows one separator. A tab also separates TREC's columns, and blanks around TSV's columns are dropped.
        tab_or_blank = b"\t" if self.separator is None else b" "
        return (BOM, tab_or_blank, b"\r", b"\v", b"\f", b"\0")


TREC = LineFormat(
    ("query", "q0", "corpus", "rank", "score", "tag"), None, "6 columns (query-id Q0 corpus-id rank score tag)"
)
MS_MARCO = LineFormat(("query", "corpus", "rank"), b"\t", "3 columns of MS MARCO's TSV (query-id, corpus-id, rank)")
MS_MARCO_SCORES = LineFormat(
    ("query", "corpus", "rank", "score"),
    b"\t",
    "4 columns of MS MARCO's TSV (query-id, corpus-id, rank, score)",
)


def read_line_run(run_path: Path, line_format: LineFormat) -> pa.Table:
    """Read the hits of a run with the columns of ``HITS_SCHEMA``. Hits without scores get 1, 1/2, 1/3 ... by rank.

    Arrow parses the blocks. A block in an unusual format is parsed line by line. Raises :class:`InputError` with the
    line of the first fault.
    """
    tables = []
    first_line = 1
    for block in _read_blocks(run_path):
        if len(block) > LONGEST_LINE and b"\n" not in block[:-1]:
            raise line_too_long(run_path, first_line)
        # The line parser reads every valid format, and names the line of an error.
        table = parse_block(block, line_format)
        if table is None or not table.num_rows:
            table = parse_lines(block, line_format, run_path, first_line)
        tables.append(table)
        first_line += block.count(b"\n")
    hits = pa.concat_tables(tables)
    if "score" in line_format.columns:
        return hits
    repeated_row = find_repeated_rank(hits)
    if repeated_row is not None:
        query_id = hits["query"][repeated_row].as_py()
        rank = hits["rank"][repeated_row].as_py()
        raise InputError(
            f"query {query_id!r} has the rank {rank} twice; expected every rank once. Is this a file of judgments?",
            path=run_path,
            line=_line_of_row(run_path, repeated_row),
        )
    return with_rank_scores(hits)


def _line_of_row(run_path: Path, row: int) -> int:
    """Return the number of the line, from 1, of the hit ``row``, from 0. Blank lines are no rows."""
    lines = (line_number for line_number, line in raw_lines(run_path) if line.strip())
    for current_row, line_number in enumerate(lines):
        if current_row == row:
            return line_number
    raise IndexError(row)


def find_repeated_rank(hits: pa.Table) -> int | None:
    """Return the first row whose query and rank an earlier row has; None if there is none.

    ``hits`` has the columns of ``HITS_SCHEMA``.
    """
    query_numbers = hits["query"].combine_chunks().dictionary_encode().indices.to_numpy(zero_copy_only=False)
    ranks = hits["rank"].to_numpy()
    order = np.lexsort((ranks, query_numbers))
    is_repeated = (np.diff(query_numbers[order]) == 0) & (np.diff(ranks[order]) == 0)
    # lexsort is stable, so the later row of each equal pair comes second.
    repeated_rows = order[1:][is_repeated]
    return int(repeated_rows.min()) if len(repeated_rows) else None


def with_rank_scores(hits: pa.Table) -> pa.Table:
    """Return hits with scores that keep the order of the ranks: 1, 1/2, 1/3 ... for each query."""
    query_numbers = hits["query"].combine_chunks().dictionary_encode().indices.to_numpy(zero_copy_only=False)
    order = np.lexsort((hits["rank"].to_numpy(), query_numbers))
    # The position of a hit in its query is the distance from the query's first hit in this order.
    hit_counts = np.bincount(query_numbers)
    first_positions = np.repeat(np.cumsum(hit_counts) - hit_counts, hit_counts)
    scores = np.empty(len(order), np.float64)
    scores[order] = 1 / (np.arange(len(order)) - first_positions + 1)
    return hits.set_column(hits.schema.get_field_index("score"), "score", pa.array(scores))


def _read_blocks(run_path: Path) -> Iterator[bytes]:
    """Yield blocks of complete lines. The last line of the file may lack its end.

    After a line of more than ``LONGEST_LINE`` bytes, nothing is read. Its beginning is the last block.
    """
    rest = b""  # the beginning of a line whose end is not yet read
    with open_text(run_path) as file:
        data = file.read(_BLOCK_BYTES)
        while data:
            complete_lines, line_end, rest = (rest + data).rpartition(b"\n")
            if complete_lines:
                yield complete_lines + line_end
            if len(rest) > LONGEST_LINE:
                break  # the caller refuses the line
            data = file.read(_BLOCK_BYTES)
    if rest:
        yield rest


def parse_block(block: bytes, line_format: LineFormat = TREC) -> pa.Table | None:
    """Parse a block of lines whose columns are separated by single blanks (TREC) or single tabs (TSV).

    The table has the columns of ``HITS_SCHEMA``, and scores of 0 if ``line_format`` has no scores. Return None for a
    block that may be wrong or unusual, which :func:`parse_lines` must parse.
    """
    if any(unusual in block for unusual in line_format.unusual_bytes):
        return None
    # The whole block is one block of Arrow, in this thread, because the caller divides the file.
    column_names = list(line_format.columns)
    column_types = {name: _COLUMN_TYPES[name] for name in column_names}
    delimiter = (line_format.separator or b" ").decode()
    reading = pyarrow.csv.ReadOptions(use_threads=False, block_size=len(block) + 1, column_names=column_names)
    parsing = pyarrow.csv.ParseOptions(delimiter=delimiter, quote_char=False, double_quote=False)
    converting = pyarrow.csv.ConvertOptions(column_types=column_types, null_values=[], strings_can_be_null=False)
    try:
        table = pyarrow.csv.read_csv(pa.py_buffer(block), reading, parsing, converting)
    except pa.ArrowInvalid:
        return None
    # Double separators give empty fields.
    for name in column_names:
        if name != "score" and pc.min(pc.binary_length(table[name])).as_py() == 0:
            return None
    # Arrow would parse 0x10 as a number.
    if not pc.all(pc.match_substring_regex(table["rank"], "^[0-9]{1,18}$")).as_py():
        return None
    if "score" not in column_names:
        table = table.append_column("score", pa.array(np.zeros(table.num_rows)))
    elif not pc.all(pc.is_finite(table["score"])).as_py():
        return None
    ranks = table["rank"].cast(pa.int64())
    return table.select(["query", "corpus", "score"]).append_column("rank", ranks)


def parse_lines(block: bytes, line_format: LineFormat, run_path: Path, first_line: int) -> pa.Table:
    """Parse a block line by line into the columns of ``HITS_SCHEMA``. Scores are 0 if ``line_format`` has no scores.

    ``first_line`` is the number of the block's first line. Raises :class:`InputError` for the first invalid line.
    """
    query_ids = []
    passage_ids = []
    scores = []
    ranks = []
    for line_number, line in enumerate(block.split(b"\n"), first_line):
        # Joined files may have a byte order mark in any line. Bytes are split only at ASCII white space, because ids
        # may contain Unicode blanks.
        content = line.removeprefix(BOM)
        if not content.strip():
            continue
        fields = [field.strip() for field in content.split(line_format.separator)]
        if len(fields) != len(line_format.columns):
            problem = f"expected {line_format.expected}, found {len(fields)}"
            raise InputError(problem, path=run_path, line=line_number)
        columns = dict(zip(line_format.columns, fields, strict=True))
        query_ids.append(_id_of_column(columns["query"], "query", run_path, line_number))
        passage_ids.append(_id_of_column(columns["corpus"], "passage", run_path, line_number))
        ranks.append(parse_integer(columns["rank"], "rank", run_path, line_number))
        scores.append(_parse_score(columns.get("score", b"0"), run_path, line_number))
    return pa.table([query_ids, passage_ids, scores, ranks], schema=HITS_SCHEMA)


def _id_of_column(field: bytes, noun: str, run_path: Path, line_number: int) -> str:
    if not field:
        raise InputError(f"the id of the {noun} is empty; expected an id", path=run_path, line=line_number)
    return id_of(field, run_path, line_number)


def _parse_score(score_field: bytes, run_path: Path, line_number: int) -> float:
    with contextlib.suppress(ValueError):
        score = float(score_field)
        if math.isfinite(score):
            return score
    raise InputError(
        f"expected a finite number as the score, found {quote_column(score_field)}", path=run_path, line=line_number
    )


def format_of_line(line: bytes) -> LineFormat | None:
    """Return the format of a line, or None for a line of another form."""
    # TREC first, because the columns of a TREC run may be separated by both blanks and tabs.
    if len(line.split()) == len(TREC.columns):
        return TREC
    for line_format in (MS_MARCO, MS_MARCO_SCORES):
        if line.count(b"\t") == len(line_format.columns) - 1:
            return line_format
    return None


def is_judgment(fields: Sequence[bytes]) -> bool:
    """True if a line's columns are the header of BEIR's qrels, or a line of TREC qrels: ``query-id 0 corpus-id grade``.

    Some files have ``Q0`` in place of ``0``.
    """
    if fields[:2] == [b"query-id", b"corpus-id"]:
        return True
    return len(fields) == len(MS_MARCO_SCORES.columns) and fields[1] in (b"0", b"Q0") and fields[3].isdigit()
