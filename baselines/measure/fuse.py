"""Fuse runs: by reciprocal rank, or by a weighted sum of scores.

``rrf`` adds weight / (60 + rank) over the runs. ``weighted`` adds weight times score. For ``weighted``, the scores of
each query in each run are first scaled: the lowest becomes 0 and the highest 1, and equal scores all become 1. A run
adds 0 for a passage that it lacks.

Tune the weights if one run is much better than another. With equal weights (the default of rrf), the fusion can be
worse than the better run. For example, MRR@10 on 700 questions is 91.68 for multilingual-e5-small and 86.62 for the
fusion of e5 and BM25. --tune SPLIT tries every combination of weights in steps of --step. --tune-runs are runs on
SPLIT, by the same systems in the same order. The best weights by MRR@10 are used and written to --weights, for later
calls. Weights tuned on the fused queries overestimate the result, and need --tune-on-these.

--tune train uses a fixed sixteenth of the training questions, or all questions if the sixteenth has fewer than 50.
Train models with --set data.leave_out=tuning, so that models do not learn these questions. The runs' manifests record
this setting. `fuse` warns about every run without this record, except BM25's.

Example:

  python -m baselines fuse --release build/sample --out build/runs/fused.dev.run \\
    build/runs/bm25.dev.run build/runs/de.dev.run --tune train --weights build/runs/weights.json \\
    --tune-runs build/runs/bm25.train.run build/runs/de.train.run
"""

import argparse
import itertools
import json
import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from baselines.measure.measures import MRR_DEPTH
from baselines.measure.qrels import Qrels, add_set, release_qrels
from builders.core.command import whole_number
from builders.core.errors import InputError, log
from builders.core.files import read_whole, write_text
from builders.core.typed import json_of, name_within, read_json
from builders.store.layout import is_for_tuning
from builders.store.reader import open_release
from builders.store.runs import Hit, Run, best_first, read_run, write_run

Scores = dict[str, dict[str, float]]  # by query, then by passage

FEWEST = 50  # least number of tuning questions
_STAGES = 9  # most re-rankings of a run. The limit ends a loop of manifests that name each other.


class _FirstStage(msgspec.Struct):
    file: str

    def __post_init__(self) -> None:
        name_within(self.file)


class _Record(msgspec.Struct):
    """The fields read from a run's manifest. ``reranked``: the run that was re-ranked."""

    kind: str = ""
    model: dict[str, Any] = {}
    reranked: _FirstStage | None = None


class _Weights(msgspec.Struct):
    """The fields read from a file of weights. :func:`_tuned` writes such files."""

    weights: list[float]
    method: str | None = None


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("runs", type=Path, nargs="+", metavar="RUN", help="two or more runs of the same queries")
    parser.add_argument("--out", type=Path, required=True, metavar="RUN", help="run to write; .gz is gzipped")
    parser.add_argument("--method", choices=["rrf", "weighted"], default="rrf", help="fusion method (default: rrf)")
    parser.add_argument("--top-k", type=whole_number(1), default=50, metavar="K", help="keep K passages (default: 50)")
    parser.add_argument("--weights", type=Path, metavar="FILE", help="file of weights to read, or with --tune to write")
    parser.add_argument("--tune", metavar="SPLIT", help="tune the weights on this split, for example train")
    parser.add_argument("--tune-runs", type=Path, nargs="+", metavar="RUN", help="runs of the same systems on SPLIT")
    parser.add_argument("--tune-on-these", action="store_true", help="allow tuning on the queries that are fused")
    parser.add_argument("--step", type=_step, default=0.05, metavar="X", help="step of the weights (default: 0.05)")
    parser.add_argument("--release", type=Path, metavar="DIR", help="release with the judgments for --tune")
    add_set(parser)


def _step(text: str) -> float:
    value = float(text)
    if not (0 < value <= 1 and abs(1 / value - round(1 / value)) < 1e-9):
        raise argparse.ArgumentTypeError(f"expected 1 / n, for example 0.1 or 0.05; found {text}")
    return value


