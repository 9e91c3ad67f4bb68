"""Entries of manifests (path, size, rows, SHA-256), and a cache of files that were verified against them.

:func:`describe` makes a :class:`FileEntry`. :func:`wrong_file` compares a file with its entry, and reads an unchanged
file only once. The user's cache records verified files. A record is valid until the file's inode, size, mtime or ctime
changes. A record is an empty file whose name is a hash, so processes need no lock."""

import contextlib
import os
import re
import stat
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from msgspec import Struct, structs

from builders.core.errors import InputError
from builders.core.files import sha256_of
from builders.core.folders import key_of
from builders.core.typed import Count, Sha256, name_within

_here: set[Path] = set()  # records made by this process, for a cache that is not writable
_checksums: dict[Path, str] = {}  # checksums computed or read by this process
_SETTLED = 2 * 10**9  # ns; younger files are not recorded, because some file systems store times in steps of 2 s


def caches() -> Path:
    """Return the user's cache folder: ``$XDG_CACHE_HOME/dureader_retrieval`` or ``~/.cache/dureader_retrieval``."""
    return Path(os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")) / "dureader_retrieval"


def writable_cache(*names: str) -> Path:
    """Return a folder in the user's cache, which is created if necessary.

    Raises :class:`InputError` with the environment variable that selects another folder.
    """
    folder = caches().joinpath(*names)
    problem = ""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        problem = error.strerror or str(error)
    if not problem and not os.access(folder, os.W_OK | os.X_OK):
        problem = "is not writable"
    if problem:
        raise InputError(f"{problem}; set XDG_CACHE_HOME to a folder for the cache that can be written", path=folder)
    return folder


class FileEntry(Struct, frozen=True):
    """A file in a manifest: its path in the folder, its size, its rows if it is a table, and its SHA-256 (hex)."""

    path: str
    bytes: Count
    rows: Count | None
    sha256: Sha256

    def __post_init__(self) -> None:
        name_within(self.path)


def describe(folder: Path, name: str, rows: int | None = None) -> FileEntry:
    """Return the manifest entry of a file in ``folder``."""
    path = folder / name
    return FileEntry(name, path.stat().st_size, rows, sha256_of(path))


def wrong_file(path: Path, entry: FileEntry, look: Callable[[], str] | None = None, *, again: bool = False) -> str:
    """Describe the first difference between a file and its entry; empty if there is none.

    ``look`` is a further check, which runs after the SHA-256 is verified. ``look`` returns a description of the first
    fault, which may depend only on the file's bytes and the entry. With ``again``, the file is read even if the cache
    has a record of the file.
    """
    added = structs.astuple(entry)[4:]  # the fields that a subclass adds to FileEntry
    claim = ["file of a release", entry.path if look else "", entry.sha256, entry.rows, *added]
    try:
        found = path.stat()
        if not stat.S_ISREG(found.st_mode):
            return "is not a regular file"
        if found.st_size != entry.bytes:
            return f"has {found.st_size:,} bytes, but the manifest lists {entry.bytes:,}"
        return fault_once(
            path, claim, lambda: other_sha256(path, entry.sha256) or (look() if look else ""), again=again
        )
    except FileNotFoundError:
        return "is listed in the manifest but missing"
    except OSError as error:
        return f"cannot be read ({error.strerror})"


def fault_once(path: Path, claim: Any, look: Callable[[], str], *, again: bool = False) -> str:
    """Return the fault that ``look`` reports for a file; empty if the file is valid.

    ``look`` is skipped if an earlier call with the same ``claim`` found this file valid. With ``again``, ``look``
    always runs. A file is identified by device, inode, size, mtime and ctime. ``claim`` is a JSON value that contains
    all expected values. If the user's cache is not writable, ``look`` runs once in each process.
    """
    started, file = time.time_ns(), path.stat()
    note = _note(file, claim)
    if not again and (note in _here or os.path.exists(note)):
        return ""
    fault = look()
    if not fault and started - max(file.st_mtime_ns, file.st_ctime_ns) > _SETTLED and _note(path.stat(), claim) == note:
        _here.add(note)
        with contextlib.suppress(OSError):  # without a record, the file is verified again next time
            note.parent.mkdir(parents=True, exist_ok=True)
            note.touch()
    return fault


def other_sha256(path: Path, sha256: str) -> str:
    """Describe the difference between a file's SHA-256 and the expected one (hex); empty if they are equal."""
    found = sha256_of(path)
    return "" if found == sha256 else f"has the SHA-256 {found}, expected {sha256}"


def wrong_sha256(path: Path, sha256: str) -> str:
    """Return the result of :func:`other_sha256`, but read an unchanged file only once (:func:`fault_once`)."""
    return fault_once(path, ["sha256", sha256], lambda: other_sha256(path, sha256))


def cached_sha256(path: Path) -> str:
    """Return the SHA-256 of a file (hex). An unchanged file is read only once (:func:`fault_once`).

    The user's cache has a file with the checksum, whose name is a hash of the read file's identity.
    """
    started, file = time.time_ns(), path.stat()
    note = _note(file, "its SHA-256")
    if note not in _checksums:
        with contextlib.suppress(OSError, UnicodeDecodeError):
            text = note.read_text(encoding="ascii")
            if re.fullmatch("[0-9a-f]{64}", text):  # a full disk may have cut the text
                _checksums[note] = text
    if note in _checksums:
        return _checksums[note]
    sha256 = sha256_of(path)
    is_settled = started - max(file.st_mtime_ns, file.st_ctime_ns) > _SETTLED
    if is_settled and _note(path.stat(), "its SHA-256") == note:
        _checksums[note] = sha256
        with contextlib.suppress(OSError):
            note.parent.mkdir(parents=True, exist_ok=True)
            beside = note.with_name(f"{note.name}.{os.getpid()}")
            beside.write_text(sha256, encoding="ascii")
            os.replace(beside, note)
    return sha256


def _note(file: os.stat_result, claim: Any) -> Path:
    # ctime detects an edit that restores the old mtime, because programs cannot set ctime.
    key = key_of([file.st_dev, file.st_ino, file.st_size, file.st_mtime_ns, file.st_ctime_ns, claim])
    return caches() / "checked" / key
