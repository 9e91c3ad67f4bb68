"""A re-ranker's scores of queries and passages of a release, in any process: for `rerank`, `mine` and `match`."""

from __future__ import annotations

import argparse
import functools
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from baselines.kinds import Reranker, Work, open_reranker
from baselines.models.devices import batch_tokens, dtype_of, tokenizers
from baselines.models.loading import commit_of
from baselines.models.settings import ModelSettings
from baselines.passages import Passages, open_passages
from builders.store.reader import Release, open_release

Group = tuple[str, list[str]]  # a query's text, ids of passages


@dataclass(frozen=True)
class CrossJob:
    """What a process needs to score pairs. The passages are the texts of ``corpus``/``split``."""

    release: Path
    corpus: str
    split: str
    settings: ModelSettings
    dtype: str
    tokens: int
    tokenizers: int
    kind: str = "cross"
    parallel: int = 1

    def reranker(self, device: str) -> Reranker:
        """The model of the job, for one device."""
        work = Work([device], self.dtype, self.tokens, self.tokenizers, self.parallel)
        return open_reranker(self.settings, work, self.kind)


def cross_job(
    args: argparse.Namespace, model: str, release: Release, corpus: str, devices: list[str], split: str = "corpus"
) -> CrossJob:
    """The job that the options (:func:`baselines.models.options.add_pairs` and ``add_device``) ask for.

    The model is of the kind that its own files say, where ``--kind`` says none (:mod:`baselines.kinds`).
    """
    from baselines.kinds.told import reranker_told

    kind = getattr(args, "kind", None) or ""
    settings = ModelSettings(
        model,
        revision=commit_of(model, args.revision) if kind != "listwise" else args.revision,
        max_length=args.max_length,
        query_prompt=getattr(args, "prompt", None),
        trust_remote_code=getattr(args, "trust_remote_code", False),
    )
    return CrossJob(
        release=release.path,
        corpus=corpus,
        split=split,
        settings=settings,
        dtype=dtype_of(args.dtype, devices[0]),
        tokens=args.batch_tokens or batch_tokens(devices[0]),
        tokenizers=tokenizers(devices) if args.tokenizers is None else args.tokenizers,
        kind=kind or reranker_told(settings),
        parallel=getattr(args, "parallel", 1),
    )


@functools.lru_cache(maxsize=1)
def scorer(job: CrossJob, device: str) -> tuple[Reranker, Passages]:
    """This process's model and passages, opened once."""
    return job.reranker(device), open_passages(open_release(job.release), job.corpus, split=job.split)


def score_groups(job: CrossJob, device: str, groups: Sequence[Group]) -> list[list[float]]:
    """The scores of each query's passages, in their order. The collection has every passage."""
    reranker, passages = scorer(job, device)
    rows = passages.rows([corpus for _, ids in groups for corpus in ids])
    texts = iter(passages.texts(rows.tolist()))
    pairs = [(query, next(texts)) for query, ids in groups for _ in ids]
    scores = iter(reranker.score(pairs))
    return [[next(scores) for _ in ids] for _, ids in groups]
