"""Checkpoints of every kind in the format of `train`, and the command that pushes them to a loopback hub."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from commands import Done
from hub_server import Hub
from tiny_models import write_bert, write_cross, write_dual
from transformers import AutoTokenizer, BertConfig, BertForMaskedLM

from baselines.core.checkpoint import belongs_to_model

REPO = "org/name"
Command = Callable[..., Done]


def describe(checkpoint: Path, model_kind: str, start: str = "scratch") -> Path:
    """Add recipe, training record and loss curve to a saved model, as `train` does. Return the model's folder.

    ``model_kind``: dual, cross or mlm. ``start``: the name of the starting checkpoint.
    """
    recipe = {
        "name": f"{model_kind}-tiny",
        "model": {"kind": model_kind, "start": start},
        "data": {"set": "main"},
    }
    record: dict[str, Any] = {
        "about": {"recipe": recipe, "start": start, "data": {"corpus/corpus": "c0ffee", "qrels/train": "beef"}},
        "counts": {"pairs": 4},
        "steps": 7,
        "device": "CPU, 1 threads",
        "losses": [[1, 2.5]],
        "dev": [{"step": 7, "MRR@10": 0.25, "recall@1": 0.125, "recall@50": 1.0}],
        "builds": ["release"],
        "versions": {"torch": "2"},
    }
    (checkpoint / "recipe.json").write_text(json.dumps(recipe))
    (checkpoint / "training.json").write_text(json.dumps(record))
    (checkpoint / "loss.png").write_bytes(b"\x89PNG")
    return checkpoint


def make_checkpoints(folder: Path) -> None:
    """Write a checkpoint of each kind: dual (two weight files), cross, mlm."""
    folder.mkdir()
    describe(write_dual(folder / "dual", router=True), "dual", "org/base")
    describe(write_cross(folder / "cross"), "cross")
    tokenizer = AutoTokenizer.from_pretrained(write_bert(folder / "bert"))
    torch.manual_seed(0)
    # The library draws the weights when the model is created.
    config = BertConfig(
        vocab_size=len(tokenizer),
        hidden_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=16,
    )
    BertForMaskedLM(config).save_pretrained(folder / "mlm")
    tokenizer.save_pretrained(folder / "mlm")
    describe(folder / "mlm", "mlm")


def with_what_stays(checkpoint: Path, state: Path, copy: Path) -> Path:
    """Copy a checkpoint, and add files of every kind that must not be pushed. Return the copy.

    ``state``: a model's folder, which stands for a state of the training.
    """
    shutil.copytree(checkpoint, copy)
    for name in ("optimizer.pt", "training_args.bin", "trainer_state.json", "model.py", ".lock", "runs/events.out"):
        local_file = copy / name
        local_file.parent.mkdir(exist_ok=True)
        local_file.write_bytes(b"x")
    shutil.copytree(state, copy / "checkpoint-5")
    return copy


def push(call: Command, checkpoint: Path, *words: object, **options: Any) -> Done:
    """Push a checkpoint to the repository ``REPO`` by ``call``, the fixture of ``conftest.py``."""
    return call("push", "--model", checkpoint, "--repo", REPO, *words, **options)


def files(hub: Hub, name: str = REPO) -> dict[str, bytes]:
    """Return the content of each file of a model repository by its path."""
    return hub.repos["model", name].files


def whole(checkpoint: Path) -> dict[str, bytes]:
    """Return the content of each file of a checkpoint that must be pushed, by its path."""
    contents = {}
    for path in checkpoint.rglob("*"):
        name = path.relative_to(checkpoint).as_posix()
        if path.is_file() and belongs_to_model(name):
            contents[name] = path.read_bytes()
    return contents
