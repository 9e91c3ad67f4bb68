"""The trainers of sentence-transformers and transformers, with this project's batches, losses and callbacks.

The order of the batches depends only on the seed (:class:`.training_rows.TrainingBatches`). Masks depend only on the
seed and the batch. A resumed training therefore ends with the same bits. The trainer runs one epoch, because the
batches already repeat the rows for the recipe's epochs.
"""

import contextlib
import datetime
import functools
import gc
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
import transformers
from sentence_transformers import (
    CrossEncoder,
    CrossEncoderTrainer,
    CrossEncoderTrainingArguments,
    SentenceTransformer,
    SentenceTransformerTrainer,
    SentenceTransformerTrainingArguments,
)
from sentence_transformers.base.modules import Router
from sentence_transformers.sentence_transformer.losses import (
    CachedMultipleNegativesRankingLoss,
    DistillKLDivLoss,
    MarginMSELoss,
    MatryoshkaLoss,
    MultipleNegativesRankingLoss,
)
from sentence_transformers.util import pairwise_dot_score
from torch import Tensor, nn
from torch.nn.utils import get_total_norm
from torch.utils.data import DataLoader
from transformers import Trainer, TrainerCallback, TrainingArguments

from baselines.retrieve.devices import computes_bf16, widen_heads
from baselines.retrieve.encoder import preprocess
from baselines.retrieve.model_prompts import prompt_of
from baselines.train.recipe import Recipe
from baselines.train.resume import seal_state
from baselines.train.trained_models import halved_dimensions, is_static
from baselines.train.training_rows import TrainingBatches
from builders.core.errors import InputError, log
from builders.core.jobs import prepare_processes
from builders.core.progress import show_progress

Evaluate = Callable[[Any], dict[str, float]]
# The other processes wait this long while the first process evaluates or writes. If a process dies, torchrun ends all
# processes within a second.
_COLLECTIVE_TIMEOUT = datetime.timedelta(hours=2)
_SHUTDOWN_SECONDS = 15.0  # time that other processes get to end after an error


class FiniteWeights(TrainerCallback):
    """Stop a training after a step that makes weights infinite or NaN, before the model is evaluated or saved."""

    def on_step_end(self, args: Any, state: Any, control: Any, model: Any = None, **kwargs: Any) -> None:
        # The norm also overflows if finite weights reach 1e19. A model with such weights is useless.
        if not torch.isfinite(get_total_norm([weights.detach() for weights in model.parameters()])):
            raise _divergence_error(state.global_step, "weights have become infinite or NaN")


def _divergence_error(step: int, problem: str) -> InputError:
    return InputError(f"step {step}: the {problem}; try a lower train.learning_rate, or train.precision=fp32")


