"""Sample hard negatives for training from a run.

A hard negative is a passage that a retriever ranks high and that is not a known positive. By default, 4 negatives for
each positive passage are sampled from the top 50 (Sections 3.1 and A.2), so a query with 2 positives gets 8 negatives.
Known positives are excluded by id and by text, ignoring case, character width and spaces. A query's sample depends on
the seed and the query's top passages, not on their order. --set crosslingual also accepts a run of Chinese queries.

A candidate that scores like a positive may be an unjudged positive. These limits exclude such candidates:

  --max-score X        candidates that score above X
  --margin X           candidates that score above (best positive's score - X), like RocketQA's denoising
  --relative-margin X  candidates that score above (1 - X) x (best positive's score), like NV-Retriever

Scores are probabilities of --cross-encoder, similarities of --bi-encoder, or by default the scores of the run.
Without a model, a positive that the run lacks gets the score of the query's last passage in the run.

Each line of the output is a JSON object: {"query-id": ..., "negative-ids": [...]}. Queries are in the judgments' order.
Ids are in random order, so the first n ids of a list are also a random sample. `python -m builders annotate relabel`
finds positives among the ids.

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
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from baselines.core.passages import Passages, open_passages
from baselines.core.settings import DEVICE, PAIRS, add_options
from baselines.measure.qrels import Qrels, add_queries, add_set, expect_main, read_queries, release_qrels
from builders.core.command import number_between, whole_number
from builders.core.errors import InputError, log
from builders.core.files import atomic_text, check_file
from builders.core.hub import check_models
from builders.core.progress import progress
from builders.store.layout import SETS
from builders.store.reader import Release, open_release
from builders.store.runs import Run, probability, read_run

if TYPE_CHECKING:  # rerankers loads PyTorch
    from baselines.retrieve.rerankers import Group, PairJob

    Score = Callable[[Sequence[Group]], list[list[float]]]

_TEXTS = 1 << 16  # size of the cache of normalised passages; many queries share passages
_WINDOW = 256  # queries whose candidates are scored in one task
_ANY = number_between(-math.inf, math.inf)


@dataclass
class Candidates:
    """The candidates of a query in random order, the number of negatives to select, and the query's positives."""

    query: str
    ids: list[str]
    asked: int
    positives: list[str]


Chosen = tuple[Candidates, list[str], int]  # the candidates, the selected ids, the number of excluded candidates


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--release", type=Path, required=True, metavar="DIR", help="the release directory")
    add_set(parser)
    parser.add_argument("--split", default="train", help="the split of the queries (default: train)")
    add_queries(parser)
    parser.add_argument("--run", type=Path, required=True, metavar="RUN", help="a run of the split's queries")
    parser.add_argument(
        "--out", type=Path, required=True, metavar="F", help="output JSON lines, gzipped if F ends in .gz"
    )
    parser.add_argument(
        "--top-k", type=whole_number(1), default=50, metavar="K", help="sample from the K best passages (default: 50)"
    )
    parser.add_argument(
        "--negatives", type=whole_number(1), default=4, metavar="N", help="negatives for each positive (default: 4)"
    )
    parser.add_argument("--seed", type=int, default=0, help="seed of the sample (default: 0)")
    models = parser.add_mutually_exclusive_group()
    models.add_argument("--cross-encoder", metavar="M", help="score candidates with this model (default: the run)")
    models.add_argument("--bi-encoder", metavar="M", help="score candidates with this dual-encoder (default: the run)")
    parser.add_argument(
        "--margin", type=_ANY, metavar="X", help="exclude scores above best positive score - X (default: no limit)"
    )
    parser.add_argument(
        "--relative-margin",
        type=number_between(0, 1),
        metavar="X",
        help="exclude scores above (1 - X) x best positive score",
    )
    parser.add_argument("--max-score", type=_ANY, metavar="X", help="exclude scores above X (default: no limit)")
    add_options(parser, *PAIRS, *DEVICE)


