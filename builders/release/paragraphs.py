"""Passage length control (Section 2.2.2): join paragraphs until a passage has 256 characters.

Titles are dropped. All 22 official passages with available raw documents are reproduced exactly (docs/rebuild.md).

An example with ``min_chars = 5``, where each letter is a character and ``+`` marks a positive paragraph::

    document 0: "aaa" "bbb"+ "cc"    ->  "aaabbb"+  "cc"
    document 1: "dddddd" "" "ee"     ->  "dddddd"   "ee"

Joining keeps all bytes in their order. The passages are therefore slices of the UTF-8 bytes of all paragraphs, and
:func:`join_paragraphs`, a loop over all paragraphs that numba compiles, only computes where each slice ends. For the
example, it returns::

    document  0  0  1  1
    length    6  2  6  2     characters
    label     1  0  0  0
    end       6  8 14 16     bytes from the start of the first paragraph
"""

from __future__ import annotations

from collections.abc import Sequence, Sized
from dataclasses import dataclass
from itertools import chain, pairwise

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from builders.core.jobs import compiled
from builders.store.layout import text_id
from builders.text.span_options import MIN_CHARS

Ints = npt.NDArray[np.int64]
Flags = npt.NDArray[np.bool_]


@dataclass(frozen=True)
class JoinedPassages:
    """The passages of many documents, in order. Every array has one entry for each passage."""

    texts: pa.StringArray
    ids: pa.StringArray
    chars: Ints  # code points
    positive: Flags
    document: Ints  # number of the passage's document

    def keep(self, flags: Flags) -> JoinedPassages:
        """Return the passages whose flag is set."""
        arrow_flags = pa.array(flags)
        return JoinedPassages(
            texts=self.texts.filter(arrow_flags),
            ids=self.ids.filter(arrow_flags),
            chars=self.chars[flags],
            positive=self.positive[flags],
            document=self.document[flags],
        )

    def blank(self) -> Flags:
        """Return True for each passage of only white space. The official collection has no blank passages."""
        return np.asarray(pc.utf8_is_space(self.texts).to_numpy(zero_copy_only=False), np.bool_)


def cut_passages(documents: Sequence[Sequence[str]], labels: Flags, min_chars: int = MIN_CHARS) -> JoinedPassages:
    """Cut documents, which are lists of paragraphs, into passages. ``labels`` has a label for each paragraph."""
    paragraphs = list(chain.from_iterable(documents))
    encoded_paragraphs = [paragraph.encode() for paragraph in paragraphs]
    document_numbers, lengths, passage_labels, passage_ends = join_paragraphs(
        _lengths_of(paragraphs),
        _lengths_of(encoded_paragraphs),
        _lengths_of(documents),
        labels,
        min_chars,
    )
    # Joining paragraphs changes no byte, so the passages are consecutive slices of the UTF-8 of all paragraphs.
    all_bytes = memoryview(b"".join(encoded_paragraphs))
    offsets = [0, *passage_ends.tolist()]
    ids = [text_id(all_bytes[start:end]) for start, end in pairwise(offsets)]
    arrow_offsets = pa.py_buffer(np.array(offsets, np.int32))
    return JoinedPassages(
        texts=pa.StringArray.from_buffers(len(ids), arrow_offsets, pa.py_buffer(all_bytes)),
        ids=pa.array(ids, pa.string()),
        chars=lengths,
        positive=passage_labels,
        document=document_numbers,
    )


def _lengths_of(sequences: Sequence[Sized]) -> Ints:
    return np.fromiter(map(len, sequences), np.int64)


@compiled
def join_paragraphs(char_counts, byte_counts, paragraph_counts, labels, min_chars):  # type: ignore[no-untyped-def]
    """Return each passage's document, characters, label, and end in the bytes of all paragraphs (Section 2.2.2).

    A document's paragraphs are joined without a separator until the text has at least ``min_chars`` characters. Every
    code point counts, not only Chinese characters. The last paragraphs of a document become a passage even if they are
    shorter, but not if they are all empty. A passage is positive if any of its paragraphs is positive.

    ``char_counts``, ``byte_counts`` and ``labels`` have a value for each paragraph, and ``paragraph_counts`` has a
    value for each document.
    """
    # A passage has at least one paragraph, so there are at most as many passages as paragraphs.
    documents, lengths, ends = np.empty((3, char_counts.size), np.int64)
    passage_labels = np.empty(char_counts.size, np.bool_)
    passage = paragraph = byte_end = 0
    for document, paragraph_count in enumerate(paragraph_counts):
        length = 0
        label = False
        for position in range(paragraph_count):
            length += char_counts[paragraph]
            byte_end += byte_counts[paragraph]
            label |= labels[paragraph]
            paragraph += 1
            is_last = position == paragraph_count - 1
            # Empty last paragraphs have no bytes, so the next passage still begins at the end of the last passage.
            if length >= min_chars or (is_last and length > 0):
                documents[passage] = document
                lengths[passage] = length
                passage_labels[passage] = label
                ends[passage] = byte_end
                passage += 1
                length = 0
                label = False
    return documents[:passage], lengths[:passage], passage_labels[:passage], ends[:passage]
