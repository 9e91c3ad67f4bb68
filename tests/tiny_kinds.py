"""Tiny random models of other kinds than one vector a text: real sentence-transformers checkpoints, of no network."""

from __future__ import annotations

from pathlib import Path

import torch
from sentence_transformers import SentenceTransformer, SparseEncoder
from sentence_transformers.base.modules import Router, Transformer
from sentence_transformers.sentence_transformer.modules import StaticEmbedding
from sentence_transformers.sparse_encoder.modules import SparseStaticEmbedding, SpladePooling
from tiny_models import write_bert
from transformers import BertConfig, BertForMaskedLM, PreTrainedTokenizerFast


def write_masked(folder: Path, seed: int = 0) -> Path:
    """A BERT with its head of masked words: what SPLADE is made of."""
    bert = write_bert(folder)
    torch.manual_seed(seed)
    config = BertConfig.from_pretrained(bert)
    BertForMaskedLM(config).eval().save_pretrained(bert)
    return bert


def write_sparse(folder: Path, inference_free: bool = False) -> Path:
    """SPLADE; ``inference_free``: its queries are word pieces with weights of their own."""
    bert = write_masked(folder.with_name(f"{folder.name}-bert"))
    passages = [Transformer(str(bert), transformer_task="fill-mask"), SpladePooling("max")]
    modules = list(passages)
    if inference_free:
        weights = torch.rand(passages[0].model.config.vocab_size, generator=torch.Generator().manual_seed(3))
        modules = [Router.for_query_document([SparseStaticEmbedding(passages[0].tokenizer, weights)], passages)]
    SparseEncoder(modules=modules, device="cpu").save_pretrained(str(folder))
    return folder


def write_static(folder: Path) -> Path:
    """A vector a character, at random."""
    tokenizer = PreTrainedTokenizerFast.from_pretrained(write_bert(folder.with_name(f"{folder.name}-bert")))
    torch.manual_seed(0)
    module = StaticEmbedding(tokenizer, embedding_dim=16)
    SentenceTransformer(modules=[module], device="cpu").save_pretrained(str(folder))
    return folder
