"""Labelled pairs of questions, to train and evaluate a question-matching model (Section 2.3).

Files are tables (commas or tabs, plain or gzipped) or JSON lines, like those of LCQMC, BQ, AFQMC, ATEC and cMedQQ.
The label is 1 if two questions ask the same, else 0.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from builders.core.errors import InputError
from builders.core.files import first_character
from builders.core.typed import json_lines
from builders.sources.source_files import Source
from builders.sources.source_tables import open_table

# Column names in published files. The first name of each column is this project's.
_NAMES = {
    "text1": ("text1", "text_a", "sentence1", "question1", "query1"),
    "text2": ("text2", "text_b", "sentence2", "question2", "query2"),
    "label": ("label", "score"),
}
_LABELS = {"0": 0, "1": 1, "0.0": 0, "1.0": 1}
_SHOWN = 60  # characters of a line that an error quotes


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
    name, colon, names = text.rpartition(":")
    if colon and "," in names and not Path(text).is_file():
        return PairFile(Path(name), tuple(each.strip().lower() for each in names.split(",")))
    return PairFile(Path(text))


def read_question_pairs(files: Iterable[PairFile]) -> list[QuestionPair]:
    """Read the pairs of all files, in order.

    Raises :class:`InputError` with file and line if a column is missing, a question is empty, or a label is not 0 or 1.
    """
    found: list[QuestionPair] = []
    for file in files:
        before = len(found)
        first = first_character(file.path)
        if first == "[" and file.columns is None:
            expected = "expected JSON lines, one object a line, or a table with text1, text2 and label"
            raise InputError(f"is a JSON list; {expected}", path=file.path)
        is_json = file.columns is None and first == "{"
        rows = _json_lines(file.path) if is_json else _table(file)
        found += (_pair(columns, values, file.path, line) for line, columns, values in rows)
        if len(found) == before:
            raise InputError("has no pair of questions", path=file.path)
    return found


def _table(file: PairFile) -> Iterator[tuple[int, Sequence[str], Sequence[Any]]]:
    table = open_table(Source(file.path, None, file.path.name))
    columns = file.columns or tuple(table.columns)
    if len(columns) != len(table.first):
        named = f"the {len(columns)} columns named in --pairs: {', '.join(columns)}"
        raise InputError(f"has {len(table.first)} columns; expected {named}", path=file.path)
    for number, (line, values) in enumerate(table.rows()):
        if file.columns or number:
            yield line, columns, values


def _json_lines(path: Path) -> Iterator[tuple[int, Sequence[str], Sequence[Any]]]:
    for number, row in json_lines(path, dict[str, Any]):
        yield number, [key.lower() for key in row], list(row.values())


def _places(columns: Sequence[str], path: Path, line: int) -> list[int]:
    places = [[place for place, column in enumerate(columns) if column in names] for names in _NAMES.values()]
    if any(len(each) != 1 for each in places):
        wanted = ", ".join(f"{names[0]} (or {', '.join(names[1:])})" for names in _NAMES.values())
        problem = f"expected one column of each: {wanted}; found {', '.join(columns)[:_SHOWN]!r}"
        remedy = "name the columns of a file without header as FILE:id,text1,text2,label"
        raise InputError(f"{problem}; {remedy}", path=path, line=line)
    return [place for (place,) in places]


def _pair(columns: Sequence[str], values: Sequence[Any], path: Path, line: int) -> QuestionPair:
    first, second, label = (values[place] for place in _places(columns, path, line))
    if not all(isinstance(text, str) and text.strip() for text in (first, second)):
        raise InputError("expected two questions that are not empty", path=path, line=line)
    found = None if isinstance(label, bool) else _LABELS.get(str(label).strip())
    if found is None:
        raise InputError(f"expected a label 0 or 1, found {str(label)[:_SHOWN]!r}", path=path, line=line)
    return QuestionPair(first, second, found)
