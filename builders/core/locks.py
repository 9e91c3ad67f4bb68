"""Locks, and temporary folders that no killed process leaves for ever: the next command that needs one removes them."""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

from builders.core.errors import InputError, log
from builders.core.limits import writing


def lock_of(place: Path) -> Path:
    """The lock of a place: a file beside it, never in it, so that the place can be removed while it is held."""
    return place.with_name(f".{place.name.lstrip('.')}.lock")


@contextlib.contextmanager
def alone(place: Path, shown: Path, *, wait: bool = False) -> Iterator[None]:
    """Hold the lock of ``place`` for the block.

    A killed process lets go of it: the next one finds the file (:func:`lock_of`), takes it, and removes it at the end.

    Args:
        place: what one process at a time may make; its parent folder is made.
        shown: how errors call it.
        wait: for the other process; where False, that is an :class:`InputError`.
    """
    from filelock import FileLock, Timeout

    path = lock_of(place)
    place.parent.mkdir(parents=True, exist_ok=True)
    lock = FileLock(path)
    try:
        lock.acquire(timeout=0)
    except Timeout:
        if not wait:
            raise InputError("is being built by another process", path=shown) from None
        log.info("waiting for another process that builds the same (%s)", shown)
        lock.acquire()
    owner = os.getpid()
    try:
        yield
    finally:
        if os.getpid() == owner:  # a forked process has no part in it
            # Before it is let go: whoever waits for the removed file sees that it is, and begins again with a new one.
            path.unlink(missing_ok=True)
            lock.release()


_NAME = "dureader-"


@contextlib.contextmanager
def temporary_folder(inside: Path | None = None) -> Iterator[Path]:
    """A folder for the block in ``inside``, or in TMPDIR, removed at its end. :class:`DiskFull` where that is full.

    It is locked as long as its process lives: so one that a killed process has left is told from one in use.
    """
    home = Path(tempfile.gettempdir() if inside is None else inside)
    with writing(home), contextlib.ExitStack() as held:
        for lock in home.glob(lock_of(home / f"{_NAME}*").name):
            _remove_left(home / lock.name[1:].removesuffix(lock.suffix))
        while True:
            folder = home / f"{_NAME}{secrets.token_hex(4)}"
            with contextlib.suppress(InputError):  # another process has just taken it for a left one
                held.enter_context(alone(folder, folder))
                break
        held.callback(_remove_own, folder, os.getpid())
        folder.mkdir(0o700)
        yield folder


def _remove_own(folder: Path, owner: int) -> None:
    if os.getpid() == owner:  # a forked process that lets go of it has no part in it
        shutil.rmtree(folder, ignore_errors=True)


def _remove_left(folder: Path) -> None:
    with contextlib.suppress(InputError, OSError), alone(folder, folder):  # in use; another user's
        shutil.rmtree(folder, ignore_errors=True)
