"""Learned sparse retrieval (SparseEncoder): SPLADE, and inference-free models, which look up query weights.

For every dimension (a WordPiece), the inverted index lists passages and their weights in this dimension, except weights
of 0. A search adds up the lists of the query's dimensions in 64 bits. The sum is the exact inner product of the two
embeddings, and does not depend on the chunks of the index or on other queries. Passages with the score 0 are omitted.

Example of a chunk with three passages, and of the arrays in its files:

    =========  ===================================    ==========  =======================================
    passage    weights by dimension                   array       content
    =========  ===================================    ==========  =======================================
    0          dimension 5: 1.0                       /dims       5, 9
    1          dimension 9: 0.5                       /starts     0, 2, 4
    2          dimension 5: 2.0, dimension 9: 3.0     /rows       0, 2 (dimension 5), 1, 2 (dimension 9)
    =========  ===================================    /weights    1.0, 2.0, 0.5, 3.0
                                                      ==========  =======================================

The list of the dimension ``dims[n]`` is ``rows[starts[n] : starts[n + 1]]``. With a query that has the weights 1.0 in
dimension 5 and 2.0 in dimension 9, the passages score 1.0, 1.0 and 8.0.
"""

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from sentence_transformers import SparseEncoder
from sentence_transformers.sparse_encoder.modules import SpladePooling
from sentence_transformers.util import select_max_active_dims

from baselines.core.passages import CachedPassages, Rows
from baselines.retrieve.encoder import EncoderSide, unit_length
from baselines.retrieve.index_files import VectorIndex
from baselines.retrieve.model_kinds import kind_of_model
from baselines.retrieve.models import expect_no, finish_encoder, open_as
from baselines.retrieve.search_engines import Floats
from baselines.retrieve.vector_index import Arrays, BestHits, Retriever, Scores
from builders.core.errors import InputError
from builders.core.progress import show_progress
from builders.core.shares import report_share

_LARGEST_WEIGHT = 2.0**50  # 32 bits hold 2**127, and a text has fewer than 2**20 weights
# Text numbers, dimensions and weights of all weights except 0, sorted by text and dimension.
SparseVectors = tuple[Rows, Rows, Floats]


class SparseSide(EncoderSide):
    """The query or passage encoder of a sparse model."""

    problem = "the model's weights are not all finite"

    def encode(self, texts: Sequence[str]) -> SparseVectors:
        """Return (text numbers, dimensions, weights) of all weights except 0, sorted by text and dimension."""
        text_parts: list[Rows] = []
        dim_parts: list[Rows] = []
        weight_parts: list[Floats] = []
        for indices, (batch_texts, batch_dims, batch_weights) in self.batches(texts, self._embed):
            # Convert the numbers within the batch to the numbers of the texts.
            text_parts.append(indices[batch_texts])
            dim_parts.append(batch_dims)
            weight_parts.append(batch_weights)
        text_numbers = np.concatenate(text_parts)
        dims = np.concatenate(dim_parts)
        weights = np.concatenate(weight_parts)
        self.expect_finite(weights)
        _expect_usual_magnitude(weights)
        order = np.lexsort((dims, text_numbers))  # by text, then by dimension
        return text_numbers[order], dims[order], weights[order]

    def _embed(self, features: dict[str, Any]) -> SparseVectors:
        """Return the sparse vectors of a batch, whose texts are numbered from 0."""
        dimension_limit = self.model.max_active_dims
        options = {}
        if dimension_limit is not None:
            options["max_active_dims"] = dimension_limit
        embeddings = self.model(features, task=self.task, **options)["sentence_embedding"]
        if dimension_limit is not None:
            embeddings = select_max_active_dims(embeddings, max_active_dims=dimension_limit)
        embeddings = embeddings.float()
        if self.model.similarity_fn_name == "cosine":
            embeddings = unit_length(embeddings)
        text_numbers, dims = torch.nonzero(embeddings, as_tuple=True)
        weights = embeddings[text_numbers, dims]
        return text_numbers.cpu().numpy(), dims.cpu().numpy(), weights.cpu().numpy()


def _expect_usual_magnitude(weights: Floats) -> None:
    """Raise :class:`InputError` if scores, which are sums of products, would be 0 or infinite in 32 bits."""
    largest = float(np.abs(weights).max(initial=0))
    if largest > _LARGEST_WEIGHT:
        raise InputError("the model's weights are too large for scores of 32 bits (try --similarity cosine)")
    if 0 < largest < 1 / _LARGEST_WEIGHT:
        raise InputError("the model's weights are too small for scores of 32 bits (try --similarity cosine)")


class _Lists(NamedTuple):
    """The inverted index of a chunk (see the example at the head of this module)."""

    dims: npt.NDArray[np.int32]
    starts: npt.NDArray[np.int64]
    rows: npt.NDArray[np.int32]
    weights: Floats


