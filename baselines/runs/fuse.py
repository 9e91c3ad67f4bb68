"""Fuse runs: by reciprocal rank, or by a weighted sum of scores.

``rrf``: a passage's score is the sum, over the runs, of weight / (60 + its rank). ``weighted``: of weight times score,
each query's scores in each run first brought to 0 ... 1 (the lowest is 0, the highest 1; 1 for all where they are
equal); a passage that a run lacks has 0 there.

Tune the weights where one run is much better than another. With equal weights, rrf's default, the fusion is then worse
than the better run alone: MRR@10 86.62 for multilingual-e5-small with BM25, 91.68 for the former alone (700 questions).
--tune SPLIT tries every mixture in steps of --step on the runs of --tune-runs, the same systems in the same order on
that split, and takes the one with the highest MRR@10 there; each run alone is among them. Use training questions, as in
the example. The weights are written to --weights, from where another call reads them. Weights tuned on the queries that
are fused flatter the result: this is refused without --tune-on-these.

Example:

  python -m baselines fuse --release build/sample --split dev --out build/runs/fused.dev.run \\
    build/runs/bm25.dev.run build/runs/de.dev.run --tune train --weights build/runs/weights.json \\
    --tune-runs build/runs/bm25.train.run build/runs/de.train.run
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec

from baselines.runs.fusion import RRF_K, Scores, fused, normalised, reciprocal_ranks, tune
from baselines.runs.qrels import release_qrels
from baselines.runs.sets import add_set
from builders.core.command import whole_number
from builders.core.errors import InputError, log
from builders.core.files import read_whole, write_text
from builders.core.typed import json_of
from builders.store.reader import open_release
from builders.store.runs import Run, read_run, write_run


class _Weights(msgspec.Struct):
    """What is read of a file of weights, which :func:`_tuned` writes."""

    weights: list[float]
    method: str | None = None


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("runs", type=Path, nargs="+", metavar="RUN", help="two or more runs of the same queries")
    parser.add_argument("--out", type=Path, required=True, metavar="RUN", help="the run; gzipped where it ends in .gz")
    parser.add_argument("--method", choices=["rrf", "weighted"], default="rrf", help="default: rrf")
    parser.add_argument("--top-k", type=whole_number(1), default=50, metavar="K", help="passages a query (default: 50)")
    parser.add_argument("--rrf-k", type=whole_number(0), default=RRF_K, metavar="N", help=f"default: {RRF_K}")
    parser.add_argument("--weights", type=Path, metavar="FILE", help="read from here; with --tune, written")
    parser.add_argument("--tune", metavar="SPLIT", help="find the weights on this split (train)")
    parser.add_argument("--tune-runs", type=Path, nargs="+", metavar="RUN", help="the same systems' runs of that split")
    parser.add_argument("--tune-on-these", action="store_true", help="tune on the very queries that are fused")
    parser.add_argument("--step", type=_step, default=0.05, metavar="X", help="of the weights (default: 0.05)")
    parser.add_argument("--release", type=Path, metavar="DIR", help="whose judgments --tune needs")
    parser.add_argument("--split", default="dev", help="the split of the runs; not needed to fuse them")
    add_set(parser)


def _step(text: str) -> float:
    value = float(text)
    if not (0 < value <= 1 and abs(1 / value - round(1 / value)) < 1e-9):
        raise argparse.ArgumentTypeError(f"expected 1 / n (0.1, 0.05, ...), found {text}")
    return value


def run(args: argparse.Namespace) -> None:
    if len(args.runs) < 2:
        raise InputError("expected two runs or more")
    runs = [read_run(path) for path in args.runs]
    if args.tune:
        weights = _tuned(args, runs)
    else:
        weights = [1.0] * len(runs) if args.method == "rrf" and not args.weights else _read_weights(args)
    systems = _scores(args, runs)
    _report_missing(runs)
    lines = write_run(args.out, fused(systems, weights, args.top_k), tag=f"fused-{args.method}")
    log.info("%s: %d lines from %d runs", args.out, lines, len(runs))


def _scores(args: argparse.Namespace, runs: Sequence[Run]) -> list[Scores]:
    """The scores that the method sums up."""
    if args.method == "rrf":
        return [reciprocal_ranks(run, args.rrf_k) for run in runs]
    return [normalised(run) for run in runs]


def _tuned(args: argparse.Namespace, runs: Sequence[Run]) -> list[float]:
    if not args.release:
        raise InputError("--tune needs --release, whose judgments it is tuned on")
    if len(args.tune_runs or runs) != len(runs):
        raise InputError(f"--tune-runs: expected {len(runs)} runs, the same systems in the same order")
    qrels = release_qrels(open_release(args.release), args.tune, args.set)
    others = [read_run(path) for path in args.tune_runs] if args.tune_runs else runs
    if not any(query in run.hits for run in others for query in qrels.positives):
        path = ", ".join(str(run.path) for run in others)
        raise InputError(f"no matching query: none of the {len(qrels.positives)} queries of {qrels.name}", path=path)
    shared = sum(any(query in run.hits for run in runs) for query in qrels.positives)
    if shared and not args.tune_on_these:
        raise InputError(
            f"--tune {args.tune}: {shared} of its queries are in the runs to fuse; expected --tune-runs of other "
            "queries, or --tune-on-these"
        )
    systems = _scores(args, others)
    weights, value = tune(systems, qrels, args.step)
    alone = [tune([system], qrels, 1)[1] for system in systems]
    result: dict[str, Any] = {
        "weights": weights,
        "method": args.method,
        "tuned_on": args.tune,
        "runs": [run.path.name for run in others],
        "MRR@10": value,
        "alone": alone,
    }
    each = ", ".join(f"{run.path.name} {one:.4f}" for run, one in zip(others, alone, strict=True))
    log.info("tuned on %s: weights %s, MRR@10 %.4f (alone: %s)", args.tune, weights, value, each)
    path = args.weights or args.out.with_name(f"{args.out.name}.weights.json")
    write_text(path, json.dumps(result, indent=1) + "\n")
    return weights


def _read_weights(args: argparse.Namespace) -> list[float]:
    if not args.weights:
        raise InputError("--method weighted needs --weights FILE or --tune SPLIT")
    expected = 'expected {"weights": [a number a run]}'
    found = json_of(read_whole(args.weights), _Weights, args.weights, remedy=expected)
    weights = found.weights
    if found.method not in (None, args.method):
        raise InputError(f"weights of --method {found.method}, not of {args.method}", path=args.weights)
    if len(weights) != len(args.runs):
        raise InputError(f"expected {len(args.runs)} weights, one a run, found {len(weights)}", path=args.weights)
    return weights


def _report_missing(runs: Sequence[Run]) -> None:
    every = {query for run in runs for query in run.hits}
    if not set.intersection(*(set(run.hits) for run in runs)):
        raise InputError("share no query; expected runs of one split", path=", ".join(str(run.path) for run in runs))
    for run in runs:
        if missing := len(every) - len(run.hits):
            log.warning("%s lacks %d of %d queries", run.path, missing, len(every))
