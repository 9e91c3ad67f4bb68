"""Sample hard negatives for training out of a run.

Hard negatives are passages that a retriever ranks high and that are no known positives. Sampled from the top 50, 4 for
each positive passage (Sections 3.1 and A.2): a query with two positives gets 8. Known positives are left out by id and
by text (equal but for case, width and blanks). The same seed gives a query the same sample, whatever the order of the
run and whichever other queries it holds. --set crosslingual takes a run of the Chinese queries for English ones.

A candidate that scores like a positive may be one that nobody judged. Left out are those that score above --max-score;
above the query's best positive less --margin (RocketQA's denoising); or above a share of it: with --relative-margin
0.05, above 95 % (NV-Retriever's; as relative_margin of sentence-transformers). Scores are those of --cross-encoder
(probabilities), those of --bi-encoder (cosines, or what it compares by), or else the run's own; there a positive that
the run lacks counts as the last passage that it has.

The file has a JSON object a line, in the order of the judgments: {"query-id": ..., "negative-ids": [...]}; every
beginning of a list of ids is a random sample too. `python -m builders annotate relabel` finds the positives among them.

Example:

  python -m baselines mine --release build/sample --split train --run build/runs/bm25.train.run.gz \\
    --out build/negatives/bm25.jsonl.gz
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
from collections.abc import Iterator
from pathlib import Path

from baselines.mine.negatives import Candidates, for_english, hard_negatives
from baselines.retrieve.passages import Passages, open_passages
from baselines.retrieve.settings import add_device, add_pairs
from baselines.runs.qrels import Qrels, release_qrels
from baselines.runs.sets import add_queries, add_set, expect_main, read_queries
from builders.core.command import number_between, whole_number
from builders.core.errors import InputError, log
from builders.core.files import atomic_text, check_file
from builders.core.hub import check_models
from builders.core.progress import progress
from builders.store.layout import SETS
from builders.store.reader import Release, open_release
from builders.store.runs import Run, read_run

_WINDOW = 256  # queries whose candidates are scored together
_ANY = number_between(-math.inf, math.inf)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--release", type=Path, required=True, metavar="DIR", help="the release directory")
    add_set(parser)
    parser.add_argument("--split", default="train", help="whose queries (default: train)")
    add_queries(parser)
    parser.add_argument("--run", type=Path, required=True, metavar="RUN", help="a run of these queries")
    parser.add_argument("--out", type=Path, required=True, metavar="F", help="JSON lines; gzipped where it ends in .gz")
    parser.add_argument(
        "--top-k", type=whole_number(1), default=50, metavar="K", help="sample from these (default: 50)"
    )
    parser.add_argument(
        "--negatives", type=whole_number(1), default=4, metavar="N", help="for each positive passage (default: 4)"
    )
    parser.add_argument("--seed", type=int, default=0, help="default: 0")
    models = parser.add_mutually_exclusive_group()
    models.add_argument("--cross-encoder", metavar="M", help="leave out what this model holds for relevant")
    models.add_argument("--bi-encoder", metavar="M", help="likewise, by a dual-encoder")
    parser.add_argument("--margin", type=_ANY, metavar="X", help="candidates score at most best positive - X")
    parser.add_argument(
        "--relative-margin",
        type=number_between(0, 1),
        metavar="X",
        help="candidates score at most (1 - X) of the best positive",
    )
    parser.add_argument("--max-score", type=_ANY, metavar="X", help="candidates score at most X")
    add_pairs(parser)
    add_device(parser)
    parser.set_defaults(usage_error=parser.error)


def run(args: argparse.Namespace) -> None:
    _check_limits(args)
    check_models(args.cross_encoder, args.bi_encoder)
    check_file(args.out)
    release, configs = open_release(args.release), SETS[args.set]
    qrels = release_qrels(release, args.split, args.set, expect_main(args, "--queries", args.queries))
    given = read_run(args.run)
    if args.set == "crosslingual":
        given = for_english(given, release, args.split)
    if not any(query in given.hits for query in qrels.positives):
        raise InputError(f"no matching query: it has none of the {len(qrels.positives)} of {qrels.name}", path=args.run)
    passages = open_passages(release, configs.corpus)
    ranked = dict.fromkeys(corpus for hits in given.hits.values() for corpus, _ in hits[: args.top_k])
    passages.expect(ranked, args.run)
    short = none = dropped = 0
    with atomic_text(args.out) as file:
        chosen = _chosen(args, release, given, qrels, passages)
        for each, ids, left_out in progress(chosen, total=len(qrels.positives), unit="query", label="mine"):
            short += len(ids) < each.asked
            none += not ids
            dropped += left_out
            file.write(json.dumps({"query-id": each.query, "negative-ids": ids}, ensure_ascii=False) + "\n")
    if missing := sum(query not in given.hits for query in qrels.positives):
        log.warning("%s lacks %d of %d queries", args.run, missing, len(qrels.positives))
    if short:
        log.warning(
            "%d of %d queries have fewer negatives than asked for; %d have none", short, len(qrels.positives), none
        )
    if _limited(args):
        log.info("%d candidates were left out: they score like positives", dropped)
    log.info("%s: negatives of %d queries", args.out, len(qrels.positives))


def _limited(args: argparse.Namespace) -> bool:
    return (args.margin, args.relative_margin, args.max_score) != (None, None, None)


def _check_limits(args: argparse.Namespace) -> None:
    if (model := "--cross-encoder" if args.cross_encoder else "--bi-encoder" if args.bi_encoder else "") and (
        not _limited(args)
    ):
        raise InputError(f"{model} goes with --margin, --relative-margin or --max-score")
    if args.cross_encoder:  # whose scores are probabilities
        for name, value, low in (("--margin", args.margin, -1), ("--max-score", args.max_score, 0)):
            if value is not None and not low <= value <= 1:
                args.usage_error(f"{name}: expected a number {low} <= x <= 1, found {value}")


def _chosen(
    args: argparse.Namespace, release: Release, given: Run, qrels: Qrels, passages: Passages
) -> Iterator[tuple[Candidates, list[str], int]]:
    """(a query's candidates, the ids that are taken, how many were left out for their scores), query by query."""
    limited, options = _limited(args), (args.top_k, args.negatives, args.seed)
    found = hard_negatives(given, qrels, passages, *options, every=limited)
    if not limited:
        yield from ((each, each.ids, 0) for each in found)
        return
    from baselines.mine.limits import Limits, by_model, by_run

    limits = Limits(args.margin, args.relative_margin, args.max_score)
    if not (model := args.cross_encoder or args.bi_encoder):
        yield from by_run(found, given, limits)
        return
    from baselines.retrieve.devices import devices_of, over_devices
    from baselines.retrieve.scoring import pair_job

    configs, devices = SETS[args.set], devices_of(args.device)
    queries = args.queries or configs.queries
    texts = dict(read_queries(release, args.split, queries))
    if unasked := next((query for query in qrels.positives if query not in texts), None):
        problem = f"judges a query {unasked!r} that {queries}/{args.split} lacks; build the release again"
        raise InputError(problem, path=qrels.name)
    job = pair_job(args, model, release, configs.corpus, devices)
    kind = "cross" if args.cross_encoder else "dual"
    tasks = ((job, kind, [(texts[each.query], each) for each in window], limits) for window in _windows(found))
    for window in over_devices(by_model, tasks, devices):
        yield from window


def _windows(found: Iterator[Candidates]) -> Iterator[list[Candidates]]:
    while window := list(itertools.islice(found, _WINDOW)):
        yield window
