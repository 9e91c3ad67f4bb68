"""``release --engine ray`` on a cluster of two nodes on loopback: the local engine's bytes."""

from __future__ import annotations

import contextlib
import functools
import gzip
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from commands import ROOT, SAMPLE
from rows import row, write_rows
from test_release import tree

from builders.core import jobs_ray as ray_engine
from builders.core.errors import InputError
from builders.core.jobs import WorkerDied
from builders.core.jobs_ray import RayEngine
from builders.release import rows as raw
from builders.release.build import build_release
from builders.release.options import Options
from builders.sources import lines as blocks
from builders.store import layout

ray = pytest.importorskip("ray", reason="Ray is not installed: pip install --group ray")
cluster_utils = pytest.importorskip("ray.cluster_utils")

CHAR = Options(unit="char")
BLOCKS = 13  # of the rows below, in parts of 32 KB
STORE_MB = 80  # a node's object store; Ray takes no less than 75


class Cluster:
    """Two nodes of one CPU each; what does not fit into their stores goes to ``spilled``."""

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
        monkeypatch.setenv("RAY_enable_worker_prestart", "0")  # processes that no task of a build can use
        monkeypatch.setenv("RAY_prestart_worker_first_driver", "0")
        monkeypatch.setenv("RAY_num_workers_soft_limit", "4")  # the command's own do not end those of the other tests
        started = Cluster(folder)
        ray.cloudpickle.register_pickle_by_value(sys.modules[__name__])  # the nodes do not have this file
        with RayEngine(started.address):  # one connection for all: its processes are there for the next test
            yield started
        started.stop()


@pytest.fixture
def small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Some ten blocks and files of the sample."""
    monkeypatch.setattr(blocks.read_blocks, "__defaults__", (32 << 10, ()))
    monkeypatch.setattr(layout, "ROWS_PER_SHARD", 80)


@pytest.fixture
def rows(tmp_path: Path) -> Path:
    """The sample's questions, some of them compressed."""
    folder = tmp_path / "rows"
    shutil.copytree(SAMPLE, folder)
    plain = folder / "search.dev.json"
    (folder / "zhidao.dev.json.gz").write_bytes(gzip.compress(plain.read_bytes()))
    return folder


def local(rows: Path, out: Path, options: Options) -> dict[str, str]:
    build_release(raw.find_sources([rows]), out, options)
    return tree(out)


class Watched(RayEngine):
    """Notes every call that has done its work, in ``folder``; at some, by name and number, the worker process dies."""

    def __init__(self, address: str, folder: Path, deaths: dict[str, int]) -> None:
        super().__init__(address)
        self.folder, self._deaths = folder, deaths

    def map(self, function: Any, tasks: Iterable[Any]) -> Iterator[Any]:
        name = getattr(function, "func", function).__name__
        folder = self.folder / name
        folder.mkdir(parents=True)
        return super().map(functools.partial(_watched, function, folder, self._deaths.get(name)), tasks)

    def calls(self, name: str) -> int:
        return len([path for path in (self.folder / name).iterdir() if path.name != "death"])


def _watched(function: Any, folder: Path, death: int | None, task: Any) -> Any:
    result = function(task)
    (folder / uuid4().hex).touch()
    if death is not None and len(list(folder.iterdir())) >= death:
        with contextlib.suppress(FileExistsError):
            (folder / "death").touch(exist_ok=False)
            os.kill(os.getpid(), signal.SIGKILL)
    return result


@pytest.mark.usefixtures("small_parts")
def test_workers_that_are_killed_do_not_change_a_byte(cluster: Cluster, rows: Path, tmp_path: Path) -> None:
    """kill -9 while labelling and while writing, when the work of a task is done and nobody has heard of it yet."""
    sources = raw.find_sources([rows])
    deaths = {"label_block": 3, "write_file": 3}
    with Watched(cluster.address, tmp_path / "calls", deaths) as engine:
        assert engine.workers == 2
        build_release(sources, tmp_path / "ray", CHAR, engine=engine)
    for name in deaths:
        assert (tmp_path / "calls" / name / "death").exists()
    assert engine.calls("label_block") > 10 and engine.calls("write_file") > 5
    assert tree(tmp_path / "ray") == local(rows, tmp_path / "out", CHAR)
    assert {path.name for path in tmp_path.iterdir()} == {"rows", "calls", "out", "ray"}


@pytest.mark.usefixtures("small_parts")
def test_a_machine_that_is_lost_and_a_driver_that_is_killed(cluster: Cluster, rows: Path, tmp_path: Path) -> None:
    """The finished parts are found again."""
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

    with Killed(cluster.address, tmp_path / "first", {}) as engine, pytest.raises(KeyboardInterrupt):
        build_release(sources, tmp_path / "ray", CHAR, engine=engine)
    assert not tree(tmp_path / "ray")
    # Ten results have come; the tasks in flight, four or six, may be done or not.
    assert engine.calls("label_block") >= 10
    with Watched(cluster.address, tmp_path / "second", {}) as engine:
        build_release(sources, tmp_path / "ray", CHAR, engine=engine)
    # Ray may run a task twice whose machine it has just lost.
    assert engine.calls("label_block") <= BLOCKS - 8
    assert tree(tmp_path / "ray") == local(rows, tmp_path / "out", CHAR)


def command(*arguments: object, code: int = 0) -> subprocess.CompletedProcess[str]:
    words = [sys.executable, "-m", "builders", "release", "--engine", "ray", "--unit", "char", *map(str, arguments)]
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, timeout=300)
    assert done.returncode == code, done.stderr
    return done


def test_a_wrong_row_is_one_error_and_leaves_nothing(cluster: Cluster, tmp_path: Path) -> None:
    good = row(1, "绿萝怎么养", [["见干见湿,冬天少浇水"]], ["冬天少浇水"])
    path = write_rows(tmp_path / "raw/train.json", [good, good | {"question": " "}, good])
    said = r"train\.json:2: a question with no text"
    with RayEngine(cluster.address) as engine, pytest.raises(InputError, match=said):
        build_release(raw.find_sources([tmp_path / "raw"]), tmp_path / "out", CHAR, engine=engine)
    assert set(tmp_path.iterdir()) == {path.parent}


def test_a_task_that_kills_every_process_ends_the_build(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ray_engine, "RETRIES", 1)
    with RayEngine(cluster.address) as engine, pytest.raises(WorkerDied):
        list(engine.map(os._exit, [1]))


def test_machines_with_other_packages_are_refused(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    versions = ray_engine._versions()
    monkeypatch.setattr(ray_engine, "_versions", lambda: versions | {"pyarrow": "1.0"})
    with RayEngine(cluster.address) as engine, pytest.raises(InputError, match=r"has pyarrow .* starts the build 1\.0"):
        list(engine.map(abs, [1]))


def test_a_wrong_address_is_one_error(tmp_path: Path) -> None:
    done = command("--quiet", "--ray-address", "127.0.0.1:1", "--raw", SAMPLE, "--out", tmp_path / "out", code=1)
    assert len(done.stderr.strip().splitlines()) == 1
    assert "no Ray cluster answers at 127.0.0.1:1 (" in done.stderr
    assert not list(tmp_path.iterdir())
