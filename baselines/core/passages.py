"""Read passages by row or id from collections larger than memory, through a cache of memory-mapped files.

The texts of a release's corpus config are unpacked once into a folder of flat files. Texts and ids are read from their
files. Numbers are in mapped files: all processes of a machine share the pages that are read, and the system frees pages
when memory is short. The paper's collection of 8.1 M passages takes about 9 GB of disk (1.1 kB per passage) and two
minutes of one core. The texts are not compressed, because reading one text would decompress a whole block.
"""

from __future__ import annotations

import hashlib
import itertools
import mmap
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from builders.core.cache import FileEntry, cache_folder, describe_file, writable_cache, wrong_file
from builders.core.errors import InputError, log
from builders.core.folders import build_once, key_of
from builders.core.paths import check_place
from builders.core.progress import show_progress
from builders.core.typed import read_json
from builders.core.write_files import write_bytes
from builders.store.reader import Release

_CORPUS = "corpus"
_FORMAT = 2  # increase the number when the format of the files changes
_MANIFEST = "manifest.json"
_IDS_PER_CHECK = 1 << 16  # ids that Passages.expect looks up at a time
Rows = npt.NDArray[np.int64]


class _Manifest(msgspec.Struct):
    """The key and the files of a folder. The manifest is written last."""

    key: dict[str, Any]
    files: list[FileEntry]


def first_fault(folder: Path, files: Iterable[FileEntry]) -> str:
    """Describe the first file that differs from its entry. Return "" if no file differs. Checksums are cached."""
    for file in files:
        fault = wrong_file(folder / file.path, file)
        if fault:
            return f"{file.path} {fault}"
    return ""


@dataclass(frozen=True)
class PassageCache:
    """A cache of folders. A folder's name is the hash of its key, which has everything that the content depends on.

    The cache is the directory ``NAME`` in the user's cache folder (:func:`builders.core.cache.cache_folder`).
    """

    name: str

    def folder(self, keep: Path | None, key: dict[str, Any], build: Callable[[Path], None]) -> tuple[Path, bool]:
        """Return (folder of ``key``, True if this call built the folder). ``keep`` is its parent (None: the cache).

        A missing or damaged folder is built: ``build`` writes the files into a temporary folder, which is then renamed.
        A second process that needs the same folder waits. Raises :class:`InputError` if ``keep`` is not writable.
        """
        folder = (keep or cache_folder() / self.name) / key_of(key)

        def find_damage() -> str:
            """Describe the first damaged file. Return "" for an intact folder."""
            try:
                manifest = read_json(folder / _MANIFEST, _Manifest)
            except (OSError, InputError) as error:
                return str(error)
            if manifest.key != key:
                return "another key"
            return first_fault(folder, manifest.files)

        def is_intact() -> bool:
            if not find_damage():
                return True
            # The folder must be built. Raise an error now if its parent is not writable, not after the work.
            if keep is None:
                writable_cache(self.name)
            else:
                check_place(folder)
            return False

        def write(new_folder: Path) -> None:
            if folder.exists():
                log.warning("%s: damaged (%s); built again", folder, find_damage())
            build(new_folder)
            entries = [describe_file(new_folder, path.name) for path in sorted(new_folder.iterdir())]
            manifest = msgspec.json.encode(_Manifest(key, entries), order="sorted")
            write_bytes(new_folder / _MANIFEST, msgspec.json.format(manifest, indent=1))

        return folder, build_once(folder, is_intact, write)


TEXTS = PassageCache("texts")


class MappedStrings:
    """Strings in a file, and the offsets of the strings' ends in a memory-mapped second file. Thread-safe."""

    def __init__(self, path: Path) -> None:
        self._file = open(path, "rb")  # noqa: SIM115
        self._ends = np.asarray(np.memmap(_ends_path(path), np.int64, "r"))

    def __len__(self) -> int:
        return len(self._ends) - 1

    def at(self, rows: npt.NDArray[np.integer[Any]]) -> list[str]:
        """Return the strings of ``rows``. All rows must exist.

        The strings are read, because pages of a mapped file would count as memory of the process: after a million
        reads, nearly the whole file.
        """
        descriptor = self._file.fileno()
        # A string begins where the previous string ends. The end of row r is at r + 1, because the first entry is 0.
        byte_ranges = zip(self._ends[rows].tolist(), self._ends[rows + 1].tolist(), strict=True)
        # pread has no common position in the file, so threads do not disturb each other.
        return [os.pread(descriptor, end - begin, begin).decode() for begin, end in byte_ranges]

    def array(self) -> pa.LargeStringArray:
        """Return all strings as an Arrow array on the mapped files, without a copy."""
        ends = np.ascontiguousarray(self._ends)
        data: bytes | mmap.mmap = b""
        if ends[-1] > 0:  # an empty file cannot be mapped
            data = mmap.mmap(self._file.fileno(), 0, access=mmap.ACCESS_READ)
        return pa.LargeStringArray.from_buffers(len(self), pa.py_buffer(ends), pa.py_buffer(data))


