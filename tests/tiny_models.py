"""Tiny random models with their own vocabulary, as real sentence-transformers checkpoints, created offline."""

import itertools
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch
from releases import QUESTIONS, TEXTS
from sentence_transformers import CrossEncoder, SentenceTransformer
from sentence_transformers.base.modules import Router, Transformer
from sentence_transformers.sentence_transformer.modules import Pooling
from transformers import BertConfig, BertForSequenceClassification, BertModel, BertTokenizer, PreTrainedModel

SAMPLE = TEXTS + list(itertools.chain.from_iterable(QUESTIONS.values()))


def write_bert(folder: Path, texts: Iterable[str] = SAMPLE, seed: int = 0, labels: int | None = None) -> Path:
    """Write a random BERT with two layers of width 32 and a vocabulary of the characters of ``texts``.

    ``labels``: number of outputs of a cross-encoder's classifier (default: no classifier).
    """
    folder.mkdir(parents=True, exist_ok=True)
    all_characters: set[str] = set()
    for text in texts:
        all_characters.update(text.lower())
    characters = sorted(character for character in all_characters if not character.isspace())
    vocabulary = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    vocabulary += characters
    vocabulary += [f"##{character}" for character in characters]
    vocabulary_path = folder / "vocab.txt"
    vocabulary_path.write_text("\n".join(vocabulary) + "\n", encoding="utf-8")
    # Pass the path by position, because the keyword is ignored.
    BertTokenizer(str(vocabulary_path), model_max_length=512).save_pretrained(folder)
    torch.manual_seed(seed)
    config = BertConfig(
        vocab_size=len(vocabulary),
        initializer_range=0.2,
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=64,
    )
    model: PreTrainedModel
    if labels is None:
        model = BertModel(config)
    else:
        config.num_labels = labels
        model = BertForSequenceClassification(config)
    model.eval().save_pretrained(folder)
    return folder


def write_dual(
    folder: Path,
    seed: int = 0,
    similarity: str = "dot",
    query_length: int | None = 32,
    document_length: int | None = 384,
    prompts: dict[str, str] | None = None,
    router: bool = False,
    texts: Iterable[str] = SAMPLE,
) -> Path:
    """Write a dual-encoder with mean pooling. ``router``: use separate BERTs for queries and passages."""
    bert = write_bert(folder.with_name(f"{folder.name}-bert"), texts, seed)
    modules = mean_pooled_modules(bert, query_length, document_length)
    if router:
        passage_bert = write_bert(folder.with_name(f"{folder.name}-other"), texts, seed + 1)
        passage_modules = mean_pooled_modules(passage_bert, query_length, document_length)
        modules = [Router.for_query_document(modules, passage_modules)]
    model = SentenceTransformer(modules=modules, similarity_fn_name=similarity, prompts=prompts, device="cpu")
    model.save_pretrained(str(folder))
    return folder


def mean_pooled_modules(bert: Path, query_length: int | None, document_length: int | None) -> list[Any]:
    """Return the modules of a model that averages the token vectors of ``bert``."""
    transformer = Transformer(str(bert), query_length=query_length, document_length=document_length)
    return [transformer, Pooling(transformer.get_embedding_dimension(), "mean")]


def write_cross(folder: Path, seed: int = 0, labels: int = 1, texts: Iterable[str] = SAMPLE) -> Path:
    """Write a cross-encoder with ``labels`` outputs that reads 64 tokens."""
    bert = write_bert(folder.with_name(f"{folder.name}-bert"), texts, seed, labels)
    CrossEncoder(str(bert), device="cpu", max_length=64).save_pretrained(str(folder))
    return folder
