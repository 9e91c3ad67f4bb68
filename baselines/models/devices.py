"""The devices that models run on: which there are, what they compute in, and work spread over them, a process each."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import TypeVar

import torch
from filelock import BaseFileLock, FileLock, Timeout
from transformers import PreTrainedModel

from builders.core.errors import InputError
from builders.core.files import temporary_folder
from builders.core.jobs import in_order, process_pool
from builders.core.limits import usable_cores

Task = TypeVar("Task")
Result = TypeVar("Result")


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
    if wanted != "auto":
        return wanted
    return "fp32" if device == "cpu" else "fp16"


def computes_bf16(device: str) -> bool:
    """True if the device is a GPU with units for bf16: trainings use them unless the recipe says otherwise."""
    return device.startswith("cuda") and bool(torch.cuda.is_bf16_supported(including_emulation=False))


def compile_transformers(model: torch.nn.Module) -> None:
    """Compile the transformers of a model in place, once for batches of any shape. The weights keep their names.

    torch.compile takes about a minute at the first batches, so it pays for long work on a GPU alone.
    """
    for module in [model] if isinstance(model, PreTrainedModel) else model.children():
        if isinstance(module, PreTrainedModel):
            # Not module.compile(): sentence-transformers calls forward itself.
            module.forward = torch.compile(module.forward, dynamic=True)  # type: ignore[method-assign]
        else:
            compile_transformers(module)


def batch_tokens(device: str) -> int:
    """Tokens, padding included, that a batch may have: 256 texts of 384 tokens on a GPU, 32 on a CPU."""
    return 384 * (32 if device == "cpu" else 256)


def tokenizers(devices: list[str]) -> int:
    """Processes a device that tokenise for it: its share of the cores, at most 8; 0 (a thread) on a CPU.

    On a CPU the model needs the cores. Eight tokenise about 7,000 passages a second: more than a card encodes.
    """
    return 0 if devices[0] == "cpu" else min(8, max(1, usable_cores() // len(devices)))


def over_devices(
    function: Callable[[Task, str], Result], tasks: Iterable[Task], devices: list[str]
) -> Iterator[Result]:
    """``function(task, device)`` for every task, in their order: here for one device, else a process a device.

    ``function`` is a module's; it keeps the model that it opened (``functools.lru_cache``).
    """
    if len(devices) == 1:
        yield from (function(task, devices[0]) for task in tasks)
        return
    with temporary_folder() as locks, process_pool(len(devices)) as pool:
        call = functools.partial(_on_own_device, function, tuple(devices), locks)
        yield from in_order(pool, call, tasks, ahead=2 * len(devices))


def _on_own_device(
    function: Callable[[Task, str], Result], devices: tuple[str, ...], locks: Path, task: Task
) -> Result:
    device, _ = _own_device(devices, locks)
    return function(task, device)


@functools.lru_cache(maxsize=1)
def _own_device(devices: tuple[str, ...], locks: Path) -> tuple[str, BaseFileLock]:
    """A device that no other process has taken, and the lock that says so: this process's until it ends."""
    for number, device in enumerate(devices):
        lock = FileLock(locks / f"device-{number}")
        try:
            lock.acquire(timeout=0)
        except Timeout:
            continue
        return device, lock
    raise RuntimeError("more processes than devices")
