"""Cores, memory and disks: what a process may use (``ulimit``), and one clear line for a full disk.

Libraries reserve more memory than they use: pyarrow 1 GB, each thread 72 MB. Where they do not get it, some end in a
segmentation fault. So where there is a limit, less is reserved, and fewer threads are started.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import re
import shutil
from collections.abc import Iterator
from pathlib import Path

from builders.core.errors import Unfinished

_A_CORE = 2 << 30  # bytes of address space for a thread in each of the libraries
_ARENAS = -8  # M_ARENA_MAX of glibc's malloc.h
# The variables by which libraries are told how many threads to start: OpenMP (torch, FAISS, Arrow, numba), BLAS, Rust.
_THREADS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "NUMBA_NUM_THREADS", "RAYON_NUM_THREADS")


def memory_limit() -> int | None:
    """The bytes that this process may have; None where nothing limits it but the machine."""
    try:
        import resource
    except ImportError:  # Windows
        return None
    limits = [resource.getrlimit(kind)[0] for kind in (resource.RLIMIT_AS, resource.RLIMIT_DATA)]
    return min((limit for limit in limits if limit != resource.RLIM_INFINITY), default=None)


def usable_cores() -> int:
    """The cores that this process may use, and has the memory for."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    limit = memory_limit()
    return cores if limit is None else max(1, min(cores, limit // _A_CORE))


def reserve_little() -> None:
    """Have libraries that are loaded from now on reserve little memory, if memory is limited.

    Variables that are set stay as they are.
    """
    if memory_limit() is None:
        return
    few = dict.fromkeys(_THREADS, str(usable_cores()))
    for name, value in {**few, "ARROW_DEFAULT_MEMORY_POOL": "system", "MALLOC_ARENA_MAX": "1"}.items():
        os.environ.setdefault(name, value)
    with contextlib.suppress(AttributeError, OSError):  # no glibc
        ctypes.CDLL(None).mallopt(_ARENAS, 1)  # the variable is for the processes that this one starts


_ERRNOS = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
# numpy, torch and DuckDB do not hand on the system's number and words (those of Rust hand on the words).
_WORDS = re.compile(
    r"\d+ requested and \d+ written|file write failed|unexpected pos \d+ vs|max_temp_directory_size|write all bytes"
)
_places: list[Path] = []  # where the blocks of `writing` write that this process is in


class DiskFull(Unfinished):
    """A disk is full, a quota reached, or a file as large as it may be.

    What is done stays, where the command takes it up again.
    """


@contextlib.contextmanager
def writing(place: Path) -> Iterator[None]:
    """Say so, as :class:`DiskFull`, where the block fails because a disk is full.

    ``place``: the folder that the block writes to. Blocks stand inside each other: the one with the fullest disk is
    named.
    """
    _places.append(place)
    try:
        yield
    except Exception as error:
        reason = full_disk(error)
        if isinstance(error, DiskFull) or not reason:
            raise
        named = min(reversed(_places), key=_free)
        raise DiskFull(f"{named}: {reason}; make room there, and run the same command again") from error
    finally:
        _places.remove(place)


def _free(place: Path) -> int:
    """The free bytes of the disk that ``place`` is on, or will be."""
    place = place.absolute()
    return shutil.disk_usage(next(folder for folder in (place, *place.parents) if folder.exists())).free


def full_disk(error: BaseException) -> str:
    """The system's words where an error, or one that led to it, is that of a full disk or quota; else empty."""
    cause: BaseException | None = error
    while cause is not None:
        said = str(cause).lower()
        for number in _ERRNOS:
            words = os.strerror(number).lower()
            if getattr(cause, "errno", None) == number or words in said:
                return words
        if _WORDS.search(said):
            return os.strerror(errno.ENOSPC).lower()
        cause = cause.__cause__ or (None if cause.__suppress_context__ else cause.__context__)
    return ""
