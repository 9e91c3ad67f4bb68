"""Read the rows of a copy's files: JSON lines, Parquet, TSV, and TREC's markup.

A row is a passage or a query (``_id``, ``text``, perhaps ``title``), a judgment (``query-id``, ``corpus-id``,
``score``), or a query with its passages (Tevatron). The kind of a file is detected from its content:

- JSON lines and Parquet have the columns of mteb and BEIR, C-MTEB, Pyserini (``id``, ``contents``) or Tevatron;
- TSV has an id and a text, as in MS MARCO's collection, or judgments: BEIR's three columns with a header, or the four
  columns of TREC, separated by tabs or blanks;
- TREC's markup has ``<DOC>`` elements with ``<DOCNO>``, or ``<top>`` elements with ``<num>`` and ``<title>``.
"""

import gzip
import io
import math
import re
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any, TypeVar

import msgspec
import pyarrow.parquet as pq
from msgspec import Struct

from builders.core.errors import InputError
from builders.core.file_formats import describe_encoding
from builders.core.progress import show_progress
from builders.core.read_files import (
    BOM,
    convert_read_errors,
    first_character,
    id_of,
    is_parquet,
    numbered_lines,
    open_text,
    quote_column,
    rereadable_path,
)
from builders.core.typed import convert_to, count_keys, expect_unique_keys, json_of

_LINES_PER_UPDATE = 1_000  # of the bar of a file of lines
_ROWS_PER_BATCH = 256  # a row with its passages can have 100 kB
# Column names of C-MTEB, Pyserini and Tevatron -> mteb's column names.
_MTEB_NAMES = {"id": "_id", "qid": "query-id", "pid": "corpus-id", "contents": "text", "docid": "_id"}
_QRELS_COLUMNS = ("query-id", "corpus-id", "score")
_CORPUS_WORDS = ("corpus", "collection", "docs")
_QUERY_WORDS = ("quer", "topic")
_LARGEST_ELEMENT = 64 << 20  # bytes of a <DOC>
# Elements with the title of a TREC document, in the collections of TREC's disks.
_TITLE_TAGS = rb"TITLE|HEADLINE|HEAD|HL|TI"
_MARKUP = re.compile(rb"<[^<>]*>")


class Passage(Struct, gc=False):
    text: str
    docid: str | int = ""
    title: Any = None


class Ranked(Struct, gc=False):
    """A query with its passages."""

    query: str
    positive_passages: list[Passage]
    query_id: str | int = ""
    negative_passages: list[Passage] = []


class Text(Struct, gc=False):
    """A passage or a query."""

    id: str | int = msgspec.field(name="_id")
    text: str = ""
    title: Any = None


class Judgment(Struct, gc=False):
    query: str | int = msgspec.field(name="query-id")
    passage: str | int = msgspec.field(name="corpus-id")
    score: int | float = 1


T = TypeVar("T", Ranked, Text, Judgment)
# (location, row). The location is the file's name, and the number of the line or row.
LocatedRows = Iterator[tuple[str, dict[str, Any]]]
_NumberedLines = Iterator[tuple[int, bytes]]


def _parquet_rows(path: Path) -> LocatedRows:
    """Yield the rows of a Parquet file with all of its columns."""
    row_number = 0
    with (
        convert_read_errors(path, damaged="is damaged, or not a Parquet file"),
        pq.ParquetFile(rereadable_path(path)) as file,
    ):
        for batch in file.iter_batches(batch_size=_ROWS_PER_BATCH):
            for row in batch.to_pylist():
                row_number += 1
                yield f"{path}, row {row_number}", row


def _lines_of_file(path: Path, bar: Any = None) -> _NumberedLines:
    """Yield (line number, line) for the lines that are not blank, without line ends.

    ``bar`` is a progress bar, which is moved by the bytes that are read, or None.
    """
    with open_text(path) as stream:
        for line_number, line in numbered_lines(stream, path):
            # Files with a byte order mark may have been joined, so any line can begin with one.
            content = line.removeprefix(BOM).rstrip(b"\r\n")
            if content.strip():
                yield line_number, content
            # A file position costs as much as a short line, so the bar does not move with every line.
            if bar is not None and line_number % _LINES_PER_UPDATE == 0:
                bar.update(_bytes_read(stream) - bar.n)
        if bar is not None:
            bar.update(_bytes_read(stream) - bar.n)


def _bytes_read(stream: IO[bytes]) -> int:
    """Return the position in a file of :func:`.open_text`. In a gzipped file, this is the number of compressed bytes.

    The size of the decompressed text is unknown before the end, so a bar of a gzipped file counts compressed bytes.
    """
    if isinstance(stream, io.BufferedReader) and isinstance(stream.raw, gzip.GzipFile):
        compressed_file: Any = stream.raw.fileobj
        return int(compressed_file.tell())
    return stream.tell()


