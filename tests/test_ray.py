"""``release --engine ray`` on a cluster of two nodes on loopback: the local engine's bytes."""

import functools
import gzip
import os
import shutil
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest
import ray_clusters
from commands import SAMPLE, process, tree
from ray_clusters import Cluster, call_and_record, cluster_of_two, count_calls

from builders.core import jobs_ray as ray_engine
from builders.core.errors import InputError
from builders.core.jobs import WorkerDied
from builders.core.jobs_ray import RayEngine
from builders.release import rows as raw
from builders.release.build import build_from_raw
from builders.sources import lines as source_lines
from builders.store import layout
from builders.text.span_options import SpanOptions

ray = pytest.importorskip("ray", reason="Ray is not installed (extra ray)")
CHAR = SpanOptions(unit="char")
BLOCKS = 13  # number of blocks of 32 KB in the rows below


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with cluster_of_two(tmp_path_factory.mktemp("ray")) as started_cluster:
        ray.cloudpickle.register_pickle_by_value(ray_clusters)  # the nodes do not have this file
        with RayEngine(started_cluster.address):  # one connection for all tests, because its processes are reused
            yield started_cluster


@pytest.fixture
def small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(source_lines, "BLOCK_BYTES", 32 << 10)
    monkeypatch.setattr(layout, "ROWS_PER_SHARD", 80)


@pytest.fixture
def rows(tmp_path: Path) -> Path:
    rows_folder = tmp_path / "rows"
    shutil.copytree(SAMPLE, rows_folder)
    plain_path = rows_folder / "search.dev.json"
    (rows_folder / "zhidao.dev.json.gz").write_bytes(gzip.compress(plain_path.read_bytes()))
    return rows_folder


def build_locally(rows: Path, out: Path, options: SpanOptions) -> dict[str, str]:
    """Build a release by the local engine, and return the hashes of its files."""
    build_from_raw(raw.find_sources([rows]), out, options)
    return tree(out)


class WatchedEngine(RayEngine):
    """Record every finished call in ``folder``, and kill the worker at the third call of each function."""

    def __init__(self, address: str, folder: Path) -> None:
        super().__init__(address)
        self.folder = folder

    def map(self, function: Any, tasks: Iterable[Any]) -> Iterator[Any]:
        # A partial function has its name in the function that it wraps.
        function_name = getattr(function, "func", function).__name__
        calls_folder = self.folder / function_name
        calls_folder.mkdir(parents=True)
        return super().map(functools.partial(call_and_record, function, calls_folder), tasks)

    def count_calls(self, function_name: str) -> int:
        return count_calls(self.folder / function_name)


@pytest.mark.usefixtures("small_parts")
def test_a_lost_machine_and_killed_workers_and_driver(cluster: Cluster, rows: Path, tmp_path: Path) -> None:
    sources = raw.find_sources([rows])
    third_node = cluster.add()

    class InterruptedEngine(WatchedEngine):
        """Lose a machine after some results, and stop the driver after some more."""

        def map(self, function: Any, tasks: Iterable[Any]) -> Iterator[Any]:
            for number, result in enumerate(super().map(function, tasks)):
                if number == 5:
                    cluster.kill(third_node)
                if number == 9:
                    raise KeyboardInterrupt
                yield result

    with InterruptedEngine(cluster.address, tmp_path / "first") as engine, pytest.raises(KeyboardInterrupt):
        build_from_raw(sources, tmp_path / "ray", CHAR, engine=engine)
    assert not tree(tmp_path / "ray")
    # Ten results have arrived. Some of the four to six running tasks may also be finished.
    assert engine.count_calls("label_block") >= 10
    with WatchedEngine(cluster.address, tmp_path / "second") as engine:
        build_from_raw(sources, tmp_path / "ray", CHAR, engine=engine)
    # Ray may run a task twice after the loss of its machine.
    assert engine.count_calls("label_block") <= BLOCKS - 8
    assert tree(tmp_path / "ray") == build_locally(rows, tmp_path / "out", CHAR)


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
    ray_options = ["--engine", "ray", "--ray-address", "127.0.0.1:1"]
    words = ["release", "--quiet", *ray_options, "--raw", SAMPLE, "--out", tmp_path / "out"]
    # A new process, because this one is connected to a cluster.
    done = process("builders", words, code=1)
    assert done.error.startswith("no Ray cluster answers at 127.0.0.1:1 (")
    assert not list(tmp_path.iterdir())
