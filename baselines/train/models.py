"""The models that are trained: from the hub, or from a checkpoint (from nothing: :mod:`baselines.train.scratch`).

A dual-encoder is a SentenceTransformer that cuts queries and passages at lengths of their own, with one encoder for
both or one for each (the library's Router); a cross-encoder is a CrossEncoder with one output or two. Both are saved so
that plain ``SentenceTransformer(DIR)`` and ``CrossEncoder(DIR)`` load them, lengths, prompts and inputs included.
"""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import torch
from sentence_transformers import CrossEncoder, SentenceTransformer
from sentence_transformers.sentence_transformer.modules import Normalize, Pooling, Router, StaticEmbedding, Transformer
from transformers import AutoConfig, AutoModelForMaskedLM, AutoTokenizer, PreTrainedModel
from transformers import BertForMaskedLM as _BertForMaskedLM

from baselines.retrieve.models import (
    SENTENCE,
    check_length,
    check_reading,
    check_tokenizer,
    check_tokenizers,
    classes,
    new_head,
    opening,
)
from baselines.retrieve.official_input import official_tokenizer
from baselines.retrieve.settings import ModelSettings
from baselines.train.recipe import Recipe
from builders.core.errors import InputError
from builders.core.typed import problem_of

_FP32 = {"dtype": torch.float32}  # whatever the start was saved in: an optimizer's small steps need them


class BertForMaskedLM(_BertForMaskedLM):  # type: ignore[no-untyped-call]
    """BERT that guesses at the masked tokens alone: in a small model, the vocabulary is most of the arithmetic.

    The loss is the same. Saved under transformers' own class name, so that AutoModel finds that one.
    """

    def forward(self, input_ids: Any, attention_mask: Any, labels: Any) -> dict[str, torch.Tensor]:
        states = self.bert(input_ids, attention_mask=attention_mask).last_hidden_state
        masked = labels != -100
        guesses = self.cls(states[masked])
        # A batch without a masked token has a loss of 0, not of 0 / 0.
        total = torch.nn.functional.cross_entropy(guesses.float(), labels[masked], reduction="sum")
        return {"loss": total / masked.sum().clamp(min=1)}


def dual_encoder(recipe: Recipe, start: str, device: str, commit: str | None = None) -> SentenceTransformer:
    """The dual-encoder to train, from ``start`` (a directory, or a hub name at a ``commit``).

    A start that is a SentenceTransformer keeps its pooling, similarity and prompts. Raises :class:`InputError` where
    the recipe says otherwise, and where cosines would be trained on at their own scale.
    """
    wanted, data = recipe.model, recipe.data
    with opening(f"cannot start from the model {start!r}", new_head, start):
        if _is_sentence_transformer(start, commit):
            model = SentenceTransformer(start, device=device, revision=commit, model_kwargs=dict(_FP32))
            similarity = _own_similarity(model, start)
            _expect_own("pooling", wanted.pooling, ", ".join(_poolings(model)), start)
            _expect_own("similarity", wanted.similarity, similarity, start)
        else:
            at = _at(commit)
            encoder: Any = Transformer(
                start, model_kwargs={**at, **_FP32}, processor_kwargs={**at}, config_kwargs={**at}
            )
            modules: list[Any] = [encoder, Pooling(encoder.get_embedding_dimension(), wanted.pooling or "mean")]
            model = SentenceTransformer(modules=modules, device=device, similarity_fn_name="dot")
            similarity = wanted.similarity or "dot"
        _check_names(start, list(model.modules()))
        check_tokenizers(model, start)
    check_reading(model, ModelSettings(start))
    if similarity == "cos":
        if recipe.train.scale <= 1:
            raise InputError(
                f"{start}: cosines at train.scale = {recipe.train.scale:g} are too alike to learn from; expected more "
                "than 1, as --set train.scale=20"
            )
        if not any(isinstance(module, Normalize) for module in model.modules()):
            model.append(Normalize())  # so that dot products, which every index can do, are cosines
    _check_shortest(recipe, model, similarity, start)
    if is_static(model):
        if wanted.towers == 2 or wanted.inputs == "official":
            raise InputError(f"{start} is a static model: it has one tower, and inputs of its own")
        return model
    if wanted.towers == 2:
        model = _two_towers(model, device)
    towers = _towers(model, wanted.towers, start)
    for route, tower in towers.items():
        length = data.query_length if route == "query" else data.passage_length
        if wanted.inputs == "official":
            kind: Any = "query" if route == "query" else "passage"
            tower.processor = official_tokenizer(tower.tokenizer, kind, length)
        if pooler := getattr(tower.auto_model, "pooler", None):
            pooler.requires_grad_(False)  # the vector has nothing of it; several processes would wait for its gradients
        tower.query_length, tower.document_length = data.query_length, data.passage_length
        # A plain encode() has no task and cuts here: a model from scratch has no use for positions that it never saw.
        tower.max_seq_length = data.passage_length
    for route, key, length in (
        ("query", "query_length", data.query_length),
        ("document", "passage_length", data.passage_length),
    ):
        tower = towers.get(route) or next(iter(towers.values()))
        check_length(f"data.{key} = {length}", length, tower, tower.tokenizer)
    return model


