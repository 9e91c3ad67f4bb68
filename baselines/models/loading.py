"""Opening models: one clear error where it fails, the device and the precision they run in, what they are known by."""

from __future__ import annotations

import argparse
import contextlib
import functools
import hashlib
import json
import tempfile
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, TypeVar

import torch
from filelock import BaseFileLock, FileLock, Timeout
from sentence_transformers import CrossEncoder, SentenceTransformer
from transformers.utils.logging import disable_progress_bar

from builders.common.command import InputError
from builders.common.jobs import in_order, process_pool

DTYPES = {"fp32": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16}
Task = TypeVar("Task")
Result = TypeVar("Result")


def add_device(parser: argparse.ArgumentParser) -> None:
    """``--device`` and ``--dtype``, for every command that runs a model."""
    parser.add_argument(
        "--device",
        metavar="D[,D...]",
        help="cpu, cuda, cuda:1, or several with commas: a process each (default: every GPU there is, else cpu)",
    )
    parser.add_argument(
        "--dtype", choices=["auto", *DTYPES], default="auto", help="the model's (auto: fp16 on a GPU, fp32 on a CPU)"
    )


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
    """The name (of :data:`DTYPES`) of the precision that ``--dtype`` means on a device."""
    return wanted if wanted != "auto" else "fp32" if device == "cpu" else "fp16"


def open_dual(name: str, device: str = "cpu", dtype: str = "fp32") -> SentenceTransformer:
    """A dual-encoder: a hub name or a directory. Raises :class:`InputError`."""
    model = _open(SentenceTransformer, name)
    if model.similarity_fn_name not in ("cosine", "dot"):
        raise InputError(f"compares by {model.similarity_fn_name!r}; expected cosine or dot", path=name)
    return _placed(model, device, dtype)


def open_cross(name: str, device: str = "cpu", dtype: str = "fp32", max_length: int | None = None) -> CrossEncoder:
    """A cross-encoder with one score: a hub name or a directory. Raises :class:`InputError`.

    ``max_length``: tokens of query and passage together; the model's own where None.
    """
    model = _open(CrossEncoder, name)
    if model.num_labels != 1:
        raise InputError(f"gives {model.num_labels} scores a pair; expected a cross-encoder of one", path=name)
    if max_length is not None:
        model.max_seq_length = max_length
    return _placed(model, device, dtype)


def _open(kind: Any, name: str) -> Any:
    # A local checkpoint of the other kind would be converted: with a random classifier, or with none.
    config = Path(name) / "config_sentence_transformers.json"
    if config.is_file():
        with contextlib.suppress(ValueError, AttributeError):
            saved = json.loads(config.read_text(encoding="utf-8")).get("model_type", kind.__name__)
            if saved != kind.__name__:
                raise InputError(f"holds a {saved}; expected a {kind.__name__}", path=name)
    disable_progress_bar()  # type: ignore[no-untyped-call]
    try:
        # fp32 first, whatever the checkpoint was saved in: the fingerprint is the same on every machine.
        return kind(name, device="cpu", model_kwargs={"dtype": torch.float32})
    except (OSError, ValueError, KeyError, RuntimeError, TypeError) as error:
        reason = next(iter(str(error).strip().splitlines()), "") or type(error).__name__
        raise InputError(f"cannot be opened as a {kind.__name__} ({reason})", path=name) from error


def _placed(model: Any, device: str, dtype: str) -> Any:
    return model.to(device=device, dtype=DTYPES[dtype]).eval()


def shown_name(name: str) -> str:
    """A model's name for files that are passed on: hub names as they are, of a directory its own name alone."""
    path = Path(name)
    return path.resolve().name if path.exists() else name


def fingerprint(model: Any) -> str:
    """SHA-256 over what decides a model's output: weights (in fp32), vocabulary, modules' settings, prompts.

    Of a model in fp32 as :func:`open_dual` and :func:`open_cross` give it by default.
    """
    settings = {
        "modules": [module.get_config_dict() for module in model if hasattr(module, "get_config_dict")],
        "prompts": model.prompts,
        "default_prompt": model.default_prompt_name,
        "max_length": model.max_seq_length,
        "similarity": getattr(model, "similarity_fn_name", None),
        "truncate": getattr(model, "truncate_dim", None),
        "vocabulary": sorted(model.tokenizer.get_vocab().items()),
    }
    digest = hashlib.sha256(json.dumps(settings, sort_keys=True, default=str).encode())
    for name, tensor in sorted(model.state_dict().items()):
        digest.update(f"{name} {tuple(tensor.shape)}".encode())
        digest.update(tensor.detach().cpu().contiguous().view(torch.uint8).reshape(-1).numpy().data)
    return digest.hexdigest()


def over_devices(
    function: Callable[[Task, str], Result], tasks: Iterable[Task], devices: list[str]
) -> Iterator[Result]:
    """``function(task, device)`` for every task, in their order: here for one device, else a process a device.

    ``function`` is a module's; it keeps the model that it opened (``functools.lru_cache``).
    """
    if len(devices) == 1:
        yield from (function(task, devices[0]) for task in tasks)
        return
    with tempfile.TemporaryDirectory() as locks, process_pool(len(devices)) as pool:
        call = functools.partial(_on_own_device, function, tuple(devices), Path(locks))
        yield from in_order(pool, call, tasks, ahead=2 * len(devices))


def _on_own_device(
    function: Callable[[Task, str], Result], devices: tuple[str, ...], locks: Path, task: Task
) -> Result:
    return function(task, _own_device(devices, locks))


_held: list[BaseFileLock] = []


@functools.lru_cache(maxsize=1)
def _own_device(devices: tuple[str, ...], locks: Path) -> str:
    """A device that no other process has taken, by locking its file; it is this process's until it ends."""
    for number, device in enumerate(devices):
        lock = FileLock(locks / f"device-{number}")
        try:
            lock.acquire(timeout=0)
        except Timeout:
            continue
        _held.append(lock)
        return device
    raise RuntimeError("more processes than devices")
