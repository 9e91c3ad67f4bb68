"""Raw DuReader 2.0 rows: JSON lines, plain or gzipped, in files, directories and zip archives.

Both published flavours are read: ``raw`` (question, documents with paragraphs, human answers) and ``preprocessed``
(the same with ``segmented_*`` word lists). Search and zhidao files have one format. Fields that no step needs are
skipped, whatever is in them.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, Generic, TypeVar

import msgspec

from builders.core.errors import InputError
from builders.sources.files import Source, find_files, split_of
from builders.sources.lines import Block, line_number, lines
from builders.store.layout import SPLITS

Words = list[list[str]] | None
W = TypeVar("W")
_ROW_FILE = re.compile(r"\.jsonl?(\.gz)?$", re.IGNORECASE)


class Document(msgspec.Struct, Generic[W], gc=False, kw_only=True):
    """One retrieved document, with the words of its paragraphs where the row carries them.

    Its title is read by nothing: titles are dropped (Section 2.2.2).
    """

    paragraphs: list[str]
    segmented_paragraphs: W = None  # type: ignore[assignment]


class Row(msgspec.Struct, Generic[W], gc=False, kw_only=True):
    """One question with its documents and, outside the test set, its human answers, perhaps as words too.

    Words are most of a preprocessed row: they are read only where they are the unit.
    """

    question_id: int | str
    question: str
    documents: list[Document[W]]
    answers: list[str] | None = None
    segmented_answers: W = None  # type: ignore[assignment]


_ROW, _SEGMENTED_ROW = msgspec.json.Decoder(Row[msgspec.Raw]), msgspec.json.Decoder(Row[Words])


def find_sources(paths: Iterable[Path], split: str | None = None) -> list[Source]:
    """Every row file under ``paths``: in the order given; inside a folder or archive train, dev, test, then by name.

    ``split`` is the split of all of them; without it the names tell. Raises :class:`InputError` for a path that is
    missing or holds no rows, and for a name that tells no split.
    """
    sources: list[Source] = []
    for path in paths:
        named = []
        for found in find_files(path, _ROW_FILE, "no raw DuReader rows (expected *.json or *.json.gz, JSON lines)"):
            label = split or split_of(found.name) or (None if path.is_dir() else split_of(path.resolve().as_posix()))
            if label is None:
                raise InputError(
                    "its name tells no split; expected train, dev or test in it, or --train/--dev/--test",
                    path=found.shown,
                )
            named.append(replace(found, split=label))
        sources += sorted(named, key=lambda source: (SPLITS.index(source.split), source.name))
    return sources


def parse_rows(block: Block, *, segmented: bool = False) -> Iterator[tuple[int, Row[Any]]]:
    """(where its line begins in the source, row) for the rows of a block. Blank lines hold none and are passed over.

    Raises :class:`InputError` naming file and line for what is not a row of raw DuReader.
    """
    for start, line in lines(block):
        try:
            yield start, parse_row(line, segmented)
        except ValueError as error:
            if bytes(line).strip():
                number = line_number(block.source, start)
                raise InputError(str(error), path=block.source.shown, line=number) from None


def parse_row(line: bytes | memoryview, segmented: bool = False) -> Row[Any]:
    """One line as a row, with its words if ``segmented``. ValueError says what is wrong with it."""
    try:
        row: Row[Any] = (_SEGMENTED_ROW if segmented else _ROW).decode(line)
    except msgspec.ValidationError as error:
        raise ValueError(f"not a row of raw DuReader: {error}") from None
    except msgspec.DecodeError as error:
        raise ValueError(f"not JSON: {error}") from None
    except UnicodeDecodeError as error:
        raise ValueError(f"not UTF-8: {error.reason} at byte {error.start}") from None
    except RecursionError:
        raise ValueError("not a row of raw DuReader: nested too deep") from None
    if not row.question.strip():
        raise ValueError("a question with no text")
    for number, document in enumerate(row.documents if segmented else ()):
        given = document.segmented_paragraphs
        if given is not None and len(given) != len(document.paragraphs):
            raise ValueError(
                f"documents[{number}] has {len(document.paragraphs)} paragraphs and {len(given)} segmented_paragraphs"
            )
    if segmented and row.segmented_answers is not None and len(row.segmented_answers) != len(row.answers or []):
        raise ValueError(f"{len(row.answers or [])} answers and {len(row.segmented_answers)} segmented_answers")
    return row
