"""Training, step by step: rate, decay and clipping, the losses, what cuts the texts, the adversarial step."""

from __future__ import annotations

import copy
import math
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from sentence_transformers.cross_encoder.losses import BinaryCrossEntropyLoss, CrossEntropyLoss
from tiny_models import write_dual
from tiny_training import Make, Rows, first_batch, maker, step
from torch import nn

from baselines.train import trainers, training
from baselines.train.cross_loss import token_parts
from baselines.train.recipe import read_recipe
from baselines.train.rows import Batches
from builders.core.errors import InputError


@pytest.fixture
def make(tmp_path: Path) -> Make:
    return maker(tmp_path)


def test_the_rate_falls_or_stays(make: Make) -> None:
    def rates(*values: str) -> list[float]:
        trainer = make("cross", "train.learning_rate=1", "train.epochs=3.4", *values)  # 10 steps
        trainer.create_optimizer_and_scheduler(10)
        found = []
        for _ in range(10):
            found.append(trainer.optimizer.param_groups[0]["lr"])
            trainer.optimizer.step()
            trainer.lr_scheduler.step()
        return found

    assert rates("train.schedule=constant", "train.warmup=0") == [1.0] * 10
    assert rates("train.schedule=constant", "train.warmup=0.2") == [0, 0.5, *[1.0] * 8]
    falling = [0, 0.5, 1, 7 / 8, 6 / 8, 5 / 8, 4 / 8, 3 / 8, 2 / 8, 1 / 8]
    assert rates("train.schedule=linear", "train.warmup=0.2") == pytest.approx(falling)


def test_weights_decay_but_for_biases_and_layer_norms(make: Make) -> None:
    trainer = make("cross", "train.weight_decay=0.01", "train.learning_rate=0.1")
    trainer.create_optimizer()
    before = {name: value.detach().clone() for name, value in trainer.model.named_parameters()}
    for value in trainer.model.parameters():
        value.grad = torch.zeros_like(value)
    trainer.optimizer.step()  # nothing to learn: what changes has decayed
    for name, value in trainer.model.named_parameters():
        kept = name.endswith("bias") or "LayerNorm" in name
        expected = before[name] if kept else before[name] * (1 - 0.1 * 0.01)
        assert torch.allclose(value, expected, rtol=1e-6, atol=0), name
    group = trainer.optimizer.param_groups[0]
    assert (type(trainer.optimizer), group["betas"], group["eps"]) == (torch.optim.AdamW, (0.9, 0.999), 1e-8)


def test_gradients_are_clipped_at_the_recipes_norm(make: Make) -> None:
    def norm_of(clip: str) -> float:
        trainer = make("cross", f"train.clip={clip}", "train.max_steps=1", "train.saves=0", "train.logs=1")
        seen: list[float] = []

        class Norms(trainers.transformers.TrainerCallback):  # type: ignore[misc]
            def on_pre_optimizer_step(self, *_: Any, model: Any, **__: Any) -> None:
                norms = [value.grad.norm() for value in model.parameters() if value.grad is not None]
                seen.append(float(torch.stack(norms).norm()))

        trainer.add_callback(Norms())
        trainer.train()
        return seen[0]

    whole = norm_of("0")
    assert whole > 0.02
    assert norm_of("0.01") == pytest.approx(0.01, rel=1e-3)
    assert norm_of("1000") == pytest.approx(whole, rel=1e-5)


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


@pytest.mark.parametrize("kind", ["dual", "cross"])
def test_the_loaders_processes_cut_the_texts_to_the_same_tokens(make: Make, kind: str) -> None:
    here, there = make(kind), make(kind, dataloader_num_workers=2)
    batches = list(zip(here.get_train_dataloader(), there.get_train_dataloader(), strict=True))
    assert len(batches) == 3
    for left, right in batches:
        assert left.keys() == right.keys()
        assert any(name.endswith("input_ids") for name in left)  # tokens, so the training has nothing left to cut
        for name, value in left.items():
            assert torch.equal(value, right[name]) if torch.is_tensor(value) else value == right[name]


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


