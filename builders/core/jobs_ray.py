"""Run the tasks of a build on a Ray cluster (``--engine ray``).

The functions, the tasks and the order of results are the same as on one machine, so the output has the same bytes. Ray
transfers blocks of the sources, two for each CPU at a time. Files are written to storage that all machines share.

If a process or machine is lost, Ray runs its tasks again elsewhere. This is safe because the same task gives the same
bytes, and a shard appears only when the shard is complete."""

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
from typing import Any, Self

from builders.core.errors import InputError, install
from builders.core.jobs import Engine, Result, Task, WorkerDied

TASK_BYTES = 1 << 30  # memory that Ray reserves for a task; labelling a block needs less than half
RETRIES = 3
_AHEAD = 2  # submitted tasks for each CPU
# The output's bytes depend on the versions of these packages.
_PACKAGES = ("duckdb", "jieba", "msgspec", "numba", "numpy", "pyarrow", "ray", "rjieba")


class RayEngine(Engine):
    """An engine on a Ray cluster. A context manager.

    ``address`` is the address of the cluster's head (``host:6379``, ``auto``). The default is ``RAY_ADDRESS``, else a
    cluster that runs on this machine, else a new local cluster. ``workers`` is the number of tasks that run at once
    (default: a task for each CPU). Raises :class:`InputError` if Ray is not installed, or no cluster answers.
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
        # Created only once, because Ray sends each remote function to the machines.
        self._run = ray.remote(num_cpus=1, memory=TASK_BYTES, max_retries=RETRIES)(_run)

    def _connect(self, address: str | None, workers: int | None) -> None:
        # Ray sends this program to the machines. Its dependencies must be installed on every machine.
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
                if address not in ("auto", "local"):  # test the address first, because Ray would retry for minutes
                    host, _, port = address.rpartition(":")
                    socket.create_connection((host.strip("[]"), int(port)), timeout=10).close()
                self._ray.init(address, **settings)
        except (OSError, RuntimeError, ValueError) as error:
            reason = (str(error) or type(error).__name__).splitlines()[0]
            raise InputError(
                f"no Ray cluster answers at {address or 'this machine'} ({reason});"
                " start a head with `ray start --head` and give its HOST:PORT"
            ) from None
        finally:
            signal.signal(signal.SIGTERM, handler)  # Ray's handler would end the command with another exit code

    def __enter__(self) -> Self:
        # Ray prints messages about late or lost nodes to stdout, which is reserved for results.
        self._stdout = contextlib.redirect_stdout(sys.stderr)
        self._stdout.__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        if self._connected:
            self._ray.shutdown()
        self._stdout.__exit__(*error)

    def submit(self, function: Callable[[Task], Result], task: Task) -> _Running:
        return _Running(self._ray, self._run.remote(function, task, _versions()))


class _Running:
    """A submitted task, with the methods that :func:`builders.core.jobs.in_order` calls."""

    def __init__(self, ray: Any, ref: Any) -> None:
        self._ray, self._ref = ray, ref

    def result(self) -> Any:
        """Wait for the task and return its result. An exception of the task is raised here."""
        try:
            return self._ray.get(self._ref)
        except self._ray.exceptions.RayTaskError as error:
            if isinstance(error.cause, InputError | OSError):
                raise error.cause from None
            raise  # a bug, which is reported with a traceback
        except self._ray.exceptions.RayError as error:
            raise WorkerDied from error

    def cancel(self) -> None:
        self._ray.cancel(self._ref)


def _run(function: Callable[[Any], Any], task: Any, versions: dict[str, str]) -> Any:
    for name, version in _versions().items():
        if version != versions[name]:
            raise InputError(
                f"the machine {socket.gethostname()} has {name} {version}, but the build was started with"
                f" {versions[name]}; install the same version on all machines"
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
