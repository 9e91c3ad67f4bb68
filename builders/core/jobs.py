"""Tasks on processes and threads: in their order, a bounded number in flight. Processes end with their parent."""

from __future__ import annotations

import concurrent.futures
import contextlib
import multiprocessing
import os
import signal
import sys
import tempfile
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from multiprocessing import util
from pathlib import Path
from typing import Any, TypeVar

from builders.core.errors import Unfinished, log
from builders.core.exit_codes import raise_if_stopped, say_once
from builders.core.files import temporary_folder

Pool = concurrent.futures.Executor
Task = TypeVar("Task")
Result = TypeVar("Result")


class WorkerDied(Unfinished):
    """A worker process was killed."""

    def __init__(self) -> None:
        super().__init__("a worker process died (out of memory, or of /dev/shm?); run again with fewer workers")


def start_worker() -> None:
    """Set up a worker process: it leaves Ctrl-C to its parent, and ends with it."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's to handle, once
    say_once()
    parent = multiprocessing.parent_process()
    assert parent is not None

    def watch() -> None:
        parent.join()  # a killed parent would leave its workers waiting for ever
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


_SOCKET = 104 - len("/dureader-01234567/listener-01234567\0")  # the shortest limit of a path of one: macOS's

# Not in the finalizer alone: a forked process forgets those, and would let go of the folder, which removes it.
_held = contextlib.ExitStack()


def can_start_processes() -> bool:
    """True if worker processes can hand results on here; logs a warning if not.

    Their semaphores lie in /dev/shm, which some containers lack. Where they can, what multiprocessing keeps in TMPDIR
    is put into a folder of ours: its own (``pymp-*``) is left for ever by a killed process.
    """
    try:
        multiprocessing.Lock()
    except OSError as error:
        log.warning("no worker processes: this system has no semaphores (/dev/shm: %s); all is done in one", error)
        return False
    home = Path(tempfile.gettempdir())
    home = home if len(os.fsencode(home)) <= _SOCKET else Path("/tmp")
    config = multiprocessing.current_process()._config  # type: ignore[attr-defined]
    if not config.get("tempdir"):
        config["tempdir"] = str(_held.enter_context(temporary_folder(home)))
        util.Finalize(None, _held.close, exitpriority=-100)  # after all processes, as multiprocessing removes its own
    return True


@contextlib.contextmanager
def process_pool(workers: int) -> Iterator[Pool | None]:
    """A pool of ``workers`` processes, or None for one: the work is then done here."""
    if workers <= 1 or not can_start_processes():
        yield None
        return
    # Never a fork of this process: with threads (pyarrow's) it may hang.
    context = multiprocessing.get_context("forkserver" if sys.platform == "linux" else "spawn")
    with concurrent.futures.ProcessPoolExecutor(workers, mp_context=context, initializer=start_worker) as pool:
        try:
            yield pool
        except KeyboardInterrupt:
            for worker in multiprocessing.active_children():  # else the end of what they are at would be waited for
                worker.terminate()
            raise


def in_order(
    pool: Any | None, function: Callable[[Task], Result], tasks: Iterable[Task], ahead: int
) -> Iterator[Result]:
    """``function(task)`` for every task, in their order; at most ``ahead`` tasks are held. Raises WorkerDied.

    ``pool`` has ``submit``, as an executor.
    """
    if pool is None:
        yield from map(function, tasks)
        return
    running: deque[Any] = deque()
    try:
        for task in tasks:
            raise_if_stopped()
            running.append(pool.submit(function, task))
            if len(running) >= ahead:
                yield running.popleft().result()
        while running:
            raise_if_stopped()
            yield running.popleft().result()
    except BrokenProcessPool:
        raise WorkerDied from None
    except KeyboardInterrupt:
        if isinstance(pool, concurrent.futures.ProcessPoolExecutor):
            running.clear()  # process_pool stops its workers now, and Python would complain of tasks that are cancelled
        raise
    finally:
        for future in running:
            future.cancel()


@contextlib.contextmanager
def loading() -> Iterator[None]:
    """For a block that takes batches of the processes of a torch DataLoader: :class:`WorkerDied` where one is killed,
    or finds no room in /dev/shm for its tensors."""
    try:
        yield
    except RuntimeError as error:
        if str(error).startswith("DataLoader worker") or "shared memory(shm)" in str(error):
            raise WorkerDied from None
        raise


def in_threads(
    function: Callable[[Task], Result], tasks: Iterable[Task], threads: int, ahead: int | None = None
) -> Iterator[Result]:
    """:func:`in_order` on threads of this process; at most ``ahead`` tasks (4 a thread) are held."""
    with concurrent.futures.ThreadPoolExecutor(threads) as pool:
        yield from in_order(pool, function, tasks, 4 * threads if ahead is None else ahead)


@dataclass
class Engine:
    """Runs the tasks of a long job on processes of this machine, or on a cluster.

    ``workers`` tasks run at once, ``ahead`` are in flight. ``pool`` has ``submit``; without one, the tasks run here.
    """

    workers: int
    pool: Any | None
    ahead: int

    def map(self, function: Callable[[Task], Result], tasks: Iterable[Task]) -> Iterator[Result]:
        """``function(task)`` for every task, in their order.

        Tasks are taken as they are needed. Function, tasks and results travel between processes. What a task raises is
        raised here; :class:`WorkerDied` where its process is lost for good.
        """
        return in_order(self.pool, function, tasks, self.ahead)


@contextlib.contextmanager
def local_engine(workers: int) -> Iterator[Engine]:
    """Give the block an engine of ``workers`` processes of this machine."""
    with process_pool(workers) as pool:
        yield Engine(workers, pool, 2 * workers)
