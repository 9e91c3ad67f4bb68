"""The second half of ``release``: finished shards to a release directory.

Which passages and which questions have come before is decided on ids alone, in parts or on disk where the memory does
not suffice: neither the number of passages nor the number of questions decides how much memory a build needs. Then each
Parquet file is a task. Order is always that of the input: of a text that comes several times the first place counts,
with all its judgments.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import duckdb
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset  # DuckDB loads it to read Arrow: now rather than when it is waited for

from builders import store
from builders.addresses import local_folder
from builders.arrow_files import new_arrow
from builders.blocks import line_number
from builders.command import InputError, log, progress
from builders.draft import Draft
from builders.files import fsync_file
from builders.passages import hex_ids
from builders.pieces import (
    PLANNED,
    CorpusFile,
    Slice,
    SplitFile,
    plan_path,
    read_plan,
    write_file,
)
from builders.processes import Engine
from builders.raw import SPLITS
from builders.repeats import count_ids, find_repeats, parts
from builders.shards import QUESTIONS, read_shard, shard_path
from builders.sources import Source
from builders.stats import POSITIVES_EDGES, LengthCounter, round_stat
from builders.store import SplitWriter

_MEMORY = "128MB"
# What the database reads of each shard's rows. ``seq`` numbers them in the order of the input: (shard << 32) + the
# number of the row in the shard.
_QUESTIONS = pa.schema(
    [("seq", pa.int64()), *((f.name, f.type) for f in QUESTIONS if f.name != "id"), ("query_id", pa.string())]
)
_POSITIVES = pa.schema(
    [
        ("seq", pa.int64()),
        ("split", pa.string()),
        ("query_id", pa.string()),
        ("docid", pa.string()),
        ("passage", pa.int64()),
    ]
)


def assemble(sources: Sequence[Source], shards: Sequence[int], work: Path, draft: Draft, engine: Engine) -> bool:
    """Merge the ``shards`` under ``work`` into ``draft``: its configs and its figures.

    Returns whether there was a row whose words the build had to cut itself.

    Raises:
        InputError: for one question id with two texts, and for input without a single passage.
    """
    sizes: dict[str, dict[str, int]] = {}
    with local_folder(work) as folder, _connected(folder / "assemble.duckdb") as con:
        con.execute(f"SET memory_limit = '{_MEMORY}'")
        con.execute(f"SET threads = {engine.workers}")
        con.execute(f"SET temp_directory = '{_quoted(folder / 'assemble.tmp')}'")
        con.execute("SET enable_progress_bar = false")
        _load(con, shards, work)
        _refuse_conflicts(con, sources)
        draft.stats["read"] = {}
        for split in SPLITS:
            counts = _read_counts(con, split)
            if counts["questions"]:
                draft.stats["read"][split] = counts
                sizes[split] = _plan(con, work, split)
        cut = bool(con.execute("SELECT bool_or(cut) FROM questions").fetchall()[0][0])
    corpus = draft.writer("corpus", "corpus")
    files: dict[SplitWriter, Sequence[CorpusFile | SplitFile]] = {corpus: _corpus_files(shards, work, corpus, engine)}
    for split in sizes:
        files |= _split_files(draft, work, split, sizes[split])
    lengths = _write_files(files, engine)
    draft.stats["collections"]["corpus"] = lengths[corpus].summary()
    draft.stats["positives_per_query"] = {}
    for split, writer in zip(sizes, (writer for writer in files if writer.config in SPLITS), strict=True):
        draft.stats["table3"][split] = _table3(work, split, sizes[split], lengths[writer])
        if sizes[split]["judgments"]:
            draft.stats["positives_per_query"][split] = _positives_per_query(work, split)
    return cut


def _write_files(
    files: Mapping[SplitWriter, Sequence[CorpusFile | SplitFile]], engine: Engine
) -> dict[SplitWriter, LengthCounter]:
    """Write the files of every writer; returns how long their passages are."""
    tasks = [(writer, file) for writer, found in files.items() for file in found]
    lengths = {writer: LengthCounter() for writer in files}
    with progress(total=len(tasks), unit="file", label="write") as bar:
        written = engine.map(write_file, [file for _, file in tasks])
        for (writer, file), done in zip(tasks, written, strict=True):
            lengths[writer].add(np.arange(done.lengths.size), done.lengths)
            writer.adopt(file.path, done.entry)
            fsync_file(file.path)  # while the workers go on: at the end nothing is left to wait for
            bar.update()
    return lengths


def _connected(path: Path) -> duckdb.DuckDBPyConnection:
    for old in path.parent.glob(f"{path.name}*"):
        old.unlink()
    return duckdb.connect(str(path))


def _quoted(path: Path) -> str:
    return str(path).replace("'", "''")


def _load(con: duckdb.DuckDBPyConnection, shards: Sequence[int], work: Path) -> None:
    questions = _reader(_QUESTIONS, (_questions(work, shard) for shard in shards))
    con.register("read", questions)
    con.execute("CREATE TABLE questions AS SELECT * FROM read")
    positives = _reader(_POSITIVES, (_positives(work, shard) for shard in shards))
    con.register("read", positives)
    # Grouping and joining happens on ids (as 16 bytes) and numbers alone, one small step after the other: texts in a
    # grouping or a join would not spill to disk.
    con.execute("""
        CREATE TABLE judged AS SELECT split, query_id::UUID AS query, min(seq) AS seq, arg_min(passage, seq) AS passage
        FROM read GROUP BY split, query_id::UUID, docid::UUID
    """)
    con.unregister("read")
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
    # Split by split in order: a query's rowid, less its split's first, is its place.
    con.execute("""
        CREATE TABLE queries AS SELECT wanted.split, query, query_id, text
        FROM questions JOIN wanted USING (seq) ORDER BY wanted.split, seq
    """)
    con.execute("DROP TABLE wanted")


def _reader(schema: pa.Schema, tables: Iterator[pa.Table]) -> pa.RecordBatchReader:
    return pa.RecordBatchReader.from_batches(schema, (batch for table in tables for batch in table.to_batches()))


def _numbers(shard: int, count: int) -> npt.NDArray[np.int64]:
    return (shard << 32) + np.arange(count, dtype=np.int64)


def _questions(work: Path, shard: int) -> pa.Table:
    table = read_shard(work, shard, "questions")
    columns = [table[name] for name in _QUESTIONS.names[1:-1]]
    return pa.table([_numbers(shard, table.num_rows), *columns, hex_ids(table["id"])], schema=_QUESTIONS)


def _positives(work: Path, shard: int) -> pa.Table:
    table = read_shard(work, shard, "positives")
    questions = read_shard(work, shard, "questions", ["split", "id"])
    passages = read_shard(work, shard, "passages", ["id"])
    columns = [
        questions["split"].take(table["question"]),
        hex_ids(questions["id"].take(table["question"])),
        hex_ids(passages["id"].take(table["passage"])),
        (shard << 32) + table["passage"].to_numpy(),
    ]
    return pa.table([_numbers(shard, table.num_rows), *columns], schema=_POSITIVES)


def _refuse_conflicts(con: duckdb.DuckDBPyConnection, sources: Sequence[Source]) -> None:
    found = con.execute("""
        WITH firsts AS (
            SELECT question_id, arg_min({'text': text, 'source': source, 'start': start}, seq) AS first
            FROM questions GROUP BY question_id HAVING min(query_id) <> max(query_id)
        )
        SELECT question_id, source, start, text, first.source, first.start, first.text
        FROM questions JOIN firsts USING (question_id) WHERE text <> first.text ORDER BY seq LIMIT 1
    """).fetchall()
    if found:
        by_name = {source.shown: source for source in sources}
        number, source, start, text, first_source, first_start, first_text = found[0]
        raise InputError(
            f"question_id {number} has the text {text!r}, but {first_text!r} at"
            f" {first_source}:{line_number(by_name[first_source], first_start)}; expected one text for one id",
            path=source,
            line=line_number(by_name[source], start),
        )


def _read_counts(con: duckdb.DuckDBPyConnection, split: str) -> dict[str, int]:
    names = ("questions", "answered", "same_text_again", "without_positive", "blank_passages_dropped")
    rows = con.execute(
        """
        SELECT count(*), count(*) FILTER (answered), count(*) - count(DISTINCT query_id::UUID),
               count(DISTINCT query_id::UUID) - (SELECT count(*) FROM queries WHERE split = $split), sum(blank_passages)
        FROM questions WHERE split = $split
        """,
        {"split": split},
    ).fetchall()
    return {name: int(value or 0) for name, value in zip(names, rows[0], strict=True)}


def _corpus_files(shards: Sequence[int], work: Path, writer: SplitWriter, engine: Engine) -> list[CorpusFile]:
    """The files of the corpus: every passage at its first place."""
    passages = {shard: count_ids(shard_path(work, shard) / "ids") for shard in shards}
    repeats = np.sort(np.concatenate([*engine.map(find_repeats, parts(work, shards, sum(passages.values())))]))
    files: list[CorpusFile] = []
    room = 0
    for shard, rows in passages.items():
        low, high = np.searchsorted(repeats, [shard << 32, (shard + 1) << 32])
        own = repeats[low:high] - (shard << 32)
        start, end = 0, rows - own.size
        while start < end:
            if not room:
                files.append(CorpusFile(writer.next_path(), work, []))
                room = store.ROWS_PER_SHARD
            taken = min(room, end - start)
            files[-1].slices.append(Slice(shard, own, start, start + taken))
            start, room = start + taken, room - taken
    if not files:
        raise InputError("the input holds no passage: every document is empty")
    return files


def _plan(con: duckdb.DuckDBPyConnection, work: Path, split: str) -> dict[str, int]:
    """Write the plan of one split; returns the number of its queries and of its judgments."""
    con.execute("SET VARIABLE low = (SELECT min(rowid) FROM queries WHERE split = ?)", [split])
    sizes = {}
    for name, sql in (
        ("queries", "SELECT query_id, text FROM queries WHERE split = ? ORDER BY rowid"),
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
            for batch in con.sql(sql, params=[split]).to_arrow_reader(store.ROWS_PER_GROUP):
                out.write_batch(batch.cast(PLANNED[name]))
                sizes[name] += batch.num_rows
    return sizes


def _split_files(draft: Draft, work: Path, split: str, sizes: dict[str, int]) -> dict[SplitWriter, list[SplitFile]]:
    """The files of one split; no qrels where the split carries no labels."""
    configs = {split: "queries", "queries": "queries"} | ({"qrels": "judgments"} if sizes["judgments"] else {})
    files = {}
    for config, counted in configs.items():
        writer = draft.writer(config, split)
        files[writer] = [
            SplitFile(writer.next_path(), work, config, split, start, min(start + store.ROWS_PER_SHARD, sizes[counted]))
            for start in range(0, sizes[counted], store.ROWS_PER_SHARD)
        ]
    log.info("%s: %d queries, %d judgments", split, sizes["queries"], sizes["judgments"])
    return files


def _table3(work: Path, split: str, sizes: dict[str, int], lengths: LengthCounter) -> dict[str, float | int | None]:
    chars = pc.sum(pc.utf8_length(read_plan(work, split, "queries")["text"])).as_py()
    return {
        "queries": sizes["queries"],
        "positive_passages": sizes["judgments"] or None,  # None: the split carries no labels
        "passages_per_query": round_stat(sizes["judgments"] / sizes["queries"]) if sizes["judgments"] else None,
        "chars_per_query": round_stat(chars / sizes["queries"]) if sizes["queries"] else None,
        "chars_per_passage": round_stat(lengths.mean),
    }


def _positives_per_query(work: Path, split: str) -> list[dict[str, int | None]]:
    counter = LengthCounter()
    counter.add(np.unique(read_plan(work, split, "judgments")["place"].to_numpy(), return_counts=True)[1])
    return counter.histogram(POSITIVES_EDGES)
