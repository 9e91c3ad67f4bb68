"""Entries of manifests (path, size, rows, SHA-256), and a cache of files that were verified against them.

:func:`describe_file` makes a :class:`FileEntry`. :func:`wrong_file` compares a file with its entry, and reads an
unchanged file only once. The user's cache records verified files. A record is valid until the file's inode, size, mtime
or ctime changes. A record is an empty file whose name is a hash, so processes need no lock."""

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
from builders.core.folders import key_of
from builders.core.read_files import sha256_of
from builders.core.typed import Count, Sha256, name_within

_verified_here: set[Path] = set()  # records made by this process, for a cache that is not writable
_checksums_here: dict[Path, str] = {}  # checksums computed or read by this process
# Nanoseconds. Younger files are not recorded, because some file systems store times in steps of 2 seconds.
_SETTLED_AFTER = 2 * 10**9
_CHECKSUM_CLAIM = "its SHA-256"


def cache_folder() -> Path:
    """Return the user's cache folder, which may not exist.

    The folder is the first of these: ``$DUREADER_RETRIEVAL_CACHE``; ``$XDG_CACHE_HOME/dureader_retrieval``, on every
    system; the system's folder for caches (Linux: ``~/.cache/dureader_retrieval``).
    """
    own_folder = os.environ.get("DUREADER_RETRIEVAL_CACHE")
    if own_folder:
        return Path(own_folder).expanduser()
    parent_folder = os.environ.get("XDG_CACHE_HOME")
    if parent_folder:
        return Path(parent_folder) / "dureader_retrieval"
    # Imported here, because a bare CUDA image may lack the library. There, a variable names the folder.
    from platformdirs import user_cache_dir

    return Path(user_cache_dir("dureader_retrieval", appauthor=False))


def writable_cache(*names: str) -> Path:
    """Return a folder in the user's cache, which is created if necessary. ``names`` are the parts of its path.

    Raises :class:`InputError` with the environment variable that selects another folder.
    """
    folder = cache_folder().joinpath(*names)
    problem = ""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        problem = error.strerror or str(error)
    if not problem and not os.access(folder, os.W_OK | os.X_OK):
        problem = "is not writable"
    if problem:
        raise InputError(f"{problem}; set DUREADER_RETRIEVAL_CACHE to a folder that can be written", path=folder)
    return folder


class FileEntry(Struct, frozen=True):
    """A file in a manifest: its path in the folder, its size, its rows if it is a table, and its SHA-256 (hex)."""

    path: str
    bytes: Count
    rows: Count | None
    sha256: Sha256

    def __post_init__(self) -> None:
        name_within(self.path)


def describe_file(folder: Path, name: str, rows: int | None = None) -> FileEntry:
    """Return the manifest entry of the file ``name`` (a relative path) in ``folder``. ``rows``: of a table."""
    file_path = folder / name
    return FileEntry(name, file_path.stat().st_size, rows, sha256_of(file_path))


def wrong_file(
    file_path: Path, entry: FileEntry, check: Callable[[], str] | None = None, *, again: bool = False
) -> str:
    """Describe the first difference between a file and its entry; empty if there is none.

    ``check`` is a further check, which runs after the SHA-256 is verified. ``check`` returns a description of the first
    fault, which may depend only on the file's bytes and the entry. With ``again``, the file is read even if the cache
    has a record of the file.
    """

    def find_fault() -> str:
        fault = other_sha256(file_path, entry.sha256)
        if not fault and check is not None:
            fault = check()
        return fault

    # A record is only valid for a claim with the same values. The result of ``check`` may depend on the path in the
    # release and on the fields that a subclass adds to FileEntry.
    added_fields = structs.astuple(entry)[len(FileEntry.__struct_fields__) :]
    checked_path = entry.path if check else ""
    claim = ["file of a release", checked_path, entry.sha256, entry.rows, *added_fields]
    try:
        status = file_path.stat()
        if not stat.S_ISREG(status.st_mode):
            return "is not a regular file"
        if status.st_size != entry.bytes:
            return f"has {status.st_size:,} bytes, but the manifest lists {entry.bytes:,}"
        return fault_once(file_path, claim, find_fault, again=again)
    except FileNotFoundError:
        return "is listed in the manifest but missing"
    except OSError as error:
        return f"cannot be read ({error.strerror})"