def _json_rows(path: Path, lines: _NumberedLines) -> LocatedRows:
    """Yield the rows of JSON lines. Raises :class:`InputError` for a line that has a key twice."""
    for line_number, line in lines:
        row = json_of(line, dict[str, Any], path, line_number)
        expect_unique_keys(line, count_keys(row), path, line_number)
        yield f"{path}:{line_number}", row


def _table_rows(path: Path, lines: _NumberedLines) -> LocatedRows:
    """Yield the rows of a TSV, or of a file of judgments whose columns are separated by blanks.

    Lines of 2 columns are an id and a text. Lines of 3 or 4 columns are judgments. A header is only skipped if it is
    that of judgments.
    """
    column_count = 0
    for line_number, line in lines:
        fields = _fields_of(line)
        location = f"{path}:{line_number}"
        # The first line decides on the columns.
        if not column_count:
            column_count = len(fields)
            if fields == [name.encode() for name in _QRELS_COLUMNS]:
                continue
            if column_count not in (2, 3, 4):
                raise InputError(
                    "expected an id and a text, 3 columns of judgments (query-id, corpus-id, score), or 4 columns"
                    f" (query-id, 0, corpus-id, score), found {len(fields)}",
                    path=path,
                    line=line_number,
                )
        if len(fields) != column_count:
            problem = f"expected {column_count} columns, as in the first line, found {len(fields)}"
            raise InputError(problem, path=path, line=line_number)
        row_id = id_of(fields[0], path, line_number)
        if column_count == 2:
            yield location, {"_id": row_id, "text": _decode(fields[1], path, line_number)}
        else:
            # TREC's second of four columns is not used.
            passage_id = id_of(fields[-2], path, line_number)
            score = _parse_score(fields[-1], path, line_number)
            yield location, dict(zip(_QRELS_COLUMNS, (row_id, passage_id, score), strict=True))


def _fields_of(line: bytes) -> list[bytes]:
    if b"\t" in line:
        return [field.strip() for field in line.split(b"\t")]
    return line.split()


def _decode(content: bytes, path: Path, line_number: int) -> str:
    try:
        return content.decode()
    except UnicodeDecodeError:
        raise InputError(describe_encoding(content), path=path, line=line_number) from None


def _parse_score(field: bytes, path: Path, line_number: int) -> float:
    """Return the score of a judgment. Raises :class:`InputError` for a field that is no finite number."""
    try:
        score = float(field)
    except ValueError:
        score = math.nan
    if not math.isfinite(score):
        raise InputError(f"expected a number as the score, found {quote_column(field)}", path=path, line=line_number)
    return score


def _markup_rows(path: Path, lines: _NumberedLines) -> LocatedRows:
    """Yield the documents or topics of TREC's markup. Raises :class:`InputError` for an element without an id."""
    for line_number, tag, content in _elements(path, lines):
        row = _document_row(content) if tag == b"doc" else _topic_row(content)
        if not row["_id"]:
            id_element = "<DOCNO>" if tag == b"doc" else "<num>"
            problem = f"expected an element {id_element} with the id inside <{tag.decode()}>"
            raise InputError(problem, path=path, line=line_number)
        decoded_row = {}
        for name, value in row.items():
            decoded_row[name] = _decode(value, path, line_number)
        yield f"{path}:{line_number}", decoded_row


def _elements(path: Path, lines: _NumberedLines) -> Iterator[tuple[int, bytes, bytes]]:
    """Yield (number of the first line, tag, content) of each element. The tag is ``doc`` or ``top``.

    Raises :class:`InputError` for text outside of an element, and for an element that does not end or is too large.
    """
    tag = b""  # the tag of the open element
    first_line = 0
    parts: list[bytes] = []
    byte_count = 0
    for line_number, line in lines:
        stripped = line.strip().lower()
        if not tag:
            opening = re.match(rb"<(doc|top)>", stripped)
            if opening is None:
                raise InputError(f"expected <DOC> or <top>, found {quote_column(line)}", path=path, line=line_number)
            tag = opening[1]
            first_line = line_number
            line = line.strip()[len(opening[0]) :]
            parts = []
            byte_count = 0
        byte_count += len(line)
        closing = re.search(rb"</" + tag + rb">\s*\Z", line, re.IGNORECASE)
        parts.append(line[: closing.start()] if closing else line)
        if closing:
            yield first_line, tag, b"\n".join(parts)
            tag = b""
        elif byte_count > _LARGEST_ELEMENT:  # its closing tag is probably missing, which is the error below
            break
    if tag:
        problem = f"<{tag.decode()}> does not end; expected </{tag.decode()}>"
        raise InputError(problem, path=path, line=first_line)


