"""Limits of cores and memory (``ulimit``), and clear errors for full disks.

Libraries reserve more memory than they use: pyarrow 1 GB, and each thread 72 MB. Some libraries crash with a
segmentation fault if the reservation fails. Under a memory limit, this module therefore makes libraries reserve less
memory and start fewer threads.
"""

import contextlib
import ctypes
import errno
import os
import re
import shutil
import threading
from collections.abc import Iterator
from pathlib import Path

from builders.core.errors import Unfinished

_A_CORE = 2 << 30  # bytes of address space for each core, because every library starts a thread on each core
_ARENAS = -8  # M_ARENA_MAX of glibc's malloc.h
# Environment variables that set the number of threads: OpenMP (torch, FAISS, Arrow), BLAS, numba, Rust libraries.
_THREADS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "NUMBA_NUM_THREADS", "RAYON_NUM_THREADS")
_ERRNOS = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
# numpy, torch and DuckDB report a full disk in these words, without the system's errno and message.
_WORDS = re.compile(
    r"\d+ requested and \d+ written|file write failed|unexpected pos \d+ vs|max_temp_directory_size|write all bytes"
)
_of_thread = threading.local()  # the folders of the active `writing` blocks of each thread


def memory_limit() -> int | None:
    """Return the memory limit of this process in bytes; None without a ``ulimit``."""
    try:
        import resource
    except ImportError:  # Windows
        return None
    limits = [resource.getrlimit(kind)[0] for kind in (resource.RLIMIT_AS, resource.RLIMIT_DATA)]
    return min((limit for limit in limits if limit != resource.RLIM_INFINITY), default=None)


def usable_cores() -> int:
    """Return the number of cores that this process may use, reduced if the memory limit is low."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    limit = memory_limit()
    return cores if limit is None else max(1, min(cores, limit // _A_CORE))


def reserve_little() -> None:
    """Make libraries that are imported later reserve little memory, if memory is limited.

    Environment variables that are already set keep their values.
    """
    if memory_limit() is None:
        return
    few = dict.fromkeys(_THREADS, str(usable_cores()))
    for name, value in {**few, "ARROW_DEFAULT_MEMORY_POOL": "system", "MALLOC_ARENA_MAX": "1"}.items():
        os.environ.setdefault(name, value)
    with contextlib.suppress(AttributeError, OSError):  # the C library is not glibc
        ctypes.CDLL(None).mallopt(_ARENAS, 1)  # MALLOC_ARENA_MAX only affects child processes


class DiskFull(Unfinished):
    """A disk is full, or a quota or the maximum size of a file is reached."""


@contextlib.contextmanager
def writing(place: Path) -> Iterator[None]:
    """Raise :class:`DiskFull` if the block, which writes to the folder ``place``, fails because a disk is full.

    If blocks are nested, the error names the folder whose disk has the least free space.
    """
    if not hasattr(_of_thread, "places"):
        _of_thread.places = []
    places: list[Path] = _of_thread.places
    places.append(place)
    try:
        yield
    except Exception as error:
        reason = full_disk(error)
        if isinstance(error, DiskFull) or not reason:
            raise
        named = min(reversed(places), key=_free)
        raise DiskFull(f"{named}: {reason}; free some space there, and run the same command again") from error
    finally:
        places.remove(place)  # of this thread's list, also if a generator is closed by another thread


def _free(place: Path) -> int:
    place = place.absolute()
    return shutil.disk_usage(next(folder for folder in (place, *place.parents) if folder.exists())).free


def full_disk(error: BaseException) -> str:
    """Return the system's message if a full disk or quota caused the error or one of its causes; otherwise empty."""
    cause: BaseException | None = error
    while cause is not None:
        message = str(cause).lower()
        for number in _ERRNOS:
            words = os.strerror(number).lower()
            if getattr(cause, "errno", None) == number or words in message:
                return words
        if _WORDS.search(message):
            return os.strerror(errno.ENOSPC).lower()
        cause = cause.__cause__ or (None if cause.__suppress_context__ else cause.__context__)
    return ""
