"""Distinct ids and distinct texts, numbered from 0 in the order in which they come: of millions, in little memory.

An id costs at most 40 bytes of memory, a text 36 more; the texts themselves lie in a file.
"""

from __future__ import annotations

import mmap
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from builders.core.compiled import compiled
from builders.official.findings import Findings

Keys = npt.NDArray[np.uint64]
Numbers = npt.NDArray[np.int32]


def as_keys(digests: bytes | npt.NDArray[Any]) -> Keys:
    """Ids of 16 bytes, one after the other, as an array of shape (n, 2)."""
    return np.frombuffer(digests, np.uint64).reshape(-1, 2)


def hex_ids(keys: Keys) -> list[str]:
    """The lower-case hex form of every id."""
    text = keys.tobytes().hex()
    return [text[start : start + 32] for start in range(0, len(text), 32)]


@compiled
def _slot(slots, numbers, key):  # type: ignore[no-untyped-def]
    """Where ``key`` stands in the table, or else the empty slot where it belongs. Half of the slots are empty."""
    mask = np.uint64(numbers.size - 1)
    slot = key[0] & mask
    while numbers[slot] >= 0 and (slots[slot, 0] != key[0] or slots[slot, 1] != key[1]):
        slot = (slot + np.uint64(1)) & mask
    return slot


@compiled
def _add(slots, numbers, keys, count, found, fresh):  # type: ignore[no-untyped-def]
    for i in range(keys.shape[0]):
        slot = _slot(slots, numbers, keys[i])
        fresh[i] = numbers[slot] < 0
        if fresh[i]:
            slots[slot, 0], slots[slot, 1] = keys[i, 0], keys[i, 1]
            numbers[slot] = count
            count += 1
        found[i] = numbers[slot]
    return count


@compiled
def _find(slots, numbers, keys, found):  # type: ignore[no-untyped-def]
    for i in range(keys.shape[0]):
        found[i] = numbers[_slot(slots, numbers, keys[i])]


class NumberedIds:
    """Distinct ids of 16 bytes: a hash table of ids and their numbers."""

    def __init__(self) -> None:
        self._resize(1 << 12)
        self.count = 0

    def _resize(self, size: int) -> None:
        self._slots = np.zeros((size, 2), np.uint64)
        self._numbers = np.full(size, -1, np.int32)

    def add(self, keys: Keys) -> tuple[Numbers, npt.NDArray[np.bool_]]:
        """Every id's number, and whether it is new here; both of shape (n,)."""
        if 2 * (self.count + len(keys)) > self._numbers.size:
            before = self.keys()
            self._resize(1 << (2 * (self.count + len(keys))).bit_length())
            self.count = 0
            self._add(before)
        return self._add(keys)

    def _add(self, keys: Keys) -> tuple[Numbers, npt.NDArray[np.bool_]]:
        found, fresh = np.empty(len(keys), np.int32), np.empty(len(keys), np.bool_)
        self.count = _add(self._slots, self._numbers, keys, self.count, found, fresh)
        return found, fresh

    def find(self, keys: Keys) -> Numbers:
        """Every id's number, -1 for one that was never added; shape (n,)."""
        found = np.empty(len(keys), np.int32)
        _find(self._slots, self._numbers, keys, found)
        return found

    def keys(self) -> Keys:
        """All ids in the order of their numbers; shape (count, 2)."""
        used = self._numbers >= 0
        return self._slots[used][np.argsort(self._numbers[used])]


