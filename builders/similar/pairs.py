"""Training pairs of any model, in the files that people train from: JSON lines (.gz, too) and Parquet.

A row is an object whose keys, or Parquet's columns, are of these; the others (ids, negatives, scores) are passed over:

- questions: ``query``, ``question``, ``anchor``, ``query_text``, ``sentence1``, ``text1``;
- passages: ``pos`` (FlagEmbedding), ``positive``, ``positives``, ``positive_passages`` (Tevatron), ``passage``,
  ``answer``, ``document``, ``response``, ``answer_paragraphs`` (DuReader), ``sentence2``, ``text2``;
- texts that may be either: ``text`` (MTEB's queries and corpus), ``content``, ``sentence``, ``texts``, ``set``.

A value is a text, an object with a text in ``text`` or ``paragraph_text``, or a list of these. A row may also be a list
of texts: a question, then a passage (what follows is a negative).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from builders.core.errors import InputError
from builders.core.files import raw_lines
from builders.core.typed import json_of

QUESTIONS = ("query", "question", "anchor", "query_text", "sentence1", "text1")
PASSAGES = (
    *("pos", "positive", "positives", "positive_passages", "passage", "answer", "document", "response"),
    *("answer_paragraphs", "sentence2", "text2"),
)
EITHER = ("text", "content", "sentence", "texts", "set")
_INNER = ("text", "paragraph_text")
_ROWS = 1_024  # of Parquet read at a time: a row may have a hundred passages
_WHAT = "a text, an object with a text, or a list of these"


@dataclass
class Pair:
    """The texts of a row: its line, or its row of Parquet, from 1; a text that may be either stands in both lists."""

    line: int
    questions: list[str] = field(default_factory=list)
    passages: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class Names:
    """The keys or columns that hold questions, passages, and texts that may be either."""

    questions: Sequence[str] = QUESTIONS
    passages: Sequence[str] = PASSAGES
    either: Sequence[str] = EITHER

    def of(self, have: Sequence[str]) -> list[str]:
        """Those of a file that count; ``text`` and its like only where nothing else does."""
        named = [name for name in have if name in self.questions or name in self.passages]
        return named or [name for name in have if name in self.either]


def names_of(question: Sequence[str] | None, positive: Sequence[str] | None) -> Names:
    """The names to go by: the usual ones, or those that the user gives."""
    if question or positive:
        return Names(question or (), positive or (), ())
    return Names()


def read_pairs(path: Path, names: Names) -> Iterator[Pair]:
    """The rows of a file.

    Raises :class:`InputError` naming file and line where it is neither JSON lines nor Parquet, a row has none of the
    names, or a value is of another kind.
    """
    if path.suffix == ".parquet":
        yield from _parquet(path, names)
        return
    for number, line in raw_lines(path):
        if line.strip():
            row = json_of(line, Any, path, number)
            if isinstance(row, list):
                yield _pair({"query": row[:1], "pos": row[1:2]}, Names(), path, number)
            elif isinstance(row, dict):
                yield _pair(row, names, path, number)
            else:
                raise InputError("expected an object or a list of texts", path=path, line=number)


def _parquet(path: Path, names: Names) -> Iterator[Pair]:
    try:
        with pq.ParquetFile(path) as file:
            wanted = names.of(file.schema_arrow.names)
            if not wanted:
                raise _nothing(file.schema_arrow.names, names, path, None)
            number = 0
            for batch in file.iter_batches(_ROWS, columns=wanted):
                for row in batch.to_pylist():
                    number += 1
                    yield _pair(row, names, path, number)
    except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
        if isinstance(error, FileNotFoundError):
            raise
        raise InputError(f"not a whole Parquet file ({' '.join(str(error).split())})", path=path) from error


def _pair(row: Mapping[str, Any], names: Names, path: Path, line: int) -> Pair:
    pair = Pair(line)
    if not (wanted := names.of(list(row))):
        raise _nothing(list(row), names, path, line)
    for name in wanted:
        texts = list(_texts(row[name], name, path, line))
        if name not in names.passages:
            pair.questions += texts
        if name not in names.questions:
            pair.passages += texts
    return pair


def _texts(value: Any, name: str, path: Path, line: int) -> Iterator[str]:
    for each in value if isinstance(value, list) else [value]:
        if isinstance(each, dict):
            each = next((each[key] for key in _INNER if key in each), None)
        elif each is None:  # Parquet has it where a row lacks a value
            continue
        if not isinstance(each, str):
            raise InputError(f"{name}: expected {_WHAT}", path=path, line=line)
        yield each


def _nothing(have: Sequence[str], names: Names, path: Path, line: int | None) -> InputError:
    wanted = ", ".join([*names.questions, *names.passages, *names.either])
    found = ", ".join(have) or "nothing"
    return InputError(
        f"expected one of {wanted}, found {found}; --question and --positive name others", path=path, line=line
    )
