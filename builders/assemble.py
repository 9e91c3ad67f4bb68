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
import pyarrow.compute as pc
import pyarrow.parquet as pq

from builders.command import InputError, log, progress
from builders.draft import Draft
from builders.raw import SPLITS
from builders.stats import LengthCounter, round_stat
from builders.store import CORPUS, JOINED, PASSAGES, QRELS, QUERIES

_BATCH = 2_048
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
        draft.stats["collections"]["corpus"] = _write_corpus(con, work, draft)
        draft.stats["read"] = {}
        for split in SPLITS:
            counts = _read_counts(con, split)
            if counts["questions"]:
                draft.stats["read"][split] = counts
                _write_split(con, draft, split)
                draft.stats["table3"][split] = _table3(con, split)


def _quoted(path: Path) -> str:
    return str(path).replace("'", "''")


def _load(con: duckdb.DuckDBPyConnection, work: Path) -> None:
    def shards(name: str) -> str:
        return f"read_parquet('{_quoted(work)}/[0-9]*/{name}.parquet')"

    con.execute(f"CREATE TABLE questions AS SELECT * FROM {shards('questions')}")
    con.execute(f"CREATE TABLE kept AS SELECT min(seq) AS seq FROM {shards('passages')} GROUP BY docid ORDER BY 1")
    con.execute(f"""
        CREATE TABLE judged AS
        SELECT split, query_id, docid, min(seq) AS seq, arg_min(text, seq) AS text
        FROM {shards("positives")} GROUP BY split, query_id, docid
    """)
    # A split with answers is labelled: a question of it that has no positive passage can neither be trained on nor
    # evaluated, and is left out (the official train set, too, holds only such questions). One without keeps them all.
    con.execute("""
        CREATE TABLE queries AS
        SELECT split, query_id, first.text AS text,
               row_number() OVER (PARTITION BY split ORDER BY first.seq) - 1 AS place
        FROM (SELECT split, query_id, min({'seq': seq, 'text': text}) AS first FROM questions GROUP BY split, query_id)
        WHERE split NOT IN (SELECT split FROM questions WHERE answered)
           OR (split, query_id) IN (SELECT (split, query_id) FROM judged)
    """)
    con.execute("""
        CREATE TABLE positives AS
        SELECT judged.split, place, judged.query_id, docid, judged.text
        FROM judged JOIN queries USING (split, query_id) ORDER BY judged.split, place, judged.seq
    """)


def _refuse_conflicts(con: duckdb.DuckDBPyConnection) -> None:
    found = con.execute("""
        WITH firsts AS (
            SELECT question_id, arg_min({'text': text, 'source': source, 'line': line}, seq) AS first
            FROM questions GROUP BY question_id HAVING count(DISTINCT query_id) > 1
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


def _write_corpus(con: duckdb.DuckDBPyConnection, work: Path, draft: Draft) -> dict[str, float | int | None]:
    writer, lengths = draft.writer("corpus", "corpus"), LengthCounter()
    shards = sorted(work.glob("[0-9]*/passages.parquet"))
    for path in progress(shards, unit="shard", label="corpus"):
        table = pq.read_table(path)
        if not table.num_rows:
            continue
        low, high = table["seq"][0].as_py(), table["seq"][-1].as_py()
        kept = con.execute("SELECT seq FROM kept WHERE seq BETWEEN ? AND ? ORDER BY seq", [low, high]).fetchnumpy()
        table = table.take(pa.array(np.asarray(kept["seq"], np.int64) - low))
        texts = table["text"]
        lengths.add(pc.utf8_length(texts).to_numpy())
        titles = pa.repeat(pa.scalar(""), table.num_rows)
        writer.write(pa.table([table["docid"], titles, texts], schema=CORPUS))
    if not lengths.count:
        raise InputError("the input holds no passage: every document is empty")
    return lengths.summary()


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
    passages, chars = _one(con, "SELECT count(*), avg(length(text)) FROM positives WHERE split = ?", split)
    return {
        "queries": queries,
        "positive_passages": passages or None,  # None: the split carries no labels
        "passages_per_query": round_stat(passages / queries) if passages else None,
        "chars_per_query": round_stat(query_chars),
        "chars_per_passage": round_stat(chars),
    }


def _one(con: duckdb.DuckDBPyConnection, sql: str, split: str) -> tuple[Any, ...]:
    return con.execute(sql, [split]).fetchall()[0]  # type: ignore[no-any-return]


def _write_split(con: duckdb.DuckDBPyConnection, draft: Draft, split: str) -> None:
    """The queries, qrels and joined rows of one split; no qrels where the split carries no labels."""
    queries, joined = draft.writer("queries", split), draft.writer(split, split)
    labelled = bool(_one(con, "SELECT count(*) FROM positives WHERE split = ?", split)[0])
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
    total = _one(con, "SELECT count(*) FROM queries WHERE split = ?", split)[0]
    for low in range(0, total, _BATCH):
        where = "WHERE split = $split AND place >= $low AND place < $high"
        values = {"split": split, "low": low, "high": low + _BATCH}
        yield (
            con.sql(
                f"SELECT query_id, text, place FROM queries {where} ORDER BY place", params=values
            ).to_arrow_table(),
            # positives is stored in order; place alone would not say the order of one query's passages.
            con.sql(
                f"SELECT query_id, docid, text, place FROM positives {where} ORDER BY place, rowid", params=values
            ).to_arrow_table(),
        )
