"""BM25 over a release's corpus: a TREC run of the best passages of every query of a split.

jieba's tokens, k1 = 1.2, b = 0.75: Elasticsearch's defaults, on which the paper's BM25 ran (Section 3.1; Table 4).
The engine is tantivy, which runs inside this process. The index is kept (by default under $XDG_CACHE_HOME or ~/.cache,
in dureader_retrieval/bm25) and used again as long as the corpus, the segmentation and the engine are the same.

Example:

  python -m baselines bm25 --release build/sample --split dev --out build/runs/bm25.dev.run.gz --top-k 50
"""

from __future__ import annotations

import argparse
import os
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

from baselines.bm25_index import Bm25Index, open_index
from baselines.runs import Hit, write_run
from baselines.segment import segmenter, tokens
from baselines.sets import SETS, add_set
from builders.command import InputError, log, progress, whole_number
from builders.store import Release, open_release

_QUERIES_PER_TASK = 32


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--release", type=Path, required=True, metavar="DIR", help="the release directory")
    add_set(parser)
    parser.add_argument("--split", default="dev", help="whose queries (default: dev)")
    parser.add_argument("--out", type=Path, required=True, metavar="RUN", help="the run; gzipped where it ends in .gz")
    parser.add_argument("--engine", choices=["tantivy"], default="tantivy", help="the search engine")
    parser.add_argument("--top-k", type=whole_number(1), default=50, metavar="K", help="passages a query (default: 50)")
    parser.add_argument(
        "--threads",
        type=whole_number(1),
        default=usable_cores(),
        metavar="N",
        help="default: all cores of this process",
    )
    parser.add_argument(
        "--index", type=Path, default=default_index_folder(), metavar="DIR", help="the folder that keeps the indexes"
    )


def run(args: argparse.Namespace) -> None:
    release = open_release(args.release)
    configs = SETS[args.set]
    queries = read_queries(release, args.split, configs.queries)
    if not queries:
        raise InputError(f"has no queries in its split {args.split!r}", path=args.release)
    index = open_index(release, args.index, args.threads, configs.corpus)
    bar = progress(search(index, queries, args.top_k, args.threads), total=len(queries), unit="query", label="search")
    lines = write_run(args.out, bar, tag="bm25")
    log.info("%s: %d lines for %d queries", args.out, lines, len(queries))


def usable_cores() -> int:
    """The cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def default_index_folder() -> Path:
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "dureader_retrieval" / "bm25"


def read_queries(release: Release, split: str, config: str = "queries") -> list[tuple[str, str]]:
    """(id, text) of every query of a split, in the release's order."""
    found: list[tuple[str, str]] = []
    for batch in release.batches(config, split, ["_id", "text"]):
        found += zip(batch.column("_id").to_pylist(), batch.column("text").to_pylist(), strict=True)
    return found


def search(
    index: Bm25Index, queries: Sequence[tuple[str, str]], top_k: int, threads: int
) -> Iterator[tuple[str, list[Hit]]]:
    """(query id, hits) for every (query id, text), in the same order; the same hits for every number of threads.

    At most ``top_k`` hits a query: scores falling, ties by corpus id. A query none of whose tokens is in the corpus
    has no hit. Queries without any token are counted in a warning.
    """
    empty = 0
    batches = (queries[start : start + _QUERIES_PER_TASK] for start in range(0, len(queries), _QUERIES_PER_TASK))

    def search_batch(batch: Sequence[tuple[str, str]]) -> list[tuple[str, list[Hit], bool]]:
        rows = []
        for query, text in batch:
            words = tokens(text)
            rows.append((query, index.search(words, top_k), not words))
        return rows

    for rows in _in_order(search_batch, batches, threads):
        for query, hits, is_empty in rows:
            empty += is_empty
            yield query, hits
    if empty:
        log.warning("%d of %d queries have no token (%s); nothing is found for them", empty, len(queries), segmenter())


def _in_order(function, items: Iterable, threads: int) -> Iterator:  # type: ignore[no-untyped-def, type-arg]
    """``map`` over threads, in order, with a bounded number of results held."""
    waiting: deque[Future] = deque()  # type: ignore[type-arg]
    with ThreadPoolExecutor(threads) as pool:
        try:
            for item in items:
                waiting.append(pool.submit(function, item))
                if len(waiting) > 4 * threads:
                    yield waiting.popleft().result()
            while waiting:
                yield waiting.popleft().result()
        finally:
            pool.shutdown(wait=True, cancel_futures=True)
