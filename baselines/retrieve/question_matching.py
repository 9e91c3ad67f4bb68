"""Score pairs of questions, and find the training questions that ask the same as dev or test."""

import itertools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from baselines.bm25.bm25_index import IndexedTexts, search_columns
from baselines.bm25.engine_numba import NumbaIndex, open_index
from baselines.core.passages import CachedPassages, open_passages
from baselines.core.run_manifest import describe_run, write_manifest
from baselines.core.settings import ModelOptions, ModelSettings
from baselines.measure.qrels import read_queries
from baselines.retrieve import rerankers
from baselines.retrieve.devices import Work
from baselines.retrieve.exact_search import nearest_with_ties
from baselines.retrieve.families import resolve_settings
from baselines.retrieve.hub_models import commit_of
from baselines.retrieve.index_files import VectorIndex
from baselines.retrieve.model_kinds import kind_of_scorer
from baselines.retrieve.vector_index import Retriever, name_hits, open_retriever
from builders.core.errors import InputError, log
from builders.core.folders import key_of, work_beside
from builders.core.limits import usable_cores
from builders.core.results import Report, Table
from builders.core.sampling import draw_sample
from builders.store.names import TESTED_SPLITS
from builders.store.reader import Release
from builders.store.runs import Run, sigmoid, write_run
from builders.text.likeness import THRESHOLD, is_similar

TRAIN = "train"
_TAG = "match"  # the last column of a run's lines
Floats = npt.NDArray[Any]
_COSINE_DIGITS = 6
# The methods that find candidates, and all methods together.
_BY_WORDS = "words"
_BY_VECTORS = "vectors"
_TOGETHER = "together"
Candidates = dict[str, list[str]]  # ids of training questions by question id
# Scores from 0 to 1 by question id and id of the training question.
Scores = dict[str, dict[str, float]]


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
) -> Retriever | rerankers.OpenReranker:
    """Return a re-ranker, or a dual-encoder with the settings of `run`.

    ``similarity`` is that of a dual-encoder. Raises :class:`InputError` for a model with sparse vectors or with several
    vectors per text.
    """
    commit = commit_of(model, revision)
    settings = ModelSettings(model, revision=commit, max_length=max_length, trust_remote_code=trust_remote_code)
    model_kind = kind_of_scorer(settings)
    if model_kind in ("cross", "llm"):
        return rerankers.open_reranker(settings, work, model_kind)
    if model_kind not in ("dense", "static"):
        raise InputError(
            f"is a model of kind {model_kind}; expected a cross-encoder or one vector per text", path=model
        )
    options = ModelOptions(
        kind=model_kind,
        revision=commit,
        max_length=max_length,
        trust_remote_code=trust_remote_code,
        similarity=similarity,
    )
    return open_retriever(resolve_settings(model, options).settings, work, model_kind)


def score_question_pairs(model: Retriever | rerankers.OpenReranker, pairs: Sequence[tuple[str, str]]) -> list[float]:
    """Return the score of each pair of questions, from 0 to 1.

    For a dual-encoder with cosine similarity, the score is the cosine, and 0 if the cosine is negative. For a
    re-ranker, the score is the sigmoid of the logit: the probability that a cross-encoder predicts.
    """
    device = model.work.devices[0]
    if isinstance(model, rerankers.OpenReranker):
        # This opens and checks the model. For example, a model whose scores change with the padding is refused.
        model.result_inputs()
        return [sigmoid(logit) for logit in model.score(pairs, device)]
    # Each distinct question is encoded once.
    questions = list(dict.fromkeys(itertools.chain.from_iterable(pairs)))
    vectors = dict(zip(questions, model.encoder(device, "query").encode(questions), strict=True))
    scores = []
    for first, second in pairs:
        # cosines_with() compares a matrix with a vector. Here, the matrix has one row.
        second_as_matrix = vectors[second][np.newaxis]
        pair_cosines = cosines_with(second_as_matrix, vectors[first])
        scores.append(pair_cosines[0])
    return scores


