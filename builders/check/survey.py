"""Every row of a release as DuckDB tables: what ``check`` tests and counts.

The texts are read once; of each its id, the number of its MD5, its length and what is odd about it are kept, on disk
where memory does not suffice, so that 8 million passages are surveyed in about 1 GB of memory and as much of disk.
"""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from typing import Any

import duckdb

from builders.core.database import database
from builders.core.files import temporary_folder
from builders.core.limits import full_disk, writing
from builders.core.progress import progress
from builders.store.layout import (
    CORPUS,
    CROSSLINGUAL,
    CROSSLINGUAL_QUERIES,
    IDS,
    JOINED,
    QRELS,
    QUERIES,
    SPLITS,
    schema_of,
)
from builders.store.reader import Release

_MEMORY = 1_000  # MB

_TABLES = """
CREATE TABLE texts (
    config VARCHAR, split VARCHAR, id VARCHAR,
    key UHUGEINT,       -- the MD5 of the text, as a number: half the size of its hex digits
    id_ok BOOLEAN,      -- the id is the MD5, in lower-case hex
    chars INTEGER, blank BOOLEAN, control VARCHAR, replaced BOOLEAN, words INTEGER, zh_id VARCHAR
);
CREATE TABLE judged (config VARCHAR, split VARCHAR, query_id VARCHAR, docid VARCHAR, score BIGINT);
CREATE TABLE listed (config VARCHAR, split VARCHAR, id VARCHAR);
CREATE TABLE joined (config VARCHAR, split VARCHAR, query_id VARCHAR, id_ok BOOLEAN);
CREATE TABLE joined_passages (
    config VARCHAR, split VARCHAR, query_id VARCHAR, docid VARCHAR, positive BOOLEAN, id_ok BOOLEAN
);
"""


# What is asked of a text. The id of a translation that several queries share is the MD5 of text and zh_id.
# A control character is one of C0 and C1, or DEL: tab and line ends are text, and so is U+2028, a separator.
_MACROS = r"""
CREATE MACRO is_id(id, text, zh_id) AS coalesce(md5(text) = id OR md5(text || chr(10) || zh_id) = id, false);
CREATE MACRO is_blank(text) AS NOT regexp_matches(coalesce(text, ''), '[^\s\p{Z}\p{C}]');
CREATE MACRO control_in(text) AS nullif(regexp_extract(text, '[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x{9f}]'), '');
CREATE MACRO is_replaced(text) AS contains(coalesce(text, ''), chr(65533));
CREATE MACRO words_in(text) AS len(string_split_regex(trim(text), '\s+'));
"""

# How the rows of a split's files come into the tables, by their columns.
_TEXTS = """
INSERT INTO texts
SELECT $config, $split, _id, md5_number(coalesce(text, '')), is_id(_id, text, {zh_id}), coalesce(length(text), 0),
       is_blank(text), control_in(text), is_replaced(text), {words}, {zh_id}
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
_READ = (
    (CORPUS, [_TEXTS.format(zh_id="NULL", words="NULL")]),
    (QUERIES, [_TEXTS.format(zh_id="NULL", words="NULL")]),
    (CROSSLINGUAL_QUERIES, [_TEXTS.format(zh_id="zh_id", words="words_in(text)")]),
    (QRELS, ['INSERT INTO judged SELECT $config, $split, "query-id", "corpus-id", score FROM read_parquet($files)']),
    (IDS, ["INSERT INTO listed SELECT $config, $split, _id FROM read_parquet($files)"]),
    (JOINED, [_JOINED.format(zh_id="NULL"), _PASSAGES]),
    (CROSSLINGUAL, [_JOINED.format(zh_id="md5(query_zh)"), _PASSAGES]),
)


@dataclass
class Survey:
    """The tables of one release.

    Attributes:
        con: the database; its tables are those of ``_TABLES``, ``config`` and ``split`` name where a row stands.
        loaded: the (config, split) pairs whose rows are in the tables.
        failures: (config, split, reason) of those that could not be read.
    """

    con: duckdb.DuckDBPyConnection
    release: Release
    loaded: list[tuple[str, str]] = field(default_factory=list)
    failures: list[tuple[str, str, str]] = field(default_factory=list)

    def rows(self, sql: str, *values: Any, **named: Any) -> list[tuple[Any, ...]]:
        """Return the rows of a query; its parameters are ``?``, in order, or ``$name``."""
        return self.con.execute(sql, named or list(values)).fetchall()  # type: ignore[no-any-return]

    def splits(self, config: str) -> list[str]:
        """The splits of ``config`` that were read, in the order train, dev, test, others."""
        found = [split for name, split in self.loaded if name == config]
        return sorted(found, key=lambda split: (SPLITS.index(split) if split in SPLITS else len(SPLITS), split))


@contextlib.contextmanager
def survey(release: Release, broken: Collection[str] = ()) -> Iterator[Survey]:
    """Read a release, but for its ``broken`` configs, into tables that last for the block.

    :class:`DiskFull` where TMPDIR has no room for the tables.
    """
    with (
        temporary_folder() as work,
        writing(work),
        database(work / "spill", _MEMORY, file=work / "survey.duckdb") as con,
    ):
        con.execute("SET preserve_insertion_order = false")
        con.execute(_TABLES)
        con.execute(_MACROS)
        found = Survey(con, release)
        pairs = [(config, split) for config, split in release.splits() if config not in broken]
        for config, split in progress(pairs, unit="split", label="read"):
            values = {"config": config, "split": split}
            try:
                with release.files(config, split) as files:
                    for statement in next(each for columns, each in _READ if columns is schema_of(config)):
                        con.execute(statement, values | {"files": files})
                found.loaded.append((config, split))
            except (duckdb.Error, ValueError) as error:
                if full_disk(error) or isinstance(error, duckdb.OutOfMemoryException):
                    raise  # it is this machine's fault, not the file's
                found.failures.append((config, split, str(error).splitlines()[0]))
        yield found
