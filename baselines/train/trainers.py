"""The trainers of sentence-transformers and transformers, with this project's batches, losses and callbacks.

The order of the batches depends only on the seed (:class:`baselines.train.data.Batches`). Masks depend only on the seed
and the batch. A resumed training therefore ends with the same bits. The trainer runs one epoch, because the batches
already repeat the rows for the recipe's epochs.
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
    MatryoshkaLoss,
    MultipleNegativesRankingLoss,
)
from torch import Tensor, nn
from torch.nn.utils import get_total_norm
from torch.utils.data import DataLoader
from transformers import Trainer, TrainerCallback, TrainingArguments

from baselines.retrieve.devices import computes_bf16, widen_heads
from baselines.retrieve.encoder import preprocess
from baselines.retrieve.model_prompts import prompt_of
from baselines.train.data import Batches
from baselines.train.recipe import Recipe
from baselines.train.resume import seal
from baselines.train.trained_models import halves, is_static
from builders.core.errors import InputError, log
from builders.core.jobs import can_start_processes
from builders.core.progress import progress

Evaluate = Callable[[Any], dict[str, float]]
# The other processes wait this long while the first process evaluates or writes. If a process dies, torchrun ends all
# processes within a second.
_WAIT = datetime.timedelta(hours=2)
_OTHERS_END = 15.0  # seconds that other processes get to end after an error


class FiniteWeights(TrainerCallback):
    """Stop a training after a step that makes weights infinite or NaN, before the model is evaluated or saved."""

    def on_step_end(self, args: Any, state: Any, control: Any, model: Any = None, **kwargs: Any) -> None:
        # The norm also overflows if finite weights reach 1e19. A model with such weights is useless.
        if not torch.isfinite(get_total_norm([weights.detach() for weights in model.parameters()])):
            raise _diverged(state.global_step, "weights have become infinite or NaN")


def _diverged(step: int, what: str) -> InputError:
    return InputError(f"step {step}: the {what}; try a lower train.learning_rate, or train.precision=fp32")


class Monitor(TrainerCallback):
    """Show progress, measure the time across resumes, evaluate on the dev sample, and write manifests of states."""

    def __init__(self, trainer: Any, evaluate: Evaluate | None, evaluations: int) -> None:
        self.seconds, self._trainer, self._evaluate = 0.0, trainer, evaluate
        self._steps = len(trainer.batches)
        self._every = max(1, round(self._steps / evaluations)) if evaluations else self._steps + 1
        self._bar = progress(total=self._steps, unit="step", label="train")

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self._started = time.monotonic()
        self._bar.update(state.global_step)

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self._bar.update(1)
        if self._evaluate and (state.global_step % self._every == 0 or state.global_step == self._steps):
            model = self._trainer.model
            model.eval()
            with torch.no_grad():
                found = self._evaluate(model)
            model.train()
            should_log = control.should_log
            self._trainer.log({f"dev_{name}": value for name, value in found.items()})
            control.should_log = should_log  # log() clears the flag, and the entry of this step would be skipped
            shown = ", ".join(f"{name} {100 * value:.2f}" for name, value in found.items())
            log.info("step %d of %d: dev sample %s", state.global_step, self._steps, shown)

    def on_log(self, args: Any, state: Any, control: Any, logs: dict[str, Any] | None = None, **kwargs: Any) -> None:
        if logs and "loss" in logs:
            self._bar.set_postfix(loss=f"{float(logs['loss']):.4f}")

    def on_save(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if args.world_size > 1:
            torch.distributed.barrier()  # wait until each process has written its random state
        if args.process_index == 0:
            seal(Path(args.output_dir) / f"checkpoint-{state.global_step}", self.elapsed(), args.world_size)

    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self._bar.close()

    def elapsed(self) -> float:
        """Seconds of training so far."""
        return self.seconds + time.monotonic() - self._started


class _OurBatches:
    """Mixin for trainers: use :class:`Batches`, require finite gradients, write no model card (`train` writes it)."""

    batches: Batches

    def get_train_dataloader(self: Any) -> DataLoader[Any]:
        workers = self.args.dataloader_num_workers
        return DataLoader(
            self.train_dataset,
            batch_sampler=self.batches,
            collate_fn=self.data_collator,
            num_workers=workers,
            pin_memory=self.args.device.type == "cuda",
            # A separate generator, so that creating the iterator does not draw from the model's random numbers.
            generator=torch.Generator().manual_seed(self.args.seed),
            # fork: the collator refers to the model, so a spawned process would receive a copy of the model.
            multiprocessing_context="fork" if workers else None,
        )

    def _get_grad_norm(self: Any, *args: Any, **given: Any) -> Any:
        # A NaN loss appears in this norm first. Finite gradients with an infinite norm become zeros when clipped, so
        # the training would continue without learning.
        norm = super()._get_grad_norm(*args, **given)  # type: ignore[misc]
        if not torch.isfinite(torch.as_tensor(norm)):
            raise _diverged(self.state.global_step + 1, f"norm of the gradients is {float(norm)}, not a finite number")
        return norm

    def add_model_card_callback(self: Any, default_args_dict: dict[str, Any]) -> None:
        pass


class _DualTrainer(_OurBatches, SentenceTransformerTrainer):  # type: ignore[misc]
    pass


class _CrossTrainer(_OurBatches, CrossEncoderTrainer):  # type: ignore[misc]
    adversarial, embeddings_gradient, tokens, _share = 0.0, 1.0, 0, 1.0

    def compute_loss(self, model: Any, inputs: dict[str, Any], *args: Any, **given: Any) -> Any:
        """Return the mean loss of a part of the batch, times the part's share of the batch's rows."""
        return pair_loss(model, inputs) * self._share

    def training_step(self, model: Any, inputs: dict[str, Any], *args: Any, **given: Any) -> torch.Tensor:
        """Run one batch in parts of at most ``tokens`` tokens. The parts' gradients add up to the batch's gradient."""
        inputs, rows = self._prepare_inputs(inputs), len(inputs["label"])
        losses = []
        for part in token_parts(inputs, self.tokens):
            self._share = len(part["label"]) / rows
            with self._moved_embeddings(part) if self.adversarial else contextlib.nullcontext():
                losses.append(super().training_step(model, part, *args, **given))
        if self.adversarial:
            self.model.model.get_input_embeddings().weight.grad *= self.embeddings_gradient
        return torch.stack(losses).sum()

    @contextlib.contextmanager
    def _moved_embeddings(self, inputs: dict[str, Any]) -> Iterator[None]:
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
        before = embeddings.detach().clone()
        with torch.no_grad():
            embeddings.add_(gradient / (gradient.square().sum() + 1e-8).sqrt(), alpha=self.adversarial)
        try:
            yield
        finally:
            with torch.no_grad():
                embeddings.copy_(before)


class _MaskTrainer(_OurBatches, Trainer):
    pass


TOKENS_ON_GPU = 32_768  # in one pass; two towers of BERT-base take 15.6 GiB in bf16 (benchmarks/gpu_speed.py)

# The defaults of Paddle's Adam, which the official code uses. Paddle decouples weight decay, as AdamW does.
# fused updates all weights in one pass. For a static model, this takes less time than sparse gradients.
_ADAM = {"optim": "adamw_torch_fused", "adam_beta1": 0.9, "adam_beta2": 0.999, "adam_epsilon": 1e-8}


def arguments(recipe: Recipe, states: Path, batches: Batches, device: str) -> dict[str, Any]:
    """Return the arguments that all three trainers share. ``states``: folder of states and TensorBoard's logs."""
    train = recipe.train
    cuda = device.startswith("cuda")
    os.environ["TENSORBOARD_LOGGING_DIR"] = str(states / "tensorboard")
    # Start no workers on a CPU, because the model needs the cores.
    workers = train.workers if cuda and train.workers and can_start_processes() else 0
    if workers:
        os.environ["TOKENIZERS_PARALLELISM"] = "false"  # the tokenizer's threads hang in forked loader processes
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
        "tf32": True if cuda and torch.cuda.get_device_capability()[0] >= 8 else None,
        "dataloader_num_workers": workers,
        "dataloader_drop_last": True,
        "ddp_backend": None if batches.world == 1 else "nccl" if cuda else "gloo",
        "ddp_find_unused_parameters": False,
        "logging_strategy": "steps",
        "logging_steps": max(1, round(len(batches) / train.logs)),
        "logging_nan_inf_filter": False,  # True would replace a NaN loss by the mean of earlier losses
        "save_strategy": "steps" if train.saves else "no",
        "save_steps": max(1, round(len(batches) / max(1, train.saves))),
        "save_total_limit": 2,
        "eval_strategy": "no",  # Monitor evaluates
        "report_to": train.loggers(),
        "run_name": states.stem,
        "disable_tqdm": True,
        "remove_unused_columns": False,
    }


