"""The dev sample, on which a model is evaluated during its training.

Scores on the dev sample show whether the training makes progress. Do not compare these scores with scores on the whole
collection, which has millions more passages. The test split is never read.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from baselines.core.passages import CachedPassages
from baselines.measure.measures import PAPER, official_figures
from baselines.measure.qrels import Qrels
from baselines.train.recipe import Recipe
from baselines.train.training_pairs import read_positives
from builders.core.errors import log
from builders.store.layout import SETS, base_set
from builders.store.reader import Release
from builders.store.runs import read_run

_RERANKED_DEPTH = 20  # passages of a run that a cross-encoder re-ranks for each dev query
# Sizes of the dev sample: queries, random passages. A small machine encodes the passages of the second in a minute.
_DEFAULT_SIZE = (200, 2_000)
_DEFAULT_SIZE_ON_CPU = (50, 200)


@dataclass
class SampledPassages:
    """Dev sample for a dual-encoder: some dev queries, all their positives, and random passages of the collection.

    Attributes:
        queries, passages: texts by id.
        positive_ids: the ids of the positive passages, by query id.
    """

    queries: dict[str, str]
    passages: dict[str, str]
    positive_ids: dict[str, set[str]]

    def __str__(self) -> str:
        return f"{len(self.queries):,} dev queries and {len(self.passages):,} passages"

    def measures(self, model: Any, batch: int) -> dict[str, float]:
        """Rank all passages of the sample for every query, and return the paper's measures as fractions, by name.

        ``batch``: number of texts that are encoded at once.
        """
        from sentence_transformers.sentence_transformer.evaluation import InformationRetrievalEvaluator

        evaluator = InformationRetrievalEvaluator(
            self.queries,
            self.passages,
            self.positive_ids,
            batch_size=batch,
            write_csv=False,
            mrr_at_k=[10],
            accuracy_at_k=[1, 50],
            # Unused, but these lists must not be empty.
            precision_recall_at_k=[1],
            ndcg_at_k=[1],
            map_at_k=[1],
        )
        scores = evaluator(model)
        prefix = model.similarity_fn_name
        # accuracy@k is the paper's Recall@k, a hit rate.
        library_names = (f"{prefix}_mrr@10", f"{prefix}_accuracy@1", f"{prefix}_accuracy@50")
        return {name: float(scores[key]) for name, key in zip(PAPER.values(), library_names, strict=True)}


@dataclass
class RerankedRun:
    """Dev sample for a cross-encoder: some dev queries, each with the top passages of a run.

    A positive outside the top passages counts as not found. The library's CrossEncoderRerankingEvaluator is not used,
    because it lacks Recall@1 and Recall@50, and rejects models with two outputs.

    Attributes:
        queries: texts by id.
        candidates: the top passages of each query in the run's order, as {query id: {passage id: text}}.
        positive_ids: the ids of the positive passages, by query id.
        pair_tokens: tokens of a (query, passage) pair, to size the batches.
    """

    queries: dict[str, str]
    candidates: dict[str, dict[str, str]]
    positive_ids: dict[str, set[str]]
    pair_tokens: int

    def __str__(self) -> str:
        pair_count = sum(len(texts) for texts in self.candidates.values())
        return f"{len(self.queries):,} dev queries and the top passages of the run ({pair_count:,} pairs)"

    def measures(self, model: Any, batch: int) -> dict[str, float]:
        """Re-rank the top passages of the run with the model, and return the paper's measures as fractions, by name.

        ``batch``: number of pairs that are scored at once if all of them have the longest length.
        """
        from baselines.retrieve.encoder import CrossScorer

        pairs = []
        for query_id, passage_texts in self.candidates.items():
            pairs += [(self.queries[query_id], text) for text in passage_texts.values()]
        scores = iter(CrossScorer(model, tokens=batch * self.pair_tokens).scores(pairs).tolist())
        rankings = {}
        for query_id, passage_texts in self.candidates.items():
            # ``scores`` has the order of ``pairs``. Equal scores are sorted by passage id, as in every run file.
            hits = sorted((-next(scores), passage_id) for passage_id in passage_texts)
            rankings[query_id] = [passage_id for _, passage_id in hits]
        grades = {query_id: dict.fromkeys(passage_ids, 1) for query_id, passage_ids in self.positive_ids.items()}
        measures = official_figures(rankings, Qrels("dev sample", grades))
        return {name: measures[name] for name in PAPER.values()}


def draw_dev_sample(
    release: Release, recipe: Recipe, passages: CachedPassages, run: Path | None, *, on_cpu: bool = False
) -> SampledPassages | RerankedRun | None:
    """Return the dev sample for a recipe, or None if the training is not evaluated. Missing data is logged.

    Args:
        run: a run of the dev queries, which a cross-encoder re-ranks.
        on_cpu: the training runs on a CPU. The sample is then smaller, if the recipe does not determine its size.

    Raises :class:`InputError` if the collection lacks a passage of the run.
    """
    data = recipe.data
    set_name = base_set(data.set)
    configs = SETS[set_name]
    default_queries, default_passages = _DEFAULT_SIZE_ON_CPU if on_cpu else _DEFAULT_SIZE
    query_count = default_queries if data.dev_queries is None else data.dev_queries
    passage_count = default_passages if data.dev_passages is None else data.dev_passages
    if not query_count or not recipe.train.evaluations or recipe.model.kind == "mlm":
        return None
    if not {(configs.queries, data.dev_split), (configs.qrels, data.dev_split)} <= set(release.splits()):
        log.info("no evaluation during training: %s has no split %r of %s", release.path, data.dev_split, set_name)
        return None
    if recipe.model.kind == "cross" and run is None:
        log.info("no evaluation during training: give a run of %s with --dev-run RUN", data.dev_split)
        return None

    query_texts, positive_rows = read_positives(release, set_name, data.dev_split, passages)
    # 1, because the order of the training rows is drawn from the seed and 0 in the first epoch.
    generator = np.random.default_rng([recipe.train.seed, 1])
    query_ids = list(positive_rows)
    drawn_numbers = sorted(generator.permutation(len(query_ids))[:query_count].tolist())
    drawn_ids = [query_ids[number] for number in drawn_numbers]
    queries = {query_id: query_texts[query_id] for query_id in drawn_ids}
    if run is not None:
        positive_ids = {query_id: set(passages.ids(positive_rows[query_id])) for query_id in drawn_ids}
        return _read_candidates(run, queries, positive_ids, passages, data.passage_length)

    sampled_rows = set(generator.integers(len(passages), size=passage_count).tolist())
    for query_id in drawn_ids:
        sampled_rows.update(positive_rows[query_id])
    rows_in_order = sorted(sampled_rows)
    # The rows serve as ids, because the evaluation needs no ids of the release.
    texts = dict(zip(map(str, rows_in_order), passages.texts(rows_in_order), strict=True))
    positives = {query_id: {str(row) for row in positive_rows[query_id]} for query_id in drawn_ids}
    return SampledPassages(queries, texts, positives)


def _read_candidates(
    run: Path, queries: dict[str, str], positive_ids: dict[str, set[str]], passages: CachedPassages, pair_tokens: int
) -> RerankedRun | None:
    """Return the dev sample that has the top passages of each query in a run.

    Return None, with a warning, if the run has none of the queries.
    """
    rankings = read_run(run).rankings
    top_ids = {query_id: rankings[query_id][:_RERANKED_DEPTH] for query_id in queries if query_id in rankings}
    if not top_ids:
        log.warning("no evaluation during training: %s has none of the sampled dev queries", run)
        return None
    passages.expect((passage_id for passage_ids in top_ids.values() for passage_id in passage_ids), run)
    candidates = {}
    for query_id, passage_ids in top_ids.items():
        texts = passages.texts(passages.rows(passage_ids).tolist())
        candidates[query_id] = dict(zip(passage_ids, texts, strict=True))
    return RerankedRun(queries, candidates, positive_ids, pair_tokens)
