"""Full disks: told by what the many libraries that write say of them, and named."""

from __future__ import annotations

import contextlib
import errno
import os
import re
import shutil
from collections.abc import Iterator
from pathlib import Path

from builders.common.command import Unfinished

_ERRNOS = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
# numpy, torch and DuckDB do not hand on the system's number and words (those of Rust and FAISS hand on the words).
_WORDS = re.compile(
    r"\d+ requested and \d+ written|file write failed|unexpected pos \d+ vs|max_temp_directory_size|write all bytes"
)
_places: list[Path] = []  # where the blocks of `writing` write that this process is in


class DiskFull(Unfinished):
    """A disk is full, or a quota reached. What is done stays, where the command takes it up again."""


@contextlib.contextmanager
def writing(place: Path) -> Iterator[None]:
    """Say so, as :class:`DiskFull`, where the block fails because a disk is full.

    ``place``: the folder that the block writes to. Blocks stand inside each other: the fullest of their disks is named.
    """
    _places.append(place)
    try:
        yield
    except Exception as error:
        reason = full_disk(error)
        if isinstance(error, DiskFull) or not reason:
            raise
        free, disk, where = min((*_free(place), place) for place in _places)
        raise DiskFull(
            f"{disk}: {reason} ({free:,} bytes are free), while writing to {where}; make room there, and run the same"
            " command again"
        ) from error
    finally:
        _places.remove(place)


def full_disk(error: BaseException) -> str:
    """The system's words where an error, or one that led to it, is that of a full disk or quota; else empty."""
    cause: BaseException | None = error
    while cause is not None:
        for number in _ERRNOS:
            if getattr(cause, "errno", None) == number or os.strerror(number).lower() in str(cause).lower():
                return os.strerror(number).lower()
        if _WORDS.search(str(cause)):
            return os.strerror(errno.ENOSPC).lower()
        cause = cause.__cause__ or cause.__context__
    return ""


def _free(place: Path) -> tuple[int, Path]:
    """(the free bytes of the disk that ``place`` is on, or will be; where that disk is mounted)."""
    folder = Path(os.path.abspath(place))
    while not folder.exists():
        folder = folder.parent
    free = shutil.disk_usage(folder).free
    while not os.path.ismount(folder):
        folder = folder.parent
    return free, folder
