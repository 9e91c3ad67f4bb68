"""Passage length control (Section 2.2.2) and the identifiers of the official release.

The official passages come out byte for byte: a document's paragraphs are joined, with no separator, until the joined
text has at least 256 characters (code points, not only Chinese ones); what is left at the end is a passage too, even if
shorter. Titles are dropped. A passage is positive if any of its paragraphs is.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain

import numba
import numpy as np
import numpy.typing as npt
import pyarrow as pa

from builders.options import MIN_CHARS
from builders.span_f1 import code_points

# What str.strip() removes; none of it lies above U+3000.
_BLANK = np.array([chr(code).isspace() for code in range(0x3001)])


def text_id(text: str) -> str:
    """The identifier of a passage or a query: lower-case hex MD5 of its UTF-8 text."""
    return hashlib.md5(text.encode("utf-8"), usedforsecurity=False).hexdigest()


def text_ids(data: bytes, ends: npt.NDArray[np.int64]) -> npt.NDArray[np.uint8]:
    """The identifiers of texts, whose UTF-8 stands end to end in ``data``: their MD5, uint8 array ``[texts, 16]``."""
    view, start, found = memoryview(data), 0, []
    for end in ends.tolist():
        found.append(hashlib.md5(view[start:end]).digest())
        start = end
    return np.frombuffer(b"".join(found), np.uint8).reshape(-1, 16)


def hex_ids(ids: pa.ChunkedArray) -> pa.Array:
    """Identifiers of 16 bytes as strings of lower-case hex digits."""
    column = ids.combine_chunks()
    count, data = len(column), np.frombuffer(column.buffers()[1], np.uint8).reshape(-1, 16)
    digits = _HEX[data[column.offset : column.offset + count]]
    return pa.StringArray.from_buffers(
        count, pa.py_buffer(np.arange(count + 1, dtype=np.int32) * 32), pa.py_buffer(digits)
    )


_HEX = np.array([list(f"{byte:02x}".encode()) for byte in range(256)], np.uint8)


@dataclass(frozen=True)
class Passages:
    """The passages of many documents, in order: ``data`` is their UTF-8, end to end.

    Arrays of one length: ``ends`` in ``data``, ``positive`` labels, ``blank`` (whitespace alone), ``row`` (the place of
    the question they belong to).
    """

    data: bytes
    ends: npt.NDArray[np.int64]
    positive: npt.NDArray[np.bool_]
    blank: npt.NDArray[np.bool_]
    row: npt.NDArray[np.int64]

    def texts(self) -> pa.Array:
        """The passages as Arrow strings, without a copy."""
        offsets = np.concatenate([[0], self.ends])
        if len(self.data) < 1 << 31:
            return pa.StringArray.from_buffers(
                len(self.ends), pa.py_buffer(offsets.astype(np.int32)), pa.py_buffer(self.data)
            )
        return pa.LargeStringArray.from_buffers(len(self.ends), pa.py_buffer(offsets), pa.py_buffer(self.data))


@dataclass(frozen=True)
class Paragraphs:
    """The paragraphs of many questions, in order: their ``text`` end to end, as ``codes`` (code points), too.

    ``lengths`` of the paragraphs; ``documents``: the number of paragraphs of each; ``rows``: the number of documents of
    each question.
    """

    text: str
    codes: npt.NDArray[np.int32]
    lengths: npt.NDArray[np.int64]
    documents: npt.NDArray[np.int64]
    rows: npt.NDArray[np.int64]


def paragraphs_of(rows: Sequence[Sequence[Sequence[str]]]) -> Paragraphs:
    """``rows``: for each question its documents, for each document its paragraphs, in order."""
    documents = list(chain.from_iterable(rows))
    paragraphs = list(chain.from_iterable(documents))
    text = "".join(paragraphs)
    lengths, counts, sizes = (
        np.fromiter(map(len, each), np.int64, len(each)) for each in (paragraphs, documents, rows)
    )
    return Paragraphs(text, code_points(text), lengths, counts, sizes)


def cut_passages(paragraphs: Paragraphs, positive: npt.NDArray[np.bool_], min_chars: int = MIN_CHARS) -> Passages:
    """Every document's passages.

    Args:
        positive: a label for each paragraph.
        min_chars: characters from which on a passage is long enough.
    """
    ends, marks, blank, of = _cut(
        paragraphs.codes, paragraphs.lengths, paragraphs.documents, positive, min_chars, _BLANK
    )
    row = np.repeat(np.arange(paragraphs.rows.size), paragraphs.rows)
    return Passages(paragraphs.text.encode("utf-8"), ends, marks, blank, row[of])


@numba.njit(cache=True, nogil=True)
def _cut(codes, lengths, paragraphs, positive, min_chars, is_blank):  # type: ignore[no-untyped-def]
    """Each passage's end in UTF-8 bytes, label, whether it is blank, and its document's number."""
    ends = np.empty(lengths.size, np.int64)
    marks = np.zeros(lengths.size, np.bool_)
    blank = np.ones(lengths.size, np.bool_)
    of = np.empty(lengths.size, np.int64)
    found = place = paragraph = size = 0
    for document in range(paragraphs.size):
        length = 0
        for _ in range(paragraphs[document]):
            text = codes[place : place + lengths[paragraph]]
            for code in text:
                size += 1 + (code > 0x7F) + (code > 0x7FF) + (code > 0xFFFF)
            if blank[found]:  # the first character that shows settles it
                for code in text:
                    if code >= is_blank.size or not is_blank[code]:
                        blank[found] = False
                        break
            place += lengths[paragraph]
            length += lengths[paragraph]
            marks[found] |= positive[paragraph]
            paragraph += 1
            if length >= min_chars:
                ends[found], of[found] = size, document
                found, length = found + 1, 0
        if length:
            ends[found], of[found] = size, document
            found += 1
        elif found < lengths.size:
            marks[found] = False  # paragraphs without a character make no passage
    return ends[:found], marks[:found], blank[:found], of[:found]
