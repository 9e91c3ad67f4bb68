"""Of equal texts the first place counts: the one rule by which passages and questions that come again are merged.

DuckDB groups ids and places alone, on disk where the memory does not suffice; no text enters it.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

import duckdb

_MEMORY = "512MB"


def keep_firsts(con: duckdb.DuckDBPyConnection, table: str, keys: str, new: str) -> None:
    """Make the table ``new``: of all rows of ``table`` with the same ``keys`` the first place, as ``place``.

    Args:
        table: has the columns ``keys`` and ``place``.
        keys: the id of a text, or a split and an id: equal where the texts are.
    """
    con.execute(f"CREATE TABLE {new} AS SELECT {keys}, min(place) AS place FROM {table} GROUP BY {keys}")


@contextlib.contextmanager
def database(folder: Path, threads: int) -> Iterator[duckdb.DuckDBPyConnection]:
    """A database in ``folder``, in bounded memory; one that a killed build has left there is removed."""
    for old in folder.glob("ids.duckdb*"):
        old.unlink()
    with duckdb.connect(str(folder / "ids.duckdb")) as con:
        con.execute(f"SET memory_limit = '{_MEMORY}'")
        con.execute(f"SET threads = {threads}")
        con.execute("SET enable_progress_bar = false")
        yield con