def tokens_at_once(recipe: Recipe, device: torch.device) -> int:
    """Resolve ``train.mini_batch_tokens`` for a device. 0 means no limit."""
    return recipe.train.mini_batch_tokens or (TOKENS_ON_GPU if device.type == "cuda" else 0)


def dual_trainer(recipe: Recipe, model: SentenceTransformer, rows: Any, batches: Batches, given: dict[str, Any]) -> Any:
    """Create the dual-encoder's trainer, which scores each query against all passages of the batch, of all processes.

    Passages of other rows are in-batch negatives, or under torchrun, cross-batch negatives (RocketQA; Section 3.1,
    A.2). The loss does not depend on the number of processes. Gradients are cached, so that a batch of any size needs
    only the memory of one mini-batch. A static model needs little memory and reads the batch at once.
    """
    from sentence_transformers.util import dot_score

    routes = {name: "query" if name == "query" else "document" for name in rows.column_names}
    prompts = {name: prompt for name, route in routes.items() if (prompt := prompt_of(model, route))}
    kind, mini = CachedMultipleNegativesRankingLoss, {"mini_batch_size": recipe.train.mini_batch}
    if tokens := tokens_at_once(recipe, model.device):
        mini = {"mini_batch_size": recipe.train.batch, "mini_batch_num_tokens": tokens}
    if is_static(model):
        kind, mini = MultipleNegativesRankingLoss, {}
    # For cosine similarity, the model's own Normalize module has already normalised the vectors.
    loss: Any = kind(model, scale=recipe.train.scale, similarity_fct=dot_score, gather_across_devices=True, **mini)
    if recipe.train.shortest:
        loss = MatryoshkaLoss(model, loss, matryoshka_dims=halves(model, recipe.train.shortest))
    # torch sums the gradients of all processes after the last mini-batch, in which one of two towers is unused.
    given = {**given, "ddp_find_unused_parameters": any(isinstance(module, Router) for module in model)}
    args = SentenceTransformerTrainingArguments(**given, router_mapping=routes, prompts=prompts)
    trainer = _made(_DualTrainer, batches, model=model, args=args, train_dataset=rows, loss=loss)
    trainer.data_collator.preprocess_fn = functools.partial(preprocess, model)  # gives the same tokens faster
    if "mini_batch_num_tokens" in mini:
        trainer.data_collator = functools.partial(_longest_first, trainer.data_collator)
    return trainer


