"""A Ray cluster of several nodes on this machine."""

import contextlib
import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from builders.core.errors import InputError

STORE_MB = 80  # of a node's object store; Ray's minimum is 75
CALLS_BEFORE_DEATH = 3  # calls of a function until its worker is killed


class Cluster:
    """A cluster of two nodes with one CPU each, which spill to the folder ``spilled``."""

    def __init__(self, folder: Path) -> None:
        from ray.cluster_utils import Cluster as RayCluster

        self.spilled = folder / "spilled"
        self.spilled.mkdir()
        self._node = {
            "num_cpus": 1,
            "object_store_memory": STORE_MB << 20,
            "object_spilling_directory": str(self.spilled),
        }
        self._cluster = RayCluster(initialize_head=True, head_node_args=self._node | {"include_dashboard": False})
        self.add()
        self.address: str = self._cluster.address

    def add(self) -> Any:
        return self._cluster.add_node(**self._node)

    def kill(self, lost_node: Any) -> None:
        self._cluster.remove_node(lost_node, allow_graceful=False)

    def stop(self) -> None:
        self._cluster.shutdown()


@contextlib.contextmanager
def cluster_of_two(folder: Path) -> Iterator[Cluster]:
    """Start a cluster of two nodes, and stop it at the end of the block."""
    with pytest.MonkeyPatch.context() as monkeypatch:
        monkeypatch.setenv("RAY_USAGE_STATS_ENABLED", "0")
        monkeypatch.setenv("RAY_enable_worker_prestart", "0")  # the commands cannot use these processes
        monkeypatch.setenv("RAY_prestart_worker_first_driver", "0")
        monkeypatch.setenv("RAY_worker_niceness", "0")  # otherwise a busy machine gives the workers no time
        monkeypatch.setenv("RAY_num_workers_soft_limit", "4")  # so that one test does not end workers of another
        started_cluster = Cluster(folder)
        yield started_cluster
        started_cluster.stop()


def call_and_record(function: Callable[[Any], Any], calls_folder: Path, task: Any) -> Any:
    """Call the function, record the call as a file, and kill this process once, at the third call."""
    result = function(task)
    (calls_folder / uuid4().hex).touch()
    if len(list(calls_folder.iterdir())) >= CALLS_BEFORE_DEATH:
        # The file can be created only once, so that only one worker dies.
        with contextlib.suppress(FileExistsError):
            (calls_folder / "death").touch(exist_ok=False)
            os.kill(os.getpid(), signal.SIGKILL)
    return result


def count_calls(calls_folder: Path) -> int:
    """Return the number of calls that :func:`call_and_record` has recorded."""
    return len([path for path in calls_folder.iterdir() if path.name != "death"])


def refuse(name: str) -> None:
    """Raise an error of wrong input."""
    raise InputError("expected a file", path=name)
