"""Opening models: one clear error where it fails, the precision they run in, what they are known by."""

from __future__ import annotations

import contextlib
import hashlib
import json
from pathlib import Path
from typing import Any

import torch
from msgspec import Struct
from sentence_transformers import CrossEncoder, SentenceTransformer
from sentence_transformers.base.modules import Router, Transformer
from sentence_transformers.cross_encoder.modules import LogitScore
from sentence_transformers.sentence_transformer.modules import StaticEmbedding
from transformers.utils.logging import disable_progress_bar

from baselines.models.applied import apply_settings
from baselines.models.heads import heads_in_fp32
from baselines.models.libraries import model_commit
from baselines.models.opening import (
    MayLack,
    check_length,
    check_reading,
    check_settings,
    check_tokenizers,
    opening,
    positions,
    unused_pooler,
)
from baselines.models.settings import ModelSettings
from builders.core.errors import InputError
from builders.core.typed import read_json

DTYPES = {"fp32": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16}


def open_dual(
    name: str, device: str = "cpu", dtype: str = "fp32", max_length: int | None = None, revision: str = ""
) -> SentenceTransformer:
    """A dual-encoder: a hub name or a directory. Raises :class:`InputError`.

    ``max_length``: tokens that a text is cut to, prompt included, where the model would keep more. ``revision``: of a
    model on the hub (:func:`commit_of`).
    """
    return open_encoder(ModelSettings(name, revision=revision, max_length=max_length), device, dtype)


def open_encoder(settings: ModelSettings, device: str = "cpu", dtype: str = "fp32") -> SentenceTransformer:
    """A dual-encoder, used as ``settings`` say. Raises :class:`InputError`."""
    model = open_as(SentenceTransformer, settings, unused_pooler)
    apply_settings(model, settings)
    if model.similarity_fn_name not in ("cosine", "dot"):
        raise InputError(f"compares by {model.similarity_fn_name!r}; expected cosine or dot", path=settings.name)
    shorten(model, settings.max_length)
    check_reading(model, settings)
    return moved(model, device, dtype)


def open_cross(
    name: str, device: str = "cpu", dtype: str = "fp32", max_length: int | None = None, revision: str = ""
) -> CrossEncoder:
    """A cross-encoder with one score, or with the two of (no, yes): a hub name or a directory.

    Raises :class:`InputError`.

    ``max_length``: tokens of query and passage together; the model's own where None. ``revision``: as of
    :func:`open_dual`.
    """
    return moved(open_pairs(ModelSettings(name, revision=revision, max_length=max_length)), device, dtype)


def open_pairs(settings: ModelSettings) -> CrossEncoder:
    """A cross-encoder, in fp32 on the CPU, of the length that ``settings`` say. Raises :class:`InputError`."""
    name, max_length = settings.name, settings.max_length
    model = open_as(CrossEncoder, settings, lambda *_: False)
    if model.num_labels not in (1, 2):
        raise InputError(f"gives {model.num_labels} scores a pair; expected a cross-encoder of one or two", path=name)
    if max_length is not None:
        check_length(f"--max-length {max_length}", max_length, model, model.tokenizer, texts=2)
        model.max_seq_length = max_length
    elif (limit := positions(model)) is not None and (model.max_seq_length or limit) > limit:
        model.max_seq_length = limit
    if not any(isinstance(module, LogitScore) for module in model):  # of a language model the form is not set yet
        check_reading(model, settings)
    return model


def commit_of(name: str, revision: str = "", option: str = "--revision") -> str:
    """The commit that a model on the hub stands for at ``revision`` (a commit, tag or branch; empty: its main branch).

    Empty where ``name`` is a directory. Raises :class:`InputError` within seconds where neither the hub nor the
    libraries' cache has it; the libraries would ask, file by file, for minutes. ``option``: that gave the revision.
    """
    if revision and Path(name).is_dir():
        raise InputError(f"is a directory; {option} is of models on the hub", path=name)
    return model_commit(name, revision, "a directory needs no hub") or ""


