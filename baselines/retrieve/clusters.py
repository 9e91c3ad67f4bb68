"""Run models on the machines of a Ray cluster (``--engine ray``): a worker for each GPU, or for some CPUs.

The tasks, their files and their order are those of one machine, so the results have the same bytes as on one machine
with the same processors.
"""

import contextlib
import os
import platform
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from builders.core.errors import InputError, log

if TYPE_CHECKING:
    from builders.core.ray_workers import RayWorkers, WorkerShare

_BASELINES_FOLDER = Path(__file__).parents[1]
# Results depend on the versions of these packages.
_VERSIONED_PACKAGES = (
    "torch",
    "transformers",
    "sentence-transformers",
    "tokenizers",
    "safetensors",
    "numpy",
    "pyarrow",
    "msgspec",
    "openvino",
    "ray",
)
_WORKER_GPU = "cuda:0"  # a worker sees only its own GPU
_CPU_INFO = Path("/proc/cpuinfo")
_CPU_MODEL_FIELD = "model name"


@dataclass(frozen=True)
class ModelCluster:
    """A cluster on which models run.

    Attributes:
        address: address of the cluster's head, or None for the default of :class:`.RayConnection`.
        task_cpus: CPUs of a worker (default: 1 beside a GPU, else all CPUs of the smallest machine).
        is_device_chosen: True if ``--device`` is given. Otherwise, GPUs of the cluster must not stay unused.
    """

    address: str | None = None
    task_cpus: int | None = None
    is_device_chosen: bool = False


def cluster_of(
    engine: str, ray_address: str | None = None, task_cpus: int | None = None, device: str | None = None
) -> ModelCluster | None:
    """Return the cluster that the options of these names select, or None for this machine.

    Raises :class:`InputError` if Ray is not installed, or no server answers at the address.
    """
    if engine != "ray":
        return None
    from builders.core.ray_cluster import check_ray

    check_ray(ray_address)
    return ModelCluster(ray_address, task_cpus, is_device_chosen=device is not None)


@contextlib.contextmanager
def cluster_workers(cluster: ModelCluster, device: str, work_folder: Path) -> Iterator[tuple[str, "RayWorkers"]]:
    """Connect to a cluster and yield (the name of a worker's device, the pool of workers).

    Args:
        cluster: the cluster.
        device: a device of this machine. The workers have a device of the same kind.
        work_folder: the folder that tasks write to.

    Raises:
        InputError: the cluster has no machine with the device and the CPUs of a worker.
    """
    from builders.core.ray_cluster import RayConnection, installed_versions
    from builders.core.ray_workers import RayWorkers, WorkerStart, count_workers, machine_resources, shared_file_in

    with RayConnection(cluster.address, code_folders=[_BASELINES_FOLDER]) as connection:
        machines = machine_resources(connection)
        share = choose_share(cluster, device, machines)
        worker_count = count_workers(machines, share)
        log.info("%d workers on %d machines, each with %s", worker_count, len(machines), share)
        worker_device = _WORKER_GPU if share.gpus else device
        with shared_file_in(work_folder) as shared_file:
            start = WorkerStart(
                working_folder=os.getcwd(),
                shared_file=str(shared_file),
                versions=installed_versions(_VERSIONED_PACKAGES),
                set_up="baselines.retrieve.clusters:set_up_worker",
                arguments=(worker_device, share.cpus),
            )
            workers = RayWorkers(
                connection,
                worker_count=worker_count,
                share=share,
                start=start,
                processor=processor_name(device),
            )
            with workers:
                yield worker_device, workers


def choose_share(cluster: ModelCluster, device: str, machines: list[tuple[int, int]]) -> "WorkerShare":
    """Return the part of a machine that a worker has. ``machines`` has (CPUs, GPUs) of each machine.

    ``device`` is a device of this machine: "cpu", or the name of a GPU. Raises :class:`InputError` if no machine has
    room for a worker, or GPUs would stay unused although ``--device`` was not given.
    """
    from builders.core.ray_workers import WorkerShare, count_workers

    gpu_count = sum(gpus for _, gpus in machines)
    if device == "cpu":
        if gpu_count and not cluster.is_device_chosen:
            raise InputError(
                f"this machine has no GPU, but the cluster has {gpu_count}; start the command on a machine with a GPU, "
                "or add --device cpu"
            )
        # A machine without CPUs of the cluster, for example a head that runs no tasks, has no worker.
        cpu_counts = [cpus for cpus, _ in machines if cpus]
        share = WorkerShare(cpus=cluster.task_cpus or min(cpu_counts, default=1))
    else:
        if not gpu_count:
            raise InputError("the cluster has no GPU; start machines with GPUs by `ray start`, or add --device cpu")
        share = WorkerShare(cpus=cluster.task_cpus or 1, gpus=1)
    if not count_workers(machines, share):
        raise InputError(
            f"no machine of the cluster has {share} for a task; the machines have (CPUs, GPUs): "
            f"{', '.join(map(str, machines))}"
        )
    return share


def set_up_worker(device: str, cpu_count: int) -> str:
    """Set up a worker process, which has ``cpu_count`` CPUs. Return the name of its processor."""
    if device == "cpu":
        torch.set_num_threads(cpu_count)
    return processor_name(device)


def processor_name(device: str) -> str:
    """Return the name of a GPU, or the name of this machine's CPU."""
    if device != "cpu":
        gpu_name: Any = torch.cuda.get_device_name(device)
        return str(gpu_name)
    with contextlib.suppress(OSError):  # only Linux has this file
        for line in _CPU_INFO.read_text(encoding="utf-8", errors="replace").splitlines():
            field, _, value = line.partition(":")
            if field.strip() == _CPU_MODEL_FIELD:
                return value.strip()
    return platform.processor() or platform.machine()
