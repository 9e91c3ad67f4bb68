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
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from multiprocessing import util
from pathlib import Path
from typing import Any, Generic, TypeVar

from builders.core.errors import Unfinished, log
from builders.core.exit_codes import raise_if_stopped, say_once
from builders.core.locks import temporary_folder

Pool = concurrent.futures.Executor
Task = TypeVar("Task")
Result = TypeVar("Result")
# Maximum length of TMPDIR. macOS has the shortest limit for a socket's path: 104 bytes.
_LONGEST_TMPDIR = 104 - len("/dureader-01234567/listener-01234567\0")
_PARENT_CHECK_SECONDS = 0.5
_LAST = -100  # priority of a finalizer of multiprocessing that runs after all others
_TASKS_PER_THREAD = 4
_TASKS_PER_PROCESS = 2
# Keeps the temporary folder of multiprocessing until this process ends.
_folder_until_exit = contextlib.ExitStack()


class WorkerDied(Unfinished):
    """A worker process was killed."""

    def __init__(self) -> None:
        super().__init__("a worker process died (memory or /dev/shm may be full); run again with fewer workers")


def start_worker() -> None:
    """Set up a worker process, which ignores Ctrl-C and ends when its parent ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # only the parent handles Ctrl-C
    if hasattr(signal, "pthread_sigmask"):
        # The worker has started with Ctrl-C blocked.
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
    say_once()
    parent = multiprocessing.parent_process()
    assert parent is not None

    def end_with_parent() -> None:
        """Wait for the end of the parent, and end this process."""
        # Without this thread, the workers of a killed parent would wait forever. The parent's id comes from
        # multiprocessing, because the parent may be dead already, and os.getppid() then returns another process.
        if os.name == "nt":
            parent.join()
        else:
            while os.getppid() == parent.pid:
                time.sleep(_PARENT_CHECK_SECONDS)
        os._exit(1)

    threading.Thread(target=end_with_parent, daemon=True).start()


def _start_with_value(set_up: Callable[[Any], None] | None, waiting_values: Any) -> None:
    """Set up a worker process, and call ``set_up`` with the next value of the pool's queue ``waiting_values``."""
    start_worker()
    if set_up is not None:
        set_up(waiting_values.get())


def prepare_processes() -> bool:
    """Prepare the start of worker processes. Return False if this process cannot start any.

    A daemonic process, for example a worker of ``multiprocessing.Pool``, may not start processes. Worker processes also
    need semaphores in /dev/shm, which some containers lack: a warning is logged. The temporary files of
    multiprocessing move into a :func:`.locks.temporary_folder`, because a killed process would never remove its
    ``pymp-*`` folder.
    """
    if multiprocessing.current_process().daemon:
        return False
    try:
        multiprocessing.Lock()
    except OSError as error:
        log.warning("this system has no semaphores (/dev/shm: %s); the work runs in a single process", error)
        return False
    parent_folder = Path(tempfile.gettempdir())
    if len(os.fsencode(parent_folder)) > _LONGEST_TMPDIR:
        parent_folder = Path("/tmp")
    # Python has no public setting for the folder of multiprocessing's sockets (the same in 3.11 to 3.14).
    process_settings = multiprocessing.current_process()._config  # type: ignore[attr-defined]
    if not process_settings.get("tempdir"):
        socket_folder = _folder_until_exit.enter_context(temporary_folder(parent_folder))
        process_settings["tempdir"] = str(socket_folder)
        # Runs after all processes have ended.
        util.Finalize(None, _folder_until_exit.close, exitpriority=_LAST)
    return True


@contextlib.contextmanager
def process_pool(
    worker_count: int, set_up: Callable[[Any], None] | None = None, worker_values: Sequence[Any] = ()
) -> Iterator[Pool | None]:
    """Yield a pool of ``worker_count`` processes, or None if the work has to run in this process.

    None means that ``worker_count`` is at most 1, or that no process can start (:func:`prepare_processes`). Otherwise
    each process first calls ``set_up`` with one of ``worker_values`` (one for each process), which no other process
    gets.
    """
    if worker_count <= 1 or not prepare_processes():
        yield None
        return
    from builders.core.worker_processes import WorkerPool, queue_for_workers

    # A pool passes the same arguments to every process. Each process therefore takes its value from a queue.
    pool = WorkerPool(worker_count, _start_with_value, (set_up, queue_for_workers(worker_values)))
    try:
        with pool:
            try:
                yield pool
            except (KeyboardInterrupt, WorkerDied):
                pool.terminate_workers()  # otherwise the pool waits for the running tasks
                raise
    finally:
        # A pool whose worker was killed forgets workers that were just starting.
        pool.terminate_workers()


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
    # At most ``ahead`` tasks, so that few tasks and results are in memory.
    submitted_tasks: deque[Any] = deque()
    # WorkerPool waits for a result in its own way.
    wait_for_result = getattr(pool, "result_of", lambda future: future.result())
    try:
        for task in tasks:
            raise_if_stopped()
            submitted_tasks.append(pool.submit(function, task))
            if len(submitted_tasks) >= ahead:
                yield wait_for_result(submitted_tasks.popleft())
        while submitted_tasks:
            raise_if_stopped()
            yield wait_for_result(submitted_tasks.popleft())
    except BrokenProcessPool:
        raise WorkerDied from None
    except KeyboardInterrupt:
        if isinstance(pool, concurrent.futures.ProcessPoolExecutor):
            # Not cancelled below, because process_pool stops the workers and Python would warn.
            submitted_tasks.clear()
        raise
    finally:
        for submitted_task in submitted_tasks:
            submitted_task.cancel()


@contextlib.contextmanager
def convert_loader_errors() -> Iterator[None]:
    """Raise :class:`WorkerDied` if a worker process of a torch DataLoader is killed, or finds /dev/shm full."""
    try:
        yield
    except RuntimeError as error:
        is_killed = str(error).startswith("DataLoader worker")
        is_memory_full = "shared memory(shm)" in str(error)
        if is_killed or is_memory_full:
            raise WorkerDied from None
        raise


def in_threads(
    function: Callable[[Task], Result], tasks: Iterable[Task], threads: int, ahead: int | None = None
) -> Iterator[Result]:
    """Yield ``function(task)`` for every task, in order (:func:`in_order`), on ``threads`` threads of this process.

    ``ahead`` defaults to 4 tasks for each thread.
    """
    if ahead is None:
        ahead = _TASKS_PER_THREAD * threads
    with concurrent.futures.ThreadPoolExecutor(threads) as pool:
        yield from in_order(pool, function, tasks, ahead)


class LastResult(Generic[Result]):
    """A function that keeps its last result for each thread, for example an opened model.

    Threads share no result, so that a thread cannot close or replace the model of another thread.
    """

    def __init__(self, function: Callable[..., Result]) -> None:
        self._function = function
        self._last_call = threading.local()

    def __call__(self, *arguments: Any) -> Result:
        """Return this thread's last result if its arguments are equal; otherwise call the function."""
        if getattr(self._last_call, "arguments", None) != arguments:
            self.cache_clear()  # before the call, because two opened models may not fit into memory
            self._last_call.result = self._function(*arguments)
            self._last_call.arguments = arguments
        result: Result = self._last_call.result
        return result

    def cache_clear(self) -> None:
        """Forget the result of this thread."""
        self._last_call.__dict__.clear()


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
def local_engine(worker_count: int) -> Iterator[Engine]:
    """Yield an engine with ``worker_count`` processes on this machine."""
    with process_pool(worker_count) as pool:
        yield Engine(worker_count, pool, _TASKS_PER_PROCESS * worker_count)


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
