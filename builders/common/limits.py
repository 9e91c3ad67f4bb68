"""The cores that a process may use, and limits of its memory and its files (``ulimit``).

Libraries reserve more memory than they use: pyarrow 1 GB, each thread 72 MB. Where they do not get it, some end in a
segmentation fault. So where there is a limit, less is reserved, and fewer threads are started.
"""

from __future__ import annotations

import contextlib
import ctypes
import os

_A_CORE = 2 << 30  # bytes of address space for a thread in each of the libraries
_LEAST = 1 << 30  # below this some libraries end in a segmentation fault
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


def file_limit() -> int | None:
    """The bytes that a file of this process may have (``ulimit -f``); None where nothing limits them but the disk."""
    try:
        import resource
    except ImportError:  # Windows
        return None
    limit = resource.getrlimit(resource.RLIMIT_FSIZE)[0]
    return None if limit == resource.RLIM_INFINITY else limit


def usable_cores() -> int:
    """The cores that this process may use, and has the memory for."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    limit = memory_limit()
    return cores if limit is None else max(1, min(cores, limit // _A_CORE))


def reserve_little() -> None:
    """Where memory is limited, have the libraries that are loaded from now on reserve no more of it than they use.

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
