"""One pass of rows through a model, there and back: the unit that every cost is made of."""

from __future__ import annotations

import functools
import json
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from sentence_transformers.sentence_transformer.modules import Pooling
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from transformers import AutoConfig, PretrainedConfig

from baselines.cost.fake import make_model
from baselines.cost.meter import Meter
from baselines.train.trainers import PairLoss, moved_embeddings

DTYPES = {"fp16": torch.float16, "bf16": torch.bfloat16, "fp32": torch.float32}


@dataclass(frozen=True)
class Model:
    """What has to be known of a model itself. ``trained``: those of the ``parameters`` that have a gradient."""

    parameters: int
    trained: int
    width: int
    moments: int


@dataclass(frozen=True)
class Pass:
    """``forward`` and ``backward``: operations. ``peak``: bytes alive at most, beside weights and their gradients."""

    forward: int
    backward: int
    peak: int


def sizes(kind: str, config: PretrainedConfig) -> Model:
    """The sizes of a model; ``moments``: bytes that Adam keeps after a step, as the trainers' optimizer makes them."""
    return _sizes(kind, _key(config))


def train_pass(kind: str, config: PretrainedConfig, rows: int, tokens: int, precision: str, **loss: Any) -> Pass:
    """Forward and backward of ``rows`` texts of ``tokens`` tokens, gradients of earlier passes being there.

    Args:
        kind: dual (as far as the embeddings: its loss is :func:`baselines.cost.training.contrast`), cross, mlm.
        precision: bf16 (autocast) or fp32.
        loss: a cross-encoder's ``adversarial``, a masked language model's ``mask``: :func:`_loss`.
    """
    return _train_pass(kind, _key(config), rows, tokens, precision, tuple(sorted(loss.items())))


def rank_pass(kind: str, config: PretrainedConfig, rows: int, tokens: int, precision: str) -> Pass:
    """Forward alone, with weights in ``precision``: as `encode` and `rerank` run a trained model."""
    return _rank_pass(kind, _key(config), rows, tokens, precision)


def _key(config: PretrainedConfig) -> str:
    return str(config.to_json_string())


def _model(kind: str, config: str, dtype: torch.dtype = torch.float32) -> Any:
    return make_model(kind, AutoConfig.for_model(**json.loads(config)), dtype)


@functools.cache
def _sizes(kind: str, config: str) -> Model:
    with FakeTensorMode():
        model = _model(kind, config)
        trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
        for parameter in trained:
            parameter.grad = torch.zeros_like(parameter)
        optimizer = torch.optim.AdamW(trained)
        optimizer.step()
        moments = sum(v.nbytes for state in optimizer.state.values() for v in state.values() if torch.is_tensor(v))
        parameters = sum(parameter.numel() for parameter in model.parameters())
        return Model(parameters, sum(each.numel() for each in trained), model.config.hidden_size, moments)


@functools.cache
def _train_pass(
    kind: str, config: str, rows: int, tokens: int, precision: str, loss: tuple[tuple[str, Any], ...]
) -> Pass:
    with FakeTensorMode():
        model = _model(kind, config).train()
        for parameter in model.parameters():
            parameter.grad = torch.zeros_like(parameter)
        return measure(model, kind, rows, tokens, precision, dict(loss))


@functools.cache
def _rank_pass(kind: str, config: str, rows: int, tokens: int, precision: str) -> Pass:
    with FakeTensorMode(), torch.no_grad():
        model = _model(kind, config, DTYPES[precision]).eval()
        with Meter(model.parameters()) as meter:
            model(**_texts(rows, tokens))
        return Pass(meter.flops, 0, meter.peak)


def measure(model: Any, kind: str, rows: int, tokens: int, precision: str, given: dict[str, Any]) -> Pass:
    """What :func:`train_pass` says, of a model at hand: of fake tensors, or of real ones with gradients."""
    known = [*model.parameters(), *model.buffers(), *(p.grad for p in model.parameters() if p.grad is not None)]
    with Meter(known) as meter:
        result = _FORWARD[kind](model, _texts(rows, tokens), _autocast(precision), **given)
        forward = meter.flops
        result.backward(torch.ones_like(result))
        return Pass(forward, meter.flops - forward, meter.peak)


def _texts(rows: int, tokens: int) -> dict[str, torch.Tensor]:
    """Texts of equal lengths, but for a token of padding: attention is that of padded batches."""
    ids = torch.zeros((rows, tokens), dtype=torch.int64)
    mask = torch.ones_like(ids)
    mask[-1, -1] = 0
    return {"input_ids": ids, "attention_mask": mask}


def _autocast(precision: str) -> AbstractContextManager[Any]:
    return torch.autocast("cpu", torch.bfloat16) if precision == "bf16" else nullcontext()


def _vectors(model: Any, texts: dict[str, Any], autocast: Any, pooling: str) -> torch.Tensor:
    """As far as the embeddings."""
    pool = Pooling(model.config.hidden_size, pooling)
    with autocast:
        states = model(**texts).last_hidden_state
        vectors: torch.Tensor = pool({**texts, "token_embeddings": states})["sentence_embedding"]
    return vectors.float()


class _Scores(nn.Module):
    """A classifier as :class:`PairLoss` wants it: what a CrossEncoder is, without tokenizer and files."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.model, self.num_labels = model, model.config.num_labels

    def forward(self, texts: dict[str, Any]) -> dict[str, torch.Tensor]:
        return {"scores": self.model(**texts).logits}


def _pair_loss(model: Any, texts: dict[str, Any], autocast: Any, adversarial: float) -> torch.Tensor:
    """The loss of as many pairs; with ``adversarial`` the second of the two that a step has."""
    loss: Any = PairLoss(_Scores(model))
    labels = torch.zeros(len(texts["input_ids"]))
    moved: AbstractContextManager[Any] = nullcontext()
    if adversarial:
        model.eval()
        with autocast:
            first = loss([texts], labels)
        model.train()
        moved = moved_embeddings(model.get_input_embeddings().weight, first, adversarial)
    with moved, autocast:
        found: torch.Tensor = loss([texts], labels)
    return found


def _mask_loss(model: Any, texts: dict[str, Any], autocast: Any, mask: float) -> torch.Tensor:
    """The masked tokens' loss. Which ones they are, fake tensors do not know: the first ``mask`` of all."""
    with autocast:
        states = model.base_model(**texts).last_hidden_state
        masked = states.flatten(0, 1)[: round(mask * texts["input_ids"].numel())]
        guesses = model.cls(masked).float()
    labels = torch.zeros(len(masked), dtype=torch.int64)
    return nn.functional.cross_entropy(guesses, labels)


_FORWARD: dict[str, Any] = {"dual": _vectors, "cross": _pair_loss, "mlm": _mask_loss}