def _longest_first(collator: Any, rows: list[dict[str, Any]]) -> Any:
    """Collate a batch with the longest positives first, so that mini-batches limited by tokens have little padding."""
    return collator(sorted(rows, key=lambda row: -len(row["positive"])))


def cross_trainer(recipe: Recipe, model: CrossEncoder, rows: Any, batches: Batches, given: dict[str, Any]) -> Any:
    """Create the cross-encoder's trainer over (query, passage) pairs, padded batch by batch.

    The head is in fp32 even with bf16, so that different logits do not round to the same number.
    """
    widen_heads(model)
    collator, args = functools.partial(_pair_tokens, model), CrossEncoderTrainingArguments(**given)
    trainer = _made(_CrossTrainer, batches, model=model, args=args, train_dataset=rows, data_collator=collator)
    trainer.adversarial = recipe.train.adversarial
    trainer.embeddings_gradient = recipe.train.embeddings_gradient
    trainer.tokens = tokens_at_once(recipe, model.device)
    return trainer


def mask_trainer(recipe: Recipe, model: Any, tokenizer: Any, rows: Any, batches: Batches, given: dict[str, Any]) -> Any:
    """Create the trainer of a masked language model."""
    collator, args = functools.partial(_masked, recipe, tokenizer), TrainingArguments(**given)
    options = {"train_dataset": rows, "data_collator": collator, "processing_class": tokenizer}
    return _made(_MaskTrainer, batches, model=model, args=args, **options)


def _made(kind: type, batches: Batches, args: TrainingArguments, **given: Any) -> Any:
    if args.n_gpu > 1:
        log.warning("%d GPUs are visible; training on %s only; use torchrun for all GPUs", args.n_gpu, args.device)
        args._n_gpu = 1  # otherwise transformers uses nn.DataParallel, which breaks cached losses
    trainer = kind(args=args, **given)
    trainer.batches = batches
    trainer.remove_callback(transformers.PrinterCallback)
    trainer.add_callback(FiniteWeights)
    return trainer