class TrainingMonitor(TrainerCallback):
    """Show progress, measure the time across resumes, evaluate on the dev sample, and write manifests of states.

    ``evaluate`` returns the model's scores by name, or is None without a dev sample. ``evaluations``: how often the
    model is evaluated in the whole training.
    """

    def __init__(self, trainer: Any, evaluate: Evaluate | None, evaluations: int) -> None:
        self.seconds = 0.0  # of training before the state that is resumed
        self._trainer = trainer
        self._evaluate = evaluate
        self._steps = len(trainer.batches)
        self._steps_per_evaluation = self._steps + 1  # never
        if evaluations:
            self._steps_per_evaluation = max(1, round(self._steps / evaluations))
        self._bar = show_progress(total=self._steps, unit="step", label="train")

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self._started = time.monotonic()
        self._bar.update(state.global_step)

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self._bar.update(1)
        is_due = state.global_step % self._steps_per_evaluation == 0 or state.global_step == self._steps
        if self._evaluate and is_due:
            self._log_dev_scores(self._evaluate, state.global_step, control)

    def _log_dev_scores(self, evaluate: Evaluate, step: int, control: Any) -> None:
        log.info("step %d of %d: evaluating on the dev sample", step, self._steps)
        model = self._trainer.model
        model.eval()
        with torch.no_grad():
            scores = evaluate(model)
        model.train()
        should_log = control.should_log
        self._trainer.log({f"dev_{name}": value for name, value in scores.items()})
        # log() clears the flag, and the entry of this step would be skipped.
        control.should_log = should_log
        score_texts = [f"{name} {100 * value:.2f}" for name, value in scores.items()]
        log.info("step %d of %d: dev sample %s", step, self._steps, ", ".join(score_texts))

    def on_log(self, args: Any, state: Any, control: Any, logs: dict[str, Any] | None = None, **kwargs: Any) -> None:
        if logs and "loss" in logs:
            self._bar.set_postfix(loss=f"{float(logs['loss']):.4f}")

    def on_save(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if args.world_size > 1:
            torch.distributed.barrier()  # wait until each process has written its random state
        if args.process_index == 0:
            seal_state(Path(args.output_dir) / f"checkpoint-{state.global_step}", self.elapsed(), args.world_size)

    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self._bar.close()

    def elapsed(self) -> float:
        """Seconds of training so far, with the time before the state that is resumed."""
        return self.seconds + time.monotonic() - self._started


class _SeededBatches:
    """Mixin for trainers: use :class:`TrainingBatches`, require finite gradients, write no card (`train` writes it)."""

    batches: TrainingBatches

    def get_train_dataloader(self: Any) -> DataLoader[Any]:
        worker_count = self.args.dataloader_num_workers
        return DataLoader(
            self.train_dataset,
            batch_sampler=self.batches,
            collate_fn=self.data_collator,
            num_workers=worker_count,
            pin_memory=self.args.device.type == "cuda",
            # A separate generator, so that creating the iterator does not draw from the model's random numbers.
            generator=torch.Generator().manual_seed(self.args.seed),
            # fork: the collator refers to the model, so a spawned process would receive a copy of the model.
            multiprocessing_context="fork" if worker_count else None,
        )

    def _get_grad_norm(self: Any, *args: Any, **options: Any) -> Any:
        # A NaN loss appears in this norm first. Finite gradients with an infinite norm become zeros when clipped, so
        # the training would continue without learning.
        norm = super()._get_grad_norm(*args, **options)  # type: ignore[misc]
        if not torch.isfinite(torch.as_tensor(norm)):
            problem = f"norm of the gradients is {float(norm)}, not a finite number"
            raise _divergence_error(self.state.global_step + 1, problem)
        return norm

    def add_model_card_callback(self: Any, default_args_dict: dict[str, Any]) -> None:
        pass


class _DualTrainer(_SeededBatches, SentenceTransformerTrainer):  # type: ignore[misc]
    pass


class _CrossTrainer(_SeededBatches, CrossEncoderTrainer):  # type: ignore[misc]
    """The trainer of a cross-encoder.

    Attributes:
        adversarial: length of the shift of the embeddings, ``train.adversarial`` (0: no shift).
        embeddings_gradient: factor of the embeddings' gradient, ``train.embeddings_gradient``.
        tokens: largest number of tokens in one pass, padding included (0: no limit).
    """

    adversarial = 0.0
    embeddings_gradient = 1.0
    tokens = 0
    _share = 1.0  # the current part's share of the batch's rows

    def compute_loss(self, model: Any, inputs: dict[str, Any], *args: Any, **options: Any) -> Any:
        """Return the mean loss of a part of the batch, times the part's share of the batch's rows."""
        return pair_loss(model, inputs) * self._share

    def training_step(self, model: Any, inputs: dict[str, Any], *args: Any, **options: Any) -> torch.Tensor:
        """Run one batch in parts of at most ``tokens`` tokens. The parts' gradients add up to the batch's gradient."""
        inputs = self._prepare_inputs(inputs)
        row_count = len(inputs["label"])
        losses = []
        for part in token_parts(inputs, self.tokens):
            self._share = len(part["label"]) / row_count
            with self._shifted_embeddings(part) if self.adversarial else contextlib.nullcontext():
                losses.append(super().training_step(model, part, *args, **options))
        if self.adversarial:
            self.model.model.get_input_embeddings().weight.grad *= self.embeddings_gradient
        return torch.stack(losses).sum()

    @contextlib.contextmanager
    def _shifted_embeddings(self, inputs: dict[str, Any]) -> Iterator[None]:
        """Move the embeddings by ``adversarial`` along the gradient of the loss, and restore them after the block.

        The shift g / sqrt(sum(g * g) + 1e-8) is that of the official code, where g is the gradient. The official code
        subtracts the shift afterwards, with rounding errors. Here a copy is restored, so that a resumed training gives
        the same bits. Each process uses the gradient of its share of the batch, as each GPU does in the official code.
        """
        embeddings = self.model.model.get_input_embeddings().weight
        self.model.eval()  # disables dropout; the trainer's step switches back to training mode
        with self.compute_loss_context_manager():
            # Use self.model, because the wrapper for several processes would wait for the other processes' gradients.
            loss = pair_loss(self.model, inputs)
        (gradient,) = torch.autograd.grad(loss, [embeddings])
        unshifted = embeddings.detach().clone()
        with torch.no_grad():
            direction = gradient / (gradient.square().sum() + 1e-8).sqrt()
            embeddings.add_(direction, alpha=self.adversarial)
        try:
            yield
        finally:
            with torch.no_grad():
                embeddings.copy_(unshifted)


class _MaskTrainer(_SeededBatches, Trainer):
    pass


# Tokens in one pass; two towers of BERT-base take 15.6 GiB in bf16 (benchmarks/gpu_speed.py).
TOKENS_ON_GPU = 32_768

# The defaults of Paddle's Adam, which the official code uses. Paddle decouples weight decay, as AdamW does.
# fused updates all weights in one pass. For a static model, this takes less time than sparse gradients.
_ADAM = {"optim": "adamw_torch_fused", "adam_beta1": 0.9, "adam_beta2": 0.999, "adam_epsilon": 1e-8}


def training_arguments(recipe: Recipe, states: Path, batches: TrainingBatches, device: str) -> dict[str, Any]:
    """Return the arguments that all three trainers share. ``states``: folder of states and TensorBoard's logs.

    The environment variables of TensorBoard and of the tokenizers are set, too.
    """
    train = recipe.train
    on_gpu = device.startswith("cuda")
    os.environ["TENSORBOARD_LOGGING_DIR"] = str(states / "tensorboard")
    # Start no workers on a CPU, because the model needs the cores.
    loader_processes = 0
    if on_gpu and train.workers and prepare_processes():
        loader_processes = train.workers
        # The tokenizer's threads hang in forked loader processes.
        os.environ["TOKENIZERS_PARALLELISM"] = "false"
    backend = None  # of the communication between processes
    if batches.world > 1:
        backend = "nccl" if on_gpu else "gloo"
    return {
        "output_dir": str(states),
        "num_train_epochs": 1,
        "per_device_train_batch_size": batches.batch_size,
        "learning_rate": train.learning_rate,
        "lr_scheduler_type": "linear" if train.schedule == "linear" else "constant_with_warmup",
        "warmup_steps": round(train.warmup * len(batches)),
        "max_grad_norm": train.clip,
        **_ADAM,
        "weight_decay": train.weight_decay,  # the library exempts biases and layer norms
        "seed": train.seed,
        "use_cpu": device == "cpu",
        "bf16": train.precision == "bf16" or (train.precision == "auto" and computes_bf16(device)),
        "tf32": True if on_gpu and torch.cuda.get_device_capability()[0] >= 8 else None,
        "dataloader_num_workers": loader_processes,
        "dataloader_drop_last": True,
        "ddp_backend": backend,
        "ddp_find_unused_parameters": False,
        "logging_strategy": "steps",
        "logging_steps": max(1, round(len(batches) / train.logs)),
        # True would replace a NaN loss by the mean of earlier losses.
        "logging_nan_inf_filter": False,
        "save_strategy": "steps" if train.saves else "no",
        "save_steps": max(1, round(len(batches) / max(1, train.saves))),
        "save_total_limit": 2,
        "eval_strategy": "no",  # TrainingMonitor evaluates
        "report_to": train.loggers(),
        "run_name": states.stem,  # the name of the checkpoint, without ".training"
        "disable_tqdm": True,
        "remove_unused_columns": False,
    }


def tokens_per_pass(recipe: Recipe, device: torch.device) -> int:
    """Return the largest number of tokens in one pass (0: no limit) by ``train.mini_batch_tokens`` and the device.

    If the recipe has 0, a GPU has the limit :data:`TOKENS_ON_GPU`, and a CPU has none.
    """
    default_limit = TOKENS_ON_GPU if device.type == "cuda" else 0
    return recipe.train.mini_batch_tokens or default_limit


def dual_trainer(
    recipe: Recipe, model: SentenceTransformer, rows: Any, batches: TrainingBatches, options: dict[str, Any]
) -> Any:
    """Create the dual-encoder's trainer, which scores each query against all passages of the batch, of all processes.

    Passages of other rows are in-batch negatives, or under torchrun, cross-batch negatives (RocketQA; Section 3.1,
    A.2). The loss does not depend on the number of processes. Gradients are cached, so that a batch of any size needs
    only the memory of one mini-batch. A static model needs little memory and reads the batch at once.

    ``rows``: the rows that ``batches`` orders. ``options``: the result of :func:`training_arguments`.
    """
    from sentence_transformers.util import dot_score

    # Each column goes through the model's query side or its passage side, with this side's prompt.
    routes = {name: "query" if name == "query" else "document" for name in rows.column_names}
    prompts = {}
    for name, route in routes.items():
        prompt = prompt_of(model, route)
        if prompt:
            prompts[name] = prompt

    pass_tokens = tokens_per_pass(recipe, model.device)
    # For cosine similarity, the model's own Normalize module has already normalised the vectors.
    loss_options = {"scale": recipe.train.scale, "similarity_fct": dot_score, "gather_across_devices": True}
    loss: Any
    if recipe.distil:
        loss = distillation_loss(recipe, model)
    elif is_static(model):
        loss = MultipleNegativesRankingLoss(model, **loss_options)
    elif pass_tokens:
        # Only the number of tokens limits a mini-batch, because no mini-batch has more rows than the batch.
        loss = CachedMultipleNegativesRankingLoss(
            model, mini_batch_size=recipe.train.batch, mini_batch_num_tokens=pass_tokens, **loss_options
        )
    else:
        loss = CachedMultipleNegativesRankingLoss(model, mini_batch_size=recipe.train.mini_batch, **loss_options)
    if recipe.train.shortest:
        loss = MatryoshkaLoss(model, loss, matryoshka_dims=halved_dimensions(model, recipe.train.shortest))

    # torch sums the gradients of all processes after the last mini-batch, in which one of two towers is unused.
    has_two_towers = any(isinstance(module, Router) for module in model)
    training_options = {**options, "ddp_find_unused_parameters": has_two_towers}
    args = SentenceTransformerTrainingArguments(**training_options, router_mapping=routes, prompts=prompts)
    trainer = _make_trainer(_DualTrainer, batches, model=model, args=args, train_dataset=rows, loss=loss)
    # This function gives the same tokens as the library's function, but faster.
    trainer.data_collator.preprocess_fn = functools.partial(preprocess, model)
    # The distillation's losses compute the batch at once, in any order.
    if pass_tokens and not is_static(model) and not recipe.distil:
        trainer.data_collator = functools.partial(_longest_first, trainer.data_collator)
    return trainer


def distillation_loss(recipe: Recipe, model: SentenceTransformer) -> Any:
    """Return the library's loss that compares the student's scores with the teacher's (section ``distil``).

    The student's score is ``train.scale`` times the dot product. :class:`.training_rows.ScoredRows` scales the scores
    of the teacher. The losses are means over the rows, so a training in several processes has the same loss.
    """
    assert recipe.distil is not None

    def scaled_scores(query_vectors: Tensor, passage_vectors: Tensor) -> Tensor:
        scores: Tensor = recipe.train.scale * pairwise_dot_score(query_vectors, passage_vectors)
        return scores

    if recipe.distil.loss == "kl":
        return DistillKLDivLoss(model, similarity_fct=scaled_scores)
    return MarginMSELoss(model, similarity_fct=scaled_scores)


def _longest_first(collator: Any, rows: list[dict[str, Any]]) -> Any:
    """Call the library's collator with the longest positives first.

    Mini-batches that are limited by tokens then have little padding. Lengths are in characters.
    """
    return collator(sorted(rows, key=lambda row: -len(row["positive"])))


def cross_trainer(
    recipe: Recipe, model: CrossEncoder, rows: Any, batches: TrainingBatches, options: dict[str, Any]
) -> Any:
    """Create the cross-encoder's trainer over (query, passage) pairs, padded batch by batch.

    The head is in fp32 even with bf16, so that different logits do not round to the same number. ``rows``: the rows
    that ``batches`` orders. ``options``: the result of :func:`training_arguments`.
    """
    widen_heads(model)
    args = CrossEncoderTrainingArguments(**options)
    collator = functools.partial(_pair_tokens, model)
    trainer = _make_trainer(_CrossTrainer, batches, model=model, args=args, train_dataset=rows, data_collator=collator)
    trainer.adversarial = recipe.train.adversarial
    trainer.embeddings_gradient = recipe.train.embeddings_gradient
    trainer.tokens = tokens_per_pass(recipe, model.device)
    return trainer


def mask_trainer(recipe: Recipe, model: Any, tokenizer: Any, batches: TrainingBatches, options: dict[str, Any]) -> Any:
    """Create the trainer of a masked language model. ``options``: the result of :func:`training_arguments`."""
    return _make_trainer(
        _MaskTrainer,
        batches,
        model=model,
        args=TrainingArguments(**options),
        train_dataset=batches.rows,
        data_collator=functools.partial(_mask_tokens, recipe, tokenizer),
        processing_class=tokenizer,
    )


def _make_trainer(trainer_class: type, batches: TrainingBatches, args: TrainingArguments, **options: Any) -> Any:
    """Create a trainer with this project's batches and callbacks, on one device.

    ``options``: further arguments of ``trainer_class``, which has the mixin :class:`_SeededBatches`.
    """
    if args.n_gpu > 1:
        log.warning("%d GPUs are visible; training on %s only; use torchrun for all GPUs", args.n_gpu, args.device)
        args._n_gpu = 1  # otherwise transformers uses nn.DataParallel, which breaks cached losses
    trainer = trainer_class(args=args, **options)
    trainer.batches = batches
    trainer.remove_callback(transformers.PrinterCallback)  # prints every entry of the log
    trainer.add_callback(FiniteWeights)
    return trainer


def _pair_tokens(model: CrossEncoder, rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Tokenize a batch of (query, passage) rows, and add their labels.

    The library would tokenize inside the loss, in the training process. This collator gives the same tokens. It runs in
    the loader's processes if ``train.workers`` > 0.
    """
    pairs = [(row["query"], row["passage"]) for row in rows]
    batch = preprocess(model, pairs, prompt=model.prompts.get(model.default_prompt_name or ""))
    batch["label"] = torch.tensor([row["label"] for row in rows])
    return batch


def pair_loss(model: nn.Module, batch: dict[str, Any]) -> Tensor:
    """Return the mean loss of a tokenized batch: binary cross entropy for one logit, softmax cross entropy for two.

    The loss equals that of sentence-transformers' BinaryCrossEntropyLoss and CrossEntropyLoss, which take texts instead
    of tokens. The batch's ``label`` has the shape (rows,), with 1.0 for a positive and 0.0 for a negative.
    """
    labels = batch["label"]
    features = {name: value for name, value in batch.items() if name != "label"}
    logits = model(features)["scores"].float()
    if logits.numel() == len(labels):
        return nn.functional.binary_cross_entropy_with_logits(logits.view(-1), labels.float())
    return nn.functional.cross_entropy(logits, labels.long())


def token_parts(batch: dict[str, Any], max_tokens: int) -> Iterator[dict[str, Any]]:
    """Split a tokenized batch into parts of at most ``max_tokens`` tokens, including padding. 0 means no split.

    Pairs are sorted by length, longest first, and padding that a part does not need is removed. A pair with more than
    ``max_tokens`` tokens becomes a part of its own.
    """
    mask = batch["attention_mask"]
    if not max_tokens or mask.numel() <= max_tokens:
        yield batch
        return
    # A row's length is the position of its last token, because some models pad on the left.
    positions = torch.arange(1, mask.shape[1] + 1, device=mask.device)
    sorted_lengths, order = (mask * positions).amax(1).sort(descending=True, stable=True)
    lengths = sorted_lengths.tolist()
    start = 0
    while start < len(lengths):
        part_length = lengths[start]
        part_rows = order[start : start + max(1, max_tokens // part_length)]
        part = {}
        for name, value in batch.items():
            if torch.is_tensor(value):
                has_token_columns = value.shape == mask.shape
                value = value[part_rows]
                if has_token_columns:
                    value = value[:, :part_length]
            part[name] = value
        yield part
        start += len(part_rows)


def _mask_tokens(recipe: Recipe, tokenizer: Any, rows: list[dict[str, Any]]) -> dict[str, torch.Tensor]:
    """Tokenize a batch of passages and mask tokens as BERT does: 80 % [MASK], 10 % a random token, 10 % unchanged.

    The selected tokens depend only on the seed and on ``visit`` of the first row, so no state passes between batches.
    """
    batch = tokenizer(
        [row["text"] for row in rows],
        truncation=True,
        max_length=recipe.data.passage_length,
        padding=True,
        pad_to_multiple_of=8,
        return_special_tokens_mask=True,
        return_tensors="pt",
    )
    token_ids = batch["input_ids"]
    is_special = batch["special_tokens_mask"].bool()
    # A large prime keeps the seeds of two trainings apart: their visits would have to differ by a million.
    visit_seed = recipe.train.seed * 1_000_003 + rows[0]["visit"]
    generator = torch.Generator().manual_seed(visit_seed % (1 << 62))  # torch's seeds have 64 bits
    is_selected = (torch.rand(token_ids.shape, generator=generator) < recipe.train.mask) & ~is_special
    treatment = torch.rand(token_ids.shape, generator=generator)
    random_ids = torch.randint(len(tokenizer), token_ids.shape, generator=generator)
    # The loss ignores the label -100.
    labels = token_ids.masked_fill(~is_selected, -100)
    masked_ids = token_ids.masked_fill(is_selected & (treatment < 0.8), tokenizer.mask_token_id)
    masked_ids = torch.where(is_selected & (treatment >= 0.9), random_ids, masked_ids)
    return {"input_ids": masked_ids, "attention_mask": batch["attention_mask"], "labels": labels}


@contextlib.contextmanager
def process_group(rank: int, world: int, device: str) -> Iterator[None]:
    """Open a process group for the block, and close it after all processes have finished.

    ``rank`` is the number of this process among the ``world`` processes, from 0. The processes wait for each other at
    the end. Otherwise a library's threads could abort a process that returns early, and torchrun would then end the
    first process while it writes the checkpoint. The block must leave no reference to a model or a trainer, because
    models and trainers refer to the group. If another process fails, this process ends with exit code 1, and the failed
    process reports the error.
    """
    if rank and threading.current_thread() is threading.main_thread():
        # SIGTERM must end this process at once: a Python handler would wait for the end of a collective operation.
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
    if device != "cpu":
        torch.cuda.set_device(device)
    torch.distributed.init_process_group("gloo" if device == "cpu" else "nccl", timeout=_COLLECTIVE_TIMEOUT)
    try:
        torch.distributed.barrier()
        yield
        gc.collect()
        # Wait until the first process has written the checkpoint. Without this line, 2 of 27 checkpoints were lost.
        torch.distributed.barrier()
    except RuntimeError as error:
        is_of_the_group = isinstance(error, torch.distributed.DistError) or "gloo" in str(error)
        if not is_of_the_group:
            raise
        time.sleep(_SHUTDOWN_SECONDS)  # torchrun normally ends this process during the wait
        log.warning("process %d of %d: another process has ended (%s)", rank, world, str(error).partition("\n")[0])
        raise SystemExit(1) from error
    finally:
        # After an error, NCCL may wait forever for processes that have ended, so this process waits for a limited time.
        closing = threading.Thread(target=torch.distributed.destroy_process_group, daemon=True)
        closing.start()
        closing.join(timeout=_SHUTDOWN_SECONDS)
