"""``release --engine ray`` on a cluster of two nodes and an S3 store, both on loopback: the local engine's bytes."""

from __future__ import annotations

import functools
import gzip
import hashlib
import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from object_store import objects, put, s3
from rows import row, write_rows

from builders import blocks, raw, ray_engine, release, store
from builders.command import InputError
from builders.options import Options
from builders.processes import WorkerDied
from builders.ray_engine import RayEngine

ray = pytest.importorskip("ray", reason="Ray is an extra: pip install -e '.[ray]'")
cluster_utils = pytest.importorskip("ray.cluster_utils")
pytestmark = pytest.mark.xdist_group("ray")  # one cluster for all of them

ROOT = Path(__file__).resolve().parent.parent
SAMPLE = ROOT / "builders/sample"
STORE_MB = 80  # a node's object store; Ray takes no less than 75


class Cluster:
    """Two nodes of two CPUs, as Ray counts them; what does not fit into their stores goes to ``spilled``."""

    def __init__(self, folder: Path, bucket: Path) -> None:
        self.bucket, self.spilled = bucket, folder / "spilled"
        self.spilled.mkdir()
        self._node = {
            "num_cpus": 2,
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
    with pytest.MonkeyPatch.context() as monkeypatch, s3(monkeypatch) as bucket:
        monkeypatch.setenv("RAY_USAGE_STATS_ENABLED", "0")
        monkeypatch.setenv("OMP_NUM_THREADS", "1")
        started = Cluster(folder, bucket)
        ray.cloudpickle.register_pickle_by_value(sys.modules[__name__])  # the nodes do not have this file
        yield started
        ray.shutdown()
        started.stop()


@pytest.fixture
def bucket(cluster: Cluster) -> Path:
    return cluster.bucket / uuid4().hex


@pytest.fixture
def small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Some twenty blocks and files of the sample."""
    monkeypatch.setattr(blocks.read_blocks, "__defaults__", (16 << 10, ()))
    monkeypatch.setattr(store, "ROWS_PER_SHARD", 40)


@pytest.fixture
def rows(tmp_path: Path) -> Path:
    """The sample's questions, some of them compressed."""
    folder = tmp_path / "rows"
    shutil.copytree(SAMPLE, folder)
    plain = folder / "search.dev.json"
    (folder / "zhidao.dev.json.gz").write_bytes(gzip.compress(plain.read_bytes()))
    return folder


def local(rows: Path, out: Path, options: Options) -> dict[str, str]:
    release.build_release(raw.find_sources([rows]), out, options)
    return {
        path.relative_to(out).as_posix(): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in out.rglob("*")
        if path.is_file()
    }


class Watched(RayEngine):
    """Notes every call, in ``folder``, and does something at some of them."""

    def __init__(self, address: str, folder: Path, calls: dict[str, int], then: Callable[[], None]) -> None:
        super().__init__(address)
        self.folder, self._calls, self._then = folder, calls, then

    def map(self, function: Any, tasks: Iterable[Any]) -> Iterator[Any]:
        name = getattr(function, "func", function).__name__
        folder = self.folder / name
        folder.mkdir(parents=True)
        return super().map(functools.partial(_watched, function, folder, self._calls.get(name), self._then), tasks)


def _watched(function: Any, folder: Path, call: int | None, then: Callable[[], None], task: Any) -> Any:
    result = function(task)
    (folder / uuid4().hex).touch()
    if call is not None and len(list(folder.iterdir())) >= call:
        try:
            (folder / "then").touch(exist_ok=False)
        except FileExistsError:
            return result
        then()
    return result


def _die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


@pytest.mark.usefixtures("small_parts")
def test_workers_that_are_killed_do_not_change_a_byte(cluster: Cluster, bucket: Path, rows: Path, tmp_path: Path) -> None:
    """kill -9 in every step, when the work of a task is done and nobody has heard of it yet."""
    sources = raw.find_sources([put(rows, bucket / "raw")])
    deaths = {"_build_shard": 5, "find_repeats": 1, "write_file": 5}
    with Watched(cluster.address, tmp_path / "calls", deaths, _die) as engine:
        assert engine.workers == 4
        release.build_release(sources, bucket / "out", Options(), engine=engine)
    for name in deaths:
        assert (tmp_path / "calls" / name / "then").exists()
    assert len(list((tmp_path / "calls/write_file").iterdir())) > 10
    assert objects(bucket / "out") == local(rows, tmp_path / "out", Options())
    assert {name.split("/")[0] for name in objects(bucket)} == {"raw", "out"}
