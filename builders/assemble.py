"""The second half of ``release``: finished shards to a release directory.

DuckDB sorts, groups and deduplicates, on disk where the memory it is given does not suffice: neither the number of
passages nor the number of questions decides how much memory a build needs. Order is always that of the input: of a text
that comes several times the first place counts, with all its judgments.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pyarrow as pa

from builders.command import InputError, log
from builders.corpus import write_corpus
from builders.draft import Draft
from builders.raw import SPLITS
from builders.stats import POSITIVES_EDGES, LengthCounter, round_stat
from builders.store import JOINED, PASSAGES, QRELS, QUERIES

_BATCH = 2_048
# queries is stored split by split in order; a query's rowid is its place.
_OF_SPLIT = "place IN (SELECT rowid FROM queries WHERE split = ?)"
_MEMORY = "128MB"


def assemble(work: Path, draft: Draft, workers: int) -> None:
    """Merge the shards under ``work`` into ``draft``: its configs and its figures.

    Raises:
        InputError: for one question id with two texts, and for input without a single passage.
    """
    database = work / "assemble.duckdb"
    for old in work.glob("assemble.duckdb*"):
        old.unlink()
    with duckdb.connect(str(database)) as con:
        con.execute(f"SET memory_limit = '{_MEMORY}'")
        con.execute(f"SET threads = {workers}")
        con.execute(f"SET temp_directory = '{_quoted(work / 'assemble.tmp')}'")
        con.execute("SET enable_progress_bar = false")
        _load(con, work)
        _refuse_conflicts(con)
        draft.stats["collections"]["corpus"] = write_corpus(con, work, draft, workers)
        draft.stats["read"] = {}
        draft.stats["positives_per_query"] = {}
        for split in SPLITS:
            counts = _read_counts(con, split)
            if counts["questions"]:
                draft.stats["read"][split] = counts
                _write_split(con, draft, split)
                draft.stats["table3"][split] = _table3(con, split)
                if draft.stats["table3"][split]["positive_passages"]:
                    draft.stats["positives_per_query"][split] = _positives(con, split)


def _quoted(path: Path) -> str:
    return str(path).replace("'", "''")


def _load(con: duckdb.DuckDBPyConnection, work: Path) -> None:
    def shards(name: str) -> str:
        return f"read_parquet('{_quoted(work)}/[0-9]*/{name}.parquet')"

    # Grouping and joining happens on ids (as 16 bytes) and numbers alone, one small step after the other: texts
    # in a grouping or a join would not spill to disk.
    con.execute(f"CREATE TABLE questions AS SELECT * FROM {shards('questions')}")
    con.execute(f"""
        CREATE TABLE repeated AS SELECT docid::UUID AS id, min(seq) AS first
        FROM {shards("passages")} GROUP BY id HAVING count(*) > 1
    """)
    con.execute(f"""
        CREATE TABLE repeats AS SELECT seq
        FROM (SELECT seq, docid::UUID AS id FROM {shards("passages")}) JOIN repeated USING (id) WHERE seq <> first
    """)
    con.execute(f"""
        CREATE TABLE judged AS SELECT split, query_id::UUID AS query, min(seq) AS seq
        FROM {shards("positives")} GROUP BY split, query_id::UUID, docid::UUID
    """)
    con.execute("""
        CREATE TABLE firsts AS SELECT split, query_id::UUID AS query, min(seq) AS seq
        FROM questions GROUP BY split, query_id::UUID
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
    con.execute("""
        CREATE TABLE queries AS SELECT wanted.split, query, query_id, text
        FROM questions JOIN wanted USING (seq) ORDER BY wanted.split, seq
    """)
    con.execute("DROP TABLE wanted")
    con.execute("""
        CREATE TABLE placed AS SELECT judged.seq, queries.rowid AS place
        FROM judged JOIN queries USING (split, query) ORDER BY judged.seq
    """)
    con.execute("DROP TABLE judged")
    # Shard by shard, so that no join ever holds more than one shard's texts. The rows come nearly in order of place.
    con.execute("CREATE TABLE positives (seq BIGINT, place BIGINT, query_id VARCHAR, docid VARCHAR, text VARCHAR)")
    con.execute("BEGIN")  # one transaction: not a write to disk for each shard
    for path in sorted(work.glob("[0-9]*/positives.parquet")):
        low = int(path.parent.name) << 32
        con.execute(
            """
            INSERT INTO positives SELECT seq, place, query_id, docid, text FROM read_parquet($path)
            JOIN (SELECT seq, place FROM placed WHERE seq >= $low AND seq < $high) USING (seq)
            """,
            {"path": str(path), "low": low, "high": low + (1 << 32)},
        )
    con.execute("COMMIT")
    con.execute("DROP TABLE placed")


