"""An ensemble of re-rankers: the mean of their scores, and the best passages by it (Section 2.3, A.1)."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from builders.core.errors import InputError, log
from builders.pool.pairs import Pooled
from builders.pool.union import Union
from builders.store.judged import Judged
from builders.store.runs import Run

Scores = dict[str, dict[str, float]]  # by query, by passage


def probability(logit: float) -> float:
    """The sigmoid: what a cross-encoder predicts of a pair, from its logit."""
    return 1 / (1 + math.exp(-logit)) if logit >= 0 else math.exp(logit) / (1 + math.exp(logit))


def mean_scores(candidates: Union, runs: Sequence[Run], scale: str) -> Scores:
    """The mean of the re-rankers' scores of every candidate.

    "We then ensemble these four re-ranking models by averaging their prediction scores for each query-passage pair"
    (A.1).

    Args:
        runs: each one re-ranker's scores; what they hold beside the candidates is passed over.
        scale: ``sigmoid``: scores are logits, of which the probabilities are averaged; ``none``: as they are.

    Raises :class:`InputError` where a run lacks a candidate: a mean of fewer scores would not compare.
    """
    every = ((query, passage) for query, passage, _ in candidates.pairs())
    found: Scores = {query: {} for query in candidates.ranks}
    for (query, passage), *scores in zip(every, *columns(candidates, runs, scale, "pool candidates"), strict=True):
        # Summed exactly: the order of the re-rankers changes nothing.
        found[query][passage] = math.fsum(scores) / len(scores)
    return found


def columns(candidates: Union, runs: Sequence[Run], scale: str, made_by: str) -> list[list[float]]:
    """Each re-ranker's scores of every candidate, in the order of :meth:`Union.pairs`; see :func:`mean_scores`.

    ``made_by``: the command that wrote the candidates, for the error.
    """
    every = [(query, passage) for query, passage, _ in candidates.pairs()]
    found = []
    for run in runs:
        own = {query: dict(reversed(hits)) for query, hits in run.hits.items()}  # of a passage twice, the higher score
        if missing := [(query, passage) for query, passage in every if passage not in own.get(query, {})]:
            longest = max(map(len, candidates.ranks.values()))
            raise InputError(
                f"lacks {len(missing):,} of {len(every):,} candidates (query {missing[0][0]}, passage {missing[0][1]});"
                f" expected scores of all: `{made_by}`, then `baselines rerank --top-k {longest}`",
                path=run.path,
            )
        values = [own[query][passage] for query, passage in every]
        if scale == "sigmoid" and every and all(0 <= value <= 1 for value in values):
            log.warning("%s: scores from 0 to 1 look like probabilities, not logits: --scale none?", run.path)
        found.append(list(map(probability, values)) if scale == "sigmoid" else values)
    return found


def select(scores: Scores, union: Union, judged: Judged, top: int, old: Sequence[Pooled] = ()) -> Iterator[Pooled]:
    """The ``top`` best candidates of each query by their mean score, ties broken by passage id.

    Args:
        scores: of the candidates.
        union: where the runs have them.
        judged: the release's qrels.
        old: an earlier pool: its pairs take part with the scores that they have there, and are not given again.
    """
    known: Scores = {}
    for pair in old:
        known.setdefault(pair.query_id, {})[pair.corpus_id] = pair.score
    for query, found in scores.items():
        before = known.get(query, {})
        ordered = sorted((found | before).items(), key=lambda item: (-item[1], item[0]))
        for rank, (passage, score) in enumerate(ordered[:top], 1):
            if passage not in before:
                label = judged.get(query, {}).get(passage)
                yield Pooled(query, passage, rank, score, union.places(query, passage), label)
