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

from builders.core.errors import InputError, install_command
from builders.core.jobs import Engine, Result, Task, WorkerDied

TASK_BYTES = 1 << 30  # memory that Ray reserves for a task; labelling a block needs less than half
RETRIES = 3
_CONNECT_SECONDS = 10
_TASKS_PER_CPU = 2  # submitted tasks for each CPU
# The output's bytes depend on the versions of these packages.
_VERSIONED_PACKAGES = ("duckdb", "jieba", "msgspec", "numba", "numpy", "pyarrow", "ray", "rjieba")


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
            raise InputError(f"--engine ray needs Ray ({error}): {install_command('ray')}") from None
        self._ray: Any = ray
        self._connected = not ray.is_initialized()
        if self._connected:
            self._connect(address, workers)
        cpu_count = max(1, int(ray.cluster_resources().get("CPU", 1)))
        super().__init__(workers or cpu_count, self, workers or _TASKS_PER_CPU * cpu_count)
        # Created only once, because Ray sends each remote function to the machines.
        make_remote = ray.remote(num_cpus=1, memory=TASK_BYTES, max_retries=RETRIES)
        self._remote_function = make_remote(_run_task)

    def _connect(self, address: str | None, workers: int | None) -> None:
        builders_folder = Path(__file__).parents[1]
        settings: dict[str, Any] = {
            # Ray sends this program to the machines. Its dependencies must be installed on every machine.
            "runtime_env": {"py_modules": [str(builders_folder)]},
            "logging_level": logging.ERROR,
            "log_to_driver": False,
        }
        address = address or os.environ.get("RAY_ADDRESS")
        sigterm_handler = signal.getsignal(signal.SIGTERM)
        try:
            if address is None:
                self._connect_here(workers, settings)
            else:
                if address not in ("auto", "local"):
                    _expect_server(address)
                self._ray.init(address, **settings)
        except (OSError, RuntimeError, ValueError) as error:
            reason = (str(error) or type(error).__name__).splitlines()[0]
            raise InputError(
                f"no Ray cluster answers at {address or 'this machine'} ({reason});"
                " start a head with `ray start --head` and give its HOST:PORT"
            ) from None
        finally:
            # Ray's handler would end the command with another exit code.
            signal.signal(signal.SIGTERM, sigterm_handler)

    def _connect_here(self, workers: int | None, settings: dict[str, Any]) -> None:
        """Connect to a cluster that runs on this machine, else start one."""
        try:
            self._ray.init("auto", **settings)
        except ConnectionError:
            os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
            self._ray.init("local", num_cpus=workers, include_dashboard=False, **settings)

    def __enter__(self) -> Self:
        # Ray prints messages about late or lost nodes to stdout, which is reserved for results.
        self._stdout = contextlib.redirect_stdout(sys.stderr)
        self._stdout.__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        if self._connected:
            self._ray.shutdown()
        self._stdout.__exit__(*error)

    def submit(self, function: Callable[[Task], Result], task: Task) -> _SubmittedTask:
        return _SubmittedTask(self._ray, self._remote_function.remote(function, task, _installed_versions()))


def _expect_server(address: str) -> None:
    """Raise OSError or ValueError if no server answers at an address, because Ray would retry for minutes."""
    host, _, port = address.rpartition(":")
    host = host.strip("[]")  # of an IPv6 address
    socket.create_connection((host, int(port)), timeout=_CONNECT_SECONDS).close()


class _SubmittedTask:
    """A submitted task, with the methods that :func:`builders.core.jobs.in_order` calls."""

    def __init__(self, ray: Any, reference: Any) -> None:
        self._ray = ray
        self._reference = reference

    def result(self) -> Any:
        """Wait for the task and return its result. An exception of the task is raised here."""
        try:
            return self._ray.get(self._reference)
        except self._ray.exceptions.RayTaskError as error:
            if isinstance(error.cause, InputError | OSError):
                raise error.cause from None
            raise  # a bug, which is reported with a traceback
        except self._ray.exceptions.RayError as error:
            raise WorkerDied from error

    def cancel(self) -> None:
        self._ray.cancel(self._reference)


def _run_task(function: Callable[[Any], Any], task: Any, expected_versions: dict[str, str]) -> Any:
    """Run a task on a machine of the cluster, if the machine has the versions of the machine that began the build."""
    for package, version in _installed_versions().items():
        if version != expected_versions[package]:
            raise InputError(
                f"the machine {socket.gethostname()} has {package} {version}, but the build was started with"
                f" {expected_versions[package]}; install the same version on all machines"
            )
    return function(task)


@functools.cache
def _installed_versions() -> dict[str, str]:
    major, minor, _ = platform.python_version_tuple()
    versions = {"Python": f"{major}.{minor}"}
    for package in _VERSIONED_PACKAGES:
        try:
            versions[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            versions[package] = "none"
    return versions
