"""``push --dataset``: figures for the leaderboard of a dataset on the hub, where they are figures on that dataset."""

from __future__ import annotations

from pathlib import Path

import pytest
from checkpoints import Command, files, push
from hub_client import error_of, run_at
from hub_repos import Blob
from hub_server import Hub
from huggingface_hub import parse_eval_result_entries
from releases import QUESTIONS, TEXTS, make_release, md5, tables
from yaml import safe_load

DATASET = "org/release"


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """The first question's passage is second, the other one's is first."""
    path = tmp_path / "de.dev.run"
    path.write_text(
        "".join(
            f"{md5(question)} Q0 {md5(TEXTS[place])} {rank} {9 - rank} x\n"
            for question, places in zip(QUESTIONS["dev"], ((0, 4), (5, 4)), strict=True)
            for rank, place in enumerate(places, 1)
        )
    )
    return path


def results(hub: Hub) -> dict[str, bytes]:
    return {name: content for name, content in files(hub).items() if name.startswith(".eval_results/")}


def test_figures_on_a_published_release_are_entries_of_its_tasks(
    hub: Hub, call: Command, checkpoint: Path, whole_copy: Path, run: Path, tmp_path: Path
) -> None:
    run_at(hub, tmp_path / "home", "builders", "publish", "--release", whole_copy, "--repo", DATASET, "--create")
    commit = hub.repos["dataset", DATASET].commits[-1].oid
    tasks = {task["id"] for task in safe_load(hub.repos["dataset", DATASET].files["eval.yaml"])["tasks"]}
    hub.create("org/name", "model").commits[-1].files[".eval_results/theirs.yaml"] = Blob(b"[]", False)
    measured = ["--release", whole_copy, "--split", "dev", "--run", run]
    push(call, checkpoint, *measured, "--dataset", DATASET)
    entries = parse_eval_result_entries(safe_load(results(hub)[".eval_results/de.dev.run.yaml"]))
    assert {each.task_id: each.value for each in entries} == {
        "dev_mrr_at_10": 75.0,
        "dev_recall_at_1": 50.0,
        "dev_recall_at_50": 100.0,
    }
    assert {each.task_id for each in entries} <= tasks
    assert {(each.dataset_id, each.dataset_revision, each.notes) for each in entries} == {
        (DATASET, commit, "de.dev.run")
    }
    assert entries[0].source_url == f"{hub.url}/org/name"
    # They are no part of the checkpoint.
    call("pull", "org/name", "--out", tmp_path / "back")
    assert not (tmp_path / "back" / ".eval_results").exists()
    # The next push, without figures, takes them away; what others put there stays.
    push(call, checkpoint)
    assert [*results(hub)] == [".eval_results/theirs.yaml"]


def test_figures_on_another_release_are_no_entries(
    hub: Hub, call: Command, checkpoint: Path, whole_copy: Path, run: Path, tmp_path: Path
) -> None:
    other = make_release(tmp_path / "other", tables([*TEXTS[:-1], "手机进水后先关机，再擦干。"]))
    measured = ["--release", other, "--split", "dev", "--run", run, "--create", "--dataset", DATASET]
    assert f"there is no dataset {DATASET}" in error_of(push(call, checkpoint, *measured, code=1))
    hub.create(DATASET)
    assert f"{DATASET}: has no eval.yaml" in push(call, checkpoint, *measured).stderr
    run_at(hub, tmp_path / "home", "builders", "publish", "--release", whole_copy, "--repo", DATASET)
    done = push(call, checkpoint, *measured)
    assert f"{DATASET}: has other bytes than {other} in corpus/corpus; no .eval_results are written" in done.stderr
    assert not results(hub)
