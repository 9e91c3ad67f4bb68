"""Every row of a release as DuckDB tables: what ``check`` tests and ``stats`` counts.

The texts are read once; of each its id, the number of its MD5, its length and what is odd about it are kept, on disk
where memory does not suffice, so that 8 million passages are surveyed in about 1 GB.
"""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import duckdb

from builders.common.command import InputError, progress
from builders.store.layout import CORPUS, CROSSLINGUAL_QUERIES, QRELS, QUERIES, schema_of
from builders.store.reader import Release

_MEMORY = "1GB"

# C0 and C1 controls and DEL. Tab and line ends are text; so is U+2028, a separator and no control character.
_CONTROL = r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x{9f}]"
_VISIBLE = r"[^\s\p{Z}\p{C}]"

_TABLES = """
CREATE TABLE texts (
    config VARCHAR, split VARCHAR, id VARCHAR,
    key UHUGEINT,       -- the MD5 of the text, as a number: half the size of its hex digits
    id_ok BOOLEAN,      -- the id is the MD5, in lower-case hex
    chars INTEGER, blank BOOLEAN, control VARCHAR, replaced BOOLEAN, words INTEGER, zh_id VARCHAR
);
CREATE TABLE judged (config VARCHAR, split VARCHAR, query_id VARCHAR, docid VARCHAR, score BIGINT);
CREATE TABLE joined (config VARCHAR, split VARCHAR, query_id VARCHAR, id_ok BOOLEAN);
CREATE TABLE joined_passages (
    config VARCHAR, split VARCHAR, query_id VARCHAR, docid VARCHAR, positive BOOLEAN, id_ok BOOLEAN
);
"""


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

    def rows(self, sql: str, *values: Any) -> list[tuple[Any, ...]]:
        return self.con.execute(sql, list(values)).fetchall()  # type: ignore[no-any-return]

    def splits(self, config: str) -> list[str]:
        """The splits of ``config`` that were read, in the order train, dev, test, others."""
        order = ["train", "dev", "test"]
        found = [split for name, split in self.loaded if name == config]
        return sorted(found, key=lambda split: (order.index(split) if split in order else len(order), split))


@contextlib.contextmanager
def survey(release: Release, wanted: Callable[[str, str], bool] | None = None) -> Iterator[Survey]:
    """Read a release into tables that last for the block.

    Args:
        release: the release.
        wanted: says of a (config, split) whether it is read; all are where None.
    """
    with (
        tempfile.TemporaryDirectory(prefix="dureader-survey-") as work,
        duckdb.connect(str(Path(work) / "survey.duckdb")) as con,
    ):
        con.execute(f"SET memory_limit = '{_MEMORY}'")
        con.execute(f"SET threads = {len(os.sched_getaffinity(0))}")
        con.execute(f"SET temp_directory = '{_quoted(Path(work) / 'spill')}'")
        con.execute("SET enable_progress_bar = false")
        con.execute("SET preserve_insertion_order = false")
        con.execute(_TABLES)
        found = Survey(con, release)
        pairs = [pair for pair in release.splits() if wanted is None or wanted(*pair)]
        for config, split in progress(pairs, unit="split", label="read"):
            try:
                _load(con, release, config, split)
                found.loaded.append((config, split))
            except (duckdb.Error, ValueError) as error:
                found.failures.append((config, split, str(error).splitlines()[0]))
        yield found


def survey_or_fail(found: Survey) -> Survey:
    """``found``; :class:`InputError` where a part of its release could not be read."""
    if found.failures:
        config, split, reason = found.failures[0]
        raise InputError(f"{config}/{split} cannot be read ({reason}); build it again", path=found.release.path)
    return found


def _quoted(path: Path) -> str:
    return str(path).replace("'", "''")


def _load(con: duckdb.DuckDBPyConnection, release: Release, config: str, split: str) -> None:
    paths = ", ".join(f"'{_quoted(release.path / entry.path)}'" for entry in release.shards(config, split))
    source = f"read_parquet([{paths}])"
    place = [config, split]
    schema = schema_of(config)
    english = "zh_id" in schema.names
    if schema in (CORPUS, QUERIES, CROSSLINGUAL_QUERIES):
        words, zh_id = (r"len(string_split_regex(trim(text), '\s+'))", "zh_id") if english else ("NULL", "NULL")
        con.execute(
            f"""
            INSERT INTO texts
            SELECT ?, ?, _id, md5_number(coalesce(text, '')), coalesce({_id_ok("_id", "text", zh_id)}, false),
                   coalesce(length(text), 0), NOT regexp_matches(coalesce(text, ''), '{_VISIBLE}'),
                   nullif(regexp_extract(text, '{_CONTROL}'), ''), contains(coalesce(text, ''), chr(65533)),
                   {words}, {zh_id}
            FROM {source}
            """,
            place,
        )
    elif schema is QRELS:
        con.execute(f'INSERT INTO judged SELECT ?, ?, "query-id", "corpus-id", score FROM {source}', place)
    else:
        id_ok = _id_ok("query_id", "query", "md5(query_zh)" if "query_zh" in schema.names else "NULL")
        con.execute(f"INSERT INTO joined SELECT ?, ?, query_id, {id_ok} FROM {source}", place)
        for column in ("positive_passages", "negative_passages"):
            con.execute(
                f"""
                INSERT INTO joined_passages
                SELECT ?, ?, query_id, passage.docid, {column == "positive_passages"},
                       coalesce(md5(passage.text) = passage.docid, false)
                FROM (SELECT query_id, unnest({column}) AS passage FROM {source})
                """,
                place,
            )


def _id_ok(column: str, text: str, zh_id: str) -> str:
    """SQL: the id is the MD5 of the text; of a translation that several queries share, also that of text and zh_id."""
    plain = f"md5({text}) = {column}"
    return plain if zh_id == "NULL" else f"({plain} OR md5({text} || chr(10) || {zh_id}) = {column})"
