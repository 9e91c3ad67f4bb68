"""A dual-encoder's similarities of queries and passages of a release, in any process: for `mine`."""

from __future__ import annotations

import functools
from collections.abc import Sequence

import numpy as np

from baselines.models.cross import CrossJob, Group
from baselines.models.encoder import Encoder
from baselines.models.loading import open_encoder
from baselines.passages import Passages, open_passages
from builders.store.reader import open_release


@functools.lru_cache(maxsize=1)
def encoders(job: CrossJob, device: str) -> tuple[Encoder, Encoder, Passages]:
    """This process's model, as it encodes queries and as it encodes passages, and the passages: opened once."""
    model = open_encoder(job.settings, device, job.dtype)
    sides = (Encoder(model, task, job.tokens, job.tokenizers) for task in ("query", "document"))
    return *sides, open_passages(open_release(job.release), job.corpus)  # type: ignore[return-value]


def similarities(job: CrossJob, device: str, groups: Sequence[Group]) -> list[list[float]]:
    """What the model compares by (cosine or dot product) of each query with its passages, in their order.

    The collection has every passage. One that comes for several queries is encoded once.
    """
    of_queries, of_passages, passages = encoders(job, device)
    asked = [(text, ids) for text, ids in groups if ids]
    if not asked:
        return [[] for _ in groups]
    every = {corpus: number for number, corpus in enumerate(dict.fromkeys(c for _, ids in asked for c in ids))}
    vectors = of_passages.encode(passages.texts(passages.rows(list(every)).tolist())).astype(np.float32)
    queries = iter(of_queries.encode([text for text, _ in asked]).astype(np.float32))
    return [(vectors[[every[c] for c in ids]] @ next(queries)).tolist() if ids else [] for _, ids in groups]
