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

from builders.core.cache import FileEntry, caches, describe, writable_cache, wrong_file
from builders.core.errors import InputError, log
from builders.core.files import check_place, write_bytes
from builders.core.folders import build_once, key_of
from builders.core.progress import progress
from builders.core.typed import read_json
from builders.store.reader import Release

_CORPUS = "corpus"
_FORMAT = 2
_MANIFEST = "manifest.json"
Rows = npt.NDArray[np.int64]


class _Manifest(msgspec.Struct):
    """The key and the files of a folder. The manifest is written last."""

    key: dict[str, Any]
    files: list[FileEntry]


def first_fault(folder: Path, files: Iterable[FileEntry]) -> str:
    """Describe the first file that differs from its entry. Return "" if no file differs. Checksums are cached."""
    return next((f"{file.path} {fault}" for file in files if (fault := wrong_file(folder / file.path, file))), "")


@dataclass(frozen=True)
class Cache:
    """A cache of folders. A folder's name is the hash of its key, which has everything that the content depends on.

    The cache is the directory ``dureader_retrieval/NAME`` in ``$XDG_CACHE_HOME`` or ``~/.cache``.
    """

    name: str

    def folder(self, keep: Path | None, key: dict[str, Any], build: Callable[[Path], None]) -> tuple[Path, bool]:
        """Return (folder of ``key``, True if this call built the folder). ``keep`` is its parent (None: the cache).

        A missing or damaged folder is built: ``build`` writes the files into a temporary folder, which is then renamed.
        A second process that needs the same folder waits. Raises :class:`InputError` if ``keep`` is not writable.
        """
        folder = (keep or caches() / self.name) / key_of(key)

        def damage() -> str:
            try:
                manifest = read_json(folder / _MANIFEST, _Manifest)
            except (OSError, InputError) as error:
                return str(error)
            return first_fault(folder, manifest.files) if manifest.key == key else "another key"

        def is_whole() -> bool:
            if fault := damage():
                if keep is None:
                    writable_cache(self.name)
                else:
                    check_place(folder)
            return not fault

        def write(new: Path) -> None:
            if folder.exists():
                log.warning("%s: damaged (%s); built again", folder, damage())
            build(new)
            manifest = _Manifest(key, [describe(new, path.name) for path in sorted(new.iterdir())])
            write_bytes(new / _MANIFEST, msgspec.json.format(msgspec.json.encode(manifest, order="sorted"), indent=1))

        return folder, build_once(folder, is_whole, write)


TEXTS = Cache("texts")


class Strings:
    """Strings in a file, and the offsets of the strings' ends in a memory-mapped second file. Thread-safe."""

    def __init__(self, path: Path) -> None:
        self._file = open(path, "rb")  # noqa: SIM115
        self._ends = np.asarray(np.memmap(_ends(path), np.int64, "r"))

    def __len__(self) -> int:
        return len(self._ends) - 1

    def at(self, rows: npt.NDArray[np.integer[Any]]) -> list[str]:
        """Return the strings of ``rows``. All rows must exist.

        The strings are read, because pages of a mapped file would count as memory of the process: after a million
        reads, nearly the whole file.
        """
        descriptor = self._file.fileno()
        limits = zip(self._ends[rows].tolist(), self._ends[rows + 1].tolist(), strict=True)
        return [os.pread(descriptor, end - begin, begin).decode() for begin, end in limits]

    def array(self) -> pa.LargeStringArray:
        """Return all strings as an Arrow array on the mapped files, without a copy."""
        ends = np.ascontiguousarray(self._ends)
        is_empty = self._ends[-1] == 0  # an empty file cannot be mapped
        data = b"" if is_empty else mmap.mmap(self._file.fileno(), 0, access=mmap.ACCESS_READ)
        return pa.LargeStringArray.from_buffers(len(self), pa.py_buffer(ends), pa.py_buffer(data))


def _ends(path: Path) -> Path:
    return path.with_name(f"{path.name}.ends")


def write_strings(path: Path, arrays: Iterable[pa.Array]) -> None:
    """Write the strings of all arrays to the files that :class:`Strings` reads."""
    with open(path, "wb") as file, open(_ends(path), "wb") as ends:
        end = 0
        np.zeros(1, np.int64).tofile(ends)
        for strings in arrays:
            sizes = pc.binary_length(strings).to_numpy(zero_copy_only=False).astype(np.int64)
            (end + np.cumsum(sizes)).tofile(ends)
            end += int(sizes.sum())
            file.write("".join(strings.to_pylist()).encode())


