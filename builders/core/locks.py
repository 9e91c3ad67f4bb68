"""Locks of files and folders, and temporary folders that no killed process leaves for ever."""

import contextlib
import os
import re
import secrets
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

from builders.core.errors import InputError, log
from builders.core.limits import convert_full_disk

_TEMPORARY_PREFIX = "dureader-"
_OWNER_ONLY = 0o700  # mode of a temporary folder
# Characters that DuckDB does not take literally in a path.
_DUCKDB_PATTERN = re.compile(r"[*?\[=\\]")


@contextlib.contextmanager
def hold_lock(locked_path: Path, shown_path: Path, *, wait: bool = False) -> Iterator[None]:
    """Lock the path ``locked_path`` while the block writes to it. Raise :class:`DiskFull` if the disk is full.

    The lock is a file beside ``locked_path``. The parent folder is created if necessary. A killed process leaves the
    lock file behind, unlocked, and the next process locks and removes this file. Messages name the path ``shown_path``.
    With ``wait``, the call waits for the lock. Otherwise, a locked path raises :class:`InputError`.
    """
    from filelock import FileLock, Timeout

    lock_path = lock_path_of(locked_path)
    owner_pid = os.getpid()
    lock = FileLock(lock_path)
    with convert_full_disk(locked_path.parent):
        locked_path.parent.mkdir(parents=True, exist_ok=True)
        try:
            lock.acquire(timeout=0)
        except Timeout:
            if not wait:
                raise InputError("is being built by another process", path=shown_path) from None
            log.info("waiting for another process that is building %s", shown_path)
            lock.acquire()
        try:
            yield
        finally:
            if os.getpid() == owner_pid:  # a forked process must not release its parent's lock
                # Removed before the release: a waiting process notices the removal and makes a new lock file.
                lock_path.unlink(missing_ok=True)
                lock.release()


def lock_path_of(locked_path: Path) -> Path:
    """Return the path of the lock file of :func:`hold_lock`."""
    # The name is hidden, so that listings of outputs skip the lock.
    return locked_path.with_name(f".{locked_path.name.lstrip('.')}.lock")


@contextlib.contextmanager
def temporary_folder(inside: Path | None = None) -> Iterator[Path]:
    """Yield a temporary folder in ``inside`` (default: TMPDIR), which is removed at the end of the block.

    The folder is locked while its process lives. The next command that needs a temporary folder removes the unlocked
    folders of killed processes. Raises :class:`DiskFull` if the disk is full.
    """
    if inside is None:
        inside = Path(tempfile.gettempdir())
    _remove_abandoned_folders(inside)
    with contextlib.ExitStack() as lock:
        while True:
            folder = inside / f"{_TEMPORARY_PREFIX}{secrets.token_hex(4)}"
            # Locked: another process has the same name, or removes it. Try another name.
            with contextlib.suppress(InputError):
                lock.enter_context(hold_lock(folder, folder))
                break
        folder.mkdir(_OWNER_ONLY)
        owner_pid = os.getpid()
        try:
            yield folder
        finally:
            if os.getpid() == owner_pid:  # a forked process must not remove its parent's folder
                shutil.rmtree(folder, ignore_errors=True)


def _remove_abandoned_folders(parent_folder: Path) -> None:
    """Remove the temporary folders of killed processes. A lock file ``.NAME.lock`` is beside each folder ``NAME``."""
    for lock_path in parent_folder.glob(f".{_TEMPORARY_PREFIX}*.lock"):
        abandoned_folder = parent_folder / lock_path.stem.removeprefix(".")
        # Suppressed errors: the folder is in use, or belongs to another user.
        with contextlib.suppress(InputError, OSError), hold_lock(abandoned_folder, abandoned_folder):
            shutil.rmtree(abandoned_folder, ignore_errors=True)


@contextlib.contextmanager
def plain_folder(folder: Path) -> Iterator[Path]:
    """Yield an absolute path of ``folder`` without the characters that DuckDB does not take literally.

    DuckDB reads ``*``, ``?`` and ``[`` of a path as a pattern, cuts the name of a database at ``?``, replaces a
    backslash by a slash, and reads a folder ``NAME=VALUE`` as a column of the files inside it. A folder with such a
    character gets a temporary link, which is removed at the end of the block. The path is absolute, because DuckDB
    also expands ``~`` and obeys prefixes such as ``s3:``.

    Raises :class:`InputError` if the system makes no links.
    """
    absolute_path = Path(os.path.abspath(folder))
    if not has_pattern(absolute_path):
        yield absolute_path
        return
    parent_folder = Path(tempfile.gettempdir())
    if has_pattern(parent_folder):
        parent_folder = Path("/tmp")
    with temporary_folder(parent_folder) as work_folder:
        link_path = work_folder / "folder"
        try:
            os.symlink(absolute_path, link_path, target_is_directory=True)
        except OSError as error:
            problem = f"has one of the characters * ? [ = \\ in its path, and cannot be linked ({error.strerror})"
            raise InputError(f"{problem}; rename the folder", path=folder) from error
        yield link_path


def has_pattern(path: Path) -> bool:
    """True if DuckDB does not take ``path`` literally (:func:`plain_folder`)."""
    return _DUCKDB_PATTERN.search(path.as_posix()) is not None
