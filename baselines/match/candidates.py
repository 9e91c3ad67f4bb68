"""Which training questions may ask what a question asks: the best by words, and the best by a dual-encoder.

86,395 training questions times 6,000 of dev and test are 518 M pairs, too many for a cross-encoder.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from baselines.bm25.index import INDEXES, open_index
from baselines.bm25.index import search as search_words
from baselines.encode import ROWS_ON_CPU, ROWS_ON_GPU
from baselines.encode.chunks import Job, encode
from baselines.models.devices import batch_tokens, dtype_of, tokenizers
from baselines.models.loading import commit_of, fingerprint, open_dual
from baselines.models.settings import ModelSettings
from baselines.passages import open_passages
from baselines.search.retrieve import id_ranks, named
from baselines.vectors import scan
from baselines.vectors.embeddings import Vectors, read_vectors
from baselines.vectors.engines import TorchEngine
from builders.core.limits import usable_cores
from builders.store.reader import Release

if TYPE_CHECKING:
    from baselines.bm25.engine_numba import NumbaIndex

TRAIN = "train"
Found = dict[str, list[str]]  # of each question, by its id: ids of training questions, best first
Questions = Sequence[tuple[str, str]]  # ids and texts


@dataclass(frozen=True)
class ByWords:
    """Candidates by BM25 over the training questions."""

    index: NumbaIndex

    @property
    def about(self) -> Any:
        """What the candidates depend on beside the questions."""
        return self.index.folder.name  # the key of all that it depends on

    def candidates(self, questions: Questions, top_k: int) -> Found:
        """The ``top_k`` best of each question; fewer where fewer have a word of it."""
        found = search_words(self.index, questions, top_k, usable_cores())
        return {question: [train for train, _ in hits] for question, hits in found}


def by_words(release: Release, config: str) -> ByWords:
    """The training questions' BM25 index, from the kept ones."""
    return ByWords(open_index(release, INDEXES.home(), usable_cores(), config, split=TRAIN))


@dataclass(frozen=True)
class ByVectors:
    """Candidates by a dual-encoder, which encodes both sides as queries: both are questions."""

    model: str
    revision: str
    fingerprint: str
    devices: list[str]
    dtype: str

    @property
    def about(self) -> Any:
        return [self.fingerprint, self.dtype]

    def candidates(self, release: Release, config: str, splits: Sequence[str], top_k: int, work: Path) -> Found:
        """The ``top_k`` best of each question of some splits, exactly; embeddings are kept in the folder ``work``."""
        train = self._encoded(release, config, TRAIN, work)
        asked = [self._encoded(release, config, split, work) for split in splits]
        queries = np.concatenate([vectors.all() for vectors in asked])
        ids = [each for split in splits for each in release.table(config, split, ["_id"])["_id"].to_pylist()]
        engines = [TorchEngine(queries, 2 * top_k, device) for device in self.devices]
        found = scan.search(train, queries, engines, top_k, 2 * top_k, lambda: id_ranks(release, config, TRAIN))
        hits = named(found, open_passages(release, config, split=TRAIN), top_k)
        return {question: [other for other, _ in best] for question, best in zip(ids, hits, strict=True)}

    def _encoded(self, release: Release, config: str, split: str, work: Path) -> Vectors:
        device = self.devices[0]
        job = Job(
            release=release.path,
            config=config,
            split=split,
            settings=ModelSettings(self.model, revision=self.revision),
            dtype=self.dtype,
            batch_tokens=batch_tokens(device),
            tokenizers=tokenizers(self.devices),
            chunk_rows=ROWS_ON_CPU if device == "cpu" else ROWS_ON_GPU,
        )
        out = work / f"embeddings-{split}"
        encode(job, out, self.devices)
        return read_vectors(out)


def by_vectors(model: str, revision: str, dtype: str, devices: list[str]) -> ByVectors:
    """The dual-encoder, looked at; :class:`InputError` where it is none. ``revision``: of a model on the hub."""
    revision = commit_of(model, revision, "--encoder-revision")
    return ByVectors(
        model=model,
        revision=revision,
        fingerprint=fingerprint(open_dual(model, revision=revision)),
        devices=devices,
        dtype=dtype_of(dtype, devices[0]),
    )