class SparseRetriever(Retriever):
    kind = "sparse 2"
    side = SparseSide

    def open_model(self) -> SparseEncoder:
        expect_no(self.settings, "a sparse encoder", "pooling", "truncate_dim")
        model = open_as(SparseEncoder, self.settings)
        has_splade_pooling = any(isinstance(module, SpladePooling) for module in model.modules())
        if kind_of_model(self.settings) != "sparse" and not has_splade_pooling:
            # The library would add a random autoencoder.
            raise InputError(
                "is no sparse encoder; expected a SparseEncoder or a masked language model", path=self.settings.name
            )
        return finish_encoder(model, self.settings)

    def arrays(self, encodings: SparseVectors) -> Arrays:
        """Return the arrays of an inverted index, by the ends of the file names.

        They are the dimensions in use, the limits of each dimension's list, and all lists as passage numbers (ascending
        in a list) and weights.
        """
        rows, dims, weights = encodings
        # A stable sort leaves the passages of a list in ascending order.
        order = np.argsort(dims, kind="stable")
        used_dims, first_positions = np.unique(dims[order], return_index=True)
        return {
            "/dims": used_dims.astype(np.int32),
            "/starts": np.append(first_positions, len(order)).astype(np.int64),
            "/rows": rows[order].astype(np.int32),
            "/weights": weights[order],
        }

    def pair_scores(self, index: VectorIndex, query_encodings: SparseVectors, rows: Rows) -> Scores:
        """Return the scores of each query and its line of ``rows``, rows of the index.

        Row -1, and a passage whose score is not above 0, have -inf.
        """
        query_numbers, dims, weights = query_encodings
        # The weights of query n are those from query_limits[n] to query_limits[n + 1].
        query_limits = np.searchsorted(query_numbers, np.arange(len(rows) + 1))
        chunk_rows = index.manifest["shard_rows"]
        scores = np.full(rows.shape, -np.inf)
        sums = np.zeros(chunk_rows)
        for chunk_number, chunk in enumerate(index.chunks):
            lists = _read_lists(index, chunk)
            chunk_start = chunk_number * chunk_rows
            is_in_chunk = (rows >= chunk_start) & (rows < chunk_start + chunk_rows)
            for query in np.flatnonzero(is_in_chunk.any(1)).tolist():
                of_query = slice(query_limits[query], query_limits[query + 1])
                reached_rows, reached_scores = _score_chunk(lists, sums, dims[of_query], weights[of_query])
                chunk_scores = np.full(chunk_rows, -np.inf)
                chunk_scores[reached_rows] = reached_scores
                query_rows = rows[query, is_in_chunk[query]]
                scores[query, is_in_chunk[query]] = chunk_scores[query_rows - chunk_start]
        return scores

    def search_encodings(
        self, index: VectorIndex, passages: CachedPassages, query_encodings: SparseVectors, query_count: int, top_k: int
    ) -> Iterator[tuple[Rows, Scores]]:
        """Yield (rows, scores) for each query, unsorted: the ``top_k`` best passages, and those that tie with the last.

        Passages with the score 0 are omitted.
        """
        query_numbers, dims, weights = query_encodings
        # The weights of query n are those from query_limits[n] to query_limits[n + 1].
        query_limits = np.searchsorted(query_numbers, np.arange(query_count + 1))
        best = BestHits(query_count, top_k)
        chunk_rows = index.manifest["shard_rows"]
        with show_progress(total=len(passages), unit="passage", label="search") as bar:
            for chunk_number, chunk in enumerate(index.chunks):
                lists = _read_lists(index, chunk)
                chunk_start = chunk_number * chunk_rows
                # One sum for each passage, up to the last passage with a weight.
                sums = np.zeros(int(lists.rows.max(initial=-1)) + 1)
                with bar.task(min(chunk_rows, len(passages) - chunk_start)):
                    for query in range(query_count):
                        of_query = slice(query_limits[query], query_limits[query + 1])
                        rows, scores = _score_chunk(lists, sums, dims[of_query], weights[of_query])
                        best.add(query, rows + chunk_start, scores)
                        report_share((query + 1) / query_count)
        return iter(best)


def _read_lists(index: VectorIndex, chunk: str) -> _Lists:
    """Memory-map the inverted index of a chunk."""
    dims, starts, rows, weights = index.arrays(chunk, "/dims", "/starts", "/rows", "/weights")
    return _Lists(dims, starts, rows, weights)


def _score_chunk(lists: _Lists, sums: Scores, query_dims: Rows, query_weights: Floats) -> tuple[Rows, Scores]:
    """Return the passages of a chunk with a score above 0 for a query, and the scores, rounded to 32 bits.

    ``sums`` is memory for one number per passage. Its content is overwritten.
    """
    sums[:] = 0
    positions = np.searchsorted(lists.dims, query_dims)
    for position, dim, weight in zip(positions.tolist(), query_dims.tolist(), query_weights.tolist(), strict=True):
        if position == len(lists.dims) or lists.dims[position] != dim:
            continue  # no passage of the chunk has this dimension
        in_list = slice(lists.starts[position], lists.starts[position + 1])
        # += is correct because a list has each passage once. Products of 32-bit numbers fit into 64 bits.
        sums[lists.rows[in_list]] += weight * lists.weights[in_list].astype(np.float64)
    rounded_scores = sums.astype(np.float32)
    scored_rows = np.flatnonzero(rounded_scores > 0)
    return scored_rows, rounded_scores[scored_rows].astype(np.float64)
