"""Directories that are never half-written: made beside their place, synced, renamed into it."""

from __future__ import annotations

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
from builders.core.files import alone, fsync, kind_of, real_path
from builders.core.limits import writing


def check_output(out: Path, what: str, mark: str) -> Path:
    """The directory to write, links followed (:func:`.files.real_path`): new, empty, or earlier, with ``mark``.

    ``what`` is its kind, as an error names it: ``a release``. :class:`InputError` where something else is there.
    """
    out = real_path(out)
    if out.exists() and not (out / mark).is_file() and not (out.is_dir() and not any(out.iterdir())):
        kind = what.split(" ", 1)[1]
        raise InputError(f"exists and is not {what}; expected a new path or an earlier {kind}", path=out)
    return out


def key_of(about: Any) -> str:
    """A name for all that a work depends on, given as JSON values: 24 hex digits."""
    return hashlib.sha256(json.dumps(about, sort_keys=True).encode()).hexdigest()[:24]


@contextlib.contextmanager
def work_beside(out: Path, key: str = "", *, resume: bool = True, wait: bool = False) -> Iterator[Path]:
    """A folder beside ``out`` for the work that leads to it, removed when the block ends.

    With a ``key`` (:func:`key_of`) it stays after a kill, and after every error but one of the input: the next block of
    the same key finds it as it was, unless ``resume`` is False. Work of any other key is dropped. ``wait`` for another
    process that makes the same; where False, that is an :class:`InputError`, as is a stream in the place of ``out``.
    """
    if kind_of(out) == "stream":
        raise InputError("is a device or a pipe; expected a name that the work can lie beside", path=out)
    out = real_path(out)
    building = _building(out)
    work = building / (key or "work")
    with alone(building, out, wait=wait):
        old = _old(out)  # what a kill has left of a replacement
        if out.exists():
            remove_tree(old)
        elif old.exists():
            old.rename(out)
        for other in building.glob("*"):
            if not (key and resume and other.name == key):
                remove_tree(other)
        work.mkdir(parents=True, exist_ok=True)
        try:
            # Here, before the work is removed: it is what has filled the disk.
            with writing(work):
                yield work
        except BaseException as error:
            wrong = isinstance(error, InputError) and not isinstance(error, Unfinished)
            if wrong or not key or not any(work.glob("*")):
                _discard(work)
            raise
        _discard(work)


def remove_tree(path: Path) -> None:
    """Remove a directory or a file, if it is there."""
    shutil.rmtree(path, ignore_errors=True)
    if path.is_file():
        path.unlink()


def _building(out: Path) -> Path:
    """The folder of the work that leads to ``out``: what a killed process leaves, and the next one finds."""
    return out.with_name(f".{out.name}.building")


def _old(out: Path) -> Path:
    """The place of ``out`` while a new one replaces it."""
    return out.with_name(f".{out.name}.old")


def _discard(work: Path) -> None:
    """Remove a work folder; killed meanwhile, nothing is left that looks like finished work."""
    if work.exists():
        work = work.rename(work.with_name("discarded"))
    remove_tree(work)
    with contextlib.suppress(OSError):  # what could not be removed is in it
        work.parent.rmdir()


@contextlib.contextmanager
def new_directory(out: Path, what: str, mark: str) -> Iterator[Path]:
    """Yield the folder to write to: the directory ``out`` appears when the block ends without an error.

    Arguments and errors as of :func:`check_output`; an earlier directory of the kind is replaced.
    """
    out = check_output(out, what, mark)
    with work_beside(out) as work:
        yield work
        replace_directory(work, out)


def build_once(folder: Path, is_whole: Callable[[], bool], build: Callable[[Path], None]) -> bool:
    """Have a kept directory made where it is missing or damaged; returns whether it was made now.

    ``is_whole`` tells if it is there, as it was made; ``build`` writes its files into the folder that it is given.
    """
    if is_whole() and not (_building(folder).exists() or _old(folder).exists()):  # left by a kill
        return False
    with work_beside(folder, wait=True) as work:
        if is_whole():  # another process was first
            return False
        build(work)
        replace_directory(work, folder)
    return True


def replace_directory(new: Path, target: Path) -> None:
    """Sync the finished directory ``new`` and put it in the place of ``target``, which may exist (an older one).

    A kill between the two renames leaves no ``target``, never a mixture; the next command finds the old one, and puts
    it back.
    """
    target = real_path(target)
    for folder, _, names in os.walk(new):
        for name in names:
            fsync(Path(folder) / name)
        fsync(Path(folder))
    old = _old(target)
    shutil.rmtree(old, ignore_errors=True)
    if target.exists():
        os.rename(target, old)
    os.rename(new, target)
    fsync(target.parent)
    if old.exists():
        log.info("replaced the earlier %s", target)
        shutil.rmtree(old, ignore_errors=True)


@contextlib.contextmanager
def task_folder(final: Path) -> Iterator[Path]:
    """Yield the folder to write to: ``final``, the result of one task, appears when all files are written.

    The same task gives the same files, wherever it runs: the first process to finish it is the one that counts.
    """
    half = Path(tempfile.mkdtemp(prefix=f"{final.name}.", suffix=".half", dir=final.parent))
    with writing(final.parent):
        yield half
    try:
        half.rename(final)
    except OSError:
        if not final.is_dir():
            raise
        shutil.rmtree(half)
