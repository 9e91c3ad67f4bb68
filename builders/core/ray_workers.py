"""Workers on a Ray cluster that keep their models open (``--engine ray`` of encode, run, rerank, mine and match).

A worker is an actor of Ray: a process that has a GPU or some CPUs for itself, and runs one task after the other. A
thread of this process serves each worker::

    tasks (lowest number first) ──► thread 0 ──► worker on machine A
                                ├─► thread 1 ──► worker on machine A
                                └─► thread 2 ──► worker on machine B     lost: its task goes back to the tasks, and
                                                                         thread 2 waits for a new worker

If a worker is lost with its machine, any other worker runs its task again. This is safe because the same task gives the
same bytes, and a file appears only when the file is complete.
"""

from __future__ import annotations

import contextlib
import os
import queue
import secrets
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

from builders.core.errors import InputError, Unfinished, log, missing_library
from builders.core.jobs import Result, Task, WorkerDied
from builders.core.options import load_object
from builders.core.ray_cluster import RETRIES, RayConnection, expect_versions

# Interval of the checks for a closed pool, while a thread waits for a new worker.
_CHECK_SECONDS = 0.5
_WAIT_MESSAGE_SECONDS = 30.0  # without any worker, until a warning
_CLOSE_SECONDS = 5.0  # for each thread at the end
_LAST_NUMBER = sys.maxsize  # number of the entry that ends a thread; behind all tasks
# Variables that name the caches of models and texts. A worker gets the values of this process.
_CACHE_VARIABLES = ("DUREADER_RETRIEVAL_CACHE", "XDG_CACHE_HOME", "HF_HOME", "HF_ENDPOINT", "HF_HUB_OFFLINE")
_PROBE_PREFIX = ".shared-"


@dataclass(frozen=True)
class WorkerShare:
    """The part of a machine that a worker has for itself."""

    cpus: int
    gpus: int = 0

    def __str__(self) -> str:
        cpu_text = f"{self.cpus} CPU" if self.cpus == 1 else f"{self.cpus} CPUs"
        return f"a GPU and {cpu_text}" if self.gpus else cpu_text


@dataclass(frozen=True)
class WorkerStart:
    """The checks and settings of a new worker, before its first task.

    Attributes:
        working_folder: the folder in which the command was started. Relative paths of tasks begin there.
        shared_file: a file of this machine that the worker's machine must see, in the folder that tasks write to.
        versions: versions of packages on this machine, which all machines must have.
        set_up: a function as "module:name", which returns the name of the worker's processor. Its module is imported
            after the check of the versions, because the module may import packages that the machine lacks.
        arguments: arguments of ``set_up``.
    """

    working_folder: str
    shared_file: str
    versions: Mapping[str, str]
    set_up: str
    arguments: tuple[Any, ...] = ()


@dataclass
class _PendingTask:
    """A task, its function and its future. ``losses`` counts the workers that were lost while they ran the task."""

    function: Callable[[Any], Any]
    task: Any
    future: Future[Any] = field(default_factory=Future)
    losses: int = 0


# A task's number and the task. The last entries have no task.
_Entry = tuple[int, _PendingTask | None]


def machine_resources(connection: RayConnection) -> list[tuple[int, int]]:
    """Return (number of CPUs, number of GPUs) of each machine of the cluster."""
    machines = []
    for node in connection.ray.nodes():
        resources = node["Resources"]
        if node["Alive"]:
            machines.append((int(resources.get("CPU", 0)), int(resources.get("GPU", 0))))
    return machines


