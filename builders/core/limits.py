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
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from builders.core.errors import InputError, Unfinished

_A_CORE = 2 << 30  # bytes of address space for a thread in each of the libraries
_LEAST = 1 << 30  # below this some libraries end in a segmentation fault
_ARENAS = -8  # M_ARENA_MAX of glibc's malloc.h
# The variables by which libraries are told how many threads to start: OpenMP (torch, FAISS, Arrow, numba), BLAS, Rust.
_THREADS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "NUMBA_NUM_THREADS", "RAYON_NUM_THREADS")


def memory_limit() -> int | None:
    """The bytes that this process may have; None where nothing limits it but the machine."""
    return _limit("RLIMIT_AS", "RLIMIT_DATA")


def file_limit() -> int | None:
    """The bytes that a file of this process may have (``ulimit -f``); None where nothing limits them but the disk."""
    return _limit("RLIMIT_FSIZE")


def _limit(*kinds: str) -> int | None:
    try:
        import resource
    except ImportError:  # Windows
        return None
    limits = [resource.getrlimit(getattr(resource, kind))[0] for kind in kinds]
    return min((limit for limit in limits if limit != resource.RLIM_INFINITY), default=None)


def usable_cores() -> int:
    """The cores that this process may use, and has the memory for."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    limit = memory_limit()
    return cores if limit is None else max(1, min(cores, limit // _A_CORE))


def reserve_little() -> None:
    """Have libraries that are loaded from now on reserve little memory, if memory is limited.

    :class:`MemoryError` where it is too little for them. Variables that are set stay as they are.
    """
    limit = memory_limit()
    if limit is None:
        return
    if limit < _LEAST:
        raise MemoryError(f"ulimit -v or -d allows {limit >> 20} MB; at least {_LEAST >> 20} MB are needed")
    few = dict.fromkeys(_THREADS, str(usable_cores()))
    for name, value in {**few, "ARROW_DEFAULT_MEMORY_POOL": "system", "MALLOC_ARENA_MAX": "1"}.items():
        os.environ.setdefault(name, value)
    with contextlib.suppress(AttributeError, OSError):  # no glibc
        ctypes.CDLL(None).mallopt(_ARENAS, 1)  # the variable is for the processes that this one starts


_ERRNOS = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
_TOO_LARGE = os.strerror(errno.EFBIG).lower()
# numpy, torch and DuckDB do not hand on the system's number and words (those of Rust hand on the words).
_WORDS = re.compile(
    r"\d+ requested and \d+ written|file write failed|unexpected pos \d+ vs|max_temp_directory_size|write all bytes"
)
_NOTHING = 4096  # bytes free: less than a block
_places: list[Path] = []  # where the blocks of `writing` write that this process is in


class DiskFull(Unfinished):
    """A disk is full, a quota reached, or a file as large as it may be.

    What is done stays, where the command takes it up again.
    """


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
        raise _full(reason, _places) from error
    finally:
        _places.remove(place)


def unnamed(error: BaseException, reason: str) -> str:
    """The line for an error of a full disk that came up outside of :func:`writing`.

    That is the file that the error names. Else, where a library's error has become ours, the fuller of the disks that
    libraries write to by themselves (temporary files, the hub's cache of models); else such a disk without a free
    block, or stdout.
    """
    if file := getattr(error, "filename", None):
        return f"{file}: {reason}"
    places = [Path(tempfile.gettempdir())]
    if hub := sys.modules.get("huggingface_hub.constants"):
        places.append(Path(hub.HF_HUB_CACHE))
    if not isinstance(error, InputError):
        places = [place for place in places if _free(place)[0] < _NOTHING]
    return str(_full(reason, places)) if places else f"stdout: {reason}"


def _full(reason: str, places: list[Path]) -> DiskFull:
    free, disk, where = min((*_free(place), place) for place in places)
    if reason.startswith(_TOO_LARGE):
        if free >= _NOTHING:
            advice = "raise that limit" if file_limit() is not None else "choose a file system that takes larger ones"
            return DiskFull(f"{places[-1]}: {reason}; {advice}, and run the same command again")
        reason = os.strerror(errno.ENOSPC).lower()
    return DiskFull(
        f"{disk}: {reason} ({free:,} bytes are free), while writing to {where}; make room there, and run the same"
        " command again"
    )


def full_disk(error: BaseException) -> str:
    """The system's words where an error, or one that led to it, is that of a full disk or quota; else empty.

    So are those of a file that is as large as it may be, with the limit.
    """
    limit = file_limit()
    too_large = _TOO_LARGE if limit is None else f"{_TOO_LARGE} (ulimit -f allows {limit:,} bytes)"
    cause: BaseException | None = error
    while cause is not None:
        for number in _ERRNOS:
            if getattr(cause, "errno", None) == number or os.strerror(number).lower() in str(cause).lower():
                return too_large if number == errno.EFBIG else os.strerror(number).lower()
        if _WORDS.search(str(cause)):  # where there is a limit, that is nearer than the end of the disk
            return os.strerror(errno.ENOSPC).lower() if limit is None else too_large
        cause = cause.__cause__ or (None if cause.__suppress_context__ else cause.__context__)
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