def fault_once(file_path: Path, claim: Any, find_fault: Callable[[], str], *, again: bool = False) -> str:
    """Return the fault that ``find_fault`` reports for a file; empty if the file is valid.

    ``find_fault`` is skipped if an earlier call with the same ``claim`` found this file valid. With ``again``,
    ``find_fault`` always runs. A file is identified by device, inode, size, mtime and ctime. ``claim`` is a JSON value
    with the name of the check and all values that it expects. If the user's cache is not writable, ``find_fault`` runs
    once in each process.
    """
    start_time = time.time_ns()
    status = file_path.stat()
    record_path = _record_path(status, claim)
    if not again and (record_path in _verified_here or os.path.exists(record_path)):
        return ""
    fault = find_fault()
    # The file may have changed while it was read.
    if not fault and _is_settled(status, start_time) and _record_path(file_path.stat(), claim) == record_path:
        _verified_here.add(record_path)
        with contextlib.suppress(OSError):  # without a record, the file is verified again next time
            record_path.parent.mkdir(parents=True, exist_ok=True)
            record_path.touch()
    return fault


def other_sha256(file_path: Path, expected_sha256: str) -> str:
    """Describe the difference between a file's SHA-256 and the expected one (hex); empty if they are equal."""
    actual_sha256 = sha256_of(file_path)
    if actual_sha256 == expected_sha256:
        return ""
    return f"has the SHA-256 {actual_sha256}, expected {expected_sha256}"


def wrong_sha256(file_path: Path, expected_sha256: str) -> str:
    """Return the result of :func:`other_sha256`, but read an unchanged file only once (:func:`fault_once`)."""
    return fault_once(file_path, ["sha256", expected_sha256], lambda: other_sha256(file_path, expected_sha256))


def cached_sha256(file_path: Path) -> str:
    """Return the SHA-256 of a file (hex). An unchanged file is read only once (:func:`fault_once`).

    The user's cache has a file with the checksum, whose name is a hash of the read file's identity.
    """
    start_time = time.time_ns()
    status = file_path.stat()
    record_path = _record_path(status, _CHECKSUM_CLAIM)
    if record_path not in _checksums_here:
        with contextlib.suppress(OSError, UnicodeDecodeError):
            text = record_path.read_text(encoding="ascii")
            if re.fullmatch("[0-9a-f]{64}", text):  # a full disk may have cut the text
                _checksums_here[record_path] = text
    if record_path in _checksums_here:
        return _checksums_here[record_path]
    sha256 = sha256_of(file_path)
    # The file may have changed while it was read.
    if _is_settled(status, start_time) and _record_path(file_path.stat(), _CHECKSUM_CLAIM) == record_path:
        _checksums_here[record_path] = sha256
        with contextlib.suppress(OSError):
            record_path.parent.mkdir(parents=True, exist_ok=True)
            # Renamed when complete, because another process may read the record meanwhile.
            temporary_path = record_path.with_name(f"{record_path.name}.{os.getpid()}")
            temporary_path.write_text(sha256, encoding="ascii")
            os.replace(temporary_path, record_path)
    return sha256


def _is_settled(status: os.stat_result, start_time: int) -> bool:
    """True if a file was old enough at ``start_time`` (ns), so that a later change gives the file another mtime."""
    last_change = max(status.st_mtime_ns, status.st_ctime_ns)
    return start_time - last_change > _SETTLED_AFTER


def _record_path(status: os.stat_result, claim: Any) -> Path:
    """Return the path of the cache's record of a ``claim`` (any JSON value) about a file with this status."""
    # ctime detects an edit that restores the old mtime, because programs cannot set ctime.
    identity = [status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns, claim]
    return cache_folder() / "checked" / key_of(identity)
