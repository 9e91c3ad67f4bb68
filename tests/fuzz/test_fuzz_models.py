"""Damaged descriptions of checkpoints, trainings, the hub and Paddle's parameters, without PyTorch."""

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

from baselines.core.checkpoint import TRAINING, check_hashes, open_checkpoint, write_hashes
from baselines.hub.model_card import model_card
from baselines.hub.paddle import read_config, read_parameter, read_vocabulary
from baselines.hub.published_checkpoint import CheckpointManifest, PublishedFile
from baselines.train import resume
from builders.core.hub import _paths_in_manifest
from builders.core.read_files import sha256_of
from builders.core.typed import read_json

ABOUT: dict[str, Any] = {
    "recipe": {"name": "tiny"},
    "start": "org/base",
    "start_commit": "a1" * 20,
    "data": {"x": "c0"},
}


def write_checkpoint(folder: Path) -> None:
    """Write a tiny checkpoint with its recipe and training record, and without a real model."""
    recipe = {"name": "dual-tiny", "model": {"kind": "dual", "start": "org/base"}, "data": {"set": "main"}}
    record = {
        "about": ABOUT,
        "counts": {"pairs": 4},
        "steps": 7,
        "device": "CPU",
        "losses": [[1, 2.5]],
        "dev": [{"step": 7, "MRR@10": 0.25, "recall@1": 0.125, "recall@50": 1.0}],
        "builds": ["release"],
        "versions": {"torch": "2"},
        "dev_run": {"name": "bm25.run", "sha256": "00"},
    }
    settings: dict[str, Any] = {"prompts": {"query": "q: ", "document": ""}, "similarity_fn_name": "dot"}
    content_by_name: dict[str, Any] = {
        "recipe.json": recipe,
        "training.json": record,
        "modules.json": [],
        "config.json": {"id2label": {"0": "LABEL_0"}},
        "tokenizer_config.json": {"model_max_length": 512, "tokenizer_class": "BertTokenizer"},
        "sentence_bert_config.json": {"document_length": 384, "query_length": 32},
        "config_sentence_transformers.json": settings,
    }
    for name, content in content_by_name.items():
        (folder / name).write_text(json.dumps(content))
    save_file({"weight": np.ones((2, 3), np.float32)}, folder / "model.safetensors")


def read_checkpoint(folder: Path) -> Any:
    """Open a checkpoint and write its card."""
    checkpoint = open_checkpoint(folder)
    card = model_card(checkpoint, "org/name")
    assert card.startswith("---\n")
    assert card.count("\n---\n") >= 1
    return {
        "recipe.json": checkpoint.recipe,
        "training.json": checkpoint.training,
        "outputs": checkpoint.outputs,
        "files": checkpoint.files(),
    }


def is_content_of_files(checkpoint: Any, _: Any, folder: Path) -> bool:
    """Accept the recipe and the record that are in the files."""
    for name in ("recipe.json", "training.json"):
        json_value = loads((folder / name).read_text(encoding="utf-8-sig"))
        if not equal(checkpoint[name], json_value):
            return False
    return True


def write_hashed_checkpoint(folder: Path) -> None:
    """Write a checkpoint with the hashes of its files."""
    write_checkpoint(folder)
    write_hashes(folder)


def read_hashed_checkpoint(folder: Path) -> Any:
    """Check the hashes, and read all files but the training record."""
    check_hashes(folder)
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.name != TRAINING}


def write_manifest(folder: Path) -> None:
    """Write a manifest of one file."""
    (folder / "config.json").write_text("{}")
    file = PublishedFile("config.json", 2, sha256_of(folder / "config.json"))
    (folder / "manifest.json").write_text(CheckpointManifest([file]).text())


def read_listed_paths(folder: Path) -> Any:
    """Return the files that a repository's earlier manifest lists, which would be deleted there."""
    hub = SimpleNamespace(hf_hub_download=lambda *_, **__: folder / "manifest.json")
    return _paths_in_manifest(hub, "org/name", "model", "manifest.json", "dureader_retrieval checkpoint", "main")


def are_listed_paths(paths: set[str], _: Any, folder: Path) -> bool:
    """Accept no paths, or those of a manifest of this project."""
    if not paths:
        return True
    manifest = loads((folder / "manifest.json").read_bytes())
    listed_paths = {file["path"] for file in manifest["files"]}
    return paths == listed_paths and manifest["name"] == "dureader_retrieval checkpoint"


