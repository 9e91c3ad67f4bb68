"""Keep the ids of a copy that differ from the MD5 of the text, as the config ``original-ids`` of the release."""

from collections.abc import Iterable, Iterator, Mapping, Sequence

import numpy as np
import pyarrow as pa

from builders.official.blocks import BlockFindings, BlockWork
from builders.official.questions import OfficialSplit, ids_in
from builders.store.layout import ORIGINAL_IDS, ORIGINAL_IDS_CONFIG

_ROWS_PER_TABLE = 65_536
# The noun of the texts in findings -> the split of the config.
_SPLITS = {"passages": "corpus", "queries": "queries"}


class OriginalIds:
    """The ids of a copy, and the MD5 of each id's text. Several ids may have the same text."""

    def __init__(self) -> None:
        self._digests_by_id: dict[str, dict[str, bytes]] = {noun: {} for noun in _SPLITS}

    def add(self, noun: str, copy_id: str, digest: bytes, findings: BlockFindings) -> None:
        """Add an id that is not the MD5 of its text. ``noun`` is passages or queries. An id keeps its first text."""
        if self._digests_by_id[noun].setdefault(copy_id, digest) != digest:
            finding = f"ids of {noun} with a second text (original-ids has the first text)"
            findings.add(finding, 1, copy_id)

    def write(self, work: BlockWork, passages: Sequence[int], splits: Iterable[OfficialSplit]) -> None:
        """Write the config for the texts that the release has.

        Args:
            work: the release being written.
            passages: the numbers of the passages' texts.
            splits: the splits with their questions.
        """
        passage_digests = work.texts.digests()[np.array(passages)].tobytes()
        query_digests: set[bytes] = set()
        for split in splits:
            query_digests.update(split.by_id)
        digests_by_noun = {"passages": set(ids_in(passage_digests)), "queries": query_digests}
        for noun, split_name in _SPLITS.items():
            digests_by_id = self._select(noun, digests_by_noun[noun], work.findings)
            if digests_by_id:
                work.draft.write(ORIGINAL_IDS_CONFIG, split_name, _tables(digests_by_id))

    def _select(self, noun: str, release_digests: set[bytes], findings: BlockFindings) -> dict[str, bytes]:
        """Return the copy's ids, with their MD5s, of texts that the release has.

        Ids that are the MD5 of another text of the release are counted and skipped. ``noun`` is passages or queries.
        """
        release_ids = {digest.hex() for digest in release_digests}
        selected: dict[str, bytes] = {}
        for copy_id, digest in self._digests_by_id[noun].items():
            if digest not in release_digests:
                continue
            # Such an id in a run could mean either of the two texts.
            if copy_id in release_ids:
                findings.add(f"ids of {noun} that are the MD5 of another text (not in original-ids)", 1, copy_id)
                continue
            selected[copy_id] = digest
        return selected


def _tables(digests_by_id: Mapping[str, bytes]) -> Iterator[pa.Table]:
    """Yield the rows of the config: an id of the copy, and the MD5 in hex."""
    copy_ids = list(digests_by_id)
    for start in range(0, len(copy_ids), _ROWS_PER_TABLE):
        table_ids = copy_ids[start : start + _ROWS_PER_TABLE]
        text_ids = [digests_by_id[copy_id].hex() for copy_id in table_ids]
        yield pa.table([table_ids, text_ids], schema=ORIGINAL_IDS)
