"""``release --engine ray`` on a cluster of two nodes on loopback: the local engine's bytes."""

import contextlib
import functools
import gzip
import os
import shutil
import signal
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from commands import SAMPLE, process
from test_release import tree

from builders.core import jobs_ray as ray_engine
from builders.core.errors import InputError
from builders.core.jobs import WorkerDied
from builders.core.jobs_ray import RayEngine
from builders.release import rows as raw
from builders.release.build import build_from_raw
from builders.sources import lines as blocks
from builders.store import layout
from builders.text.span_options import Options

ray = pytest.importorskip("ray", reason="Ray is not installed (extra ray)")
cluster_utils = pytest.importorskip("ray.cluster_utils")
CHAR = Options(unit="char")
BLOCKS = 13  # number of blocks of 32 KB in the rows below
STORE_MB = 80  # of a node's object store; Ray's minimum is 75


class Cluster:
    """A cluster of two nodes with one CPU each, which spill to the folder ``spilled``."""

    def __init__(self, folder: Path) -> None:
        self.spilled = folder / "spilled"
        self.spilled.mkdir()
        self._node = {
            "num_cpus": 1,
            "object_store_memory": STORE_MB << 20,
            "object_spilling_directory": str(self.spilled),
        }
        self._cluster = cluster_utils.Cluster(True, head_node_args=self._node | {"include_dashboard": False})
        self.add()
        self.address: str = self._cluster.address

    def add(self) -> Any:
        return self._cluster.add_node(**self._node)

    def kill(self, node: Any) -> None:
        self._cluster.remove_node(node, allow_graceful=False)

    def stop(self) -> None:
        self._cluster.shutdown()


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    folder = tmp_path_factory.mktemp("ray")
    with pytest.MonkeyPatch.context() as monkeypatch:
        monkeypatch.setenv("RAY_USAGE_STATS_ENABLED", "0")
        monkeypatch.setenv("RAY_enable_worker_prestart", "0")  # a build cannot use these processes
        monkeypatch.setenv("RAY_prestart_worker_first_driver", "0")
        monkeypatch.setenv("RAY_num_workers_soft_limit", "4")  # so that one test does not end workers of another
        started = Cluster(folder)
        ray.cloudpickle.register_pickle_by_value(sys.modules[__name__])  # the nodes do not have this file
        with RayEngine(started.address):  # one connection for all tests, because its processes are reused
            yield started
        started.stop()


@pytest.fixture
def small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(blocks.read_blocks, "__defaults__", (32 << 10, ()))
    monkeypatch.setattr(layout, "ROWS_PER_SHARD", 80)


@pytest.fixture
def rows(tmp_path: Path) -> Path:
    folder = tmp_path / "rows"
    shutil.copytree(SAMPLE, folder)
    plain = folder / "search.dev.json"
    (folder / "zhidao.dev.json.gz").write_bytes(gzip.compress(plain.read_bytes()))
    return folder


def local(rows: Path, out: Path, options: Options) -> dict[str, str]:
    build_from_raw(raw.find_sources([rows]), out, options)
    return tree(out)


class Watched(RayEngine):
    """Record every finished call in ``folder``, and kill the worker at the third call of each function."""

    def __init__(self, address: str, folder: Path) -> None:
        super().__init__(address)
        self.folder = folder

    def map(self, function: Any, tasks: Iterable[Any]) -> Iterator[Any]:
        folder = self.folder / getattr(function, "func", function).__name__
        folder.mkdir(parents=True)
        return super().map(functools.partial(_watched, function, folder), tasks)

    def calls(self, name: str) -> int:
        return len([path for path in (self.folder / name).iterdir() if path.name != "death"])


def _watched(function: Any, folder: Path, task: Any) -> Any:
    result = function(task)
    (folder / uuid4().hex).touch()
    if len(list(folder.iterdir())) >= 3:
        with contextlib.suppress(FileExistsError):
            (folder / "death").touch(exist_ok=False)
            os.kill(os.getpid(), signal.SIGKILL)
    return result


@pytest.mark.usefixtures("small_parts")
def test_a_lost_machine_and_killed_workers_and_driver(cluster: Cluster, rows: Path, tmp_path: Path) -> None:
    sources = raw.find_sources([rows])
    node = cluster.add()

    class Killed(Watched):
        def map(self, function: Any, tasks: Iterable[Any]) -> Iterator[Any]:
            for number, result in enumerate(super().map(function, tasks)):
                if number == 5:
                    cluster.kill(node)
                if number == 9:
                    raise KeyboardInterrupt
                yield result

    with Killed(cluster.address, tmp_path / "first") as engine, pytest.raises(KeyboardInterrupt):
        build_from_raw(sources, tmp_path / "ray", CHAR, engine=engine)
    assert not tree(tmp_path / "ray")
    # Ten results have arrived. Some of the four to six running tasks may also be finished.
    assert engine.calls("label_block") >= 10
    with Watched(cluster.address, tmp_path / "second") as engine:
        build_from_raw(sources, tmp_path / "ray", CHAR, engine=engine)
    # Ray may run a task twice after the loss of its machine.
    assert engine.calls("label_block") <= BLOCKS - 8
    assert tree(tmp_path / "ray") == local(rows, tmp_path / "out", CHAR)


def test_a_task_that_kills_every_process_ends_the_build(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ray_engine, "RETRIES", 1)
    with RayEngine(cluster.address) as engine, pytest.raises(WorkerDied):
        list(engine.map(os._exit, [1]))


def test_machines_with_other_packages_are_refused(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    versions = ray_engine._installed_versions()
    monkeypatch.setattr(ray_engine, "_installed_versions", lambda: versions | {"pyarrow": "1.0"})
    with RayEngine(cluster.address) as engine, pytest.raises(InputError, match=r"has pyarrow .* started with 1\.0"):
        list(engine.map(abs, [1]))


def test_a_wrong_address_is_one_error(tmp_path: Path) -> None:
    at = ("--engine", "ray", "--ray-address", "127.0.0.1:1")
    # A new process, because this one is connected to a cluster.
    done = process("builders", "release", "--quiet", *at, "--raw", SAMPLE, "--out", tmp_path / "out", code=1)
    assert done.error.startswith("no Ray cluster answers at 127.0.0.1:1 (")
    assert not list(tmp_path.iterdir())
