"""``--engine ray``: the tasks of a build as Ray Data runs them, on the machines of a cluster.

The same functions work on the same tasks as on one machine, and their results come back in the same order: the bytes
are the same. What travels through Ray is small (a range of a file, a count): rows and files go from and to the storage
that all machines share. Only blocks of compressed sources carry their text; Ray holds a bounded part of these.

A task whose process or machine is lost runs again elsewhere. The same task gives the same bytes, and shards appear
whole or not at all, so it does not matter how far the lost one had come.
"""

from __future__ import annotations

import contextlib
import functools
import gc
import importlib.metadata
import logging
import os
import pickle
import platform
import signal
import socket
import sys
import warnings
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, TypeVar

from builders.common.command import InputError
from builders.common.groups import install
from builders.common.jobs import WorkerDied

Task = TypeVar("Task")
Result = TypeVar("Result")

STORE_BYTES = 1 << 30  # of Ray's object stores, over all machines
TASK_BYTES = 1 << 30  # of memory that Ray reserves for a task: labelling a block takes less than half of it
RETRIES = 3
_WINDOW = 10_000  # tasks that Ray is given at once
# Whose versions decide bytes.
_PACKAGES = ("duckdb", "jieba", "msgspec", "numba", "numpy", "pyarrow", "ray", "rjieba")


