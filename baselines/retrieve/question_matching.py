"""Score pairs of questions, and find the training questions that ask the same as dev or test."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from baselines.bm25.bm25_index import Index as WordIndex
from baselines.bm25.bm25_index import Texts, search_columns
from baselines.bm25.engine_numba import open_index
from baselines.core.passages import Passages, open_passages
from baselines.core.settings import ModelOptions, ModelSettings
from baselines.measure.qrels import read_queries
from baselines.retrieve import rerankers
from baselines.retrieve.devices import Work
from baselines.retrieve.exact_search import nearest
from baselines.retrieve.families import resolve
from baselines.retrieve.hub_models import commit_of
from baselines.retrieve.index_files import Index
from baselines.retrieve.model_kinds import kind_of_scorer
from baselines.retrieve.vector_index import Retriever, named, open_retriever
from builders.core.errors import InputError, log
from builders.core.folders import key_of, work_beside
from builders.core.limits import usable_cores
from builders.core.results import Report, Table
from builders.core.sampling import draw
from builders.store.names import TESTED_SPLITS
from builders.store.reader import Release
from builders.store.runs import Run, probability, write_run
from builders.text.likeness import THRESHOLD, is_similar

TRAIN = "train"
Floats = npt.NDArray[Any]
_WORDS, _VECTORS, _TOGETHER = "words", "vectors", "together"  # methods that find candidates, and all methods together
Candidates = dict[str, list[str]]  # ids of training questions by question id
Scores = dict[str, dict[str, float]]  # scores from 0 to 1 by question id and id of the training question


class QuestionMatches(Run):
    """The scores of pairs of questions as a run. ``report`` has the counts of similar pairs."""

    def __init__(self, path: Path, report: Report) -> None:
        super().__init__(path)
        self.report = report


def open_question_model(
    model: str,
    *,
    work: Work,
    max_length: int | None = None,
    revision: str = "",
    trust_remote_code: bool = False,
    similarity: str | None = None,
) -> Retriever | rerankers.Reranker:
    """Return a re-ranker, or a dual-encoder with the settings of `run`.

    ``similarity`` is that of a dual-encoder. Raises :class:`InputError` for a model with sparse vectors or with several
    vectors per text.
    """
    commit = commit_of(model, revision)
    settings = ModelSettings(model, revision=commit, max_length=max_length, trust_remote_code=trust_remote_code)
    kind = kind_of_scorer(settings)
    if kind in ("cross", "llm"):
        return rerankers.open_reranker(settings, work, kind)
    if kind not in ("dense", "static"):
        raise InputError(f"is a model of kind {kind}; expected a cross-encoder or one vector per text", path=model)
    options = ModelOptions(
        kind=kind,
        revision=commit,
        max_length=max_length,
        trust_remote_code=trust_remote_code,
        similarity=similarity,
    )
    return open_retriever(resolve(model, options).settings, work, kind)


def score_question_pairs(model: Retriever | rerankers.Reranker, pairs: Sequence[tuple[str, str]]) -> list[float]:
    """Return the score of each pair of questions, from 0 to 1."""
    device = model.work.devices[0]
    if isinstance(model, rerankers.Reranker):
        model.about()  # checks the model
        return [probability(logit) for logit in model.score(pairs, device)]
    texts = list(dict.fromkeys(text for pair in pairs for text in pair))
    vectors = dict(zip(texts, model.encoder(device, "query").encode(texts), strict=True))
    return [cosines(vectors[second][None], vectors[first])[0] for first, second in pairs]


def cosines(vectors: Floats, vector: Floats) -> list[float]:
    """Return the cosines of n embeddings (16 bits, unit length) with ``vector``. Negative cosines become 0."""
    return list(map(float, np.clip(vectors.astype(np.float64) @ vector.astype(np.float64), 0, 1).round(6)))


@dataclass(frozen=True)
class QuestionSplits:
    """The questions to compare with the training questions.

    Attributes:
        config: the config of the questions.
        by_split: (id, text) of every question of each split.
        train: the training questions.
    """

    release: Release
    config: str
    by_split: dict[str, list[tuple[str, str]]]
    train: Passages

    @property
    def texts(self) -> dict[str, str]:
        return {question: text for questions in self.by_split.values() for question, text in questions}


def read_splits(release: Release, config: str, splits: Sequence[str]) -> QuestionSplits:
    """Read the questions of ``splits``. The default is dev and test, as far as they have questions.

    Raises :class:`InputError` for train and for splits without questions.
    """
    filled = [split for name, split in release.splits() if name == config and release.rows(config, split)]
    chosen = list(dict.fromkeys(splits or [split for split in TESTED_SPLITS if split in filled]))
    if TRAIN in chosen:
        raise InputError("--split train: every split is compared with train; expected another split")
    if not chosen or not set(chosen) <= set(filled):
        lacking = " and ".join(sorted(set(chosen or TESTED_SPLITS) - set(filled)))
        raise InputError(f"has no questions in {config} of {lacking}", path=release.path)
    by_split = {split: read_queries(release, split, config) for split in chosen}
    return QuestionSplits(release, config, by_split, open_passages(release, config, split=TRAIN))


class _Scorer(Protocol):
    def score(self, pairs: Candidates, name: str, window: int | None = None) -> Scores:
        """Score each question with training questions. Scores may be saved under ``name``, a ``window`` at a time."""


@dataclass(frozen=True)
class _PairScorer:
    """Score by a re-ranker. The scores are saved in ``folder``."""

    job: rerankers.PairJob
    texts: Mapping[str, str]
    folder: Path

    def score(self, pairs: Candidates, name: str, window: int | None = None) -> Scores:
        (self.folder / name).mkdir(exist_ok=True)
        groups = [(self.texts[question], others) for question, others in pairs.items()]
        logits = rerankers.score_windows(self.job, groups, self.folder / name, "match", window)
        scores = {}
        for (question, others), own_logits in zip(pairs.items(), logits, strict=True):
            scores[question] = dict(zip(others, map(probability, own_logits), strict=True))
        return scores


@dataclass(frozen=True)
class _CosineScorer:
    """Score by the embeddings of a dual-encoder: of the training questions, and of the other questions by id."""

    train: Passages
    train_index: Index
    vectors: Mapping[str, Floats]

    def score(self, pairs: Candidates, name: str, window: int | None = None) -> Scores:
        train_vectors = self.train_index.all()
        scores = {}
        for question, others in pairs.items():
            found = cosines(train_vectors[self.train.rows(others)], self.vectors[question])
            scores[question] = dict(zip(others, found, strict=True))
        return scores


def find_matches(
    questions: QuestionSplits,
    model: Retriever | rerankers.Reranker,
    *,
    encoder: Retriever | None,
    out: Path,
    top_k: int,
    threshold: float,
    recall_sample: int,
    max_length: int | None,
) -> QuestionMatches:
    """Write the run of the candidates' scores, and count the similar pairs.

    Args:
        encoder: the dual-encoder that finds candidates for a re-ranker. A dual-encoder ``model`` finds them itself.
        top_k: candidates of each method for a question.
        threshold: pairs with a higher score are similar.
        recall_sample: number of questions that are scored with every training question, to measure the recall.
        max_length: the option of this name, on which saved scores depend.
    """
    release, config, texts = questions.release, questions.config, questions.texts
    job, dual = None, encoder
    if isinstance(model, rerankers.Reranker):
        job = rerankers.PairJob(release.path, config, TRAIN, model)
    else:
        dual = model
    words = open_index(Texts(release, config, TRAIN), None, usable_cores())
    about = {
        "model": job and job.reranker.about(),
        # The name of the index's folder is a hash of everything that the index depends on.
        "candidates": [words.folder.name, dual and [dual.about["fingerprint"], model.work.dtype], top_k],
        "questions": [release.fingerprint(config, split) for split in (TRAIN, *questions.by_split)],
        "options": [model.work.dtype, max_length, model.work.batch_tokens],
    }
    with work_beside(out, key_of(about)) as folder:
        candidates = {_WORDS: _candidates_by_words(words, texts, top_k)}
        scorer: _Scorer
        if dual is not None:
            candidates[_VECTORS], cosine_scorer = _candidates_by_vectors(dual, questions, folder, top_k, model.work)
            scorer = cosine_scorer
        if job is not None:
            scorer = _PairScorer(job, texts, folder)
        candidates[_TOGETHER] = _join(candidates.values(), texts)

        scores = scorer.score(candidates[_TOGETHER], "candidates")
        line_count = write_run(out, ((question, own.items()) for question, own in scores.items()), tag="match")
        log.info("%s: %d pairs of %d questions", out, line_count, len(texts))
        if job is None and threshold == THRESHOLD:
            log.warning("the threshold %g is for probabilities; --calibrate finds a threshold for cosines", THRESHOLD)
        similar = similar_pairs(scores, threshold)
        result: dict[str, Any] = {
            "splits": list(questions.by_split),
            "questions": len(texts),
            "training_questions": len(questions.train),
            "pairs": line_count,
            "threshold": threshold,
            "similar_pairs": len(similar),  # in the paper: 387 questions, 566 training questions
            "similar_questions": len({question for question, _ in similar}),
            "similar_training_questions": len({other for _, other in similar}),
        }
        if recall_sample:
            drawn = draw(texts, recall_sample, seed=0)
            all_train_ids = questions.train.ids(range(len(questions.train)))
            every_pair = {question: all_train_ids for question in texts if question in drawn}
            all_scores = scorer.score(every_pair, f"all-{recall_sample}", window=1)
            result["recall"] = measure_recall(all_scores, candidates, threshold)
    return QuestionMatches(out, matches_report(result))


def _candidates_by_words(words: WordIndex, texts: Mapping[str, str], top_k: int) -> Candidates:
    candidates: Candidates = {}
    for block in search_columns(words, list(texts.items()), top_k, usable_cores()):
        candidates |= block.rankings()
    return candidates


def _candidates_by_vectors(
    dual: Retriever, questions: QuestionSplits, folder: Path, top_k: int, work: Work
) -> tuple[Candidates, _CosineScorer]:
    """Search the training questions by a dual-encoder. Training questions are encoded as queries, too."""
    release, config, train = questions.release, questions.config, questions.train
    train_index = dual.index(release, config, folder / f"embeddings-{TRAIN}", TRAIN)
    candidates: Candidates = {}
    vectors: dict[str, Floats] = {}
    for split, rows in questions.by_split.items():
        split_vectors = dual.index(release, config, folder / f"embeddings-{split}", split).all()
        hits = named(nearest(train_index, split_vectors, train, work.devices, top_k), train, top_k)
        for (question, _), vector, best in zip(rows, split_vectors, hits, strict=True):
            vectors[question] = vector
            candidates[question] = [other for other, _ in best]
    return candidates, _CosineScorer(train, train_index, vectors)


def _join(methods: Iterable[Candidates], texts: Iterable[str]) -> Candidates:
    """Return the candidates of all methods together, in the order of their ids."""
    methods = list(methods)
    joined: Candidates = {}
    for question in texts:
        others = set[str]()
        for candidates in methods:
            others.update(candidates.get(question, ()))
        joined[question] = sorted(others)
    return joined


def similar_pairs(scores: Scores, threshold: float) -> set[tuple[str, str]]:
    """Return the pairs whose score is above the threshold."""
    similar = set()
    for question, own_scores in scores.items():
        for other, score in own_scores.items():
            if is_similar(score, threshold):
                similar.add((question, other))
    return similar


def measure_recall(all_scores: Scores, candidates: Mapping[str, Candidates], threshold: float) -> dict[str, Any]:
    """Return the share of each method's candidates among the similar pairs of the sampled questions."""
    similar = similar_pairs(all_scores, threshold)
    recall: dict[str, Any] = {"questions": len(all_scores), "similar_pairs": len(similar)}
    for method, others in candidates.items():
        found_count = sum(other in others.get(question, ()) for question, other in similar)
        recall[method] = found_count / len(similar) if similar else None
    return recall


