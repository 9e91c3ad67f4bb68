"""Loops that numba compiles, once in a clone: what it has compiled is kept beside the source, or under ~/.cache."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numba

from builders.core.errors import log


def compiled(function: Callable[..., Any]) -> Any:
    """A decorator: ``function`` in machine code, which runs outside the interpreter's lock."""
    try:
        return numba.njit(cache=True, nogil=True)(function)
    except RuntimeError:  # no folder for its cache can be written
        _warn()
        return numba.njit(nogil=True)(function)


@functools.cache
def _warn() -> None:
    log.warning(
        "numba's cache cannot be written (no folder is writable): it compiles anew; NUMBA_CACHE_DIR names a folder"
    )
