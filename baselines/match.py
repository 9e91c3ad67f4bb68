"""Find training questions that ask the same as a dev or test question.

A question-matching cross-encoder (`train question-matching`) scores pairs of a dev or test question and a training
question (Section 2.3). Only candidates are scored: the --top-k best training questions by words (BM25) and, with
--encoder, by a dual-encoder. --recall-sample N also scores N questions with every training question, and prints the
share of the similar pairs that are candidates. The output is a TREC run: a dev or test question, a training question,
and the probability that both ask the same, in [0, 1]. `python -m builders similar --scores RUN` removes the training
questions above 0.5. Finished scores are retained, so an interrupted command resumes when it is started again.

Example:

  python -m baselines match --release build/sample --model build/models/question-matching \\
    --encoder intfloat/multilingual-e5-small --recall-sample 20 --out build/runs/similar.run.gz
"""

from __future__ import annotations

import argparse
import json
from typing import Any

from baselines.bm25.index import Texts, search_columns
from baselines.measure.qrels import add_set, read_queries
from baselines.retrieve.passages import open_passages
from baselines.retrieve.settings import DEVICE, PAIRS, ModelSettings, add_options
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
from builders.store.runs import probability, write_run

TRAIN = "train"
_TOGETHER = "together"
Found = dict[str, list[str]]  # by question id: ids of training questions, best first


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_options(parser, "--release", "--out")
    add_set(parser)
    parser.add_argument("--split", nargs="+", metavar="S", help="splits to compare with train (default: dev test)")
    parser.add_argument("--model", required=True, metavar="CE", help="question-matching cross-encoder: hub or folder")
    parser.add_argument("--encoder", metavar="DE", help="sentence-transformers model that adds candidates")
    parser.add_argument(
        "--top-k", type=whole_number(1), default=50, metavar="K", help="candidates per method (default: 50)"
    )
    parser.add_argument(
        "--recall-sample",
        type=whole_number(0),
        default=0,
        metavar="N",
        help="score N questions with every training question, for the candidates' recall (default: 0)",
    )
    parser.add_argument(
        "--threshold",
        type=number_between(0, 1),
        default=THRESHOLD,
        metavar="X",
        help="count pairs above X as similar; the run has all pairs (default: 0.5, as in the paper)",
    )
    add_options(parser, *PAIRS, *DEVICE)
    add_format(parser)


