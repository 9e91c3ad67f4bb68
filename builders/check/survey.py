"""Read all rows of a release into DuckDB tables, for the tests and counts of ``check``.

Each text is read once. The tables store the id, MD5, length and faults of a text, but not the text.
Tables that exceed the memory limit spill to disk. For 8 million passages, about 1 GB of memory and of disk suffice.
"""

import contextlib
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from typing import Any

import duckdb

from builders.core.database import open_database
from builders.core.limits import convert_full_disk, full_disk, usable_cores
from builders.core.locks import temporary_folder
from builders.core.progress import show_progress
from builders.core.shares import report_share
from builders.store.layout import (
    ANSWERS,
    CORPUS,
    CROSSLINGUAL,
    CROSSLINGUAL_QUERIES,
    IDS,
    JOINED,
    ORIGINAL_IDS,
    QRELS,
    QUERIES,
    SPLITS,
    STRESS_QUERIES,
    schema_of,
)
from builders.store.reader import Release

_MEMORY_MB = 1_000
_CORES_PER_SHARD = 4

_TABLES = """
CREATE TABLE texts (
    config VARCHAR, split VARCHAR, id VARCHAR,
    key UHUGEINT,       -- the MD5 of the text as a number, half the size of its hex digits
    id_ok BOOLEAN,      -- true if the id is the MD5 in lower-case hex
    chars INTEGER,
    blank BOOLEAN,      -- true if the text has no visible character
    control VARCHAR,    -- the first control character, or NULL
    replaced BOOLEAN,   -- true if the text has U+FFFD
    words INTEGER, zh_id VARCHAR, -- of an English query: its words, and the id of the Chinese query; else NULL
    original_id VARCHAR -- of a perturbed query: the id of the query as people asked it
);
CREATE TABLE judged (config VARCHAR, split VARCHAR, query_id VARCHAR, docid VARCHAR, score BIGINT);
-- the ids of samples
CREATE TABLE listed (config VARCHAR, split VARCHAR, id VARCHAR);
CREATE TABLE original (config VARCHAR, split VARCHAR, original_id VARCHAR, text_id VARCHAR);
CREATE TABLE joined (config VARCHAR, split VARCHAR, query_id VARCHAR, id_ok BOOLEAN);
CREATE TABLE answered (
    config VARCHAR, split VARCHAR, query_id VARCHAR,
    fits BOOLEAN,       -- true if each list of the row has an item for each answer, or may be empty and is empty
    question_type VARCHAR,
    docids VARCHAR[]    -- the passages that contain an answer, each once
);
CREATE TABLE joined_passages (
    config VARCHAR, split VARCHAR, query_id VARCHAR, docid VARCHAR, positive BOOLEAN, id_ok BOOLEAN
);
"""


# Properties of a text. If English queries have equal texts, all ids but the first are the MD5 of text and zh_id.
# Control characters are C0, C1 and DEL, without tab and line ends. U+2028 is a separator, not a control character.
_MACROS = r"""
CREATE MACRO is_id(id, text, zh_id) AS coalesce(md5(text) = id OR md5(text || chr(10) || zh_id) = id, false);
CREATE MACRO is_blank(text) AS NOT regexp_matches(coalesce(text, ''), '[^\s\p{Z}\p{C}]');
CREATE MACRO control_in(text) AS nullif(regexp_extract(text, '[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x{9f}]'), '');
CREATE MACRO is_replaced(text) AS contains(coalesce(text, ''), chr(65533));
CREATE MACRO words_in(text) AS len(string_split_regex(trim(text), '\s+'));
"""

# SQL that reads a split's files into the tables. ``_STATEMENTS`` selects the SQL by the columns of the split.
_TEXTS = """
INSERT INTO texts
SELECT $config, $split, _id, md5_number(coalesce(text, '')), is_id(_id, text, {zh_id}), coalesce(length(text), 0),
       is_blank(text), control_in(text), is_replaced(text), {words}, {zh_id}, {original_id}
FROM read_parquet($files)
"""
_JOINED = (
    "INSERT INTO joined SELECT $config, $split, query_id, is_id(query_id, query, {zh_id}) FROM read_parquet($files)"
)
_PASSAGES = """
INSERT INTO joined_passages
SELECT $config, $split, query_id, passage.docid, positive, is_id(passage.docid, passage.text, NULL)
FROM (
    SELECT query_id, unnest(positive_passages) AS passage, true AS positive FROM read_parquet($files)
    UNION ALL
    SELECT query_id, unnest(negative_passages) AS passage, false AS positive FROM read_parquet($files)
)
"""
_ANSWERED = """
INSERT INTO answered
SELECT $config, $split, query_id,
       len(answer_passages) = len(answers) AND len(yesno_answers) IN (0, len(answers))
           AND len(entity_answers) IN (0, len(answers)),
       question_type, list_distinct(flatten(answer_passages))
FROM read_parquet($files)
"""
_STATEMENTS = (
    (CORPUS, [_TEXTS.format(zh_id="NULL", words="NULL", original_id="NULL")]),
    (QUERIES, [_TEXTS.format(zh_id="NULL", words="NULL", original_id="NULL")]),
    (CROSSLINGUAL_QUERIES, [_TEXTS.format(zh_id="zh_id", words="words_in(text)", original_id="NULL")]),
    (STRESS_QUERIES, [_TEXTS.format(zh_id="NULL", words="NULL", original_id="original_id")]),
    (QRELS, ['INSERT INTO judged SELECT $config, $split, "query-id", "corpus-id", score FROM read_parquet($files)']),
    (ORIGINAL_IDS, ['INSERT INTO original SELECT $config, $split, "original-id", _id FROM read_parquet($files)']),
    (IDS, ["INSERT INTO listed SELECT $config, $split, _id FROM read_parquet($files)"]),
    (JOINED, [_JOINED.format(zh_id="NULL"), _PASSAGES]),
    (ANSWERS, [_ANSWERED]),
    (CROSSLINGUAL, [_JOINED.format(zh_id="md5(query_zh)"), _PASSAGES]),
)


