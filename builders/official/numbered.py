"""Tables that give distinct ids and texts the numbers 0, 1, 2 ... in the order of first occurrence.

An id takes 40 to 80 bytes of memory. A text takes 8 bytes more, and its characters are stored in a file.

The table is a hash table with open addressing and linear probing (Knuth, The Art of Computer Programming, volume 3,
section 6.4). Ids are hashes already, so the lowest bits of an id are its slot. If the slot has another id, the next
slots are tried. At least half of the slots stay empty, so few slots are tried. An example with 8 slots, in which the
ids A and B have the lowest bits 010, and C has 011::

    slot      0   1   2   3   4   5   6   7
    id        -   -   A   B   C   -   -   -     B and C found their slot used, and took the next empty slot
    number   -1  -1   0   1   2  -1  -1  -1     -1 marks an empty slot
"""

from typing import Any, BinaryIO

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from builders.core.jobs import compiled

_FIRST_SIZE = 1 << 12  # slots of a new table
_HEX_DIGITS = 32  # hex digits of an id
Keys = npt.NDArray[np.uint64]
Numbers = npt.NDArray[np.int32]
Flags = npt.NDArray[np.bool_]


def as_keys(digests: bytes | npt.NDArray[Any]) -> Keys:
    """Return concatenated ids of 16 bytes as an array of shape (n, 2): two numbers of 8 bytes for each id."""
    return np.frombuffer(digests, np.uint64).reshape(-1, 2)


def hex_ids(keys: Keys) -> list[str]:
    """Return the lower-case hex form of every id."""
    digits = keys.tobytes().hex()
    return [digits[start : start + _HEX_DIGITS] for start in range(0, len(digits), _HEX_DIGITS)]


@compiled
def _number_keys(slot_keys, slot_numbers, keys, count, add, key_numbers, is_new):  # type: ignore[no-untyped-def]
    """Look up keys in the hash table, and insert new keys if ``add`` is True. The top of this file has a drawing.

    ``slot_keys`` and ``slot_numbers`` are the table. ``key_numbers`` and ``is_new`` are filled with the number of each
    key (-1: unknown), and True for each new key. ``count`` is the number of keys in the table. Returns the new count.
    """
    mask = np.uint64(slot_numbers.size - 1)  # the size is a power of two
    for row in range(keys.shape[0]):
        slot = keys[row, 0] & mask
        while slot_numbers[slot] >= 0 and (slot_keys[slot, 0] != keys[row, 0] or slot_keys[slot, 1] != keys[row, 1]):
            slot = (slot + np.uint64(1)) & mask
        is_new[row] = slot_numbers[slot] < 0
        if is_new[row] and add:
            slot_keys[slot, 0] = keys[row, 0]
            slot_keys[slot, 1] = keys[row, 1]
            slot_numbers[slot] = count
            count += 1
        key_numbers[row] = slot_numbers[slot]
    return count


class NumberedIds:
    """Hash table that maps distinct ids, of 16 bytes each, to their numbers."""

    def __init__(self) -> None:
        self._resize(_FIRST_SIZE)

    def _resize(self, size: int) -> None:
        """Replace the table by an empty table with ``size`` slots, a power of two. The ids are lost."""
        self.count = 0
        self._slot_keys = np.zeros((size, 2), np.uint64)
        self._slot_numbers = np.full(size, -1, np.int32)

    def add(self, keys: Keys) -> tuple[Numbers, Flags]:
        """Add the ids that are not in the table. Return every id's number, and True for each new id; both (n,)."""
        smallest_size = 2 * (self.count + len(keys))  # so that half of the slots stay empty
        if smallest_size > self._slot_numbers.size:
            # Added again in the order of their numbers, the ids keep their numbers.
            earlier_keys = self.keys()
            self._resize(1 << smallest_size.bit_length())
            self._look_up(earlier_keys, add=True)
        return self._look_up(keys, add=True)

    def find(self, keys: Keys) -> Numbers:
        """Return every id's number, or -1 for an unknown id; shape (n,)."""
        numbers, _ = self._look_up(keys, add=False)
        return numbers

    def _look_up(self, keys: Keys, add: bool) -> tuple[Numbers, Flags]:
        """Return every id's number (-1: unknown), and True for each id that was unknown. ``add`` adds unknown ids."""
        numbers = np.empty(len(keys), np.int32)
        is_new = np.empty(len(keys), np.bool_)
        self.count = _number_keys(self._slot_keys, self._slot_numbers, keys, self.count, add, numbers, is_new)
        return numbers, is_new

    def keys(self) -> Keys:
        """Return all ids in the order of their numbers; shape (count, 2)."""
        is_used = self._slot_numbers >= 0
        order = np.argsort(self._slot_numbers[is_used])
        return self._slot_keys[is_used][order]


class IdMap:
    """Map from ids to ids, of 16 bytes each. A key keeps its first value."""

    def __init__(self) -> None:
        self._keys = NumberedIds()
        # The value of key n is in row n + 1. Row 0 is read for unknown keys, whose number is -1.
        self._values = np.zeros((1, 2), np.uint64)

    def add(self, keys: Keys, values: Keys) -> None:
        """Add values for new keys."""
        _, is_new = self._keys.add(keys)
        self._values = np.concatenate([self._values, values[is_new]])

    def get(self, keys: Keys, otherwise: Keys) -> Keys:
        """Return the value of every key, or its row of ``otherwise`` if the key is unknown; all of shape (n, 2)."""
        numbers = self._keys.find(keys)
        return np.where(numbers[:, None] >= 0, self._values[numbers + 1], otherwise)


class NumberedTexts:
    """Distinct texts, compared by MD5. Their characters are in ``file``, which is open for reading and writing."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self._digests = NumberedIds()
        # 0, then the end of each text in the file, in parts.
        self._ends: list[npt.NDArray[np.int64]] = [np.zeros(1, np.int64)]

    def add(self, texts: pa.StringArray, digests: Keys) -> Numbers:
        """Add the texts with a new MD5. Return every text's number; shape (n,). ``digests`` are the texts' MD5s."""
        numbers, is_new = self._digests.add(digests)
        if is_new.any():
            new_texts = texts.filter(pa.array(is_new))
            sizes = pc.binary_length(new_texts).to_numpy()
            last_end = self._ends[-1][-1]
            self._ends.append(last_end + np.cumsum(sizes, dtype=np.int64))
            # Texts are added before the first call of get(), so the file's position is its end.
            self._file.write("".join(new_texts.to_pylist()).encode())
        return numbers

    def digests(self) -> Keys:
        """Return the MD5 of every text, by number; shape (n, 2)."""
        return self._digests.keys()

    def get(self, numbers: npt.NDArray[Any]) -> list[str]:
        """Return the texts with these numbers."""
        if len(self._ends) > 1:  # joined once, after the last text is added
            self._ends = [np.concatenate(self._ends)]
        (ends,) = self._ends
        texts: list[str] = []
        for start, stop in zip(ends[numbers].tolist(), ends[numbers + 1].tolist(), strict=True):
            self._file.seek(start)
            texts.append(self._file.read(stop - start).decode())
        return texts
