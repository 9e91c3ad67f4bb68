"""The official models as models of sentence-transformers and transformers."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import torch
from sentence_transformers import CrossEncoder, SentenceTransformer
from sentence_transformers.base.modules import Router
from sentence_transformers.sentence_transformer.modules import Pooling, Transformer
from transformers import BertConfig, BertForSequenceClassification, BertModel, BertTokenizer

from baselines.hub.paddle import Floats, Official
from baselines.retrieve.hub_models import quiet_libraries
from baselines.retrieve.official_input import PASSAGE_LENGTH, QUERY_LENGTH, Kind, official_tokenizer

_POOLER = "pooler.dense.weight", "pooler.dense.bias"


def write_model(folder: Path, official: Official) -> None:
    """Write the model into ``folder``."""
    quiet_libraries()
    write = {"dual": _write_dual, "cross": _write_cross, "encoder": _write_encoder}[official.kind]
    folder.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder.parent) as parts:  # as large as the model: not in /tmp
        write(folder, official, Path(parts))


def _write_dual(folder: Path, official: Official, parts: Path) -> None:
    """A Router of two encoders, [CLS] of each, compared by dot product."""
    kinds: dict[str, tuple[Kind, int]] = {"query": ("query", QUERY_LENGTH), "document": ("passage", PASSAGE_LENGTH)}
    towers: dict[str, list[Any]] = {}
    for part, (kind, length) in kinds.items():
        # A BertModel is opened with a pooler, and a random one where none is saved: no two would be the same model.
        # The vector has nothing of it.
        size = official.config.hidden_size
        nothing = {_POOLER[0]: torch.zeros(size, size), _POOLER[1]: torch.zeros(size)}
        model: Any = BertModel(_config(official))
        model.load_state_dict(_tensors(official.parts[part]) | nothing)
        model.save_pretrained(parts / part)
        _bert_tokenizer(official).save_pretrained(parts / part)
        encoder = Transformer(str(parts / part))
        encoder.processor = _tokenizer(official, kind, length)
        towers[part] = [encoder, Pooling(encoder.get_embedding_dimension(), "cls")]
    router = Router.for_query_document(towers["query"], towers["document"])
    model = SentenceTransformer(modules=[router], similarity_fn_name="dot", device="cpu")
    model.save_pretrained(str(folder), create_model_card=False)


def _write_cross(folder: Path, official: Official, parts: Path) -> None:
    """A cross-encoder of one output: the difference of the official two, whose sigmoid is the probability of class 1.

    So are plain ``predict`` and ``rank`` the official scores; with two outputs, ``rank`` would refuse the model.
    """
    values = _tensors(official.parts["model"])
    state = {name if name.startswith("classifier.") else f"bert.{name}": tensor for name, tensor in values.items()}
    for name in ("classifier.weight", "classifier.bias"):
        state[name] = state[name][1:] - state[name][:1]
    model: Any = BertForSequenceClassification(_config(official, num_labels=1))
    model.load_state_dict(state)
    model.save_pretrained(parts)
    _bert_tokenizer(official).save_pretrained(parts)
    cross = CrossEncoder(str(parts), device="cpu")
    cross[0].processor = _tokenizer(official, "pair", PASSAGE_LENGTH)
    cross.save_pretrained(str(folder), create_model_card=False)


def _write_encoder(folder: Path, official: Official, parts: Path) -> None:
    """A BertModel with BERT's own tokenizer: what a training starts from."""
    state = _tensors(official.parts["model"])
    model: Any = BertModel(_config(official), add_pooling_layer=_POOLER[0] in state)
    model.load_state_dict(state)
    model.save_pretrained(folder)
    _bert_tokenizer(official).save_pretrained(folder)


def _config(official: Official, **more: Any) -> BertConfig:
    return BertConfig(**official.config.of_bert(official.vocabulary["[PAD]"]), **more)


def _tensors(values: dict[str, Floats]) -> dict[str, torch.Tensor]:
    return {name: torch.from_numpy(value.copy()) for name, value in values.items()}


def _bert_tokenizer(official: Official) -> Any:
    return BertTokenizer(official.vocabulary, model_max_length=min(512, official.config.max_position_embeddings))


def _tokenizer(official: Official, kind: Kind, length: int) -> Any:
    """The official tokenizer; a tiny model may have fewer positions than the official inputs have pieces."""
    return official_tokenizer(_bert_tokenizer(official), kind, min(length, official.config.max_position_embeddings))
