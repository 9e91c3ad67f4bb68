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
from builders.core.file_formats import utf8_fault
from builders.core.typed import describe_json_error
from builders.sources.lines import Block, line_number, lines_of_block
from builders.sources.source_files import Source, find_files, split_of
from builders.store.layout import LONGEST_TEXT, SPLITS, long_text_fault

Words = list[list[str]] | None
WordLists = TypeVar("WordLists")
_ROW_FILE = re.compile(r"\.jsonl?(\.gz)?$", re.IGNORECASE)


class RawDocument(msgspec.Struct, Generic[WordLists], gc=False, kw_only=True):
    """One retrieved document. ``segmented_paragraphs`` has each paragraph's words, or is None.

    The title is not read, because the paper drops titles (Section 2.2.2).
    """

    paragraphs: list[str]
    segmented_paragraphs: WordLists = None  # type: ignore[assignment]


class RawRow(msgspec.Struct, Generic[WordLists], gc=False, kw_only=True):
    """One question with its documents and human answers. Rows of the test set have no answers.

    Word lists take most of the bytes of a preprocessed row, so they are decoded only if span-F1 compares words.
    """

    question_id: int | str
    question: str
    documents: list[RawDocument[WordLists]]
    answers: list[str] | None = None
    segmented_answers: WordLists = None  # type: ignore[assignment]
    question_type: str | None = None
    fact_or_opinion: str | None = None
    yesno_answers: list[str] | None = None
    entity_answers: list[list[str]] | None = None


_ROW_DECODER = msgspec.json.Decoder(RawRow[msgspec.Raw])  # word lists stay undecoded bytes
_SEGMENTED_ROW_DECODER = msgspec.json.Decoder(RawRow[Words])


def find_sources(paths: Iterable[Path], split: str | None = None) -> list[Source]:
    """Return every file of raw rows under ``paths``, in the order of ``paths``.

    The files of a folder or archive are sorted by split (train, dev, test), then by name. ``split`` is the split of
    every file. If None, the split is read from each file's name. Raises :class:`InputError` for a missing path, a path
    without raw rows, or a name that does not contain exactly one split.
    """
    sources: list[Source] = []
    for path in paths:
        # The order of the sources decides which of equal texts is the first. Sorting makes it independent of the disk.
        path_sources = []
        for source in find_files(path, _ROW_FILE, "no raw DuReader rows (expected *.json or *.json.gz, JSON lines)"):
            source_split = split or _split_of_source(source, path)
            if source_split is None:
                raise InputError(
                    "expected one of train, dev and test in the name; rename the file or use --train, --dev, --test",
                    path=source.shown,
                )
            path_sources.append(replace(source, split=source_split))
        sources += sorted(path_sources, key=lambda source: (SPLITS.index(source.split), source.name))
    return sources


def _split_of_source(source: Source, path: Path) -> str | None:
    """Return the split in the name of a source. For a file, the folders of its whole path are also searched."""
    source_split = split_of(source.name)
    if source_split is None and not path.is_dir():
        source_split = split_of(path.resolve().as_posix())
    return source_split


def parse_rows(block: Block, *, segmented: bool = False) -> Iterator[tuple[int, RawRow[Any]]]:
    """Yield (offset of the line in the source, row) for each row of a block. Blank lines are skipped.

    Raises :class:`InputError` with file and line for a line that is not a row of raw DuReader.
    """
    for offset, line in lines_of_block(block):
        try:
            yield offset, parse_row(line, segmented)
        except ValueError as error:
            # Only a line with an error can be blank, so other lines are not searched for white space.
            if bytes(line).strip():
                number = line_number(block.source, offset)
                raise InputError(str(error), path=block.source.shown, line=number) from None


def parse_row(line: bytes | memoryview, segmented: bool = False) -> RawRow[Any]:
    """Decode one line as a row, with word lists if ``segmented`` is True. Raises ValueError for a wrong row."""
    decoder: msgspec.json.Decoder[Any] = _SEGMENTED_ROW_DECODER if segmented else _ROW_DECODER
    try:
        row: RawRow[Any] = decoder.decode(line)
    except msgspec.ValidationError as error:
        is_list = bytes(line[:1]) == b"["
        remedy = "; write one row a line, without a list around the lines" if is_list else ""
        raise ValueError(f"not a row of raw DuReader: {error}{remedy}") from None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        content = bytes(line)
        fault = utf8_fault(content) or f"not JSON: {describe_json_error(content, str(error), is_line=True)}"
        raise ValueError(fault) from None
    except RecursionError:
        raise ValueError("not a row of raw DuReader: the JSON is nested too deep") from None
    if not row.question.strip():
        raise ValueError("the question has no text")
    if len(line) > LONGEST_TEXT:  # in bytes, so that nearly all rows need no further test
        _expect_short_texts(row)
    if segmented:
        _expect_word_lists(row)
    return row


def _expect_short_texts(row: RawRow[Any]) -> None:
    """Raise ValueError for a question or paragraph that readers of a release would refuse."""
    texts = [row.question]
    for document in row.documents:
        texts += document.paragraphs
    for text in texts:
        fault = long_text_fault(text)
        if fault:
            raise ValueError(fault)


def _expect_word_lists(row: RawRow[Words]) -> None:
    """Raise ValueError if word lists do not fit the number of paragraphs or answers."""
    # Words without their paragraph would give a wrong label.
    for number, document in enumerate(row.documents):
        word_lists = document.segmented_paragraphs
        if word_lists is not None and len(word_lists) != len(document.paragraphs):
            raise ValueError(
                f"documents[{number}] has {len(document.paragraphs)} paragraphs, "
                f"but {len(word_lists)} segmented_paragraphs"
            )
    answer_count = len(row.answers or [])
    if row.segmented_answers is not None and len(row.segmented_answers) != answer_count:
        raise ValueError(f"has {answer_count} answers, but {len(row.segmented_answers)} segmented_answers")
