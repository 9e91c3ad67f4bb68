"""Read training pairs in common formats: JSON lines (plain or gzipped) and Parquet.

``QUESTIONS`` and ``PASSAGES`` list the usual keys or columns, for example of FlagEmbedding, Tevatron and DuReader. If a
row has none of these keys, the keys in ``EITHER`` are read, for example of MTEB's queries and corpus. Other keys (ids,
negatives, scores) are ignored. A value is a text, an object with a text in ``text`` or ``paragraph_text``, or a
list of texts and objects. A row may also be a list of texts: a question, a passage, then negatives.
"""

from collections.abc import Collection, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow.parquet as pq

from builders.core.errors import InputError
from builders.core.exit_codes import raise_if_stopped
from builders.core.read_files import convert_read_errors, is_parquet, raw_lines
from builders.core.typed import json_of

QUESTIONS = ("query", "question", "anchor", "query_text", "sentence1", "text1")
PASSAGES = (
    "pos",
    "positive",
    "positives",
    "positive_passages",
    "passage",
    "answer",
    "document",
    "response",
    "answer_paragraphs",
    "sentence2",
    "text2",
)
EITHER = ("text", "content", "sentence", "texts", "set")
_INNER = ("text", "paragraph_text")  # keys of an object that is a value
_NOT_PARQUET = "not a whole Parquet file"
_ROWS = 1_024  # rows of a Parquet batch; a row may have 100 passages


class Pair(NamedTuple):
    """The line or row number (from 1) and the texts of a row. Texts of the keys in ``EITHER`` are in both lists."""

    line: int
    questions: list[str]
    passages: list[str]


class Names(NamedTuple):
    """The keys or columns of questions, of passages, and of texts that may be questions or passages."""

    questions: Sequence[str] = QUESTIONS
    passages: Sequence[str] = PASSAGES
    either: Sequence[str] = EITHER

    def of(self, row_keys: Collection[str], pairs_path: Path, line: int | None = None) -> list[str]:
        """Return those of ``row_keys`` that are in ``questions`` or ``passages`` or, if there are none, in ``either``.

        ``row_keys`` are the keys of a row, or the columns of a file. ``line`` is the row's line, for the error. Raises
        :class:`InputError` if the row has none of the names.
        """
        names_with_role = [name for name in row_keys if name in self.questions or name in self.passages]
        if names_with_role:
            return names_with_role
        names_without_role = [name for name in row_keys if name in self.either]
        if names_without_role:
            return names_without_role
        expected_names = ", ".join([*self.questions, *self.passages, *self.either])
        problem = f"expected one of {expected_names}, found {', '.join(row_keys) or 'nothing'}"
        raise InputError(f"{problem}; set other names with --question and --positive", path=pairs_path, line=line)


def names_of(question: Sequence[str], positive: Sequence[str]) -> Names:
    """Return the names of ``--question`` and ``--positive``, or the usual names if both are empty.

    If only one is set, no key is read for the other.
    """
    if question or positive:
        return Names(question, positive, either=())
    return Names()


def read_pairs(pairs_path: Path, names: Names) -> Iterator[Pair]:
    """Yield a pair for each row of a file.

    Raises :class:`InputError` with file and line if the file is neither JSON lines nor Parquet, if a row has no key of
    ``names``, or if a value is not a text, an object with a text, or a list.
    """
    rows = _read_parquet(pairs_path, names) if is_parquet(pairs_path) else _read_lines(pairs_path)
    for line, row in rows:
        expected_names = names
        if isinstance(row, list):  # a question, a passage, then negatives, under the usual names
            row = {"query": row[:1], "pos": row[1:2]}
            expected_names = Names()
        if not isinstance(row, dict):  # a number or a text, for example
            raise InputError("expected an object or a list of texts", path=pairs_path, line=line)
        pair = Pair(line, [], [])
        for name in expected_names.of(row, pairs_path, line):
            texts = list(_read_texts(row[name], name, pairs_path, line))
            # A text of ``either`` goes into both lists.
            if name not in expected_names.passages:
                pair.questions.extend(texts)
            if name not in expected_names.questions:
                pair.passages.extend(texts)
        yield pair


def count_rows(pairs_path: Path) -> int | None:
    """Return the number of rows that :func:`read_pairs` yields, for its bar.

    Returns None for a damaged file, which :func:`read_pairs` reports.
    """
    try:
        if is_parquet(pairs_path):
            with convert_read_errors(pairs_path, damaged=_NOT_PARQUET), pq.ParquetFile(pairs_path) as file:
                return int(file.metadata.num_rows)
        row_count = 0
        for _, line in raw_lines(pairs_path):
            raise_if_stopped()
            row_count += bool(line.strip())
        return row_count
    except InputError:
        return None


def _read_lines(pairs_path: Path) -> Iterator[tuple[int, Any]]:
    """Yield (line number from 1, row) of JSON lines. A row is any JSON value. Blank lines are skipped."""
    for line, text in raw_lines(pairs_path):
        if text.strip():
            yield line, json_of(text, Any, pairs_path, line)


def _read_parquet(pairs_path: Path, names: Names) -> Iterator[tuple[int, Any]]:
    """Yield (row number from 1, row) of a Parquet file, with the columns of ``names``."""
    with convert_read_errors(pairs_path, damaged=_NOT_PARQUET), pq.ParquetFile(pairs_path) as file:
        row_number = 0
        for batch in file.iter_batches(_ROWS, columns=names.of(file.schema_arrow.names, pairs_path)):
            for row in batch.to_pylist():
                row_number += 1
                yield row_number, row


def _read_texts(value: Any, name: str, pairs_path: Path, line: int) -> Iterator[str]:
    """Yield the texts of a value: a text, an object with a text, or a list of texts and objects."""
    elements = value if isinstance(value, list) else [value]
    for element in elements:
        text = element
        if isinstance(element, dict):
            text = next((element[key] for key in _INNER if key in element), None)
        if isinstance(text, str):
            yield text
        elif element is not None:  # Parquet has None for an empty cell
            raise InputError(f"{name}: expected a text, an object with a text, or a list", path=pairs_path, line=line)