def run(args: argparse.Namespace) -> None:
    check_models(args.model, args.encoder)
    from baselines.bm25.engine_numba import open_index
    from baselines.retrieve import rerankers
    from baselines.retrieve.dense import Dense, nearest
    from baselines.retrieve.hub_models import commit_of
    from baselines.retrieve.index import named

    check_file(args.out)
    release, config = open_release(args.release), SETS[args.set].queries
    splits = _splits(release, config, args.split)
    questions = {split: read_queries(release, split, config) for split in splits}
    asked = {question: text for own in questions.values() for question, text in own}
    train = open_passages(release, config, split=TRAIN)
    job = rerankers.pair_job(args, args.model, release, config, TRAIN)
    words = open_index(Texts(release, config, TRAIN), None, usable_cores())
    dual = None
    if args.encoder:
        dual = Dense(ModelSettings(args.encoder, revision=commit_of(args.encoder)), job.reranker.work)
    about = {
        "model": job.reranker.about(),
        # The folder's name is a hash of everything that the index depends on.
        "candidates": [words.folder.name, dual and [dual.about["fingerprint"], job.reranker.work.dtype], args.top_k],
        "questions": [release.fingerprint(config, split) for split in (TRAIN, *splits)],
        "options": [job.reranker.work.dtype, args.max_length, job.reranker.work.batch_tokens],
    }
    with work_beside(args.out, key_of(about)) as work:

        def probabilities(pairs: Found, folder: str, window: int | None = None) -> dict[str, dict[str, float]]:
            (work / folder).mkdir(exist_ok=True)
            groups = [(asked[question], others) for question, others in pairs.items()]
            logits = rerankers.score_windows(job, groups, work / folder, "match", window)
            scored = zip(pairs.items(), logits, strict=True)
            return {question: dict(zip(ids, map(probability, own), strict=True)) for (question, ids), own in scored}

        by_words = search_columns(words, list(asked.items()), args.top_k, usable_cores())
        found = {"words": {question: others for part in by_words for question, others in part.rankings().items()}}
        if dual:
            # Both sides are questions, so both are encoded as queries.
            index = dual.index(release, config, work / f"embeddings-{TRAIN}", TRAIN)
            found["vectors"] = {}
            for split, own in questions.items():
                vectors = dual.index(release, config, work / f"embeddings-{split}", split).all()
                hits = named(nearest(index, vectors, train, job.reranker.work.devices, args.top_k), train, args.top_k)
                for (question, _), best in zip(own, hits, strict=True):
                    found["vectors"][question] = [other for other, _ in best]
        found[_TOGETHER] = {
            question: sorted({other for own in found.values() for other in own.get(question, [])}) for question in asked
        }
        scores = probabilities(found[_TOGETHER], "candidates")
        lines = write_run(args.out, ((question, own.items()) for question, own in scores.items()), tag="match")
        log.info("%s: %d pairs of %d questions", args.out, lines, len(asked))
        similar = _similar(scores, args.threshold)
        result: dict[str, Any] = {
            "splits": splits,
            "questions": len(asked),
            "training_questions": len(train),
            "pairs": lines,
            "threshold": args.threshold,
            "similar_pairs": len(similar),  # the paper: 387 questions and 566 training questions
            "similar_questions": len({question for question, _ in similar}),
            "similar_training_questions": len({other for _, other in similar}),
        }
        if args.recall_sample:
            # Recall: the share of candidates among all similar pairs of the sampled questions.
            drawn = draw(asked, args.recall_sample, seed=0)
            every = dict.fromkeys([question for question in asked if question in drawn], train.ids(range(len(train))))
            similar = _similar(probabilities(every, f"all-{args.recall_sample}", window=1), args.threshold)
            counts = {kind: sum(b in own.get(a, ()) for a, b in similar) for kind, own in found.items()}
            shares = {kind: count / len(similar) if similar else None for kind, count in counts.items()}
            result["recall"] = {"questions": len(every), "similar_pairs": len(similar), **shares}
    print(json.dumps(result) if args.format == "json" else _text(result))


def _splits(release: Release, config: str, wanted: list[str] | None) -> list[str]:
    """Return the splits to compare with train. The default: dev and test, if they have questions.

    Raises :class:`InputError` for train and for splits without questions.
    """
    have = [split for name, split in release.splits() if name == config and release.rows(config, split)]
    if TRAIN in (found := list(dict.fromkeys(wanted or [split for split in TESTED if split in have]))):
        raise InputError("--split train: every split is compared with train; expected another split")
    if not found or {*found} - {*have}:
        lacking = " and ".join(sorted({*(found or TESTED)} - {*have}))
        raise InputError(f"has no questions in {config} of {lacking}", path=release.path)
    return found


def _similar(scores: dict[str, dict[str, float]], threshold: float) -> set[tuple[str, str]]:
    pairs = ((question, other, score) for question, own in scores.items() for other, score in own.items())
    return {(question, other) for question, other, score in pairs if is_similar(score, threshold)}


def _text(result: dict[str, Any]) -> str:
    lines = [
        f"{result['pairs']:,} pairs of {result['questions']:,} questions of {' and '.join(result['splits'])} with "
        f"{result['training_questions']:,} of train; {result['similar_pairs']:,} above {result['threshold']:g}: "
        f"{result['similar_training_questions']:,} training questions like {result['similar_questions']:,} questions"
    ]
    if recall := result.get("recall"):
        kinds = [
            f"{kind} {recall[kind]:.4f}" for kind in ("words", "vectors", _TOGETHER) if recall.get(kind) is not None
        ]
        lines.append(
            f"all pairs of {recall['questions']:,} questions: {recall['similar_pairs']:,} above "
            f"{result['threshold']:g}; share of them among the candidates: {', '.join(kinds) or 'none is similar'}"
        )
    return "\n".join(lines)
