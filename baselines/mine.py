"""Sample hard negatives for training out of a run.

Hard negatives are passages that a retriever ranks high and that are no known positives. Sampled from the top 50, 4 for
each positive passage (Sections 3.1 and A.2): a query with two positives gets 8. Known positives are left out by id and
by text (equal but for case, width and blanks). With --cross-encoder, candidates that it holds for relevant are left out
too (RocketQA's denoising): those that score above --max-score, or above the query's best positive less --margin; scores
are probabilities. The same seed gives a query the same sample, whatever the order of the run and whichever other
queries it holds. --set crosslingual takes a run of the Chinese queries for English ones.

The file has a JSON object a line, in the order of the judgments: {"query-id": ..., "negative-ids": [...]}; every
beginning of a list of ids is a random sample too.

Example:

  python -m baselines mine --release build/sample --split train --run build/runs/bm25.train.run.gz \\
    --out build/negatives/bm25.jsonl.gz
"""

from __future__ import annotations

import argparse
import functools
import hashlib
import itertools
import json
import math
import unicodedata
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from baselines.models.options import add_device, add_pairs
from baselines.passages import Passages, open_passages
from baselines.runs.qrels import Qrels, release_qrels
from baselines.runs.sets import add_set, read_queries
from builders.common.command import InputError, log, number_between, progress, whole_number
from builders.common.files import atomic_text, check_file
from builders.store.layout import SETS
from builders.store.reader import Release, open_release
from builders.store.runs import Run, read_run

if TYPE_CHECKING:
    from baselines.models.cross import CrossJob

_WINDOW = 256  # queries that a cross-encoder looks at together
_TEXTS = 1 << 16  # passages ready for comparison that are kept: many are found for many queries


@dataclass
class Candidates:
    """One query's candidates in random order, how many of them are asked for, and its positives in the collection."""

    query: str
    ids: list[str]
    asked: int
    positives: list[str]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--release", type=Path, required=True, metavar="DIR", help="the release directory")
    add_set(parser)
    parser.add_argument("--split", default="train", help="whose queries (default: train)")
    parser.add_argument("--run", type=Path, required=True, metavar="RUN", help="a run of these queries")
    parser.add_argument("--out", type=Path, required=True, metavar="F", help="JSON lines; gzipped where it ends in .gz")
    parser.add_argument(
        "--top-k", type=whole_number(1), default=50, metavar="K", help="sample from these (default: 50)"
    )
    parser.add_argument(
        "--negatives", type=whole_number(1), default=4, metavar="N", help="for each positive passage (default: 4)"
    )
    parser.add_argument("--seed", type=int, default=0, help="default: 0")
    parser.add_argument("--cross-encoder", metavar="M", help="leave out what this model holds for relevant")
    parser.add_argument(
        "--margin", type=number_between(-1, 1), metavar="X", help="candidates score at most best positive - X"
    )
    parser.add_argument("--max-score", type=number_between(0, 1), metavar="X", help="candidates score at most X")
    add_pairs(parser)
    add_device(parser)


def run(args: argparse.Namespace) -> None:
    limits = (args.margin, args.max_score)
    if (args.cross_encoder is None) != (limits == (None, None)):
        raise InputError("--cross-encoder goes with --margin, --max-score or both")
    check_file(args.out)
    release, configs = open_release(args.release), SETS[args.set]
    qrels = release_qrels(release, args.split, args.set)
    given = read_run(args.run)
    if args.set == "crosslingual":
        given = for_english(given, release, args.split)
    if not any(query in given.hits for query in qrels.positives):
        raise InputError(f"no matching query: it has none of the {len(qrels.positives)} of {qrels.name}", path=args.run)
    passages = open_passages(release, configs.corpus)
    ranked = dict.fromkeys(corpus for hits in given.hits.values() for corpus, _ in hits[: args.top_k])
    passages.expect(ranked, args.run)
    found = hard_negatives(
        given, qrels, passages, args.top_k, args.negatives, args.seed, every=args.cross_encoder is not None
    )
    if args.cross_encoder:
        from baselines.models.cross import cross_job
        from baselines.models.devices import devices_of, over_devices

        devices = devices_of(args.device)
        texts = dict(read_queries(release, args.split, configs.queries))
        if unasked := next((query for query in qrels.positives if query not in texts), None):
            problem = f"judges a query {unasked!r} that {configs.queries}/{args.split} lacks; build the release again"
            raise InputError(problem, path=qrels.name)
        job = cross_job(args, args.cross_encoder, release, configs.corpus, devices)
        tasks = ((job, [(texts[each.query], each) for each in window], *limits) for window in _windows(found))
        chosen = (pair for window in over_devices(_denoise, tasks, devices) for pair in window)
    else:
        chosen = ((each, each.ids) for each in found)
    short = none = 0
    with atomic_text(args.out) as file:
        for each, ids in progress(chosen, total=len(qrels.positives), unit="query", label="mine"):
            short += len(ids) < each.asked
            none += not ids
            file.write(json.dumps({"query-id": each.query, "negative-ids": ids}, ensure_ascii=False) + "\n")
    if missing := sum(query not in given.hits for query in qrels.positives):
        log.warning("%s lacks %d of %d queries", args.run, missing, len(qrels.positives))
    if short:
        log.warning(
            "%d of %d queries have fewer negatives than asked for; %d have none", short, len(qrels.positives), none
        )
    log.info("%s: negatives of %d queries", args.out, len(qrels.positives))


