"""Passage length control (Section 2.2.2).

The official passages come out byte for byte: a document's paragraphs are joined, with no separator, until the joined
text has at least 256 characters (code points, not only Chinese ones); what is left at the end is a passage too, even if
shorter. Titles are dropped. A passage is positive if any of its paragraphs is.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

import numba
import numpy as np
import numpy.typing as npt
import pyarrow as pa

from builders.release.json_texts import Texts, read_lists
from builders.release.options import MIN_CHARS
from builders.release.span_f1 import code_points

# What str.strip() removes; none of it lies above U+3000.
_BLANK = np.array([chr(code).isspace() for code in range(0x3001)])


@dataclass(frozen=True)
class Passages:
    """The passages of many documents, in order: ``data`` is their UTF-8, end to end.

    Arrays of one length: ``ends`` in ``data``, ``positive`` labels, ``blank`` (whitespace alone), ``row`` (the place of
    the question they belong to).
    """

    data: npt.NDArray[np.uint8]
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
class Paragraphs(Texts):
    """The paragraphs of many questions, in order, a list for each document; ``rows``: each question's documents."""

    rows: npt.NDArray[np.int64]


def paragraphs_of(rows: Sequence[Sequence[Sequence[str]]]) -> Paragraphs:
    """``rows``: for each question its documents, for each document its paragraphs, in order."""
    documents = list(chain.from_iterable(rows))
    paragraphs = list(chain.from_iterable(documents))
    encoded = [paragraph.encode() for paragraph in paragraphs]
    sizes, lengths, counts = (np.fromiter(map(len, each), np.int64) for each in (encoded, paragraphs, documents))
    data = np.frombuffer(b"".join(encoded), np.uint8)
    return Paragraphs(data, code_points("".join(paragraphs)), sizes, lengths, counts, _sizes(rows))


def paragraphs_in(rows: Sequence[Sequence[Any]]) -> Paragraphs:
    """As :func:`paragraphs_of`, of documents that are JSON lists of strings; raises as :func:`read_lists` does."""
    texts = read_lists(list(chain.from_iterable(rows)))
    return Paragraphs(texts.data, texts.codes, texts.sizes, texts.lengths, texts.counts, _sizes(rows))


def _sizes(lists: Sequence[Sequence[Any]]) -> npt.NDArray[np.int64]:
    return np.fromiter(map(len, lists), np.int64, len(lists))


def cut_passages(paragraphs: Paragraphs, positive: npt.NDArray[np.bool_], min_chars: int = MIN_CHARS) -> Passages:
    """Every document's passages.

    Args:
        positive: a label for each paragraph.
        min_chars: characters from which on a passage is long enough.
    """
    ends, marks, blank, of = _cut(
        paragraphs.codes, paragraphs.sizes, paragraphs.lengths, paragraphs.counts, positive, min_chars, _BLANK
    )
    row = np.repeat(np.arange(paragraphs.rows.size), paragraphs.rows)
    return Passages(paragraphs.data, ends, marks, blank, row[of])


@numba.njit(cache=True, nogil=True)
def _cut(codes, sizes, lengths, counts, positive, min_chars, is_blank):  # type: ignore[no-untyped-def]
    """Each passage's end in UTF-8 bytes, label, whether it is blank, and its document's number."""
    ends = np.empty(lengths.size, np.int64)
    marks = np.zeros(lengths.size, np.bool_)
    blank = np.ones(lengths.size, np.bool_)
    of = np.empty(lengths.size, np.int64)
    found = place = paragraph = size = 0
    for document in range(counts.size):
        length = 0
        for _ in range(counts[document]):
            if blank[found]:  # the first character that shows settles it
                for code in codes[place : place + lengths[paragraph]]:
                    if code >= is_blank.size or not is_blank[code]:
                        blank[found] = False
                        break
            size += sizes[paragraph]
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