def _refuse_conflicts(con: duckdb.DuckDBPyConnection) -> None:
    found = con.execute("""
        WITH firsts AS (
            SELECT question_id, arg_min({'text': text, 'source': source, 'line': line}, seq) AS first
            FROM questions GROUP BY question_id HAVING min(query_id) <> max(query_id)
        )
        SELECT question_id, source, line, text, first.source, first.line, first.text
        FROM questions JOIN firsts USING (question_id) WHERE text <> first.text ORDER BY seq LIMIT 1
    """).fetchall()
    if found:
        number, source, line, text, first_source, first_line, first_text = found[0]
        raise InputError(
            f"question_id {number} has the text {text!r}, but {first_text!r} at {first_source}:{first_line};"
            " expected one text for one id",
            path=source,
            line=line,
        )


def _read_counts(con: duckdb.DuckDBPyConnection, split: str) -> dict[str, int]:
    names = ("questions", "answered", "same_text_again", "without_positive", "blank_passages_dropped")
    rows = con.execute(
        """
        SELECT count(*), count(*) FILTER (answered), count(*) - count(DISTINCT query_id),
               count(DISTINCT query_id) - (SELECT count(*) FROM queries WHERE split = $split), sum(blank_passages)
        FROM questions WHERE split = $split
        """,
        {"split": split},
    ).fetchall()
    return {name: int(value or 0) for name, value in zip(names, rows[0], strict=True)}


def _table3(con: duckdb.DuckDBPyConnection, split: str) -> dict[str, float | int | None]:
    queries, query_chars = _one(con, "SELECT count(*), avg(length(text)) FROM queries WHERE split = ?", split)
    passages, chars = _one(con, f"SELECT count(*), avg(length(text)) FROM positives WHERE {_OF_SPLIT}", split)
    return {
        "queries": queries,
        "positive_passages": passages or None,  # None: the split carries no labels
        "passages_per_query": round_stat(passages / queries) if passages else None,
        "chars_per_query": round_stat(query_chars),
        "chars_per_passage": round_stat(chars),
    }


def _positives(con: duckdb.DuckDBPyConnection, split: str) -> list[dict[str, int | None]]:
    sql = f"SELECT count(*) AS n FROM positives WHERE {_OF_SPLIT} GROUP BY place"
    counter = LengthCounter()
    counter.add(con.execute(sql, [split]).fetchnumpy()["n"])
    return counter.histogram(POSITIVES_EDGES)


def _one(con: duckdb.DuckDBPyConnection, sql: str, split: str) -> tuple[Any, ...]:
    return con.execute(sql, [split]).fetchall()[0]  # type: ignore[no-any-return]


def _write_split(con: duckdb.DuckDBPyConnection, draft: Draft, split: str) -> None:
    """The queries, qrels and joined rows of one split; no qrels where the split carries no labels."""
    queries, joined = draft.writer("queries", split), draft.writer(split, split)
    labelled = bool(_one(con, f"SELECT count(*) FROM positives WHERE {_OF_SPLIT}", split)[0])
    qrels = draft.writer("qrels", split) if labelled else None
    for rows, positives in _batches(con, split):
        ids, texts = rows["query_id"], rows["text"]
        queries.write(pa.table([ids, texts], schema=QUERIES))
        if qrels:
            score = pa.repeat(pa.scalar(1, pa.int64()), positives.num_rows)
            qrels.write(pa.table([positives["query_id"], positives["docid"], score], schema=QRELS))
        # The rows are ordered by query: where each query's passages begin is all that a list column needs.
        ends = np.searchsorted(positives["place"].to_numpy(), rows["place"].to_numpy(), side="right")
        offsets = pa.array(np.concatenate([[0], ends]), pa.int32())
        title = pa.repeat(pa.scalar(""), positives.num_rows)
        structs = pa.StructArray.from_arrays(
            [positives["docid"].combine_chunks(), title, positives["text"].combine_chunks()],
            fields=list(PASSAGES.value_type),
        )
        none = pa.array([[]] * len(ids), PASSAGES)
        lists = pa.ListArray.from_arrays(offsets, structs, type=PASSAGES)
        joined.write(pa.table([ids, texts, lists, none], schema=JOINED))
    log.info("%s: %d queries, %d judgments", split, queries.rows, qrels.rows if qrels else 0)


def _batches(con: duckdb.DuckDBPyConnection, split: str) -> Iterator[tuple[pa.Table, pa.Table]]:
    """Batches of a split's queries, each with the positives of just these queries, both in order."""
    first, last = _one(con, "SELECT min(rowid), max(rowid) FROM queries WHERE split = ?", split)
    if first is None:  # a labelled split without a single positive
        return
    for low in range(first, last + 1, _BATCH):
        values = {"low": low, "high": min(low + _BATCH, last + 1)}
        yield (
            con.sql(
                "SELECT query_id, text, rowid AS place FROM queries"
                " WHERE rowid >= $low AND rowid < $high ORDER BY rowid",
                params=values,
            ).to_arrow_table(),
            con.sql(
                "SELECT query_id, docid, text, place FROM positives"
                " WHERE place >= $low AND place < $high ORDER BY place, seq",
                params=values,
            ).to_arrow_table(),
        )
