"""Training pairs, spoiled."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from fuzzing import Reader, fuzz_of
from releases import QUESTIONS, TEXTS
from spoil import BYTES, JSON_LINES, PARQUET

from builders.similar.pairs import Names, read_pairs

ROWS = [
    {"query": QUESTIONS["dev"][0], "pos": [TEXTS[4]], "neg": TEXTS[:2]},
    {"query": QUESTIONS["dev"][1], "pos": TEXTS[5:], "neg": []},
]


def _write(folder: Path) -> None:
    (folder / "pairs.jsonl").write_text("".join(json.dumps(row) + "\n" for row in ROWS), encoding="utf-8")


def _read(name: str) -> Callable[[Path], Any]:
    return lambda folder: [
        (pair.line, pair.questions, pair.passages) for pair in read_pairs(folder / name, Names(either=()))
    ]


def _as_lines(found: list[tuple[int, list[str], list[str]]], _: Any, folder: Path) -> bool:
    """Every text of a row stands in its line."""
    lines = (folder / "pairs.jsonl").read_bytes().removeprefix(b"\xef\xbb\xbf").split(b"\n")
    for line, questions, passages in found:
        said = json.dumps(json.loads(lines[line - 1]), ensure_ascii=False)
        assert all(json.dumps(text, ensure_ascii=False) in said for text in (*questions, *passages))
    return len(found) == sum(bool(line.strip()) for line in lines)


def _write_parquet(folder: Path) -> None:
    pq.write_table(pa.Table.from_pylist(ROWS), folder / "pairs.parquet")


_PAIRS, _LINES, _PARQUET = "builders.similar.pairs:", {"pairs.jsonl": JSON_LINES}, {"pairs.parquet": PARQUET + BYTES}
READERS = [
    Reader("pairs in lines", (f"{_PAIRS}read_pairs",), _write, _LINES, _read("pairs.jsonl"), _as_lines),
    Reader("pairs", (f"{_PAIRS}_parquet",), _write_parquet, _PARQUET, _read("pairs.parquet")),
]
test_spoiled_files_give_what_they_say_or_one_line = fuzz_of(READERS)
