"""The identifiers of the official release: MD5 of texts."""

from __future__ import annotations

import hashlib

import numpy as np
import numpy.typing as npt
import pyarrow as pa


def text_id(text: str) -> str:
    """The identifier of a passage or a query: lower-case hex MD5 of its UTF-8 text."""
    return hashlib.md5(text.encode("utf-8"), usedforsecurity=False).hexdigest()


def text_ids(data: bytes | memoryview, ends: npt.NDArray[np.int64]) -> npt.NDArray[np.uint8]:
    """The identifiers of texts, whose UTF-8 stands end to end in ``data``: their MD5, uint8 array ``[texts, 16]``."""
    view, start, found = memoryview(data), 0, []
    new = hashlib.md5(usedforsecurity=False).copy  # costs less than looking the algorithm up for each text
    for end in ends.tolist():
        digest = new()
        digest.update(view[start:end])
        found.append(digest.digest())
        start = end
    return np.frombuffer(b"".join(found), np.uint8).reshape(-1, 16)


def hex_ids(ids: pa.ChunkedArray) -> pa.Array:
    """Identifiers of 16 bytes as strings of lower-case hex digits."""
    column = ids.combine_chunks()
    data = column.buffers()[1][16 * column.offset : 16 * (column.offset + len(column))]
    ends = np.arange(len(column) + 1, dtype=np.int32) * 32
    return pa.StringArray.from_buffers(len(column), pa.py_buffer(ends), pa.py_buffer(data.to_pybytes().hex().encode()))
