"""Scores of queries and passages of a release by a model, in any process: for `rerank`, `mine` and `match`."""

from __future__ import annotations

import argparse
import functools
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from baselines.retrieve.dense import Dense
from baselines.retrieve.devices import Work, over_devices, work_of
from baselines.retrieve.encoder import Encoder
from baselines.retrieve.hub_models import commit_of
from baselines.retrieve.index import resumed
from baselines.retrieve.kinds import open_reranker
from baselines.retrieve.models import kind_of_reranker
from baselines.retrieve.passages import Passages, open_passages
from baselines.retrieve.rerankers import Reranker
from baselines.retrieve.settings import ModelSettings
from builders.core.errors import log
from builders.core.progress import progress
from builders.store.reader import Release, open_release

Group = tuple[str, list[str]]  # a query's text, ids of passages
WINDOW = 256  # queries scored together
ASKED = 16  # queries that an endpoint is asked about: what a kill may lose costs money


@dataclass(frozen=True)
class PairJob:
    """All that a process needs to score pairs. The passages are the texts of ``corpus``/``split``."""

    release: Path
    corpus: str
    split: str
    settings: ModelSettings
    kind: str
    work: Work

    def reranker(self, device: str) -> Reranker:
        """The model of the job, for one device."""
        return open_reranker(self.settings, replace(self.work, devices=(device,)), self.kind)


def pair_job(args: argparse.Namespace, model: str, release: Release, corpus: str, split: str = "corpus") -> PairJob:
    """The job that the options (:func:`.settings.add_pairs` and ``add_device``) ask for.

    The model is of the kind of its own files, unless ``--kind`` names one (:mod:`.kinds`).
    """
    kind = getattr(args, "kind", None) or ""
    listwise = kind == "listwise"  # what an endpoint is asked, no device of this machine computes
    settings = ModelSettings(
        model,
        revision=args.revision if listwise else commit_of(model, args.revision),
        max_length=args.max_length,
        query_prompt=getattr(args, "prompt", None),
        trust_remote_code=getattr(args, "trust_remote_code", False),
    )
    work = Work(("cpu",), "fp32", parallel=args.parallel) if listwise else work_of(args)
    return PairJob(release.path, corpus, split, settings, kind or kind_of_reranker(settings), work)


@functools.lru_cache(maxsize=1)
def _reranker(job: PairJob, device: str) -> tuple[Reranker, Passages]:
    """This process's model and passages, opened once."""
    return job.reranker(device), open_passages(open_release(job.release), job.corpus, split=job.split)


def score_groups(job: PairJob, device: str, groups: Sequence[Group]) -> list[list[float]]:
    """A re-ranker's scores of each query's passages, in their order. The collection has every passage."""
    reranker, passages = _reranker(job, device)
    rows = passages.rows([corpus for _, ids in groups for corpus in ids])
    texts = iter(passages.texts(rows.tolist()))
    pairs = [(query, next(texts)) for query, ids in groups for _ in ids]
    scores = iter(reranker.score(pairs))
    return [[next(scores) for _ in ids] for _, ids in groups]


def score_windows(
    job: PairJob, groups: Sequence[Group], work: Path, label: str, window: int | None = None
) -> list[list[float]]:
    """:func:`score_groups` by all devices of the job; finished windows are kept in the folder ``work``.

    ``window``: queries scored together. The folder is of these groups, this job and this window alone.
    """
    window = window or WINDOW
    if done := len(list(work.glob("window-*.json"))):
        log.info("%d windows of %d queries are done already", done, window)
    starts = enumerate(range(0, len(groups), window))
    tasks = ((job, work / f"window-{n:06d}.json", groups[start : start + window]) for n, start in starts)
    scores: list[list[float]] = []
    try:
        with progress(total=len(groups), unit="query", label=label) as bar:
            for found in over_devices(_score_window, tasks, job.work.devices):
                scores += found
                bar.update(len(found))
    finally:
        _reranker.cache_clear()
    return scores


def _score_window(task: tuple[PairJob, Path, Sequence[Group]], device: str) -> list[list[float]]:
    """The scores of a window's passages, query by query: computed, or found done."""
    job, path, groups = task

    def is_right(scores: list[list[float]]) -> bool:
        return [len(own) for own in scores] == [len(ids) for _, ids in groups]

    def score() -> list[list[float]]:
        # 32-bit scores by their shortest digits.
        return [[float(f"{score:.9g}") for score in own] for own in score_groups(job, device, groups)]

    scores: list[list[float]] = resumed(path, list[list[float]], is_right, score)
    return scores


@functools.lru_cache(maxsize=2)
def _encoder(settings: ModelSettings, work: Work, device: str, task: str) -> Encoder:
    """This process's dual-encoder, as it encodes queries or passages."""
    found: Encoder = Dense(settings, work).encoder(device, task)
    return found


def similarities(job: PairJob, device: str, groups: Sequence[Group]) -> list[list[float]]:
    """A dual-encoder's similarities (cosine or dot product) of each query with its passages, in their order.

    The collection has every passage. One that comes for several queries is encoded once.
    """
    of_queries, of_passages = (_encoder(job.settings, job.work, device, task) for task in ("query", "document"))
    passages = open_passages(open_release(job.release), job.corpus)
    asked = [(text, ids) for text, ids in groups if ids]
    if not asked:
        return [[] for _ in groups]
    every = {corpus: number for number, corpus in enumerate(dict.fromkeys(c for _, ids in asked for c in ids))}
    vectors = of_passages.encode(passages.texts(passages.rows(list(every)).tolist())).astype(np.float32)
    queries = iter(of_queries.encode([text for text, _ in asked]).astype(np.float32))
    return [(vectors[[every[c] for c in ids]] @ next(queries)).tolist() if ids else [] for _, ids in groups]