def for_english(given: Run, release: Release, split: str) -> Run:
    """A run of the Chinese queries, or of the English ones, as one of the English ones: they share the judgments."""
    hits = dict(given.hits)
    for batch in release.batches(SETS["crosslingual"].queries, split, ["_id", "zh_id"]):
        for english, chinese in zip(batch["_id"].to_pylist(), batch["zh_id"].to_pylist(), strict=True):
            if english not in hits and chinese in hits:
                hits[english] = hits[chinese]
    return Run(given.path, hits)


def hard_negatives(
    given: Run, qrels: Qrels, passages: Passages, top_k: int, negatives: int, seed: int, every: bool = False
) -> Iterator[Candidates]:
    """Every judged query's hard negatives (Sections 3.1, A.2): its top ``top_k`` less its positives, by the seed.

    As many as are asked for (as there are, where there are fewer), or ``every`` one. A candidate's text is compared
    with the positives' only when its turn comes. (The library's mine_hard_negatives searches by itself, with a
    dual-encoder, over texts and vectors that all lie in memory; these candidates may be of BM25, and of 8 M passages.)
    """

    @functools.lru_cache(_TEXTS)
    def plain(corpus: str) -> str:
        return plain_text(passages.texts(passages.rows([corpus]).tolist())[0])

    for query, positive in qrels.positives.items():
        known = [c for c, row in zip(positive, passages.rows(list(positive)).tolist(), strict=True) if row >= 0]
        same = set(map(plain, known))
        ranked = dict.fromkeys(corpus for corpus, _ in given.hits.get(query, ())[:top_k])
        order = sorted(ranked, key=lambda corpus: hashlib.sha256(f"{seed}\0{query}\0{corpus}".encode()).digest())
        negative = (corpus for corpus in order if corpus not in positive and plain(corpus) not in same)
        asked = negatives * len(positive)
        yield Candidates(query, list(itertools.islice(negative, None if every else asked)), asked, known)


def plain_text(text: str) -> str:
    """A text without what two copies of it may differ in: case, width and blanks."""
    return "".join(unicodedata.normalize("NFKC", text).casefold().split())


def _windows(found: Iterator[Candidates]) -> Iterator[list[Candidates]]:
    window: list[Candidates] = []
    for each in found:
        window.append(each)
        if len(window) == _WINDOW:
            yield window
            window = []
    if window:
        yield window


def _denoise(
    task: tuple[CrossJob, list[tuple[str, Candidates]], float | None, float | None], device: str
) -> list[tuple[Candidates, list[str]]]:
    """The first ``asked`` candidates of each query that pass; a candidate is scored only when it is needed."""
    from baselines.models.cross import score_groups

    job, window, margin, max_score = task
    limits = []
    for scores in score_groups(job, device, [(text, each.positives) for text, each in window]):
        limit = math.inf if max_score is None else max_score
        limits.append(
            limit if margin is None else min(limit, max(map(_probability, scores), default=math.inf) - margin)
        )
    taken: list[list[str]] = [[] for _ in window]
    looked_at = [0] * len(window)
    while True:
        groups = []
        for number, (text, each) in enumerate(window):
            start, wanted = looked_at[number], each.asked - len(taken[number])
            groups.append((text, each.ids[start : start + wanted]))
            looked_at[number] += len(groups[-1][1])
        if not any(ids for _, ids in groups):
            return [(each, ids) for (_, each), ids in zip(window, taken, strict=True)]
        for number, scores in enumerate(score_groups(job, device, groups)):
            passed = [_probability(score) <= limits[number] for score in scores]
            taken[number] += [corpus for corpus, good in zip(groups[number][1], passed, strict=True) if good]


def _probability(logit: float) -> float:
    return 1 / (1 + math.exp(-logit)) if logit > -700 else 0.0