def _pair_tokens(model: CrossEncoder, rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Tokenize a batch of (query, passage) rows, and add their labels.

    The library would tokenize inside the loss, in the training process. This collator gives the same tokens. It runs in
    the loader's processes if ``train.workers`` > 0.
    """
    prompt = model.prompts.get(model.default_prompt_name or "")
    tokens = preprocess(model, [(row["query"], row["passage"]) for row in rows], prompt=prompt)
    return {**tokens, "label": torch.tensor([row["label"] for row in rows])}


def pair_loss(model: nn.Module, batch: dict[str, Any]) -> Tensor:
    """Return the mean loss of a tokenized batch: binary cross entropy for one logit, softmax cross entropy for two.

    The loss equals that of sentence-transformers' BinaryCrossEntropyLoss and CrossEntropyLoss, which take texts instead
    of tokens. The batch's ``label`` has the shape (rows,), with 1.0 for a positive and 0.0 for a negative.
    """
    labels = batch["label"]
    logits = model({name: value for name, value in batch.items() if name != "label"})["scores"].float()
    if logits.numel() == len(labels):
        return nn.functional.binary_cross_entropy_with_logits(logits.view(-1), labels.float())
    return nn.functional.cross_entropy(logits, labels.long())


def token_parts(batch: dict[str, Any], tokens: int) -> Iterator[dict[str, Any]]:
    """Split a tokenized batch into parts of at most ``tokens`` tokens, including padding. 0 means no split.

    Pairs are sorted by length, longest first, and padding that a part does not need is removed. A pair with more than
    ``tokens`` tokens becomes a part of its own.
    """
    mask = batch["attention_mask"]
    if not tokens or mask.numel() <= tokens:
        yield batch
        return
    positions = torch.arange(1, mask.shape[1] + 1, device=mask.device)
    lengths, order = (mask * positions).amax(1).sort(descending=True, stable=True)
    wanted, start = lengths.tolist(), 0  # lengths are positions of the last token, because some models pad on the left
    while start < len(wanted):
        some = order[start : start + max(1, tokens // wanted[start])]
        part = {name: value[some] if torch.is_tensor(value) else value for name, value in batch.items()}
        for name, value in batch.items():
            if torch.is_tensor(value) and value.shape == mask.shape:
                part[name] = part[name][:, : wanted[start]]
        yield part
        start += len(some)


def _masked(recipe: Recipe, tokenizer: Any, rows: list[dict[str, Any]]) -> dict[str, torch.Tensor]:
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
    tokens, special = batch["input_ids"], batch.pop("special_tokens_mask").bool()
    generator = torch.Generator().manual_seed((recipe.train.seed * 1_000_003 + rows[0]["visit"]) % (1 << 62))
    chosen = (torch.rand(tokens.shape, generator=generator) < recipe.train.mask) & ~special
    kind = torch.rand(tokens.shape, generator=generator)
    anything = torch.randint(len(tokenizer), tokens.shape, generator=generator)
    labels = tokens.masked_fill(~chosen, -100)
    tokens = tokens.masked_fill(chosen & (kind < 0.8), tokenizer.mask_token_id)
    tokens = torch.where(chosen & (kind >= 0.9), anything, tokens)
    return {"input_ids": tokens, "attention_mask": batch["attention_mask"], "labels": labels}


@contextlib.contextmanager
def together(rank: int, world: int, device: str) -> Iterator[None]:
    """Open a process group for the block, and close it after all processes have finished.

    The processes wait for each other at the end. Otherwise a library's threads could abort a process that returns
    early, and torchrun would then end the first process while it writes the checkpoint. The block must leave no
    reference to a model or a trainer, because models and trainers refer to the group. If another process fails, this
    process ends with exit code 1, and the failed process reports the error.
    """
    if rank and threading.current_thread() is threading.main_thread():
        # SIGTERM must end this process at once: a Python handler would wait for the end of a collective operation.
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
    if device != "cpu":
        torch.cuda.set_device(device)
    torch.distributed.init_process_group("gloo" if device == "cpu" else "nccl", timeout=_WAIT)
    try:
        torch.distributed.barrier()
        yield
        gc.collect()
        torch.distributed.barrier()  # wait until the first process has written the checkpoint
    except RuntimeError as error:
        if not (isinstance(error, torch.distributed.DistError) or "gloo" in str(error)):  # this process's own error
            raise
        time.sleep(_OTHERS_END)  # torchrun normally ends this process during the wait
        log.warning("process %d of %d: another process has ended (%s)", rank, world, str(error).partition("\n")[0])
        raise SystemExit(1) from error
    finally:
        # After an error, NCCL may wait forever for processes that have ended, so this process waits for a limited time.
        leaving = threading.Thread(target=torch.distributed.destroy_process_group, daemon=True)
        leaving.start()
        leaving.join(timeout=_OTHERS_END)
