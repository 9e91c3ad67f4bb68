"""DuckDB with a memory limit, for joins, sorts and counts of tables that may be larger than memory."""

import contextlib
from collections.abc import Iterator
from pathlib import Path

import duckdb

from builders.core.limits import memory_limit, usable_cores
from builders.core.locks import has_pattern, plain_folder

_PROCESS_SHARE = 4  # DuckDB gets one part in four of the process's memory limit
_BYTES_PER_MB = 1_000_000


@contextlib.contextmanager
def open_database(
    spill_path: Path, memory_mb: int, threads: int | None = None, file: Path | None = None
) -> Iterator[duckdb.DuckDBPyConnection]:
    """Yield a database in memory, or in ``file``. Data beyond the memory limit go to the folder ``spill_path``.

    ``memory_mb`` is the limit in MB. DuckDB gets at most a quarter of the process's memory limit (``ulimit``).
    ``threads`` defaults to all usable cores. A ``file`` whose path DuckDB does not take literally is replaced by a
    database in memory.
    """
    process_limit = memory_limit()
    if process_limit is not None:
        memory_mb = min(memory_mb, process_limit // _PROCESS_SHARE // _BYTES_PER_MB)
    with contextlib.ExitStack() as open_resources:
        spill_parent = open_resources.enter_context(plain_folder(spill_path.parent))
        # A link (as for the spill folder) does not help here: DuckDB follows a link to a database, and then fails for
        # the name of its folder. A database in memory has the same limit, and also writes to ``spill_path``.
        database_name = ":memory:"
        if file is not None and not has_pattern(file):
            database_name = str(file)
        config: dict[str, str | bool | int | float | list[str]] = {
            "memory_limit": f"{memory_mb}MB",
            "threads": threads or usable_cores(),
            "temp_directory": str(spill_parent / spill_path.name),
        }
        connection = open_resources.enter_context(duckdb.connect(database_name, config=config))
        # In a notebook without ipywidgets, bars are off, and DuckDB refuses to change the setting.
        if connection.execute("SELECT current_setting('enable_progress_bar')").fetchall() != [(False,)]:
            connection.execute("SET enable_progress_bar = false")
        yield connection