class RayEngine:
    """A :class:`builders.common.jobs.Engine` on a Ray cluster. A context manager.

    Args:
        address: of the cluster's head (``host:6379``, ``auto`` for a cluster of which this machine is part). None: what
            ``RAY_ADDRESS`` names, else a cluster that runs here, else one started here for this build alone.
        workers: tasks in flight at most; all CPUs of the cluster where None.
        store_bytes: of Ray's object store that this build may hold at most; see :data:`STORE_BYTES`.

    Raises:
        InputError: where Ray is not installed, or no cluster answers.
    """

    def __init__(self, address: str | None = None, workers: int | None = None, store_bytes: int = STORE_BYTES) -> None:
        self._ray = _import_ray()
        self._store_bytes = store_bytes
        self._connected = not self._ray.is_initialized()
        if self._connected:
            self._connect(address, workers)
        self.workers = workers or max(1, int(self._ray.cluster_resources().get("CPU", 1)))

    def _connect(self, address: str | None, workers: int | None) -> None:
        # This program goes along; its packages are each machine's own.
        settings: dict[str, Any] = {
            "runtime_env": {"py_modules": [str(Path(__file__).parents[1])]},
            "logging_level": logging.ERROR,
            "log_to_driver": False,
        }
        address = address or os.environ.get("RAY_ADDRESS")
        handler = signal.getsignal(signal.SIGTERM)
        try:
            if address is None:
                try:
                    self._ray.init("auto", **settings)
                except ConnectionError:
                    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
                    self._ray.init(
                        "local",
                        num_cpus=workers,
                        object_store_memory=self._store_bytes,
                        include_dashboard=False,
                        **settings,
                    )
            else:
                _try_address(address)
                self._ray.init(address, **settings)
        except (OSError, RuntimeError, ValueError) as error:
            reason = (str(error) or type(error).__name__).splitlines()[0]
            raise InputError(
                f"no Ray cluster answers at {address or 'this machine'} ({reason});"
                " expected HOST:PORT of a head that `ray start --head` has started"
            ) from None
        finally:
            signal.signal(signal.SIGTERM, handler)  # Ray's own ends a command with another exit code

    def __enter__(self) -> RayEngine:
        # Ray prints there that a node is late or lost, whatever its log's level; stdout is for results.
        self._stdout = contextlib.redirect_stdout(sys.stderr)
        self._stdout.__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        if self._connected:
            self._ray.shutdown()
        self._stdout.__exit__(*error)

    def map(self, function: Callable[[Task], Result], tasks: Iterable[Task]) -> Iterator[Result]:
        """``function(task)`` for every task, in their order. See :class:`builders.common.jobs.Engine`."""
        run = functools.partial(_run, function=function, versions=_versions())
        for window in _windows(map(pickle.dumps, tasks), self._store_bytes // 4):
            yield from self._map_window(run, window)
            gc.collect()  # Ray Data's objects refer to each other: without it their blocks would fill the object store

    def _map_window(self, run: Callable[[dict[str, bytes]], dict[str, bytes]], window: list[bytes]) -> Iterator[Any]:
        from ray.data import ExecutionResources, TaskPoolStrategy

        context = self._ray.data.DataContext.get_current()
        context.execution_options.preserve_order = True
        context.execution_options.resource_limits = ExecutionResources(object_store_memory=self._store_bytes)
        context.target_max_block_size = 1 << 20  # what Ray expects a task to give back
        context.enable_progress_bars = context.print_on_execution_start = False
        with warnings.catch_warnings():
            # Without `max_retries`, whose name 2.64 will change, a task that kills its process is run for ever.
            warnings.simplefilter("ignore")
            rows = self._ray.data.from_items([{"task": task} for task in window], override_num_blocks=len(window))
            results = rows.map(
                run,
                compute=TaskPoolStrategy(min(self.workers, len(window))),
                num_cpus=1,
                memory=TASK_BYTES,
                max_retries=RETRIES,
            )
        window.clear()
        try:
            for row in results.iter_rows():
                result = pickle.loads(row["result"])
                if isinstance(result, Failure):
                    raise result.error
                yield result
        except self._ray.exceptions.RayTaskError:
            raise  # a fault of this program: with its traceback
        except self._ray.exceptions.RayError as error:
            raise WorkerDied from error


def _try_address(address: str) -> None:
    """OSError or ValueError where nobody listens: Ray itself would try for minutes."""
    if address not in ("auto", "local"):
        host, _, port = address.rpartition(":")
        socket.create_connection((host.strip("[]"), int(port)), timeout=10).close()


class Failure:
    """What a task raised, where that is the input's or the system's fault."""

    def __init__(self, error: Exception) -> None:
        self.error = error


def _run(row: dict[str, bytes], function: Callable[[Any], Any], versions: dict[str, str]) -> dict[str, bytes]:
    """One task on a machine of the cluster."""
    try:
        _check_versions(versions)
        result = function(pickle.loads(row["task"]))
    except InputError as error:
        result = Failure(error)
    except OSError as error:
        where = f"{error.strerror or error} (on {socket.gethostname()})"
        result = Failure(OSError(error.errno or 0, where, error.filename))
    return {"result": pickle.dumps(result)}


def _windows(tasks: Iterable[bytes], limit: int) -> Iterator[list[bytes]]:
    """Tasks in lists of at most ``limit`` bytes, or one task."""
    window: list[bytes] = []
    size = 0
    for task in tasks:
        if window and (size + len(task) > limit or len(window) == _WINDOW):
            yield window
            window, size = [], 0
        window.append(task)
        size += len(task)
    if window:
        yield window


def _versions() -> dict[str, str]:
    found = {"Python": ".".join(platform.python_version_tuple()[:2])}
    for name in _PACKAGES:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            found[name] = "none"
    return found


def _check_versions(expected: dict[str, str]) -> None:
    for name, version in _versions().items():
        if version != expected[name]:
            raise InputError(
                f"the machine {socket.gethostname()} has {name} {version}, and the one that starts the build"
                f" {expected[name]}; expected the same on all, else the bytes would differ"
            )


def _import_ray() -> Any:
    try:
        import ray
        import ray.data
    except ImportError as error:
        raise InputError(f"--engine ray needs Ray Data ({error}): {install('ray')}") from None
    for handler in logging.getLogger("ray.data").handlers:
        if handler.name == "console":
            handler.setLevel(logging.CRITICAL)  # the whole story goes into the session's log files
    return ray
