"""Worker processes that start as new interpreters and do not import the caller's main module.

A plain fork may hang, because the caller has threads (of pyarrow). The standard library's other ways import the
caller's main module in every worker, so a script without ``if __name__ == "__main__"`` would run itself again.
"""

import signal
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, ThreadPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from multiprocessing import resource_tracker
from typing import Any, TypeVar

from loky.backend import resource_tracker as loky_tracker
from loky.backend.context import LokyContext
from loky.backend.process import LokyProcess

Result = TypeVar("Result")
_CHECK_SECONDS = 2.0  # interval of the checks for killed workers


class WorkerProcess(LokyProcess):  # type: ignore[misc]
    """A worker process. Ctrl-C does not reach the process until :func:`.jobs.start_worker` ignores Ctrl-C."""

    def start(self) -> None:
        """Start the process with Ctrl-C blocked."""
        # These helper processes must start now, because their start would end the block of Ctrl-C.
        loky_tracker.ensure_running()
        resource_tracker.ensure_running()
        # The block is that of another thread, so that Ctrl-C still stops this thread.
        with ThreadPoolExecutor(1) as starter:
            starter.submit(self._start_with_blocked_ctrl_c).result()

    def _start_with_blocked_ctrl_c(self) -> None:
        if hasattr(signal, "pthread_sigmask"):  # Windows has no signal masks
            # The new process inherits the mask.
            signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
        super().start()


class WorkerContext(LokyContext):  # type: ignore[misc]
    """The multiprocessing context of one pool. It knows the pool's processes."""

    def __init__(self) -> None:
        self._started: list[WorkerProcess] = []

    def Process(self, *arguments: Any, **options: Any) -> WorkerProcess:
        """Create a worker process. The pool calls this method."""
        worker = WorkerProcess(*arguments, **options)
        self._started.append(worker)
        return worker

    def running_workers(self) -> list[WorkerProcess]:
        return [worker for worker in self._started if worker.pid is not None and worker.is_alive()]

    def ended_workers(self) -> list[WorkerProcess]:
        return [worker for worker in self._started if worker.exitcode is not None]


def queue_for_workers(values: Sequence[Any]) -> Any:
    """Return a queue of ``values`` from which workers can take. It is passed with the arguments of a pool's start."""
    queue = LokyContext().SimpleQueue()
    for value in values:
        queue.put(value)
    return queue


class WorkerPool(ProcessPoolExecutor):
    """An executor whose ``worker_count`` processes call ``start(*arguments)`` first."""

    def __init__(self, worker_count: int, start: Callable[..., None], arguments: tuple[Any, ...] = ()) -> None:
        self._worker_context = WorkerContext()
        super().__init__(worker_count, self._worker_context, initializer=start, initargs=arguments)

    def terminate_workers(self) -> None:
        """Terminate this pool's processes, but no other process that the caller has started."""
        for worker in self._worker_context.running_workers():
            worker.terminate()

    def submit(self, function: Callable[..., Result], /, *arguments: Any, **options: Any) -> Future[Result]:
        """Submit a call to a worker. Raise BrokenProcessPool if a worker was killed, on every version of Python."""
        try:
            return super().submit(function, *arguments, **options)
        # Python 3.11 was just closing the pool, because a worker was killed. The start of another worker then finds a
        # closed pipe (OSError), or a pipe's number twice (ValueError). The pool has marked itself as broken before it
        # closed the pipe. The killed worker's exit code is not always known yet.
        except (OSError, ValueError):
            if self._broken:
                raise BrokenProcessPool from None
            raise

    def result_of(self, task: Future[Result]) -> Result:
        """Return the result of a submitted task. Raise BrokenProcessPool if a worker was killed.

        Python 3.11 itself may wait forever if a worker is killed while another worker is starting.
        """
        while True:
            ended_tasks, _ = wait([task], timeout=_CHECK_SECONDS)
            if ended_tasks:
                return task.result()
            if self._worker_context.ended_workers():
                raise BrokenProcessPool