def open_as(kind: Any, settings: ModelSettings, may_lack: MayLack) -> Any:
    """A model as one of sentence-transformers' classes, on the CPU, in fp32. Raises :class:`InputError`."""
    disable_progress_bar()  # type: ignore[no-untyped-call]
    name, commit = settings.name, commit_of(settings.name, settings.revision) or None
    with opening(f"{name}: cannot be opened as a {kind.__name__}", may_lack, name), torch.random.fork_rng(devices=[]):
        _expect_kind(kind.__name__, Path(name))
        # The fingerprint is of all weights: those that may be missing get the same random numbers every time, and
        # all are in fp32 first, whatever the checkpoint was saved in.
        torch.manual_seed(0)
        model = kind(
            name,
            device="cpu",
            revision=commit,
            model_kwargs={"dtype": torch.float32},
            trust_remote_code=settings.trust_remote_code,
        )
        check_settings(model, name)
        check_tokenizers(model, name)
        return model


class _Saved(Struct):
    """What is asked of ``config_sentence_transformers.json``."""

    model_type: str | None = None


def _expect_kind(kind: str, folder: Path) -> None:
    """A local checkpoint of the other kind would be converted: with a random classifier, or with none."""
    config = folder / "config_sentence_transformers.json"
    if config.is_file() and (saved := read_json(config, _Saved).model_type or kind) != kind:
        raise InputError(f"holds a {saved}; expected a {kind}", path=folder)


def shorten(model: torch.nn.Module, max_length: int | None) -> None:
    """Cut texts at ``max_length`` tokens, and at the model's positions, in every tower."""
    limits = [limit for limit in (max_length, positions(model)) if limit is not None]
    for module in model.modules() if limits else ():
        _cut_at(module, min(limits))


def _cut_at(module: torch.nn.Module, max_length: int) -> None:
    if isinstance(module, Transformer):
        module.max_seq_length = min(module.max_seq_length or max_length, max_length)
        for name in ("query_length", "document_length"):
            if (own := getattr(module, name)) is not None:
                setattr(module, name, min(own, max_length))
    elif isinstance(module, StaticEmbedding):
        module.tokenizer.enable_truncation(max_length)


def moved(model: Any, device: str, dtype: str) -> Any:
    """The model on a device, in a precision, for use and not for training. Its heads stay in fp32."""
    with contextlib.nullcontext() if dtype == "fp32" else heads_in_fp32(model):
        model.to(dtype=DTYPES[dtype])
    return model.to(device=device).eval()


def described(settings: ModelSettings, model: Any, dtype: str) -> dict[str, Any]:
    """A model that is open, in fp32, for a manifest: what decides what it gives, without paths of this machine."""
    about: dict[str, Any] = {"name": shown_name(settings.name), "fingerprint": fingerprint(model)}
    about["computed_in"] = dtype
    if settings.max_length is not None:
        about["max_length"] = settings.max_length
    if settings.revision:
        about["commit"] = settings.revision
    if said := settings.said():
        about["settings"] = said
    return about


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
    if (most := getattr(model, "max_active_dims", None)) is not None:
        settings["max_active_dims"] = most
    if routes := [module for module in model if isinstance(module, Router)]:
        settings["routes"] = [_routes(router) for router in routes]
    digest = hashlib.sha256(json.dumps(settings, sort_keys=True, default=str).encode())
    for name, tensor in sorted(model.state_dict().items()):
        digest.update(f"{name} {tuple(tensor.shape)}".encode())
        digest.update(tensor.detach().cpu().contiguous().view(torch.uint8).reshape(-1).numpy().data)
    return digest.hexdigest()


def _routes(router: Router) -> dict[str, list[Any]]:
    """What the towers of a model do beside their weights: settings, and how each reads its texts."""
    found: dict[str, list[Any]] = {}
    for route, modules in router.sub_modules.items():
        found[route] = [module.get_config_dict() for module in modules if hasattr(module, "get_config_dict")]
        tokenizer = getattr(modules[0], "tokenizer", None)
        backend: Any = getattr(tokenizer, "backend_tokenizer", tokenizer)
        if hasattr(backend, "to_str"):
            length = getattr(modules[0], "max_seq_length", None)
            # Each call leaves its own truncation and padding there.
            found[route].append({**json.loads(backend.to_str()), "truncation": length, "padding": None})
    return found
