"""Passages by row number or by id, for collections that do not fit into memory.

The texts of a release's corpus config are unpacked once into a folder of flat files that are memory-mapped. A process
holds nothing but the pages that it touches, which the system takes back when memory is short, and all processes of a
machine share them. On the paper's collection of 8.1 M passages the folder takes about 9 GB of disk (1.1 kB a passage,
UTF-8, not compressed: a compressed block cannot be read at one row) and building it about two minutes of one core.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import mmap
import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from builders.common.command import InputError, log, progress
from builders.common.files import write_text
from builders.common.folders import build_once, key_of
from builders.store.reader import Release

_FORMAT = 1
_ABOUT = "texts.json"  # written last
_IDS_AT_ONCE = 1 << 16
Rows = npt.NDArray[np.int64]


def default_folder() -> Path:
    """Where unpacked collections are kept: ``$XDG_CACHE_HOME`` or ``~/.cache``, in ``dureader_retrieval/texts``."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "dureader_retrieval" / "texts"


class Strings:
    """Strings one after the other in one memory-mapped file, and where each ends. Safe to share between threads."""

    def __init__(self, path: Path) -> None:
        with open(path, "rb") as file:
            self._bytes = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) if path.stat().st_size else b""
        self._ends = np.memmap(_ends(path), np.int64, "r")

    def __len__(self) -> int:
        return len(self._ends) - 1

    def __getitem__(self, row: int) -> str:
        return self._bytes[self._ends[row] : self._ends[row + 1]].decode()

    def sizes(self) -> Rows:
        """Every string's length in bytes of UTF-8 (8 bytes of memory a row)."""
        return np.diff(self._ends)


def _ends(path: Path) -> Path:
    return path.with_name(f"{path.name}.ends")


class _Writer:
    """Writes what :class:`Strings` reads."""

    def __init__(self, path: Path) -> None:
        self._bytes, self._ends = open(path, "wb"), open(_ends(path), "wb")  # noqa: SIM115 (closed by close)
        np.zeros(1, np.int64).tofile(self._ends)
        self._end = 0

    def write(self, part: pa.Array) -> None:
        sizes = pc.binary_length(part).to_numpy(zero_copy_only=False).astype(np.int64)
        (self._end + np.cumsum(sizes)).tofile(self._ends)
        self._end += int(sizes.sum())
        self._bytes.write("".join(part.to_pylist()).encode())

    def close(self) -> None:
        self._bytes.close()
        self._ends.close()


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
        return [self._texts[self._row(row)] for row in rows]

    def ids(self, rows: Iterable[int]) -> list[str]:
        """The corpus ids at some rows, in the order asked for."""
        return [self._ids[self._row(row)] for row in rows]

    def sizes(self) -> Rows:
        """Every text's length in bytes of UTF-8, shape (passages,): what to sort by for batches of like lengths."""
        return self._texts.sizes()

    def rows(self, ids: Sequence[str]) -> Rows:
        """The row of every corpus id, shape (ids,); -1 where the collection has no such passage."""
        wanted = _hashes(ids)
        found = np.full(len(ids), -1, np.int64)
        starts = np.searchsorted(self._hashes, wanted).tolist()
        for number, start in enumerate(starts):
            # Two ids with one hash of 64 bits are next to each other; the id itself decides.
            while start < len(self._hashes) and self._hashes[start] == wanted[number]:
                row = int(self._by_hash[start])
                if self._ids[row] == ids[number]:
                    found[number] = row
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

    def _row(self, row: int) -> int:
        if not 0 <= row < len(self):
            raise IndexError(f"row {row} of a collection of {len(self)} passages")
        return int(row)


def _hashes(ids: Sequence[str]) -> npt.NDArray[np.uint64]:
    digests = b"".join(hashlib.blake2b(each.encode(), digest_size=8).digest() for each in ids)
    return np.frombuffer(digests, np.uint64)


def open_passages(release: Release, config: str = "corpus", keep: Path | None = None) -> Passages:
    """The passages of a corpus config, unpacked into the folder ``keep`` where they are not yet.

    The folder is built beside its place and moved there when it is whole; a second process that wants it (another rank
    of a training) waits. Raises :class:`InputError` where the release has no such config, or no passages.
    """
    keep = default_folder() if keep is None else keep
    about: dict[str, Any] = {"format": _FORMAT, "corpus": release.fingerprint(config, "corpus")}
    if not release.rows(config, "corpus"):
        raise InputError(f"has no passages in {config!r}", path=release.path)
    folder = keep / key_of(about)

    def build(new: Path) -> None:
        _unpack(release, config, new)
        sizes = {path.name: path.stat().st_size for path in sorted(new.iterdir())}
        write_text(new / _ABOUT, json.dumps({**about, "files": sizes}, indent=1, sort_keys=True) + "\n")

    if build_once(folder, lambda: _is_whole(folder, about), build):
        log.info("%s unpacked into %s", config, folder)
    return Passages(folder)


def _is_whole(folder: Path, about: dict[str, Any]) -> bool:
    """Whether every file has its size. (Hashing 9 GB at every start would take longer than it is worth.)"""
    try:
        content = json.loads((folder / _ABOUT).read_text(encoding="utf-8"))
        sizes = content.pop("files")
        return bool(content == about) and all((folder / name).stat().st_size == size for name, size in sizes.items())
    except (OSError, ValueError, KeyError, AttributeError):
        return False


def _unpack(release: Release, config: str, folder: Path) -> None:
    texts, ids, hashes = _Writer(folder / "texts"), _Writer(folder / "ids"), []
    with progress(total=release.rows(config, "corpus"), unit="passage", label="unpack") as bar:
        for batch in release.batches(config, "corpus", ["_id", "text"]):
            texts.write(batch.column("text"))
            ids.write(batch.column("_id"))
            hashes.append(_hashes(batch.column("_id").to_pylist()))
            bar.update(batch.num_rows)
    texts.close()
    ids.close()
    every = np.concatenate(hashes)
    order = np.argsort(every, kind="stable")
    every[order].tofile(folder / "hashes")
    order.astype(np.uint32).tofile(folder / "rows")
