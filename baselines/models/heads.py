"""The heads of models, which compute in fp32 whatever the encoder below them computes in.

A head turns hundreds of numbers into one score or one vector. In 16 bits, scores that differ round to the same number.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch
from sentence_transformers.base.modules import InputModule, Router, Transformer
from torch import nn
from transformers import PreTrainedModel


@contextlib.contextmanager
def heads_in_fp32(model: nn.Module) -> Iterator[None]:
    """Convert a model inside, which is in fp32: its heads stay as they were, and take what the encoder gives."""
    heads = list(_heads(model))
    kept = [{name: each.clone() for name, each in head.state_dict().items()} for head in heads]
    yield
    for head, weights in zip(heads, kept, strict=True):
        # Assigned, not copied: a language model's head may share its matrix with the embeddings.
        head.load_state_dict(weights, assign=True)
        head.float()  # buffers that are no part of the state
    widen_heads(model)


def widen_heads(model: nn.Module) -> None:
    """Have a model's heads, whose weights are in fp32, compute in fp32 whatever they are given, under autocast too."""
    for head in _heads(model):
        vars(head)["forward"] = functools.partial(_in_fp32, head.forward)


def _heads(model: nn.Module) -> Iterator[nn.Module]:
    """The modules of a sentence-transformers model that follow its encoder: poolers, projections, classifiers."""
    for module in model.children():
        if isinstance(module, Router):
            for tower in module.sub_modules.values():
                yield from _heads(tower)
        elif isinstance(module, Transformer) and isinstance(module.model, PreTrainedModel):
            encoder = module.model.base_model
            if encoder is not module.model:
                yield from (each for each in module.model.children() if each is not encoder)
            if isinstance(pooler := getattr(encoder, "pooler", None), nn.Module):
                yield pooler
        elif not isinstance(module, InputModule):
            yield module


def _in_fp32(forward: Callable[..., Any], *args: Any, **given: Any) -> Any:
    device = next(_tensors([*args, *given.values()])).device.type
    with torch.autocast(device, enabled=False):
        return forward(*map(_widened, args), **{name: _widened(value) for name, value in given.items()})


def _tensors(values: Iterable[Any]) -> Iterator[torch.Tensor]:
    for value in values:
        if torch.is_tensor(value):
            yield value
        elif isinstance(value, dict):
            yield from _tensors(value.values())


def _widened(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _widened(each) for name, each in value.items()}
    return value.float() if torch.is_tensor(value) and value.is_floating_point() else value
