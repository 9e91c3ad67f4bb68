"""Callbacks of the trainer: progress, evaluation on dev, sealed states, and an end where weights are not finite."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch.nn.utils import get_total_norm
from transformers import TrainerCallback

from baselines.train.resume import seal
from builders.core.errors import InputError, log
from builders.core.progress import progress

Evaluate = Callable[[Any], dict[str, float]]


class FiniteWeights(TrainerCallback):
    """Stop a training after the step that made its weights infinite or NaN, before they are measured or saved.

    The loss shows it a step later; after the last step, and of weights that a batch does not use, it shows nothing.
    """

    def on_step_end(self, args: Any, state: Any, control: Any, model: Any = None, **kwargs: Any) -> None:
        # The norm overflows at weights of 1e19, too, of which nothing is left to learn.
        if not torch.isfinite(get_total_norm([weights.detach() for weights in model.parameters()])):
            raise diverged(state.global_step, "weights have become infinite or no numbers")


def diverged(step: int, what: str) -> InputError:
    """The error that ends a training which can come to nothing any more. Its last state stays as it is."""
    return InputError(f"step {step}: the {what}; try a lower train.learning_rate, or train.precision=fp32")


class Monitor(TrainerCallback):
    """Show progress, measure the time (parts before a resume included), evaluate on dev, seal states."""

    def __init__(self, trainer: Any, evaluate: Evaluate | None, evaluations: int) -> None:
        self.seconds, self._trainer, self._evaluate = 0.0, trainer, evaluate
        self._steps = len(trainer.batches)
        self._every = max(1, round(self._steps / evaluations)) if evaluate and evaluations else 0
        self._bar = progress(total=self._steps, unit="step", label="train")

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self._started = time.monotonic()
        self._bar.update(state.global_step)

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self._bar.update(1)
        last = state.global_step == self._steps
        if self._every and (state.global_step % self._every == 0 or last) and args.process_index == 0:
            assert self._evaluate is not None
            model = self._trainer.model
            model.eval()
            with torch.no_grad():
                found = self._evaluate(model)
            model.train()
            wanted = control.should_log
            self._trainer.log({f"dev_{name}": value for name, value in found.items()})
            control.should_log = wanted  # log() takes itself for the step's own
            shown = ", ".join(f"{name} {100 * value:.2f}" for name, value in found.items())
            log.info("step %d of %d: dev sample %s", state.global_step, self._steps, shown)

    def on_log(self, args: Any, state: Any, control: Any, logs: dict[str, Any] | None = None, **kwargs: Any) -> None:
        if logs and "loss" in logs:
            self._bar.set_postfix(loss=f"{float(logs['loss']):.4f}")

    def on_save(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if args.world_size > 1:
            torch.distributed.barrier()  # each process has written its random state
        if args.process_index == 0:
            seal(Path(args.output_dir) / f"checkpoint-{state.global_step}", self.elapsed())

    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self._bar.close()

    def elapsed(self) -> float:
        """Seconds of training so far."""
        return self.seconds + time.monotonic() - self._started
