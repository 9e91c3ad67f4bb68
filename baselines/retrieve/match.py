"""Find training questions that ask the same as dev or test.

--model is a cross-encoder for question matching (`train question-matching`, Section 2.3) or a dual-encoder. A
cross-encoder scores two questions by the probability that both ask the same. A dual-encoder scores two questions by the
cosine of their embeddings, with the query prompt of `run`. Negative cosines count as 0.

Only candidates are scored: the --top-k best training questions by BM25, and the --top-k best by the dual-encoder
(--model or --encoder). --recall-sample N also scores N questions with every training question, and prints the share of
similar pairs that are candidates. The output is a TREC run: a dev or test question, a training question, and a score
from 0 to 1. `python -m builders similar --scores RUN` removes the training questions with scores above a threshold. An
interrupted command resumes when it is started again.

--calibrate only writes the threshold that reaches --precision on labelled pairs. Precision and recall are measured on
other pairs, with intervals of 95 %. The verb fails if the scores cannot tell the pairs with label 1 from label 0.

Examples:

  python -m baselines match --model intfloat/multilingual-e5-small --calibrate LCQMC/dev.tsv --out threshold.json
  python -m baselines match --release build/sample --model build/models/question-matching \\
    --encoder intfloat/multilingual-e5-small --recall-sample 20 --out build/runs/similar.run.gz
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from baselines.bm25.bm25_index import Texts, search_columns
from baselines.core.passages import open_passages
from baselines.core.settings import DEVICE, PAIRS, ModelOptions, ModelSettings, add_options
from baselines.measure.qrels import add_set, read_queries
from builders.core.command import add_format, number_between, whole_number
from builders.core.errors import InputError, log
from builders.core.files import check_file, write_text
from builders.core.folders import key_of, work_beside
from builders.core.hub import check_models
from builders.core.limits import usable_cores
from builders.core.sampling import draw
from builders.core.tables import print_result
from builders.store.layout import SETS
from builders.store.reader import Release, open_release
from builders.store.runs import probability, write_run
from builders.text.likeness import TESTED, THRESHOLD, is_similar

if TYPE_CHECKING:  # these imports load PyTorch
    from baselines.retrieve.rerankers import Reranker
    from baselines.retrieve.vector_index import Retriever

TRAIN = "train"
Floats = npt.NDArray[Any]
_TOGETHER = "together"
Found = dict[str, list[str]]  # ids of training questions by question id


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_options(parser, "--out")
    parser.add_argument("--release", type=Path, metavar="DIR", help="release directory (required without --calibrate)")
    add_set(parser)
    parser.add_argument("--split", nargs="+", metavar="S", help="splits to compare with train (default: dev test)")
    parser.add_argument("--model", required=True, metavar="M", help="cross-encoder or dual-encoder: hub or folder")
    parser.add_argument("--encoder", metavar="DE", help="dual-encoder that finds candidates for a cross-encoder")
    parser.add_argument(
        "--top-k", type=whole_number(1), default=50, metavar="K", help="candidates per method (default: 50)"
    )
    parser.add_argument(
        "--recall-sample",
        type=whole_number(0),
        default=0,
        metavar="N",
        help="score N questions with every training question, to measure recall (default: 0)",
    )
    parser.add_argument(
        "--threshold",
        type=number_between(0, 1),
        default=THRESHOLD,
        metavar="X",
        help="count pairs with scores above X as similar; RUN has all pairs (default: 0.5, as in the paper)",
    )
    parser.add_argument(
        "--calibrate", nargs="+", metavar="FILE", help="only write a threshold from pairs (format of `train --pairs`)"
    )
    parser.add_argument(
        "--precision", type=number_between(0, 1), default=0.8, metavar="P", help="target precision (default: 0.8)"
    )
    add_options(parser, *PAIRS, "--trust-remote-code", *DEVICE)
    add_format(parser)
    parser.set_defaults(usage_error=parser.error)


def run(args: argparse.Namespace) -> None:
    if bool(args.calibrate) == bool(args.release):
        args.usage_error("expected --release or --calibrate")
    check_models(args.model, args.encoder)
    check_file(args.out)
    if args.calibrate:
        _calibrate(args)
    else:
        _match(args)


def _calibrate(args: argparse.Namespace) -> None:
    """Determine the threshold from the labelled pairs in ``args.calibrate``, and write it as JSON."""
    from baselines.retrieve.models import shown_name
    from baselines.retrieve.question_pairs import pair_file, read_question_pairs

    pairs = read_question_pairs(map(pair_file, args.calibrate))
    scores = scores_of(args, [pair[:2] for pair in pairs])
    found = {"model": shown_name(args.model), **calibrated(scores, [pair.label for pair in pairs], args.precision)}
    write_text(args.out, json.dumps(found, indent=1) + "\n")
    shown = {name: f"{found[name]:.1%} ({low:.1%} to {high:.1%})" for name, (low, high) in found["intervals"].items()}
    text = (
        f"threshold {found['threshold']}, from {len(pairs):,} pairs, {found['positive_pairs']:,} with label 1\n"
        f"on other pairs: precision {shown['precision']}, recall {shown['recall']}"
    )
    print_result(found, text, args.format)


def scores_of(args: argparse.Namespace, pairs: Sequence[tuple[str, str]]) -> list[float]:
    """Return the score of each pair of questions, from 0 to 1. ``args``: the options of `match`."""
    from baselines.retrieve.rerankers import Reranker

    model = _opened(args, args.model)
    device = model.work.devices[0]
    if isinstance(model, Reranker):
        model.about()  # checks the model
        return [probability(logit) for logit in model.score(pairs, device)]
    texts = list(dict.fromkeys(text for pair in pairs for text in pair))
    vectors = dict(zip(texts, model.encoder(device, "query").encode(texts), strict=True))
    return [cosines(vectors[second][None], vectors[first])[0] for first, second in pairs]


def calibrated(scores: Sequence[float], labels: Sequence[int], precision: float) -> dict[str, Any]:
    """Return the lowest threshold that reaches ``precision``, with the measured precision and recall.

    Precision is the share of label 1 among pairs with a score above the threshold. ``scores`` are from 0 to 1. Each
    half of the pairs (drawn by a fixed seed) is measured with the threshold of the other half. The result has Wilson
    intervals of 95 %. Raises :class:`InputError` if the interval of the precision is wider than 0.2 or begins below the
    share of label 1 among all pairs, or if the interval of the recall ends below 0.2.
    """
    from scipy.stats import binomtest

    own, truth, half = np.array(scores), np.array(labels), np.random.default_rng(0).permutation(len(scores)) % 2 == 0
    above = own > np.where(half, *(_lowest(own[part], truth[part], precision) for part in (~half, half)))
    right, found, positive, chance = int(truth[above].sum()), int(above.sum()), int(truth.sum()), float(truth.mean())
    (low, high), recall = (binomtest(right, max(n, 1)).proportion_ci(method="wilson") for n in (found, positive))
    if high - low > 0.2 or low <= chance or recall.high < 0.2:
        raise InputError(
            f"the model cannot tell these {len(own)} pairs apart at --precision {precision:g}: {found} pairs are above "
            f"the threshold, with a precision of {low:.0%} to {high:.0%} (all pairs: {chance:.0%}) and a recall of "
            f"{recall.low:.0%} to {recall.high:.0%}; use another model, more pairs or another --precision"
        )
    return {
        "threshold": _lowest(own, truth, precision),
        "pairs": len(own),
        "positive_pairs": positive,
        **{"precision": right / found, "recall": right / positive},
        "intervals": {"precision": [low, high], "recall": [*recall]},
    }


def _lowest(scores: Floats, labels: Floats, precision: float) -> float:
    """Return the lowest threshold (a multiple of 0.0001) that reaches ``precision``, or 1.0 if no threshold does."""
    order, steps = np.argsort(scores), np.arange(10_000) / 10_000
    after = np.searchsorted(scores[order], steps, side="right")  # number of pairs whose score is at most the step
    right = labels.sum() - np.concatenate([[0], labels[order].cumsum()])[after]
    good = steps[(after < len(scores)) & (right >= precision * (len(scores) - after))]
    return float(min(good, default=1.0))


def cosines(vectors: Floats, vector: Floats) -> list[float]:
    """Return the cosines of n embeddings (16 bits, unit length) with ``vector``. Negative cosines become 0."""
    return list(map(float, np.clip(vectors.astype(np.float64) @ vector.astype(np.float64), 0, 1).round(6)))


def _opened(args: argparse.Namespace, model: str) -> Retriever | Reranker:
    """Return a re-ranker, or a dual-encoder with the settings of `run`. The similarity of ``--model`` is cosine.

    Raises :class:`InputError` for a model with sparse vectors or with several vectors per text.
    """
    from baselines.retrieve import devices, families, hub_models, models, rerankers, vector_index

    is_main = model == args.model
    work = devices.work_of(args.device, args.dtype, args.batch_tokens, args.tokenizers, args.backend)
    given = {"max_length": args.max_length, "trust_remote_code": args.trust_remote_code}
    settings = ModelSettings(model, revision=hub_models.commit_of(model, args.revision if is_main else ""), **given)
    kind = models.kind_of_scorer(settings)
    if kind in ("cross", "llm"):
        return rerankers.open_reranker(settings, work, kind)
    if kind not in ("dense", "static"):
        raise InputError(f"is a model of kind {kind}; expected a cross-encoder or one vector per text", path=model)
    options = ModelOptions(kind=kind, revision=settings.revision, similarity="cosine" if is_main else None, **given)
    return vector_index.open_retriever(families.resolve(model, options).settings, work, kind)


def _match(args: argparse.Namespace) -> None:
    """Write the run of the candidates' scores, and print counts."""
    from baselines.bm25.engine_numba import open_index
    from baselines.retrieve import dense, rerankers
    from baselines.retrieve.vector_index import Retriever, named

    release, config = open_release(args.release), SETS[args.set].queries
    splits = _splits(release, config, args.split)
    questions = {split: read_queries(release, split, config) for split in splits}
    asked = {question: text for own in questions.values() for question, text in own}
    train = open_passages(release, config, split=TRAIN)
    model = _opened(args, args.model)
    options, job = model.work, None
    if isinstance(model, rerankers.Reranker):
        job = rerankers.PairJob(release.path, config, TRAIN, model)
    elif args.encoder:
        raise InputError("--encoder: --model is a dual-encoder and finds candidates itself; remove --encoder")
    dual = _opened(args, args.encoder) if args.encoder else None if job else model
    if not isinstance(dual, Retriever | None):
        raise InputError("scores pairs; expected a dual-encoder for --encoder", path=args.encoder)
    words = open_index(Texts(release, config, TRAIN), None, usable_cores())
    about = {
        "model": job and job.reranker.about(),
        # The name of the index's folder is a hash of everything that the index depends on.
        "candidates": [words.folder.name, dual and [dual.about["fingerprint"], options.dtype], args.top_k],
        "questions": [release.fingerprint(config, split) for split in (TRAIN, *splits)],
        "options": [options.dtype, args.max_length, options.batch_tokens],
    }
    with work_beside(args.out, key_of(about)) as work:
        by_words = search_columns(words, list(asked.items()), args.top_k, usable_cores())
        found = {"words": {question: others for part in by_words for question, others in part.rankings().items()}}
        if dual:
            # Training questions are encoded as queries, too.
            index = dual.index(release, config, work / f"embeddings-{TRAIN}", TRAIN)
            vectors: dict[str, Any] = {}
            found["vectors"] = {}
            for split, own in questions.items():
                encoded = dual.index(release, config, work / f"embeddings-{split}", split).all()
                hits = named(dense.nearest(index, encoded, train, options.devices, args.top_k), train, args.top_k)
                for (question, _), vector, best in zip(own, encoded, hits, strict=True):
                    vectors[question], found["vectors"][question] = vector, [other for other, _ in best]
        found[_TOGETHER] = {
            question: sorted({other for own in found.values() for other in own.get(question, [])}) for question in asked
        }

        def scored(pairs: Found, folder: str, window: int | None = None) -> dict[str, dict[str, float]]:
            if job:
                (work / folder).mkdir(exist_ok=True)
                groups = [(asked[question], others) for question, others in pairs.items()]
                logits = rerankers.score_windows(job, groups, work / folder, "match", window)
                values = [[probability(logit) for logit in own] for own in logits]
            else:
                every = index.all()
                values = [cosines(every[train.rows(ids)], vectors[question]) for question, ids in pairs.items()]
            each = zip(pairs.items(), values, strict=True)
            return {question: dict(zip(ids, own, strict=True)) for (question, ids), own in each}

        scores = scored(found[_TOGETHER], "candidates")
        lines = write_run(args.out, ((question, own.items()) for question, own in scores.items()), tag="match")
        log.info("%s: %d pairs of %d questions", args.out, lines, len(asked))
        if not job and args.threshold == THRESHOLD:
            log.warning("the threshold %g is for probabilities; --calibrate finds a threshold for cosines", THRESHOLD)
        similar = _similar(scores, args.threshold)
        result: dict[str, Any] = {
            "splits": splits,
            "questions": len(asked),
            "training_questions": len(train),
            "pairs": lines,
            "threshold": args.threshold,
            "similar_pairs": len(similar),  # in the paper: 387 questions, 566 training questions
            "similar_questions": len({question for question, _ in similar}),
            "similar_training_questions": len({other for _, other in similar}),
        }
        if args.recall_sample:
            # Recall is the share of candidates among the similar pairs of the sampled questions.
            drawn = draw(asked, args.recall_sample, seed=0)
            every = dict.fromkeys([question for question in asked if question in drawn], train.ids(range(len(train))))
            similar = _similar(scored(every, f"all-{args.recall_sample}", window=1), args.threshold)
            counts = {kind: sum(b in own.get(a, ()) for a, b in similar) for kind, own in found.items()}
            shares = {kind: count / len(similar) if similar else None for kind, count in counts.items()}
            result["recall"] = {"questions": len(every), "similar_pairs": len(similar), **shares}
    print_result(result, _text(result), args.format)


def _splits(release: Release, config: str, wanted: list[str] | None) -> list[str]:
    """Return the splits to compare with train. The default: dev and test, as far as they have questions.

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
