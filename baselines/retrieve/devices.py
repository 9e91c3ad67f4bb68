"""Devices and precision: find devices, distribute tasks over devices, and convert models to 16 bits with fp32 heads.

Heads stay in fp32, because in 16 bits different scores would round to the same number.
"""

import functools
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import torch
from sentence_transformers.base.modules import InputModule, Router, Transformer
from torch import nn
from torch.utils import _pytree as pytree
from transformers import PreTrainedModel

from baselines.retrieve.backends import OPENVINO, expect_openvino, use_openvino
from baselines.retrieve.clusters import ModelCluster, cluster_workers
from builders.core.errors import InputError
from builders.core.jobs import in_order, process_pool
from builders.core.limits import usable_cores

DTYPES = {"fp32": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16}
_TEXT_TOKENS = 384  # tokens of a text, by which the default sizes of batches are defined
_TEXTS_ON_CPU = 32
_TEXTS_ON_GPU = 256
_MOST_TOKENIZERS = 8  # tokenising processes that keep a GPU busy
_process_device = ""  # the device of this worker process; "" outside a pool
Task = TypeVar("Task")
Result = TypeVar("Result")


@dataclass(frozen=True)
class Work:
    """Devices, precision and batch sizes of a computation. Only ``dtype`` changes more than a result's last digits.

    Attributes:
        devices: names from :func:`devices_of`. Each of several devices has a process.
        dtype: precision from :func:`dtype_of`.
        batch_tokens: tokens per batch, padding included (default: 32 texts of 384 tokens).
        tokenizers: number of tokenising processes per device (default: 0, a thread tokenises).
        parallel: simultaneous requests to a model behind an endpoint (default: 4).
        cluster: the cluster that runs the tasks, on devices of the kind of ``devices``. None for this machine.
    """

    devices: tuple[str, ...]
    dtype: str
    batch_tokens: int = _TEXT_TOKENS * _TEXTS_ON_CPU
    tokenizers: int = 0
    parallel: int = 4
    cluster: ModelCluster | None = None


def work_of(
    device: str | None = None,
    dtype: str = "auto",
    batch_tokens: int | None = None,
    tokenizers: int | None = None,
    backend: str = "torch",
    cluster: ModelCluster | None = None,
) -> Work:
    """Return the work that the options of these names select. None is the default of this machine.

    With a cluster, this machine's devices determine the kind of the workers' devices. Raises :class:`InputError` for a
    device that the machine lacks, or a precision that the backend lacks.
    """
    if cluster is not None and device not in (None, "cpu", "cuda"):
        raise InputError(f"--device {device}: expected cpu, or cuda (a GPU for each task), with --engine ray")
    devices = tuple(devices_of(device))
    if tokenizers is None:
        tokenizers = _default_tokenizers(devices)
    return Work(
        devices,
        dtype_of(dtype, devices[0], backend),
        batch_tokens=batch_tokens or default_batch_tokens(devices[0]),
        tokenizers=tokenizers,
        cluster=cluster,
    )


def _default_tokenizers(devices: Sequence[str]) -> int:
    """Return the default number of tokenising processes per device."""
    if devices[0] == "cpu":
        return 0  # all cores are for the model
    cores_per_device = usable_cores() // len(devices)
    return min(_MOST_TOKENIZERS, max(1, cores_per_device))


def devices_of(device_option: str | None) -> list[str]:
    """Return the names of the devices that ``--device`` selects, for example cpu or cuda:0.

    None selects all GPUs, or the CPU of a machine without GPUs. "cuda" selects all GPUs. Other values are names, joined
    by commas. Raises :class:`InputError` for a device that the machine lacks.
    """
    gpus = [f"cuda:{number}" for number in range(torch.cuda.device_count())]
    if device_option is None:
        return gpus or ["cpu"]
    if device_option == "cuda":
        if not gpus:
            raise InputError("--device cuda: this machine has no GPU that PyTorch can use; expected cpu")
        return gpus
    devices = device_option.split(",")
    for device in devices:
        if device != "cpu" and device not in gpus:
            machine_devices = ", ".join(["cpu", *gpus])
            raise InputError(f"--device {device_option}: no device {device!r}; this machine has {machine_devices}")
    return devices


def dtype_of(dtype_option: str, device: str, backend: str = "torch") -> str:
    """Return the precision that ``--dtype`` selects on a device: a key of ``DTYPES``, or openvino-fp32, -bf16 or -int8.

    ``auto`` is fp16 on a GPU and fp32 on a CPU. It is fp32 even on CPUs with bf16 units, so that scores do not depend
    on the CPU. Raises :class:`InputError` for a precision that the backend (torch or openvino) lacks.
    """
    dtype = dtype_option
    if dtype == "auto":
        dtype = "fp32" if device == "cpu" else "fp16"
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
    text_count = _TEXTS_ON_CPU if device == "cpu" else _TEXTS_ON_GPU
    return _TEXT_TOKENS * text_count


