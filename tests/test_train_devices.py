"""Training on what devices have: bf16, one GPU of several, the random states of the cached loss."""

from __future__ import annotations

import functools
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from sentence_transformers.base.losses import RandContext
from tiny_training import Make, first_batch, maker, step
from torch import nn
from transformers import TrainingArguments

from baselines.retrieve import devices
from baselines.train.recipe import read_recipe


@pytest.fixture
def make(tmp_path: Path) -> Make:
    return maker(tmp_path)


def test_an_adversarial_step_in_bf16_is_near_that_in_fp32(make: Make) -> None:
    found = []
    for precision in ("fp32", "bf16"):
        trainer = make("cross", "train.adversarial=0.01", f"train.precision={precision}")
        trainer.accelerator.prepare_model(trainer.model)  # as a training does it: bf16 is put around its forward
        before = trainer.model.model.get_input_embeddings().weight.detach().clone()
        loss, gradients = step(trainer, first_batch(trainer))
        assert torch.equal(trainer.model.model.get_input_embeddings().weight, before)
        found.append((loss, torch.cat([gradient.flatten() for gradient in gradients.values()])))
    (whole, exact), (half, rounded) = found
    assert half != whole and half == pytest.approx(whole, rel=0.02)
    assert float(torch.cosine_similarity(exact, rounded, dim=0)) > 0.99


@pytest.mark.parametrize("kind", ["dual", "cross"])
def test_a_training_in_bf16_follows_one_in_fp32(make: Make, kind: str) -> None:
    losses = []
    for precision in ("fp32", "bf16"):
        trainer = make(kind, f"train.precision={precision}", "train.logs=3", "train.saves=0", "train.epochs=2")
        trainer.train()
        losses.append([entry["loss"] for entry in trainer.state.log_history if "loss" in entry])
        assert {value.dtype for value in trainer.model.parameters()} == {torch.float32}
    assert losses[0] != losses[1] and all(math.isfinite(loss) for loss in losses[1])
    assert losses[1] == pytest.approx(losses[0], rel=0.05)


def test_of_several_visible_gpus_one_is_used(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    found = TrainingArguments._setup_devices.func

    def two(arguments: TrainingArguments) -> torch.device:
        device: torch.device = found(arguments)
        arguments._n_gpu = 2
        return device

    setup = functools.cached_property(two)
    setup.__set_name__(TrainingArguments, "_setup_devices")
    monkeypatch.setattr(TrainingArguments, "_setup_devices", setup)  # whatever the machine has
    wrapped: list[Any] = []

    class Parallel(nn.Module):
        def __init__(self, model: nn.Module) -> None:
            super().__init__()
            wrapped.append(model)

    monkeypatch.setattr(nn, "DataParallel", Parallel)
    for kind in ("dual", "cross"):
        trainer = make(kind, "train.max_steps=1", "train.saves=0")
        trainer.train()
        assert trainer.args.n_gpu == 1
    assert not wrapped
    trainer.args._n_gpu = 2
    trainer._wrap_model(trainer.model)
    assert wrapped  # what would have happened


def test_the_cached_loss_draws_the_same_dropout_twice(make: Make) -> None:
    trainer = make("dual", "train.mini_batch=4")
    batch = first_batch(trainer)
    model = trainer.model
    found, gradients = step(trainer, batch)
    model.zero_grad()
    torch.manual_seed(3)
    features, _ = trainer.collect_features(dict(batch))
    query, positive, negative = (model(dict(each))["sentence_embedding"] for each in features)
    scores = query @ torch.cat([positive, negative]).T * read_recipe("de-bm25-neg-scratch").train.scale
    expected = nn.functional.cross_entropy(scores, torch.arange(4))
    expected.backward()  # type: ignore[no-untyped-call]
    assert model[0].auto_model.config.hidden_dropout_prob > 0
    assert found == pytest.approx(expected.item(), rel=1e-5)
    for name, gradient in gradients.items():
        assert torch.allclose(gradient, model.get_parameter(name).grad, atol=1e-3), name
    other = step(trainer, batch, seed=4)[1]  # of another dropout they are far away
    assert not any(torch.allclose(other[name], each, atol=0.1) for name, each in gradients.items() if each.max() > 5)


def test_the_cached_loss_keeps_the_random_state_of_the_card_that_its_batch_is_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    states = {0: torch.tensor([10]), 1: torch.tensor([11])}
    now = [0]

    class On:
        """Stands for ``torch.cuda.device``."""

        def __init__(self, number: int) -> None:
            self.number = number

        def __enter__(self) -> None:
            self.before, now[0] = now[0], self.number

        def __exit__(self, *_: Any) -> None:
            now[0] = self.before

    def get(device: Any = None) -> torch.Tensor:
        return states[now[0] if device is None else int(device)].clone()

    def put(state: torch.Tensor, device: Any = None) -> None:
        states[now[0] if device is None else int(device)] = state.clone()

    for name, fake in (("device", On), ("get_rng_state", get), ("set_rng_state", put)):
        monkeypatch.setattr(torch.cuda, name, fake)
    monkeypatch.setattr(torch.utils.checkpoint.DefaultDeviceType, "_default_device_type", "cuda")
    with torch._subclasses.FakeTensorMode():
        tokens = torch.ones(2, 3, device="cuda:1")
    kept = RandContext(tokens)
    states.update({0: torch.tensor([20]), 1: torch.tensor([21])})  # dropout has been drawn since
    with kept:
        assert (int(states[0]), int(states[1])) == (20, 11)
        states[1] = torch.tensor([12])
    assert (int(states[0]), int(states[1])) == (20, 21)


@pytest.mark.parametrize("able", [{}, {"avx512_bf16": True}, {"amx_bf16": True}])
def test_a_cpu_computes_in_bf16_only_where_it_is_asked_for(
    make: Make, monkeypatch: pytest.MonkeyPatch, able: dict[str, bool]
) -> None:
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: able, raising=False)
    assert [devices.dtype_of(wanted, "cpu") for wanted in ("auto", "fp32", "bf16")] == ["fp32", "fp32", "bf16"]
    precisions = ("auto", "fp32", "bf16")
    assert [make("cross", f"train.precision={each}").args.bf16 for each in precisions] == [False, False, True]
