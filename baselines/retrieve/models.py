"""Open models: from a folder or the hub, checked, used as their settings say, known by a fingerprint."""

from __future__ import annotations

import hashlib
import json
import math
from pathlib import Path
from typing import Any

import torch
from sentence_transformers import CrossEncoder, SentenceTransformer
from sentence_transformers.base.modules import Normalize, Router, Transformer
from sentence_transformers.cross_encoder.modules import LogitScore
from sentence_transformers.sentence_transformer.modules import Pooling, StaticEmbedding
from tokenizers import processors
from transformers.utils.logging import disable_progress_bar

from baselines.retrieve.detect_kind import expect_saved_as
from baselines.retrieve.devices import moved
from baselines.retrieve.hub_models import commit_of
from baselines.retrieve.model_checks import (
    MayLack,
    check_length,
    check_reading,
    check_settings,
    check_tokenizers,
    opening,
    positions,
    unused_pooler,
)
from baselines.retrieve.settings import ModelSettings
from builders.core.errors import InputError

# encode_query and encode_document take the first of these prompts that the model has.
_PROMPTS = {"query": ["query"], "document": ["document", "passage", "corpus"]}


def open_encoder(settings: ModelSettings, device: str = "cpu", dtype: str = "fp32") -> SentenceTransformer:
    """A dual-encoder, used as ``settings`` say. Raises :class:`InputError`."""
    model = open_as(SentenceTransformer, settings)
    if settings.pooling is not None:
        _set_pooling(model, settings)
    if settings.last_token is not None:
        _end_texts(model, settings)
    if settings.truncate_dim is not None:
        if not 1 <= settings.truncate_dim <= (dim := model.get_embedding_dimension()):
            raise InputError(
                f"has {dim} dimensions; expected at most so many, not {settings.truncate_dim}", path=settings.name
            )
        model.truncate_dim = settings.truncate_dim
    if settings.normalize is False:
        if settings.similarity == "cosine":
            raise InputError(
                "cosine compares embeddings of unit length; expected dot with embeddings as they are",
                path=settings.name,
            )
        for place in reversed(range(len(model))):
            if isinstance(model[place], Normalize):
                del model[place]
    found: SentenceTransformer = finished(model, settings, device, dtype)
    return found


def finished(model: Any, settings: ModelSettings, device: str = "cpu", dtype: str = "fp32") -> Any:
    """An encoder with the similarity and the length of its ``settings``; it is checked, then moved to its device."""
    # The inner product of embeddings of unit length is their cosine: the encoder normalises what is compared by it.
    if settings.normalize:
        model.similarity_fn_name = "cosine"
    elif settings.normalize is False or settings.similarity is not None:
        model.similarity_fn_name = settings.similarity or "dot"
    if model.similarity_fn_name not in ("cosine", "dot"):
        raise InputError(f"compares by {model.similarity_fn_name!r}; expected cosine or dot", path=settings.name)
    shorten(model, settings.max_length)
    check_reading(model, settings)
    return moved(model, device, dtype)


def open_cross(settings: ModelSettings, device: str = "cpu", dtype: str = "fp32") -> CrossEncoder:
    """A cross-encoder with one score, or with the two of (no, yes). Raises :class:`InputError`.

    ``settings.max_length``: tokens of query and passage together. ``settings.query_prompt``: put before every query.
    """
    name, max_length = settings.name, settings.max_length
    model = open_as(CrossEncoder, settings)
    if model.num_labels not in (1, 2):
        raise InputError(f"gives {model.num_labels} scores a pair; expected a cross-encoder of one or two", path=name)
    if max_length is not None:
        check_length(f"--max-length {max_length}", max_length, model, model.tokenizer, texts=2)
        model.max_seq_length = max_length
    elif (limit := positions(model)) is not None and (model.max_seq_length or limit) > limit:
        model.max_seq_length = limit
    if settings.query_prompt is not None:
        model.prompts, model.default_prompt_name = {**model.prompts, "asked": settings.query_prompt}, "asked"
    if not any(isinstance(module, LogitScore) for module in model):  # of a language model the form is not set yet
        check_reading(model, settings)
    found: CrossEncoder = moved(model, device, dtype)
    return found


def open_as(kind: Any, settings: ModelSettings) -> Any:
    """A model as one of sentence-transformers' classes, on the CPU, in fp32. Raises :class:`InputError`."""
    disable_progress_bar()  # type: ignore[no-untyped-call]
    name, commit = settings.name, commit_of(settings.name, settings.revision) or None
    may_lack: MayLack = (lambda *_: False) if kind is CrossEncoder else unused_pooler
    with opening(f"{name}: cannot be opened as a {kind.__name__}", may_lack, name), torch.random.fork_rng(devices=[]):
        expect_saved_as(kind.__name__, Path(name))
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
    if kind is not CrossEncoder:
        _set_prompts(model, settings)
    return model


def expect_no(settings: ModelSettings, what: str, *names: str) -> None:
    """Refuse settings that such a model knows nothing of."""
    for name in names:
        if getattr(settings, name) != getattr(ModelSettings(""), name):
            raise InputError(f"{name}: {what} has none", path=settings.name)


def prompt_of(model: SentenceTransformer, task: str) -> str | None:
    """The prompt before a text of a ``task`` (query or document): in training, encoding and searching alike."""
    name = next((name for name in _PROMPTS[task] if name in model.prompts), model.default_prompt_name)
    return None if name is None else model.prompts.get(name)


