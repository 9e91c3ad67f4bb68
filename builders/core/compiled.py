"""Compile loops with numba. The machine code is cached beside the source, or under ~/.cache."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numba

from builders.core.errors import log


def compiled(function: Callable[..., Any]) -> Any:
    """Compile ``function`` to machine code that runs without the interpreter's lock. A decorator."""
    try:
        return numba.njit(cache=True, nogil=True)(function)
    except RuntimeError:  # no cache folder is writable
        _warn()
        return numba.njit(nogil=True)(function)


@functools.cache
def _warn() -> None:
    log.warning(
        "numba cannot write its cache and compiles again in every process; set NUMBA_CACHE_DIR to a writable folder"
    )