def run(args: argparse.Namespace) -> None:
    if len(args.runs) < 2:
        raise InputError("expected two runs or more")
    runs = [read_run(path) for path in args.runs]
    if args.tune:
        weights = _tuned(args, runs)
    else:
        weights = [1.0] * len(runs) if args.method == "rrf" and not args.weights else _read_weights(args)
    every = {query for run in runs for query in run.hits}
    if not set.intersection(*(set(run.hits) for run in runs)):
        raise InputError("the runs share no query; expected runs of one split", path=", ".join(map(str, args.runs)))
    for run in runs:
        if missing := len(every) - len(run.hits):
            log.warning("%s lacks %d of %d queries", run.path, missing, len(every))
    lines = write_run(args.out, fused(_scores(args, runs), weights, args.top_k), tag=f"fused-{args.method}")
    log.info("%s: %d lines from %d runs", args.out, lines, len(runs))


def _scores(args: argparse.Namespace, runs: Sequence[Run]) -> list[Scores]:
    return [reciprocal_ranks(run) if args.method == "rrf" else normalised(run) for run in runs]


def _tuned(args: argparse.Namespace, runs: Sequence[Run]) -> list[float]:
    if not args.release:
        raise InputError("--tune needs judgments; expected --release DIR")
    if len(args.tune_runs or runs) != len(runs):
        raise InputError(f"--tune-runs: expected {len(runs)} runs, the same systems in the same order")
    qrels = release_qrels(open_release(args.release), args.tune, args.set)
    tune_runs = [read_run(path) for path in args.tune_runs] if args.tune_runs else runs
    if not any(query in run.hits for run in tune_runs for query in qrels.positives):
        path = ", ".join(str(run.path) for run in tune_runs)
        raise InputError(f"no matching query: none of the {len(qrels.positives)} queries of {qrels.name}", path=path)
    shared = sum(any(query in run.hits for run in runs) for query in qrels.positives)
    if shared and not args.tune_on_these:
        raise InputError(
            f"--tune {args.tune}: {shared} queries of this split are in the runs to fuse; expected --tune-runs of "
            "another split, or --tune-on-these"
        )
    if args.tune == "train":
        qrels = _tuning_questions(qrels, tune_runs)
    systems = _scores(args, tune_runs)
    weights, value = tune(systems, qrels, args.step)
    single = [tune([system], qrels, 1)[1] for system in systems]
    result = {
        "weights": weights,
        "method": args.method,
        "tuned_on": args.tune,
        "questions": len(qrels.positives),
        "runs": [run.path.name for run in tune_runs],
        "MRR@10": value,
        "alone": single,
    }
    listed = ", ".join(f"{run.path.name} {one:.4f}" for run, one in zip(tune_runs, single, strict=True))
    log.info("tuned on %s: weights %s, MRR@10 %.4f (single runs: %s)", args.tune, weights, value, listed)
    path = args.weights or args.out.with_name(f"{args.out.name}.weights.json")
    write_text(path, json.dumps(result, indent=1) + "\n")
    return weights


def _tuning_questions(qrels: Qrels, runs: Sequence[Run]) -> Qrels:
    """Return the judgments of the tuning questions, or of all training questions if fewer than FEWEST are for tuning.

    Warns about runs of models that may have been trained on the returned questions.
    """
    own = {query: positives for query, positives in qrels.positives.items() if is_for_tuning(query)}
    if few := len(own) < FEWEST:
        log.warning("only %d of %d training questions are for tuning; all are used", len(own), len(qrels.positives))
    for run in runs:
        if not _is_apart(run.path, few):
            log.warning(
                "%s: the model may have been trained on the tuning questions, so the weights may favour this run%s",
                *(run.path, "" if few else " (train with data.leave_out=tuning)"),
            )
    return qrels if few else replace(qrels, positives=own)


def _is_apart(path: Path, few: bool) -> bool:
    """True if the manifests show that no model of the run was trained on the tuning questions.

    ``few``: tuning uses all training questions, so that only runs of BM25 qualify.
    """
    for _ in range(_STAGES):
        beside = path.with_name(f"{path.name}.manifest.json")
        record = read_json(beside, _Record) if beside.is_file() else _Record()
        if record.kind != "bm25" and (few or record.model.get("left_out") != "tuning"):
            return False
        if not record.reranked:
            return True
        path = path.with_name(record.reranked.file)
    return False