def is_static(model: SentenceTransformer) -> bool:
    """True if the model has one vector per word, and no transformer."""
    return any(isinstance(module, StaticEmbedding) for module in model)


def halves(model: SentenceTransformer, shortest: int) -> list[int]:
    """The dimensions of a model's vectors, half of them, a quarter ..., down to ``shortest``."""
    found = [model.get_embedding_dimension() or 0]
    while found[-1] // 2 >= shortest:
        found.append(found[-1] // 2)
    return found


def _check_shortest(recipe: Recipe, model: SentenceTransformer, similarity: str, start: str) -> None:
    """Raise :class:`InputError` where the model's vectors cannot be trained cut down to ``train.shortest``."""
    full, shortest = model.get_embedding_dimension() or 0, recipe.train.shortest
    if shortest > full:
        raise InputError(f"train.shortest = {shortest} is more than the {full} dimensions of {start}")
    if shortest and similarity != "cos":
        raise InputError(f"train.shortest: {start} compares by dot product; expected model.similarity = cos")


def _two_towers(model: SentenceTransformer, device: str) -> SentenceTransformer:
    """The model with an encoder for queries and one for passages, equal at first; itself where it has two already."""
    if any(isinstance(module, Router) for module in model):
        return model
    passages = list(model.children())
    router = Router.for_query_document(copy.deepcopy(passages), passages)
    return SentenceTransformer(
        modules=[router],
        device=device,
        prompts=model.prompts,
        default_prompt_name=model.default_prompt_name,
        similarity_fn_name=model.similarity_fn_name,
        truncate_dim=model.truncate_dim,
    )


def _towers(model: SentenceTransformer, wanted: int, start: str) -> dict[str, Any]:
    """The transformers of a model, by route: query and document, or the one of both, named document."""
    router = next((module for module in model if isinstance(module, Router)), None)
    routes: dict[str, Any] = {"document": model} if router is None else dict(router.sub_modules.items())
    if len(routes) != wanted:
        raise InputError(f"{start} has {len(routes)} encoders (towers); expected model.towers = {len(routes)}")
    found = {
        name: next((m for m in route.modules() if isinstance(m, Transformer)), None) for name, route in routes.items()
    }
    if None in found.values() or set(found) - {"query", "document"}:
        raise InputError(f"{start} has no transformer for queries or for passages to train")
    return found


def _poolings(model: SentenceTransformer) -> list[str]:
    modes = {module.pooling_mode for module in model.modules() if isinstance(module, Pooling)}
    return sorted(mode if isinstance(mode, str) else "+".join(mode) for mode in modes)


def _own_similarity(model: SentenceTransformer, start: str) -> str:
    """The similarity of a SentenceTransformer: ``cos`` also where it takes dot products of normalised vectors."""
    if model.similarity_fn_name not in ("cosine", "dot"):
        raise InputError(f"{start} compares by {model.similarity_fn_name!r}; expected cosine or dot")
    normalised = any(isinstance(module, Normalize) for module in model.modules())
    return "cos" if normalised or model.similarity_fn_name == "cosine" else "dot"


def _expect_own(key: str, wanted: str, own: str, start: str) -> None:
    if wanted not in ("", own):
        raise InputError(
            f"model.{key} = {wanted}: {start} is a SentenceTransformer with {own or 'none'}; "
            f"--set model.{key}= takes its own"
        )


def cross_encoder(recipe: Recipe, start: str, device: str, commit: str | None = None) -> CrossEncoder:
    """The cross-encoder to train, from ``start`` (a directory, or a hub name at a ``commit``).

    Raises :class:`InputError` where a start that is a cross-encoder has another number of outputs than the recipe.
    """
    outputs, length = recipe.model.outputs, recipe.data.passage_length
    with opening(f"cannot start from the model {start!r}", new_head, start):
        config = AutoConfig.from_pretrained(start, **_at(commit))
        is_cross = next(iter(classes(config)), "").endswith("ForSequenceClassification")
        if is_cross and config.num_labels != outputs:  # the library says it in thirty lines
            have = config.num_labels
            raise InputError(f"{start} is a cross-encoder of {have} outputs; expected model.outputs = {have}")
        model = CrossEncoder(
            start, num_labels=outputs, max_length=length, device=device, revision=commit, model_kwargs=dict(_FP32)
        )
        _check_names(start, list(model.modules()))
        check_tokenizers(model, start)
    check_reading(model, ModelSettings(start))
    if recipe.model.inputs == "official":
        model[0].processor = official_tokenizer(model.tokenizer, "pair", length)
    check_length(f"data.passage_length = {length}", length, model, model.tokenizer, texts=2)
    return model


def masked_language_model(recipe: Recipe, start: str, commit: str | None = None) -> tuple[PreTrainedModel, Any]:
    """(masked language model, tokenizer) to train on, from ``start`` (a directory, or a hub name at a ``commit``)."""
    at, length = _at(commit), recipe.data.passage_length
    with opening(f"cannot start from the model {start!r}", new_head, start):
        config = AutoConfig.from_pretrained(start, **at)
        kind = BertForMaskedLM if config.model_type == "bert" else AutoModelForMaskedLM
        model = kind.from_pretrained(start, dtype=torch.float32, **at)
        tokenizer = AutoTokenizer.from_pretrained(start, **at)
        _check_names(start, [], tokenizer)
        check_tokenizer(tokenizer, model.get_input_embeddings().weight, start)
        if tokenizer.mask_token_id is None:
            raise InputError(f"cannot start from the model {start!r}: its tokenizer has no mask token")
        texts = tokenizer([SENTENCE, SENTENCE[:1]], padding=True, return_tensors="pt")
        with torch.no_grad():
            model(texts["input_ids"], attention_mask=texts["attention_mask"], labels=texts["input_ids"])
    check_length(f"data.passage_length = {length}", length, model, tokenizer)
    return model, tokenizer


def _at(commit: str | None) -> dict[str, Any]:
    """For every call of transformers: which commit, and no code of the model (unless told, it asks on stdin)."""
    return {"trust_remote_code": False} | ({"revision": commit} if commit else {})


def _is_sentence_transformer(start: str, commit: str | None) -> bool:
    from sentence_transformers.util import is_sentence_transformer_model

    if Path(start).is_dir():
        return (Path(start) / "modules.json").is_file()
    return bool(is_sentence_transformer_model(start, revision=commit))


def _check_names(start: str, modules: list[Any], *tokenizers: Any) -> None:
    """:class:`InputError` where a route or a chat template, saved under its name, would be outside the checkpoint."""
    tokenizers += tuple(module.tokenizer for module in modules if isinstance(module, Transformer))
    templates = [getattr(tokenizer, "chat_template", None) for tokenizer in tokenizers]
    for named in [*(module.sub_modules for module in modules if isinstance(module, Router)), *templates]:
        if isinstance(named, (dict, torch.nn.ModuleDict)):  # a template alone has no name
            for name in named:
                several = f"the name {name!r} has several parts; expected a plain one" if "/" in name else ""
                if problem := problem_of(name) or several:
                    raise InputError(f"cannot start from the model {start!r}: {problem}")
