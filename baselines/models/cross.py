"""A cross-encoder's scores of queries and passages of a release, in any process: for `rerank`, `mine` and `match`."""

from __future__ import annotations

import argparse
import functools
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from baselines.models.devices import batch_tokens, dtype_of, tokenizers
from baselines.models.encoder import CrossScorer
from baselines.models.loading import commit_of, open_cross
from baselines.passages import Passages, open_passages
from builders.store.reader import Release, open_release

Group = tuple[str, list[str]]  # a query's text, ids of passages


@dataclass(frozen=True)
class CrossJob:
    """What a process needs to score pairs. The passages are the texts of ``corpus``/``split``."""

    release: Path
    corpus: str
    split: str
    model: str
    dtype: str
    tokens: int
    max_length: int | None
    revision: str
    tokenizers: int


def cross_job(
    args: argparse.Namespace, model: str, release: Release, corpus: str, devices: list[str], split: str = "corpus"
) -> CrossJob:
    """The job that the options (:func:`baselines.models.options.add_pairs` and ``add_device``) ask for."""
    return CrossJob(
        release=release.path,
        corpus=corpus,
        split=split,
        model=model,
        dtype=dtype_of(args.dtype, devices[0]),
        tokens=args.batch_tokens or batch_tokens(devices[0]),
        max_length=args.max_length,
        revision=commit_of(model, args.revision),
        tokenizers=tokenizers(devices) if args.tokenizers is None else args.tokenizers,
    )


@functools.lru_cache(maxsize=1)
def scorer(job: CrossJob, device: str) -> tuple[CrossScorer, Passages]:
    """This process's model and passages, opened once."""
    model = open_cross(job.model, device, job.dtype, job.max_length, job.revision)
    passages = open_passages(open_release(job.release), job.corpus, split=job.split)
    return CrossScorer(model, job.tokens, job.tokenizers), passages


def score_groups(job: CrossJob, device: str, groups: Sequence[Group]) -> list[list[float]]:
    """The logits of each query's passages, in their order. The collection has every passage."""
    cross, passages = scorer(job, device)
    rows = passages.rows([corpus for _, ids in groups for corpus in ids])
    texts = iter(passages.texts(rows.tolist()))
    pairs = [(query, next(texts)) for query, ids in groups for _ in ids]
    scores = iter(cross.scores(pairs).tolist() if pairs else [])
    return [[next(scores) for _ in ids] for _, ids in groups]
