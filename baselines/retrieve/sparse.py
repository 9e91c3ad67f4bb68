"""Learned sparse retrieval (SparseEncoder): SPLADE, and inference-free models, whose queries need no network.

The index is inverted: for every dimension (a word piece) the passages that have it, and their weights. A query adds up
the lists of its own dimensions, in 64 bits: the inner product of the two embeddings, exactly, whichever parts the index
has and whatever is searched beside it. A passage that scores nothing is not found.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch
from sentence_transformers import SparseEncoder
from sentence_transformers.sparse_encoder.modules import SpladePooling
from sentence_transformers.util import select_max_active_dims

from baselines.retrieve.detect_kind import kind_of_model
from baselines.retrieve.devices import moved
from baselines.retrieve.encoder import Floats, Side
from baselines.retrieve.index import Arrays, Best, Job, Part, PartsRetriever, Scores
from baselines.retrieve.models import expect_no, finished, open_as
from baselines.retrieve.passages import Rows
from baselines.retrieve.settings import ModelSettings
from builders.core.errors import InputError


def open_sparse(settings: ModelSettings, device: str = "cpu", dtype: str = "fp32") -> SparseEncoder:
    """A sparse encoder, used as ``settings`` say. Raises :class:`InputError`."""
    expect_no(settings, "a sparse encoder", "pooling", "truncate_dim")
    model = open_as(SparseEncoder, settings)
    if kind_of_model(settings) != "sparse" and not any(isinstance(module, SpladePooling) for module in model.modules()):
        # The library would put a random autoencoder behind it.
        raise InputError("is no sparse encoder: neither saved as one, nor a masked language model", path=settings.name)
    found: SparseEncoder = finished(model, settings, device, dtype)
    return found


class SparseSide(Side):
    """A sparse encoder's side for queries or for passages."""

    problem = "the model's weights are not all finite"

    def encode(self, texts: Sequence[str]) -> tuple[Rows, Rows, Floats]:
        """(number of the text, dimension, weight) of everything that is not 0, in the texts' and dimensions' order."""
        found: list[tuple[Rows, Rows, Floats]] = []
        for batch, (rows, dims, weights) in self.batches(texts, self._embed):
            found.append((batch[rows], dims, weights))
        rows, dims, weights = (np.concatenate(each) for each in zip(*found, strict=True))
        self.expect_finite(weights)
        order = np.lexsort((dims, rows))
        return rows[order], dims[order], weights[order]

    def _embed(self, features: dict[str, Any]) -> tuple[Rows, Rows, Floats]:
        most = self.model.max_active_dims
        given = {} if most is None else {"max_active_dims": most}
        embeddings = self.model(features, task=self.task, **given)["sentence_embedding"]
        if most is not None:
            embeddings = select_max_active_dims(embeddings, max_active_dims=most)
        embeddings = embeddings.float()
        if self.model.similarity_fn_name == "cosine":
            embeddings = torch.nn.functional.normalize(embeddings, dim=1)
        rows, dims = torch.nonzero(embeddings, as_tuple=True)
        return rows.cpu().numpy(), dims.cpu().numpy(), embeddings[rows, dims].cpu().numpy()


@functools.lru_cache(maxsize=1)
def _side(job: Job, device: str) -> SparseSide:
    return SparseSide(open_sparse(job.settings, device, job.dtype), "document", job.batch_tokens, job.tokenizers)


def encode_chunk(job: Job, device: str, texts: list[str]) -> Arrays:
    """The inverted lists of some passages: the dimensions that are there, where the list of each begins and ends, and
    in it numbers of passages, rising, and their weights."""
    rows, dims, weights = _side(job, device).encode(texts)
    order = np.argsort(dims, kind="stable")
    there, first = np.unique(dims[order], return_index=True)
    return {
        "/dims": there.astype(np.int32),
        "/starts": np.append(first, len(order)).astype(np.int64),
        "/rows": rows[order].astype(np.int32),
        "/weights": weights[order],
    }


class Sparse(PartsRetriever):
    """A sparse encoder."""

    def open_model(self) -> SparseEncoder:
        return open_sparse(self.settings)

    def found(self, parts: Sequence[Part], queries: Sequence[str], top_k: int) -> Iterator[tuple[Rows, Scores]]:
        _side.cache_clear()
        model = moved(self.open_model(), self.work.devices[0], self.work.dtype)
        asked, dims, weights = SparseSide(model, "query", self.work.batch_tokens).encode(queries)
        ends = np.searchsorted(asked, np.arange(len(queries) + 1))
        best = Best(len(queries), top_k)
        for part in parts:
            lists = _Lists(part)
            for query in range(len(queries)):
                own = slice(ends[query], ends[query + 1])
                rows, scores = lists.scores(dims[own], weights[own])
                best.add(query, rows + part.start, scores)
        return iter(best)


class _Lists:
    """The inverted lists of a part."""

    def __init__(self, part: Part) -> None:
        self._dims, self._starts = np.asarray(part.array("dims")), np.asarray(part.array("starts"))
        self._rows, self._weights = part.array("rows"), part.array("weights")
        self._sums = np.zeros(int(self._rows.max(initial=-1)) + 1)

    def scores(self, dims: Rows, weights: Floats) -> tuple[Rows, Scores]:
        """The passages that score more than 0 with a query of some dimensions, and their scores, rounded to 32 bits."""
        self._sums[:] = 0
        places = np.searchsorted(self._dims, dims)
        for place, dim, weight in zip(places.tolist(), dims.tolist(), weights.tolist(), strict=True):
            if place < len(self._dims) and self._dims[place] == dim:
                own = slice(self._starts[place], self._starts[place + 1])
                # A list has a passage once, so that nothing is lost; a product of two 32-bit numbers fits into 64.
                self._sums[self._rows[own]] += weight * self._weights[own].astype(np.float64)
        rounded = self._sums.astype(np.float32)
        rows = np.flatnonzero(rounded > 0)
        return rows, rounded[rows].astype(np.float64)
