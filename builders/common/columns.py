"""NumPy and Python to Arrow and back, by buffers.

``pyarrow.array()``, ``scalar()`` and ``to_numpy()`` ask pandas first, and load it where it is installed: half a second
in every worker process.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa


def numbers(values: npt.NDArray[np.integer]) -> pa.Array:
    """A column of whole numbers, without a copy."""
    data = pa.py_buffer(np.ascontiguousarray(values))
    return pa.Array.from_buffers(pa.from_numpy_dtype(values.dtype), values.size, [None, data])


def flags(values: Sequence[bool]) -> pa.BooleanArray:
    """A column of true and false."""
    bits = np.packbits(np.array(values, bool), bitorder="little")
    return pa.BooleanArray.from_buffers(pa.bool_(), len(values), [None, pa.py_buffer(bits)])


def values_of(column: pa.Array | pa.ChunkedArray) -> npt.NDArray[Any]:
    """The whole numbers of a column, none missing; without a copy where they lie together."""
    return np.from_dlpack(column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column)


def strings(values: Sequence[str]) -> pa.StringArray:
    """A column of texts: less than 2 GiB in all."""
    joined = "".join(values)
    ends = _ends(values)
    if not joined.isascii():  # how many bytes are before a character
        codes = np.frombuffer(joined.encode("utf-32-le"), np.uint32)
        sizes = (codes >= 0x80).astype(np.int32) + (codes >= 0x800) + (codes >= 0x10000) + 1
        ends = np.concatenate([np.zeros(1, np.int32), np.cumsum(sizes, dtype=np.int32)])[ends]
    return pa.StringArray.from_buffers(len(values), pa.py_buffer(ends), pa.py_buffer(joined.encode()))


def encoded(values: Sequence[bytes]) -> pa.StringArray:
    """As :func:`strings`, of texts in UTF-8."""
    return pa.StringArray.from_buffers(len(values), pa.py_buffer(_ends(values)), pa.py_buffer(b"".join(values)))


def repeated(value: str, count: int) -> pa.StringArray:
    """A column of one text, ``count`` times."""
    data = value.encode()
    ends = np.arange(count + 1, dtype=np.int32) * len(data)
    return pa.StringArray.from_buffers(count, pa.py_buffer(ends), pa.py_buffer(data * count))


def _ends(values: Sequence[str] | Sequence[bytes]) -> npt.NDArray[np.int32]:
    """0, and where each value ends."""
    ends = np.zeros(len(values) + 1, np.int32)
    np.cumsum(np.fromiter(map(len, values), np.int32, len(values)), out=ends[1:])
    return ends
