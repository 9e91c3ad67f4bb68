"""Passage length control (Section 2.2.2): join paragraphs until a passage has 256 characters.

Titles are dropped. All 22 official passages with available raw documents are reproduced exactly (docs/rebuild.md).
"""

from __future__ import annotations

from collections.abc import Sequence
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
class Passages:
    """The passages of many documents, in order. Every array has one entry for each passage."""

    texts: pa.StringArray
    ids: pa.StringArray
    chars: Ints  # code points
    positive: Flags
    document: Ints  # number of the passage's document

    def keep(self, which: Flags) -> Passages:
        """Return the passages whose flag is set."""
        texts, ids = (column.filter(pa.array(which)) for column in (self.texts, self.ids))
        return Passages(texts, ids, self.chars[which], self.positive[which], self.document[which])

    def blank(self) -> Flags:
        """Return True for each passage of only white space. The official collection has no blank passages."""
        return np.asarray(pc.utf8_is_space(self.texts).to_numpy(zero_copy_only=False), np.bool_)


def cut_passages(documents: Sequence[Sequence[str]], positive: Flags, min_chars: int = MIN_CHARS) -> Passages:
    """Cut documents, which are lists of paragraphs, into passages. ``positive`` has a label for each paragraph."""
    paragraphs = list(chain.from_iterable(documents))
    encoded = [paragraph.encode() for paragraph in paragraphs]
    chars, sizes, counts = (np.fromiter(map(len, each), np.int64) for each in (paragraphs, encoded, documents))
    document, lengths, labels, ends = join_paragraphs(chars, sizes, counts, positive, min_chars)
    # Joining paragraphs changes no byte, so the passages are consecutive slices of the UTF-8 of all paragraphs.
    text = memoryview(b"".join(encoded))
    offsets = [0, *ends.tolist()]
    ids = [text_id(text[start:end]) for start, end in pairwise(offsets)]
    texts = pa.StringArray.from_buffers(len(ids), pa.py_buffer(np.array(offsets, np.int32)), pa.py_buffer(text))
    return Passages(texts, pa.array(ids, pa.string()), lengths, labels, document)


@compiled
def join_paragraphs(chars, sizes, counts, positive, min_chars):  # type: ignore[no-untyped-def]
    """Return each passage's document, characters, label, and end in the bytes of all paragraphs (Section 2.2.2).

    A document's paragraphs are joined without a separator until the text has at least ``min_chars`` characters. Every
    code point counts, not only Chinese characters. The last paragraphs of a document become a passage even if they are
    shorter, but not if they are all empty. A passage is positive if any of its paragraphs is positive.
    """
    documents, lengths, ends = np.empty((3, chars.size), np.int64)
    labels = np.empty(chars.size, np.bool_)
    passages = paragraph = end = 0
    for document, count in enumerate(counts):
        length, label = 0, False
        for nth in range(count):
            length += chars[paragraph]
            end += sizes[paragraph]
            label |= positive[paragraph]
            paragraph += 1
            if length >= min_chars or (nth == count - 1 and length > 0):
                documents[passages], lengths[passages], labels[passages], ends[passages] = document, length, label, end
                passages, length, label = passages + 1, 0, False
    return documents[:passages], lengths[:passages], labels[:passages], ends[:passages]
