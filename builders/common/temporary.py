"""Temporary folders that no killed process leaves for ever: the next command that needs one removes them."""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

from builders.common.command import InputError
from builders.common.disks import writing
from builders.common.locks import alone, lock_of

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
