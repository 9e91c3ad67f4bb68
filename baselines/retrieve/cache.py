"""Work kept on disk: folders under the key of all that they depend on, memory-mapped strings, results of tasks."""

from __future__ import annotations

import contextlib
import json
import mmap
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from builders.core.cache import caches, wrong_sha256
from builders.core.errors import InputError, log
from builders.core.files import check_place, sha256_of, write_bytes, write_text
from builders.core.folders import build_once, key_of
from builders.core.typed import name_within, read_json


def resumed(note: Path, kind: Any, is_right: Callable[[Any], bool], make: Callable[[], Any]) -> Any:
    """Return the result of a task that an interrupted job left in the file ``note``; else ``make`` and write it.

    Args:
        note: a JSON file. It is written after all other files of the task.
        kind: the type of the result.
        is_right: False for a result that is not of this task, or whose files are missing or damaged.
        make: does the task.
    """
    with contextlib.suppress(FileNotFoundError, InputError):
        found = read_json(note, kind)
        if is_right(found):
            return found
    found = make()
    write_text(note, json.dumps(msgspec.to_builtins(found)))
    return found


def first_fault(folder: Path, files: Mapping[str, str]) -> str:
    """Describe the first file that is not of its SHA-256; empty if all are. Files are read for this once."""
    for name, sha256 in files.items():
        try:
            if fault := wrong_sha256(folder / name, sha256):
                return f"{name} {fault}"
        except OSError as error:
            return f"{name} cannot be read ({error.strerror})"
    return ""


class _Manifest(msgspec.Struct):
    """The file that is written last: the folder's key, and the SHA-256 of each of its files."""

    key: dict[str, Any]
    files: dict[str, str]

    def __post_init__(self) -> None:
        for name in self.files:  # the folder that an option names may be somebody else's
            name_within(name)


@dataclass(frozen=True)
class Cache:
    """Folders of one kind, each named by the key of all that it depends on.

    Attributes:
        name: the cache's own folder, under ``$XDG_CACHE_HOME/dureader_retrieval`` or ``~/.cache/dureader_retrieval``.
        manifest: the file of each folder that is written last.
    """

    name: str
    manifest: str

    def home(self) -> Path:
        """The default folder of the cache."""
        return caches() / self.name

    def folder(self, keep: Path | None, key: dict[str, Any], build: Callable[[Path], None]) -> tuple[Path, bool]:
        """Return (the folder of ``key`` in ``keep``, True if made now); it is made where it is missing or damaged.

        ``build`` writes the files. They lie beside their place until all are whole, and a second process that wants
        the same folder waits for the first. :class:`InputError` where nothing can be written in ``keep``.
        """
        folder = (self.home() if keep is None else keep) / key_of(key)

        def is_whole() -> bool:
            if not self._damage(folder, key):
                return True
            try:
                check_place(folder)
            except InputError:
                ours = keep in (None, self.home())
                other = "; XDG_CACHE_HOME, `bm25 --index` or `train --cache` names another" if ours else ""
                raise InputError(f"is a folder that cannot be written to{other}", path=folder.parent) from None
            return False

        def write(new: Path) -> None:
            if folder.exists():
                log.warning("%s: damaged (%s); it is made again", folder, self._damage(folder, key))
            build(new)
            manifest = _Manifest(key, {path.name: sha256_of(path) for path in sorted(new.iterdir())})
            write_bytes(
                new / self.manifest, msgspec.json.format(msgspec.json.encode(manifest, order="sorted"), indent=1)
            )

        return folder, build_once(folder, is_whole, write)

    def _damage(self, folder: Path, key: dict[str, Any]) -> str:
        """Describe the first damaged file; empty if the folder is whole."""
        try:
            manifest = read_json(folder / self.manifest, _Manifest)
            if manifest.key != key:
                return "another key"
            return first_fault(folder, manifest.files)
        except (OSError, InputError) as error:
            return str(error)


class Strings:
    """Strings one after the other in one memory-mapped file, and where each ends. Safe to share between threads."""

    def __init__(self, path: Path) -> None:
        with open(path, "rb") as file:
            self._bytes = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) if path.stat().st_size else b""
        self._ends = np.asarray(np.memmap(_ends(path), np.int64, "r"))

    def __len__(self) -> int:
        return len(self._ends) - 1

    def at(self, rows: npt.NDArray[np.integer[Any]]) -> list[str]:
        """The strings at some rows, which must be there."""
        limits = zip(self._ends[rows].tolist(), self._ends[rows + 1].tolist(), strict=True)
        return [self._bytes[begin:end].decode() for begin, end in limits]

    def array(self) -> pa.LargeStringArray:
        """All of them, as Arrow reads them in the file."""
        buffers = pa.py_buffer(np.ascontiguousarray(self._ends)), pa.py_buffer(self._bytes)
        return pa.LargeStringArray.from_buffers(len(self), *buffers)

    def sizes(self) -> npt.NDArray[np.int64]:
        """Every string's length in bytes of UTF-8 (8 bytes of memory a row)."""
        return np.diff(self._ends)


def _ends(path: Path) -> Path:
    return path.with_name(f"{path.name}.ends")


class StringsWriter:
    """Writes what :class:`Strings` reads: ``with StringsWriter(path) as writer: writer.write(array)``."""

    def __init__(self, path: Path) -> None:
        self._opened = contextlib.ExitStack()
        self._bytes = self._opened.enter_context(open(path, "wb"))  # noqa: SIM115 (closed by __exit__)
        self._ends = self._opened.enter_context(open(_ends(path), "wb"))  # noqa: SIM115
        np.zeros(1, np.int64).tofile(self._ends)
        self._end = 0

    def __enter__(self) -> StringsWriter:
        return self

    def write(self, strings: pa.Array) -> None:
        sizes = pc.binary_length(strings).to_numpy(zero_copy_only=False).astype(np.int64)
        (self._end + np.cumsum(sizes)).tofile(self._ends)
        self._end += int(sizes.sum())
        self._bytes.write("".join(strings.to_pylist()).encode())

    def __exit__(self, *_: object) -> None:
        self._opened.close()
