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
from builders.core.files import is_parquet, raw_lines, reading
from builders.core.typed import json_of

QUESTIONS = ("query", "question", "anchor", "query_text", "sentence1", "text1")
PASSAGES = (
    *("pos", "positive", "positives", "positive_passages", "passage", "answer", "document", "response"),
    *("answer_paragraphs", "sentence2", "text2"),
)
EITHER = ("text", "content", "sentence", "texts", "set")
_INNER = ("text", "paragraph_text")
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

    def of(self, have: Collection[str], path: Path, line: int | None = None) -> list[str]:
        """Return the names in ``have`` that belong to ``questions`` or ``passages``. Without one, try ``either``.

        Raises :class:`InputError` if ``have`` has none of the names.
        """
        named = [name for name in have if name in self.questions or name in self.passages]
        if found := named or [name for name in have if name in self.either]:
            return found
        wanted = ", ".join([*self.questions, *self.passages, *self.either])
        problem = f"expected one of {wanted}, found {', '.join(have) or 'nothing'}"
        raise InputError(f"{problem}; set other names with --question and --positive", path=path, line=line)


def names_of(question: Sequence[str], positive: Sequence[str]) -> Names:
    """Return the names of ``--question`` and ``--positive``, or the usual names if both are empty."""
    return Names(question, positive, ()) if question or positive else Names()


def read_pairs(path: Path, names: Names) -> Iterator[Pair]:
    """Yield the rows of a file.

    Raises :class:`InputError` with file and line if the file is neither JSON lines nor Parquet, if a row has no key of
    ``names``, or if a value is not a text, an object with a text, or a list.
    """
    lines = ((line, json_of(text, Any, path, line)) for line, text in raw_lines(path) if text.strip())
    for line, row in _parquet(path, names) if is_parquet(path) else lines:
        own = names
        if isinstance(row, list):
            row, own = {"query": row[:1], "pos": row[1:2]}, Names()
        if not isinstance(row, dict):
            raise InputError("expected an object or a list of texts", path=path, line=line)
        pair = Pair(line, [], [])
        for name in own.of(row, path, line):
            texts = list(_texts(row[name], name, path, line))
            pair.questions.extend(texts if name not in own.passages else ())
            pair.passages.extend(texts if name not in own.questions else ())
        yield pair


def _parquet(path: Path, names: Names) -> Iterator[tuple[int, Any]]:
    with reading(path, damaged="not a whole Parquet file"), pq.ParquetFile(path) as file:
        batches = file.iter_batches(_ROWS, columns=names.of(file.schema_arrow.names, path))
        yield from enumerate((row for batch in batches for row in batch.to_pylist()), 1)


def _texts(value: Any, name: str, path: Path, line: int) -> Iterator[str]:
    for each in value if isinstance(value, list) else [value]:
        text = next((each[key] for key in _INNER if key in each), None) if isinstance(each, dict) else each
        if isinstance(text, str):
            yield text
        elif each is not None:  # Parquet has None for a missing value
            raise InputError(f"{name}: expected a text, an object with a text, or a list", path=path, line=line)
