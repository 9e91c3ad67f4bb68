"""Evaluation on a sample of the dev split, small enough for the middle of a training. The test split is never read.

The sample is drawn with the recipe's seed. Its scores show whether a training goes well. They are no scores on the
collection, which has millions more passages.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from baselines.measure.measures import PAPER, official
from baselines.measure.qrels import Qrels
from baselines.retrieve.passages import Passages
from baselines.train.data import positives
from baselines.train.recipe import Recipe
from builders.core.errors import log
from builders.store.layout import SETS, base_set
from builders.store.reader import Release
from builders.store.runs import read_run

_TOP = 20  # of a run, that a cross-encoder re-ranks for each query


@dataclass
class Sampled:
    """For a dual-encoder: some dev queries, all their positives, and some passages of the whole collection.

    Attributes:
        queries, passages: texts by id.
        positive: the ids of every query's positives.
    """

    queries: dict[str, str]
    passages: dict[str, str]
    positive: dict[str, set[str]]

    def measures(self, model: Any, batch: int) -> dict[str, float]:
        """The paper's measures of every query against all passages of the sample."""
        from sentence_transformers.sentence_transformer.evaluation import InformationRetrievalEvaluator

        depths: dict[str, list[int]] = {"mrr_at_k": [10], "accuracy_at_k": [1, 50], "precision_recall_at_k": [1]}
        unused: dict[str, list[int]] = {"ndcg_at_k": [1], "map_at_k": [1]}  # it wants some
        evaluator = InformationRetrievalEvaluator(
            *(self.queries, self.passages, self.positive), batch_size=batch, write_csv=False, **depths, **unused
        )
        found = evaluator(model)
        name = model.similarity_fn_name  # accuracy@k is the paper's Recall@k: a hit rate
        keys = (f"{name}_mrr@10", f"{name}_accuracy@1", f"{name}_accuracy@50")
        return {ours: float(found[key]) for ours, key in zip(PAPER.values(), keys, strict=True)}


@dataclass
class Reranked:
    """For a cross-encoder: some dev queries, each with what a run ranks first for it.

    A positive that the run has not there is missed, as when the run is re-ranked. (The library's
    CrossEncoderRerankingEvaluator has no Recall@1 and @50, and takes no model of two outputs.)

    Attributes:
        queries: texts by id.
        ranked: for every query ids of passages with their texts, in the run's order.
        positive: the ids of every query's positives.
    """

    queries: dict[str, str]
    ranked: dict[str, dict[str, str]]
    positive: dict[str, set[str]]
    length: int

    def measures(self, model: Any, batch: int) -> dict[str, float]:
        """The paper's measures of the run's top as the model orders it."""
        from baselines.retrieve.encoder import CrossScorer

        pairs = [(self.queries[query], text) for query, own in self.ranked.items() for text in own.values()]
        scores = iter(CrossScorer(model, tokens=batch * self.length).scores(pairs).tolist())
        # Equal scores are in the order of ids, as in every run: not in that of the run.
        order = {query: sorted((-next(scores), corpus) for corpus in own) for query, own in self.ranked.items()}
        return self._of({query: [corpus for _, corpus in own] for query, own in order.items()})

    def as_it_is(self) -> dict[str, float]:
        """The measures of the run's top itself."""
        return self._of({query: list(own) for query, own in self.ranked.items()})

    def _of(self, rankings: dict[str, list[str]]) -> dict[str, float]:
        qrels = Qrels("dev sample", {query: dict.fromkeys(good, 1) for query, good in self.positive.items()})
        found = official(rankings, qrels)
        return {name: found[name] for name in PAPER.values()}


def dev_sample(release: Release, recipe: Recipe, passages: Passages, run: Path | None) -> Sampled | Reranked | None:
    """The sample for a recipe; None where there is nothing to measure on (said in the log).

    ``run``: of the dev queries; what a cross-encoder re-ranks. Raises :class:`InputError` for a passage of it that is
    not there.
    """
    data, name = recipe.data, base_set(recipe.data.set)
    configs = SETS[name]
    if not data.dev_queries or not recipe.train.evaluations or recipe.model.kind == "mlm":
        return None
    if not {(configs.queries, data.dev_split), (configs.qrels, data.dev_split)} <= set(release.splits()):
        log.info("%s has no split %r of %s: no evaluation during training", release.path, data.dev_split, name)
        return None
    if recipe.model.kind == "cross" and run is None:
        log.info("no evaluation during training: --dev-run RUN says what of %s is to be re-ranked", data.dev_split)
        return None
    texts, judged = positives(release, name, data.dev_split, passages)
    generator = np.random.default_rng([recipe.train.seed, 1])
    names = list(judged)
    chosen = [names[n] for n in sorted(generator.permutation(len(names))[: data.dev_queries].tolist())]
    queries = {name: texts[name] for name in chosen}
    if run is not None:
        good = {name: set(passages.ids(judged[name])) for name in chosen}
        return _reranked(run, queries, good, passages, data.passage_length)
    rows = {row for name in chosen for row in judged[name]}
    rows |= set(generator.integers(len(passages), size=data.dev_passages).tolist())
    order = sorted(rows)
    found = dict(zip(map(str, order), passages.texts(order), strict=True))
    return Sampled(queries, found, {name: set(map(str, judged[name])) for name in chosen})


def _reranked(
    run: Path, queries: dict[str, str], positive: dict[str, set[str]], passages: Passages, length: int
) -> Reranked | None:
    hits = read_run(run).hits
    ranked = {name: [corpus for corpus, _ in hits[name][:_TOP]] for name in queries if name in hits}
    if not ranked:
        log.warning("%s has none of the dev queries: no evaluation during training", run)
        return None
    passages.expect((corpus for own in ranked.values() for corpus in own), run)
    found = {
        name: dict(zip(own, passages.texts(passages.rows(own).tolist()), strict=True)) for name, own in ranked.items()
    }
    sample = Reranked(queries, found, positive, length)
    shown = ", ".join(f"{name} {100 * value:.2f}" for name, value in sample.as_it_is().items())
    log.info("dev sample: the top %d of %s for %d queries, as it is: %s", _TOP, run, len(queries), shown)
    return sample
