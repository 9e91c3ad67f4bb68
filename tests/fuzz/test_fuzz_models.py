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
from builders.core.files import sha256_of
from builders.core.hub import _earlier
from builders.core.typed import read_json

ABOUT: dict[str, Any] = {
    "recipe": {"name": "tiny"},
    "start": "org/base",
    "start_commit": "a1" * 20,
    "data": {"x": "c0"},
}


def _checkpoint(folder: Path) -> None:
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
    parts = {"recipe.json": found.recipe, "training.json": found.training}
    return parts | {"outputs": found.outputs, "files": found.files()}


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
    file = PublishedFile("config.json", 2, sha256_of(folder / "config.json"))
    (folder / "manifest.json").write_text(CheckpointManifest([file]).text())


def _listing(folder: Path) -> Any:
    """Return the files that a repository's earlier manifest lists, which would be deleted there."""
    hub = SimpleNamespace(hf_hub_download=lambda *_, **__: folder / "manifest.json")
    return _earlier(hub, "org/name", "model", "manifest.json", "dureader_retrieval checkpoint", "main")


def _as_listed(found: set[str], _: Any, folder: Path) -> bool:
    if not found:
        return True
    said = loads((folder / "manifest.json").read_bytes())
    return found == {file["path"] for file in said["files"]} and said["name"] == "dureader_retrieval checkpoint"


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
        with resume.states_kept(Path(copy) / "model", ABOUT, anew=False):
            last, _ = resume.last_state(states, 1)  # removes incomplete states
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


_CHECKPOINT, _PADDLE, _RESUME = "baselines.core.checkpoint:", "baselines.hub.paddle:", "baselines.train.resume:"
_FILES, _LIST = {"*.json": JSON, "model.safetensors": BYTES}, {"manifest.json": JSON}
_STATES = {"*/about.json": JSON, "*/*/trainer_state.json": JSON, "*/*/sealed.json": JSON}
_CONFIG, _PULL = "ernie_config.json", "baselines.hub.published_checkpoint:__post_init__"
READERS = [
    Reader(
        f"{_CHECKPOINT}_read_record,_read_settings,_is_static,open_checkpoint",
        _checkpoint,
        _FILES,
        _read_checkpoint,
        _as_its_files,
    ),
    Reader(f"{_CHECKPOINT}check_hashes", _hashed, _FILES, _read_hashed, same),
    Reader(
        _PULL, _manifest, _LIST, lambda f: read_json(f / "manifest.json", CheckpointManifest), as_json("manifest.json")
    ),
    Reader("builders.core.hub:_earlier", _manifest, _LIST, _listing, _as_listed),
    Reader(f"{_RESUME}states_kept,last_state", _states, _STATES, _read_states, _as_states),
    Reader(f"{_PADDLE}read_config", _paddle, {_CONFIG: JSON}, lambda f: read_config(f / _CONFIG), as_json(_CONFIG)),
    Reader(f"{_PADDLE}read_vocabulary", _paddle, {"vocab.txt": TEXT}, lambda f: read_vocabulary(f / "vocab.txt", 999)),
    Reader(f"{_PADDLE}read_parameter", _paddle, {"parameter": BYTES}, lambda f: read_parameter(f / "parameter")),
]
test_a_damaged_file_gives_its_content_or_one_error = fuzz_of(READERS)
