"""Late interaction (MultiVectorEncoder, ColBERT and PyLate checkpoints): one vector per token, compared by MaxSim.

For each token of the query, MaxSim takes the largest inner product with a token of the passage. The score is the sum of
these products. The index has all vectors in 16 bits. MaxSim is from ColBERT (Khattab and Zaharia, 2020). For example,
a query with two tokens and a passage with three tokens:

    ==============  =======  =======  =======  =======
    product with    token 1  token 2  token 3  largest
    ==============  =======  =======  =======  =======
    query token 1   0.2      0.9      0.1      0.9
    query token 2   0.4      0.3      0.5      0.5
    score                                      1.4
    ==============  =======  =======  =======  =======

The search is exact. The library first scores every passage in 32 bits. Then the best passages are scored again in 64
bits, so a score depends only on the pair. A passage of 200 tokens with 128 dimensions takes 51 kB, so the search suits
about 100,000 passages. For the paper's 8 million passages, search a sample (`add samples`) or re-rank another run.
"""

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from sentence_transformers import MultiVectorEncoder
from sentence_transformers.util.similarity import maxsim

from baselines.core.passages import CachedPassages, Rows
from baselines.retrieve.encoder import EncoderSide, Halves
from baselines.retrieve.exact_search import ERROR_PER_PRODUCT
from baselines.retrieve.index_files import VectorIndex
from baselines.retrieve.model_kinds import kind_of_model
from baselines.retrieve.models import expect_no, limit_length, open_as
from baselines.retrieve.reading_checks import check_reading, check_room_for_texts
from baselines.retrieve.search_engines import widen_embeddings
from baselines.retrieve.vector_index import Arrays, BestHits, Retriever, Scores
from builders.core.errors import InputError
from builders.core.progress import show_progress

_TOKENS = 1 << 17  # tokens of passages per step: 67 MB in 32 bits at 128 dimensions
# A passage can exceed the last of the best passages only if both scores are wrong by the largest error.
_COMPARED_SCORES = 2
# The vectors of all tokens, and the limits of each passage's vectors.
_Chunk = list[npt.NDArray[Any]]


class TokenSide(EncoderSide):
    """The query or passage encoder of a late-interaction model."""

    def encode(self, texts: Sequence[str]) -> list[Halves]:
        """Return each text's vectors for MaxSim, shape (tokens, dimensions)."""
        text_vectors: list[Halves] = [np.empty((0, 0), np.float16)] * len(texts)
        for indices, batch_vectors in self.batches(texts, self._embed):
            for index, token_vectors in zip(indices.tolist(), batch_vectors, strict=True):
                text_vectors[index] = token_vectors
        self.expect_finite(*text_vectors)
        self.expect_no_tiny_vectors()
        return text_vectors

    def _embed(self, features: dict[str, Any]) -> list[Halves]:
        """Return the vectors of each text of a batch, without padding and tokens that the model skips."""
        features = self.model(features, task=self.task)
        batch_vectors = self.halves(features["token_embeddings"]).cpu()
        masks = features["attention_mask"].bool().cpu()
        return [vectors[mask].numpy() for vectors, mask in zip(batch_vectors, masks, strict=True)]


