"""Atomic directories: written under a temporary name, synced to disk, then renamed."""

import contextlib
import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from builders.core.errors import InputError, Unfinished, log
from builders.core.limits import convert_full_disk
from builders.core.locks import hold_lock, lock_path_of
from builders.core.paths import kind_of, real_path
from builders.core.write_files import fsync, unfinished_path

_KEY_DIGITS = 24


def check_output(out: Path, what: str, mark: str) -> Path:
    """Return the real path of a directory to write (:func:`.paths.real_path`).

    Raise :class:`InputError` if ``out`` is a file, or a directory that is neither empty nor an earlier output. Every
    output contains the file ``mark``. ``what`` names the kind of output in the error, for example ``a release``.
    """
    out = real_path(out)
    is_earlier_output = (out / mark).is_file()
    if not out.exists() or is_earlier_output:
        return out
    is_empty_folder = out.is_dir() and not any(out.iterdir())
    if not is_empty_folder:
        output_kind = what.split(" ", 1)[1]  # "release" of "a release"
        raise InputError(f"exists and is not {what}; expected a new path or an earlier {output_kind}", path=out)
    return out


def key_of(values: Any) -> str:
    """Return a hash of JSON values as 24 hex digits: a key for work that depends on these values."""
    text = json.dumps(values, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:_KEY_DIGITS]


@contextlib.contextmanager
def work_beside(out: Path, key: str = "", *, resume: bool = True, wait: bool = False) -> Iterator[Path]:
    """Yield a work folder beside ``out``. The work folder is removed when the block ends.

    If ``key`` (:func:`key_of`) is not empty, the work folder survives a kill and any error except wrong input. The next
    block with the same key resumes in the same folder, unless ``resume`` is False. Work folders of other keys are
    removed. With ``wait``, the call waits for another process that writes the same output.

    Raises :class:`InputError` if another process writes the output (without ``wait``), or ``out`` is a device or pipe.
    """
    if kind_of(out) == "stream":
        raise InputError("is a device or a pipe; expected the name of a file or directory", path=out)
    out = real_path(out)
    building_folder = _building_folder(out)
    work_folder = building_folder / (key or "work")
    with hold_lock(building_folder, out, wait=wait):
        # Complete or undo a replacement of ``out`` that a kill has interrupted.
        old_output = earlier_output(out)
        if out.exists():
            remove_tree(old_output)
        elif old_output.exists():
            old_output.rename(out)
        # Remove the work of killed calls, except the work that this call resumes.
        for earlier_work in building_folder.glob("*"):
            can_resume = key and resume and earlier_work.name == key
            if not can_resume:
                remove_tree(earlier_work)
        work_folder.mkdir(parents=True, exist_ok=True)
        try:
            # The block ends before the work folder is removed, because convert_full_disk compares the free space of
            # disks, and the work folder may be what fills its disk.
            with convert_full_disk(work_folder):
                yield work_folder
        except BaseException as error:
            is_wrong_input = isinstance(error, InputError) and not isinstance(error, Unfinished)
            if is_wrong_input or not key or not any(work_folder.glob("*")):
                _discard(work_folder)
            raise
        _discard(work_folder)


def remove_abandoned_work(out: Path) -> None:
    """Remove what a killed call left beside a finished output, unless another process uses it.

    Left may be the work folder (:func:`work_beside`), the temporary file (:func:`.write_files.unfinished_path`), and
    their locks.
    """
    out = real_path(out)
    for left_path in (_building_folder(out), unfinished_path(out)):
        if left_path.exists() or lock_path_of(left_path).exists():
            # hold_lock raises InputError if the lock is in use. What cannot be changed is kept.
            with contextlib.suppress(InputError, OSError), hold_lock(left_path, out):
                remove_tree(left_path)


def states_of_output(out: Path, mark: str) -> set[tuple[int, int] | None]:
    """Return the states in which a later :func:`work_beside` may find an output that nobody else writes meanwhile.

    A state is the inode and the mtime of the output's file ``mark``, or None without the file. The output may also be
    restored from :func:`earlier_output`.
    """
    return {None, _state_of(out / mark), _state_of(earlier_output(out) / mark)}


