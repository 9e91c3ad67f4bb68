"""Files whose lines are too long for memory, plain and compressed."""

import gzip
import re
import tracemalloc
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from builders.core.errors import InputError
from builders.core.read_files import LONGEST_LINE, first_character, raw_lines, read_whole
from builders.core.typed import json_lines
from builders.sources.lines import read_blocks
from builders.sources.source_files import find_files
from builders.sources.source_tables import find_tables, open_table
from builders.store.runs import read_run


def read_raw(path: Path) -> Iterator[Any]:
    """Read the rows of DuReader's files."""
    return read_blocks(find_files(path, re.compile("."), "no file"))


def read_table(path: Path) -> Iterator[Any]:
    """Read the rows of a table."""
    return open_table(find_tables([path])[0]).rows()


# By kind of file: its first line, and a function that reads the whole file.
READERS: dict[str, tuple[str, Callable[[Path], Any]]] = {
    "run": ("q1 Q0 p1 1 2.0 tag\n", lambda path: read_run(path).hits),
    "lines": ("q1\t0\tp1\t1\n", lambda path: list(raw_lines(path))),
    "rows": ('{"question": 1}\n', lambda path: list(read_raw(path))),
    "json": ('{"question": 1}\n', lambda path: list(json_lines(path, dict[str, Any]))),
    "tsv": ("a\tb\n", lambda path: list(read_table(path))),
}


def write_long_line(path: Path, first_line: str, size: int) -> None:
    """Write the first line and then a second line of this size, in pieces of 1 MiB."""
    # The lowest level of compression is the fastest.
    with gzip.open(path, "wb", 1) if path.suffix == ".gz" else open(path, "wb") as file:
        file.write(first_line.encode())
        for _ in range(size >> 20):
            file.write(b"a" * (1 << 20))


@pytest.mark.parametrize("ending", ["", ".gz"])
@pytest.mark.parametrize("reader", READERS)
def test_a_line_that_is_too_long_is_one_error_in_little_memory(tmp_path: Path, reader: str, ending: str) -> None:
    first_line, read = READERS[reader]
    path = tmp_path / f"file.{'tsv' if reader == 'tsv' else 'txt'}{ending}"
    write_long_line(path, first_line, 5 * LONGEST_LINE)
    # A table's line has at most 16,777,216 characters, and a line of the other files 64 MiB.
    message = rf"^{re.escape(str(path))}:2: has (a line of )?over 6?1?[46]"
    tracemalloc.start()
    try:
        with pytest.raises(InputError, match=message) as caught:
            read(path)
        _, peak_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert len(str(caught.value)) < 300
    assert peak_bytes < 4 * LONGEST_LINE


def test_json_in_one_line_is_no_line_that_is_too_long(tmp_path: Path) -> None:
    path = tmp_path / "predictions.json"
    id_count = LONGEST_LINE // 60
    ids = ", ".join(f'"{number:064d}"' for number in range(id_count))
    path.write_text(f'\n {{"q1": [{ids}]}}')
    assert first_character(path) == "{"
    assert len(read_run(path).rankings["q1"]) == id_count


def test_a_whole_file_has_a_largest_size(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("builders.core.read_files.LARGEST_WHOLE", 1 << 20)
    path = tmp_path / "predictions.json.gz"
    write_long_line(path, "", 1 << 20)
    assert len(read_whole(path)) == 1 << 20
    write_long_line(path, "{", 1 << 20)
    with pytest.raises(InputError, match="has over 1 MiB, which is too long for one JSON value"):
        read_whole(path)
