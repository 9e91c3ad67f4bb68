"""Manifests of files with their sizes and SHA-256, and a cache of files that were verified against them.

A manifest lists entries (:class:`FileEntry`, made by :func:`describe`); :func:`wrong_file` compares a file with its
entry. A file is read for this once: a verified file is noted in the user's cache until its inode, size, mtime or ctime
changes. A note is an empty file of that name, so processes need no lock."""

from __future__ import annotations

import contextlib
import os
import stat
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from msgspec import Struct, structs

from builders.core.files import sha256_of
from builders.core.folders import key_of
from builders.core.typed import Count, Sha256, name_within

_here: set[Path] = set()  # this process' own notes
_SETTLED = 2 * 10**9  # ns: a file may be changed twice within one tick of its clock, which is 2 s on the coarsest disks


def caches() -> Path:
    """The folder of all that is kept for a user: ``$XDG_CACHE_HOME/dureader_retrieval`` or ``~/.cache/...``."""
    return Path(os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")) / "dureader_retrieval"


class FileEntry(Struct, frozen=True):
    """One file of a manifest: its path in the folder, its size, its SHA-256 (hex), and its rows if it is a table."""

    path: str
    bytes: Count
    rows: Count | None
    sha256: Sha256

    def __post_init__(self) -> None:
        name_within(self.path)


def describe(folder: Path, name: str, rows: int | None = None) -> FileEntry:
    """Return the entry of a file of ``folder``."""
    path = folder / name
    return FileEntry(name, path.stat().st_size, rows, sha256_of(path))


def wrong_file(path: Path, entry: FileEntry, look: Callable[[], str] | None = None, *, again: bool = False) -> str:
    """Describe what is wrong with a file; empty if it has the bytes that its entry says.

    ``look`` describes what is wrong with the content of a file that has these bytes; it depends on bytes and entry
    alone. ``again``: read the file even if it was verified before.
    """
    more = structs.astuple(entry)[4:]  # of a kind of entry that says more
    claim = ["file of a release", entry.path if look else "", entry.sha256, entry.rows, *more]

    def fault() -> str:
        return other_sha256(path, entry.sha256) or (look() if look else "")

    try:
        found = path.stat()
        if not stat.S_ISREG(found.st_mode):
            return "is no regular file"
        if found.st_size != entry.bytes:
            return f"has {found.st_size:,} bytes where the manifest says {entry.bytes:,}"
        return fault_once(path, claim, fault, again=again)
    except FileNotFoundError:
        return "is listed in the manifest but missing"
    except OSError as error:
        return f"cannot be read ({error.strerror})"


def fault_once(path: Path, claim: Any, look: Callable[[], str], *, again: bool = False) -> str:
    """Describe what ``look`` finds wrong with the content of a file; empty if it finds nothing.

    Not called where it has found nothing in this very file (device, inode, size, mtime, ctime) for this ``claim``
    before, unless ``again``. The claim has all that it compares with, as JSON values. Where the user's cache cannot be
    written, it is called once a process.
    """
    started, file = time.time_ns(), path.stat()
    note = _note(file, claim)
    if not again and (note in _here or os.path.exists(note)):
        return ""
    fault = look()
    if not fault and started - max(file.st_mtime_ns, file.st_ctime_ns) > _SETTLED and _note(path.stat(), claim) == note:
        _here.add(note)
        with contextlib.suppress(OSError):  # no place for it: then it is looked again, which is no error
            note.parent.mkdir(parents=True, exist_ok=True)
            note.touch()
    return fault


def other_sha256(path: Path, sha256: str) -> str:
    """In words that the SHA-256 (hex) of a file is another one; empty where it is not."""
    found = sha256_of(path)
    return "" if found == sha256 else f"has the SHA-256 {found} where {sha256} is expected"


def wrong_sha256(path: Path, sha256: str) -> str:
    """:func:`other_sha256`, for which the file is read once: see :func:`fault_once`."""
    return fault_once(path, ["sha256", sha256], lambda: other_sha256(path, sha256))


def _note(file: os.stat_result, claim: Any) -> Path:
    # No program can set ctime: it also moves where an edit in place puts the old mtime back.
    key = key_of([file.st_dev, file.st_ino, file.st_size, file.st_mtime_ns, file.st_ctime_ns, claim])
    return caches() / "checked" / key
