"""Run tasks on processes and threads. Results come in the order of the tasks, and few tasks are in memory at once."""

import concurrent.futures
import contextlib
import functools
import multiprocessing
import os
import signal
import tempfile
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from multiprocessing import util
from pathlib import Path
from typing import Any, Generic, TypeVar

from builders.core.errors import Unfinished, log
from builders.core.exit_codes import raise_if_stopped, say_once
from builders.core.files import temporary_folder

Pool = concurrent.futures.Executor
Task = TypeVar("Task")
Result = TypeVar("Result")
# Maximum length of TMPDIR. macOS has the shortest limit for a socket's path: 104 bytes.
_SOCKET = 104 - len("/dureader-01234567/listener-01234567\0")
_held = contextlib.ExitStack()  # keeps the temporary folder of multiprocessing until this process ends


class WorkerDied(Unfinished):
    """A worker process was killed."""

    def __init__(self) -> None:
        super().__init__("a worker process died (memory or /dev/shm may be full); run again with fewer workers")


def start_worker() -> None:
    """Set up a worker process, which ignores Ctrl-C and ends when its parent ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # only the parent handles Ctrl-C
    if hasattr(signal, "pthread_sigmask"):
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})  # the worker has started with Ctrl-C blocked
    say_once()
    parent = multiprocessing.parent_process()
    assert parent is not None

    def watch() -> None:
        # Without this thread, the workers of a killed parent would wait forever. The parent's id is its own record,
        # because the parent may be dead already, and os.getppid() then returns another process.
        if os.name == "nt":
            parent.join()
        while os.name != "nt" and os.getppid() == parent.pid:
            time.sleep(0.5)
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


def can_start_processes() -> bool:
    """True if this system can run worker processes; otherwise a warning is logged.

    Worker processes need semaphores in /dev/shm, which some containers lack. The function also moves the temporary
    files of multiprocessing into a :func:`.files.temporary_folder`, because a killed process would never remove its
    ``pymp-*`` folder. A daemonic process, for example a worker of ``multiprocessing.Pool``, may not start processes.
    """
    if multiprocessing.current_process().daemon:
        return False
    try:
        multiprocessing.Lock()
    except OSError as error:
        log.warning("this system has no semaphores (/dev/shm: %s); the work runs in a single process", error)
        return False
    home = Path(tempfile.gettempdir())
    home = home if len(os.fsencode(home)) <= _SOCKET else Path("/tmp")
    config = multiprocessing.current_process()._config  # type: ignore[attr-defined]
    if not config.get("tempdir"):
        config["tempdir"] = str(_held.enter_context(temporary_folder(home)))
        util.Finalize(None, _held.close, exitpriority=-100)  # runs after all processes have ended
    return True


@contextlib.contextmanager
def process_pool(workers: int) -> Iterator[Pool | None]:
    """Yield a pool of ``workers`` processes, or None if the work has to run in this process."""
    if workers <= 1 or not can_start_processes():
        yield None
        return
    from builders.core.worker_processes import WorkerPool

    pool = WorkerPool(workers, start_worker)
    try:
        with pool:
            try:
                yield pool
            except (KeyboardInterrupt, WorkerDied):
                pool.terminate_workers()  # otherwise the pool waits for the running tasks
                raise
    finally:
        pool.terminate_workers()  # a pool whose worker was killed forgets workers that were just starting


def in_order(
    pool: Any | None, function: Callable[[Task], Result], tasks: Iterable[Task], ahead: int
) -> Iterator[Result]:
    """Yield ``function(task)`` for every task, in order. At most ``ahead`` tasks are submitted and not yet yielded.

    ``pool`` has a method ``submit`` like an executor. Without a pool, the tasks run in this process. Raises
    :class:`WorkerDied` if a worker process is killed.
    """
    if pool is None:
        yield from map(function, tasks)
        return
    running: deque[Any] = deque()
    result_of = getattr(pool, "result_of", lambda future: future.result())
    try:
        for task in tasks:
            raise_if_stopped()
            running.append(pool.submit(function, task))
            if len(running) >= ahead:
                yield result_of(running.popleft())
        while running:
            raise_if_stopped()
            yield result_of(running.popleft())
    except BrokenProcessPool:
        raise WorkerDied from None
    except KeyboardInterrupt:
        if isinstance(pool, concurrent.futures.ProcessPoolExecutor):
            running.clear()  # not cancelled below, because process_pool stops the workers and Python would warn
        raise
    finally:
        for future in running:
            future.cancel()


@contextlib.contextmanager
def loading() -> Iterator[None]:
    """Raise :class:`WorkerDied` if a worker process of a torch DataLoader is killed, or finds /dev/shm full."""
    try:
        yield
    except RuntimeError as error:
        if str(error).startswith("DataLoader worker") or "shared memory(shm)" in str(error):
            raise WorkerDied from None
        raise


def in_threads(
    function: Callable[[Task], Result], tasks: Iterable[Task], threads: int, ahead: int | None = None
) -> Iterator[Result]:
    """Run :func:`in_order` on threads of this process. ``ahead`` defaults to 4 tasks for each thread."""
    with concurrent.futures.ThreadPoolExecutor(threads) as pool:
        yield from in_order(pool, function, tasks, 4 * threads if ahead is None else ahead)


class LastResult(Generic[Result]):
    """A function that keeps its last result for each thread, for example an opened model.

    Threads share no result, so that a thread cannot close or replace the model of another thread.
    """

    def __init__(self, function: Callable[..., Result]) -> None:
        self._function = function
        self._kept = threading.local()

    def __call__(self, *arguments: Any) -> Result:
        if getattr(self._kept, "arguments", None) != arguments:
            self.cache_clear()  # before the call, because two opened models may not fit into memory
            self._kept.result = self._function(*arguments)
            self._kept.arguments = arguments
        result: Result = self._kept.result
        return result

    def cache_clear(self) -> None:
        """Forget the result of this thread."""
        self._kept.__dict__.clear()


@dataclass
class Engine:
    """Run the tasks of a long job on processes of this machine, or on a cluster.

    ``workers`` tasks run at once. ``pool`` and ``ahead`` are the arguments of :func:`in_order`.
    """

    workers: int
    pool: Any | None
    ahead: int

    def map(self, function: Callable[[Task], Result], tasks: Iterable[Task]) -> Iterator[Result]:
        """Yield ``function(task)`` for every task, in order.

        Tasks are read lazily. The function, tasks and results must be picklable. An exception of a task is raised
        to the caller. :class:`WorkerDied` is raised if a task's process dies and is not restarted.
        """
        return in_order(self.pool, function, tasks, self.ahead)


@contextlib.contextmanager
def local_engine(workers: int) -> Iterator[Engine]:
    """Yield an engine with ``workers`` processes on this machine."""
    with process_pool(workers) as pool:
        yield Engine(workers, pool, 2 * workers)


def compiled(function: Callable[..., Any]) -> Any:
    """Compile ``function`` to machine code that runs without the interpreter's lock. A decorator."""
    import numba

    try:
        return numba.njit(cache=True, nogil=True)(function)
    except RuntimeError:  # no cache folder is writable
        _warn_of_numba()
        return numba.njit(nogil=True)(function)


@functools.cache
def _warn_of_numba() -> None:
    log.warning(
        "numba cannot write its cache and compiles again in every process; set NUMBA_CACHE_DIR to a writable folder"
    )
