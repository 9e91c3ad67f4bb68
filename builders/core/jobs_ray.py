"""``--engine ray``: the tasks of a build on the machines of a Ray cluster.

The same functions work on the same tasks as on one machine, and their results come back in the same order: the bytes
are the same. Blocks of the sources travel through Ray, two for each CPU at a time; files go to the storage that all
machines share.

A task whose process or machine is lost runs again elsewhere. The same task gives the same bytes, and shards appear
whole or not at all, so it does not matter how far the lost one had come."""

from __future__ import annotations

import contextlib
import functools
import importlib.metadata
import logging
import os
import platform
import signal
import socket
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from builders.core.errors import InputError, install
from builders.core.jobs import Engine, WorkerDied

Task = TypeVar("Task")
Result = TypeVar("Result")

TASK_BYTES = 1 << 30  # memory that Ray reserves for a task: labelling a block takes less than half of it
RETRIES = 3
_AHEAD = 2  # tasks in flight for each CPU
# The packages whose versions decide bytes.
_PACKAGES = ("duckdb", "jieba", "msgspec", "numba", "numpy", "pyarrow", "ray", "rjieba")


class RayEngine(Engine):
    """An engine on a Ray cluster. A context manager.

    ``address``: of the cluster's head (``host:6379``, ``auto``); None: the value of ``RAY_ADDRESS``, else a cluster
    that runs here, else one started here. ``workers``: tasks that run at once; None: all CPUs of the cluster. Raises
    :class:`InputError` where Ray is not installed, or no cluster answers.
    """

    def __init__(self, address: str | None = None, workers: int | None = None) -> None:
        try:
            import ray
        except ImportError as error:
            raise InputError(f"--engine ray needs Ray ({error}): {install('ray')}") from None
        self._ray: Any = ray
        self._connected = not ray.is_initialized()
        if self._connected:
            self._connect(address, workers)
        cpus = max(1, int(ray.cluster_resources().get("CPU", 1)))
        super().__init__(workers or cpus, self, workers or _AHEAD * cpus)
        # Made once: Ray sends each remote function to the machines.
        self._run = ray.remote(num_cpus=1, memory=TASK_BYTES, max_retries=RETRIES)(_run)

    def _connect(self, address: str | None, workers: int | None) -> None:
        # This program is sent to the machines; its packages must be installed on each of them.
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
                    self._ray.init("local", num_cpus=workers, include_dashboard=False, **settings)
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

    def submit(self, function: Callable[[Task], Result], task: Task) -> _Running:
        """Start one task."""
        return _Running(self._ray, self._run.remote(function, task, _versions()))


class _Running:
    """A task in flight, as :func:`builders.core.jobs.in_order` takes it."""

    def __init__(self, ray: Any, ref: Any) -> None:
        self._ray, self._ref = ray, ref

    def result(self) -> Any:
        """Wait for the task. Its own error is raised here as it was there."""
        try:
            return self._ray.get(self._ref)
        except self._ray.exceptions.RayTaskError as error:
            if isinstance(error.cause, InputError | OSError):
                raise error.cause from None
            raise  # a fault of this program: with its traceback
        except self._ray.exceptions.RayError as error:
            raise WorkerDied from error

    def cancel(self) -> None:
        self._ray.cancel(self._ref)


def _try_address(address: str) -> None:
    """OSError or ValueError where nobody listens: Ray itself would try for minutes."""
    if address not in ("auto", "local"):
        host, _, port = address.rpartition(":")
        socket.create_connection((host.strip("[]"), int(port)), timeout=10).close()


def _run(function: Callable[[Any], Any], task: Any, versions: dict[str, str]) -> Any:
    """One task on a machine of the cluster."""
    for name, version in _versions().items():
        if version != versions[name]:
            raise InputError(
                f"the machine {socket.gethostname()} has {name} {version}, and the one that starts the build"
                f" {versions[name]}; expected the same on all, else the bytes would differ"
            )
    return function(task)


@functools.cache
def _versions() -> dict[str, str]:
    found = {"Python": ".".join(platform.python_version_tuple()[:2])}
    for name in _PACKAGES:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            found[name] = "none"
    return found
