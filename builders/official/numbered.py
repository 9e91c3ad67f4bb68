"""Tables that give distinct ids and texts the numbers 0, 1, 2 ... in the order of first occurrence.

An id takes 40 to 80 bytes of memory. A text takes 8 bytes more, and its characters are stored in a file.
"""

from typing import Any, BinaryIO

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from builders.core.jobs import compiled

Keys = npt.NDArray[np.uint64]
Numbers = npt.NDArray[np.int32]
Flags = npt.NDArray[np.bool_]


def as_keys(digests: bytes | npt.NDArray[Any]) -> Keys:
    """Return concatenated ids of 16 bytes as an array of shape (n, 2)."""
    return np.frombuffer(digests, np.uint64).reshape(-1, 2)


def hex_ids(keys: Keys) -> list[str]:
    """Return the lower-case hex form of every id."""
    text = keys.tobytes().hex()
    return [text[start : start + 32] for start in range(0, len(text), 32)]


@compiled
def _number(slots, numbers, keys, count, add, found, fresh):  # type: ignore[no-untyped-def]
    """Look up keys in the hash table, and insert new keys if ``add`` is True. Half of the slots or more are empty."""
    mask = np.uint64(numbers.size - 1)
    for i in range(keys.shape[0]):
        slot = keys[i, 0] & mask
        while numbers[slot] >= 0 and (slots[slot, 0] != keys[i, 0] or slots[slot, 1] != keys[i, 1]):
            slot = (slot + np.uint64(1)) & mask
        fresh[i] = numbers[slot] < 0
        if fresh[i] and add:
            slots[slot, 0], slots[slot, 1] = keys[i, 0], keys[i, 1]
            numbers[slot] = count
            count += 1
        found[i] = numbers[slot]
    return count


class NumberedIds:
    """Hash table that maps distinct ids, of 16 bytes each, to their numbers."""

    def __init__(self) -> None:
        self._resize(1 << 12)

    def _resize(self, size: int) -> None:
        self.count = 0
        self._slots = np.zeros((size, 2), np.uint64)
        self._numbers = np.full(size, -1, np.int32)

    def add(self, keys: Keys) -> tuple[Numbers, Flags]:
        """Add ids. Return every id's number, and True for each new id; both of shape (n,)."""
        if 2 * (self.count + len(keys)) > self._numbers.size:
            before = self.keys()
            self._resize(1 << (2 * (self.count + len(keys))).bit_length())
            self._look_up(before, True)
        return self._look_up(keys, True)

    def find(self, keys: Keys) -> Numbers:
        """Return every id's number, or -1 for an unknown id; shape (n,)."""
        return self._look_up(keys, False)[0]

    def _look_up(self, keys: Keys, add: bool) -> tuple[Numbers, Flags]:
        found, fresh = np.empty(len(keys), np.int32), np.empty(len(keys), np.bool_)
        self.count = _number(self._slots, self._numbers, keys, self.count, add, found, fresh)
        return found, fresh

    def keys(self) -> Keys:
        """Return all ids in the order of their numbers; shape (count, 2)."""
        used = self._numbers >= 0
        return self._slots[used][np.argsort(self._numbers[used])]


class IdMap:
    """Map from ids to ids, of 16 bytes each. A key keeps its first value."""

    def __init__(self) -> None:
        self._keys, self._values = NumberedIds(), np.zeros((1, 2), np.uint64)  # row 0 is used for unknown keys

    def add(self, keys: Keys, values: Keys) -> None:
        """Add values for new keys."""
        fresh = self._keys.add(keys)[1]
        self._values = np.concatenate([self._values, values[fresh]])

    def get(self, keys: Keys, otherwise: Keys) -> Keys:
        """Return the value of every key, or its row of ``otherwise`` if the key is unknown; all of shape (n, 2)."""
        found = self._keys.find(keys)
        return np.where(found[:, None] >= 0, self._values[found + 1], otherwise)


class NumberedTexts:
    """Distinct texts, compared by MD5. Their characters are in ``file``, which is open for reading and writing."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self._digests = NumberedIds()
        self._ends: list[npt.NDArray[np.int64]] = [np.zeros(1, np.int64)]

    def add(self, texts: pa.StringArray, digests: Keys) -> Numbers:
        """Add the texts with a new MD5. Return every text's number; shape (n,)."""
        numbers, fresh = self._digests.add(digests)
        if fresh.any():
            new = texts.filter(pa.array(fresh))
            self._ends.append(self._ends[-1][-1] + np.cumsum(pc.binary_length(new).to_numpy(), dtype=np.int64))
            self._file.write("".join(new.to_pylist()).encode())
        return numbers

    def digests(self) -> Keys:
        """Return the MD5 of every text, by number; shape (n, 2)."""
        return self._digests.keys()

    def get(self, numbers: npt.NDArray[Any]) -> list[str]:
        """Return the texts with these numbers."""
        if len(self._ends) > 1:
            self._ends = [np.concatenate(self._ends)]
        starts, stops = self._ends[0][numbers].tolist(), self._ends[0][numbers + 1].tolist()
        texts = []
        for start, stop in zip(starts, stops, strict=True):
            self._file.seek(start)
            texts.append(self._file.read(stop - start).decode())
        return texts
