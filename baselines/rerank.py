"""Re-rank a run by a cross-encoder: a TREC run of its scores.

The queries stay in the order of the given run. The best 50 passages of each query, pairs of at most 384 tokens if the
model was trained so (Sections 3.1, A.2). Scores are logits: the order of ``CrossEncoder.predict``, but without the ties
of a sigmoid that has reached 1. Pairs are scored in windows of queries, sorted by length; finished windows are kept, so
that the command started again after an interruption goes on where it was. One process a GPU.

Example:

  python -m baselines rerank --release build/sample --split dev --run build/runs/bm25.dev.run.gz \\
    --model build/models/ce-bm25-neg --out build/runs/ce.dev.run.gz
"""

from __future__ import annotations

import argparse
import functools
import json
import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from baselines.models.encoder import CrossScorer, batch_tokens
from baselines.models.loading import add_device, devices_of, dtype_of, fingerprint, open_cross, over_devices
from baselines.passages import Passages, open_passages
from baselines.runs.run_file import read_run, write_run
from baselines.runs.sets import SETS, add_set, read_queries
from builders.common.command import InputError, log, progress, whole_number
from builders.common.files import sha256_of, write_text
from builders.common.folders import key_of, work_beside
from builders.store.reader import Release, open_release

_WINDOW = 256  # queries scored together
_KNOWN = 1 << 16  # ids looked up at a time
Group = tuple[str, list[str]]  # a query's text, ids of passages


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--release", type=Path, required=True, metavar="DIR", help="the release directory")
    add_set(parser)
    parser.add_argument("--split", default="dev", help="whose queries (default: dev)")
    parser.add_argument("--run", type=Path, required=True, metavar="RUN", help="the run whose passages are re-ranked")
    parser.add_argument("--model", required=True, metavar="M", help="a cross-encoder: hub name or folder")
    parser.add_argument("--out", type=Path, required=True, metavar="RUN2", help="gzipped where it ends in .gz")
    parser.add_argument("--top-k", type=whole_number(1), default=50, metavar="K", help="passages a query (default: 50)")
    add_pairs(parser)
    add_device(parser)


def add_pairs(parser: argparse.ArgumentParser) -> None:
    """The options of every command that runs a cross-encoder."""
    parser.add_argument(
        "--max-length", type=whole_number(4), metavar="N", help="tokens of a pair (default: as the model was trained)"
    )
    parser.add_argument(
        "--batch-tokens",
        type=whole_number(1),
        metavar="N",
        help="tokens of a batch, padding included (default: 98,304 on a GPU, 12,288 on a CPU)",
    )


def run(args: argparse.Namespace) -> None:
    if Path(os.path.abspath(args.run)) == Path(os.path.abspath(args.out)):
        raise InputError("is both --run and --out; expected another file for the re-ranked run", path=args.out)
    release, configs = open_release(args.release), SETS[args.set]
    texts = dict(read_queries(release, args.split, configs.queries))
    given = read_run(args.run)
    rankings = {query: list(dict.fromkeys(ids))[: args.top_k] for query, ids in given.rankings.items()}
    for query in rankings:
        if query not in texts:
            raise InputError(f"has a query {query!r} that {configs.queries}/{args.split} lacks", path=args.run)
    passages = open_passages(release, configs.corpus)
    check_known(passages, (corpus for ids in rankings.values() for corpus in ids), args.run)
    devices = devices_of(args.device)
    job = cross_job(args, args.model, release, configs.corpus, devices[0])
    opened = open_cross(args.model, max_length=args.max_length)
    about = {
        "run": sha256_of(args.run),
        "model": fingerprint(opened),
        "corpus": release.fingerprint(configs.corpus, "corpus"),
        "queries": release.fingerprint(configs.queries, args.split),
        "options": [args.top_k, job.dtype, job.max_length, job.tokens, _WINDOW],
    }
    del opened
    names = list(rankings)
    windows = [names[start : start + _WINDOW] for start in range(0, len(names), _WINDOW)]
    out = Path(os.path.abspath(args.out))
    with work_beside(out, key_of(about)) as work:
        if done := len(list(work.glob("window-*.json"))):
            log.info("%d windows of %d queries are done already", done, _WINDOW)
        tasks = (
            (job, work / f"window-{number:06d}.json", [(texts[query], rankings[query]) for query in window])
            for number, window in enumerate(windows)
        )
        scores: list[list[float]] = []
        with progress(total=len(names), unit="query", label="rerank") as bar:
            for found in over_devices(_score_window, tasks, devices):
                scores += found
                bar.update(len(found))
        hits = ((query, zip(rankings[query], each, strict=True)) for query, each in zip(names, scores, strict=True))
        lines = write_run(out, hits, tag="cross")
    scorer.cache_clear()
    log.info("%s: %d lines for %d queries", args.out, lines, len(names))


def check_known(passages: Passages, ids: Iterable[str], path: Path) -> None:
    """Raise :class:`InputError` for the first id that the collection lacks."""
    waiting: list[str] = []

    def look_up() -> None:
        for corpus, row in zip(waiting, passages.rows(waiting).tolist(), strict=True):
            if row < 0:
                raise InputError(f"has a passage {corpus!r} that the release's corpus lacks", path=path)
        waiting.clear()

    for corpus in ids:
        waiting.append(corpus)
        if len(waiting) == _KNOWN:
            look_up()
    look_up()


@dataclass(frozen=True)
class CrossJob:
    """What a process needs to score pairs."""

    release: Path
    corpus: str
    model: str
    dtype: str
    tokens: int
    max_length: int | None


def cross_job(args: argparse.Namespace, model: str, release: Release, corpus: str, device: str) -> CrossJob:
    """The job that the options (of :func:`add_pairs` and ``add_device``) ask for."""
    tokens = args.batch_tokens or batch_tokens(device)
    return CrossJob(release.path, corpus, model, dtype_of(args.dtype, device), tokens, args.max_length)


@functools.lru_cache(maxsize=1)
def scorer(job: CrossJob, device: str) -> tuple[CrossScorer, Passages]:
    """This process's model and passages, opened once."""
    model = open_cross(job.model, device, job.dtype, job.max_length)
    return CrossScorer(model, job.tokens), open_passages(open_release(job.release), job.corpus)


def score_groups(job: CrossJob, device: str, groups: Sequence[Group]) -> list[list[float]]:
    """The logits of each query's passages, in their order. Raises :class:`InputError` for an unknown passage."""
    cross, passages = scorer(job, device)
    rows = passages.rows([corpus for _, ids in groups for corpus in ids])
    texts = iter(passages.texts(rows.tolist()))
    pairs = [(query, next(texts)) for query, ids in groups for _ in ids]
    scores = iter(cross.scores(pairs).tolist() if pairs else [])
    return [[next(scores) for _ in ids] for _, ids in groups]


def _score_window(task: tuple[CrossJob, Path, list[Group]], device: str) -> list[list[float]]:
    job, path, groups = task
    if path.exists():
        kept: list[list[float]] = json.loads(path.read_text(encoding="utf-8"))
        return kept
    # 32-bit scores by their shortest digits.
    scores = [[float(f"{score:.9g}") for score in each] for each in score_groups(job, device, groups)]
    write_text(path, json.dumps(scores))
    return scores