def run(args: argparse.Namespace) -> None:
    limits = Limits(args.margin, args.relative_margin, args.max_score)
    is_limited = limits != Limits()
    if (args.cross_encoder or args.bi_encoder) and not is_limited:
        raise InputError("--cross-encoder and --bi-encoder need --margin, --relative-margin or --max-score")
    check_models(args.cross_encoder, args.bi_encoder)
    check_file(args.out)
    release, configs = open_release(args.release), SETS[args.set]
    qrels = release_qrels(release, args.split, args.set, expect_main(args.set, "--queries", args.queries))
    given = read_run(args.run)
    if args.set == "crosslingual":
        given = for_english(given, release, args.split)
    if missing := sum(query not in given.hits for query in qrels.positives):
        if missing == len(qrels.positives):
            raise InputError(f"no matching query: has none of the {missing} queries of {qrels.name}", path=args.run)
        log.warning("%s lacks %d of %d queries", args.run, missing, len(qrels.positives))
    passages = open_passages(release, configs.corpus)
    passages.expect({corpus: None for hits in given.hits.values() for corpus, _ in hits[: args.top_k]}, args.run)
    found = hard_negatives(given, qrels, passages, args.top_k, args.negatives, args.seed, every=is_limited)
    short = none = dropped = 0
    with atomic_text(args.out) as file:
        chosen = _chosen(args, limits, release, given, qrels, found)
        for each, ids, left_out in progress(chosen, total=len(qrels.positives), unit="query", label="mine"):
            short += len(ids) < each.asked
            none += not ids
            dropped += left_out
            file.write(json.dumps({"query-id": each.query, "negative-ids": ids}, ensure_ascii=False) + "\n")
    if short:
        log.warning("%d of %d queries have too few negatives; %d of them have none", short, len(qrels.positives), none)
    log.info("%s: negatives of %d queries", args.out, len(qrels.positives))
    if is_limited:
        log.info("%d candidates were excluded because they score above the limits", dropped)


def _chosen(
    args: argparse.Namespace, limits: Limits, release: Release, given: Run, qrels: Qrels, found: Iterator[Candidates]
) -> Iterator[Chosen]:
    """Select the negatives of every query by the scores of the model or of the run."""
    if not (model := args.cross_encoder or args.bi_encoder):
        for each in found:
            yield from _within([(each.query, each)], functools.partial(_by_run, given), limits)
        return
    from baselines.core.settings import ModelOptions
    from baselines.retrieve.devices import over_devices, work_of
    from baselines.retrieve.rerankers import pair_job

    configs = SETS[args.set]
    queries = args.queries or configs.queries
    texts = dict(read_queries(release, args.split, queries))
    if unasked := next((query for query in qrels.positives if query not in texts), None):
        lacking = f"{queries}/{args.split} lacks"
        raise InputError(f"judges the query {unasked!r}, which {lacking}; build the release again", path=qrels.name)
    job = pair_job(
        model=model,
        options=ModelOptions(max_length=args.max_length, revision=args.revision),
        work=work_of(args.device, args.dtype, args.batch_tokens, args.tokenizers, args.backend),
        release=release,
        corpus=configs.corpus,
    )
    windows = iter(lambda: list(itertools.islice(found, _WINDOW)), [])
    tasks = ((job, bool(args.bi_encoder), [(texts[each.query], each) for each in own], limits) for own in windows)
    for window in over_devices(_by_model, tasks, job.reranker.work.devices):
        yield from window


@dataclass(frozen=True)
class Limits:
    """Limits of a candidate's score. None means no limit.

    Attributes:
        margin: least distance below the best positive's score (RocketQA, 2021, Section 3.3).
        relative_margin: least distance, as a share of the best positive's score (NV-Retriever, 2024: TopK-PercPos).
        max_score: highest score, regardless of the positives.
    """

    margin: float | None = None
    relative_margin: float | None = None
    max_score: float | None = None

    def limit(self, positives: Sequence[float]) -> float:
        """Return the highest score that a candidate may have, given the scores of the known positives."""
        found = [math.inf] if self.max_score is None else [self.max_score]
        if positives:
            # sentence-transformers uses the weakest positive instead of the best. In this data, the weakest positive
            # may share few words with the query, so that nearly every candidate would be excluded.
            best = max(positives)
            if self.margin is not None:
                found.append(best - self.margin)
            if self.relative_margin is not None:
                found.append(best - abs(best) * self.relative_margin)  # abs: scores may be negative
        return min(found)


