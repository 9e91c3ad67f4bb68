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
    """A database for the block, in memory, or in ``file``; what does not fit goes to the folder ``spill``.

    ``memory``: MB; a quarter of what this process may have, where that is less. ``threads``: None for all usable cores.
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