def _ends_path(path: Path) -> Path:
    """Return the path of the second file: 0, then the offset of the end of each string."""
    return path.with_name(f"{path.name}.ends")


def write_strings(path: Path, arrays: Iterable[pa.Array]) -> None:
    """Write the strings of all arrays to the files that :class:`MappedStrings` reads."""
    with open(path, "wb") as strings_file, open(_ends_path(path), "wb") as ends_file:
        last_end = 0
        np.zeros(1, np.int64).tofile(ends_file)
        for strings in arrays:
            sizes = pc.binary_length(strings).to_numpy(zero_copy_only=False).astype(np.int64)
            (last_end + np.cumsum(sizes)).tofile(ends_file)
            last_end += int(sizes.sum())
            strings_file.write("".join(strings.to_pylist()).encode())


class CachedPassages:
    """The unpacked passages of a config. A pickled object has only the folder's path, which another process opens."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._texts = MappedStrings(folder / "texts")
        self._ids = MappedStrings(folder / "ids")
        # Sorted hashes of the ids, and the row of each hash. The two mapped files have 12 bytes per passage.
        self._id_hashes = np.memmap(folder / "hashes", np.uint64, "r")
        self._rows_by_hash = np.memmap(folder / "rows", np.uint32, "r")

    def __reduce__(self) -> tuple[type[CachedPassages], tuple[Path]]:
        return CachedPassages, (self.folder,)

    def __len__(self) -> int:
        return len(self._texts)

    def texts(self, rows: Iterable[int]) -> list[str]:
        """Return the texts of rows, in the order of ``rows``. Raises :class:`IndexError` for an unknown row."""
        return self._texts.at(self._check_rows(rows))

    def ids(self, rows: Iterable[int]) -> list[str]:
        """Return the corpus ids of rows, in the order of ``rows``."""
        return self._ids.at(self._check_rows(rows))

    def rows(self, ids: Sequence[str]) -> Rows:
        """Return the row of every corpus id, shape (ids,). The row of an unknown id is -1."""
        positions = np.searchsorted(self._id_hashes, _hash_ids(ids))
        # A hash above the last one belongs to no passage. Any row will do, because ids are compared below.
        rows = self._rows_by_hash[np.minimum(positions, len(self) - 1)]
        is_same = [row_id == corpus_id for row_id, corpus_id in zip(self._ids.at(rows), ids, strict=True)]
        return np.where(is_same, rows.astype(np.int64), -1)

    def ranks(self) -> Rows:
        """Return each passage's rank in the order of the corpus ids, shape (passages,)."""
        ranks = np.empty(len(self), np.int64)
        ranks[pc.sort_indices(self._ids.array()).to_numpy()] = np.arange(len(self))
        return ranks

    def expect(self, ids: Iterable[str], path: Path, line: int | None = None) -> None:
        """Raise :class:`InputError` for the first unknown id. The error names the ids' file ``path``, and ``line``."""
        # Lists of the next ids, until a list is empty.
        id_iterator = iter(ids)
        id_batches = iter(lambda: list(itertools.islice(id_iterator, _IDS_PER_CHECK)), [])
        for id_batch in id_batches:
            for corpus_id, row in zip(id_batch, self.rows(id_batch).tolist(), strict=True):
                if row < 0:
                    message = f"has a passage {corpus_id!r} that the release's corpus lacks"
                    raise InputError(message, path=path, line=line)

    def _check_rows(self, rows: Iterable[int]) -> Rows:
        """Return rows as an array. Raise :class:`IndexError` for a row outside the collection."""
        row_array = np.fromiter(rows, np.int64)
        outside = row_array[(row_array < 0) | (row_array >= len(self))]
        if len(outside):
            raise IndexError(f"row {outside[0]} of a collection of {len(self)} passages")
        return row_array


def _hash_ids(ids: Sequence[str]) -> npt.NDArray[np.uint64]:
    """Return each id's BLAKE2b hash of 64 bits."""
    digests = [hashlib.blake2b(corpus_id.encode(), digest_size=8).digest() for corpus_id in ids]
    return np.frombuffer(b"".join(digests), np.uint64)


