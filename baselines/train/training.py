"""Train the model of a recipe, from the last saved state if there is one, and write its checkpoint directory."""

from __future__ import annotations

import contextlib
import functools
import json
import logging
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from baselines.core.checkpoint import (
    LOSSES,
    RECIPE,
    TRAINING,
    TRAINING_FORMAT,
    checkpoint_hashes,
    read_library_versions,
    write_json,
)
from baselines.core.passages import CachedPassages, open_passages
from baselines.retrieve.hub_models import quiet_libraries
from baselines.train.recipe import CREATED_STARTS
from baselines.train.resume import last_state, states_kept, states_of
from baselines.train.training_job import TrainingJob
from builders.core.errors import log
from builders.core.finished_outputs import find_finished, record_finished
from builders.core.folders import replace_directory, work_beside
from builders.core.paths import check_place
from builders.core.read_files import sha256_of
from builders.core.results import Report
from builders.core.typed import read_json
from builders.store.layout import set_of
from builders.store.reader import Release

# These imports load PyTorch, which takes seconds; input errors should appear earlier.
if TYPE_CHECKING:
    from baselines.train.trainers import Evaluate
    from baselines.train.training_rows import TrainingBatches


def run_training(job: TrainingJob) -> Mapping[str, Any] | None:
    """Train the model and write the checkpoint directory, unless ``job.out`` has this training's checkpoint already.

    The first process returns the content of ``training.json``, other processes return None. Raises
    :class:`InputError` for wrong input, and if other files occupy ``job.out``.
    """
    finished = find_finished(job.out, job.call, again=job.again)
    if finished:
        if not job.first:
            return None
        with work_beside(job.out, wait=True):
            pass  # an empty block removes the temporary files of a killed training
        return read_json(job.out / TRAINING, dict[str, Any])
    # The hub is asked for the commit before the large libraries are loaded, so that errors appear at once.
    start_commit = job.commit
    if start_commit:
        log.info("starts from %s, commit %s", job.start, start_commit)
    training = train_checkpoint(job)
    if job.first:
        # The card is not recorded, because `push` replaces the card.
        checksums = {job.out / file_name: sha256 for file_name, sha256 in checkpoint_hashes(job.out).items()}
        output_files = list(checksums)
        output_files.append(job.out / TRAINING)
        record_finished(job.out, job.call, files=output_files, checksums=checksums)
    return training


def summarise_training(out: Path, training: Mapping[str, Any]) -> Report:
    """Return the summary of a training: its checkpoint, its steps, and the last scores on the dev sample."""
    summary = {"checkpoint": str(out), "steps": training["steps"], "dev": training["dev"][-1:]}
    return Report(summary, json.dumps(summary))


def train_checkpoint(job: TrainingJob) -> Mapping[str, Any] | None:
    """Train the model, from the last saved state if there is one, and write the checkpoint directory.

    The first process returns the content of ``training.json``, other processes return None. Raises :class:`InputError`
    for wrong input, and if other files occupy the output's path.
    """
    from baselines.retrieve.devices import devices_of

    quiet_libraries()
    if not job.first:
        log.setLevel(logging.WARNING)
    requested_device = None if job.device == "auto" else job.device
    device = devices_of(requested_device)[0]
    if device != "cpu":
        # torchrun gives each process of a machine its own GPU.
        device = f"cuda:{os.environ.get('LOCAL_RANK', 0)}"
    check_place(job.out)
    data = read_data(job, device)
    with contextlib.ExitStack() as stack:
        work_folder = None  # in which the first process writes the checkpoint
        if job.first:
            work_folder = stack.enter_context(work_beside(job.out))
            dependencies = {**job.result_inputs, "start_commit": job.commit}
            states_folder = stack.enter_context(states_kept(job.out, dependencies, anew=job.again))
            # The first process removes damaged states before the other processes look for states.
            last_state(states_folder, job.world)
        if job.world > 1:
            from baselines.train.trainers import process_group

            stack.enter_context(process_group(job.rank, job.world, device))
        return _train_model(job, data, device, work_folder)


@dataclass
class TrainingData:
    """The training rows, read before anything is written or a model is opened.

    Attributes:
        batches: the rows, in batches.
        counts: the numbers of rows, for ``training.json``.
        evaluate: evaluates a model on the dev sample. None without a dev sample, and in all processes but the first.
        passages: the collection. None for pairs of questions.
    """

    batches: TrainingBatches
    counts: dict[str, int]
    evaluate: Evaluate | None
    passages: CachedPassages | None


def read_data(job: TrainingJob, device: str) -> TrainingData:
    """Read the rows that the recipe learns from, and the dev sample, which is smaller on a CPU."""
    from baselines.train.training_rows import TrainingBatches

    recipe = job.recipe
    settings = recipe.train
    passages = None
    if job.release is None:
        rows, counts, sample = _read_question_pairs(job)
    else:
        passages = open_passages(job.release, set_of(recipe.data.set).corpus, job.cache)
        rows, counts, sample = _read_release_rows(job, job.release, passages, device)
    batches = TrainingBatches(
        rows,
        settings.batch,
        settings.epochs,
        settings.seed,
        max_steps=settings.max_steps,
        rank=job.rank,
        world=job.world,
    )
    evaluate = None
    if sample:
        log.info("evaluated about %d times during training, on %s", settings.evaluations, sample)
        evaluate = functools.partial(sample.measures, batch=settings.mini_batch)
    return TrainingData(batches, counts, evaluate, passages)