def test_a_loss_that_is_not_finite_ends_the_training(make: Make) -> None:
    trainer = make("cross", "train.saves=0")
    with torch.no_grad():
        trainer.model.model.classifier.bias.fill_(math.nan)
    with pytest.raises(InputError, match="step 1: the loss is nan, expected a finite number; try a lower"):
        trainer.train()


def test_weights_that_are_no_numbers_end_the_training_before_they_are_saved(make: Make, tmp_path: Path) -> None:
    trainer = make("cross", "train.saves=3", "train.logs=3")  # a state a step

    class Overflow(trainers.transformers.TrainerCallback):  # type: ignore[misc]
        def on_optimizer_step(self, args: Any, state: Any, control: Any, model: Any = None, **_: Any) -> None:
            if state.global_step == 1:  # a position that no text reaches: no loss ever says it
                model.model.bert.embeddings.position_embeddings.weight.data[-1] = math.inf

    trainer.add_callback(Overflow())
    with pytest.raises(InputError, match="step 2: the weights have become infinite or no numbers; try a lower"):
        trainer.train()
    assert [path.name for path in (tmp_path / "states").glob("checkpoint-*")] == ["checkpoint-1"]


@pytest.mark.parametrize("clip", ["0", "1"])
def test_gradients_of_an_infinite_norm_end_the_training_before_a_step_of_nothing(make: Make, clip: str) -> None:
    trainer = make("cross", "train.saves=0", f"train.clip={clip}")
    trainer.model.model.classifier.bias.register_hook(lambda gradient: gradient * 0 + 1e30)  # finite; its square is not
    with pytest.raises(InputError, match="step 1: the gradients' norm is inf, expected a finite number; try a lower"):
        trainer.train()


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
    for tokens in (1, 7, 10, 24):
        parts = list(token_parts(batch, tokens))
        assert [part["modality"] for part in parts] == ["text"] * len(parts)
        assert all(part["input_ids"].numel() <= tokens or len(part["label"]) == 1 for part in parts)
        assert all(part["input_ids"].shape == part["attention_mask"].shape for part in parts)
        found = {
            int(label): row[mask > 0].tolist()
            for part in parts
            for label, row, mask in zip(part["label"], part["input_ids"], part["attention_mask"], strict=True)
        }
        assert found == {row: (torch.arange(length) + 10 * (row + 1)).tolist() for row, length in enumerate(lengths)}
        assert sum(len(part["label"]) for part in parts) == 5
    if padding == "right":
        assert [part["input_ids"].shape for part in token_parts(batch, 10)] == [(2, 5), (3, 3)]


@pytest.mark.parametrize("compiled", ["true", "false"])
def test_the_transformer_of_a_training_is_compiled_where_the_recipe_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, compiled: str
) -> None:
    calls: list[str] = []

    def compile_forward(forward: Any, dynamic: bool) -> Any:
        def counted(*args: Any, **given: Any) -> Any:
            calls.append(type(forward.__self__).__name__)
            return forward(*args, **given)

        return counted if dynamic else None

    monkeypatch.setattr(torch, "compile", compile_forward)
    values = ["train.batch=4", "train.epochs=1", f"train.compile={compiled}", "model.pooling=", "model.similarity="]
    recipe, rows = read_recipe("de-bm25-neg-scratch", values), Rows("dual")
    order: Any = SimpleNamespace(recipe=recipe, commit="")
    start, batches = str(write_dual(tmp_path / "start")), Batches(rows, 4, 1, 0)
    trainer = training._trainer(order, start, rows, batches, tmp_path / "states", "cpu")
    step(trainer, first_batch(trainer))
    assert {*calls} == ({"BertModel"} if compiled == "true" else set())
