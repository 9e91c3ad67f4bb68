"""The checkpoint that a training leaves: the model, ``recipe.json``, ``training.json``, ``loss.png``, its card."""

from __future__ import annotations

import json
import math
import platform
from importlib import metadata
from pathlib import Path
from typing import Any

import msgspec

from baselines.hub.card import write_card
from baselines.hub.checkpoint import check_hashes, write_hashes
from baselines.hub.needs import write_needs
from baselines.train.order import Order
from builders.core.errors import InputError, log
from builders.core.files import sha256_of, write_text
from builders.core.folders import replace_directory
from builders.core.typed import read_json

RECIPE, TRAINING, LOSSES = "recipe.json", "training.json", "loss.png"
_LIBRARIES = ("torch", "transformers", "sentence-transformers", "accelerate", "tokenizers", "numpy", "pyarrow")


class _Trained(msgspec.Struct):
    """What is asked of the ``training.json`` of a finished training."""

    about: dict[str, Any]


def is_done(order: Order) -> bool:
    """True if the output is the end of just this training.

    Raises :class:`InputError` where something else is in its place, or a file of it is damaged.

    Where nobody can be asked for the commit of a start on the hub now, the one that the training began from counts.
    """
    out = order.out
    if not out.exists() or (out.is_dir() and not any(out.iterdir())):
        return False
    try:
        about = read_json(out / TRAINING, _Trained).about
    except (FileNotFoundError, NotADirectoryError):
        raise InputError("exists and is no checkpoint of `train`; expected a new path", path=out) from None
    commit = about.pop("start_commit", None)
    if about != order.about_but_commit:
        return False
    try:
        done = bool(order.commit == commit)
    except InputError as error:
        log.warning("%s; %s began from the commit %s", error, out, commit)
        done = True
    if done:
        check_hashes(out)
    return done


def commit_begun_from(out: Path, start: str) -> str | None:
    """The commit of ``start``, a model on the hub, that the checkpoint in ``out`` began from; None: it did not."""
    try:
        about = read_json(out / TRAINING, _Trained).about
    except (FileNotFoundError, NotADirectoryError, InputError):
        return None
    commit = about.get("start_commit")
    return commit if about.get("start") == start and isinstance(commit, str) else None


def training_record(order: Order, trainer: Any, counts: dict[str, int], seconds: float) -> dict[str, Any]:
    """What ``training.json`` says: on what, how much, for how long, where, and how it went."""
    import torch

    batches, history, device = trainer.batches, trainer.state.log_history, trainer.args.device
    cpu = f"CPU, {torch.get_num_threads()} threads"
    return {
        "about": order.about,
        "builds": [build.verb for build in order.release.manifest.builds] if order.release else None,
        "counts": counts,
        "rows": len(trainer.train_dataset),
        "steps": len(batches),
        "steps_per_epoch": batches.steps_per_epoch,
        "batch": batches.batch,
        "processes": order.world,
        "seconds": round(seconds, 1),
        "rows_per_second": round(len(batches) * batches.batch / seconds, 2),
        "device": torch.cuda.get_device_name(device) if device.type == "cuda" else cpu,
        "precision": "bf16" if trainer.args.bf16 else "fp32",
        "losses": [[entry["step"], entry["loss"]] for entry in history if "loss" in entry],
        "dev_run": {"name": order.dev_run.name, "sha256": sha256_of(order.dev_run)} if order.dev_run else None,
        "dev": [
            {"step": entry["step"], **{k.removeprefix("dev_"): v for k, v in entry.items() if k.startswith("dev_")}}
            for entry in history
            if any(key.startswith("dev_") for key in entry)
        ],
        "versions": versions(),
    }


def versions() -> dict[str, str]:
    """Of Python and of the libraries that a training's figures may depend on."""
    found = {"python": platform.python_version()}
    for name in _LIBRARIES:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return found


def write_checkpoint(out: Path, work: Path, trainer: Any, recipe: dict[str, Any], training: dict[str, Any]) -> None:
    """Write the checkpoint directory in ``work``, a folder beside ``out``, then move it to ``out``."""
    # The library's card, in whose place ours comes, would ask the hub for the last two names of the start's path.
    no_card = {"create_model_card": False} if hasattr(trainer.model, "model_card_data") else {}
    _forget_lengths(trainer)
    trainer.model.save_pretrained(str(work), **no_card)
    if hasattr(trainer.processing_class, "save_pretrained"):  # a static model's tokenizer is in its module's files
        trainer.processing_class.save_pretrained(str(work))
    write_text(work / RECIPE, json.dumps(recipe, ensure_ascii=False, indent=1) + "\n")
    write_text(work / TRAINING, json.dumps(training, ensure_ascii=False, indent=1) + "\n")
    draw_losses(work / LOSSES, training["losses"], training["dev"], recipe["name"])
    write_needs(work)
    write_card(work, out.name)
    write_hashes(work)
    replace_directory(work, out)


def _forget_lengths(trainer: Any) -> None:
    """Have the tokenizers say nothing of the texts that they read last: a training that goes on may have read others.

    At what length texts are cut is said by the modules' own settings, and given to the tokenizer at every call.
    """
    found = [trainer.processing_class, *(getattr(module, "tokenizer", None) for module in trainer.model.modules())]
    for backend in filter(None, (getattr(tokenizer, "backend_tokenizer", None) for tokenizer in found)):
        backend.no_truncation()
        backend.no_padding()


def draw_losses(path: Path, losses: list[list[float]], dev: list[dict[str, float]], name: str) -> None:
    """The loss over the steps, and the first measure of the dev sample (MRR@10, or AUC of pairs of questions), as PNG.

    Left out (and said) without matplotlib.
    """
    try:
        from matplotlib.figure import Figure
    except ImportError:
        log.warning("no %s: matplotlib is not installed", path.name)
        return
    figure = Figure(figsize=(7, 4), layout="constrained")
    axes = figure.add_subplot()
    shown = [(step, loss) for step, loss in losses if math.isfinite(loss)]
    axes.plot([step for step, _ in shown], [loss for _, loss in shown], color="tab:blue", label="training loss")
    axes.set(xlabel="step", ylabel="training loss")
    axes.set_title(name, parse_math=False)  # a recipe's name may hold a dollar sign
    axes.set_ylim(bottom=0)
    if dev:
        right = axes.twinx()
        measure = next(name for name in dev[0] if name != "step")
        right.plot([row["step"] for row in dev], [100 * row[measure] for row in dev], "o-", color="tab:orange")
        right.set(ylabel=f"{measure} of the dev sample, %", ylim=(0, 100))
    figure.savefig(path, dpi=120, metadata={"Software": None})
