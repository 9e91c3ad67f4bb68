"""Training, step by step: the trainer's arguments, losses, tokens, the adversarial step, precisions and devices."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from sentence_transformers.cross_encoder.losses import BinaryCrossEntropyLoss, CrossEntropyLoss
from tiny_training import Make, Rows, first_batch, maker, step
from torch import nn

from baselines.train import trainers
from baselines.train.data import Batches
from baselines.train.trainers import token_parts
from builders.core.errors import InputError


@pytest.fixture
def make(tmp_path: Path) -> Make:
    return maker(tmp_path)


def test_the_recipes_values_reach_the_library(make: Make) -> None:
    values = ["train.learning_rate=1", "train.epochs=3.4", "train.warmup=0.2", "train.weight_decay=0.01"]  # 10 steps
    trainer = make("cross", *values, "train.clip=0.5", "train.schedule=constant")
    trainer.create_optimizer_and_scheduler(10)
    rates = [trainer.lr_scheduler.lr_lambdas[0](step) for step in range(10)]
    assert rates == [0, 0.5, *[1.0] * 8]
    group = trainer.optimizer.param_groups[0]
    assert (type(trainer.optimizer), group["betas"], group["eps"]) == (torch.optim.AdamW, (0.9, 0.999), 1e-8)
    assert (group["weight_decay"], trainer.args.max_grad_norm) == (0.01, 0.5)
    undecayed = {id(parameter) for parameter in trainer.optimizer.param_groups[1]["params"]}
    for name, parameter in trainer.model.named_parameters():
        assert (id(parameter) in undecayed) == (name.endswith("bias") or "LayerNorm" in name), name
    falling = make("cross", *values, "train.schedule=linear")
    falling.create_optimizer_and_scheduler(10)
    rates = [falling.lr_scheduler.lr_lambdas[0](step) for step in range(10)]
    assert rates == pytest.approx([0, 0.5, 1, 7 / 8, 6 / 8, 5 / 8, 4 / 8, 3 / 8, 2 / 8, 1 / 8])


@pytest.mark.parametrize("outputs", [1, 2])
def test_a_cross_encoders_loss_is_the_librarys(make: Make, outputs: int) -> None:
    trainer = make("cross", outputs=outputs)
    batch = first_batch(trainer)
    rows = [trainer.train_dataset[n] for n in next(iter(trainer.batches))]
    texts = [[row["query"] for row in rows], [row["passage"] for row in rows]]
    labels = torch.tensor([row["label"] for row in rows])
    ours, gradients = step(trainer, batch)
    model = trainer.model
    model.zero_grad()
    torch.manual_seed(3)
    theirs = BinaryCrossEntropyLoss(model) if outputs == 1 else CrossEntropyLoss(model)
    loss = theirs(texts, labels if outputs == 1 else labels.long())
    loss.backward()  # type: ignore[no-untyped-call]
    assert ours == loss.item()
    for name, value in model.named_parameters():
        assert torch.equal(gradients[name], value.grad), name


@pytest.mark.parametrize(("outputs", "factor"), [(1, 1), (2, 1), (2, 2)])
def test_the_adversarial_step_trains_on_moved_embeddings(make: Make, outputs: int, factor: int) -> None:
    trainer = make("cross", "train.adversarial=0.01", f"train.embeddings_gradient={factor}", outputs=outputs)
    batch = first_batch(trainer)
    reference = copy.deepcopy(trainer.model)
    before = trainer.model.model.get_input_embeddings().weight.detach().clone()
    found, gradients = step(trainer, batch)
    assert torch.equal(trainer.model.model.get_input_embeddings().weight, before)

    def loss() -> torch.Tensor:
        logits = reference({name: value for name, value in batch.items() if name != "label"})["scores"]
        if outputs == 1:
            return nn.functional.binary_cross_entropy_with_logits(logits.view(-1), batch["label"])
        return -torch.log_softmax(logits, 1)[torch.arange(4), batch["label"].long()].mean()

    words = reference.model.get_input_embeddings().weight
    reference.eval()
    gradient = torch.autograd.grad(loss(), words)[0]
    words.data = words.data + 0.01 * gradient / gradient.norm()
    reference.train()
    torch.manual_seed(3)
    expected = loss()
    expected.backward()  # type: ignore[no-untyped-call]
    assert found == pytest.approx(expected.item(), rel=1e-5)
    for name, value in reference.named_parameters():
        wanted = factor * value.grad if value is words else value.grad
        assert torch.allclose(gradients[name], wanted, rtol=1e-4, atol=1e-7), name
    plain, _ = step(make("cross", outputs=outputs), batch)
    assert found > plain + 1e-5  # the same dropout, on embeddings that are worse


@pytest.mark.parametrize("kind", ["dual", "cross"])
def test_mini_batches_of_tokens_leave_the_gradients_as_they_are(make: Make, kind: str) -> None:
    def gradients_of(tokens: int) -> tuple[float, torch.Tensor, int]:
        trainer = make(kind, f"train.mini_batch_tokens={tokens}")
        for module in trainer.model.modules():
            if isinstance(module, nn.Dropout):
                module.p = 0.0
        forward: list[Any] = []
        trainer.model[0].register_forward_pre_hook(lambda *_: forward.append(1))
        loss, gradients = step(trainer, first_batch(trainer))
        return loss, torch.cat([gradients[name].flatten() for name in sorted(gradients)]), len(forward)

    loss, whole, few = gradients_of(0)
    other, parts, many = gradients_of(50)
    assert many > few
    assert other == pytest.approx(loss, rel=1e-5)
    assert (parts - whole).norm() <= 1e-5 * whole.norm()


@pytest.mark.parametrize("padding", ["left", "right"])
def test_parts_of_a_batch_have_every_row_once_and_no_needless_padding(padding: str) -> None:
    lengths = [2, 5, 1, 3, 5]
    ids = torch.zeros(5, 5, dtype=torch.long)
    for row, length in enumerate(lengths):
        own = torch.arange(length) + 10 * (row + 1)
        ids[row, slice(5 - length, 5) if padding == "left" else slice(length)] = own
    batch = {"input_ids": ids, "attention_mask": (ids > 0).long(), "label": torch.arange(5.0), "modality": "text"}
    assert list(token_parts(batch, 0)) == list(token_parts(batch, 25)) == [batch]
    parts = list(token_parts(batch, 10))
    assert all(part["input_ids"].numel() <= 10 and part["modality"] == "text" for part in parts)
    rows = [row for part in parts for row in zip(*(part[name] for name in list(batch)[:3]), strict=True)]
    found = {int(label): row[mask > 0].tolist() for row, mask, label in rows}
    assert found == {row: (torch.arange(length) + 10 * (row + 1)).tolist() for row, length in enumerate(lengths)}
    if padding == "right":
        assert [part["input_ids"].shape for part in parts] == [(2, 5), (3, 3)]


@pytest.fixture
def make(tmp_path: Path) -> Make:
    return maker(tmp_path)


def _nan_bias(trainer: Any) -> None:
    with torch.no_grad():
        trainer.model.model.classifier.bias.fill_(math.nan)


def _infinite_norm(trainer: Any) -> None:
    # Finite; its square is not.
    trainer.model.model.classifier.bias.register_hook(lambda gradient: gradient * 0 + 1e30)


def _infinite_weight(trainer: Any) -> None:
    class Overflow(trainers.transformers.TrainerCallback):  # type: ignore[misc]
        def on_optimizer_step(self, args: Any, state: Any, control: Any, model: Any = None, **_: Any) -> None:
            if state.global_step == 1:  # a position that no text reaches: no loss ever says it
                model.model.bert.embeddings.position_embeddings.weight.data[-1] = math.inf

    trainer.add_callback(Overflow())


@pytest.mark.parametrize(
    ("spoil", "said", "states"),
    [
        (_nan_bias, "step 1: the gradients' norm is nan, expected a finite number; try a lower", []),
        (_infinite_norm, "step 1: the gradients' norm is inf, expected a finite number; try a lower", []),
        (_infinite_weight, "step 2: the weights have become infinite or no numbers; try a lower", ["checkpoint-1"]),
    ],
)
def test_what_is_not_finite_ends_the_training_before_it_is_saved(
    make: Make, tmp_path: Path, spoil: Callable[[Any], None], said: str, states: list[str]
) -> None:
    trainer = make("cross", "train.saves=3", "train.logs=3")  # a state a step
    spoil(trainer)
    with pytest.raises(InputError, match=said):
        trainer.train()
    assert [path.name for path in (tmp_path / "states").glob("checkpoint-*")] == states


def test_of_several_visible_gpus_one_is_used(make: Make) -> None:
    """Else transformers would wrap the model in nn.DataParallel, of which cached losses know nothing."""
    args = make("cross", "train.saves=0").args
    args._n_gpu = 2
    batches = Batches(Rows("cross"), 4, 1, 0)
    given = {"model": make("cross").model, "train_dataset": batches.rows}
    assert trainers._made(trainers._CrossTrainer, batches, args=args, **given).args.n_gpu == 1
