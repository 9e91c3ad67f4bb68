"""Of equal texts the first place counts: how a build from raw rows merges passages, and questions, that come again.

The official ids are MD5s of texts, so equal texts are one passage (Section 2.2.2). No text enters DuckDB: ids, places
and lengths do, on disk where the memory does not suffice. The sets of :mod:`builders.add.collection` have a rule of
their own: there, a question of two splits stays in one.
"""

from __future__ import annotations

import duckdb


def keep_firsts(con: duckdb.DuckDBPyConnection, table: str, keys: str, new: str, *others: str) -> None:
    """Make the table ``new``: of all rows of ``table`` with the same ``keys`` the first, by its ``place``.

    Args:
        table: has the columns ``place``, ``keys`` and ``others``; read once.
        keys: the id of a text, or a split and ids: equal where the texts are.
        others: further columns of the first row that are wanted.
    """
    wanted = "".join(f", arg_min({column}, place) AS {column}" for column in others)
    con.execute(f"CREATE TABLE {new} AS SELECT {keys}, min(place) AS place{wanted} FROM {table} GROUP BY {keys}")
