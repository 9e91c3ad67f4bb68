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
from collections.abc import Iterator, Sequence
from pathlib import Path

from builders.core.errors import Unfinished

# Bytes of address space for each core, because every library starts a thread on each core.
_BYTES_PER_CORE = 2 << 30
_MALLOC_ARENAS = -8  # M_ARENA_MAX of glibc's malloc.h
# Environment variables that set the number of threads: OpenMP (torch, FAISS, Arrow), BLAS, numba, Rust libraries.
_THREAD_VARIABLES = (
    "OMP_NUM_THREADS",
    "OPENBLAS_NUM_THREADS",
    "MKL_NUM_THREADS",
    "NUMBA_NUM_THREADS",
    "RAYON_NUM_THREADS",
)
_FULL_DISK_ERRNOS = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
# numpy, torch and DuckDB report a full disk in these words, without the system's errno and message.
_FULL_DISK_WORDS = re.compile(
    r"\d+ requested and \d+ written|file write failed|unexpected pos \d+ vs|max_temp_directory_size|write all bytes"
)
# The folders of the active convert_full_disk blocks of each thread.
_thread_state = threading.local()


def memory_limit() -> int | None:
    """Return the memory limit of this process in bytes; None without a ``ulimit``."""
    try:
        import resource
    except ImportError:  # Windows
        return None
    finite_limits = []
    for resource_number in (resource.RLIMIT_AS, resource.RLIMIT_DATA):
        soft_limit, _ = resource.getrlimit(resource_number)
        if soft_limit != resource.RLIM_INFINITY:
            finite_limits.append(soft_limit)
    return min(finite_limits, default=None)


def usable_cores() -> int:
    """Return the number of cores that this process may use, reduced if the memory limit is low."""
    core_count = os.cpu_count() or 1
    if hasattr(os, "sched_getaffinity"):  # neither on macOS nor on Windows
        core_count = len(os.sched_getaffinity(0))
    limit_bytes = memory_limit()
    if limit_bytes is None:
        return core_count
    return max(1, min(core_count, limit_bytes // _BYTES_PER_CORE))


def reserve_little() -> None:
    """Make libraries that are imported later reserve little memory, if memory is limited.

    Environment variables that are already set keep their values.
    """
    if memory_limit() is None:
        return
    thread_count = str(usable_cores())
    for variable in _THREAD_VARIABLES:
        os.environ.setdefault(variable, thread_count)
    os.environ.setdefault("ARROW_DEFAULT_MEMORY_POOL", "system")
    os.environ.setdefault("MALLOC_ARENA_MAX", "1")
    with contextlib.suppress(AttributeError, OSError):  # the C library is not glibc
        # MALLOC_ARENA_MAX only affects child processes.
        ctypes.CDLL(None).mallopt(_MALLOC_ARENAS, 1)


class DiskFull(Unfinished):
    """A disk is full, or a quota or the maximum size of a file is reached."""


@contextlib.contextmanager
def convert_full_disk(folder: Path) -> Iterator[None]:
    """Raise :class:`DiskFull` if the block, which writes to the folder ``folder``, fails because a disk is full.

    If blocks are nested, the error names the folder whose disk has the least free space.
    """
    if not hasattr(_thread_state, "open_folders"):
        _thread_state.open_folders = []
    # A local name, because another thread may close this generator, and must not change its own list.
    open_folders: list[Path] = _thread_state.open_folders
    open_folders.append(folder)
    try:
        yield
    except Exception as error:
        reason = full_disk(error)
        if isinstance(error, DiskFull) or not reason:
            raise
        message = (
            f"{_folder_on_fullest_disk(open_folders)}: {reason}; free some space there, and run the same command again"
        )
        raise DiskFull(message) from error
    finally:
        open_folders.remove(folder)


def _folder_on_fullest_disk(folders: Sequence[Path]) -> Path:
    """Return the folder whose disk has the least free space. On one disk, the last folder is the most specific."""
    # A disk is measured once, because other processes change its free space between two measurements.
    free_bytes: dict[int, int] = {}  # by the number of the device
    devices: dict[Path, int] = {}
    for folder in folders:
        absolute_path = folder.absolute()
        existing_folder = next(path for path in (absolute_path, *absolute_path.parents) if path.exists())
        devices[folder] = existing_folder.stat().st_dev
        if devices[folder] not in free_bytes:
            free_bytes[devices[folder]] = shutil.disk_usage(existing_folder).free
    return min(reversed(folders), key=lambda folder: free_bytes[devices[folder]])


def full_disk(error: BaseException) -> str:
    """Return the system's message (lower case) if a full disk or quota caused the error; otherwise empty.

    The error may also be a library's, with the full disk among its causes or in its words.
    """
    cause: BaseException | None = error
    while cause is not None:
        message = str(cause).lower()
        for error_number in _FULL_DISK_ERRNOS:
            system_message = os.strerror(error_number).lower()
            if getattr(cause, "errno", None) == error_number or system_message in message:
                return system_message
        if _FULL_DISK_WORDS.search(message):
            return os.strerror(errno.ENOSPC).lower()
        if cause.__cause__ is not None:
            cause = cause.__cause__
        elif cause.__suppress_context__:
            cause = None
        else:
            cause = cause.__context__
    return ""
