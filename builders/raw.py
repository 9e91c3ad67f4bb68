"""Raw DuReader 2.0 rows: JSON lines, plain or gzipped, in files, directories and zip archives.

Both published flavours are read: ``raw`` (question, documents with paragraphs, human answers) and ``preprocessed``
(the same with ``segmented_*`` word lists). Search and zhidao files have one format. Fields that no step needs are
skipped unread. Lines end at ``\\n`` only: the texts hold U+2028 and U+0085.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import ClassVar

import msgspec

from builders.command import InputError
from builders.sources import Source, find_files, open_bytes

SPLITS = ("train", "dev", "test")
BLOCK_BYTES = 8 << 20  # one unit of work: small enough that a few in flight cost little memory
LONGEST_LINE = 1 << 30
_ROW_FILE = re.compile(r"\.jsonl?(\.gz)?$", re.IGNORECASE)
_SPLIT_WORD = re.compile(r"(?<![a-z])(train|dev|test)(?:set)?\d*(?![a-z])")


class Document(msgspec.Struct, gc=False):
    """One retrieved document. Its title is read by nothing: titles are dropped (Section 2.2.2)."""

    paragraphs: list[str]
    segmented_paragraphs: list[list[str]] | None = None


class Row(msgspec.Struct, gc=False):
    """One question with its documents and, outside the test set, its human answers."""

    question_id: int | str
    question: str
    documents: list[Document]
    answers: list[str] | None = None
    segmented_answers: list[list[str]] | None = None


@dataclass(frozen=True)
class Block:
    """Whole lines of one source: the unit of work."""

    number: int
    source: Source
    first_line: int  # from 1
    data: bytes


def split_of(name: str) -> str | None:
    """The split that a path names: a word of the file's own name, else the nearest folder (``dev/``, ``devset/``)."""
    *folders, file = name.lower().split("/")
    found = {match.group(1) for match in _SPLIT_WORD.finditer(file)}
    if found:
        return found.pop() if len(found) == 1 else None
    for folder in reversed(folders):
        if match := _SPLIT_WORD.fullmatch(folder):
            return match.group(1)
    return None


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


def read_blocks(sources: Sequence[Source], block_bytes: int = BLOCK_BYTES) -> Iterator[Block]:
    """The sources' bytes as blocks of whole lines, numbered from 0. Memory: one block, or one line if that is longer.

    Raises :class:`InputError` for an unreadable, empty or broken file.
    """
    number = 0
    for source in sources:
        line, rest, seen = 1, b"", False
        with open_bytes(source) as stream:
            while data := stream.read(block_bytes):
                seen = seen or bool(data.strip())
                cut = data.rfind(b"\n") + 1
                if not cut:
                    rest += data
                    if len(rest) > LONGEST_LINE:
                        raise InputError("a line of over 1 GiB; expected JSON lines", path=source.shown, line=line)
                    continue
                whole, rest = rest + data[:cut], data[cut:]
                yield Block(number, source, line, whole)
                number, line = number + 1, line + whole.count(b"\n")
        if rest.strip():
            yield Block(number, source, line, rest)
            number += 1
        if not seen:
            raise InputError("is empty; expected raw DuReader rows, JSON lines", path=source.shown)


class _PlainDocument(msgspec.Struct, gc=False):
    paragraphs: list[str]
    segmented_paragraphs: ClassVar[None] = None


class _PlainRow(msgspec.Struct, gc=False):
    """A row whose ``segmented_*`` fields are left unread, which is most of a preprocessed row."""

    question_id: int | str
    question: str
    documents: list[_PlainDocument]
    answers: list[str] | None = None
    segmented_answers: ClassVar[None] = None


_DECODERS = {segmented: msgspec.json.Decoder(kind).decode for segmented, kind in ((True, Row), (False, _PlainRow))}


def parse_rows(block: Block, *, segmented: bool = True) -> Iterator[tuple[int, Row]]:
    """The (line number, row) pairs of a block. Blank lines hold no row and are passed over.

    ``segmented=False`` leaves the word lists unread. Raises :class:`InputError` naming file and line for what is not a
    row of raw DuReader.
    """
    try:
        str(block.data, "utf-8")  # fields that the decoder skips unread are checked too
    except UnicodeDecodeError as error:
        line_number = block.first_line + block.data.count(b"\n", 0, error.start)
        raise InputError(f"not UTF-8: {error.reason}", path=block.source.shown, line=line_number) from None
    for offset, line in enumerate(block.data.split(b"\n")):
        if offset == 0 and block.first_line == 1:
            line = line.removeprefix(b"\xef\xbb\xbf")
        if not line.strip():
            continue
        yield (
            block.first_line + offset,
            parse_row(line, block.source.shown, block.first_line + offset, segmented=segmented),
        )


def parse_row(line: bytes, name: str, number: int, *, segmented: bool = True) -> Row:
    """One line as a row; ``name`` and ``number`` stand in the :class:`InputError`."""
    try:
        row: Row = _DECODERS[segmented](line)  # type: ignore[assignment]
    except msgspec.ValidationError as error:
        raise InputError(f"not a row of raw DuReader: {error}", path=name, line=number) from None
    except msgspec.DecodeError as error:
        raise InputError(f"not JSON: {error}", path=name, line=number) from None
    except UnicodeDecodeError as error:
        raise InputError(f"not UTF-8: {error.reason} at byte {error.start}", path=name, line=number) from None
    except RecursionError:
        raise InputError("not a row of raw DuReader: nested too deep", path=name, line=number) from None
    if not row.question.strip():
        raise InputError("a question with no text", path=name, line=number)
    return row
