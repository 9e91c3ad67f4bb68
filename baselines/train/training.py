"""Train a model from a recipe (Section 3.1, Appendix A.2).

The model is a dual-encoder, a cross-encoder, or a masked language model. RECIPE is a name (baselines/recipes/NAME.toml)
or a path. Hard negatives come from `mine`. The checkpoint directory loads with plain SentenceTransformer(DIR) or
CrossEncoder(DIR). It also contains recipe.json, training.json and loss.png.

If a recipe starts from another recipe's checkpoint, that checkpoint is expected beside --out. --start names another
starting checkpoint. Several processes with cross-batch negatives: torchrun --nproc-per-node N -m baselines train ...

The states of a running training are saved in CKPT.training. After a kill, the same command resumes from the last state.
On the same CPU, a resumed training gives the same bits as an uninterrupted training. On a GPU, the bits may differ.

--set data.set=restrain-14K-interpolation trains only on the sampled questions of this config, which `builders add`
makes. Negatives that `mine` sampled for all training questions can be used unchanged.

question-matching trains on labelled pairs of questions instead of a release (Section 2.3). A file of pairs is a table
(commas or tabs) or JSON lines, gzipped or not. Its columns are text1, text2 and label, or have the names of LCQMC, BQ
or AFQMC. If a table has no header, name its columns: FILE:id,text1,text2,label. The evaluation uses --dev-pairs, or a
held-out part of --pairs. AUC and accuracy (at the paper's threshold of 0.5) are printed and saved in training.json.

Example, without pretrained weights:

  python -m baselines train mlm-scratch --release DIR --out build/models/mlm-scratch
  python -m baselines train de-bm25-neg-scratch --release DIR --negatives bm25.train.negatives.jsonl.gz \\
      --out build/models/de-bm25-neg-scratch --set train.epochs=3

Example, a question-matching model for `match`:

  python -m baselines train question-matching --pairs LCQMC/train.tsv BQ/train.tsv AFQMC/train.json \\
      --dev-pairs LCQMC/dev.tsv --out build/models/question-matching
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import json
import logging
import os
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from baselines.core.checkpoint import LOSSES, RECIPE, TRAINING, left_out, versions, weights_sha256, write_json
from baselines.retrieve.hub_models import model_commit, quiet_libraries
from baselines.train.recipe import FROM_RECIPE, FROM_RELEASE, MADE, PAIRS, WORDS, names, read_recipe
from baselines.train.resume import is_done, last_state, states_kept, states_of
from builders.core.errors import InputError, log
from builders.core.files import check_place, sha256_of
from builders.core.folders import check_output, replace_directory, work_beside
from builders.store.layout import REMOVED, SETS, base_set, set_of

if TYPE_CHECKING:  # these imports load PyTorch, which takes seconds; input errors should appear earlier
    from baselines.retrieve.question_pairs import PairFile
    from baselines.train.data import Batches
    from baselines.train.trainers import Evaluate

_FIRST_REPORTS = 5.0  # seconds in which the first process reports an error


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("recipe", metavar="RECIPE", help=f"a .toml file, or one of {', '.join(names())}")
    parser.add_argument("--release", type=Path, metavar="DIR", help="the release directory (required without --pairs)")
    parser.add_argument("--out", type=Path, required=True, metavar="CKPT", help="the checkpoint directory to write")
    parser.add_argument(
        "--pairs", nargs="+", default=[], metavar="FILE", help="labelled pairs of questions (instead of --release)"
    )
    parser.add_argument(
        "--dev-pairs", nargs="+", default=[], metavar="FILE", help="pairs to evaluate on (default: a part of --pairs)"
    )
    parser.add_argument(
        "--negatives", type=Path, action="append", default=[], metavar="F", help="hard negatives of `mine` (repeatable)"
    )
    parser.add_argument(
        "--dev-run", type=Path, metavar="RUN", help="run of the dev queries, re-ranked in a cross-encoder's training"
    )
    parser.add_argument(
        *("--start", "--start-from"),  # torchrun reads --start as an abbreviation of its own --start-method
        metavar="MODEL",
        help="starting checkpoint: a directory or hub name (default: the recipe's; with torchrun, use --start-from)",
    )
    parser.add_argument(
        "--set", action="append", default=[], metavar="KEY=VALUE", help="override a recipe's value: train.batch=64"
    )
    parser.add_argument("--device", choices=["auto", "cpu", "cuda"], default="auto", help="default: cuda if available")
    parser.add_argument("--no-resume", action="store_true", help="ignore and replace earlier states and checkpoints")
    parser.add_argument("--cache", type=Path, metavar="DIR", help="cache directory for unpacked collections")


def run(args: argparse.Namespace) -> None:
    try:
        job = Job(args)
        if job.resume and is_done(job.out, job.about, lambda: job.commit):
            log.info("%s is this training's checkpoint already; --no-resume trains again", job.out)
            if job.first:
                with work_beside(job.out, wait=True):  # removes temporary files of a killed training
                    pass
            return
        if job.commit:  # fetched before the large libraries are loaded, so that errors appear at once
            log.info("starts from %s, commit %s", job.start, job.commit)
        training = train(job)
    except InputError:
        if os.environ.get("RANK", "0") != "0":
            time.sleep(_FIRST_REPORTS)  # torchrun ends this process during the wait, so the error appears only once
        raise
    if training:
        print(json.dumps({"checkpoint": str(args.out), "steps": training["steps"], "dev": training["dev"][-1:]}))


class Job:
    """The options of `train`, validated before any large library is loaded.

    Attributes:
        release: None if the recipe learns from ``pairs``.
        pairs, dev_pairs: files of labelled pairs of questions for training and evaluation. Empty with a release.
        negatives: files of hard negatives. Empty if the recipe needs no file.
        dev_run: a run of the dev queries that a cross-encoder re-ranks during training, or None.
        start: ``scratch``, ``words``, a directory, or a name on the hub.
        resume: True to resume from saved states and to skip a finished training.
        rank, world: the number of this process and of all processes, from torchrun. Without torchrun: 0 and 1.
        first: True in the process that evaluates and writes.

    Raises :class:`InputError` if an option is missing or does not fit the recipe.
    """

    def __init__(self, args: argparse.Namespace) -> None:
        from builders.store.reader import open_release  # loads Arrow's Parquet, which --help does not need

        self.recipe = recipe = read_recipe(args.recipe, args.set)
        self.start = args.start or recipe.model.start
        self._check(args)
        recipe.train.loggers()
        self.release = open_release(args.release) if args.release else None
        self.pairs: list[PairFile] = []
        self.dev_pairs: list[PairFile] = []
        if args.pairs:
            from baselines.retrieve.question_pairs import pair_file

            self.pairs, self.dev_pairs = [*map(pair_file, args.pairs)], [*map(pair_file, args.dev_pairs)]
        self.negatives: list[Path] = args.negatives if recipe.negatives else []
        if recipe.negatives and not self.negatives and recipe.data.negatives not in ("", FROM_RELEASE):
            self.negatives = [Path(recipe.data.negatives)]
        self.out, self.cache, self.device = check_output(args.out, "a checkpoint", TRAINING), args.cache, args.device
        if self.start.startswith(FROM_RECIPE):
            folder = args.out.parent / self.start.removeprefix(FROM_RECIPE)
            if not folder.is_dir():
                problem = f"no checkpoint of {folder.name}, which {recipe.name} starts from; train it or give --start"
                raise InputError(problem, path=folder)
            self.start = str(folder)
        left_out(Path(self.start), need=bool(recipe.data.leave_out))
        self.dev_run: Path | None = args.dev_run
        for path in [*self.negatives, *filter(None, [self.dev_run])]:
            if not path.is_file():  # a pipe is refused, because SHA-256 is computed in a second pass
                raise InputError("no such file", path=path)
        self.resume = not args.no_resume
        self.rank, self.world = int(os.environ.get("RANK", 0)), int(os.environ.get("WORLD_SIZE", 1))
        self.first = self.rank == 0

    def _check(self, args: argparse.Namespace) -> None:
        """Raise :class:`InputError` if the options do not fit the recipe's model and data."""
        recipe, name = self.recipe, f"the recipe {self.recipe.name}"
        if recipe.data.source == PAIRS:
            if not args.pairs or args.release or args.negatives or args.dev_run:
                remedy = "give --pairs FILE..., and no --release, --negatives or --dev-run"
                raise InputError(f"{name} learns from labelled pairs of questions; {remedy}")
            if self.start in MADE:
                raise InputError(f"start {self.start} needs a release; train mlm-scratch and use its checkpoint")
        elif args.pairs or args.dev_pairs or not args.release:
            raise InputError(f"{name} learns from a release; give --release DIR, and no --pairs or --dev-pairs")
        elif recipe.negatives and not (args.negatives or recipe.data.negatives):
            raise InputError(
                f"{name} needs {recipe.negatives} hard negatives per positive; give --negatives F from `python -m "
                "baselines mine`, use the official negatives with --set data.negatives=release, or train without "
                "negatives with --set data.negatives_per_positive=0"
            )
        if args.dev_run and recipe.model.kind != "cross":
            raise InputError(f"--dev-run needs a cross-encoder; {name} trains another kind of model")
        if self.start == WORDS and recipe.model.kind != "dual":
            raise InputError(f'model.start = "words" needs a dual-encoder; {name} trains another kind of model')

    @functools.cached_property
    def about(self) -> dict[str, Any]:
        """Everything the training depends on, without local paths and without the commit of a hub model.

        A training can resume only if its dependencies are unchanged. ``dev_run`` is not included, because no weight
        depends on it. Raises :class:`InputError` if the release lacks the recipe's split.
        """
        start, negatives = Path(self.start), [sha256_of(path) for path in self.negatives]
        return {
            "recipe": self.recipe.resolved(),
            "start": start.name if start.is_dir() else self.start,
            "start_sha256": weights_sha256(start) if start.is_dir() else None,
            "data": self._data(),
            "negatives_sha256": negatives if len(negatives) > 1 else next(iter(negatives), None),
        }

    def _data(self) -> dict[str, str]:
        """Return the fingerprint of each split that the training reads, or the SHA-256 of each file of pairs."""
        found = {}
        for use, files in (("pairs", self.pairs), ("dev pairs", self.dev_pairs)):
            for number, file in enumerate(files, 1):
                name = f"{file.path.name}:{','.join(file.columns)}" if file.columns else file.path.name
                found[f"{use} {number}: {name}"] = sha256_of(file.path)
        if self.release is None:
            return found
        configs, data = set_of(self.recipe.data.set), self.recipe.data
        read = [(configs.corpus, "corpus")]
        if self.recipe.model.kind != "mlm":
            read += [(configs.queries, data.split), (configs.qrels, data.split)]
            if data.negatives == FROM_RELEASE and data.negatives_per_positive and not self.negatives:
                read.append((SETS[base_set(data.set)].joined[data.split], data.split))
            if data.similar:
                read.append((REMOVED, data.split))
        return {f"{config}/{split}": self.release.fingerprint(config, split) for config, split in read}

    @functools.cached_property
    def commit(self) -> str | None:
        """The commit of a starting checkpoint on the hub, else None. Raises :class:`InputError` if the hub fails."""
        if self.start in MADE:
            return None
        scratch = f"{self.recipe.name}-scratch"
        otherwise = "--start DIR" + f", or the recipe {scratch}, needs no hub" * (scratch in names())
        return model_commit(self.start, self.recipe.model.revision, otherwise)


