"""Learned sparse retrieval (SparseEncoder): SPLADE, and inference-free models, which look up query weights.

For every dimension (a WordPiece), the inverted index lists passages and their weights in this dimension, except weights
of 0. A search adds up the lists of the query's dimensions in 64 bits. The sum is the exact inner product of the two
embeddings, and does not depend on the chunks of the index or on other queries. Passages with the score 0 are omitted.
"""

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from sentence_transformers import SparseEncoder
from sentence_transformers.sparse_encoder.modules import SpladePooling
from sentence_transformers.util import select_max_active_dims

from baselines.core.passages import Passages, Rows
from baselines.retrieve.encoder import Side, encode_queries, unit_length
from baselines.retrieve.index_files import Index
from baselines.retrieve.model_kinds import kind_of_model
from baselines.retrieve.models import expect_no, finished, open_as
from baselines.retrieve.search_engines import Floats
from baselines.retrieve.vector_index import Arrays, Best, Retriever, Scores
from builders.core.errors import InputError
from builders.core.progress import progress
from builders.core.shares import report_share

_LARGEST_WEIGHT = 2.0**50  # 32 bits hold 2**127, and a text has fewer than 2**20 weights


class SparseSide(Side):
    """The query or passage encoder of a sparse model."""

    problem = "the model's weights are not all finite"

    def encode(self, texts: Sequence[str]) -> tuple[Rows, Rows, Floats]:
        """Return (text numbers, dimensions, weights) of all weights except 0, sorted by text and dimension."""
        found: list[tuple[Rows, Rows, Floats]] = []
        for batch, (rows, dims, weights) in self.batches(texts, self._embed):
            found.append((batch[rows], dims, weights))
        rows, dims, weights = (np.concatenate(each) for each in zip(*found, strict=True))
        self.expect_finite(weights)
        _expect_usual_magnitude(weights)
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
            embeddings = unit_length(embeddings)
        rows, dims = torch.nonzero(embeddings, as_tuple=True)
        return rows.cpu().numpy(), dims.cpu().numpy(), embeddings[rows, dims].cpu().numpy()


def _expect_usual_magnitude(weights: Floats) -> None:
    """Raise :class:`InputError` if scores, which are sums of products, would be 0 or infinite in 32 bits."""
    largest = float(np.abs(weights).max(initial=0))
    if largest > _LARGEST_WEIGHT:
        raise InputError("the model's weights are too large for scores of 32 bits (try --similarity cosine)")
    if 0 < largest < 1 / _LARGEST_WEIGHT:
        raise InputError("the model's weights are too small for scores of 32 bits (try --similarity cosine)")


class Sparse(Retriever):
    kind, side = "sparse 2", SparseSide

    def open_model(self) -> SparseEncoder:
        expect_no(self.settings, "a sparse encoder", "pooling", "truncate_dim")
        model, name = open_as(SparseEncoder, self.settings), self.settings.name
        pooled = any(isinstance(module, SpladePooling) for module in model.modules())
        if kind_of_model(self.settings) != "sparse" and not pooled:
            # The library would add a random autoencoder.
            raise InputError("is no sparse encoder; expected a SparseEncoder or a masked language model", path=name)
        return finished(model, self.settings)

    def arrays(self, found: tuple[Rows, Rows, Floats]) -> Arrays:
        """Return the arrays of an inverted index: the dimensions in use, the limits of each dimension's list, and all
        lists as passage numbers (ascending in a list) and weights."""
        rows, dims, weights = found
        order = np.argsort(dims, kind="stable")
        there, first = np.unique(dims[order], return_index=True)
        return {
            "/dims": there.astype(np.int32),
            "/starts": np.append(first, len(order)).astype(np.int64),
            "/rows": rows[order].astype(np.int32),
            "/weights": weights[order],
        }

    def pair_scores(self, index: Index, queries: tuple[Rows, Rows, Floats], rows: Rows) -> Scores:
        asked, dims, weights = queries
        ends, size = np.searchsorted(asked, np.arange(len(rows) + 1)), index.manifest["shard_rows"]
        found = np.full(rows.shape, -np.inf)
        for number, chunk in enumerate(index.chunks):
            lists, sums = index.arrays(chunk, "/dims", "/starts", "/rows", "/weights"), np.zeros(size)
            here = (rows >= number * size) & (rows < (number + 1) * size)
            for query in np.flatnonzero(here.any(1)).tolist():
                own = slice(ends[query], ends[query + 1])
                reached, scores = _scores(lists, sums, dims[own], weights[own])
                whole = np.full(size, -np.inf)
                whole[reached] = scores
                found[query, here[query]] = whole[rows[query, here[query]] - number * size]
        return found

    def found(
        self, index: Index, passages: Passages, queries: Sequence[str], top_k: int
    ) -> Iterator[tuple[Rows, Scores]]:
        asked, dims, weights = encode_queries(self.encoder(self.work.devices[0], "query"), queries)
        ends = np.searchsorted(asked, np.arange(len(queries) + 1))
        best, chunk_rows = Best(len(queries), top_k), index.manifest["shard_rows"]
        with progress(total=len(passages), unit="passage", label="search") as bar:
            for number, chunk in enumerate(index.chunks):
                lists = index.arrays(chunk, "/dims", "/starts", "/rows", "/weights")
                sums = np.zeros(int(lists[2].max(initial=-1)) + 1)
                with bar.task(min(chunk_rows, len(passages) - number * chunk_rows)):
                    for query in range(len(queries)):
                        own = slice(ends[query], ends[query + 1])
                        rows, scores = _scores(lists, sums, dims[own], weights[own])
                        best.add(query, rows + number * chunk_rows, scores)
                        report_share((query + 1) / len(queries))
        return iter(best)


def _scores(lists: list[npt.NDArray[Any]], sums: Scores, dims: Rows, weights: Floats) -> tuple[Rows, Scores]:
    """Return the passages of a chunk with a score above 0 for a query, and the scores, rounded to 32 bits."""
    there, starts, rows, values = lists
    sums[:] = 0
    places = np.searchsorted(there, dims)
    for place, dim, weight in zip(places.tolist(), dims.tolist(), weights.tolist(), strict=True):
        if place < len(there) and there[place] == dim:
            own = slice(starts[place], starts[place + 1])
            # += is correct because a list has each passage once. Products of 32-bit numbers fit into 64 bits.
            sums[rows[own]] += weight * values[own].astype(np.float64)
    rounded = sums.astype(np.float32)
    found = np.flatnonzero(rounded > 0)
    return found, rounded[found].astype(np.float64)
