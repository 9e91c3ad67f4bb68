"""Run the tasks of a build on a Ray cluster (``--engine ray``).

The functions, the tasks and the order of results are the same as on one machine, so the output has the same bytes. Ray
transfers blocks of the sources, two for each CPU at a time. Files are written to storage that all machines share.

If a process or machine is lost, Ray runs its tasks again elsewhere. This is safe because the same task gives the same
bytes, and a shard appears only when the shard is complete. Work with models, which are opened once, is in
:mod:`.ray_workers`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Self

from builders.core.errors import InputError
from builders.core.jobs import Engine, Result, Task, WorkerDied
from builders.core.ray_cluster import RETRIES, RayConnection, expect_versions, installed_versions

TASK_BYTES = 1 << 30  # memory that Ray reserves for a task; labelling a block needs less than half
_TASKS_PER_CPU = 2  # submitted tasks for each CPU
# The output's bytes depend on the versions of these packages.
_VERSIONED_PACKAGES = ("duckdb", "jieba", "msgspec", "numba", "numpy", "pyarrow", "ray", "rjieba")


class RayEngine(Engine):
    """An engine on a Ray cluster. A context manager.

    ``address`` is that of :class:`.RayConnection`. ``workers`` is the number of tasks that run at once (default: a task
    for each CPU). Raises :class:`InputError` if Ray is not installed, or no cluster answers.
    """

    def __init__(self, address: str | None = None, workers: int | None = None) -> None:
        self._connection = RayConnection(address, local_cpus=workers)
        self._ray = self._connection.ray
        cpu_count = max(1, int(self._ray.cluster_resources().get("CPU", 1)))
        # With ``workers``, no task waits in the cluster, because Ray would run a waiting task on a free CPU.
        most_submitted = workers or _TASKS_PER_CPU * cpu_count
        super().__init__(workers or cpu_count, self, most_submitted)
        # Created only once, because Ray sends each remote function to the machines.
        make_remote = self._ray.remote(num_cpus=1, memory=TASK_BYTES, max_retries=RETRIES)
        self._remote_function = make_remote(_run_task)

    def __enter__(self) -> Self:
        self._connection.__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        self._connection.__exit__(*error)

    def submit(self, function: Callable[[Task], Result], task: Task) -> _SubmittedTask:
        """Run ``function(task)`` somewhere on the cluster."""
        return _SubmittedTask(self._ray, self._remote_function.remote(function, task, _installed_versions()))


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
    expect_versions(expected_versions, "build")
    return function(task)


def _installed_versions() -> dict[str, str]:
    return installed_versions(_VERSIONED_PACKAGES)