def train(job: Job) -> Mapping[str, Any] | None:
    """Train the model, from the last saved state if there is one, and write the checkpoint directory.

    The first process returns the content of ``training.json``, other processes return None. Raises :class:`InputError`
    for wrong input, and if other files occupy the output's path.
    """
    from baselines.retrieve.devices import devices_of

    quiet_libraries()
    if not job.first:
        log.setLevel(logging.WARNING)
    (device, *_) = devices_of(None if job.device == "auto" else job.device)
    if device != "cpu":
        device = f"cuda:{os.environ.get('LOCAL_RANK', 0)}"
    check_place(job.out)
    data = read_data(job)
    with contextlib.ExitStack() as stack:
        work = None  # folder in which the first process writes the checkpoint
        if job.first:
            work = stack.enter_context(work_beside(job.out))
            about = {**job.about, "start_commit": job.commit}
            states = stack.enter_context(states_kept(job.out, about, job.resume))
            last_state(states, job.world)  # removes damaged states before the other processes look for states
        if job.world > 1:
            from baselines.train.trainers import together

            stack.enter_context(together(job.rank, job.world, device))
        return _train(job, data, device, work)


@dataclass
class Data:
    """The training rows, read before anything is written or a model is opened.

    Attributes:
        batches: the rows, in batches.
        counts: the numbers of rows, for ``training.json``.
        evaluate: evaluates a model on the dev sample. None without a dev sample, and in all processes but the first.
        passages: the collection. None for pairs of questions.
    """

    batches: Batches
    counts: dict[str, int]
    evaluate: Evaluate | None
    passages: Any