class Passages:
    """The unpacked passages of a config. A pickled object has only the folder's path, which another process opens."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._texts, self._ids = Strings(folder / "texts"), Strings(folder / "ids")
        # Sorted hashes of the ids, and the row of each hash. The two mapped files have 12 bytes per passage.
        self._hashes = np.memmap(folder / "hashes", np.uint64, "r")
        self._by_hash = np.memmap(folder / "rows", np.uint32, "r")

    def __reduce__(self) -> tuple[type[Passages], tuple[Path]]:
        return Passages, (self.folder,)

    def __len__(self) -> int:
        return len(self._texts)

    def texts(self, rows: Iterable[int]) -> list[str]:
        """Return the texts of rows, in the order of ``rows``. Raises :class:`IndexError` for an unknown row."""
        return self._texts.at(self._there(rows))

    def ids(self, rows: Iterable[int]) -> list[str]:
        """Return the corpus ids of rows, in the order of ``rows``."""
        return self._ids.at(self._there(rows))

    def rows(self, ids: Sequence[str]) -> Rows:
        """Return the row of every corpus id, shape (ids,). The row of an unknown id is -1."""
        places = np.minimum(np.searchsorted(self._hashes, _hashes(ids)), len(self) - 1)
        rows = self._by_hash[places]
        same = [own == given for own, given in zip(self._ids.at(rows), ids, strict=True)]
        return np.where(same, rows.astype(np.int64), -1)

    def ranks(self) -> Rows:
        """Return each passage's rank in the order of the corpus ids, shape (passages,)."""
        ranks = np.empty(len(self), np.int64)
        ranks[pc.sort_indices(self._ids.array()).to_numpy()] = np.arange(len(self))
        return ranks

    def expect(self, ids: Iterable[str], path: Path, line: int | None = None) -> None:
        """Raise :class:`InputError` for the first unknown id. The error names ``path``, the file with the ids."""
        rest = iter(ids)
        while some := list(itertools.islice(rest, 1 << 16)):
            for corpus, row in zip(some, self.rows(some).tolist(), strict=True):
                if row < 0:
                    raise InputError(f"has a passage {corpus!r} that the release's corpus lacks", path=path, line=line)

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
    """Open the passages of a config. The first call unpacks the passages into ``keep`` (default: the user's cache).

    Any config with ``_id`` and ``text`` can be opened, for example to search queries as if they were passages. A second
    process that needs the folder, for example another rank of a training, waits. Raises :class:`InputError` if the
    release lacks the config or the config has no rows.
    """
    shown = config if split == "corpus" else f"{config}/{split}"
    if not (total := release.rows(config, split)):
        raise InputError(f"has no passages in {shown!r}", path=release.path)

    def texts(bar: Any) -> Iterator[pa.Array]:
        for batch in release.batches(config, split, ["text"]):
            yield batch.column("text")
            bar.update(len(batch))

    def unpack(folder: Path) -> None:
        hashes = expect_ids_once(release, config, split)
        order = np.argsort(hashes, kind="stable")
        hashes[order].tofile(folder / "hashes")
        order.astype(np.uint32).tofile(folder / "rows")
        write_strings(folder / "ids", (batch.column("_id") for batch in release.batches(config, split, ["_id"])))
        with progress(total=total, unit="passage", label="unpack") as bar:
            write_strings(folder / "texts", texts(bar))

    folder, made = TEXTS.folder(keep, {"format": _FORMAT, "corpus": release.fingerprint(config, split)}, unpack)
    if made:
        log.info("%s unpacked into %s", shown, folder)
    return Passages(folder)


def expect_ids_once(release: Release, config: str, split: str = "corpus") -> npt.NDArray[np.uint64]:
    """Return the 64-bit hashes of a config's ids. Raises :class:`InputError` if an id is repeated.

    Ids with equal hashes count as equal. Among 8 million different ids, the probability of equal hashes is 1 in
    600,000. Memory holds 16 bytes per row.
    """
    batches = release.batches(config, split, ["_id"])
    hashes = np.concatenate([_hashes([]), *(_hashes(batch.column("_id").to_pylist()) for batch in batches)])
    order = np.argsort(hashes, kind="stable")
    if len(again := order[1:][hashes[order][1:] == hashes[order][:-1]]):
        row = int(again.min())
        found = release.table(config, split, ["_id"])["_id"][row].as_py()
        raise InputError(f"the id {found!r} is repeated; expected it once", path=release.place(config, split, row))
    return hashes


def sample_rows(release: Release, corpus: str, sample: str) -> Rows:
    """Return the corpus rows that a sample (a config ``sample-*``) lists, in ascending order.

    Raises :class:`InputError` if ``corpus`` is the corpus of another set than main, if the release lacks the sample, or
    if the corpus lacks a passage of the sample.
    """
    if corpus != _CORPUS:
        raise InputError(f"--sample {sample} is a sample of the set main, not of {corpus}; use --set main")
    wanted = release.table(sample, _CORPUS, ["_id"])["_id"]
    found = pc.is_in(release.table(_CORPUS, _CORPUS, ["_id"])["_id"], value_set=wanted.combine_chunks())
    rows: Rows = np.flatnonzero(found.to_numpy())
    if len(rows) != len(wanted):
        raise InputError(
            f"the corpus has only {len(rows):,} of the {len(wanted):,} passages of {sample}; make the sample again",
            path=release.path,
        )
    return rows


def taken(batches: Iterable[pa.RecordBatch], rows: Rows | None) -> Iterator[pa.RecordBatch]:
    """Yield the batches of a corpus with only the given ``rows``, in ascending order. None means all rows."""
    start = 0
    for batch in batches:
        if rows is None:
            yield batch
            continue
        low, high = np.searchsorted(rows, [start, start + batch.num_rows])
        if high > low:
            yield batch.take(pa.array(rows[low:high] - start))
        start += batch.num_rows
