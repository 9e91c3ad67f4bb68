"""Late interaction (MultiVectorEncoder, ColBERT and PyLate checkpoints): a vector a token, compared by MaxSim.

A passage's score is the sum, over the query's tokens, of the largest inner product with one of its tokens. The index is
all vectors, in 16 bits, and the search is exact: every passage is scored (in 32 bits, by the library), and what may be
among the best is scored again in 64 bits, so that a score depends on the pair alone. That is for collections of some
100,000 passages (a passage of 200 tokens of 128 dimensions takes 51 kB): of the paper's 8 million, search a sample
(`add samples`), or re-rank another run.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from sentence_transformers import MultiVectorEncoder
from sentence_transformers.util.similarity import maxsim

from baselines.retrieve.detect_kind import kind_of_model
from baselines.retrieve.devices import moved
from baselines.retrieve.encoder import Halves, Side, widened
from baselines.retrieve.index import Arrays, Best, Job, Part, PartsRetriever, Scores
from baselines.retrieve.model_checks import check_reading
from baselines.retrieve.models import expect_no, open_as, shorten
from baselines.retrieve.passages import Rows
from baselines.retrieve.settings import ModelSettings
from builders.core.errors import InputError

_TOKENS = 1 << 17  # of passages at a time: 67 MB in 32 bits at 128 dimensions


def open_multi_vector(settings: ModelSettings) -> MultiVectorEncoder:
    """A late-interaction model, used as ``settings`` say, in fp32 on the CPU. Raises :class:`InputError`."""
    expect_no(settings, "a late-interaction model", "pooling", "truncate_dim", "normalize", "similarity")
    if kind_of_model(settings) != "multi-vector":  # the library would make one, with a random projection
        raise InputError("is no late-interaction model: not saved as one", path=settings.name)
    model: MultiVectorEncoder = open_as(MultiVectorEncoder, settings)
    shorten(model, settings.max_length)
    check_reading(model, settings)
    return model


class TokenSide(Side):
    """A late-interaction model's side for queries or for passages."""

    def encode(self, texts: Sequence[str]) -> list[Halves]:
        """The vectors of each text's tokens, shape (tokens, dimensions): those that count in MaxSim."""
        found: list[Halves] = [np.empty((0, 0), np.float16)] * len(texts)
        for batch, vectors in self.batches(texts, self._embed):
            for number, own in zip(batch.tolist(), vectors, strict=True):
                found[number] = own
        self.expect_finite(*found)
        return found

    def _embed(self, features: dict[str, Any]) -> list[Halves]:
        features = self.model(features, task=self.task)
        vectors, counted = features["token_embeddings"].half().cpu(), features["attention_mask"].bool().cpu()
        return [own[mask].numpy() for own, mask in zip(vectors, counted, strict=True)]


@functools.lru_cache(maxsize=1)
def _side(job: Job, device: str) -> TokenSide:
    model = moved(open_multi_vector(job.settings), device, job.dtype)
    return TokenSide(model, "document", job.batch_tokens, job.tokenizers)


def encode_chunk(job: Job, device: str, texts: list[str]) -> Arrays:
    """The vectors of the passages' tokens, one passage after the other, where each ends, and the longest's length."""
    found = _side(job, device).encode(texts)
    vectors = np.concatenate(found)
    norm = np.linalg.norm(widened(vectors), axis=1).max(initial=0)
    return {"/vectors": vectors, "/ends": np.cumsum([0, *map(len, found)]), "/longest": np.array([norm], np.float64)}


class MultiVector(PartsRetriever):
    """A late-interaction model."""

    def open_model(self) -> MultiVectorEncoder:
        return open_multi_vector(self.settings)

    def found(self, parts: Sequence[Part], queries: Sequence[str], top_k: int) -> Iterator[tuple[Rows, Scores]]:
        _side.cache_clear()
        device = self.work.devices[0]
        model = moved(self.open_model(), device, self.work.dtype)
        asked = TokenSide(model, "query", self.work.batch_tokens).encode(queries)
        tokens = [torch.from_numpy(widened(own)) for own in asked]
        lengths = np.array([float(own.norm(dim=1).sum()) for own in tokens])
        opened = [_Vectors(part) for part in parts]
        # What a sum of so many products of 32-bit floats can be off, twice for good measure.
        slack = 2 * asked[0].shape[1] * 2.0**-22 * lengths * max(each.longest for each in opened)
        best = Best(len(queries), top_k, slack)
        some = [number for number, own in enumerate(asked) if len(own)]
        for each in opened:
            for rows, vectors in each.blocks():
                scores = maxsim([tokens[number] for number in some], vectors, device=device).double().numpy()
                for number, own in zip(some, scores, strict=True):
                    best.add(number, rows, own)
        starts = np.array([part.start for part in parts])
        mean = model.similarity_fn_name == "meanmaxsim"
        for own, (rows, _) in zip(asked, best, strict=True):
            query = own.astype(np.float64)
            where = np.searchsorted(starts, rows, side="right") - 1
            again = [
                _score(query, opened[part].of(row)) for part, row in zip(where.tolist(), rows.tolist(), strict=True)
            ]
            yield _kept(rows, np.array(again) / (len(own) if mean and len(own) else 1), top_k)


def _score(query: npt.NDArray[np.float64], passage: Halves) -> float:
    """MaxSim in 64 bits."""
    return float((query @ passage.astype(np.float64).T).max(axis=1).sum())


def _kept(rows: Rows, scores: Scores, top_k: int) -> tuple[Rows, Scores]:
    """The best of some candidates, and all that tie with the last of them in 32 bits."""
    rounded = scores.astype(np.float32).astype(np.float64)
    best = Best(1, top_k)
    best.add(0, rows, rounded)
    return next(iter(best))


class _Vectors:
    """The vectors of a part's passages."""

    def __init__(self, part: Part) -> None:
        self._part, self._ends = part, np.asarray(part.array("ends"))
        self._vectors = part.array("vectors")
        self.longest = float(part.array("longest")[0])

    def of(self, row: int) -> Halves:
        """A passage's vectors, by its row in the collection."""
        number = row - self._part.start
        return np.asarray(self._vectors[self._ends[number] : self._ends[number + 1]])

    def blocks(self) -> Iterator[tuple[Rows, list[torch.Tensor]]]:
        """(rows, vectors in 32 bits of each) of some passages, those that have any; all in turn."""
        begin, last = 0, len(self._ends) - 1
        while begin < last:
            end = max(begin + 1, int(np.searchsorted(self._ends, self._ends[begin] + _TOKENS, side="right")) - 1)
            wide = torch.from_numpy(widened(np.asarray(self._vectors[self._ends[begin] : self._ends[end]])))
            sizes = np.diff(self._ends[begin : end + 1])
            vectors = torch.split(wide, sizes.tolist())
            yield np.flatnonzero(sizes) + begin + self._part.start, [own for own in vectors if len(own)]
            begin = end