def read_data(job: Job) -> Data:
    """Read the rows that the recipe learns from."""
    from baselines.core.passages import open_passages
    from baselines.train import data

    recipe, settings = job.recipe, job.recipe.train
    rows: Any
    sample: Any = None
    passages = None
    if job.release is None:
        from baselines.train import matching_pairs

        train, dev = matching_pairs.train_and_dev(job.pairs, job.dev_pairs, recipe.data.held_out, settings.seed)
        counts = {"pairs": len(train), "positive pairs": sum(pair.label for pair in train)}
        counts |= {"dev pairs": len(dev), "positive dev pairs": sum(pair.label for pair in dev)}
        log.info("%s", ", ".join(f"{name}: {count:,}" for name, count in counts.items()))
        rows = data.QuestionRows(train)
        if job.first and settings.evaluations:
            sample = matching_pairs.Measured(dev, recipe.data.passage_length)
    else:
        passages = open_passages(job.release, set_of(recipe.data.set).corpus, job.cache)
        if recipe.model.kind == "mlm":
            rows, counts = data.PassageRows(passages), {"passages": len(passages)}
        else:
            pairs = data.read_pairs(job.release, recipe, passages, job.negatives)
            dual, counts = recipe.model.kind == "dual", pairs.counts
            rows = data.DualRows(pairs, passages, recipe.data.rows) if dual else data.CrossRows(pairs, passages)
        sample = data.dev_sample(job.release, recipe, passages, job.dev_run) if job.first else None
    sizes = {"max_steps": settings.max_steps, "rank": job.rank, "world": job.world}
    batches = data.Batches(rows, settings.batch, settings.epochs, settings.seed, **sizes)
    evaluate = functools.partial(sample.measures, batch=settings.mini_batch) if sample else None
    return Data(batches, counts, evaluate, passages)


