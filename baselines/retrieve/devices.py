"""Devices and precision: find devices, distribute tasks over devices, and convert models to 16 bits with fp32 heads.

Heads stay in fp32, because in 16 bits different scores would round to the same number.
"""

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

from baselines.retrieve.backends import OPENVINO, expect_openvino, use_openvino
from builders.core.errors import InputError
from builders.core.jobs import in_order, process_pool
from builders.core.limits import usable_cores

DTYPES = {"fp32": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16}
Task = TypeVar("Task")
Result = TypeVar("Result")


@dataclass(frozen=True)
class Work:
    """Devices, precision and batch sizes of a computation. Only ``dtype`` changes more than a result's last digits.

    Attributes:
        devices: names from :func:`devices_of`. Each of several devices has a process.
        dtype: precision from :func:`dtype_of`.
        batch_tokens: tokens per batch, padding included.
        tokenizers: number of tokenising processes per device.
        parallel: simultaneous requests to a model behind an endpoint.
    """

    devices: tuple[str, ...]
    dtype: str
    batch_tokens: int = 384 * 32
    tokenizers: int = 0
    parallel: int = 4


def work_of(
    device: str | None = None,
    dtype: str = "auto",
    batch_tokens: int | None = None,
    tokenizers: int | None = None,
    backend: str = "torch",
) -> Work:
    """Return the work that the options of these names select. None is the default of this machine."""
    devices = tuple(devices_of(device))
    if tokenizers is None:  # a CPU's cores are for the model; 8 processes are enough for a GPU
        tokenizers = 0 if devices[0] == "cpu" else min(8, max(1, usable_cores() // len(devices)))
    return Work(
        devices,
        dtype_of(dtype, devices[0], backend),
        batch_tokens=batch_tokens or default_batch_tokens(devices[0]),
        tokenizers=tokenizers,
    )


def devices_of(wanted: str | None) -> list[str]:
    """Return the devices that ``--device`` selects. Raises :class:`InputError` for a device that the machine lacks."""
    gpus = [f"cuda:{number}" for number in range(torch.cuda.device_count())]
    if wanted is None or wanted == "cuda":
        if wanted and not gpus:
            raise InputError("--device cuda: this machine has no GPU that PyTorch can use; expected cpu")
        return gpus or ["cpu"]
    found = wanted.split(",")
    for name in found:
        if name != "cpu" and name not in gpus:
            raise InputError(f"--device {wanted}: no device {name!r}; this machine has {', '.join(['cpu', *gpus])}")
    return found


def dtype_of(wanted: str, device: str, backend: str = "torch") -> str:
    """Return the precision that ``--dtype`` selects on a device: a key of ``DTYPES``, or openvino-fp32, -bf16 or -int8.

    ``auto`` is fp32 even on CPUs with bf16 units, so that scores do not depend on the CPU.
    """
    dtype = wanted if wanted != "auto" else "fp32" if device == "cpu" else "fp16"
    if backend == "torch":
        if dtype == "int8":
            raise InputError("--dtype int8 needs --backend openvino")
        return dtype
    expect_openvino(dtype, device)
    return OPENVINO + dtype


def computes_bf16(device: str) -> bool:
    """True if the device is a GPU with bf16 units. Training uses bf16 on such a GPU by default."""
    return device.startswith("cuda") and bool(torch.cuda.is_bf16_supported(including_emulation=False))


def default_batch_tokens(device: str) -> int:
    """Return the default tokens per batch, padding included: 256 texts of 384 tokens on a GPU, 32 texts on a CPU."""
    return 384 * (32 if device == "cpu" else 256)


def over_devices(
    function: Callable[[Task, str], Result], tasks: Iterable[Task], devices: Sequence[str]
) -> Iterator[Result]:
    """Yield ``function(task, device)`` for every task, in the tasks' order.

    Each of several devices has a process. With one device, this process runs the tasks. ``function`` must be
    importable, and should keep its opened model, for example by :class:`.jobs.LastResult`.
    """
    with process_pool(len(devices)) as pool:
        call = functools.partial(_on_own_device, function, tuple(devices))
        yield from in_order(pool, call, tasks, ahead=2 * len(devices))


def _on_own_device(function: Callable[[Task, str], Result], devices: tuple[str, ...], task: Task) -> Result:
    # The names of a pool's processes end with a number. Outside a pool, the name is MainProcess.
    number = multiprocessing.current_process().name.rpartition("-")[2]
    return function(task, devices[int(number) % len(devices) if number.isdecimal() else 0])


def compile_transformers(model: nn.Module) -> None:
    """Compile the transformers of a model in place, for batches of any shape. The names of weights do not change.

    The first batches take about a minute longer, so compilation pays only for long work on a GPU.
    """
    for module in [model] if isinstance(model, PreTrainedModel) else model.children():
        if isinstance(module, PreTrainedModel):
            # module.compile() would have no effect, because sentence-transformers calls forward itself.
            module.forward = torch.compile(module.forward, dynamic=True)  # type: ignore[method-assign]
        else:
            compile_transformers(module)


def moved(model: Any, device: str, dtype: str) -> Any:
    """Convert an fp32 model without its heads to ``dtype``, and move the model to a device, in evaluation mode."""
    if dtype.startswith(OPENVINO):
        use_openvino(model.eval(), dtype.removeprefix(OPENVINO))
        return model
    heads = [] if dtype == "fp32" else list(_heads(model))
    weights = [{name: tensor.clone() for name, tensor in head.state_dict().items()} for head in heads]
    model.to(dtype=DTYPES[dtype])
    for head, state in zip(heads, weights, strict=True):
        # assign=True, because a language model's head may share the matrix of embeddings, which must stay in 16 bits.
        head.load_state_dict(state, assign=True)
        head.float()  # converts buffers that the state lacks
    if heads:
        widen_heads(model)
    return model.to(device=device).eval()


def widen_heads(model: nn.Module) -> None:
    """Let a model's fp32 heads compute in fp32, even for 16-bit inputs and under autocast."""
    for head in _heads(model):
        vars(head)["forward"] = functools.partial(_in_fp32, head.forward)


def _heads(model: nn.Module) -> Iterator[nn.Module]:
    """Yield the modules of a sentence-transformers model that follow its encoder: poolers, projections, classifiers."""
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
