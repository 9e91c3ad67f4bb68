"""Passages by row number or by id, for collections that do not fit into memory.

The texts of a release's corpus config are unpacked once into a folder of flat files that are memory-mapped. A process
holds nothing but the pages that it touches, which the system takes back when memory is short, and all processes of a
machine share them. On the paper's collection of 8.1 M passages the folder takes about 9 GB of disk (1.1 kB a passage,
UTF-8, not compressed: a compressed block cannot be read at one row) and building it about two minutes of one core.
"""

from __future__ import annotations

import argparse
import hashlib
import itertools
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from baselines.retrieve.cache import Cache, Strings, StringsWriter
from builders.core.errors import InputError, log
from builders.core.progress import progress
from builders.store.layout import SAMPLE, is_config
from builders.store.reader import Release

_CORPUS = "corpus"
_FORMAT = 2
_IDS_AT_ONCE = 1 << 16
Rows = npt.NDArray[np.int64]

TEXTS = Cache("texts", "texts.json")


class Passages:
    """A collection opened for reading. Cheap to pickle: another process opens the same files.

    Attributes:
        folder: where the unpacked files lie.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._texts, self._ids = Strings(folder / "texts"), Strings(folder / "ids")
        # Ids by their hash: 12 bytes a passage, mapped like the rest.
        self._hashes = np.memmap(folder / "hashes", np.uint64, "r")
        self._by_hash = np.memmap(folder / "rows", np.uint32, "r")

    def __reduce__(self) -> tuple[type[Passages], tuple[Path]]:
        return Passages, (self.folder,)

    def __len__(self) -> int:
        return len(self._texts)

    def texts(self, rows: Iterable[int]) -> list[str]:
        """The texts at some rows, in the order asked for; IndexError for a row that is none."""
        return self._texts.at(self._there(rows))

    def ids(self, rows: Iterable[int]) -> list[str]:
        """The corpus ids at some rows, in the order asked for."""
        return self._ids.at(self._there(rows))

    def sizes(self) -> Rows:
        """Every text's length in bytes of UTF-8, shape (passages,): what to sort by for batches of like lengths."""
        return self._texts.sizes()

    def rows(self, ids: Sequence[str]) -> Rows:
        """The row of every corpus id, shape (ids,); -1 where the collection has no such passage."""
        wanted = _hashes(ids)
        found = np.full(len(ids), -1, np.int64)
        for number, start in enumerate(np.searchsorted(self._hashes, wanted).tolist()):
            # Two ids with one hash of 64 bits are next to each other; the id itself decides.
            while start < len(self._hashes) and self._hashes[start] == wanted[number]:
                row = self._by_hash[start : start + 1]
                if self._ids.at(row) == [ids[number]]:
                    found[number] = row[0]
                    break
                start += 1
        return found

    def expect(self, ids: Iterable[str], path: Path) -> None:
        """Raise :class:`InputError` for the first of some ids, which ``path`` names, that the collection lacks."""
        rest = iter(ids)
        while some := list(itertools.islice(rest, _IDS_AT_ONCE)):
            for corpus, row in zip(some, self.rows(some).tolist(), strict=True):
                if row < 0:
                    raise InputError(f"has a passage {corpus!r} that the release's corpus lacks", path=path)

    def _there(self, rows: Iterable[int]) -> Rows:
        found = np.fromiter(rows, np.int64)
        if len(outside := found[(found < 0) | (found >= len(self))]):
            raise IndexError(f"row {outside[0]} of a collection of {len(self)} passages")
        return found


def _hashes(ids: Sequence[str]) -> npt.NDArray[np.uint64]:
    digests = b"".join(hashlib.blake2b(each.encode(), digest_size=8).digest() for each in ids)
    return np.frombuffer(digests, np.uint64)


def open_passages(
    release: Release, config: str = "corpus", keep: Path | None = None, split: str = "corpus"
) -> Passages:
    """The passages of a corpus config, unpacked into the folder ``keep`` where they are not yet.

    Any other config with ``_id`` and ``text`` will do: the queries of a split are searched as passages are.
    The folder is built beside its place and moved there when it is whole; a second process that wants it (another rank
    of a training) waits. Raises :class:`InputError` where the release has no such config, or no passages.
    """
    shown = config if split == "corpus" else f"{config}/{split}"
    if not release.rows(config, split):
        raise InputError(f"has no passages in {shown!r}", path=release.path)
    key = {"format": _FORMAT, "corpus": release.fingerprint(config, split)}
    folder, made = TEXTS.folder(keep, key, lambda new: _unpack(release, config, split, new))
    if made:
        log.info("%s unpacked into %s", shown, folder)
    return Passages(folder)


