"""Find training questions that ask what dev or test asks.

A question-matching cross-encoder (`train question-matching`) scores pairs of a dev or test question and a training
question (Section 2.3). Not all pairs: the best --top-k training questions by words (BM25) and, with --encoder, by a
dual-encoder are candidates, and all of them are scored. --recall-sample N scores N questions against every training
question, too, and prints how many of the similar pairs the candidates hold. Written is a TREC run: a dev or test
question, a training question, and the probability that they ask the same, in [0, 1]. `python -m builders similar
--scores RUN` removes the training questions above its threshold. Finished parts are kept: the command started again
after an interruption goes on where it was.

Example:

  python -m baselines match --release build/sample --model build/models/question-matching \\
    --encoder intfloat/multilingual-e5-small --recall-sample 20 --out build/runs/similar.run.gz
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from baselines.bm25.index import Texts, search_columns
from baselines.measure.qrels import add_set, read_queries
from baselines.retrieve.passages import open_passages
from baselines.retrieve.settings import ModelSettings, add_device, add_pairs
from builders.annotate.pool import probability
from builders.core.command import add_format, number_between, whole_number
from builders.core.errors import InputError, log
from builders.core.files import check_file
from builders.core.folders import key_of, work_beside
from builders.core.hub import check_models
from builders.core.limits import usable_cores
from builders.core.sampling import draw
from builders.similar.likeness import TESTED, THRESHOLD, is_similar
from builders.store.layout import SETS
from builders.store.reader import Release, open_release
from builders.store.runs import write_run

if TYPE_CHECKING:
    from baselines.retrieve.scoring import PairJob

TRAIN = "train"
_TOGETHER = "together"
Found = dict[str, list[str]]  # of each question, by its id: ids of training questions, best first


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--release", type=Path, required=True, metavar="DIR", help="the release directory")
    add_set(parser)
    parser.add_argument(
        "--split", nargs="+", metavar="S", help="whose questions are compared with those of train (default: dev test)"
    )
    parser.add_argument("--model", required=True, metavar="CE", help="a question-matching cross-encoder: hub or folder")
    parser.add_argument("--encoder", metavar="DE", help="candidates by this sentence-transformers model, too")
    parser.add_argument(
        "--top-k", type=whole_number(1), default=50, metavar="K", help="candidates of each kind (default: 50)"
    )
    parser.add_argument("--out", type=Path, required=True, metavar="RUN", help="the run; gzipped where it ends in .gz")
    parser.add_argument(
        "--recall-sample",
        type=whole_number(0),
        default=0,
        metavar="N",
        help="measure the candidates on N questions, each against every training question (default: 0, not)",
    )
    parser.add_argument(
        "--threshold",
        type=number_between(0, 1),
        default=THRESHOLD,
        metavar="X",
        help="above it a pair counts as similar in what is printed; the run has all (default: 0.5, the paper's)",
    )
    add_pairs(parser)
    add_device(parser)
    add_format(parser)


def run(args: argparse.Namespace) -> None:
    check_models(args.model, args.encoder)
    from baselines.bm25.engine_numba import open_index
    from baselines.retrieve import devices, hub_models, models, scoring

    check_file(args.out)
    release, config = open_release(args.release), SETS[args.set].queries
    splits = _splits(release, config, args.split)
    asked = {question: text for split in splits for question, text in read_queries(release, split, config)}
    train = open_passages(release, config, split=TRAIN)
    job = scoring.pair_job(args, args.model, release, config, devices.devices_of(args.device), TRAIN)
    words = open_index(Texts(release, config, TRAIN), None, usable_cores())
    encoder, encoded_by = None, None
    if args.encoder:
        encoder = ModelSettings(args.encoder, revision=hub_models.commit_of(args.encoder))
        encoded_by = [models.fingerprint(models.open_encoder(encoder)), job.work.dtype]
    about = {
        "model": job.reranker("cpu").about(),
        "candidates": [words.folder.name, encoded_by, args.top_k],  # the folder's name is a key of all its content
        "questions": [release.fingerprint(config, split) for split in (TRAIN, *splits)],
        "options": [job.work.dtype, args.max_length, job.work.batch_tokens],
    }
    with work_beside(args.out, key_of(about)) as work:
        by_words = search_columns(words, list(asked.items()), args.top_k, usable_cores())
        found = {"words": {question: others for part in by_words for question, others in part.rankings().items()}}
        if encoder:
            found["vectors"] = _by_vectors(job, encoder, release, splits, args.top_k, work)
        found[_TOGETHER] = {
            question: sorted({other for own in found.values() for other in own.get(question, [])}) for question in asked
        }
        scores = _probabilities(job, asked, found[_TOGETHER], work / "candidates")
        lines = write_run(args.out, ((question, own.items()) for question, own in scores.items()), tag="match")
        log.info("%s: %d pairs of %d questions", args.out, lines, len(asked))
        similar = _similar(scores, args.threshold)
        result: dict[str, Any] = {
            "splits": splits,
            "questions": len(asked),
            "training_questions": len(train),
            "pairs": lines,
            "threshold": args.threshold,
            "similar_pairs": len(similar),  # the paper: 387 questions like 566 training questions
            "similar_questions": len({question for question, _ in similar}),
            "similar_training_questions": len({other for _, other in similar}),
        }
        if args.recall_sample:
            # Of the similar pairs of a sample of questions, of all pairs, the share that the candidates hold.
            drawn = draw(asked, args.recall_sample, seed=0)
            every = dict.fromkeys([question for question in asked if question in drawn], train.ids(range(len(train))))
            similar = _similar(
                _probabilities(job, asked, every, work / f"all-{args.recall_sample}", window=1), args.threshold
            )
            held = {kind: sum(b in own.get(a, ()) for a, b in similar) for kind, own in found.items()}
            shares = {kind: count / len(similar) if similar else None for kind, count in held.items()}
            result["recall"] = {"questions": len(every), "similar_pairs": len(similar), **shares}
    print(json.dumps(result) if args.format == "json" else _text(result))


def _by_vectors(
    job: PairJob, encoder: ModelSettings, release: Release, splits: Sequence[str], top_k: int, work: Path
) -> Found:
    """The ``top_k`` best training questions of each question by a dual-encoder, exactly.

    It encodes both sides as queries: both are questions. The embeddings are kept in the folder ``work``.
    """
    import numpy as np

    from baselines.retrieve import dense, devices, embeddings, index

    def encoded(split: str) -> embeddings.Vectors:
        out = work / f"embeddings-{split}"
        on = devices.Work(job.work.devices, job.work.dtype)
        own = index.job_of(embeddings.__name__, release, job.corpus, encoder, on, split=split)
        embeddings.encode(own, out, on.devices)
        return embeddings.Vectors.read(out)

    train, queries = encoded(TRAIN), np.concatenate([encoded(split).all() for split in splits])
    passages = open_passages(release, job.corpus, split=TRAIN)
    ranks = lambda: dense.id_ranks(release, job.corpus, TRAIN)  # noqa: E731
    found = dense.nearest(train, queries, passages, ranks, job.work.devices, top_k)
    ids = [each for split in splits for each in release.table(job.corpus, split, ["_id"])["_id"].to_pylist()]
    return {question: [other for other, _ in best] for question, best in zip(ids, found, strict=True)}


def _splits(release: Release, config: str, wanted: list[str] | None) -> list[str]:
    """The splits whose questions are compared, each once; by default those of dev and test that have some.

    Raises :class:`InputError` for one that is not there, and for train itself.
    """
    have = [split for name, split in release.splits() if name == config and release.rows(config, split)]
    found = list(dict.fromkeys(wanted or [split for split in TESTED if split in have]))
    if TRAIN in found:
        raise InputError("--split train: its questions are those that the others are compared with")
    for split in found:
        if split not in have:
            raise InputError(f"has no questions in {config}/{split}", path=release.path)
    if not found:
        raise InputError(f"has no questions in {config} of dev or test", path=release.path)
    return found


def _probabilities(
    job: PairJob, asked: Mapping[str, str], pairs: Found, work: Path, window: int | None = None
) -> dict[str, dict[str, float]]:
    """Of each question and its candidates: the probability that they ask the same."""
    from baselines.retrieve import scoring

    work.mkdir(exist_ok=True)
    groups = [(asked[question], others) for question, others in pairs.items()]
    logits = scoring.score_windows(job, groups, work, "match", window)
    return {
        question: dict(zip(others, map(probability, own), strict=True))
        for (question, others), own in zip(pairs.items(), logits, strict=True)
    }


def _similar(scores: dict[str, dict[str, float]], threshold: float) -> set[tuple[str, str]]:
    """The pairs that `similar` would take for similar."""
    return {
        (question, other)
        for question, own in scores.items()
        for other, score in own.items()
        if is_similar(score, threshold)
    }


def _text(result: dict[str, Any]) -> str:
    """The result as one or two lines."""
    lines = [
        f"{result['pairs']:,} pairs of {result['questions']:,} questions of {' and '.join(result['splits'])} with "
        f"{result['training_questions']:,} of train; {result['similar_pairs']:,} above {result['threshold']:g}: "
        f"{result['similar_training_questions']:,} training questions like {result['similar_questions']:,} questions"
    ]
    if recall := result.get("recall"):
        shown = (
            f"all pairs of {recall['questions']:,} questions: {recall['similar_pairs']:,} above {result['threshold']:g}"
        )
        kinds = {kind: recall[kind] for kind in ("words", "vectors", _TOGETHER) if recall.get(kind) is not None}
        share = ", ".join(f"{kind} {value:.4f}" for kind, value in kinds.items())
        lines.append(f"{shown}; share of them among the candidates: {share}" if share else shown)
    return "\n".join(lines)
