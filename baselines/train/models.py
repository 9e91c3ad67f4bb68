"""The models that are trained: from the hub, or from a checkpoint (from nothing: :mod:`baselines.train.scratch`).

A dual-encoder is a SentenceTransformer whose one encoder cuts queries and passages at lengths of their own; a
cross-encoder is a CrossEncoder with one output. Both are saved so that plain ``SentenceTransformer(DIR)`` and
``CrossEncoder(DIR)`` load them, lengths included.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from sentence_transformers import CrossEncoder, SentenceTransformer
from sentence_transformers.sentence_transformer.modules import Normalize, Pooling, Transformer
from transformers import AutoConfig, AutoModelForMaskedLM, AutoTokenizer, PreTrainedModel
from transformers import BertForMaskedLM as _BertForMaskedLM

from baselines.train.recipe import Recipe
from builders.common.command import InputError


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
    """The dual-encoder to train, from ``start`` (a directory, or a hub name at a ``commit``)."""
    with _clear_errors(start):
        if _is_sentence_transformer(start, commit):
            model = SentenceTransformer(start, device=device, revision=commit)
            encoder: Any = model[0]
        else:
            at: Any = {"revision": commit} if commit else {}
            encoder = Transformer(start, model_kwargs={**at}, processor_kwargs={**at}, config_kwargs={**at})
            modules: list[Any] = [encoder, Pooling(encoder.get_embedding_dimension(), recipe.model.pooling or "mean")]
            if recipe.model.similarity == "cos":
                modules.append(Normalize())  # so that dot products, which every index can do, are cosines
            model = SentenceTransformer(modules=modules, device=device, similarity_fn_name="dot")
    pooler = getattr(encoder.auto_model, "pooler", None)
    if pooler is not None:
        pooler.requires_grad_(False)  # the vector has nothing of it; several processes would wait for its gradients
    encoder.query_length, encoder.document_length = recipe.data.query_length, recipe.data.passage_length
    # A plain encode() has no task and cuts here: a model from scratch has no use for positions that it never saw.
    model.max_seq_length = recipe.data.passage_length
    return model


def cross_encoder(recipe: Recipe, start: str, device: str, commit: str | None = None) -> CrossEncoder:
    """The cross-encoder to train, from ``start`` (a directory, or a hub name at a ``commit``)."""
    with _clear_errors(start):
        return CrossEncoder(
            start,
            num_labels=recipe.model.outputs,
            max_length=recipe.data.passage_length,
            device=device,
            revision=commit,
        )


def masked_language_model(recipe: Recipe, start: str, commit: str | None = None) -> tuple[PreTrainedModel, Any]:
    """(masked language model, tokenizer) to train on, from ``start`` (a directory, or a hub name at a ``commit``)."""
    at: Any = {"revision": commit} if commit else {}
    with _clear_errors(start):
        config = AutoConfig.from_pretrained(start, **at)
        kind = BertForMaskedLM if config.model_type == "bert" else AutoModelForMaskedLM
        return kind.from_pretrained(start, **at), AutoTokenizer.from_pretrained(start, **at)


def _is_sentence_transformer(start: str, commit: str | None) -> bool:
    from sentence_transformers.util import is_sentence_transformer_model

    if Path(start).is_dir():
        return (Path(start) / "modules.json").is_file()
    return bool(is_sentence_transformer_model(start, revision=commit))


@contextlib.contextmanager
def _clear_errors(start: str) -> Iterator[None]:
    """What a missing or broken model raises, as one :class:`InputError`."""
    try:
        yield
    except (OSError, ValueError) as error:
        said = str(error).strip().splitlines() or [type(error).__name__]
        raise InputError(f"cannot start from the model {start!r}: {said[0]}") from error
