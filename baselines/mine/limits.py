"""Candidates that score like a positive, left out: by a cross-encoder, a bi-encoder, or the run that they come from."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

from baselines.mine.negatives import Candidates
from baselines.retrieve.scoring import Group, PairJob, score_groups, similarities
from builders.pool.ensemble import probability
from builders.store.runs import Run

Chosen = tuple[Candidates, list[str], int]  # the ids that are taken; how many candidates were left out
Score = Callable[[Sequence[Group]], list[list[float]]]


@dataclass(frozen=True)
class Limits:
    """How high a candidate may score; None: as high as it likes.

    Attributes:
        margin: below the best positive's score, by so much (RocketQA, 2021, Section 3.3).
        relative_margin: by this share of its size (NV-Retriever, 2024: TopK-PercPos).
        max_score: whatever the positives score.
    """

    margin: float | None = None
    relative_margin: float | None = None
    max_score: float | None = None

    def limit(self, positives: Sequence[float]) -> float:
        """The highest score that a candidate may have, where the known positives have these."""
        found = [math.inf] if self.max_score is None else [self.max_score]
        if positives:
            # Of several positives the best. sentence-transformers takes the weakest, which here may be a passage that
            # shares no more than some words with the answer: nearly everything would be left out.
            best = max(positives)
            if self.margin is not None:
                found.append(best - self.margin)
            if self.relative_margin is not None:
                found.append(best - abs(best) * self.relative_margin)  # also where scores are negative
        return min(found)


def by_model(task: tuple[PairJob, str, list[tuple[str, Candidates]], Limits], device: str) -> list[Chosen]:
    """What is taken of each query of a window (its text, its candidates), scored by a model: ``cross`` or ``dual``."""
    job, kind, window, limits = task

    def score(groups: Sequence[Group]) -> list[list[float]]:
        if kind == "dual":
            return similarities(job, device, groups)
        return [[probability(logit) for logit in logits] for logits in score_groups(job, device, groups)]

    return _within(window, score, limits)


def by_run(found: Iterable[Candidates], given: Run, limits: Limits) -> Iterator[Chosen]:
    """What is taken of each query by the scores of the run itself.

    A positive that the run lacks scores no higher than its last passage, and counts as if it scored as much.
    """

    def score(groups: Sequence[Group]) -> list[list[float]]:
        every = []
        for query, ids in groups:
            hits = given.hits.get(query, [])
            own = dict(reversed(hits))  # of a passage twice, the higher score
            every.append([own.get(corpus, hits[-1][1]) for corpus in ids] if hits else [])
        return every

    for each in found:
        yield from _within([(each.query, each)], score, limits)


def _within(window: Sequence[tuple[str, Candidates]], score: Score, limits: Limits) -> list[Chosen]:
    """The first ``asked`` candidates of each query that pass; a candidate is scored only when it is needed."""
    highest = [limits.limit(scores) for scores in score([(name, each.positives) for name, each in window])]
    taken: list[list[str]] = [[] for _ in window]
    looked_at = [0] * len(window)
    while True:
        groups = []
        for number, (name, each) in enumerate(window):
            start, wanted = looked_at[number], each.asked - len(taken[number])
            groups.append((name, each.ids[start : start + wanted]))
            looked_at[number] += len(groups[-1][1])
        if not any(ids for _, ids in groups):
            return [(each, ids, seen - len(ids)) for (_, each), ids, seen in zip(window, taken, looked_at, strict=True)]
        for number, scores in enumerate(score(groups)):
            passed = [value <= highest[number] for value in scores]
            taken[number] += [corpus for corpus, good in zip(groups[number][1], passed, strict=True) if good]
