"""Threads: how many there may be, and a map over them that keeps the order and holds little."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from builders.common import jobs as processes

Item = TypeVar("Item")
Result = TypeVar("Result")


def usable_cores() -> int:
    """The cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def in_order(
    function: Callable[[Item], Result], items: Iterable[Item], threads: int, ahead: int | None = None
) -> Iterator[Result]:
    """``map`` over threads, in order; at most ``ahead`` items (4 a thread) wait, are worked on or wait to be taken."""
    with ThreadPoolExecutor(threads) as pool:
        yield from processes.in_order(pool, function, items, 4 * threads if ahead is None else ahead)
