"""Ranks on a sample of the dev split, small enough for the middle of a training. The test split is never read.

The sample: some dev queries, all their positives, and some passages of the whole collection, drawn with the recipe's
seed. The figures say whether a training goes well; they are no figures of the collection, which has millions more.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from baselines.passages import Passages
from baselines.runs.measures import PAPER, official
from baselines.runs.qrels import Qrels
from baselines.train.pairs import positives
from baselines.train.recipe import Recipe
from builders.common.command import log
from builders.store.layout import SETS
from builders.store.reader import Release

_OF_A_QUERY = 20  # passages that a cross-encoder ranks for one query, beside its positives


@dataclass
class DevSample:
    """Texts of some dev queries and passages; ``positive`` has the numbers of every query's passages."""

    queries: list[str]
    passages: list[str]
    positive: list[set[int]]
    seed: int

    def dual(self, model: Any, batch: int) -> dict[str, float]:
        """A dual-encoder's measures: every query against all passages of the sample."""
        queries = model.encode_query(self.queries, batch_size=batch, show_progress_bar=False)
        passages = model.encode_document(self.passages, batch_size=batch, show_progress_bar=False)
        scores = np.asarray(queries, np.float32) @ np.asarray(passages, np.float32).T
        return self._measures([np.argsort(-row, kind="stable").tolist() for row in scores])

    def cross(self, model: Any, batch: int) -> dict[str, float]:
        """A cross-encoder's measures: every query against its positives and some other passages of the sample."""
        pairs: list[tuple[str, str]] = []
        ranked: list[list[int]] = []
        for number, good in enumerate(self.positive):
            order = np.random.default_rng([self.seed, number]).permutation(len(self.passages)).tolist()
            others = [passage for passage in order if passage not in good][:_OF_A_QUERY]
            ranked.append([*sorted(good), *others])
            pairs += [(self.queries[number], self.passages[passage]) for passage in ranked[-1]]
        scores = np.asarray(model.predict(pairs, batch_size=batch, show_progress_bar=False), np.float32)
        rankings, start = [], 0
        for own in ranked:
            # Equal scores must not favour the positives, which come first here.
            order = np.lexsort((np.array(own), -scores[start : start + len(own)]))
            rankings.append([own[rank] for rank in order])
            start += len(own)
        return self._measures(rankings)

    def _measures(self, rankings: list[list[int]]) -> dict[str, float]:
        runs = {str(number): [str(passage) for passage in ranking] for number, ranking in enumerate(rankings)}
        qrels = Qrels("dev sample", {str(n): {str(p): 1 for p in good} for n, good in enumerate(self.positive)})
        found = official(runs, qrels)
        return {name: found[name] for name in PAPER.values()}


def dev_sample(release: Release, recipe: Recipe, passages: Passages) -> DevSample | None:
    """The sample for a recipe; None where it wants none, or the release has no such split (said in the log)."""
    data, configs = recipe.data, SETS[recipe.data.set]
    if not data.dev_queries or not recipe.train.evaluations:
        return None
    if not {(configs.queries, data.dev_split), (configs.qrels, data.dev_split)} <= set(release.splits()):
        log.info("%s has no split %r of %s: no evaluation during training", release.path, data.dev_split, data.set)
        return None
    texts, judged = positives(release, data.set, data.dev_split, passages)
    generator = np.random.default_rng([recipe.train.seed, 1])
    names = list(judged)
    chosen = [names[n] for n in sorted(generator.permutation(len(names))[: data.dev_queries].tolist())]
    rows = {row for name in chosen for row in judged[name]}
    rows |= set(generator.integers(len(passages), size=data.dev_passages).tolist())
    order = sorted(rows)
    number = {row: number for number, row in enumerate(order)}
    positive = [{number[row] for row in judged[name]} for name in chosen]
    return DevSample([texts[name] for name in chosen], passages.texts(order), positive, recipe.train.seed)
