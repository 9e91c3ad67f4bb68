"""DuckDB with a memory limit, for joins, sorts and counts of tables that may be larger than memory."""

import contextlib
from collections.abc import Iterator
from pathlib import Path

import duckdb

from builders.core.files import has_pattern, plain_folder
from builders.core.limits import memory_limit, usable_cores


@contextlib.contextmanager
def database(
    spill: Path, memory: int, threads: int | None = None, file: Path | None = None
) -> Iterator[duckdb.DuckDBPyConnection]:
    """Yield a database in memory, or in ``file``. Data beyond the memory limit are written to the folder ``spill``.

    ``memory`` is the limit in MB. DuckDB gets at most a quarter of the process's memory limit (``ulimit``).
    ``threads`` defaults to all usable cores. A ``file`` whose path DuckDB does not take literally is replaced by a
    database in memory.
    """
    limit = memory_limit()
    with contextlib.ExitStack() as links:
        spill_folder = links.enter_context(plain_folder(spill.parent))
        # DuckDB follows a link to a database, and then fails for the name of its folder. A database in memory has the
        # same limit, and also writes to ``spill``.
        is_stored = file is not None and not has_pattern(file)
        config: dict[str, str | bool | int | float | list[str]] = {
            "memory_limit": f"{memory if limit is None else min(memory, limit // 4_000_000)}MB",
            "threads": threads or usable_cores(),
            "temp_directory": str(spill_folder / spill.name),
        }
        con = links.enter_context(duckdb.connect(str(file) if is_stored else ":memory:", config=config))
        con.execute("SET enable_progress_bar = false")
        yield con