def expect_ids_once(
    release: Release, config: str, split: str = "corpus", hashes: npt.NDArray[np.uint64] | None = None
) -> None:
    """Raise :class:`InputError` where an id of a config with ``_id`` comes twice. Memory: 16 bytes a row.

    ``hashes``: of the ids, where they are there already.
    """
    if hashes is None:
        batches = release.batches(config, split, ["_id"])
        hashes = np.concatenate([_hashes([]), *(_hashes(batch.column("_id").to_pylist()) for batch in batches)])
    ordered = np.sort(hashes)
    again = ordered[1:][ordered[1:] == ordered[:-1]]
    if not len(again):
        return
    rows, seen = np.flatnonzero(np.isin(hashes, again)), set[str]()
    ids = (each for batch in taken(release.batches(config, split, ["_id"]), rows) for each in batch["_id"].to_pylist())
    for row, each in zip(rows.tolist(), ids, strict=True):
        if each in seen:  # and no other id of the same hash
            raise InputError(f"the id {each!r} comes again; expected it once", path=release.place(config, split, row))
        seen.add(each)


def _unpack(release: Release, config: str, split: str, folder: Path) -> None:
    hashes = []
    with (
        StringsWriter(folder / "texts") as texts,
        StringsWriter(folder / "ids") as ids,
        progress(total=release.rows(config, split), unit="passage", label="unpack") as bar,
    ):
        for batch in release.batches(config, split, ["_id", "text"]):
            texts.write(batch.column("text"))
            ids.write(batch.column("_id"))
            hashes.append(_hashes(batch.column("_id").to_pylist()))
            bar.update(batch.num_rows)
    every = np.concatenate(hashes)
    expect_ids_once(release, config, split, every)
    order = np.argsort(every, kind="stable")
    every[order].tofile(folder / "hashes")
    order.astype(np.uint32).tofile(folder / "rows")


def add_sample(parser: argparse.ArgumentParser) -> None:
    """``--sample``, for commands that search passages."""
    parser.add_argument(
        "--sample",
        type=_sample,
        metavar="CONFIG",
        help="among the passages of this config alone, of `builders add samples`: sample-10K (default: among all)",
    )


def _sample(text: str) -> str:
    if not (text.startswith(SAMPLE) and is_config(text)):
        raise argparse.ArgumentTypeError(f"expected sample-SIZE or sample-SIZE-hard, found {text!r}")
    return text


def sample_rows(release: Release, corpus: str, sample: str) -> Rows:
    """The rows of a corpus config that a sample (a config ``sample-*``) lists, ascending.

    Raises :class:`InputError` for a corpus that is not the main set's, and where the release has no such sample, or the
    sample lists what the corpus lacks.
    """
    if corpus != _CORPUS:
        raise InputError(f"--sample {sample}: of the passages of the set main, not of {corpus}")
    wanted = release.table(sample, _CORPUS, ["_id"])["_id"]
    found = pc.is_in(release.table(_CORPUS, _CORPUS, ["_id"])["_id"], value_set=wanted.combine_chunks())
    rows: Rows = np.flatnonzero(found.to_numpy())
    if len(rows) != len(wanted):
        raise InputError(
            f"{sample} lists {len(wanted):,} passages, of which the corpus has {len(rows):,}; make it again",
            path=release.path,
        )
    return rows


def taken(batches: Iterable[pa.RecordBatch], rows: Rows | None) -> Iterator[pa.RecordBatch]:
    """The batches of a corpus with some of its rows (ascending) alone; all of them where None."""
    start = 0
    for batch in batches:
        if rows is None:
            yield batch
            continue
        low, high = np.searchsorted(rows, [start, start + batch.num_rows])
        if high > low:
            yield batch.take(pa.array(rows[low:high] - start))
        start += batch.num_rows
