"""Train a model from a recipe (Section 3.1, Appendix A.2).

The model is a dual-encoder, a cross-encoder, or a masked language model. RECIPE is a name (baselines/recipes/NAME.toml)
or a path. Hard negatives come from `mine`. The checkpoint directory loads with plain SentenceTransformer(DIR) or
CrossEncoder(DIR); recipe.json, training.json and loss.png lie in it. States for taking up a killed training are kept in
DIR.training; the same command goes on from the last one and ends in the same bits (on one machine, on the CPU; graphics
cards sum in no fixed order). Several processes, with cross-batch negatives: torchrun --nproc-per-node N -m baselines
train ... A recipe that starts from another one's checkpoint finds it beside --out, or is given it with --start.

Example, from nothing:

  python -m baselines train mlm-scratch --release DIR --out build/models/mlm-scratch
  python -m baselines train de-bm25-neg-scratch --release DIR --negatives bm25.train.negatives.jsonl.gz \\
      --out build/models/de-bm25-neg-scratch --set train.epochs=3
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import platform
from functools import partial
from pathlib import Path
from typing import Any

from baselines.train.recipe import FROM_RECIPE, SCRATCH, Recipe, names, read_recipe
from builders.common.command import InputError, log
from builders.common.files import sha256_of
from builders.common.folders import work_beside
from builders.store.layout import SETS
from builders.store.reader import Release, open_release


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("recipe", metavar="RECIPE", help=f"a .toml file, or one of {', '.join(names())}")
    parser.add_argument("--release", type=Path, required=True, metavar="DIR", help="the release directory")
    parser.add_argument("--out", type=Path, required=True, metavar="CKPT", help="the checkpoint directory to write")
    parser.add_argument("--negatives", type=Path, metavar="F", help="hard negatives (what `mine` writes)")
    parser.add_argument(
        *("--start", "--start-from"),  # torchrun takes --start for an abbreviation of its own --start-method
        metavar="MODEL",
        help="a directory or a hub name in the place of the recipe's start (under torchrun write --start-from)",
    )
    parser.add_argument(
        "--set", action="append", default=[], metavar="KEY=VALUE", help="a value of the recipe: train.batch=64"
    )
    parser.add_argument("--device", choices=["auto", "cpu", "cuda"], default="auto", help="default: cuda where it is")
    parser.add_argument("--no-resume", action="store_true", help="start anew, over earlier states and checkpoints")
    parser.add_argument("--cache", type=Path, metavar="DIR", help="where unpacked collections are kept")


def run(args: argparse.Namespace) -> None:
    recipe = read_recipe(args.recipe, args.set)
    release = open_release(args.release)
    negatives = _negatives(args, recipe)
    start = _start(args, recipe)
    out = Path(os.path.abspath(args.out))
    rank, world = int(os.environ.get("RANK", 0)), int(os.environ.get("WORLD_SIZE", 1))
    if rank:
        log.setLevel(logging.WARNING)
    about = describe(recipe, release, negatives, start)

    from baselines.train.state import is_done

    if not args.no_resume and is_done(out, about):
        log.info("%s is this training's checkpoint already; --no-resume trains again", out)
        return
    device = find_device(args.device)
    if rank:
        _train(args, recipe, release, negatives, start, about, device, out, None, world)
    else:
        with work_beside(out) as building:
            _train(args, recipe, release, negatives, start, about, device, out, building, world)


def _negatives(args: argparse.Namespace, recipe: Recipe) -> Path | None:
    if recipe.model.kind == "mlm" or not recipe.data.negatives_per_positive:
        return None
    path = args.negatives or (Path(recipe.data.negatives) if recipe.data.negatives else None)
    if path is None:
        raise InputError(
            f"the recipe {recipe.name} wants {recipe.data.negatives_per_positive} hard negatives a positive: "
            "--negatives F, made by `python -m baselines mine`; --set data.negatives_per_positive=0 trains without"
        )
    if not path.is_file():
        raise InputError("no such file of hard negatives; `python -m baselines mine` makes one", path=path)
    return Path(path)


def _start(args: argparse.Namespace, recipe: Recipe) -> str:
    start: str = args.start or recipe.model.start
    if start == SCRATCH:
        return start
    if start.startswith(FROM_RECIPE):
        name = start.removeprefix(FROM_RECIPE)
        folder = args.out.parent / name
        if not folder.is_dir():
            raise InputError(
                f"no checkpoint of {name}, from which {recipe.name} starts; train it, or give --start DIR", path=folder
            )
        return str(folder)
    return start


def describe(recipe: Recipe, release: Release, negatives: Path | None, start: str) -> dict[str, Any]:
    """What a training depends on, without paths of this machine: what must be equal for it to be taken up again.

    Raises :class:`InputError` where the release lacks the recipe's split.
    """
    configs = SETS[recipe.data.set]
    read = [(configs.corpus, "corpus")]
    if recipe.model.kind != "mlm":
        read += [(configs.queries, recipe.data.split), (configs.qrels, recipe.data.split)]
    about: dict[str, Any] = {"recipe": recipe.resolved(), "start": Path(start).name if Path(start).is_dir() else start}
    weights = Path(start) / "model.safetensors"
    about["start_sha256"] = sha256_of(weights) if weights.is_file() else None
    about["data"] = {f"{config}/{split}": release.fingerprint(config, split) for config, split in read}
    about["negatives_sha256"] = sha256_of(negatives) if negatives else None
    return about


def find_device(wanted: str) -> str:
    """``cpu`` or ``cuda:N``; :class:`InputError` where CUDA is asked for and there is none."""
    import torch

    if wanted == "cuda" and not torch.cuda.is_available():
        raise InputError("--device cuda: no CUDA device is usable here (torch.cuda.is_available() is false)")
    if wanted == "cpu" or not torch.cuda.is_available():
        return "cpu"
    return f"cuda:{os.environ.get('LOCAL_RANK', 0)}"


def _train(
    args: argparse.Namespace,
    recipe: Recipe,
    release: Release,
    negatives: Path | None,
    start: str,
    about: dict[str, Any],
    device: str,
    out: Path,
    building: Path | None,
    world: int,
) -> None:
    import torch
    from transformers import set_seed

    from baselines.passages import open_passages
    from baselines.train import data as train_data
    from baselines.train import loop as train_loop
    from baselines.train import models as train_models
    from baselines.train import state as train_state
    from baselines.train.dev_ranks import dev_sample

    quiet_libraries()
    kind, rank = recipe.model.kind, int(os.environ.get("RANK", 0))
    passages = open_passages(release, SETS[recipe.data.set].corpus, args.cache)
    states = train_state.states_of(out)
    if rank == 0:
        train_state.open_states(out, about, not args.no_resume)
    if world > 1:  # the others may look at the states once the first process has put them in order
        if device != "cpu":
            torch.cuda.set_device(device)
        torch.distributed.init_process_group("gloo" if device == "cpu" else "nccl")
        torch.distributed.barrier()
    if start == SCRATCH:
        start = str(train_models.make_scratch(recipe, passages, states / "start"))
    set_seed(recipe.train.seed)
    rows: Any
    if kind == "mlm":
        rows, counts = train_data.PassageRows(passages), {"passages": len(passages)}
    else:
        pairs = train_data.read_pairs(release, recipe, passages, negatives)
        rows, counts = (train_data.DualRows if kind == "dual" else train_data.CrossRows)(pairs, passages), pairs.counts
    batches = train_data.Batches(
        rows,
        recipe.train.batch,
        recipe.train.epochs,
        recipe.train.seed,
        max_steps=recipe.train.max_steps,
        rank=rank,
        world=world,
    )
    given = train_loop.arguments(recipe, states, batches, device)
    evaluate = None
    if kind == "mlm":
        model, tokenizer = train_models.build_mlm(recipe, start)
        trainer = train_loop.mask_trainer(recipe, model, tokenizer, rows, batches, given)
    else:
        make, trained = (
            (train_models.build_dual, train_loop.dual_trainer)
            if kind == "dual"
            else (train_models.build_cross, train_loop.cross_trainer)
        )
        model = make(recipe, start, device)
        trainer = trained(recipe, model, rows, batches, given)
        sample = dev_sample(release, recipe, passages) if rank == 0 else None
        if sample:
            evaluate = partial(sample.dual if kind == "dual" else sample.cross, batch=recipe.train.mini_batch)
    state = train_state.last_state(states, world)
    if rank == 0:
        train_state.remove_broken(states, state)
    watch = train_loop.Watch(trainer, evaluate, recipe.train.evaluations)
    trainer.add_callback(watch)
    if state:
        watch.seconds = train_state.seconds_of(state)
        log.info("taken up again after step %s of %d", state.name.split("-")[-1], len(batches))
    log.info("%s: %d rows, %d steps of %d rows, on %s", recipe.name, len(rows), len(batches), batches.batch, device)
    trainer.train(resume_from_checkpoint=str(state) if state else None)
    if building is None:
        return
    history = trainer.state.log_history
    seconds = watch.elapsed()
    training: dict[str, Any] = {
        "about": about,
        "builds": [build.verb for build in release.manifest.builds],
        "counts": counts,
        "rows": len(rows),
        "steps": len(batches),
        "steps_per_epoch": batches.steps_per_epoch,
        "batch": batches.batch,
        "processes": world,
        "seconds": round(seconds, 1),
        "rows_per_second": round(len(batches) * batches.batch / seconds, 2),
        "device": torch.cuda.get_device_name(device) if device != "cpu" else f"CPU, {torch.get_num_threads()} threads",
        "precision": "bf16" if given["bf16"] else "fp32",
        "losses": [[entry["step"], entry["loss"]] for entry in history if "loss" in entry],
        "dev": [
            {"step": entry["step"], **{k.removeprefix("dev_"): v for k, v in entry.items() if k.startswith("dev_")}}
            for entry in history
            if any(key.startswith("dev_") for key in entry)
        ],
        "versions": versions(),
    }
    train_state.write_checkpoint(out, building, partial(_save, trainer), recipe.resolved(), training)
    log.info("%s: %d steps in %.0f s", out, len(batches), seconds)
    print(json.dumps({"checkpoint": str(args.out), "steps": len(batches), "dev": training["dev"][-1:]}))


def quiet_libraries() -> None:
    """One progress bar is enough; the libraries' own, and their hints, are left out of the log."""
    from transformers.utils import logging as transformers_logging

    of_transformers: Any = transformers_logging  # its functions have no types
    of_transformers.disable_progress_bar()
    of_transformers.set_verbosity_error()
    for name in ("sentence_transformers", "matplotlib", "accelerate"):
        logging.getLogger(name).setLevel(logging.ERROR)


def _save(trainer: Any, folder: Path) -> None:
    trainer.model.save_pretrained(str(folder))
    if trainer.processing_class is not None:
        trainer.processing_class.save_pretrained(str(folder))


def versions() -> dict[str, str]:
    """Of Python and of the libraries that a training's figures may depend on."""
    from importlib import metadata

    found = {"python": platform.python_version()}
    for name in ("torch", "transformers", "sentence-transformers", "accelerate", "tokenizers", "numpy", "pyarrow"):
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return found