def cosines_with(vectors: Floats, vector: Floats) -> list[float]:
    """Return the cosine of each row of ``vectors`` with ``vector``. Negative cosines become 0.

    All are embeddings of 16 bits and unit length.
    """
    products = vectors.astype(np.float64) @ vector.astype(np.float64)
    # A product of rounded unit vectors may be slightly above 1.
    return [float(cosine) for cosine in np.clip(products, 0, 1).round(_COSINE_DIGITS)]


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
    train: CachedPassages

    @property
    def texts(self) -> dict[str, str]:
        """The texts of the questions of all splits, by id."""
        texts: dict[str, str] = {}
        for questions in self.by_split.values():
            texts.update(questions)
        return texts


def read_splits(release: Release, config: str, splits: Sequence[str]) -> QuestionSplits:
    """Read the questions of ``splits``. The default is dev and test, as far as they have questions.

    Raises :class:`InputError` for train and for splits without questions.
    """
    # Unless splits are named, dev and test are compared, as far as the release has their questions.
    nonempty_splits = []
    for split_config, split in release.splits():
        if split_config == config and release.rows(config, split):
            nonempty_splits.append(split)
    tested_splits = [split for split in TESTED_SPLITS if split in nonempty_splits]
    chosen_splits = list(dict.fromkeys(splits or tested_splits))
    if TRAIN in chosen_splits:
        raise InputError("--split train: every split is compared with train; expected another split")
    # Without any questions in dev and test, the error below names both.
    empty_splits = set(chosen_splits or TESTED_SPLITS) - set(nonempty_splits)
    if empty_splits:
        split_names = " and ".join(sorted(empty_splits))
        raise InputError(f"has no questions in {config} of {split_names}", path=release.path)
    by_split = {split: read_queries(release, split, config) for split in chosen_splits}
    return QuestionSplits(release, config, by_split, open_passages(release, config, split=TRAIN))


class _Scorer(Protocol):
    def score(self, candidates: Candidates, name: str, queries_per_file: int | None = None) -> Scores:
        """Score each question with its candidates.

        Scores may be saved under ``name``, in files of ``queries_per_file`` questions (None: the scorer's default).
        """


@dataclass(frozen=True)
class _PairScorer:
    """Score by a re-ranker. The scores are saved in ``folder``. ``texts`` has the questions, without those of train."""

    job: rerankers.PairJob
    texts: Mapping[str, str]
    folder: Path

    def score(self, candidates: Candidates, name: str, queries_per_file: int | None = None) -> Scores:
        """Score each question with its candidates. The logits are saved in the folder ``name``."""
        scores_folder = self.folder / name
        scores_folder.mkdir(exist_ok=True)
        groups = [(self.texts[question_id], train_ids) for question_id, train_ids in candidates.items()]
        logits_by_group = rerankers.score_windows(self.job, groups, scores_folder, "match", queries_per_file)
        scores = {}
        for (question_id, train_ids), logits in zip(candidates.items(), logits_by_group, strict=True):
            scores[question_id] = dict(zip(train_ids, map(sigmoid, logits), strict=True))
        return scores


@dataclass(frozen=True)
class _CosineScorer:
    """Score by the embeddings of a dual-encoder: of the training questions, and of the other questions by id."""

    train: CachedPassages
    train_index: VectorIndex
    vectors: Mapping[str, Floats]

    def score(self, candidates: Candidates, name: str, queries_per_file: int | None = None) -> Scores:
        """Score each question with its candidates. Nothing is saved, because the products of embeddings are cheap."""
        train_vectors = self.train_index.all()
        scores = {}
        for question_id, train_ids in candidates.items():
            candidate_vectors = train_vectors[self.train.rows(train_ids)]
            question_cosines = cosines_with(candidate_vectors, self.vectors[question_id])
            scores[question_id] = dict(zip(train_ids, question_cosines, strict=True))
        return scores