def matches_report(result: dict[str, Any]) -> Report:
    """Return the report of the counts, and of the recall if it was measured."""
    splits = " and ".join(result["splits"])
    lines = [
        f"{result['pairs']:,} pairs of {result['questions']:,} questions of {splits} with "
        f"{result['training_questions']:,} of train; {result['similar_pairs']:,} above {result['threshold']:g}: "
        f"{result['similar_training_questions']:,} training questions like {result['similar_questions']:,} questions"
    ]
    counts = [(name.replace("_", " "), count) for name, count in result.items() if name not in ("splits", "recall")]
    tables = [Table(("figure", "value"), counts)]
    if recall := result.get("recall"):
        shares = [(method, recall.get(method)) for method in (_WORDS, _VECTORS, _TOGETHER)]
        measured = [(method, share) for method, share in shares if share is not None]
        shown = ", ".join(f"{method} {share:.4f}" for method, share in measured)
        lines.append(
            f"all pairs of {recall['questions']:,} questions: {recall['similar_pairs']:,} above "
            f"{result['threshold']:g}; share of them among the candidates: {shown or 'none is similar'}"
        )
        tables.append(Table(("candidates", "recall"), measured, title="recall", percent_columns=("recall",)))
    return Report(result, "\n".join(lines), tables)