def over_devices(
    function: Callable[[Task, str], Result], tasks: Iterable[Task], work: Work, work_folder: Path
) -> Generator[Result, None, None]:
    """Yield ``function(task, device)`` for every task, in the tasks' order.

    Each of several devices has a process. With one device, this process runs the tasks. If no process can start
    (:func:`.jobs.prepare_processes`), this process runs all tasks on the first device. With a cluster, its machines run
    the tasks. ``function`` must be importable, and should keep its opened model, for example by
    :class:`.jobs.LastResult`. Tasks write their files to ``work_folder``, which all machines of a cluster must share.
    """
    devices = work.devices
    if work.cluster is not None:
        with cluster_workers(work.cluster, devices[0], work_folder) as (worker_device, workers):
            run_task = functools.partial(_run_on_device, function, worker_device)
            yield from in_order(workers, run_task, tasks, ahead=2 * workers.worker_count)
        return
    with process_pool(len(devices), _set_process_device, devices) as pool:
        run_task = functools.partial(_run_on_device, function, devices[0])
        yield from in_order(pool, run_task, tasks, ahead=2 * len(devices))


def _set_process_device(device: str) -> None:
    """Give this worker process its device for all of its tasks."""
    global _process_device
    _process_device = device


def _run_on_device(function: Callable[[Task, str], Result], only_device: str, task: Task) -> Result:
    """Return ``function(task, device)`` for the device of this process: ``only_device`` outside a pool."""
    return function(task, _process_device or only_device)


def compile_transformers(model: nn.Module) -> None:
    """Compile the layers of a model's transformers in place, for batches of any shape. The names of weights stay.

    The layers of a transformer have the same code, so PyTorch compiles it once, and not once per layer. The first
    batches take about a minute longer, so compilation pays only for long work on a GPU.
    """
    if isinstance(model, nn.ModuleList):
        for layer in model:
            layer.compile(dynamic=True)
        return
    for module in model.children():
        compile_transformers(module)


def move_model(model: Any, device: str, dtype: str) -> Any:
    """Convert an fp32 model on the CPU to ``dtype``, move it to a device, and return it in evaluation mode.

    The heads (:func:`find_heads`) stay in fp32. ``dtype`` is from :func:`dtype_of`. With a precision of OpenVINO, the
    model stays an fp32 model on the CPU, and OpenVINO runs its transformers.
    """
    if dtype.startswith(OPENVINO):
        use_openvino(model.eval(), dtype.removeprefix(OPENVINO))
        return model
    # Save the heads' weights in fp32 before the whole model is converted. With a head in bf16, a re-ranker of the demo
    # had 639 ties among 687 scores, with a head in fp32 none.
    heads: list[nn.Module] = []
    if dtype != "fp32":
        heads = list(find_heads(model))
    head_weights = [_copy_weights(head) for head in heads]
    model.to(dtype=DTYPES[dtype])
    for head, weights in zip(heads, head_weights, strict=True):
        # assign=True, because a language model's head may share the matrix of embeddings, which must stay in 16 bits.
        head.load_state_dict(weights, assign=True)
        head.float()  # converts buffers that the weights lack
    if heads:
        widen_heads(model)
    return model.to(device=device).eval()


def _copy_weights(module: nn.Module) -> dict[str, torch.Tensor]:
    return {name: tensor.clone() for name, tensor in module.state_dict().items()}


def widen_heads(model: nn.Module) -> None:
    """Let a model's fp32 heads compute in fp32, even for 16-bit inputs and under autocast."""
    for head in find_heads(model):
        # PyTorch's hooks run before and after a module, but autocast must be off around the computation itself.
        vars(head)["forward"] = functools.partial(_compute_in_fp32, head.forward)


def find_heads(model: nn.Module) -> Iterator[nn.Module]:
    """Yield the modules of a sentence-transformers model that follow its encoder: poolers, projections, classifiers.

    The towers of a router are searched, too.
    """
    for module in model.children():
        if isinstance(module, Router):
            for tower in module.sub_modules.values():
                yield from find_heads(tower)
        elif isinstance(module, Transformer) and isinstance(module.model, PreTrainedModel):
            encoder = module.model.base_model
            if encoder is not module.model:
                # A model with a head, for example BertForSequenceClassification.
                for child in module.model.children():
                    if child is not encoder:
                        yield child
            pooler = getattr(encoder, "pooler", None)
            if isinstance(pooler, nn.Module):
                yield pooler
        elif not isinstance(module, InputModule):
            yield module


def _compute_in_fp32(forward: Callable[..., Any], *arguments: Any, **options: Any) -> Any:
    """Call ``forward`` with all floating-point tensors in the arguments, also nested ones, in 32 bits."""
    leaves = pytree.tree_leaves((arguments, options))
    first_tensor = next(leaf for leaf in leaves if torch.is_tensor(leaf))
    arguments, options = pytree.tree_map(_to_fp32, (arguments, options))
    with torch.autocast(first_tensor.device.type, enabled=False):
        return forward(*arguments, **options)


def _to_fp32(value: Any) -> Any:
    if torch.is_tensor(value) and value.is_floating_point():
        return value.float()
    return value