def count_workers(machines: list[tuple[int, int]], share: WorkerShare) -> int:
    """Return the number of workers with this share that ``machines`` (:func:`machine_resources`) have room for."""
    worker_count = 0
    for cpu_count, gpu_count in machines:
        room = cpu_count // share.cpus
        if share.gpus:
            room = min(room, gpu_count // share.gpus)
        worker_count += room
    return worker_count


@contextlib.contextmanager
def shared_file_in(folder: Path) -> Iterator[Path]:
    """Yield a new file in a folder, by which each machine of a cluster checks that it sees the folder."""
    probe_path = Path(os.path.abspath(folder)) / f"{_PROBE_PREFIX}{secrets.token_hex(8)}"
    probe_path.touch()
    try:
        yield probe_path
    finally:
        probe_path.unlink(missing_ok=True)


class RayWorkers:
    """A pool of workers on a cluster for :func:`.jobs.in_order`. A context manager.

    Args:
        connection: the connection to the cluster, which stays open longer than the pool.
        worker_count: number of workers. They start as soon as machines have room for them.
        share: the part of a machine that a worker has for itself.
        start: the checks and settings of a new worker.
        processor: name of the processor of this machine. A warning names machines with another processor.
    """

    def __init__(
        self, connection: RayConnection, *, worker_count: int, share: WorkerShare, start: WorkerStart, processor: str
    ) -> None:
        self.worker_count = worker_count
        self._ray = connection.ray
        self._share = share
        self._start = start
        self._processor = processor
        self._entries: queue.PriorityQueue[_Entry] = queue.PriorityQueue()
        self._submitted_count = 0
        self._closing = threading.Event()
        # The state that all threads share, and its lock.
        self._lock = threading.Lock()
        self._actors: set[Any] = set()
        self._running_workers = 0
        self._idle_since = time.monotonic()  # when the pool was made, or a worker last ended
        self._has_warned_of_waiting = False
        self._other_processors: set[str] = set()
        make_remote = self._ray.remote(
            num_cpus=share.cpus,
            num_gpus=share.gpus,
            max_restarts=0,  # the threads replace lost workers, and give their tasks to other workers meanwhile
            max_task_retries=0,
            runtime_env={"env_vars": _cache_variables()},
        )
        self._actor_class = make_remote(_Worker)
        self._threads = [threading.Thread(target=self._serve, daemon=True) for _ in range(worker_count)]

    def __enter__(self) -> Self:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *error: Any) -> None:
        """End the workers at once, and the threads after a short wait. Tasks that are not finished are dropped."""
        self._closing.set()
        for _ in self._threads:
            self._entries.put((_LAST_NUMBER, None))
        with self._lock:
            actors = list(self._actors)
        for actor in actors:
            self._end_worker(actor)
        for thread in self._threads:
            thread.join(_CLOSE_SECONDS)

    def submit(self, function: Callable[[Task], Result], task: Task) -> Future[Result]:
        """Let a worker call ``function(task)``. Tasks that were submitted first run first."""
        pending_task = _PendingTask(function, task)
        self._entries.put((self._submitted_count, pending_task))
        self._submitted_count += 1
        return pending_task.future

    def _serve(self) -> None:
        """Run tasks on a worker until the pool is closed. If the worker is lost, start another one."""
        lost_starts = 0
        try:
            while not self._closing.is_set():
                try:
                    actor = self._start_worker()
                except self._ray.exceptions.RayTaskError:
                    raise  # a bug, which is reported with a traceback
                except self._ray.exceptions.RayError as error:
                    lost_starts += 1
                    if lost_starts > RETRIES:
                        raise WorkerDied from error
                    continue
                if actor is None:  # the pool is closed
                    return
                lost_starts = 0
                with self._count_worker():
                    while self._run_next(actor):
                        pass
                self._end_worker(actor)
        except Exception as error:
            if not self._closing.is_set():
                self._fail_tasks(error)

    def _start_worker(self) -> Any | None:
        """Start a worker as soon as a machine has room for it. Return None if the pool is closed before."""
        actor = self._actor_class.remote()
        with self._lock:
            self._actors.add(actor)
        is_started = False
        try:
            reference = actor.start.remote(self._start)
            while not self._closing.is_set():
                ready, _ = self._ray.wait([reference], timeout=_CHECK_SECONDS)
                if ready:
                    self._compare_processor(*self._result_of(reference))
                    is_started = True
                    return actor
                self._warn_of_waiting()
            return None
        finally:
            if not is_started:
                self._end_worker(actor)

    def _run_next(self, actor: Any) -> bool:
        """Run the next task on the worker ``actor``. Return False if the worker is lost, or the pool is closed."""
        number, pending_task = self._entries.get()
        if pending_task is None:
            return False
        # A future can be set running only once, and not if it is cancelled.
        is_first_run = pending_task.losses == 0
        if is_first_run and not pending_task.future.set_running_or_notify_cancel():
            return True
        try:
            result = self._result_of(actor.run.remote(pending_task.function, pending_task.task))
        except self._ray.exceptions.RayTaskError as error:
            pending_task.future.set_exception(error)  # a bug, which is reported with a traceback
        except self._ray.exceptions.RayError as error:
            if self._closing.is_set():
                return False
            pending_task.losses += 1
            if pending_task.losses > RETRIES:
                died = WorkerDied()
                died.__cause__ = error
                pending_task.future.set_exception(died)
            else:
                log.info("a worker of the cluster was lost; its task runs again")
                self._entries.put((number, pending_task))
            return False
        except Exception as error:  # wrong input, or an error of the system
            pending_task.future.set_exception(error)
        else:
            pending_task.future.set_result(result)
        return True

    def _result_of(self, reference: Any) -> Any:
        """Wait for a call of a worker, and return its result. Wrong input and errors of files are raised as such."""
        try:
            return self._ray.get(reference)
        except self._ray.exceptions.RayTaskError as error:
            if isinstance(error.cause, InputError | OSError):
                raise error.cause from None
            raise

    def _fail_tasks(self, error: Exception) -> None:
        """Let tasks fail with an error, until the pool is closed."""
        while True:
            _, pending_task = self._entries.get()
            if pending_task is None:
                return
            # The future of a task that was lost is running already. A cancelled future takes no error.
            if pending_task.losses or pending_task.future.set_running_or_notify_cancel():
                pending_task.future.set_exception(error)

    def _end_worker(self, actor: Any) -> None:
        with self._lock:
            self._actors.discard(actor)
        self._ray.kill(actor)

    @contextlib.contextmanager
    def _count_worker(self) -> Iterator[None]:
        """Count a running worker during the block."""
        with self._lock:
            self._running_workers += 1
        try:
            yield
        finally:
            with self._lock:
                self._running_workers -= 1
                self._idle_since = time.monotonic()

    def _warn_of_waiting(self) -> None:
        """Warn once if no worker runs for some time, for example because other jobs use the cluster."""
        with self._lock:
            waiting_seconds = time.monotonic() - self._idle_since
            is_silent = self._running_workers or self._has_warned_of_waiting
            if is_silent or waiting_seconds < _WAIT_MESSAGE_SECONDS:
                return
            self._has_warned_of_waiting = True
        log.warning("waiting for a machine of the cluster with %s free", self._share)

    def _compare_processor(self, machine: str, processor: str) -> None:
        """Warn once about each other kind of processor, because the last digits of results may differ."""
        with self._lock:
            if processor == self._processor or processor in self._other_processors:
                return
            self._other_processors.add(processor)
        log.warning(
            "the machine %s has %s, and this machine %s; the last digits of results may differ",
            machine,
            processor,
            self._processor,
        )