def _train(job: Job, data: Data, device: str, work: Path | None) -> Mapping[str, Any] | None:
    """Train in this process, from the last intact state if there is one. Only the first process has ``work``."""
    from transformers import set_seed

    from baselines.train.trainers import Monitor
    from builders.core.jobs import loading

    states, start, batches = states_of(job.out), job.start, data.batches
    if start in MADE:
        from baselines.train.trained_models import make_start

        start = str(make_start(job.recipe, start, data.passages, states / "start"))
    set_seed(job.recipe.train.seed)
    trainer = make_trainer(job, start, batches, states, device)
    monitor = Monitor(trainer, data.evaluate, job.recipe.train.evaluations)
    state, monitor.seconds = last_state(states, job.world)
    trainer.add_callback(monitor)
    if state:
        log.info("resumed after step %s of %d", state.name.split("-")[-1], len(batches))
    log.info("%d rows, %d steps of %d rows, on %s", len(batches.rows), len(batches), batches.batch, trainer.args.device)
    with loading():
        trainer.train(resume_from_checkpoint=str(state) if state else None)
    if work is None:
        return None
    training = training_record(job, trainer, data.counts, monitor.elapsed())
    write_checkpoint(job.out, work, trainer, job.recipe.resolved(), training)
    log.info("%s: %d steps in %.0f s", job.out, len(batches), monitor.elapsed())
    return training


