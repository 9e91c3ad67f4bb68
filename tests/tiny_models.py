"""Tiny random models with their own vocabulary, as real sentence-transformers checkpoints, created offline."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch
from releases import QUESTIONS, TEXTS
from sentence_transformers import CrossEncoder, SentenceTransformer
from sentence_transformers.base.modules import Router, Transformer
from sentence_transformers.sentence_transformer.modules import Pooling
from transformers import BertConfig, BertForSequenceClassification, BertModel, BertTokenizer

SAMPLE = [*TEXTS, *(question for questions in QUESTIONS.values() for question in questions)]


def write_bert(folder: Path, texts: Iterable[str] = SAMPLE, seed: int = 0, labels: int | None = None) -> Path:
    """Write a random BERT with two layers of width 32 and a vocabulary of the characters of ``texts``.

    ``labels``: number of outputs of a cross-encoder's classifier (default: no classifier).
    """
    folder.mkdir(parents=True, exist_ok=True)
    characters = sorted({character for text in texts for character in text.lower() if not character.isspace()})
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *characters, *(f"##{each}" for each in characters)]
    (folder / "vocab.txt").write_text("\n".join(words) + "\n", encoding="utf-8")
    # Pass the path by position, because the keyword is ignored.
    BertTokenizer(str(folder / "vocab.txt"), model_max_length=512).save_pretrained(folder)
    config: dict[str, Any] = {} if labels is None else {"num_labels": labels}
    torch.manual_seed(seed)
    sizes = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 64}
    config = BertConfig(vocab_size=len(words), initializer_range=0.2, **sizes, **config)
    model = BertModel(config) if labels is None else BertForSequenceClassification(config)
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
    lengths = {"query_length": query_length, "document_length": document_length}
    module = Transformer(str(bert), **lengths)
    modules = [module, Pooling(module.get_embedding_dimension(), "mean")]
    if router:
        other = Transformer(str(write_bert(folder.with_name(f"{folder.name}-other"), texts, seed + 1)), **lengths)
        modules = [Router.for_query_document(modules, [other, Pooling(other.get_embedding_dimension(), "mean")])]
    model = SentenceTransformer(modules=modules, similarity_fn_name=similarity, prompts=prompts, device="cpu")
    model.save_pretrained(str(folder))
    return folder


def write_cross(folder: Path, seed: int = 0, labels: int = 1, texts: Iterable[str] = SAMPLE) -> Path:
    bert = write_bert(folder.with_name(f"{folder.name}-bert"), texts, seed, labels)
    CrossEncoder(str(bert), device="cpu", max_length=64).save_pretrained(str(folder))
    return folder