# The rows, their counts, and the dev sample (None: no evaluation).
_RowsRead = tuple[Any, dict[str, int], Any]


def _read_question_pairs(job: TrainingJob) -> _RowsRead:
    """Read labelled pairs of questions. The first process also gets the dev pairs as the dev sample."""
    from baselines.train import matching_pairs
    from baselines.train.training_rows import QuestionRows

    recipe = job.recipe
    training_pairs, dev_pairs = matching_pairs.read_matching_pairs(
        job.pairs, job.dev_pairs, held_out_share=recipe.data.held_out, seed=recipe.train.seed
    )
    counts = {
        "pairs": len(training_pairs),
        "positive pairs": sum(pair.label for pair in training_pairs),
        "dev pairs": len(dev_pairs),
        "positive dev pairs": sum(pair.label for pair in dev_pairs),
    }
    log.info("%s", ", ".join(f"{name}: {count:,}" for name, count in counts.items()))
    sample = None
    if job.first and recipe.train.evaluations > 0:
        sample = matching_pairs.DevPairs(dev_pairs, recipe.data.passage_length)
    return QuestionRows(training_pairs), counts, sample


def _read_release_rows(job: TrainingJob, release: Release, passages: CachedPassages, device: str) -> _RowsRead:
    """Read the training rows of a release. The first process also draws the dev sample."""
    from baselines.train.dev_sample import draw_dev_sample
    from baselines.train.training_pairs import read_pairs
    from baselines.train.training_rows import CrossRows, DualRows, PassageTextRows, ScoredRows

    recipe = job.recipe
    rows: Any
    if recipe.model.kind == "mlm":
        rows = PassageTextRows(passages)
        counts = {"passages": len(passages)}
    else:
        pairs = read_pairs(
            release, recipe, passages, job.negatives, label_files=job.machine_labels, teacher=job.teacher
        )
        counts = pairs.counts
        if recipe.distil:
            rows = ScoredRows(pairs, passages, recipe.data.rows, recipe.distil.teacher_scale)
        elif recipe.model.kind == "dual":
            rows = DualRows(pairs, passages, recipe.data.rows)
        else:
            rows = CrossRows(pairs, passages)
    sample = None
    if job.first:
        sample = draw_dev_sample(release, recipe, passages, job.dev_run, on_cpu=device == "cpu")
    return rows, counts, sample


def _train_model(
    job: TrainingJob, data: TrainingData, device: str, work_folder: Path | None
) -> Mapping[str, Any] | None:
    """Train in this process, from the last intact state if there is one.

    Only the first process has ``work_folder``. It writes the checkpoint, and returns the content of ``training.json``.
    Other processes return None.
    """
    from transformers import set_seed

    from baselines.train.trainers import TrainingMonitor
    from builders.core.jobs import convert_loader_errors

    states_folder = states_of(job.out)
    start = job.start
    batches = data.batches
    if start in CREATED_STARTS:
        from baselines.train.trained_models import make_start

        assert data.passages is not None  # TrainingJob refuses such a start without a release
        start = str(make_start(job.recipe, start, data.passages, states_folder / "start"))

    # Open the model, and find the state to resume from.
    set_seed(job.recipe.train.seed)
    trainer = make_trainer(job, start, batches, states_folder, device)
    monitor = TrainingMonitor(trainer, data.evaluate, job.recipe.train.evaluations)
    state_folder, seconds_until_state = last_state(states_folder, job.world)
    # The training time includes the time until the state.
    monitor.seconds = seconds_until_state
    trainer.add_callback(monitor)
    if state_folder:
        # The folder's name ends with the number of the step.
        log.info("resumed after step %s of %d", state_folder.name.split("-")[-1], len(batches))

    # Train, and write the checkpoint in the first process.
    log.info("%d rows, %d steps of %d rows, on %s", len(batches.rows), len(batches), batches.batch, trainer.args.device)
    with convert_loader_errors():
        trainer.train(resume_from_checkpoint=str(state_folder) if state_folder else None)
    if work_folder is None:
        return None
    training = training_record(job, trainer, data.counts, monitor.elapsed())
    write_checkpoint(job.out, work_folder, trainer, job.recipe.resolved(), training)
    log.info("%s: %d steps in %.0f s", job.out, len(batches), monitor.elapsed())
    return training