class MultiVector(Retriever):
    kind = "multi-vector 2"
    side = TokenSide

    def open_model(self) -> MultiVectorEncoder:
        settings = self.settings
        expect_no(settings, "a late-interaction model", "pooling", "truncate_dim", "normalize", "similarity")
        if kind_of_model(settings) != "multi-vector":  # the library would add a random projection
            raise InputError("is no late-interaction model; expected a ColBERT checkpoint", path=settings.name)
        model = open_as(MultiVectorEncoder, settings)
        limit_length(model, settings)
        check_room_for_texts(model, settings.name)
        check_reading(model, settings)
        return model

    def arrays(self, encodings: list[Halves]) -> Arrays:
        """Return the vectors of all tokens, and their limits: passage n has those from ``ends[n]`` to ``ends[n + 1]``.

        The keys are the ends of the file names.
        """
        token_counts = [len(vectors) for vectors in encodings]
        return {"/vectors": np.concatenate(encodings), "/ends": np.cumsum([0, *token_counts])}

    def pair_scores(self, index: VectorIndex, query_encodings: list[Halves], rows: Rows) -> Scores:
        """Return the scores of each query and its line of ``rows``, rows of the index. Row -1 has the score -inf."""
        chunks = _map_chunks(index)
        scores = np.full(rows.shape, -np.inf)
        for query_number, query_vectors in enumerate(query_encodings):
            is_row = rows[query_number] >= 0
            scores[query_number, is_row] = _exact_scores(index, chunks, query_vectors, rows[query_number][is_row])
        return scores

    def search_encodings(
        self, index: VectorIndex, passages: CachedPassages, query_encodings: list[Halves], query_count: int, top_k: int
    ) -> Iterator[tuple[Rows, Scores]]:
        """Yield (rows, exact scores) for each query, unsorted: at least the ``top_k`` best passages."""
        device = self.work.devices[0]
        chunk_rows = index.manifest["shard_rows"]
        wide_queries = [torch.from_numpy(widen_embeddings(vectors)) for vectors in query_encodings]

        # Keep all passages that may be among the best, by the error bound of a 32-bit sum of products.
        summed_norms = np.array([float(vectors.norm(dim=1).sum()) for vectors in wide_queries])
        dimensions = query_encodings[0].shape[1]
        slack = _COMPARED_SCORES * dimensions * ERROR_PER_PRODUCT * summed_norms * index.longest
        best = BestHits(query_count, top_k, slack)

        # Score all passages in 32 bits. Queries without tokens have no scores.
        with_tokens = [number for number, vectors in enumerate(query_encodings) if len(vectors)]
        scored_queries = [wide_queries[number] for number in with_tokens]
        chunks = _map_chunks(index)
        if not scored_queries:
            chunks = []
        token_count = sum(len(vectors) for vectors, _ in chunks)
        with show_progress(total=token_count, unit="token", label="search") as bar:
            for chunk_number, (vectors, ends) in enumerate(chunks):
                chunk_start = chunk_number * chunk_rows
                for rows, passage_group in _group_passages(vectors, ends):
                    group_scores = maxsim(scored_queries, passage_group, device=device).double().numpy()
                    for query_number, scores in zip(with_tokens, group_scores, strict=True):
                        best.add(query_number, rows + chunk_start, scores)
                    bar.update(sum(len(passage_vectors) for passage_vectors in passage_group))

        # Score the best passages in 64 bits.
        queries_and_best = zip(query_encodings, best, strict=True)
        for vectors, (rows, _) in show_progress(
            queries_and_best, total=len(query_encodings), unit="query", label="score"
        ):
            yield rows, _exact_scores(index, chunks, vectors, rows)


def _map_chunks(index: VectorIndex) -> list[_Chunk]:
    """Memory-map the arrays of all chunks."""
    return [index.arrays(chunk, "/vectors", "/ends") for chunk in index.chunks]


def _exact_scores(index: VectorIndex, chunks: list[_Chunk], query_vectors: Halves, rows: Rows) -> Scores:
    """Return the scores of a query and rows of an index, computed in 64 bits.

    With the similarity meanmaxsim, a score is the mean over the query's tokens, else the sum.
    """
    chunk_rows = index.manifest["shard_rows"]
    scores = np.array(
        [_exact_score(query_vectors, chunks[row // chunk_rows], row % chunk_rows) for row in rows.tolist()]
    )
    is_mean = index.manifest["similarity"] == "meanmaxsim"
    divisor = len(query_vectors) if is_mean and len(query_vectors) else 1
    return scores / divisor


def _exact_score(query_vectors: Halves, chunk: _Chunk, row: int) -> float:
    """Return the score of a query and a row of a chunk, or -inf if one of them has no tokens."""
    vectors, ends = chunk
    start = ends[row]
    end = ends[row + 1]
    if not len(query_vectors) or start == end:
        return -np.inf
    products = query_vectors.astype(np.float64) @ vectors[start:end].astype(np.float64).T
    return float(products.max(axis=1).sum())


def _group_passages(vectors: Halves, ends: Rows) -> Iterator[tuple[Rows, list[torch.Tensor]]]:
    """Yield (rows, vectors of each row in 32 bits) for groups of passages. Passages without tokens are skipped.

    The vectors of row n are ``vectors[ends[n] : ends[n + 1]]``. A group has at most :data:`_TOKENS` tokens, or a single
    longer passage.
    """
    first_row = 0
    row_count = len(ends) - 1
    while first_row < row_count:
        # The group ends with the last passage that ends within the largest number of tokens.
        largest_end = ends[first_row] + _TOKENS
        end_row = int(np.searchsorted(ends, largest_end, side="right")) - 1
        end_row = max(first_row + 1, end_row)
        token_counts = np.diff(ends[first_row : end_row + 1])
        wide_vectors = torch.from_numpy(widen_embeddings(vectors[ends[first_row] : ends[end_row]]))
        vectors_by_row = torch.split(wide_vectors, token_counts.tolist())
        yield np.flatnonzero(token_counts) + first_row, [row for row in vectors_by_row if len(row)]
        first_row = end_row
