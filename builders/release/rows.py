"""Read raw DuReader 2.0 rows: JSON lines, plain or gzipped, in files, directories and zip archives.

DuReader is published in two forms. ``raw`` rows have a question, documents with paragraphs, and human answers.
``preprocessed`` rows also have ``segmented_*`` word lists. Other fields are ignored.
"""

import re
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, Generic, TypeVar

import msgspec

from builders.core.errors import InputError
from builders.core.file_formats import describe_encoding
from builders.core.typed import describe_json_error
from builders.sources.lines import Block, line_number, lines
from builders.sources.source_files import Source, find_files, split_of
from builders.store.layout import LONGEST_TEXT, SPLITS, long_text_fault

Words = list[list[str]] | None
W = TypeVar("W")
_ROW_FILE = re.compile(r"\.jsonl?(\.gz)?$", re.IGNORECASE)


class Document(msgspec.Struct, Generic[W], gc=False, kw_only=True):
    """One retrieved document. ``segmented_paragraphs`` has each paragraph's words, or is None.

    The title is not read, because the paper drops titles (Section 2.2.2).
    """

    paragraphs: list[str]
    segmented_paragraphs: W = None  # type: ignore[assignment]


class Row(msgspec.Struct, Generic[W], gc=False, kw_only=True):
    """One question with its documents and human answers. Rows of the test set have no answers.

    Word lists take most of the bytes of a preprocessed row, so they are decoded only if span-F1 compares words.
    """

    question_id: int | str
    question: str
    documents: list[Document[W]]
    answers: list[str] | None = None
    segmented_answers: W = None  # type: ignore[assignment]
    question_type: str | None = None
    fact_or_opinion: str | None = None
    yesno_answers: list[str] | None = None
    entity_answers: list[list[str]] | None = None


_ROW, _SEGMENTED_ROW = msgspec.json.Decoder(Row[msgspec.Raw]), msgspec.json.Decoder(Row[Words])


def find_sources(paths: Iterable[Path], split: str | None = None) -> list[Source]:
    """Return every file of raw rows under ``paths``, in the order of ``paths``.

    The files of a folder or archive are sorted by split (train, dev, test), then by name. ``split`` is the split of
    every file. If None, the split is read from each file's name. Raises :class:`InputError` for a missing path, a path
    without raw rows, or a name that does not contain exactly one split.
    """
    sources: list[Source] = []
    for path in paths:
        named = []
        for found in find_files(path, _ROW_FILE, "no raw DuReader rows (expected *.json or *.json.gz, JSON lines)"):
            label = split or split_of(found.name) or (None if path.is_dir() else split_of(path.resolve().as_posix()))
            if label is None:
                raise InputError(
                    "expected one of train, dev and test in the name; rename the file or use --train, --dev, --test",
                    path=found.shown,
                )
            named.append(replace(found, split=label))
        sources += sorted(named, key=lambda source: (SPLITS.index(source.split), source.name))
    return sources


def parse_rows(block: Block, *, segmented: bool = False) -> Iterator[tuple[int, Row[Any]]]:
    """Yield (offset of the line in the source, row) for each row of a block. Blank lines are skipped.

    Raises :class:`InputError` with file and line for a line that is not a row of raw DuReader.
    """
    for start, line in lines(block):
        try:
            yield start, parse_row(line, segmented)
        except ValueError as error:
            if bytes(line).strip():
                raise InputError(str(error), path=block.source.shown, line=line_number(block.source, start)) from None


def parse_row(line: bytes | memoryview, segmented: bool = False) -> Row[Any]:
    """Decode one line as a row, with word lists if ``segmented`` is True. Raises ValueError for a wrong row."""
    try:
        row: Row[Any] = (_SEGMENTED_ROW if segmented else _ROW).decode(line)
    except msgspec.ValidationError as error:
        is_list = bytes(line[:1]) == b"["
        remedy = "; write one row a line, without a list around the lines" if is_list else ""
        raise ValueError(f"not a row of raw DuReader: {error}{remedy}") from None
    except msgspec.DecodeError as error:
        raise ValueError(f"not JSON: {describe_json_error(bytes(line), str(error), is_line=True)}") from None
    except UnicodeDecodeError as error:
        reason = f"{error.reason} at byte {error.start}"
        raise ValueError(f"not UTF-8: {reason}; {describe_encoding(bytes(line))}") from None
    except RecursionError:
        raise ValueError("not a row of raw DuReader: the JSON is nested too deep") from None
    if not row.question.strip():
        raise ValueError("the question has no text")
    if len(line) > LONGEST_TEXT:  # in bytes, so that nearly all rows need no further test
        for text in (row.question, *(text for document in row.documents for text in document.paragraphs)):
            if fault := long_text_fault(text):
                raise ValueError(fault)
    for number, document in enumerate(row.documents if segmented else ()):
        given = document.segmented_paragraphs
        if given is not None and len(given) != len(document.paragraphs):
            raise ValueError(
                f"documents[{number}] has {len(document.paragraphs)} paragraphs, but {len(given)} segmented_paragraphs"
            )
    if segmented and row.segmented_answers is not None and len(row.segmented_answers) != len(row.answers or []):
        raise ValueError(f"has {len(row.answers or [])} answers, but {len(row.segmented_answers)} segmented_answers")
    return row