def make_trainer(job: TrainingJob, start: str, batches: TrainingBatches, states_folder: Path, device: str) -> Any:
    """Create the library's trainer for the recipe's kind of model, with the model to train.

    ``start``: the starting checkpoint, a directory or a name on the hub.
    """
    from baselines.retrieve.devices import compile_transformers
    from baselines.train import trained_models, trainers

    recipe = job.recipe
    options = trainers.training_arguments(recipe, states_folder, batches, device)
    if recipe.model.kind == "mlm":
        language_model, tokenizer = trained_models.masked_language_model(recipe, start, job.commit)
        trainer = trainers.mask_trainer(recipe, language_model, tokenizer, batches, options)
    elif recipe.model.kind == "dual":
        dual_encoder = trained_models.dual_encoder(recipe, start, device, job.commit)
        trainer = trainers.dual_trainer(recipe, dual_encoder, batches.rows, batches, options)
    else:
        cross_encoder = trained_models.cross_encoder(recipe, start, device, job.commit)
        trainer = trainers.cross_trainer(recipe, cross_encoder, batches.rows, batches, options)
    if recipe.train.compile:
        compile_transformers(trainer.model)
    return trainer


def training_record(job: TrainingJob, trainer: Any, counts: dict[str, int], seconds: float) -> dict[str, Any]:
    """Return the content of ``training.json``: data, sizes, time, device, losses and dev scores."""
    import torch

    batches = trainer.batches
    history = trainer.state.log_history
    device = trainer.args.device
    device_name = f"CPU, {torch.get_num_threads()} threads"
    if device.type == "cuda":
        device_name = torch.cuda.get_device_name(device)
    builds = None
    if job.release is not None:
        builds = [build.verb for build in job.release.manifest.builds]
    dev_run = None
    if job.dev_run:
        dev_run = {"name": job.dev_run.name, "sha256": sha256_of(job.dev_run)}
    # The log's entries have a loss, or scores on the dev sample.
    losses = [[entry["step"], entry["loss"]] for entry in history if "loss" in entry]
    dev_scores = []
    for entry in history:
        scores = {name.removeprefix("dev_"): score for name, score in entry.items() if name.startswith("dev_")}
        if scores:
            dev_scores.append({"step": entry["step"]} | scores)
    return {
        "format": TRAINING_FORMAT,
        "about": {**job.result_inputs, "start_commit": job.commit},
        "builds": builds,
        "counts": counts,
        "rows": len(trainer.train_dataset),
        "steps": len(batches),
        "steps_per_epoch": batches.steps_per_epoch,
        "batch": batches.batch,
        "processes": job.world,
        "seconds": round(seconds, 1),
        "rows_per_second": round(len(batches) * batches.batch / seconds, 2),
        "device": device_name,
        "precision": "bf16" if trainer.args.bf16 else "fp32",
        "losses": losses,
        "dev_run": dev_run,
        "dev": dev_scores,
        "versions": read_library_versions(),
    }


def write_checkpoint(
    out: Path, work_folder: Path, trainer: Any, recipe: dict[str, Any], training: dict[str, Any]
) -> None:
    """Write the checkpoint to the folder ``work_folder`` beside ``out``, then move ``work_folder`` to ``out``.

    ``recipe`` and ``training``: the contents of ``recipe.json`` and ``training.json``.
    """
    from baselines.hub.model_card import finish_checkpoint

    _reset_lengths(trainer)
    save_options = {}
    if hasattr(trainer.model, "model_card_data"):
        # finish_checkpoint writes the card. The library would search the hub for parts of a local path.
        save_options["create_model_card"] = False
    trainer.model.save_pretrained(str(work_folder), **save_options)
    # A static model saves its tokenizer by itself.
    if hasattr(trainer.processing_class, "save_pretrained"):
        trainer.processing_class.save_pretrained(str(work_folder))
    # Add the project's own files.
    write_json(work_folder / RECIPE, recipe)
    write_json(work_folder / TRAINING, training)
    try:
        _draw_losses(work_folder, recipe["name"])
    except ImportError:
        log.warning("no %s: matplotlib is not installed", LOSSES)
    finish_checkpoint(work_folder, out.name)
    replace_directory(work_folder, out)


def _draw_losses(work_folder: Path, title: str) -> None:
    """Draw the losses and the first dev measure in loss.png. Raises :class:`ImportError` without matplotlib."""
    from matplotlib.figure import Figure

    from baselines.hub.training_curve import draw_curve, read_training_curve

    figure = Figure(figsize=(7, 4), layout="constrained")
    panel = figure.subplots()
    draw_curve(panel, read_training_curve(work_folder), font_size=10)
    panel.set_title(title, parse_math=False)  # the name may contain a dollar sign
    # Without matplotlib's version, the bytes do not depend on the version.
    figure.savefig(work_folder / LOSSES, dpi=120, metadata={"Software": None})


def _reset_lengths(trainer: Any) -> None:
    """Reset the tokenizers' truncation and padding, which the last batch has set.

    Otherwise a resumed training could save different bytes. A loaded model reads lengths from its modules' settings.
    """
    tokenizers = [trainer.processing_class]
    for module in trainer.model.modules():
        tokenizers.append(getattr(module, "tokenizer", None))
    for tokenizer in tokenizers:
        backend = getattr(tokenizer, "backend_tokenizer", None)
        if backend is not None:
            backend.no_truncation()
            backend.no_padding()
