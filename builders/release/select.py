"""What becomes of questions and judgments: decided on ids, in a database that is on disk where memory does not suffice.

Of a question that comes several times the first place counts, with all its judgments. The result, the plan, is an Arrow
file of the queries and one of the judgments of every split, in order.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.dataset  # DuckDB loads it to read Arrow: now rather than when it is waited for

from builders.common.addresses import local_folder
from builders.common.arrow_files import new_arrow
from builders.common.command import InputError
from builders.release.shard_files import POSITIVES, QUESTIONS, read_shard
from builders.release.write import PLANNED, plan_path
from builders.sources.files import Source
from builders.sources.lines import line_number
from builders.sources.splits import SPLITS
from builders.store import layout

_MEMORY = "128MB"
# ``seq`` numbers the rows that the database reads in the order of the input: (shard << 32) + the number of the row in
# the shard.
_SEQ = pa.field("seq", pa.int64())
# Where a question stands is read again for the one that an error names.
_QUESTIONS = pa.schema([field for field in QUESTIONS if field.name not in ("source", "start")])


@dataclass(frozen=True)
class Plan:
    """What the database finds out about questions and judgments; the rows themselves it has written to ``work``."""

    read: dict[str, dict[str, int]]  # counts of each split's raw rows
    sizes: dict[str, dict[str, int]]  # numbers of each split's queries and judgments
    cut: bool  # whether there was a row whose words the build had to cut itself


def make_plan(sources: Sequence[Source], shards: Sequence[int], work: Path, threads: int) -> Plan:
    """Write the plan of every split to ``work``. :class:`InputError` for one question id with two texts."""
    with local_folder(work) as folder, _connected(folder / "assemble.duckdb") as con:
        con.execute(f"SET memory_limit = '{_MEMORY}'")
        con.execute(f"SET threads = {threads}")
        con.execute(f"SET temp_directory = '{_quoted(folder / 'assemble.tmp')}'")
        con.execute("SET enable_progress_bar = false")
        con.execute("SET force_compression = 'uncompressed'")  # the tables are read once or twice
        _load(con, shards, work)
        _refuse_conflicts(con, sources, work)
        read = {split: counts for split in SPLITS if (counts := _read_counts(con, split))["questions"]}
        sizes = {split: _write_plan(con, work, split) for split in read}
        return Plan(read, sizes, bool(con.execute("SELECT bool_or(cut) FROM questions").fetchall()[0][0]))


def _connected(path: Path) -> duckdb.DuckDBPyConnection:
    for old in path.parent.glob(f"{path.name}*"):
        old.unlink()
    return duckdb.connect(str(path))


def _quoted(path: Path) -> str:
    return str(path).replace("'", "''")


def _load(con: duckdb.DuckDBPyConnection, shards: Sequence[int], work: Path) -> None:
    con.register("read", _rows(work, shards, "questions", _QUESTIONS))
    con.execute("CREATE TABLE questions AS SELECT * FROM read")
    con.register("read", _rows(work, shards, "positives", POSITIVES))
    # Grouping and joining happens on ids (as 16 bytes) and numbers alone, one small step after the other: texts in a
    # grouping or a join would not spill to disk.
    con.execute("""
        CREATE TABLE judged AS
        SELECT split, query, min(seq) AS seq, arg_min((seq >> 32 << 32) + passage, seq) AS passage
        FROM read GROUP BY split, query, docid
    """)
    con.unregister("read")
    con.execute("""
        CREATE TABLE firsts AS SELECT split, query, min(seq) AS seq FROM questions GROUP BY split, query
    """)
    # A split with answers is labelled: a question of it that has no positive passage can neither be trained on nor
    # evaluated, and is left out (the official train set, too, holds only such questions). One without keeps them all.
    labelled = [row[0] for row in con.execute("SELECT DISTINCT split FROM questions WHERE answered").fetchall()]
    con.execute(
        """
        CREATE TABLE wanted AS
        SELECT * FROM firsts WHERE NOT list_contains($labelled, split)
        UNION ALL SELECT * FROM firsts SEMI JOIN judged USING (split, query) WHERE list_contains($labelled, split)
        """,
        {"labelled": labelled},
    )
    con.execute("DROP TABLE firsts")
    # Split by split in order: a query's rowid, less its split's first, is its place.
    con.execute("""
        CREATE TABLE queries AS SELECT wanted.split, wanted.query, text
        FROM questions JOIN wanted USING (seq) ORDER BY wanted.split, seq
    """)
    con.execute("DROP TABLE wanted")


def _rows(work: Path, shards: Sequence[int], name: str, schema: pa.Schema) -> pa.RecordBatchReader:
    """A table of all shards, with the column ``seq``."""

    def batches() -> Iterator[pa.RecordBatch]:
        for shard in shards:
            table = read_shard(work, shard, name, schema.names)
            seq = (shard << 32) + np.arange(table.num_rows, dtype=np.int64)
            yield from table.add_column(0, _SEQ, pa.array(seq)).to_batches()

    return pa.RecordBatchReader.from_batches(pa.schema([_SEQ, *schema]), batches())


def _refuse_conflicts(con: duckdb.DuckDBPyConnection, sources: Sequence[Source], work: Path) -> None:
    found = con.execute("""
        WITH firsts AS (
            SELECT question_id, arg_min({'text': text, 'seq': seq}, seq) AS first
            FROM questions GROUP BY question_id HAVING min(query) <> max(query)
        )
        SELECT question_id, seq, text, first.seq, first.text
        FROM questions JOIN firsts USING (question_id) WHERE text <> first.text ORDER BY seq LIMIT 1
    """).fetchall()
    if found:
        number, seq, text, first_seq, first_text = found[0]
        (source, line), (first_source, first_line) = (_place(sources, work, each) for each in (seq, first_seq))
        raise InputError(
            f"question_id {number} has the text {text!r}, but {first_text!r} at {first_source}:{first_line};"
            " expected one text for one id",
            path=source,
            line=line,
        )


def _place(sources: Sequence[Source], work: Path, seq: int) -> tuple[str, int]:
    """The file and the line of a question."""
    row = read_shard(work, seq >> 32, "questions", ["source", "start"]).slice(seq & 0xFFFFFFFF, 1).to_pylist()[0]
    source = next(source for source in sources if source.shown == row["source"])
    return source.shown, line_number(source, row["start"])


def _read_counts(con: duckdb.DuckDBPyConnection, split: str) -> dict[str, int]:
    names = ("questions", "answered", "same_text_again", "without_positive", "blank_passages_dropped")
    rows = con.execute(
        """
        SELECT count(*), count(*) FILTER (answered), count(*) - count(DISTINCT query),
               count(DISTINCT query) - (SELECT count(*) FROM queries WHERE split = $split), sum(blank_passages)
        FROM questions WHERE split = $split
        """,
        {"split": split},
    ).fetchall()
    return {name: int(value or 0) for name, value in zip(names, rows[0], strict=True)}


def _write_plan(con: duckdb.DuckDBPyConnection, work: Path, split: str) -> dict[str, int]:
    """Write the plan of one split; returns the number of its queries and of its judgments."""
    con.execute("SET VARIABLE low = (SELECT min(rowid) FROM queries WHERE split = ?)", [split])
    sizes = {}
    for name, sql in (
        (
            "queries",
            "SELECT replace(query::VARCHAR, '-', '') AS query_id, text FROM queries WHERE split = ? ORDER BY rowid",
        ),
        (
            "judgments",
            """
            SELECT queries.rowid - getvariable('low') AS place, passage FROM judged JOIN queries USING (split, query)
            WHERE split = ? ORDER BY place, judged.seq
            """,
        ),
    ):
        sizes[name] = 0
        with new_arrow(plan_path(work, split, name), PLANNED[name]) as out:
            for batch in con.sql(sql, params=[split]).to_arrow_reader(layout.ROWS_PER_GROUP):
                out.write_batch(batch.cast(PLANNED[name]))
                sizes[name] += batch.num_rows
    return sizes
