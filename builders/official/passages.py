"""Which passages the collection of the official archives holds, under which ids.

A passage's id is the one that the archive gives it: ``paragraph_id`` in the original release, the entry of
``passage2id.map.json`` for its line in the pre-processed one; judgments and predictions use these. Where the archive
gives none (no map, or none that covers the line), it is the text's MD5, which the official ids are. Every id is held
against the MD5 of its text; what differs is counted, shown, and kept as the archive says. Of passages with one id the
first is kept.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from builders.official.findings import Findings
from builders.official.numbered import Keys, NumberedIds, Numbers, hex_ids


class Passages:
    """The ids of the collection's passages, by row of the release's corpus.

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
