"""One training, from its order to the checkpoint: the steps, one after the other."""

from __future__ import annotations

import contextlib
import logging
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from transformers import set_seed

from baselines.retrieve.devices import compile_transformers
from baselines.retrieve.hub_models import quiet_libraries
from baselines.retrieve.passages import Passages, open_passages
from baselines.train import models, trainers
from baselines.train.dev_ranks import Reranked, Sampled, dev_sample
from baselines.train.order import Order
from baselines.train.pairs import read_pairs
from baselines.train.processes import from_first, together
from baselines.train.question_pairs import Measured, expect_both, hold_out, read_question_pairs
from baselines.train.recipe import MADE, WORDS
from baselines.train.record import training_record, write_checkpoint
from baselines.train.rows import Batches, CrossRows, DualRows, PassageRows, QuestionRows
from baselines.train.scratch import make_scratch
from baselines.train.state import last_state, remove_broken, states_kept, states_of
from baselines.train.static import make_words
from baselines.train.watch import Evaluate, Watch
from builders.core.errors import InputError, log
from builders.core.files import check_place
from builders.core.folders import work_beside
from builders.core.jobs import loading
from builders.store.layout import set_of
from builders.store.reader import Release


def train(order: Order) -> Mapping[str, Any] | None:
    """Train, going on from the last state where there is one, and write the checkpoint directory.

    Returns what ``training.json`` says; None in every process but the first. Raises :class:`InputError` for wrong
    input, and where something else is in the place of the output.
    """
    quiet_libraries()
    if not order.first:
        log.setLevel(logging.WARNING)
    device = find_device(order.device)
    inputs = _read(order)
    folder: contextlib.AbstractContextManager[Path | None] = contextlib.nullcontext()
    if order.first:
        folder = _written(order)
    with folder as work, together(order.rank, order.world, device):
        return _train(order, inputs, device, work)


@dataclass(frozen=True)
class _Inputs:
    """What a training reads, checked before anything is written and before a model is opened.

    ``counts``: how much there is of the rows, for ``training.json``. ``evaluate``: measures a model on a sample of dev;
    None where there is nothing to measure on, or another process does it. ``passages``: None where pairs of questions
    are learned from.
    """

    passages: Passages | None
    rows: Any
    counts: dict[str, int]
    batches: Batches
    evaluate: Evaluate | None


def _read(order: Order) -> _Inputs:
    check_place(order.out)
    recipe, release = order.recipe, order.release
    passages = None
    sample: Measured | Sampled | Reranked | None
    if release is None:
        rows, counts, sample = _question_rows(order)
    else:
        passages = open_passages(release, set_of(recipe.data.set).corpus, order.cache)
        rows, counts = _rows(order, release, passages)
        sample = dev_sample(release, recipe, passages, order.dev_run) if order.first else None
    evaluate = None if sample is None else partial(sample.measures, batch=recipe.train.mini_batch)
    return _Inputs(passages, rows, counts, _batches(order, rows), evaluate)


def _question_rows(order: Order) -> tuple[Any, dict[str, int], Measured | None]:
    """(labelled pairs to train on; counts for ``training.json``; pairs to measure on)."""
    recipe = order.recipe
    pairs = read_question_pairs(order.pairs)
    if order.dev_pairs:
        train, dev = pairs, read_question_pairs(order.dev_pairs)
    else:
        train, dev = hold_out(pairs, recipe.data.held_out, recipe.train.seed)
    expect_both(train, "to train on")
    expect_both(dev, "to measure on")
    counts = {"pairs": len(train), "positive pairs": sum(pair.label for pair in train)}
    counts |= {"dev pairs": len(dev), "positive dev pairs": sum(pair.label for pair in dev)}
    log.info("%s", ", ".join(f"{name}: {count:,}" for name, count in counts.items()))
    measured = Measured(dev, recipe.data.passage_length) if order.first and recipe.train.evaluations else None
    return QuestionRows(train), counts, measured


@contextlib.contextmanager
def _written(order: Order) -> Iterator[Path]:
    """The first process' folder for the checkpoint; the folder of states is there before the others look at it."""
    with work_beside(order.out) as work, states_kept(order.out, order.about, order.resume):
        yield work