def expect_known_output(out: Path, mark: str, known_states: set[tuple[int, int] | None]) -> None:
    """Raise :class:`InputError` if another call has replaced an output since :func:`states_of_output`.

    ``mark`` is the file by which that function tells the states, and ``known_states`` is its result. Call this function
    after waiting for a lock, before the output of a call with other inputs would be replaced.
    """
    if _state_of(out / mark) not in known_states:
        raise InputError("was just written by another call with other inputs or options; choose another path", path=out)


def _state_of(path: Path) -> tuple[int, int] | None:
    """Return the inode and the mtime of a file; None without the file."""
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_ino, status.st_mtime_ns


def remove_tree(path: Path) -> None:
    """Remove a directory or a file if it exists."""
    shutil.rmtree(path, ignore_errors=True)
    if path.is_file():
        path.unlink()


def _building_folder(out: Path) -> Path:
    return out.with_name(f".{out.name}.building")


def earlier_output(out: Path) -> Path:
    """Return the path of the earlier output while :func:`replace_directory` replaces ``out``."""
    return out.with_name(f".{out.name}.old")


def _discard(work_folder: Path) -> None:
    """Rename and then remove a work folder, so that a kill leaves nothing that looks like finished work."""
    if work_folder.exists():
        work_folder = work_folder.rename(work_folder.with_name("discarded"))
    remove_tree(work_folder)
    with contextlib.suppress(OSError):  # fails if files in the parent could not be removed
        work_folder.parent.rmdir()


@contextlib.contextmanager
def new_directory(out: Path, what: str, mark: str) -> Iterator[Path]:
    """Yield a temporary folder, which becomes the directory ``out`` when the block ends without an error.

    An earlier output is replaced. Arguments and errors are those of :func:`check_output`.
    """
    out = check_output(out, what, mark)
    with work_beside(out) as work_folder:
        yield work_folder
        replace_directory(work_folder, out)


def build_once(folder: Path, is_complete: Callable[[], bool], build: Callable[[Path], None]) -> bool:
    """Build a cached directory if it is missing or damaged. Return True if it was built.

    ``is_complete`` returns True if the directory is complete and undamaged. ``build`` writes files into a given folder.
    """
    if is_complete():
        # A killed process may leave these two folders, which work_beside() removes.
        has_leftovers = _building_folder(folder).exists() or earlier_output(folder).exists()
        if not has_leftovers:
            return False
    with work_beside(folder, wait=True) as work_folder:
        if is_complete():  # another process has built the directory in the meantime
            return False
        build(work_folder)
        replace_directory(work_folder, folder)
    return True


def replace_directory(finished_folder: Path, target: Path) -> None:
    """Sync a finished directory to disk and rename it to ``target``, replacing an older directory.

    A kill between the two renames leaves no ``target``. The next :func:`work_beside` then restores the old directory.
    """
    target = real_path(target)
    # Everything is on disk before the renames, so that ``target`` never has incomplete files.
    for folder_name, _, file_names in os.walk(finished_folder):
        folder = Path(folder_name)
        for file_name in file_names:
            fsync(folder / file_name)
        fsync(folder)
    old_output = earlier_output(target)
    shutil.rmtree(old_output, ignore_errors=True)
    if target.exists():
        os.rename(target, old_output)
    os.rename(finished_folder, target)
    fsync(target.parent)
    if old_output.exists():
        log.info("replaced the earlier %s", target)
        shutil.rmtree(old_output, ignore_errors=True)


@contextlib.contextmanager
def task_folder(final_folder: Path) -> Iterator[Path]:
    """Yield a temporary folder for the result of a task. The folder is renamed to ``final_folder`` at the block's end.

    If ``final_folder`` already exists, another process has finished the same task first. The new folder is then
    removed, because the same task always gives the same files.
    """
    parent_folder = final_folder.parent
    temporary_path = tempfile.mkdtemp(prefix=f"{final_folder.name}.", suffix=".half", dir=parent_folder)
    unfinished_folder = Path(temporary_path)
    with convert_full_disk(parent_folder):
        yield unfinished_folder
    try:
        unfinished_folder.rename(final_folder)
    except OSError:
        if not final_folder.is_dir():
            raise
        shutil.rmtree(unfinished_folder)
