"""Forms of stored embeddings: 16-bit floats, 8-bit integers and single bits. This module does not import PyTorch.

The codes are those of ``sentence_transformers.quantize_embeddings``, so its documentation and tools apply:

- int8: each dimension has a range, which is divided into 255 steps. A 256th step begins at the end of the range. A code
  is the number of a step, from 0, minus 128. Numbers outside of the range get the first or the last step.
  (``precision="int8"``)
- binary: a bit is 1 where the number is positive. Eight dimensions make a byte, the first in the highest bit.
  (``precision="ubinary"``)

:meth:`VectorStore.unpack` converts codes back to 16-bit floats: a step becomes its middle, a bit becomes 1 or -1. All
scores are inner products of these floats. For example, with the range -1 to 1.55 of a dimension, a step is 0.01 wide:

    ========  ======  ========  =====  ========
    number    code    unpacked  bit    unpacked
    ========  ======  ========  =====  ========
    -1.2      -128    -0.995    0      -1
    0.003     -28     0.005     1      1
    ========  ======  ========  =====  ========

sentence-transformers unpacks a code to the lower end of the step. The middle halves the largest error. The order of the
passages is the same, because the difference adds the same number to all scores of a query.
"""

import abc
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from baselines.retrieve.exact_search import largest_norm
from baselines.retrieve.search_engines import Floats, Vectors
from builders.core.errors import InputError

FLOAT16, INT8, BINARY = STORE_NAMES = ("float16", "int8", "binary")
Codes = npt.NDArray[Any]
Halves = npt.NDArray[np.float16]
_STEPS = 256
_LOWEST_CODE = -128
_ROWS_PER_STEP = 1 << 14  # rows converted at a time: 50 MB in 32 bits at 768 dimensions


@dataclass(frozen=True)
class VectorStore(abc.ABC):
    """A form of stored embeddings. ``dim`` is the number of dimensions of an embedding."""

    dim: int
    name: ClassVar[str]
    code_type: ClassVar[npt.DTypeLike]

    @property
    def columns(self) -> int:
        """Number of columns of the stored array."""
        return self.dim

    @abc.abstractmethod
    def pack(self, vectors: Halves) -> Codes:
        """Convert embeddings, shape (texts, dimensions), to the stored array."""

    @abc.abstractmethod
    def unpack(self, codes: Codes) -> Halves:
        """Convert rows of the stored array to 16-bit floats, shape (rows, dimensions)."""

    def largest_norm(self, codes: Codes) -> float:
        """Return the largest Euclidean norm of an unpacked row."""
        norms = []
        for start in range(0, len(codes), _ROWS_PER_STEP):
            norms.append(largest_norm(self.unpack(codes[start : start + _ROWS_PER_STEP])))
        return max(norms, default=0.0)

    def describe_wrong_array(self, codes: Codes) -> str:
        """Describe why an array has not the form of this store. Return "" if it has."""
        if codes.dtype == self.code_type and codes.shape[1:] == (self.columns,):
            return ""
        expected = f"{np.dtype(self.code_type)} with {self.columns} columns"
        return f"is an array of {codes.dtype} with the shape {codes.shape}; expected {expected}"


class Float16Store(VectorStore):
    """Embeddings as they are encoded: 16-bit floats, 2 bytes for each dimension."""

    name = FLOAT16
    code_type = np.float16

    def pack(self, vectors: Halves) -> Codes:
        return vectors

    def unpack(self, codes: Codes) -> Halves:
        return codes


@dataclass(frozen=True)
class Int8Store(VectorStore):
    """8-bit integers, 1 byte for each dimension. ``ranges`` has the lowest and highest numbers, shape (2, dim)."""

    ranges: Floats
    name = INT8
    code_type = np.int8

    @property
    def _step_widths(self) -> Floats:
        """Width of a step of each dimension, or 0 for a dimension with a single number.

        The lowest number begins the first step, and the highest number the last, so 255 widths make the range.
        """
        widths: Floats = (self.ranges[1] - self.ranges[0]) / np.float32(_STEPS - 1)
        return widths

    def pack(self, vectors: Halves) -> Codes:
        widths = self._step_widths
        divisors = np.where(widths == 0, np.float32(1), widths)
        codes = np.empty(vectors.shape, np.int8)
        for start in range(0, len(vectors), _ROWS_PER_STEP):
            step = slice(start, start + _ROWS_PER_STEP)
            step_numbers = np.floor((vectors[step] - self.ranges[0]) / divisors)
            codes[step] = np.clip(step_numbers, 0, _STEPS - 1) + _LOWEST_CODE
        return codes

    def unpack(self, codes: Codes) -> Halves:
        # The middle of each step, in steps from the lowest number.
        middles = codes.astype(np.float32) + np.float32(0.5 - _LOWEST_CODE)
        vectors: Halves = (middles * self._step_widths + self.ranges[0]).astype(np.float16)
        return vectors


class BinaryStore(VectorStore):
    """Signs of numbers, 1 bit for each dimension."""

    name = BINARY
    code_type = np.uint8

    @property
    def columns(self) -> int:
        return -(-self.dim // 8)

    def pack(self, vectors: Halves) -> Codes:
        return np.packbits(vectors > 0, axis=1)

    def unpack(self, codes: Codes) -> Halves:
        bits = np.unpackbits(codes, axis=1, count=self.dim)
        signs: Halves = bits.astype(np.float16) * np.float16(2) - np.float16(1)
        return signs


def measure_ranges(sample_vectors: Vectors) -> Floats:
    """Return the lowest and the highest number of each dimension, shape (2, dimensions)."""
    return np.vstack([sample_vectors.min(axis=0), sample_vectors.max(axis=0)]).astype(np.float32)


def open_store(name: str, dim: int, ranges: Floats | None = None) -> VectorStore:
    """Return a store by its name. Raises :class:`InputError` if int8 lacks valid ranges."""
    if name == FLOAT16:
        return Float16Store(dim)
    if name == BINARY:
        return BinaryStore(dim)
    is_valid = ranges is not None and ranges.shape == (2, dim) and ranges.dtype == np.float32
    if ranges is None or not is_valid or not np.isfinite(ranges).all() or (ranges[0] > ranges[1]).any():
        raise InputError(f"the ranges of int8 embeddings are damaged: expected two rows of {dim} finite 32-bit numbers")
    return Int8Store(dim, ranges)


def sample_positions(row_count: int, sample_rows: int) -> npt.NDArray[np.int64]:
    """Return ``sample_rows`` positions from 0 to ``row_count`` - 1 in equal distances, or all positions if fewer.

    The positions depend only on the two numbers, so every call draws the same sample.
    """
    if row_count <= sample_rows:
        return np.arange(row_count)
    return np.arange(sample_rows) * row_count // sample_rows