def _by_model(task: tuple[PairJob, bool, list[tuple[str, Candidates]], Limits], device: str) -> list[Chosen]:
    from baselines.retrieve.rerankers import score_groups, similarities

    job, dual, window, limits = task

    def score(groups: Sequence[Group]) -> list[list[float]]:
        if dual:
            return similarities(job, device, groups)
        return [[probability(logit) for logit in logits] for logits in score_groups(job, device, groups)]

    return _within(window, score, limits)


def _by_run(given: Run, groups: Sequence[Group]) -> list[list[float]]:
    """Return the scores of a run. A passage that the run lacks gets the score of the query's last hit."""
    found = []
    for query, ids in groups:
        hits = given.hits.get(query, [])
        own = dict(reversed(hits))  # if a passage occurs twice, the higher score wins
        found.append([own.get(corpus, hits[-1][1]) for corpus in ids] if hits else [])
    return found


def _within(window: Sequence[tuple[str, Candidates]], score: Score, limits: Limits) -> list[Chosen]:
    """Return each query's first ``asked`` candidates within the limits. Candidates are scored only when needed."""
    highest = [limits.limit(scores) for scores in score([(name, each.positives) for name, each in window])]
    taken: list[list[str]] = [[] for _ in window]
    looked_at = [0] * len(window)
    while True:
        groups = []
        for number, (name, each) in enumerate(window):
            start, wanted = looked_at[number], each.asked - len(taken[number])
            groups.append((name, each.ids[start : start + wanted]))
            looked_at[number] += len(groups[-1][1])
        if not any(ids for _, ids in groups):
            return [(each, ids, seen - len(ids)) for (_, each), ids, seen in zip(window, taken, looked_at, strict=True)]
        for number, scores in enumerate(score(groups)):
            passed = [value <= highest[number] for value in scores]
            taken[number] += [corpus for corpus, good in zip(groups[number][1], passed, strict=True) if good]


def for_english(given: Run, release: Release, split: str) -> Run:
    """Give each English query without hits the hits of its Chinese original, which has the same judgments."""
    hits = dict(given.hits)
    for batch in release.batches(SETS["crosslingual"].queries, split, ["_id", "zh_id"]):
        for english, chinese in zip(batch["_id"].to_pylist(), batch["zh_id"].to_pylist(), strict=True):
            if english not in hits and chinese in hits:
                hits[english] = hits[chinese]
    return Run(given.path, hits)


def hard_negatives(
    given: Run, qrels: Qrels, passages: Passages, top_k: int, negatives: int, seed: int, every: bool = False
) -> Iterator[Candidates]:
    """Yield the hard-negative candidates of every judged query: its ``top_k`` passages without positives, shuffled.

    A query gets ``negatives`` candidates for each positive, or all candidates if ``every`` is true (Sections 3.1, A.2).
    A candidate's text is compared with the positives only when the candidate is drawn.

    sentence-transformers' mine_hard_negatives is not used, because it searches with a dual-encoder and needs all texts
    and vectors in memory. Here, the run may come from BM25, and the collection may have 8 million passages.
    """

    @functools.lru_cache(_TEXTS)
    def plain(corpus: str) -> str:
        """Return the passage's text without spaces, in one case and character width, to recognise copies."""
        (text,) = passages.texts(passages.rows([corpus]).tolist())
        return "".join(unicodedata.normalize("NFKC", text).casefold().split())

    for query, positive in qrels.positives.items():
        known = [c for c, row in zip(positive, passages.rows(list(positive)).tolist(), strict=True) if row >= 0]
        same = set(map(plain, known))
        ranked = dict.fromkeys(corpus for corpus, _ in given.hits.get(query, ())[:top_k])
        order = sorted(ranked, key=lambda corpus: hashlib.sha256(f"{seed}\0{query}\0{corpus}".encode()).digest())
        negative = (corpus for corpus in order if corpus not in positive and plain(corpus) not in same)
        asked = negatives * len(positive)
        yield Candidates(query, list(itertools.islice(negative, None if every else asked)), asked, known)
