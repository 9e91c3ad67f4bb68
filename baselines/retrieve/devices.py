"""Devices and precision: which devices there are, work spread over them, models converted with their heads in fp32.

A head turns hundreds of numbers into one score or one vector. In 16 bits, scores that differ round to the same number.
"""

from __future__ import annotations

import argparse
import functools
import multiprocessing
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
from sentence_transformers.base.modules import InputModule, Router, Transformer
from torch import nn
from torch.utils import _pytree as pytree
from transformers import PreTrainedModel

from builders.core.errors import InputError
from builders.core.jobs import in_order, process_pool
from builders.core.limits import usable_cores

DTYPES = {"fp32": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16}
Task = TypeVar("Task")
Result = TypeVar("Result")


@dataclass(frozen=True)
class Work:
    """Devices and batch sizes of a computation. They change no result beyond its last digits.

    Attributes:
        devices: as :func:`devices_of` gives them: a process each.
        dtype: fp32, fp16 or bf16 (:func:`dtype_of`).
        batch_tokens: of a batch, padding included.
        tokenizers: processes a device that tokenise.
        parallel: questions at a time to a model behind an endpoint.
    """

    devices: tuple[str, ...]
    dtype: str
    batch_tokens: int = 384 * 32
    tokenizers: int = 0
    parallel: int = 4


def work_of(args: argparse.Namespace) -> Work:
    """The work that the options of :data:`.settings.DEVICE` and ``PAIRS`` ask for."""
    devices = tuple(devices_of(args.device))
    tokens = args.batch_tokens or batch_tokens(devices[0])
    own = args.tokenizers
    if own is None:  # on a CPU the model needs the cores; 8 processes tokenise more than a card encodes
        own = 0 if devices[0] == "cpu" else min(8, max(1, usable_cores() // len(devices)))
    return Work(devices, dtype_of(args.dtype, devices[0]), tokens, own)


def devices_of(wanted: str | None) -> list[str]:
    """The devices that ``--device`` names. Raises :class:`InputError` for one that is not there."""
    gpus = [f"cuda:{number}" for number in range(torch.cuda.device_count())]
    if wanted is None or wanted == "cuda":
        if wanted and not gpus:
            raise InputError("--device cuda: this machine has no GPU that PyTorch can use; expected cpu")
        return gpus or ["cpu"]
    found = wanted.split(",")
    for name in found:
        if name != "cpu" and name not in gpus:
            have = ", ".join(["cpu", *gpus])
            raise InputError(f"--device {wanted}: no device {name!r}; this machine has {have}")
    return found


def dtype_of(wanted: str, device: str) -> str:
    """Return the precision (fp32, fp16 or bf16) that ``--dtype`` means on a device.

    ``auto`` is fp32 on every CPU, whatever its units, so that every CPU gives the same figures.
    """
    return wanted if wanted != "auto" else "fp32" if device == "cpu" else "fp16"


def computes_bf16(device: str) -> bool:
    """True if the device is a GPU with units for bf16: trainings use them unless the recipe says otherwise."""
    return device.startswith("cuda") and bool(torch.cuda.is_bf16_supported(including_emulation=False))


def batch_tokens(device: str) -> int:
    """Tokens, padding included, that a batch may have: 256 texts of 384 tokens on a GPU, 32 on a CPU."""
    return 384 * (32 if device == "cpu" else 256)


def over_devices(
    function: Callable[[Task, str], Result], tasks: Iterable[Task], devices: Sequence[str]
) -> Iterator[Result]:
    """``function(task, device)`` for every task, in their order: here for one device, else a process a device.

    ``function`` is a module's; it keeps the model that it opened (``functools.lru_cache``).
    """
    with process_pool(len(devices)) as pool:
        call = functools.partial(_on_own_device, function, tuple(devices))
        yield from in_order(pool, call, tasks, ahead=2 * len(devices))


def _on_own_device(function: Callable[[Task, str], Result], devices: tuple[str, ...], task: Task) -> Result:
    # The processes of a pool are numbered one after the other, at the end of their names; here it is MainProcess.
    number = multiprocessing.current_process().name.rpartition("-")[2]
    return function(task, devices[int(number) % len(devices) if number.isdecimal() else 0])


def compile_transformers(model: nn.Module) -> None:
    """Compile the transformers of a model in place, once for batches of any shape. The weights keep their names.

    torch.compile takes about a minute at the first batches, so it pays for long work on a GPU alone.
    """
    for module in [model] if isinstance(model, PreTrainedModel) else model.children():
        if isinstance(module, PreTrainedModel):
            # Not module.compile(): sentence-transformers calls forward itself.
            module.forward = torch.compile(module.forward, dynamic=True)  # type: ignore[method-assign]
        else:
            compile_transformers(module)


def moved(model: Any, device: str, dtype: str) -> Any:
    """The model, which is in fp32, on a device, in a precision, for use, not for training. Its heads stay in fp32."""
    heads = [] if dtype == "fp32" else list(_heads(model))
    weights = [{name: each.clone() for name, each in head.state_dict().items()} for head in heads]
    model.to(dtype=DTYPES[dtype])
    for head, kept in zip(heads, weights, strict=True):
        # Assigned, not copied: a language model's head may share its matrix with the embeddings.
        head.load_state_dict(kept, assign=True)
        head.float()  # buffers that are no part of the state
    if heads:
        widen_heads(model)
    return model.to(device=device).eval()


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
    tensors = [each for each in pytree.tree_leaves((args, given)) if torch.is_tensor(each)]
    args, given = pytree.tree_map(
        lambda each: each.float() if torch.is_tensor(each) and each.is_floating_point() else each, (args, given)
    )
    with torch.autocast(tensors[0].device.type, enabled=False):
        return forward(*args, **given)
