"""Training questions that were drawn for interpolation or extrapolation, as an export sees them."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

from builders.export.sets import ReleaseSet
from builders.store.layout import QRELS, SETS, config_of, set_of
from builders.store.reader import Release


@dataclass(frozen=True)
class DrawnSet(ReleaseSet):
    """The main set with the questions that a config ``restrain-*`` or ``resttest-*`` judges, by that config.

    Its splits are the config's; where that has none to test on, the main set's dev and test are there as they are.
    """

    @property
    def _main(self) -> ReleaseSet:
        return ReleaseSet(self.release, "main")

    def _own(self) -> list[str]:
        """The splits of the config, of which the release has some: else :class:`InputError`."""
        have = self.release.splits()
        own = [split for split in config_of(self.name).splits if (self.name, split) in have]
        if not own:
            self.release.shards(self.name, "train")  # raises
        return own

    def query_splits(self) -> list[str]:
        return self._with_tests(self._main.query_splits())

    def qrels_splits(self) -> list[str]:
        return self._with_tests(self._main.qrels_splits())

    def _with_tests(self, tests: list[str]) -> list[str]:
        own = self._own()
        return own if len(own) > 1 else [*own, *(split for split in tests if split != "train")]

    def queries(self, split: str) -> Iterator[pa.RecordBatch]:
        return self._of(split, "_id", self._main.query_splits(), self._main.queries)

    def qrels(self, split: str) -> Iterator[pa.RecordBatch]:
        if split not in self._own():
            return self._main.qrels(split)
        return self.release.batches(self.name, split, QRELS.names)

    def joined(self, split: str) -> Iterator[pa.RecordBatch]:
        return self._of(split, "query_id", self._main.query_splits(), self._main.joined)

    def _of(
        self, split: str, column: str, splits: list[str], read: Callable[[str], Iterator[pa.RecordBatch]]
    ) -> Iterator[pa.RecordBatch]:
        """The main set's rows of the questions of a split, each once; of its test splits where it is none of train."""
        if split not in self._own():
            yield from read(split)
            return
        wanted = pc.unique(self.release.table(self.name, split, ["query-id"])["query-id"])
        for source in splits:
            if (source == "train") == (split == "train"):
                for batch in read(source):
                    found = batch.filter(pc.is_in(batch[column], wanted))
                    wanted = wanted.filter(pc.invert(pc.is_in(wanted, found[column])))
                    if found.num_rows:
                        yield found


def set_name(text: str) -> str:
    """An argparse type: a set, or a config of drawn training questions."""
    try:
        set_of(text)
    except ValueError:
        known = f"{', '.join(SETS)}, restrain-SIZE-interpolation, restrain-SIZE-extrapolation, resttest-bucketNUMBER"
        raise argparse.ArgumentTypeError(f"expected one of {known}; found {text!r}") from None
    return text


def set_to_export(release: Release, name: str) -> ReleaseSet:
    """The set of that name: see :func:`set_name`."""
    return ReleaseSet(release, name) if name in SETS else DrawnSet(release, name)
