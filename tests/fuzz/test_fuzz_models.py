"""Spoiled descriptions of checkpoints, trainings, the hub and Paddle's parameters; without PyTorch."""

from __future__ import annotations

import json
import shutil
import tempfile
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
from fuzzing import Reader, as_json, equal, fuzz_of, loads, same
from official_parameters import unpack
from safetensors.numpy import save_file
from spoil import BYTES, JSON, TEXT

from baselines.card import model_card
from baselines.checkpoint import TRAINING, check_hashes, open_checkpoint, write_hashes
from baselines.hub.paddle import read_config, read_parameter, read_vocabulary
from baselines.hub.pull import File, Manifest
from baselines.train import resume
from baselines.train.resume import is_done, start_commit
from builders.core.files import sha256_of
from builders.core.hub import _earlier
from builders.core.typed import read_json

ABOUT: dict[str, Any] = {
    "recipe": {"name": "tiny"},
    "start": "org/base",
    "start_commit": "a1" * 20,
    "data": {"x/y": "c0"},
}


def _checkpoint(folder: Path) -> None:
    """As a training leaves one; its card reads the libraries' own settings, too."""
    recipe = {"name": "dual-tiny", "model": {"kind": "dual", "start": "org/base"}, "data": {"set": "main"}}
    dev = [{"step": 7, "MRR@10": 0.25, "recall@1": 0.125, "recall@50": 1.0}]
    record = {"about": ABOUT, "counts": {"pairs": 4}, "steps": 7, "device": "CPU", "losses": [[1, 2.5]], "dev": dev}
    record |= {"builds": ["release"], "versions": {"torch": "2"}, "dev_run": {"name": "bm25.run", "sha256": "00"}}
    settings: dict[str, Any] = {"prompts": {"query": "q: ", "document": ""}, "similarity_fn_name": "dot"}
    for name, content in {
        "recipe.json": recipe,
        "training.json": record,
        "modules.json": [],
        "config.json": {"id2label": {"0": "LABEL_0"}},
        "tokenizer_config.json": {"model_max_length": 512, "tokenizer_class": "BertTokenizer"},
        "sentence_bert_config.json": {"document_length": 384, "query_length": 32},
        "config_sentence_transformers.json": settings,
    }.items():
        (folder / name).write_text(json.dumps(content))
    save_file({"weight": np.ones((2, 3), np.float32)}, folder / "model.safetensors")


def _read_checkpoint(folder: Path) -> Any:
    found = open_checkpoint(folder)
    card = model_card(found, "org/name")
    assert card.startswith("---\n") and card.count("\n---\n") >= 1
    return {
        "recipe.json": found.recipe,
        "training.json": found.training,
        "outputs": found.outputs,
        "files": found.files(),
    }


def _as_its_files(found: Any, _: Any, folder: Path) -> bool:
    names = ("recipe.json", "training.json")
    return all(equal(found[name], loads((folder / name).read_text(encoding="utf-8-sig"))) for name in names)


def _hashed(folder: Path) -> None:
    _checkpoint(folder)
    write_hashes(folder)


def _read_hashed(folder: Path) -> Any:
    check_hashes(folder)
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.name != TRAINING}


def _manifest(folder: Path) -> None:
    (folder / "config.json").write_text("{}")
    (folder / "manifest.json").write_text(Manifest([File("config.json", 2, sha256_of(folder / "config.json"))]).text())


def _listing(folder: Path) -> Any:
    """Return the files that a repository's earlier manifest lists, which would be deleted there."""
    hub = SimpleNamespace(hf_hub_download=lambda *_, **__: folder / "manifest.json")
    return _earlier(hub, "org/name", "model", "manifest.json", "dureader_retrieval checkpoint", "main")


def _as_listed(found: set[str], _: Any, folder: Path) -> bool:
    if not found:
        return True
    said = loads((folder / "manifest.json").read_bytes())
    return found == {file["path"] for file in said["files"]} and said["name"] == "dureader_retrieval checkpoint"


def _trained(folder: Path) -> None:
    (folder / "model").mkdir()
    (folder / "model" / TRAINING).write_text(json.dumps({"about": ABOUT, "losses": [[1, 2.5]]}))


def _done(folder: Path) -> Any:
    about = {key: value for key, value in ABOUT.items() if key != "start_commit"}
    commit: Any = ABOUT["start_commit"]
    return start_commit(folder / "model", "org/base"), is_done(folder / "model", about, lambda: commit)


