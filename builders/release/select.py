"""Select the passages, questions and judgments of the release, in the order of the input.

A selection has the places of rows (see :mod:`.label`). Their texts are read later, when the files are written.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import duckdb
import numpy as np
import pyarrow as pa

from builders.core.database import open_database
from builders.core.errors import InputError
from builders.release.label import ROW_BITS, SCHEMAS, Places, read_labelled, rows_at
from builders.sources.lines import line_number
from builders.sources.source_files import Source
from builders.store.layout import SPLITS
from builders.store.table3 import LengthCounter

_MEMORY_MB = 512
# The columns that the database reads from each table, in addition to ``place``.
_TABLE_COLUMNS = {
    "questions": ["split", "question_id", "query_id", "chars", "answered", "blank_passages"],
    "passages": ["docid", "chars"],
    # "passage" is the place of the passage in the table "passages".
    "positives": ["split", "query_id", "docid", "chars", "passage"],
}


@dataclass(frozen=True)
class SplitSelection:
    """The rows of one split, in order."""

    queries: Places
    raw_rows: Places  # the raw rows of the queries; an equal question has several
    raw_row_queries: Places  # for each raw row, the number of its query (from 0)
    judged_queries: Places  # for each judgment, the number of its query (from 0)
    passages: Places  # for each judgment, the place of its passage
    query_chars: int  # characters of all queries
    passage_chars: LengthCounter  # characters of the judged passages


@dataclass(frozen=True)
class ReleaseSelection:
    """The rows of the release."""

    corpus: Places  # of the passages
    corpus_chars: LengthCounter  # characters of the passages
    splits: dict[str, SplitSelection]  # only splits with raw rows
    read: dict[str, dict[str, int]]  # counts of the raw rows (_read_counts), by split


def select_rows(
    sources: Sequence[Source], block_numbers: Sequence[int], work_folder: Path, thread_count: int
) -> ReleaseSelection:
    """Select the rows of the release from the labelled ``block_numbers`` under ``work_folder``.

    Raises :class:`InputError` if one question id has two texts, or if the input has no passage.
    """
    with open_database(work_folder / "ids", _MEMORY_MB, thread_count) as con:
        for table, columns in _TABLE_COLUMNS.items():
            # Each view is read only once, because a reader of record batches cannot start again.
            block_rows = _read_blocks(work_folder, block_numbers, table, columns)
            con.register(f"{table}_of_blocks", block_rows)
            id_columns = [column for column in columns if column in ("query_id", "docid")]
            # UUIDs take 16 bytes.
            ids = ", ".join(f"{column}::UUID AS {column}" for column in id_columns)
            con.execute(f"CREATE VIEW {table} AS SELECT * REPLACE ({ids}) FROM {table}_of_blocks")
        con.execute("CREATE TABLE rows AS SELECT * FROM questions")
        _refuse_two_texts(con, sources, work_folder)
        keep_firsts(con, "passages", "docid", "corpus", "chars")
        # A question's positive passages come from all its rows.
        keep_firsts(con, "positives", "split, query_id, docid", "judgments", "passage", "chars")
        select_queries(con)
        counts_by_split = {}
        for split in SPLITS:
            counts = _read_counts(con, split)
            if counts["questions"]:
                counts_by_split[split] = counts
        corpus = _column(con, "SELECT place FROM corpus ORDER BY place")
        if not corpus.size:
            raise InputError("the input has no passage, because every document is empty; expected documents with text")
        return ReleaseSelection(
            corpus=corpus,
            corpus_chars=_count_lengths(con, "FROM corpus"),
            splits={split: _split_selection(con, split) for split in counts_by_split},
            read=counts_by_split,
        )


def keep_firsts(
    connection: duckdb.DuckDBPyConnection, table: str, key_columns: str, new_table: str, *copied_columns: str
) -> None:
    """Create ``new_table``. For each value of ``key_columns``, it has the row of ``table`` with the lowest ``place``.

    Ids are MD5s of texts, so passages of equal text become one passage. The paper only says that its passages are
    unique (abstract). ``copied_columns`` names further columns to copy from the row.
    """
    copies = "".join(f", arg_min({column}, place) AS {column}" for column in copied_columns)
    columns = f"{key_columns}, min(place) AS place{copies}"
    connection.execute(f"CREATE TABLE {new_table} AS SELECT {columns} FROM {table} GROUP BY {key_columns}")


def select_queries(connection: duckdb.DuckDBPyConnection) -> None:
    """Create the table ``queries``, with each question of a split once.

    A split is labelled if any of its rows has an answer. Questions of a labelled split are skipped if they have no
    positive passage, because the official train set has no such question. The paper does not state this rule. The
    column ``number`` counts the questions of a split from 0, in the order of the input.
    """
    keep_firsts(connection, "rows", "split, query_id", "questions_once", "chars")
    connection.execute("""
        CREATE TABLE queries AS
        SELECT *, row_number() OVER (PARTITION BY split ORDER BY place) - 1 AS number
        FROM questions_once
        WHERE split NOT IN (SELECT split FROM rows WHERE answered)
           OR (split, query_id) IN (SELECT (split, query_id) FROM judgments)
    """)


def _read_blocks(
    work_folder: Path, block_numbers: Sequence[int], table: str, columns: list[str]
) -> pa.RecordBatchReader:
    """Return the rows of one table from all blocks: the place of each row, and ``columns``."""
    place_field = pa.field("place", pa.int64())

    def batches() -> Iterator[pa.RecordBatch]:
        for block_number in block_numbers:
            rows = read_labelled(work_folder, block_number, table, columns)
            first_place = block_number << ROW_BITS
            if table == "positives":
                # The block has the number of the passage's row, which becomes the passage's place.
                passage_places = pa.array(rows["passage"].to_numpy() + first_place)
                rows = rows.drop(["passage"]).append_column("passage", passage_places)
            row_places = pa.array(first_place + np.arange(rows.num_rows))
            yield from rows.add_column(0, place_field, row_places).to_batches()

    schema = pa.schema([place_field, *(SCHEMAS[table].field(column) for column in columns)])
    return pa.RecordBatchReader.from_batches(schema, batches())


def _refuse_two_texts(connection: duckdb.DuckDBPyConnection, sources: Sequence[Source], work_folder: Path) -> None:
    """Raise :class:`InputError` if two raw rows have the same question id and different texts."""
    # Find the first two contradicting rows in the order of the input. Ids are MD5s of texts, so different ids mean
    # different texts.
    places = _column(
        connection,
        """
        WITH firsts AS (
            SELECT question_id, min(place) AS first, arg_min(query_id, place) AS first_query
            FROM rows GROUP BY question_id HAVING min(query_id) <> max(query_id)
        )
        SELECT unnest([first, place]) FROM (
            SELECT first, place FROM rows JOIN firsts USING (question_id)
            WHERE query_id <> first_query ORDER BY place LIMIT 1
        )
        """,
    )
    if not places.size:
        return
    # The texts are read only for the error.
    first_row, later_row = rows_at(
        places, work_folder, "questions", ["question_id", "text", "source", "offset"]
    ).to_pylist()
    source = next(source for source in sources if source.shown == later_row["source"])
    raise InputError(
        f"question_id {later_row['question_id']} has the text {later_row['text']!r}, but an earlier row has "
        f"{first_row['text']!r}; expected one text for each id",
        path=source.shown,
        line=line_number(source, later_row["offset"]),
    )


def _read_counts(connection: duckdb.DuckDBPyConnection, split: str) -> dict[str, int]:
    """Return the counts of a split's raw rows for ``stats.json``.

    ``questions`` and ``answered`` count rows. ``same_text_again`` counts rows whose question an earlier row has.
    ``without_positive`` counts skipped questions (:func:`select_queries`).
    """
    names = ("questions", "answered", "same_text_again", "without_positive", "blank_passages_dropped")
    row = connection.execute(
        """
        SELECT count(*), count(*) FILTER (answered), count(*) - count(DISTINCT query_id),
               count(DISTINCT query_id) - (SELECT count(*) FROM queries WHERE split = $split), sum(blank_passages)
        FROM rows WHERE split = $split
        """,
        {"split": split},
    ).fetchall()[0]
    return {name: int(value or 0) for name, value in zip(names, row, strict=True)}


def _split_selection(connection: duckdb.DuckDBPyConnection, split: str) -> SplitSelection:
    # Row i of the queries has the number i. Rows and judgments are sorted by this number, then by the input. The joins
    # drop the rows of skipped questions.
    from_queries = "FROM queries WHERE split = $split"
    from_rows = "FROM rows JOIN queries USING (split, query_id) WHERE split = $split ORDER BY number, rows.place"
    from_judgments = "FROM judgments JOIN queries USING (split, query_id) WHERE split = $split"
    in_order = "ORDER BY number, judgments.place"
    sum_of_chars = f"SELECT coalesce(sum(chars), 0)::BIGINT {from_queries}"
    (query_chars,) = _column(connection, sum_of_chars, split=split)
    return SplitSelection(
        queries=_column(connection, f"SELECT place {from_queries} ORDER BY number", split=split),
        raw_rows=_column(connection, f"SELECT rows.place {from_rows}", split=split),
        raw_row_queries=_column(connection, f"SELECT number {from_rows}", split=split),
        judged_queries=_column(connection, f"SELECT number {from_judgments} {in_order}", split=split),
        passages=_column(connection, f"SELECT passage {from_judgments} {in_order}", split=split),
        query_chars=int(query_chars),
        passage_chars=_count_lengths(connection, f"FROM (SELECT judgments.chars {from_judgments})", split=split),
    )


def _column(connection: duckdb.DuckDBPyConnection, sql: str, **parameters: str) -> Places:
    """Return the only column of a query's result."""
    (column,) = connection.execute(sql, parameters).fetchnumpy().values()
    return np.asarray(column, np.int64)


def _count_lengths(connection: duckdb.DuckDBPyConnection, from_clause: str, **parameters: str) -> LengthCounter:
    sql = f"SELECT chars, count(*) {from_clause} GROUP BY chars"
    # The shape holds for a result without rows too.
    pairs = np.array(connection.execute(sql, parameters).fetchall(), np.int64).reshape(-1, 2)
    counter = LengthCounter()
    counter.add(pairs[:, 0], pairs[:, 1])
    return counter
