"""One process, and one thread of it, at a time in a place."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

from builders.common.command import InputError, log


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