def _document_row(content: bytes) -> dict[str, bytes]:
    """Return id, title and text of a document. The text is that of <TEXT>, or of all elements but the id and title."""
    number = re.search(rb"<DOCNO>(.*?)</DOCNO>", content, re.DOTALL | re.IGNORECASE)
    title_pattern = rb"<(" + _TITLE_TAGS + rb")>(.*?)</\1>"
    title = re.search(title_pattern, content, re.DOTALL | re.IGNORECASE)
    bodies = re.findall(rb"<TEXT>(.*?)</TEXT>", content, re.DOTALL | re.IGNORECASE)
    if not bodies:
        rest = re.sub(rb"<DOCNO>.*?</DOCNO>", b"", content, flags=re.DOTALL | re.IGNORECASE)
        bodies = [re.sub(title_pattern, b"", rest, count=1, flags=re.DOTALL | re.IGNORECASE)]
    return {
        "_id": number[1].strip() if number else b"",
        "title": _without_markup(title[2]) if title else b"",
        "text": b"\n".join(map(_without_markup, bodies)),
    }


def _topic_row(content: bytes) -> dict[str, bytes]:
    """Return the id of a topic and, as the text of the query, its title.

    Elements of topics have no closing tags, so they end before the next tag.
    """
    number = re.search(rb"<num>\s*(?:Number:)?\s*([^<\s]+)", content, re.IGNORECASE)
    title = re.search(rb"<title>\s*(?:Topic:)?([^<]*)", content, re.IGNORECASE)
    return {"_id": number[1] if number else b"", "text": b" ".join(title[1].split()) if title else b""}


def _without_markup(content: bytes) -> bytes:
    return _MARKUP.sub(b"", content).strip()


def _rows(path: Path, bar: Any = None) -> LocatedRows:
    """Yield the rows of a file. Its format is detected from its first character. ``bar`` counts bytes of lines."""
    if is_parquet(path):
        return _parquet_rows(path)
    lines = _lines_of_file(path, bar)
    character = first_character(path)
    if character in "{[":
        return _json_rows(path, lines)
    return _markup_rows(path, lines) if character == "<" else _table_rows(path, lines)


def _typed_rows(rows: LocatedRows, kind: type[T]) -> Iterator[tuple[str, T]]:
    """Yield (location, row) with the rows as the type ``kind``, and all columns under mteb's names."""
    for location, row in rows:
        renamed_row = {_MTEB_NAMES.get(name, name): value for name, value in row.items()}
        yield location, convert_to(renamed_row, kind, location)


def rows_of(path: Path, kind: type[T]) -> Iterator[tuple[str, T]]:
    """Yield (location, row) for every row, decoded as the type ``kind``.

    Raises :class:`InputError` for a damaged file or a row of another type. The error names the row's location.
    """
    return _typed_rows(_rows(path), kind)


def rows_with_bar(path: Path, kind: type[T]) -> Iterator[tuple[str, T]]:
    """Yield the rows of :func:`rows_of` with a bar, which counts rows of a Parquet file, or bytes of other files."""
    if is_parquet(path):
        with convert_read_errors(path, damaged="is damaged, or not a Parquet file"):
            row_count = pq.read_metadata(rereadable_path(path)).num_rows
        yield from show_progress(rows_of(path, kind), total=row_count, unit="row", label=path.name)
        return
    with convert_read_errors(path):
        byte_count = path.stat().st_size or None  # a pipe has no size
    with show_progress(total=byte_count, unit="B", label=path.name) as bar:
        yield from _typed_rows(_rows(path, bar), kind)


def kind_of(path: Path, *names: str) -> str:
    """Return ``ranking``, ``corpus``, ``queries`` or ``qrels``, by the content of the file.

    Corpus and queries have the same columns. They are told apart by the first of ``names`` (of the file and its folder)
    that has a word for one of them, such as ``corpus`` or ``queries``, but not for both. TREC's markup has different
    elements for them. Raises :class:`InputError` for other columns, and if no name has such a word.
    """
    is_table = is_parquet(path)
    if not is_table and first_character(path) == "<":
        _, first_line = next(_lines_of_file(path))
        return "queries" if first_line.strip().lower().startswith(b"<top>") else "corpus"
    columns = _columns_of(path)
    if {"query", "positive_passages"} <= columns:
        return "ranking"
    if {"query-id", "corpus-id"} <= columns:
        return "qrels"
    if not {"_id", "text"} <= columns:
        expected = "(query, positive_passages), (_id, text) or (query-id, corpus-id, score)"
        raise InputError(f"has the columns {', '.join(sorted(columns))}; expected {expected}", path=path)
    for name in map(str.lower, names):
        is_corpus = any(word in name for word in _CORPUS_WORDS)
        is_queries = any(word in name for word in _QUERY_WORDS)
        if is_corpus != is_queries:
            return "corpus" if is_corpus else "queries"
    raise InputError("has passages or queries; expected corpus or queries in the file's name", path=path)


def _columns_of(path: Path) -> set[str]:
    """Return the columns of a file under mteb's names, by its first row.

    A file of lines without a row, such as a file with only the header of judgments, counts as a file of judgments.
    Raises :class:`InputError` for a Parquet file without rows.
    """
    first_row = next(_rows(path), None)
    if first_row is not None:
        _, row = first_row
        return {_MTEB_NAMES.get(column, column) for column in row}
    if is_parquet(path):
        raise InputError("is empty", path=path)
    return set(_QRELS_COLUMNS)