def find_matches(
    questions: QuestionSplits,
    model: Retriever | rerankers.OpenReranker,
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
        model: the model that scores the candidates.
        encoder: the dual-encoder that finds candidates for a re-ranker. A dual-encoder ``model`` finds them itself.
        out: the run to write.
        top_k: candidates of each method for a question.
        threshold: pairs with a higher score are similar.
        recall_sample: number of questions that are scored with every training question, to measure the recall.
        max_length: the option of this name, on which saved scores depend.
    """
    texts = questions.texts
    job = None
    dual_encoder = encoder
    if isinstance(model, rerankers.OpenReranker):
        job = rerankers.PairJob(questions.release.path, questions.config, TRAIN, model)
    else:
        dual_encoder = model
    word_index = open_index(IndexedTexts(questions.release, questions.config, TRAIN), None, usable_cores())
    work_key = _work_key(questions, word_index, job, dual_encoder, model.work, top_k=top_k, max_length=max_length)
    with work_beside(out, work_key) as folder:
        # Find the candidates.
        candidates = {_BY_WORDS: _candidates_by_words(word_index, texts, top_k)}
        scorer: _Scorer
        if dual_encoder is not None:
            candidates[_BY_VECTORS], scorer = _candidates_by_vectors(dual_encoder, questions, folder, top_k, model.work)
        if job is not None:  # the dual-encoder then only finds candidates
            scorer = _PairScorer(job, texts, folder)
        candidates[_TOGETHER] = _merge_candidates(candidates.values(), texts)

        # Score the candidates, and write the run.
        scores = scorer.score(candidates[_TOGETHER], "candidates")
        run_lines = ((question_id, question_scores.items()) for question_id, question_scores in scores.items())
        line_count = write_run(out, run_lines, tag=_TAG)
        log.info("%s: %d pairs of %d questions", out, line_count, len(texts))
        if job is None and threshold == THRESHOLD:
            log.warning("the threshold %g is for probabilities; --calibrate finds a threshold for cosines", THRESHOLD)

        # Count the similar pairs, and measure the recall of the candidates.
        result = _count_pairs(questions, scores, line_count, threshold)
        if recall_sample:
            sampled_ids = draw_sample(texts, recall_sample, seed=0)
            all_train_ids = questions.train.ids(range(len(questions.train)))
            all_pairs = {question_id: all_train_ids for question_id in texts if question_id in sampled_ids}
            all_scores = scorer.score(all_pairs, f"all-{recall_sample}", queries_per_file=1)
            result["recall"] = measure_recall(all_scores, candidates, threshold)
    return QuestionMatches(out, matches_report(result))


def write_costs(out: Path, model: Retriever | rerankers.OpenReranker, matches: QuestionMatches) -> None:
    """Write the manifest of a run whose questions a model behind an endpoint has encoded."""
    assert isinstance(model, Retriever)
    search_record = {"kind": model.kind, **model.measured_costs()}
    counts = matches.report.value
    write_manifest(
        out, describe_run(model.result_inputs, search_record, ("numpy",)), _TAG, counts["questions"], counts["pairs"]
    )


def _count_pairs(questions: QuestionSplits, scores: Scores, pair_count: int, threshold: float) -> dict[str, Any]:
    """Return the counts of a run, by name. ``pair_count`` is the number of its lines."""
    similar = similar_pairs(scores, threshold)
    return {
        "splits": list(questions.by_split),
        "questions": len(scores),
        "training_questions": len(questions.train),
        "pairs": pair_count,
        "threshold": threshold,
        "similar_pairs": len(similar),  # in the paper: 387 questions, 566 training questions
        "similar_questions": len({question_id for question_id, _ in similar}),
        "similar_training_questions": len({train_id for _, train_id in similar}),
    }


def _work_key(
    questions: QuestionSplits,
    word_index: NumbaIndex,
    job: rerankers.PairJob | None,
    dual_encoder: Retriever | None,
    work: Work,
    *,
    top_k: int,
    max_length: int | None,
) -> str:
    """Return the key of the work folder: a hash of everything that saved scores and embeddings depend on."""
    release = questions.release
    scorer_key = None
    if job is not None:
        scorer_key = job.reranker.result_inputs()
    encoder_key = None
    if dual_encoder is not None:
        encoder_key = [dual_encoder.result_inputs["fingerprint"], work.dtype]
    return key_of(
        {
            "model": scorer_key,
            # The name of the index's folder is a hash of everything that the index depends on.
            "candidates": [word_index.folder.name, encoder_key, top_k],
            "questions": [release.fingerprint(questions.config, split) for split in (TRAIN, *questions.by_split)],
            "options": [work.dtype, max_length, work.batch_tokens],
        }
    )


def _candidates_by_words(word_index: NumbaIndex, texts: Mapping[str, str], top_k: int) -> Candidates:
    """Search the training questions by BM25. ``texts`` has the other questions by id."""
    candidates: Candidates = {}
    for block in search_columns(word_index, list(texts.items()), top_k, usable_cores()):
        candidates |= block.rankings()
    return candidates


def _candidates_by_vectors(
    dual_encoder: Retriever, questions: QuestionSplits, folder: Path, top_k: int, work: Work
) -> tuple[Candidates, _CosineScorer]:
    """Search the training questions by a dual-encoder. Return the candidates, and a scorer with all embeddings.

    Training questions are encoded as queries, too. The embeddings are saved in ``folder``.
    """
    release = questions.release
    config = questions.config
    train = questions.train
    train_index = dual_encoder.index(release, config, folder / f"embeddings-{TRAIN}", TRAIN)
    candidates: Candidates = {}
    vectors: dict[str, Floats] = {}
    for split, split_questions in questions.by_split.items():
        split_vectors = dual_encoder.index(release, config, folder / f"embeddings-{split}", split).all()
        nearest_rows = nearest_with_ties(train_index, split_vectors, train, work.devices, top_k)
        hits_by_question = name_hits(nearest_rows, train, top_k)
        for (question_id, _), vector, hits in zip(split_questions, split_vectors, hits_by_question, strict=True):
            vectors[question_id] = vector
            candidates[question_id] = [train_id for train_id, _ in hits]
    return candidates, _CosineScorer(train, train_index, vectors)


def _merge_candidates(methods: Iterable[Candidates], question_ids: Iterable[str]) -> Candidates:
    """Return the candidates of all methods together, in the order of their ids."""
    candidates_by_method = list(methods)
    merged: Candidates = {}
    for question_id in question_ids:
        train_ids = set[str]()
        for candidates in candidates_by_method:
            train_ids.update(candidates.get(question_id, ()))
        merged[question_id] = sorted(train_ids)
    return merged


def similar_pairs(scores: Scores, threshold: float) -> set[tuple[str, str]]:
    """Return the pairs whose score is above the threshold."""
    similar = set()
    for question_id, question_scores in scores.items():
        for train_id, score in question_scores.items():
            if is_similar(score, threshold):
                similar.add((question_id, train_id))
    return similar


def measure_recall(all_scores: Scores, candidates: Mapping[str, Candidates], threshold: float) -> dict[str, Any]:
    """Return the share of the similar pairs that each method has among its candidates, or None without similar pairs.

    ``all_scores`` are the scores of the sampled questions with every training question. ``candidates`` has the
    candidates of each method. The result also has the numbers of these questions and of their similar pairs.
    """
    similar = similar_pairs(all_scores, threshold)
    recall: dict[str, Any] = {"questions": len(all_scores), "similar_pairs": len(similar)}
    for method, method_candidates in candidates.items():
        hit_count = 0
        for question_id, train_id in similar:
            hit_count += train_id in method_candidates.get(question_id, ())
        recall[method] = None
        if similar:
            recall[method] = hit_count / len(similar)
    return recall


def matches_report(result: dict[str, Any]) -> Report:
    """Return the report of the counts in ``result``, and of its entry ``recall`` if the recall was measured."""
    splits = " and ".join(result["splits"])
    lines = [
        f"{result['pairs']:,} pairs of {result['questions']:,} questions of {splits} with "
        f"{result['training_questions']:,} of train; {result['similar_pairs']:,} above {result['threshold']:g}: "
        f"{result['similar_training_questions']:,} training questions like {result['similar_questions']:,} questions"
    ]
    counts = []
    for name, count in result.items():
        if name not in ("splits", "recall"):
            counts.append((name.replace("_", " "), count))
    tables = [Table(("figure", "value"), counts)]
    recall = result.get("recall")
    if recall:
        # Without a similar pair, no share is known. Without a dual-encoder, there are no candidates by vectors.
        shares = []
        for method in (_BY_WORDS, _BY_VECTORS, _TOGETHER):
            if recall.get(method) is not None:
                shares.append((method, recall[method]))
        share_text = ", ".join(f"{method} {share:.4f}" for method, share in shares) or "none is similar"
        lines.append(
            f"all pairs of {recall['questions']:,} questions: {recall['similar_pairs']:,} above "
            f"{result['threshold']:g}; share of them among the candidates: {share_text}"
        )
        tables.append(Table(("candidates", "recall"), shares, title="recall", percent_columns=("recall",)))
    return Report(result, "\n".join(lines), tables)
