"""Calls of models on a Ray cluster that cannot work, and the shares of machines, without any cluster."""

import builtins
import sys
from pathlib import Path
from typing import Any

import pytest
from commands import run

from baselines.retrieve.clusters import ModelCluster, choose_share, cluster_of
from baselines.retrieve.devices import work_of
from builders.core.errors import InputError
from builders.core.ray_workers import WorkerShare, count_workers

GPU_MACHINES = [(16, 8), (16, 8), (4, 0)]  # (CPUs, GPUs) of each machine
CPU_MACHINES = [(16, 0), (8, 0), (0, 0)]
LISTWISE = ["--run", "a.run", "--out", "b.run", "--kind", "listwise"]


def test_a_gpu_for_each_worker() -> None:
    share = choose_share(ModelCluster(), "cuda:0", GPU_MACHINES)
    assert share == WorkerShare(cpus=1, gpus=1)
    assert count_workers(GPU_MACHINES, share) == 16
    # 16 CPUs have room for 5 workers with 3 CPUs each.
    share = choose_share(ModelCluster(task_cpus=3), "cuda:0", GPU_MACHINES)
    assert count_workers(GPU_MACHINES, share) == 10


def test_all_cpus_of_the_smallest_machine_for_each_worker() -> None:
    share = choose_share(ModelCluster(), "cpu", CPU_MACHINES)
    assert share == WorkerShare(cpus=8)
    assert count_workers(CPU_MACHINES, share) == 3


@pytest.mark.parametrize(
    ("cluster", "device", "machines", "message"),
    [
        (ModelCluster(), "cpu", GPU_MACHINES, "this machine has no GPU, but the cluster has 16"),
        (ModelCluster(), "cuda:0", CPU_MACHINES, "the cluster has no GPU"),
        (ModelCluster(task_cpus=17), "cpu", CPU_MACHINES, "no machine of the cluster has 17 CPUs for a task"),
        (ModelCluster(task_cpus=17), "cuda:0", GPU_MACHINES, "has a GPU and 17 CPUs for a task"),
        (ModelCluster(), "cpu", [(0, 0)], "no machine of the cluster has 1 CPU for a task"),
    ],
)
def test_a_cluster_without_room_is_one_error(
    cluster: ModelCluster, device: str, machines: list[tuple[int, int]], message: str
) -> None:
    with pytest.raises(InputError, match=message):
        choose_share(cluster, device, machines)


def test_a_chosen_cpu_leaves_gpus_unused() -> None:
    share = choose_share(ModelCluster(is_device_chosen=True), "cpu", GPU_MACHINES)
    assert share == WorkerShare(cpus=4)


def test_one_gpu_of_this_machine_is_no_device_of_a_cluster() -> None:
    with pytest.raises(InputError, match="--device cuda:1: expected cpu, or cuda"):
        work_of("cuda:1", cluster=ModelCluster())


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["encode", "--endpoint", "http://localhost/v1"], "engine: a model behind an endpoint has no such option"),
        (["rerank", *LISTWISE], "engine: a model behind an endpoint has no such option; remove --engine"),
        (["run", "NAME", "--over", "a.run", "--kind", "listwise"], "engine: a model behind an endpoint has no such"),
        (["match", "--calibrate", "pairs.tsv"], "--engine and --calibrate exclude each other"),
        (["mine", "--run", "a.run"], "--engine needs --cross-encoder or --bi-encoder"),
    ],
)
def test_a_call_for_which_a_cluster_makes_no_sense_is_refused(words: list[str], message: str, tmp_path: Path) -> None:
    verb, *further_words = words
    usual_words = [] if "--calibrate" in words else ["--release", tmp_path]
    if "--out" not in words:
        usual_words += ["--out", tmp_path / "out"]
    if verb not in ("run", "mine"):
        usual_words += ["--model", "NAME"]
    done = run("baselines", verb, further_words, usual_words, "--engine", "ray", code=2)
    assert message in done.stderr


@pytest.mark.parametrize("option", ["--ray-address", "--task-cpus"])
def test_options_of_a_cluster_need_the_engine(option: str, tmp_path: Path) -> None:
    words = ["--release", tmp_path, "--model", "NAME", "--out", tmp_path / "out", option, "1"]
    done = run("baselines", "encode", words, code=2)
    assert f"{option} needs --engine ray" in done.stderr


def test_a_wrong_address_is_one_error() -> None:
    pytest.importorskip("ray", reason="Ray is not installed (extra ray)")
    with pytest.raises(InputError, match=r"no Ray cluster answers at 127\.0\.0\.1:1 \("):
        cluster_of("ray", "127.0.0.1:1")


def test_without_ray_the_error_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    import_module = builtins.__import__

    def import_without_ray(name: str, *arguments: Any, **options: Any) -> Any:
        if name == "ray":
            raise ModuleNotFoundError("No module named 'ray'", name="ray")
        return import_module(name, *arguments, **options)

    monkeypatch.delitem(sys.modules, "ray", raising=False)
    monkeypatch.setattr(builtins, "__import__", import_without_ray)
    with pytest.raises(InputError, match=r"--engine ray needs Ray .*\[ray\]"):
        cluster_of("ray")