class NumberedTexts:
    """Distinct texts, told apart by their MD5; they lie in the file ``path``."""

    def __init__(self, path: Path) -> None:
        self._file = open(path, "wb+")  # noqa: SIM115 - lives as long as this object
        self._digests = NumberedIds()
        self._ends: list[npt.NDArray[np.int64]] = [np.zeros(1, np.int64)]
        self._lengths: list[npt.NDArray[np.int32]] = [np.zeros(0, np.int32)]
        self._map: mmap.mmap | None = None

    def close(self) -> None:
        if self._map is not None:
            self._map.close()
        self._file.close()

    def __len__(self) -> int:
        return self._digests.count

    def add(self, texts: pa.StringArray, digests: Keys) -> Numbers:
        """Add the texts that are new by their MD5; returns every text's number, shape (n,)."""
        numbers, fresh = self._digests.add(digests)
        if fresh.any():
            new = texts.filter(pa.array(fresh))
            start = self._ends[-1][-1]
            self._ends.append(start + np.cumsum(pc.binary_length(new).to_numpy(), dtype=np.int64))
            self._lengths.append(pc.utf8_length(new).to_numpy())
            self._file.write("".join(new.to_pylist()).encode())
            self._map = None
        return numbers

    def find(self, digests: Keys) -> Numbers:
        """Every text's number by its MD5, -1 for one that was never added; shape (n,)."""
        return self._digests.find(digests)

    def digests(self) -> Keys:
        """The MD5 of every text, by number; shape (n, 2)."""
        return self._digests.keys()

    def lengths(self) -> npt.NDArray[np.int32]:
        """Characters of every text, by number."""
        self._lengths = [np.concatenate(self._lengths)]
        return self._lengths[0]

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


class Passages:
    """The ids of the collection's passages, by row of the release's corpus.

    A passage's id is the one that the archive gives it: ``paragraph_id`` in the original release, the entry of
    ``passage2id.map.json`` for its line in the pre-processed one; judgments and predictions use these. Where the
    archive gives none, it is the text's MD5, which the official ids are. Every id is held against the MD5 of its text;
    what differs is counted, shown, and kept as the archive says. Of passages with one id the first is kept.

    Attributes:
        ids: the passages' ids; the number of an id is its row.
        given: whether the archives hold a collection at all.
    """

    def __init__(self) -> None:
        self.ids = NumberedIds()
        self.given = False
        # The passages whose id is not the MD5 of their text: that MD5, their ids and rows. Of one text the first.
        self._other_digests = NumberedIds()
        self._other_ids: Keys = np.empty((0, 2), np.uint64)
        self._other_rows: Numbers = np.empty(0, np.int32)

    def add(self, ids: Keys, digests: Keys, findings: Findings) -> npt.NDArray[np.bool_]:
        """Take in passages; returns which of them are new."""
        self.given = True
        rows, new = self.ids.add(ids)
        self._note_other_ids(rows, ids, digests, new & (ids != digests).any(axis=1), findings)
        again = ~new
        if again.any():
            findings.add("passages that came before", int(again.sum()))
            changed = np.zeros(len(ids), np.bool_)
            changed[again] = (self.digests_of(rows[again], ids[again]) != digests[again]).any(axis=1)
            findings.add_ids("passages that came before with another text (the first is kept)", ids, changed)
        return new

    def _note_other_ids(
        self, rows: Numbers, ids: Keys, digests: Keys, other: npt.NDArray[np.bool_], findings: Findings
    ) -> None:
        if not other.any():
            return
        first = self._other_digests.add(digests[other])[1]
        self._other_ids = np.concatenate([self._other_ids, ids[other][first]])
        self._other_rows = np.concatenate([self._other_rows, rows[other][first]])
        what = "passages whose id is not the MD5 of their text"
        for given, digest in zip(hex_ids(ids[other][:3]), hex_ids(digests[other][:3]), strict=True):
            findings.add(what, 0, f"id {given}, MD5 {digest}")
        findings.add(what, int(other.sum()))

    def has(self, ids: Keys) -> npt.NDArray[np.bool_]:
        """Which of the ids are passages of the collection; shape (n,)."""
        return self.ids.find(ids) >= 0

    def digests_of(self, rows: Numbers, ids: Keys) -> Keys:
        """The MD5 of the texts of these passages, of which both row and id are given."""
        result = ids.copy()
        if len(self._other_rows):
            nearest = np.minimum(np.searchsorted(self._other_rows, rows), len(self._other_rows) - 1)
            other = self._other_rows[nearest] == rows
            result[other] = self._other_digests.keys()[nearest[other]]
        return result

    def ids_of(self, digests: Keys) -> Keys:
        """The ids of texts, by their MD5: a text that is there under its MD5, too, keeps it."""
        found, result = self._other_digests.find(digests), digests.copy()
        other = (found >= 0) & ~self.has(digests)
        result[other] = self._other_ids[found[other]]
        return result