@dataclass
class Survey:
    """The tables of a release.

    Attributes:
        con: the database with ``_TABLES``. ``config`` and ``split`` name the origin of a row.
        release: the release that was read.
        loaded: the (config, split) pairs whose rows are in the tables.
        failures: (config, split, reason) for every unreadable split.
    """

    con: duckdb.DuckDBPyConnection
    release: Release
    loaded: list[tuple[str, str]] = field(default_factory=list)
    failures: list[tuple[str, str, str]] = field(default_factory=list)

    def rows(self, sql: str, *values: Any, **parameters: Any) -> list[tuple[Any, ...]]:
        """Run an SQL query and return its rows.

        Parameters in the SQL are either ``?`` (``values``, in order) or ``$name`` (``parameters``).
        """
        return self.con.execute(sql, parameters or list(values)).fetchall()  # type: ignore[no-any-return]

    def splits(self, config: str) -> list[str]:
        """Return the loaded splits of ``config`` in the order train, dev, test, others."""
        config_splits = []
        for loaded_config, split in self.loaded:
            if loaded_config == config:
                config_splits.append(split)
        return sorted(config_splits, key=_split_order)

    def unread_splits(self) -> list[tuple[str, str]]:
        """Return (config, split) of the release's splits that are not in the tables, sorted."""
        return sorted(set(self.release.splits()) - set(self.loaded))


def _split_order(split: str) -> tuple[int, str]:
    position = SPLITS.index(split) if split in SPLITS else len(SPLITS)
    return position, split


@contextlib.contextmanager
def open_survey(release: Release, broken_configs: Collection[str] = ()) -> Iterator[Survey]:
    """Read a release into tables, except ``broken_configs``. The tables are removed when the block ends.

    An unreadable split is no error: the split is listed in :attr:`Survey.failures`, and has no rows in the tables.

    Raises :class:`DiskFull` if TMPDIR is too small for the tables.
    """
    with (
        temporary_folder() as work,
        convert_full_disk(work),
        open_database(work / "spill", _MEMORY_MB, file=work / "survey.duckdb") as con,
    ):
        con.execute("SET preserve_insertion_order = false")
        con.execute(_TABLES)
        con.execute(_MACROS)
        tables = Survey(con, release)
        intact_splits = [(config, split) for config, split in release.splits() if config not in broken_configs]
        split_bytes = [_bytes_of(release, config, split) for config, split in intact_splits]
        with show_progress(total=sum(split_bytes), unit="B", label="read") as bar:
            for (config, split), byte_count in zip(intact_splits, split_bytes, strict=True):
                with bar.task(byte_count):
                    try:
                        _read_split(tables, config, split)
                        tables.loaded.append((config, split))
                    except (duckdb.Error, ValueError) as error:
                        if full_disk(error) or isinstance(error, duckdb.OutOfMemoryException):
                            raise  # the file is not at fault
                        tables.failures.append((config, split, str(error).splitlines()[0]))
        yield tables


def _bytes_of(release: Release, config: str, split: str) -> int:
    """Return the size of a split's files by the manifest, which may lack some of the files."""
    path_prefix = f"{config}/{split}-"
    return sum(entry.bytes for entry in release.manifest.files if entry.path.startswith(path_prefix))


def _read_split(survey_tables: Survey, config: str, split: str) -> None:
    """Read a split into the tables: all rows, or after an error none. The bar of the task moves with the shards."""
    statements = next(statements for columns, statements in _STATEMENTS if columns is schema_of(config))
    # DuckDB's threads share the row groups of a statement's files. A shard of passages has eight row groups, so each
    # thread gets two row groups or more.
    shards_at_once = max(1, usable_cores() // _CORES_PER_SHARD)
    with survey_tables.release.files(config, split) as paths, _transaction(survey_tables.con):
        for start in range(0, len(paths), shards_at_once):
            batch_paths = paths[start : start + shards_at_once]
            parameters = {"config": config, "split": split, "files": batch_paths}
            for statement in statements:
                survey_tables.con.execute(statement, parameters)
            report_share((start + len(batch_paths)) / len(paths))


@contextlib.contextmanager
def _transaction(connection: duckdb.DuckDBPyConnection) -> Iterator[None]:
    """Commit the changes of a block, or discard them after an error."""
    connection.begin()
    try:
        yield
    except BaseException:
        with contextlib.suppress(duckdb.Error):  # some errors have ended the transaction
            connection.rollback()
        raise
    connection.commit()