def _read_weights(args: argparse.Namespace) -> list[float]:
    if not args.weights:
        raise InputError("--method weighted needs --weights FILE or --tune SPLIT")
    found = json_of(read_whole(args.weights), _Weights, args.weights, remedy='expected {"weights": [one per run]}')
    if found.method not in (None, args.method):
        raise InputError(f"expected weights of --method {args.method}, found {found.method}", path=args.weights)
    if (count := len(found.weights)) != len(args.runs):
        raise InputError(f"expected {len(args.runs)} weights, one per run, found {count}", path=args.weights)
    return found.weights


def reciprocal_ranks(run: Run) -> Scores:
    """Return 1 / (60 + rank) of every passage, with ranks from 1."""
    return {
        query: {corpus: 1 / (60 + rank) for rank, corpus in enumerate(dict.fromkeys(c for c, _ in hits), 1)}
        for query, hits in run.hits.items()
    }


def normalised(run: Run) -> Scores:
    """Scale every query's scores to 0 ... 1. A repeated passage gets its first score, which is its highest."""
    found: Scores = {}
    for query, hits in run.hits.items():
        scores = dict(reversed(hits))
        low, high = min(scores.values(), default=0.0), max(scores.values(), default=0.0)
        found[query] = {c: (score - low) / (high - low) if high > low else 1.0 for c, score in scores.items()}
    return found


def fused(systems: Sequence[Scores], weights: Sequence[float], top_k: int) -> Iterator[tuple[str, list[Hit]]]:
    """Yield (query, hits) for every query of any run, in the order in which the queries first occur."""
    for query in dict.fromkeys(query for system in systems for query in system):
        terms: dict[str, list[float]] = {}
        for system, weight in zip(systems, weights, strict=True):
            for corpus, score in system.get(query, {}).items():
                terms.setdefault(corpus, []).append(weight * score)
        # fsum is exact, so the order of the runs does not change the score.
        hits = [(corpus, math.fsum(each)) for corpus, each in terms.items()]
        yield query, best_first(hits)[:top_k]


def mixtures(runs: int, step: float) -> npt.NDArray[np.float64]:
    """Return every vector of ``runs`` weights that are multiples of ``step`` and sum to 1, shape (mixtures, runs)."""
    whole = round(1 / step)
    cuts = itertools.combinations(range(whole + runs - 1), runs - 1)
    return np.array([np.diff([-1, *each, whole + runs - 1]) - 1 for each in cuts], np.float64) / whole


def tune(systems: Sequence[Scores], qrels: Qrels, step: float) -> tuple[list[float], float]:
    """Return (weights, MRR@10) of the best mixture. Ties go to the mixture nearest to equal weights."""
    every = mixtures(len(systems), step)
    sums = np.zeros(len(every))
    for query, positives in qrels.positives.items():
        ids = sorted({corpus for system in systems for corpus in system.get(query, {})})
        good = np.array([corpus in positives for corpus in ids], bool)
        if not good.any():
            continue
        columns = np.array([[system.get(query, {}).get(corpus, 0.0) for system in systems] for corpus in ids])
        scores = (columns @ every.T).round(12)  # rounded, because the last bits are rounding errors
        # The row of the best positive. Ids are sorted and argmax returns the first maximum, so the lowest id wins ties.
        best = np.where(good[:, None], scores, -1.0).argmax(0)
        value = scores[best, np.arange(len(every))]
        above = (scores > value).sum(0) + ((scores == value) & (np.arange(len(ids))[:, None] < best)).sum(0)
        sums += np.where(above < MRR_DEPTH, 1 / (1 + above), 0.0)
    distance = ((every - 1 / len(systems)) ** 2).sum(1)
    first = np.lexsort((distance.round(12), -sums.round(9)))[0]
    return every[first].tolist(), float(sums[first] / len(qrels.positives))
