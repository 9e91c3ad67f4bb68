"""What the user says of a model, applied to it once it is open; the fingerprint then is of the model as it is used."""

from __future__ import annotations

from typing import Any

from sentence_transformers import SentenceTransformer
from sentence_transformers.base.modules import Normalize
from sentence_transformers.sentence_transformer.modules import Pooling
from tokenizers import processors

from baselines.models.encoder import prompt_of
from baselines.models.settings import ModelSettings
from builders.core.errors import InputError


def apply_prompts(model: SentenceTransformer, settings: ModelSettings) -> None:
    """Set the prompts of queries and passages. :class:`InputError` for a name that the model has no prompt of."""
    query, passage = settings.query_prompt, settings.passage_prompt
    if query is None and settings.prompt_name:
        if settings.prompt_name not in model.prompts:
            have = ", ".join(map(repr, sorted(model.prompts))) or "none"
            raise InputError(f"has no prompt {settings.prompt_name!r}; its prompts: {have}", path=settings.name)
        query = model.prompts[settings.prompt_name]
    if query is None and passage is None:
        return
    both = {
        "query": prompt_of(model, "query") if query is None else query,
        "document": prompt_of(model, "document") if passage is None else passage,
    }
    model.prompts = {**model.prompts, **{name: prompt or "" for name, prompt in both.items()}}


def apply_settings(model: SentenceTransformer, settings: ModelSettings) -> None:
    """Make a dual-encoder what ``settings`` say, but for its lengths. Raises :class:`InputError`."""
    apply_prompts(model, settings)
    if settings.pooling is not None:
        _pool(model, settings)
    if settings.last_token is not None:
        _end_texts(model, settings)
    if settings.truncate_dim is not None:
        if not 1 <= settings.truncate_dim <= (dim := model.get_embedding_dimension()):
            raise InputError(
                f"has {dim} dimensions; expected at most so many, not {settings.truncate_dim}", path=settings.name
            )
        model.truncate_dim = settings.truncate_dim
    if settings.normalize is False and settings.similarity == "cosine":
        raise InputError(
            "cosine compares embeddings of unit length; expected dot with embeddings as they are", path=settings.name
        )
    # The inner product of embeddings of unit length is their cosine: the encoder normalises what is compared by it.
    if settings.normalize:
        model.similarity_fn_name = "cosine"
    elif settings.normalize is False:
        for place in reversed(range(len(model))):
            if isinstance(model[place], Normalize):
                del model[place]
        model.similarity_fn_name = "dot"
    elif settings.similarity is not None:
        model.similarity_fn_name = settings.similarity


def _pool(model: SentenceTransformer, settings: ModelSettings) -> None:
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
