"""Trainers of tiny random models, and single training steps."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from releases import QUESTIONS, TEXTS
from sentence_transformers import CrossEncoder, SentenceTransformer
from tiny_models import SAMPLE, write_bert, write_dual

from baselines.train import trainers
from baselines.train.data import Batches
from baselines.train.recipe import read_recipe

ASKED = [question for questions in QUESTIONS.values() for question in questions]
Make = Callable[..., Any]


class Rows(list[dict[str, Any]]):
    def __init__(self, kind: str) -> None:
        pairs = [(ASKED[n % len(ASKED)], TEXTS[n % len(TEXTS)], TEXTS[(n + 1) % len(TEXTS)]) for n in range(12)]
        dual = [{"query": q, "positive": good, "negative_1": bad} for q, good, bad in pairs]
        cross = [{"query": q, "passage": good, "label": float(n % 3 == 0)} for n, (q, good, _) in enumerate(pairs)]
        super().__init__(dual if kind == "dual" else cross)
        self.column_names = list(self[0])

    def __getitem__(self, index: Any) -> Any:
        return super().__getitem__(index % len(self))  # in epoch e, row r has the index e * rows + r


def maker(folder: Path) -> Make:
    """``make(kind, *values, outputs=1, **arguments)`` creates a trainer of a tiny random model, 4 rows per step."""

    def made(kind: str, *values: str, outputs: int = 1, **change: Any) -> Any:
        shared = ["train.batch=4", "train.epochs=1", "data.passage_length=24", "data.query_length=12"]
        name = "de-bm25-neg-scratch" if kind == "dual" else "ce-bm25-neg-scratch"
        recipe = read_recipe(name, [*shared, f"model.outputs={outputs}", *values])
        rows = Rows(kind)
        batches = Batches(rows, 4, recipe.train.epochs, 0)
        given = {**trainers.arguments(recipe, folder / "states", batches, "cpu"), **change}
        if kind == "dual":
            model: Any = SentenceTransformer(str(write_dual(folder / "dual")), device="cpu")
            return trainers.dual_trainer(recipe, model, rows, batches, given)
        bert = write_bert(folder / f"cross-{outputs}", SAMPLE, labels=outputs)
        model = CrossEncoder(str(bert), device="cpu", max_length=24)
        return trainers.cross_trainer(recipe, model, rows, batches, given)

    return made


def first_batch(trainer: Any) -> dict[str, Any]:
    return next(iter(trainer.get_train_dataloader()))


def step(trainer: Any, batch: dict[str, Any], seed: int = 3) -> tuple[float, dict[str, torch.Tensor]]:
    """Return loss and gradients of one step with the given seed, without changing the weights."""
    trainer.model.zero_grad()
    trainer.current_gradient_accumulation_steps = 1
    torch.manual_seed(seed)
    loss = trainer.training_step(trainer.model, dict(batch))
    return float(loss), {n: p.grad.clone() for n, p in trainer.model.named_parameters() if p.grad is not None}
