"""Scores of question pairs by a question-matching model, as ``python -m baselines match`` writes them.

A TREC run whose query-id is a development or test question's id, its corpus-id the id (the MD5 of the text) of a
training question, its score the probability that the two ask the same.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path

from builders.common.command import InputError
from builders.similar.likeness import THRESHOLD, Like
from builders.store.runs import read_run


def is_similar(score: float, threshold: float = THRESHOLD) -> bool:
    """Whether a model's score marks two questions as similar: it is higher than 0.5 (Section 2.3)."""
    return score > threshold


def read_scores(paths: Iterable[Path], threshold: float = THRESHOLD) -> dict[str, list[Like]]:
    """By training question's id, the questions that it is similar to, the highest score first; all runs count.

    Raises :class:`InputError` for a run that cannot be read, or with a score outside of 0 to 1 (a logit, say).
    """
    best: defaultdict[str, dict[str, float]] = defaultdict(dict)
    for path in paths:
        for question, hits in read_run(path).hits.items():
            for trained, score in hits:
                if not 0 <= score <= 1:
                    raise InputError(
                        f"expected scores from 0 to 1, found {score} for {question} and {trained}; `python -m baselines"
                        " match` writes such a run",
                        path=path,
                    )
                if is_similar(score, threshold):
                    best[trained][question] = max(score, best[trained].get(question, 0.0))
    return {
        trained: [
            Like(each, "model", score) for each, score in sorted(found.items(), key=lambda item: (-item[1], item[0]))
        ]
        for trained, found in best.items()
    }