class _Worker:
    """The actor: a process on a machine of the cluster."""

    def start(self, settings: WorkerStart) -> tuple[str, str]:
        """Check and set up this process. Return the names of the machine and of its processor."""
        machine = socket.gethostname()
        expect_versions(settings.versions, "command")
        try:
            os.chdir(settings.working_folder)
        except OSError as error:
            raise InputError(
                f"the machine {machine} lacks the folder in which the command was started ({error.strerror}); start "
                "the command in a folder that all machines share",
                path=settings.working_folder,
            ) from None
        if not os.path.exists(settings.shared_file):
            raise InputError(
                f"the machine {machine} does not see this folder; expected storage that all machines share",
                path=os.path.dirname(settings.shared_file),
            )
        try:
            return machine, load_object(settings.set_up)(*settings.arguments)
        except ImportError as error:
            raise InputError(f"the machine {machine}: {missing_library(error) or error}") from None

    def run(self, function: Callable[[Any], Any], task: Any) -> Any:
        """Return ``function(task)``. Wrong input names this machine, because the machines' files may differ."""
        try:
            return function(task)
        except InputError as error:
            error_class = Unfinished if isinstance(error, Unfinished) else InputError
            raise error_class(f"{error} (on the machine {socket.gethostname()})") from None


def _cache_variables() -> dict[str, str]:
    return {name: os.environ[name] for name in _CACHE_VARIABLES if name in os.environ}
