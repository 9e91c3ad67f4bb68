"""Late interaction (MultiVectorEncoder, ColBERT and PyLate checkpoints): one vector per token, compared by MaxSim.

For each token of the query, MaxSim takes the largest inner product with a token of the passage. The score is the sum of
these products. The index has all vectors in 16 bits.

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

from baselines.core.passages import Passages, Rows
from baselines.retrieve.encoder import Halves, Side, encode_queries
from baselines.retrieve.index_files import Index
from baselines.retrieve.model_kinds import kind_of_model
from baselines.retrieve.models import expect_no, open_as, shorten
from baselines.retrieve.reading_checks import check_reading, check_room_for_texts
from baselines.retrieve.search_engines import widened
from baselines.retrieve.vector_index import Arrays, Best, Retriever, Scores
from builders.core.errors import InputError
from builders.core.progress import progress

_TOKENS = 1 << 17  # tokens of passages per step: 67 MB in 32 bits at 128 dimensions


class TokenSide(Side):
    """The query or passage encoder of a late-interaction model."""

    def encode(self, texts: Sequence[str]) -> list[Halves]:
        """Return each text's vectors for MaxSim, shape (tokens, dimensions)."""
        found: list[Halves] = [np.empty((0, 0), np.float16)] * len(texts)
        for batch, vectors in self.batches(texts, self._embed):
            for number, own in zip(batch.tolist(), vectors, strict=True):
                found[number] = own
        self.expect_finite(*found)
        self.expect_no_tiny_vectors()
        return found

    def _embed(self, features: dict[str, Any]) -> list[Halves]:
        features = self.model(features, task=self.task)
        vectors, counted = self.halves(features["token_embeddings"]).cpu(), features["attention_mask"].bool().cpu()
        return [own[mask].numpy() for own, mask in zip(vectors, counted, strict=True)]


class MultiVector(Retriever):
    kind, side = "multi-vector 2", TokenSide

    def open_model(self) -> MultiVectorEncoder:
        settings = self.settings
        expect_no(settings, "a late-interaction model", "pooling", "truncate_dim", "normalize", "similarity")
        if kind_of_model(settings) != "multi-vector":  # the library would add a random projection
            raise InputError("is no late-interaction model; expected a ColBERT checkpoint", path=settings.name)
        model = open_as(MultiVectorEncoder, settings)
        shorten(model, settings)
        check_room_for_texts(model, settings.name)
        check_reading(model, settings)
        return model

    def arrays(self, found: list[Halves]) -> Arrays:
        """Return the vectors of all tokens, passage by passage, and the limits of each passage's vectors."""
        return {"/vectors": np.concatenate(found), "/ends": np.cumsum([0, *map(len, found)])}

    def pair_scores(self, index: Index, queries: list[Halves], rows: Rows) -> Scores:
        chunks = [index.arrays(chunk, "/vectors", "/ends") for chunk in index.chunks]
        found = np.full(rows.shape, -np.inf)
        for number, own in enumerate(queries):
            found[number, rows[number] >= 0] = _exact(index, chunks, own, rows[number][rows[number] >= 0])
        return found

    def found(
        self, index: Index, passages: Passages, queries: Sequence[str], top_k: int
    ) -> Iterator[tuple[Rows, Scores]]:
        device, rows_each = self.work.devices[0], index.manifest["shard_rows"]
        asked = encode_queries(self.encoder(device, "query"), queries)
        tokens = [torch.from_numpy(widened(own)) for own in asked]
        lengths = np.array([float(own.norm(dim=1).sum()) for own in tokens])
        # The error bound of a 32-bit sum of products, doubled for safety.
        best = Best(len(queries), top_k, 2 * asked[0].shape[1] * 2.0**-22 * lengths * index.longest)
        some = [number for number, own in enumerate(asked) if len(own)]
        chunks = [index.arrays(chunk, "/vectors", "/ends") for chunk in index.chunks]
        token_count = sum(len(vectors) for vectors, _ in chunks)
        with progress(total=token_count, unit="token", label="search") as bar:
            for chunk, (vectors, ends) in enumerate(chunks):
                for rows, block in _blocks(vectors, ends):
                    scores = maxsim([tokens[number] for number in some], block, device=device).double().numpy()
                    for number, own in zip(some, scores, strict=True):
                        best.add(number, rows + chunk * rows_each, own)
                    bar.update(sum(map(len, block)))
        pairs = zip(asked, best, strict=True)
        for own, (rows, _) in progress(pairs, total=len(asked), unit="query", label="score"):
            yield rows, _exact(index, chunks, own, rows)


def _exact(index: Index, chunks: list[list[npt.NDArray[Any]]], query: Halves, rows: Rows) -> Scores:
    """Return the scores of a query and rows of an index, computed in 64 bits."""
    size, mean = index.manifest["shard_rows"], index.manifest["similarity"] == "meanmaxsim"
    found = np.array([_score(query, chunks[row // size], row % size) for row in rows.tolist()])
    return found / (len(query) if mean and len(query) else 1)


def _score(query: Halves, chunk: list[npt.NDArray[Any]], row: int) -> float:
    vectors, ends = chunk
    if not len(query) or ends[row] == ends[row + 1]:
        return -np.inf
    passage = vectors[ends[row] : ends[row + 1]].astype(np.float64)
    return float((query.astype(np.float64) @ passage.T).max(axis=1).sum())


def _blocks(vectors: Halves, ends: Rows) -> Iterator[tuple[Rows, list[torch.Tensor]]]:
    """Yield (rows, vectors of each row in 32 bits) for groups of passages. Passages without tokens are skipped."""
    begin, last = 0, len(ends) - 1
    while begin < last:
        end = max(begin + 1, int(np.searchsorted(ends, ends[begin] + _TOKENS, side="right")) - 1)
        sizes = np.diff(ends[begin : end + 1])
        block = torch.split(torch.from_numpy(widened(vectors[ends[begin] : ends[end]])), sizes.tolist())
        yield np.flatnonzero(sizes) + begin, [own for own in block if len(own)]
        begin = end
