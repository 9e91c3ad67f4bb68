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

from builders.span_f1 import code_points

MIN_CHARS = 256

# What str.strip() removes; none of it lies above U+3000.
_BLANK = np.array([chr(code).isspace() for code in range(0x3001)])


def text_id(text: str) -> str:
    """The identifier of a passage or a query: lower-case hex MD5 of its UTF-8 text."""
    return hashlib.md5(text.encode("utf-8"), usedforsecurity=False).hexdigest()


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


def cut_passages(
    rows: Sequence[Sequence[Sequence[str]]], positive: npt.NDArray[np.bool_], min_chars: int = MIN_CHARS
) -> Passages:
    """Every document's passages.

    Args:
        rows: for each question its documents, for each document its paragraphs, in order.
        positive: a label for each paragraph, over all documents.
        min_chars: characters from which on a passage is long enough.
    """
    documents = list(chain.from_iterable(rows))
    text = "".join(chain.from_iterable(documents))
    lengths = np.fromiter(map(len, chain.from_iterable(documents)), np.int64)
    ends, marks, blank, of = _cut(
        code_points(text), lengths, np.fromiter(map(len, documents), np.int64), positive, min_chars, _BLANK
    )
    row = np.repeat(np.arange(len(rows)), np.fromiter(map(len, rows), np.int64, len(rows)))
    return Passages(text.encode("utf-8"), ends, marks, blank, row[of])


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
            for code in codes[place : place + lengths[paragraph]]:
                size += 1 + (code > 0x7F) + (code > 0x7FF) + (code > 0xFFFF)
                if code >= is_blank.size or not is_blank[code]:
                    blank[found] = False
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
