"""Models on a Ray cluster of two nodes on loopback: the bytes of one machine, also after losses."""

import functools
import itertools
import json
import os
import random
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import pytest
import ray_clusters
import torch
from commands import ROOT, command, run, tree
from ray_clusters import Cluster, call_and_record, cluster_of_two, count_calls
from releases import QUESTIONS, TEXTS, make_release, md5, tables
from tiny_models import write_cross, write_dual

import baselines
from baselines.retrieve import clusters, rerankers, vector_index
from baselines.train import hard_negatives
from builders.core import ray_cluster, ray_workers
from builders.core.errors import InputError
from builders.core.jobs import WorkerDied, in_order
from builders.core.ray_cluster import RayConnection
from builders.store.runs import write_run

ray = pytest.importorskip("ray", reason="Ray is not installed (extra ray)")
OTHERS = [first + second for first, second in itertools.product(TEXTS, TEXTS)]
CORPUS = [*TEXTS, *OTHERS]
CHUNKS = 14  # files of the 42 passages
ROWS_PER_CHUNK = 3
TIMED = ("throughput", "query_latency")  # entries of a run's manifest that differ between two calls


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with cluster_of_two(tmp_path_factory.mktemp("ray")) as started_cluster:
        ray.cloudpickle.register_pickle_by_value(ray_clusters)  # the nodes do not have this file
        packages = [Path(baselines.__file__).parent]
        with RayConnection(started_cluster.address, code_folders=packages):  # one connection for all tests
            yield started_cluster


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A release, a dual-encoder, a cross-encoder and a run of the training questions."""
    torch.set_num_threads(1)
    folder = tmp_path_factory.mktemp("world")
    make_release(folder / "release", tables(CORPUS), rows_per_shard=20)
    write_dual(folder / "dual", texts=CORPUS)
    write_cross(folder / "cross", texts=CORPUS)
    hits_by_query = []
    for question in QUESTIONS["train"]:
        sample = random.Random(question).sample(OTHERS, 20)
        hits_by_query.append((md5(question), [(md5(text), 1 / rank) for rank, text in enumerate(sample, 1)]))
    write_run(folder / "train.run", hits_by_query)
    return folder


@pytest.fixture(autouse=True)
def small_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Give each test a cache, and save the scores of few queries in a file."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(rerankers, "QUERIES_PER_FILE", 2)
    monkeypatch.setattr(hard_negatives, "_QUERIES_PER_WINDOW", 2)
    monkeypatch.setattr(vector_index, "ROWS_ON_CPU", ROWS_PER_CHUNK)


def words_of(verb: str, world: Path) -> list[object]:
    """Return the words of a verb on one machine, without --out."""
    model = {"encode": "dual", "run": "dual", "rerank": "cross", "match": "cross"}
    words: list[object] = [verb, "--quiet", "--release", world / "release", "--device", "cpu"]
    if verb == "mine":
        return [*words, "--run", world / "train.run", "--cross-encoder", world / "cross", "--max-score", 0.5]
    if verb == "run":
        return [*words, world / "dual", "--split", "train"]
    words += ["--model", world / model[verb]]
    if verb == "rerank":
        words += ["--split", "train", "--run", world / "train.run"]
    if verb == "match":
        words += ["--encoder", world / "dual", "--recall-sample", 2]
    return words


def content_of(out: Path) -> Any:
    """Return the content of an output and of its manifest, without times."""
    if out.is_dir():
        return tree(out)
    manifest_path = out.with_name(f"{out.name}.manifest.json")
    manifest = json.loads(manifest_path.read_text("utf-8")) if manifest_path.exists() else {}
    for name in TIMED:
        manifest.pop(name, None)
    return out.read_bytes(), manifest


@pytest.mark.parametrize("verb", ["encode", "run", "rerank", "mine", "match"])
def test_a_cluster_writes_the_bytes_of_one_machine(
    verb: str, cluster: Cluster, world: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "cluster" / "out.run"
    words = words_of(verb, world)
    run("baselines", words, "--out", out, "--engine", "ray", "--ray-address", cluster.address)
    # Another cache, because `run` would reuse its index.
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "other_cache"))
    run("baselines", words, "--out", tmp_path / "local" / "out.run")
    assert content_of(out) == content_of(tmp_path / "local" / "out.run")


class WatchedWorkers(ray_workers.RayWorkers):
    """Workers that record every finished call in ``calls_folder``, and of which one is killed at the third call."""

    calls_folder: Path

    def submit(self, function: Any, task: Any) -> Future[Any]:
        return super().submit(functools.partial(call_and_record, function, self.calls_folder), task)


def watch(monkeypatch: pytest.MonkeyPatch, calls_folder: Path) -> None:
    """Let all workers of the test record their calls in a new folder."""
    calls_folder.mkdir()
    monkeypatch.setattr(WatchedWorkers, "calls_folder", calls_folder, raising=False)
    monkeypatch.setattr(ray_workers, "RayWorkers", WatchedWorkers)


def test_an_encoding_survives_a_lost_machine_killed_workers_and_a_stopped_driver(
    cluster: Cluster, world: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    third_node = cluster.add()
    over_devices = vector_index.over_devices

    def lose_and_stop(*arguments: Any) -> Iterator[Any]:
        """Lose a machine after some results, and stop the driver after some more."""
        for number, result in enumerate(over_devices(*arguments)):
            if number == 4:
                cluster.kill(third_node)
            if number == 8:
                raise KeyboardInterrupt
            yield result

    out = tmp_path / "ray"
    ray_words = ["--out", out, "--engine", "ray", "--ray-address", cluster.address]
    with monkeypatch.context() as patch:
        watch(patch, tmp_path / "first")
        patch.setattr(vector_index, "over_devices", lose_and_stop)
        run("baselines", words_of("encode", world), ray_words, code=130)
    assert not out.exists()
    assert (tmp_path / "first" / "death").exists()
    with monkeypatch.context() as patch:
        watch(patch, tmp_path / "second")
        run("baselines", words_of("encode", world), ray_words)
    assert (tmp_path / "second" / "death").exists()
    run("baselines", words_of("encode", world), "--out", tmp_path / "local")
    assert tree(out) == tree(tmp_path / "local")
    assert len(list(out.glob("*.npy"))) == CHUNKS


def test_a_killed_driver_loses_no_finished_chunk(cluster: Cluster, world: Path, tmp_path: Path) -> None:
    out = tmp_path / "ray"
    words = [*words_of("encode", world), "--shard-rows", 1, "--out", out]
    ray_words = ["--engine", "ray", "--ray-address", cluster.address]
    driver = subprocess.Popen(command("baselines", words, ray_words), cwd=ROOT, env=os.environ)
    while driver.poll() is None:
        finished_chunks = list(tmp_path.glob(".ray.building/*/*.npy.json"))
        if len(finished_chunks) >= 3:
            driver.send_signal(signal.SIGKILL)
            break
        time.sleep(0.05)
    driver.wait()
    assert driver.returncode == -signal.SIGKILL
    # The numbers of the files' inodes show which chunks are written again.
    inodes = {path.name.removesuffix(".json"): path.with_suffix("").stat().st_ino for path in finished_chunks}
    run("baselines", words, ray_words)
    for name, inode in inodes.items():
        assert (out / name).stat().st_ino == inode
    run("baselines", words, "--out", tmp_path / "local")
    assert tree(out) == tree(tmp_path / "local")


@pytest.mark.parametrize("verb", ["rerank", "mine"])
def test_scores_survive_a_killed_worker(
    verb: str, cluster: Cluster, world: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    watch(monkeypatch, tmp_path / "calls")
    # The second task runs again, because its worker is killed after the second call.
    monkeypatch.setattr(ray_clusters, "CALLS_BEFORE_DEATH", 2)
    out = tmp_path / "ray.run"
    run("baselines", words_of(verb, world), "--out", out, "--engine", "ray", "--ray-address", cluster.address)
    assert (tmp_path / "calls" / "death").exists()
    run("baselines", words_of(verb, world), "--out", tmp_path / "local.run")
    assert out.read_bytes() == (tmp_path / "local.run").read_bytes()
    assert count_calls(tmp_path / "calls") >= 3


def run_on_cluster(cluster: Cluster, function: Any, tasks: list[Any], folder: Path) -> list[Any]:
    """Run tasks on the workers of a cluster, as a verb with --device cpu does."""
    model_cluster = clusters.ModelCluster(cluster.address, is_device_chosen=True)
    with clusters.cluster_workers(model_cluster, "cpu", folder) as (_, workers):
        return list(in_order(workers, function, tasks, ahead=4))


def test_a_task_that_kills_every_worker_ends_the_command(
    cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ray_workers, "RETRIES", 1)
    with pytest.raises(WorkerDied):
        run_on_cluster(cluster, os._exit, [1], tmp_path)


def test_wrong_input_names_the_machine(cluster: Cluster, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"no/such/file: .*\(on the machine "):
        run_on_cluster(cluster, ray_clusters.refuse, ["no/such/file"], tmp_path)


def test_machines_with_other_packages_are_refused(
    cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    versions = ray_cluster.installed_versions(("torch",))
    monkeypatch.setattr(ray_cluster, "installed_versions", lambda packages: versions | {"torch": "1.0"})
    with pytest.raises(InputError, match=r"has torch .* the command was started with 1\.0"):
        run_on_cluster(cluster, abs, [1], tmp_path)


def test_a_folder_that_a_machine_does_not_see_is_refused(
    cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # All nodes are on this machine, so the file that they look for is removed instead.
    monkeypatch.setattr(ray_workers.secrets, "token_hex", lambda size: "../nowhere/file")
    monkeypatch.setattr(Path, "touch", lambda path: None)
    with pytest.raises(InputError, match="does not see this folder; expected storage that all machines share"):
        run_on_cluster(cluster, abs, [1], tmp_path)


def test_a_working_folder_that_a_machine_lacks_is_refused(
    cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    start_folder = tmp_path / "start"
    start_folder.mkdir()
    monkeypatch.chdir(start_folder)
    shutil.rmtree(start_folder)
    monkeypatch.setattr(os, "getcwd", lambda: str(start_folder))
    with pytest.raises(InputError, match="lacks the folder in which the command was started"):
        run_on_cluster(cluster, abs, [1], tmp_path)


def test_a_cluster_without_gpus_is_refused(cluster: Cluster, tmp_path: Path) -> None:
    model_cluster = clusters.ModelCluster(cluster.address)
    with (
        pytest.raises(InputError, match="the cluster has no GPU"),
        clusters.cluster_workers(model_cluster, "cuda:0", tmp_path),
    ):
        pass