def make_trainer(job: Job, start: str, batches: Batches, states: Path, device: str) -> Any:
    """Create the library's trainer for the recipe's kind of model, with the model to train."""
    from baselines.retrieve.devices import compile_transformers
    from baselines.train import trained_models, trainers

    recipe = job.recipe
    options = trainers.arguments(recipe, states, batches, device)
    if recipe.model.kind == "mlm":
        masked, tokenizer = trained_models.masked_language_model(recipe, start, job.commit)
        trainer = trainers.mask_trainer(recipe, masked, tokenizer, batches.rows, batches, options)
    elif recipe.model.kind == "dual":
        dual = trained_models.dual_encoder(recipe, start, device, job.commit)
        trainer = trainers.dual_trainer(recipe, dual, batches.rows, batches, options)
    else:
        cross = trained_models.cross_encoder(recipe, start, device, job.commit)
        trainer = trainers.cross_trainer(recipe, cross, batches.rows, batches, options)
    if recipe.train.compile:
        compile_transformers(trainer.model)
    return trainer


def training_record(job: Job, trainer: Any, counts: dict[str, int], seconds: float) -> dict[str, Any]:
    """Return the content of ``training.json``: data, sizes, time, device, losses and dev scores."""
    import torch

    batches, history, device = trainer.batches, trainer.state.log_history, trainer.args.device
    return {
        "about": {**job.about, "start_commit": job.commit},
        "builds": [build.verb for build in job.release.manifest.builds] if job.release else None,
        "counts": counts,
        "rows": len(trainer.train_dataset),
        "steps": len(batches),
        "steps_per_epoch": batches.steps_per_epoch,
        "batch": batches.batch,
        "processes": job.world,
        "seconds": round(seconds, 1),
        "rows_per_second": round(len(batches) * batches.batch / seconds, 2),
        "device": torch.cuda.get_device_name(device)
        if device.type == "cuda"
        else f"CPU, {torch.get_num_threads()} threads",
        "precision": "bf16" if trainer.args.bf16 else "fp32",
        "losses": [[entry["step"], entry["loss"]] for entry in history if "loss" in entry],
        "dev_run": {"name": job.dev_run.name, "sha256": sha256_of(job.dev_run)} if job.dev_run else None,
        "dev": [
            {"step": entry["step"], **scores}
            for entry in history
            if (scores := {k.removeprefix("dev_"): v for k, v in entry.items() if k.startswith("dev_")})
        ],
        "versions": versions(),
    }


def write_checkpoint(out: Path, work: Path, trainer: Any, recipe: dict[str, Any], training: dict[str, Any]) -> None:
    """Write the checkpoint to the folder ``work`` beside ``out``, then move ``work`` to ``out``."""
    from baselines.hub.model_card import draw_curve, finish_checkpoint

    # finish_checkpoint writes the card. To write a card, the library would search the hub for parts of a local path.
    no_card = {"create_model_card": False} if hasattr(trainer.model, "model_card_data") else {}
    _forget_lengths(trainer)
    trainer.model.save_pretrained(str(work), **no_card)
    if hasattr(trainer.processing_class, "save_pretrained"):  # a static model saves its tokenizer by itself
        trainer.processing_class.save_pretrained(str(work))
    write_json(work / RECIPE, recipe)
    write_json(work / TRAINING, training)
    try:
        from matplotlib.figure import Figure

        figure = Figure(figsize=(7, 4), layout="constrained")
        panel, dev = figure.subplots(), training["dev"]
        measure = next(name for name in dev[0] if name != "step") if dev else ""
        draw_curve(panel, training["losses"], measure, [(row["step"], row[measure]) for row in dev], size=10)
        panel.set_title(recipe["name"], parse_math=False)  # the name may contain a dollar sign
        figure.savefig(work / LOSSES, dpi=120, metadata={"Software": None})
    except ImportError:
        log.warning("no %s: matplotlib is not installed", LOSSES)
    finish_checkpoint(work, out.name)
    replace_directory(work, out)


def _forget_lengths(trainer: Any) -> None:
    """Reset the tokenizers' truncation and padding, which the last batch has set.

    Otherwise a resumed training could save different bytes. A loaded model reads lengths from its modules' settings.
    """
    found = [trainer.processing_class, *(getattr(module, "tokenizer", None) for module in trainer.model.modules())]
    for backend in filter(None, (getattr(tokenizer, "backend_tokenizer", None) for tokenizer in found)):
        backend.no_truncation()
        backend.no_padding()
