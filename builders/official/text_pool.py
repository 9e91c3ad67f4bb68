"""Which of millions of keys were seen, and a pool of distinct texts on disk.

A table costs at most 40 bytes of memory a key, a pool 36 more a text; the texts themselves lie in a file.
"""

from __future__ import annotations

import mmap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numba
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

Keys = npt.NDArray[np.uint64]
Numbers = npt.NDArray[np.int32]


def as_keys(digests: bytes | npt.NDArray[Any]) -> Keys:
    """16-byte digests, one after the other, as an array of shape (n, 2)."""
    return np.frombuffer(digests, np.uint64).reshape(-1, 2)


def hex_ids(keys: Keys) -> list[str]:
    """The lower-case hex form of every key."""
    text = keys.tobytes().hex()
    return [text[start : start + 32] for start in range(0, len(text), 32)]


@numba.njit(cache=True, nogil=True)
def _insert(slots, values, keys, count, numbers, fresh):  # type: ignore[no-untyped-def]
    mask = np.uint64(values.size - 1)
    for i in range(keys.shape[0]):
        slot = keys[i, 0] & mask
        while values[slot] >= 0 and (slots[slot, 0] != keys[i, 0] or slots[slot, 1] != keys[i, 1]):
            slot = (slot + np.uint64(1)) & mask
        fresh[i] = values[slot] < 0
        if fresh[i]:
            slots[slot, 0], slots[slot, 1] = keys[i, 0], keys[i, 1]
            values[slot] = count
            count += 1
        numbers[i] = values[slot]
    return count


@numba.njit(cache=True, nogil=True)
def _find(slots, values, keys, numbers):  # type: ignore[no-untyped-def]
    mask = np.uint64(values.size - 1)
    for i in range(keys.shape[0]):
        slot = keys[i, 0] & mask
        while values[slot] >= 0 and (slots[slot, 0] != keys[i, 0] or slots[slot, 1] != keys[i, 1]):
            slot = (slot + np.uint64(1)) & mask
        numbers[i] = values[slot]


class KeyTable:
    """Numbers distinct 16-byte keys from 0 in the order in which they come."""

    def __init__(self) -> None:
        self._resize(1 << 12)
        self.count = 0

    def _resize(self, size: int) -> None:
        self._slots = np.zeros((size, 2), np.uint64)
        self._values = np.full(size, -1, np.int32)

    def add(self, keys: Keys) -> tuple[Numbers, npt.NDArray[np.bool_]]:
        """Every key's number, and whether it is new here; both of shape (n,)."""
        if 2 * (self.count + len(keys)) > self._values.size:
            old, used = self._slots, self._values >= 0
            numbers, kept = self._values[used], old[used]
            self._resize(1 << (2 * (self.count + len(keys))).bit_length())
            order = np.argsort(numbers)
            _insert(
                self._slots, self._values, kept[order], 0, np.empty(len(order), np.int32), np.empty(len(order), "?")
            )
        found, fresh = np.empty(len(keys), np.int32), np.empty(len(keys), np.bool_)
        self.count = _insert(self._slots, self._values, keys, self.count, found, fresh)
        return found, fresh

    def find(self, keys: Keys) -> Numbers:
        """Every key's number, -1 for one that was never added; shape (n,)."""
        numbers = np.empty(len(keys), np.int32)
        _find(self._slots, self._values, keys, numbers)
        return numbers

    def keys(self) -> Keys:
        """All keys in the order of their numbers; shape (count, 2)."""
        used = self._values >= 0
        return self._slots[used][np.argsort(self._values[used])]


class TextPool:
    """Distinct texts, numbered from 0 in the order in which they come; they lie in the file ``path``."""

    def __init__(self, path: Path) -> None:
        self._file = open(path, "wb+")  # noqa: SIM115 - lives as long as the pool
        self._table = KeyTable()
        self._ends: list[npt.NDArray[np.int64]] = [np.zeros(1, np.int64)]
        self._chars: list[npt.NDArray[np.int32]] = []
        self._map: mmap.mmap | None = None

    def close(self) -> None:
        if self._map is not None:
            self._map.close()
        self._file.close()

    def __len__(self) -> int:
        return self._table.count

    def add(self, texts: pa.StringArray, keys: Keys) -> Numbers:
        """Add the texts whose keys (their MD5) are new; returns every text's number, shape (n,)."""
        numbers, fresh = self._table.add(keys)
        if fresh.any():
            new = texts.filter(pa.array(fresh))
            start = self._ends[-1][-1]
            self._ends.append(start + np.cumsum(pc.binary_length(new).to_numpy(), dtype=np.int64))
            self._chars.append(pc.utf8_length(new).to_numpy())
            offsets = np.frombuffer(new.buffers()[1], np.int32, len(new) + 1, new.offset * 4)
            if offsets[-1] > offsets[0]:
                self._file.write(memoryview(new.buffers()[2])[offsets[0] : offsets[-1]])
            self._map = None
        return numbers

    def find(self, keys: Keys) -> Numbers:
        return self._table.find(keys)

    def keys(self) -> Keys:
        return self._table.keys()

    def lengths(self) -> npt.NDArray[np.int32]:
        """Characters of every text, by number."""
        self._chars = [np.concatenate([np.zeros(0, np.int32), *self._chars])]
        return self._chars[0]

    def get(self, numbers: npt.NDArray[Any]) -> list[str]:
        """The texts of these numbers."""
        self._ends = [np.concatenate(self._ends)]
        ends = self._ends[0]
        if self._map is None and ends[-1]:
            self._file.flush()
            self._map = mmap.mmap(self._file.fileno(), 0, access=mmap.ACCESS_READ)
        view = self._map or b""
        starts, stops = ends[numbers].tolist(), ends[np.asarray(numbers) + 1].tolist()
        return [view[start:stop].decode() for start, stop in zip(starts, stops, strict=True)]

    def batches(self, numbers: npt.NDArray[Any], size: int = 4_096) -> Iterator[list[str]]:
        for start in range(0, len(numbers), size):
            yield self.get(numbers[start : start + size])