def _train(order: Order, inputs: _Inputs, device: str, work: Path | None) -> Mapping[str, Any] | None:
    """All that is done in one process; only the first has a folder to write in."""
    states = states_of(order.out)
    start = _start(order, inputs.passages, states)
    set_seed(order.recipe.train.seed)
    trainer = _trainer(order, start, inputs.rows, inputs.batches, states, device)
    watch = Watch(trainer, inputs.evaluate, order.recipe.train.evaluations)
    _run(order, trainer, watch, states)
    if work is None:
        return None
    training = training_record(order, trainer, inputs.counts, watch.elapsed())
    write_checkpoint(order.out, work, trainer, order.recipe.resolved(), training)
    log.info("%s: %d steps in %.0f s", order.out, len(inputs.batches), watch.elapsed())
    return training


def find_device(wanted: str) -> str:
    """``cpu`` or ``cuda:N``; :class:`InputError` where CUDA is asked for and there is none."""
    if wanted == "cuda" and not torch.cuda.is_available():
        raise InputError("--device cuda: no CUDA device is usable here (torch.cuda.is_available() is false)")
    if wanted == "cpu" or not torch.cuda.is_available():
        return "cpu"
    return f"cuda:{os.environ.get('LOCAL_RANK', 0)}"


def _start(order: Order, passages: Passages | None, states: Path) -> str:
    """The directory or hub name of the model to start from; one of random weights, or of words, is made now."""
    if order.start not in MADE:
        return order.start
    assert passages is not None  # the order has seen to it
    make = make_words if order.start == WORDS else make_scratch
    return str(make(order.recipe, passages, states / "start"))


def _rows(order: Order, release: Release, passages: Passages) -> tuple[Any, dict[str, int]]:
    """(what is trained on, row by row; how much of it there is, for ``training.json``)."""
    if order.recipe.model.kind == "mlm":
        return PassageRows(passages), {"passages": len(passages)}
    pairs = read_pairs(release, order.recipe, passages, order.negatives)
    if order.recipe.model.kind == "dual":
        return DualRows(pairs, passages, order.recipe.data.rows), pairs.counts
    return CrossRows(pairs, passages), pairs.counts


def _batches(order: Order, rows: Any) -> Batches:
    train = order.recipe.train
    return Batches(
        rows,
        train.batch,
        train.epochs,
        train.seed,
        max_steps=train.max_steps,
        rank=order.rank,
        world=order.world,
    )


def _trainer(order: Order, start: str, rows: Any, batches: Batches, states: Path, device: str) -> Any:
    """The library's trainer of the recipe's kind, with the model to train."""
    recipe = order.recipe
    given = trainers.arguments(recipe, states, batches, device)
    if recipe.model.kind == "mlm":
        masked, tokenizer = models.masked_language_model(recipe, start, order.commit)
        trainer = trainers.mask_trainer(recipe, masked, tokenizer, rows, batches, given)
    elif recipe.model.kind == "dual":
        dual = models.dual_encoder(recipe, start, device, order.commit)
        trainer = trainers.dual_trainer(recipe, dual, rows, batches, given)
    else:
        cross = models.cross_encoder(recipe, start, device, order.commit)
        trainer = trainers.cross_trainer(recipe, cross, rows, batches, given)
    if recipe.train.compile:
        compile_transformers(trainer.model)
    return trainer


def _state(states: Path, processes: int) -> tuple[Path | None, float]:
    """The state to go on from and the seconds until then; newer ones, which are damaged, are removed."""
    state, seconds = last_state(states, processes) or (None, 0.0)
    remove_broken(states, state)
    return state, seconds


def _run(order: Order, trainer: Any, watch: Watch, states: Path) -> None:
    """Let the trainer run to its end, from the last whole state where there is one."""
    state, seconds = from_first(order.rank, order.world, lambda: _state(states, order.world))
    trainer.add_callback(watch)
    batches = trainer.batches
    if state:
        watch.seconds = seconds
        log.info("taken up again after step %s of %d", state.name.split("-")[-1], len(batches))
    where = trainer.args.device
    rows = len(trainer.train_dataset)
    log.info("%s: %d rows, %d steps of %d rows, on %s", order.recipe.name, rows, len(batches), batches.batch, where)
    with loading():
        trainer.train(resume_from_checkpoint=str(state) if state else None)
