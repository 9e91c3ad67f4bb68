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

from baselines.core.checkpoint import belongs

REPO = "org/name"
Command = Callable[..., Done]


def describe(path: Path, kind: str, start: str = "scratch") -> Path:
    """Add recipe, training record and loss curve to a saved model, as `train` does."""
    recipe = {"name": f"{kind}-tiny", "model": {"kind": kind, "start": start}, "data": {"set": "main"}}
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
    (path / "recipe.json").write_text(json.dumps(recipe))
    (path / "training.json").write_text(json.dumps(record))
    (path / "loss.png").write_bytes(b"\x89PNG")
    return path


def make_checkpoints(folder: Path) -> None:
    """Write a checkpoint of each kind: dual (two weight files), cross, mlm."""
    folder.mkdir()
    describe(write_dual(folder / "dual", router=True), "dual", "org/base")
    describe(write_cross(folder / "cross"), "cross")
    tokenizer = AutoTokenizer.from_pretrained(write_bert(folder / "bert"))
    torch.manual_seed(0)
    sizes = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16}
    BertForMaskedLM(BertConfig(vocab_size=len(tokenizer), **sizes)).save_pretrained(folder / "mlm")
    tokenizer.save_pretrained(folder / "mlm")
    describe(folder / "mlm", "mlm")


def with_what_stays(checkpoint: Path, other: Path, path: Path) -> Path:
    """Copy a checkpoint, and add files of every kind that must not be pushed, such as a state of ``other``."""
    shutil.copytree(checkpoint, path)
    for name in ("optimizer.pt", "training_args.bin", "trainer_state.json", "model.py", ".lock", "runs/events.out"):
        (path / name).parent.mkdir(exist_ok=True)
        (path / name).write_bytes(b"x")
    shutil.copytree(other, path / "checkpoint-5")
    return path


def push(call: Command, path: Path, *more: object, **options: Any) -> Done:
    return call("push", "--model", path, "--repo", REPO, *more, **options)


def files(hub: Hub, name: str = REPO) -> dict[str, bytes]:
    return hub.repos["model", name].files


def whole(path: Path) -> dict[str, bytes]:
    found = {p.relative_to(path).as_posix(): p.read_bytes() for p in path.rglob("*") if p.is_file()}
    return {name: content for name, content in found.items() if belongs(name)}