def _as_trained(found: tuple[str | None, bool], _: Any, folder: Path) -> bool:
    """True if the finished training began from the commit that its record names."""
    about = loads((folder / "model" / TRAINING).read_text(encoding="utf-8-sig"))["about"]
    commit = about.get("start_commit")
    begun = commit if about.get("start") == "org/base" and isinstance(commit, str) else None
    return found == (begun, about == ABOUT)


def _states(folder: Path) -> None:
    states = folder / "model.training"
    for step in (2, 4):
        (states / f"checkpoint-{step}").mkdir(parents=True)
        (states / f"checkpoint-{step}" / "trainer_state.json").write_text(json.dumps({"global_step": step, "log": []}))
        (states / f"checkpoint-{step}" / "rng_state.pth").write_bytes(b"x")
        resume.seal(states / f"checkpoint-{step}", 1.5, 1)
    (states / "about.json").write_text(json.dumps(ABOUT))


def _read_states(folder: Path) -> Any:
    with tempfile.TemporaryDirectory() as copy:
        states = Path(shutil.copytree(folder / "model.training", Path(copy) / "model.training"))
        with resume.states_kept(Path(copy) / "model", ABOUT, True):
            last, _ = resume.last_state(states, 1)  # removes those that are not whole
    return last and last.name


def _as_states(last: Any, good: Any, folder: Path) -> bool:
    if last:
        step = loads((folder / "model.training" / last / "trainer_state.json").read_bytes())["global_step"]
        assert last == f"checkpoint-{step}"
    return last in ("checkpoint-4", "checkpoint-2", None)


def _paddle(folder: Path) -> None:
    unpack(folder / "all")
    for name in ("ernie_config.json", "vocab.txt"):
        shutil.copy(folder / "all" / name, folder / name)
    parameters = sorted(path for path in (folder / "all" / "dual_params").iterdir() if path.stat().st_size < 2_000)
    shutil.copy(parameters[0], folder / "parameter")
    shutil.rmtree(folder / "all")


READERS = [
    Reader(
        "a checkpoint and its card",
        reaches=(
            "baselines.checkpoint:_read",
            "baselines.checkpoint:_settings",
            "baselines.checkpoint:open_checkpoint",
        ),
        make=_checkpoint,
        spoils={"*.json": JSON, "model.safetensors": BYTES},
        read=_read_checkpoint,
        right=_as_its_files,
    ),
    Reader(
        "a checkpoint's hashes",
        reaches=("baselines.checkpoint:check_hashes",),
        make=_hashed,
        spoils={"*.json": JSON, "model.safetensors": BYTES},
        read=_read_hashed,
        right=same,
    ),
    Reader(
        "a checkpoint's manifest",
        reaches=("baselines.hub.pull:__post_init__",),
        make=_manifest,
        spoils={"manifest.json": JSON},
        read=lambda folder: read_json(folder / "manifest.json", Manifest),
        right=as_json("manifest.json"),
    ),
    Reader(
        "a repository's list of files",
        reaches=("builders.core.hub:_earlier",),
        make=_manifest,
        spoils={"manifest.json": JSON},
        read=_listing,
        right=_as_listed,
    ),
    Reader(
        "a training's record",
        reaches=("baselines.train.resume:is_done", "baselines.train.resume:start_commit"),
        make=_trained,
        spoils={f"model/{TRAINING}": JSON},
        read=_done,
        right=_as_trained,
    ),
    Reader(
        "a training's states",
        reaches=("baselines.train.resume:states_kept", "baselines.train.resume:last_state"),
        make=_states,
        spoils={"*/about.json": JSON, "*/*/trainer_state.json": JSON, "*/*/sealed.json": JSON},
        read=_read_states,
        right=_as_states,
    ),
    Reader(
        "ERNIE's configuration",
        reaches=("baselines.hub.paddle:read_config",),
        make=_paddle,
        spoils={"ernie_config.json": JSON},
        read=lambda folder: read_config(folder / "ernie_config.json"),
        right=as_json("ernie_config.json"),
    ),
    Reader(
        "ERNIE's vocabulary",
        reaches=("baselines.hub.paddle:read_vocabulary",),
        make=_paddle,
        spoils={"vocab.txt": TEXT},
        read=lambda folder: read_vocabulary(folder / "vocab.txt", 10_000),
    ),
    Reader(
        "a parameter of Paddle's",
        reaches=("baselines.hub.paddle:read_parameter",),
        make=_paddle,
        spoils={"parameter": BYTES},
        read=lambda folder: read_parameter(folder / "parameter").tolist(),
    ),
]
test_spoiled_files_give_what_they_say_or_one_line = fuzz_of(READERS)