def open_passages(
    release: Release, config: str = "corpus", keep: Path | None = None, split: str = "corpus"
) -> CachedPassages:
    """Open the passages of a config. The first call unpacks them into a folder in ``keep`` (default: the user's cache).

    Any config with ``_id`` and ``text`` can be opened, for example to search queries as if they were passages. Only a
    config of queries has another ``split`` than ``corpus``. A second process that needs the folder, for example another
    rank of a training, waits. Raises :class:`InputError` if the release lacks the config, the config has no rows, or an
    id is repeated.
    """
    description = config if split == "corpus" else f"{config}/{split}"
    passage_count = release.rows(config, split)
    if passage_count == 0:
        raise InputError(f"has no passages in {description!r}", path=release.path)

    def read_with_bar(bar: Any) -> Iterator[pa.Array]:
        """Yield the texts in batches, and move the progress bar ``bar``."""
        for batch in release.batches(config, split, ["text"]):
            yield batch.column("text")
            bar.update(len(batch))

    def unpack(new_folder: Path) -> None:
        """Write the files that :class:`CachedPassages` reads."""
        id_hashes = expect_ids_once(release, config, split)
        hash_order = np.argsort(id_hashes, kind="stable")
        id_hashes[hash_order].tofile(new_folder / "hashes")
        hash_order.astype(np.uint32).tofile(new_folder / "rows")
        id_batches = release.batches(config, split, ["_id"])
        write_strings(new_folder / "ids", (batch.column("_id") for batch in id_batches))
        with show_progress(total=passage_count, unit="passage", label="unpack") as bar:
            write_strings(new_folder / "texts", read_with_bar(bar))

    key = {"format": _FORMAT, "corpus": release.fingerprint(config, split)}
    folder, is_built = TEXTS.folder(keep, key, unpack)
    if is_built:
        log.info("%s unpacked into %s", description, folder)
    return CachedPassages(folder)


def expect_ids_once(release: Release, config: str, split: str = "corpus") -> npt.NDArray[np.uint64]:
    """Return the 64-bit hashes of a config's ids. Raises :class:`InputError` if an id is repeated.

    Ids with equal hashes count as equal. Among 8 million different ids, the probability of equal hashes is 1 in
    600,000. Memory holds 24 bytes per row: the hashes, their order, and the sorted hashes.
    """
    hash_parts = [_hash_ids([])]  # concatenate needs at least one array
    for batch in release.batches(config, split, ["_id"]):
        hash_parts.append(_hash_ids(batch.column("_id").to_pylist()))
    id_hashes = np.concatenate(hash_parts)
    del hash_parts  # 8 bytes per row, while the sort needs memory
    # Equal ids have equal hashes, which are neighbours when sorted. The sort is stable, so the earlier row comes first.
    order = np.argsort(id_hashes, kind="stable")
    sorted_hashes = id_hashes[order]
    repeated_rows = order[1:][sorted_hashes[1:] == sorted_hashes[:-1]]
    if len(repeated_rows):
        row = int(repeated_rows.min())
        corpus_id = release.table(config, split, ["_id"])["_id"][row].as_py()
        raise InputError(
            f"the id {corpus_id!r} is repeated; expected it once", path=release.describe_row(config, split, row)
        )
    return id_hashes


def sample_rows(release: Release, corpus: str, sample: str) -> Rows:
    """Return the corpus rows that a sample (a config ``sample-*``) lists, in ascending order.

    Raises :class:`InputError` if ``corpus`` is the corpus of another set than main, if the release lacks the sample, or
    if the corpus lacks a passage of the sample.
    """
    if corpus != _CORPUS:
        raise InputError(f"--sample {sample} is a sample of the set main, not of {corpus}; use --set main")
    sample_ids = release.table(sample, _CORPUS, ["_id"])["_id"]
    corpus_ids = release.table(_CORPUS, _CORPUS, ["_id"])["_id"]
    is_in_sample = pc.is_in(corpus_ids, value_set=sample_ids.combine_chunks())
    rows: Rows = np.flatnonzero(is_in_sample.to_numpy())
    if len(rows) != len(sample_ids):
        raise InputError(
            f"the corpus has only {len(rows):,} of the {len(sample_ids):,} passages of {sample}; make the sample again",
            path=release.path,
        )
    return rows


def take_rows(batches: Iterable[pa.RecordBatch], rows: Rows | None) -> Iterator[pa.RecordBatch]:
    """Yield the batches of a corpus with only the given ``rows``. None means all rows.

    ``rows`` are row numbers of the whole corpus, and must ascend. Batches without any of these rows are skipped.
    """
    if rows is None:
        yield from batches
        return
    batch_start = 0  # corpus row of the batch's first row
    for batch in batches:
        low, high = np.searchsorted(rows, [batch_start, batch_start + batch.num_rows])
        if high > low:
            yield batch.take(pa.array(rows[low:high] - batch_start))
        batch_start += batch.num_rows
