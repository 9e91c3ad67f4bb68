"""Pairs of questions scored: candidates, then the cross-encoder, then how many similar pairs the candidates hold."""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from baselines.match.candidates import TRAIN, Found, by_vectors, by_words
from baselines.measure.qrels import read_queries
from baselines.models.cross import CrossJob, cross_job
from baselines.models.devices import devices_of
from baselines.passages import Passages, open_passages
from baselines.rerank.windows import kept_scores
from builders.core.errors import InputError, log
from builders.core.files import check_file
from builders.core.folders import key_of, work_beside
from builders.core.sampling import draw
from builders.pool.ensemble import probability
from builders.similar.likeness import TESTED, is_similar
from builders.store.layout import SETS
from builders.store.reader import Release, open_release
from builders.store.runs import write_run

_TOGETHER = "together"


def match(args: argparse.Namespace) -> None:
    """Write the run that the options of `match` ask for, and print what was found."""
    check_file(args.out)
    release, config = open_release(args.release), SETS[args.set].queries
    splits = _splits(release, config, args.split)
    asked = {question: text for split in splits for question, text in read_queries(release, split, config)}
    train = open_passages(release, config, split=TRAIN)
    devices = devices_of(args.device)
    job = cross_job(args, args.model, release, config, devices, TRAIN)
    words = by_words(release, config)
    vectors = by_vectors(args.encoder, args.encoder_revision, args.dtype, devices) if args.encoder else None
    about = {
        "model": job.reranker("cpu").about(),
        "candidates": [words.about, vectors.about if vectors else None, args.top_k],
        "questions": [release.fingerprint(config, split) for split in (TRAIN, *splits)],
        "options": [job.dtype, job.settings.max_length, job.tokens],
    }
    with work_beside(args.out, key_of(about)) as work:
        found = {"words": words.candidates(list(asked.items()), args.top_k)}
        if vectors:
            found["vectors"] = vectors.candidates(release, config, splits, args.top_k, work)
        found[_TOGETHER] = {
            question: sorted({other for own in found.values() for other in own.get(question, [])}) for question in asked
        }
        scores = _probabilities(job, asked, found[_TOGETHER], work / "candidates", devices)
        lines = write_run(args.out, ((question, own.items()) for question, own in scores.items()), tag="match")
        log.info("%s: %d pairs of %d questions", args.out, lines, len(asked))
        result = {
            "splits": splits,
            "questions": len(asked),
            "training_questions": len(train),
            "pairs": lines,
            "threshold": args.threshold,
            **_counts(scores, args.threshold),
        }
        if args.recall_sample:
            result["recall"] = _recall(args, job, asked, train, found, work / f"all-{args.recall_sample}", devices)
    print(json.dumps(result) if args.format == "json" else _text(result))


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
    job: CrossJob, asked: Mapping[str, str], pairs: Found, work: Path, devices: list[str], window: int | None = None
) -> dict[str, dict[str, float]]:
    """Of each question and its candidates: the probability that they ask the same."""
    work.mkdir(exist_ok=True)
    groups = [(asked[question], others) for question, others in pairs.items()]
    logits = kept_scores(job, groups, work, devices, "match", window)
    return {
        question: dict(zip(others, map(probability, own), strict=True))
        for (question, others), own in zip(pairs.items(), logits, strict=True)
    }


def _counts(scores: dict[str, dict[str, float]], threshold: float) -> dict[str, int]:
    """Pairs above the threshold, and how many questions of either side are in one (the paper: 387 and 566)."""
    similar = _similar(scores, threshold)
    return {
        "similar_pairs": len(similar),
        "similar_questions": len({question for question, _ in similar}),
        "similar_training_questions": len({other for _, other in similar}),
    }


def _similar(scores: dict[str, dict[str, float]], threshold: float) -> set[tuple[str, str]]:
    """The pairs that `similar` would take for similar."""
    return {
        (question, other)
        for question, own in scores.items()
        for other, score in own.items()
        if is_similar(score, threshold)
    }


def _recall(
    args: argparse.Namespace,
    job: CrossJob,
    asked: dict[str, str],
    train: Passages,
    found: dict[str, Found],
    work: Path,
    devices: list[str],
) -> dict[str, Any]:
    """The share of the similar pairs of a sample of questions, of all pairs, that the candidates of each kind hold.

    None where no pair of the sample is similar.
    """
    drawn = draw(asked, args.recall_sample, seed=0)
    sample = [question for question in asked if question in drawn]
    every = train.ids(range(len(train)))
    scores = _probabilities(job, asked, dict.fromkeys(sample, every), work, devices, window=1)
    similar = _similar(scores, args.threshold)
    held = {kind: sum(other in own.get(question, ()) for question, other in similar) for kind, own in found.items()}
    return {
        "questions": len(sample),
        "similar_pairs": len(similar),
        **{kind: count / len(similar) if similar else None for kind, count in held.items()},
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
