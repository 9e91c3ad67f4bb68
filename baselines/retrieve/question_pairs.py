"""Labelled pairs of questions, to train and evaluate a question-matching model (Section 2.3).

Files are tables (commas or tabs, plain or gzipped) or JSON lines, like those of LCQMC, BQ, AFQMC, ATEC and cMedQQ.
The label is 1 if two questions ask the same, else 0.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from builders.core.errors import InputError
from builders.core.read_files import first_character
from builders.core.typed import json_lines
from builders.sources.source_files import Source
from builders.sources.source_tables import open_table

# Column names in published files. The first name of each column is this project's.
_COLUMN_NAMES = {
    "text1": ("text1", "text_a", "sentence1", "question1", "query1"),
    "text2": ("text2", "text_b", "sentence2", "question2", "query2"),
    "label": ("label", "score"),
}
_LABELS = {"0": 0, "1": 1, "0.0": 0, "1.0": 1}
_QUOTE_LENGTH = 60  # characters of a line that an error quotes


class QuestionPair(NamedTuple):
    """Two questions, and the label 1 if they ask the same, else 0."""

    first: str
    second: str
    label: int


@dataclass(frozen=True)
class PairFile:
    """A file of labelled pairs. ``columns``: the column names for a table without a header, else None."""

    path: Path
    columns: tuple[str, ...] | None = None


def pair_file(text: str) -> PairFile:
    """Parse a value of ``--pairs``: ``FILE``, or ``FILE:NAME,NAME,...`` with column names for a file without header."""
    path, colon, column_list = text.rpartition(":")
    # A file of exactly this name is read, although the name has a colon and a comma.
    if colon and "," in column_list and not Path(text).is_file():
        columns = tuple(column.strip().lower() for column in column_list.split(","))
        return PairFile(Path(path), columns)
    return PairFile(Path(text))


def read_question_pairs(files: Iterable[PairFile]) -> list[QuestionPair]:
    """Read the pairs of all files, in order.

    Raises :class:`InputError` with file and line if a column is missing, a question is empty, or a label is not 0 or 1.
    """
    pairs: list[QuestionPair] = []
    for file in files:
        earlier_count = len(pairs)
        character = first_character(file.path)
        if character == "[" and file.columns is None:
            expected = "expected JSON lines, one object a line, or a table with text1, text2 and label"
            raise InputError(f"is a JSON list; {expected}", path=file.path)
        is_json = character == "{" and file.columns is None
        rows = _read_json_lines(file.path) if is_json else _read_table(file)
        for line_number, columns, values in rows:
            pairs.append(_parse_pair(columns, values, file.path, line_number))
        if len(pairs) == earlier_count:
            raise InputError("has no pair of questions", path=file.path)
    return pairs


def _read_table(file: PairFile) -> Iterator[tuple[int, Sequence[str], Sequence[Any]]]:
    """Yield (line number, column names, values) of each row."""
    table = open_table(Source(file.path, member=None, name=file.path.name))
    columns = file.columns or tuple(table.columns)
    if len(columns) != len(table.first):
        expected = f"the {len(columns)} columns named in --pairs: {', '.join(columns)}"
        raise InputError(f"has {len(table.first)} columns; expected {expected}", path=file.path)
    # Without columns, rows() yields the header, too.
    for row_number, (line_number, values) in enumerate(table.rows()):
        is_header = row_number == 0 and not file.columns
        if not is_header:
            yield line_number, columns, values


def _read_json_lines(path: Path) -> Iterator[tuple[int, Sequence[str], Sequence[Any]]]:
    """Yield (line number, column names, values) of each object."""
    for line_number, row in json_lines(path, dict[str, Any]):
        yield line_number, [key.lower() for key in row], list(row.values())


def _find_columns(columns: Sequence[str], path: Path, line_number: int) -> list[int]:
    """Return the positions of the two questions and the label in a row. ``columns`` are the row's column names.

    Raises :class:`InputError` unless the row has one column of each.
    """
    # A column may have any of the published names, but a row must not have two columns of the same meaning.
    positions = []
    for accepted_names in _COLUMN_NAMES.values():
        matches = [position for position, column in enumerate(columns) if column in accepted_names]
        if len(matches) != 1:
            raise _wrong_columns(columns, path, line_number)
        positions += matches
    return positions


def _wrong_columns(columns: Sequence[str], path: Path, line_number: int) -> InputError:
    descriptions = []
    for name, *alternatives in _COLUMN_NAMES.values():
        descriptions.append(f"{name} (or {', '.join(alternatives)})")
    found_columns = ", ".join(columns)[:_QUOTE_LENGTH]
    problem = f"expected one column of each: {', '.join(descriptions)}; found {found_columns!r}"
    remedy = "name the columns of a file without header as FILE:id,text1,text2,label"
    return InputError(f"{problem}; {remedy}", path=path, line=line_number)


def _parse_pair(columns: Sequence[str], values: Sequence[Any], path: Path, line_number: int) -> QuestionPair:
    """Return the pair of a row. Raises :class:`InputError` for a missing column, an empty question or another label."""
    first, second, label_value = (values[position] for position in _find_columns(columns, path, line_number))
    for question in (first, second):
        if not isinstance(question, str) or not question.strip():
            raise InputError("expected two questions that are not empty", path=path, line=line_number)
    # JSON's true is no label, because its text here is "True".
    label = _LABELS.get(str(label_value).strip())
    if label is None:
        problem = f"expected a label 0 or 1, found {str(label_value)[:_QUOTE_LENGTH]!r}"
        raise InputError(problem, path=path, line=line_number)
    return QuestionPair(first, second, label)