def _set_prompts(model: SentenceTransformer, settings: ModelSettings) -> None:
    """Set the prompts of queries and passages. :class:`InputError` for a name that the model has no prompt of."""
    query, passage = settings.query_prompt, settings.passage_prompt
    if query is None and settings.prompt_name:
        if settings.prompt_name not in model.prompts:
            have = ", ".join(map(repr, sorted(model.prompts))) or "none"
            raise InputError(f"has no prompt {settings.prompt_name!r}; its prompts: {have}", path=settings.name)
        query = model.prompts[settings.prompt_name]
    if query is None and passage is None:
        return
    query = prompt_of(model, "query") if query is None else query
    passage = prompt_of(model, "document") if passage is None else passage
    model.prompts = {**model.prompts, "query": query or "", "document": passage or ""}


def _set_pooling(model: SentenceTransformer, settings: ModelSettings) -> None:
    if settings.pooling not in Pooling.POOLING_MODES:
        raise InputError(f"pooling {settings.pooling!r}: expected one of {', '.join(Pooling.POOLING_MODES)}")
    pooled = [module for module in model.modules() if isinstance(module, Pooling)]
    if not pooled:
        raise InputError("pools nothing; expected a model of token embeddings", path=settings.name)
    for module in pooled:
        if not isinstance(module.pooling_mode, str) and len(module.pooling_mode) != 1:
            raise InputError(f"pools by {module.pooling_mode}; only one way can be another", path=settings.name)
        module.pooling_mode = settings.pooling


def _end_texts(model: SentenceTransformer, settings: ModelSettings) -> None:
    """Have every text end with a token: what is pooled by the last token is another vector without it."""
    tokenizer: Any = model.tokenizer
    token = tokenizer.eos_token if settings.last_token == "eos_token" else settings.last_token
    number = None if token is None else tokenizer.get_vocab().get(token)
    if number is None:
        raise InputError(
            f"its tokenizer has no token {token or 'eos_token'!r}, which texts end with", path=settings.name
        )
    if tokenizer("的")["input_ids"][-1:] == [number]:
        return
    backend = tokenizer.backend_tokenizer
    last = processors.TemplateProcessing(single=f"$A {token}", special_tokens=[(token, number)])
    backend.post_processor = processors.Sequence([each for each in (backend.post_processor, last) if each])
    if tokenizer("的")["input_ids"][-1:] != [number]:
        raise InputError(f"its tokenizer cannot be told to end texts with {token!r}", path=settings.name)


def shorten(model: torch.nn.Module, max_length: int | None) -> None:
    """Cut texts at ``max_length`` tokens, and at the model's positions, in every tower."""
    limits = [limit for limit in (max_length, positions(model)) if limit is not None]
    for module in model.modules() if limits else ():
        limit = min(limits)
        if isinstance(module, Transformer):
            module.max_seq_length = min(module.max_seq_length or limit, limit)
            for name in ("query_length", "document_length"):
                if (own := getattr(module, name)) is not None:
                    setattr(module, name, min(own, limit))
        elif isinstance(module, StaticEmbedding):
            module.tokenizer.enable_truncation(limit)


def settings_in_use(model: Any) -> dict[str, Any]:
    """The prompts, lengths, pooling and similarity of an open encoder, as JSON values, for the record of a run.

    None: the kind has none, or no limit. Towers that pool otherwise are both named.
    """
    poolings = [module.pooling_mode for module in model.modules() if isinstance(module, Pooling)]
    named = ["+".join([each] if isinstance(each, str) else each) for each in poolings]
    length = getattr(model, "max_seq_length", None)
    towers = [module for module in model.modules() if isinstance(module, Transformer)]
    own = {
        name: min((each for tower in towers if (each := getattr(tower, name)) is not None), default=None)
        for name in ("query_length", "document_length")
    }
    return {
        "query_prompt": prompt_of(model, "query") or "",
        "passage_prompt": prompt_of(model, "document") or "",
        "pooling": ", ".join(dict.fromkeys(named)) or None,
        "max_length": None if length is None or math.isinf(length) else int(length),
        "query_length": own["query_length"],
        "passage_length": own["document_length"],
        "truncate_dim": getattr(model, "truncate_dim", None),
        "normalize": model.similarity_fn_name == "cosine" or any(isinstance(each, Normalize) for each in model),
        "similarity": model.similarity_fn_name,
    }


def described(settings: ModelSettings, model: Any, dtype: str) -> dict[str, Any]:
    """Everything that decides what an open model (in fp32) computes, for a manifest, without local paths."""
    about: dict[str, Any] = {"name": shown_name(settings.name), "fingerprint": fingerprint(model)}
    about["computed_in"] = dtype
    given = {"max_length": settings.max_length, "commit": settings.revision, "settings": settings.overrides()}
    return about | {key: value for key, value in given.items() if value}


def shown_name(name: str) -> str:
    """A model's name for files that are passed on: hub names as they are, of a directory its own name alone."""
    path = Path(name)
    return path.resolve().name if path.exists() else name


def fingerprint(model: Any) -> str:
    """SHA-256 over what decides a model's output: weights (in fp32), vocabulary, modules' settings, prompts."""
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
    """The settings of a model's towers beside their weights, and how each reads its texts."""
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