def write_training_states(folder: Path) -> None:
    """Write the states of a training after steps 2 and 4."""
    states = folder / "model.training"
    for step in (2, 4):
        state = states / f"checkpoint-{step}"
        state.mkdir(parents=True)
        (state / "trainer_state.json").write_text(json.dumps({"global_step": step, "log": []}))
        (state / "rng_state.pth").write_bytes(b"x")
        resume.seal_state(state, 1.5, 1)
    (states / "about.json").write_text(json.dumps(ABOUT))


def read_last_state(folder: Path) -> Any:
    """Return the name of the last complete state, or None."""
    # In a copy, because incomplete states are removed.
    with tempfile.TemporaryDirectory() as temporary:
        model_path = Path(temporary) / "model"
        states = Path(shutil.copytree(folder / "model.training", Path(temporary) / "model.training"))
        with resume.states_kept(model_path, ABOUT, anew=False):
            last_state, _ = resume.last_state(states, 1)  # removes incomplete states
    return last_state and last_state.name


def is_state_of_files(last_name: Any, _: Any, folder: Path) -> bool:
    """Accept a state whose name agrees with its step."""
    if last_name:
        trainer_state = loads((folder / "model.training" / last_name / "trainer_state.json").read_bytes())
        assert last_name == f"checkpoint-{trainer_state['global_step']}"
    return last_name in ("checkpoint-4", "checkpoint-2", None)


def write_paddle_files(folder: Path) -> None:
    """Write the configuration, the vocabulary and one small parameter of Paddle's checkpoint."""
    unpack(folder / "all")
    for name in ("ernie_config.json", "vocab.txt"):
        shutil.copy(folder / "all" / name, folder / name)
    parameter_paths = (folder / "all" / "dual_params").iterdir()
    small_parameters = sorted(path for path in parameter_paths if path.stat().st_size < 2_000)
    shutil.copy(small_parameters[0], folder / "parameter")
    shutil.rmtree(folder / "all")


READERS = [
    Reader(
        "baselines.core.checkpoint:_read_record,_read_settings,_is_static,open_checkpoint",
        make=write_checkpoint,
        spoils={"*.json": JSON, "model.safetensors": BYTES},
        read=read_checkpoint,
        right=is_content_of_files,
    ),
    Reader(
        "baselines.core.checkpoint:check_hashes",
        make=write_hashed_checkpoint,
        spoils={"*.json": JSON, "model.safetensors": BYTES},
        read=read_hashed_checkpoint,
        right=same,
    ),
    Reader(
        "baselines.hub.published_checkpoint:__post_init__",
        make=write_manifest,
        spoils={"manifest.json": JSON},
        read=lambda folder: read_json(folder / "manifest.json", CheckpointManifest),
        right=as_json("manifest.json"),
    ),
    Reader(
        "builders.core.hub:_paths_in_manifest",
        make=write_manifest,
        spoils={"manifest.json": JSON},
        read=read_listed_paths,
        right=are_listed_paths,
    ),
    Reader(
        "baselines.train.resume:states_kept,last_state",
        make=write_training_states,
        spoils={"*/about.json": JSON, "*/*/trainer_state.json": JSON, "*/*/sealed.json": JSON},
        read=read_last_state,
        right=is_state_of_files,
    ),
    Reader(
        "baselines.hub.paddle:read_config",
        make=write_paddle_files,
        spoils={"ernie_config.json": JSON},
        read=lambda folder: read_config(folder / "ernie_config.json"),
        right=as_json("ernie_config.json"),
    ),
    Reader(
        "baselines.hub.paddle:read_vocabulary",
        make=write_paddle_files,
        spoils={"vocab.txt": TEXT},
        read=lambda folder: read_vocabulary(folder / "vocab.txt", 999),
    ),
    Reader(
        "baselines.hub.paddle:read_parameter",
        make=write_paddle_files,
        spoils={"parameter": BYTES},
        read=lambda folder: read_parameter(folder / "parameter"),
    ),
]
test_a_damaged_file_gives_its_content_or_one_error = fuzz_of(READERS)
