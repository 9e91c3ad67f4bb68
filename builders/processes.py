"""Worker processes: started clean, ended with their parent, with a bounded number of tasks in flight."""

from __future__ import annotations

import concurrent.futures
import contextlib
import multiprocessing
import os
import signal
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures.process import BrokenProcessPool
from typing import TypeVar

from builders.command import InputError

Pool = concurrent.futures.Executor
Task = TypeVar("Task")
Result = TypeVar("Result")


class WorkerDied(InputError):
    """A worker process was killed: not the input's fault, and finished parts may be kept for the next run."""

    def __init__(self) -> None:
        super().__init__("a worker process died (out of memory?); run again with fewer workers")


def _start() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's to handle, once
    parent = multiprocessing.parent_process()
    assert parent is not None

    def watch() -> None:
        parent.join()  # a killed parent would leave its workers waiting for ever
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


@contextlib.contextmanager
def process_pool(workers: int) -> Iterator[Pool | None]:
    """A pool of ``workers`` processes, or None for one: the work is then done here."""
    if workers <= 1:
        yield None
        return
    # Spawned, not forked: a fork of a process with threads (pyarrow's, tantivy's) may hang.
    context = multiprocessing.get_context("spawn")
    with concurrent.futures.ProcessPoolExecutor(workers, mp_context=context, initializer=_start) as pool:
        yield pool


def in_order(
    pool: Pool | None, function: Callable[[Task], Result], tasks: Iterable[Task], ahead: int
) -> Iterator[Result]:
    """``function(task)`` for every task, in their order; at most ``ahead`` tasks are held. Raises WorkerDied."""
    if pool is None:
        yield from map(function, tasks)
        return
    running: deque[concurrent.futures.Future[Result]] = deque()
    try:
        for task in tasks:
            running.append(pool.submit(function, task))
            if len(running) >= ahead:
                yield running.popleft().result()
        while running:
            yield running.popleft().result()
    except BrokenProcessPool:
        raise WorkerDied from None
    finally:
        for future in running:
            future.cancel()
