"""DuckDB in bounded memory: for what is joined, sorted or counted and may be larger than that."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

import duckdb

from builders.core.limits import memory_limit, usable_cores


@contextlib.contextmanager
def database(
    spill: Path, memory: int, threads: int | None = None, file: Path | None = None
) -> Iterator[duckdb.DuckDBPyConnection]:
    """A database for the block.

    Args:
        spill: the folder for what does not fit into the memory.
        memory: MB; a quarter of what this process may have, where that is less.
        threads: all usable cores where None.
        file: where its tables are; in the memory where None.
    """
    limit = memory_limit()
    config: dict[str, str | bool | int | float | list[str]] = {
        "memory_limit": f"{memory if limit is None else min(memory, limit // 4_000_000)}MB",
        "threads": threads or usable_cores(),
        "temp_directory": str(spill),
    }
    with duckdb.connect(":memory:" if file is None else str(file), config=config) as con:
        con.execute("SET enable_progress_bar = false")
        yield con
