"""Search by words (BM25): a TREC run of a split's queries.

jieba's tokens; k1 = 1.2, b = 0.75 unless given: Elasticsearch's defaults, on which the paper's BM25 ran (Section 3.1;
Table 4). The engine runs inside this process (numba: any k1 and b; tantivy: the defaults alone) or is an Elasticsearch
server. The index is kept (by default under $XDG_CACHE_HOME or ~/.cache, in dureader_retrieval/bm25; on the server, in
an index dureader-retrieval-*) and used again as long as the corpus, the segmentation and the engine are the same.

Example:

  python -m baselines bm25 --release build/sample --split dev --out build/runs/bm25.dev.run.gz --top-k 50
  python -m baselines bm25 --release DIR --out RUN --engine elasticsearch --address http://localhost:9200 --k1 0.9
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Iterator, Sequence
from pathlib import Path

from baselines.bm25.index import DEFAULT_ENGINE, ENGINES, INDEXES, K1, B, Index, open_index
from baselines.bm25.tokens import segmenter, tokens
from baselines.runs.sets import add_queries, add_set, expect_main, read_queries
from baselines.samples import add_sample
from builders.common.command import InputError, log, number_between, progress, whole_number
from builders.common.files import check_file
from builders.common.jobs import in_threads
from builders.common.limits import usable_cores
from builders.store.layout import SETS
from builders.store.reader import Release, open_release
from builders.store.runs import Hit, write_run

_QUERIES_PER_TASK = 32
_CLIENT = "pip install 'elasticsearch>=8.19,<9'"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--release", type=Path, required=True, metavar="DIR", help="the release directory")
    add_set(parser)
    parser.add_argument("--split", default="dev", help="whose queries (default: dev)")
    add_queries(parser)
    add_sample(parser)
    parser.add_argument("--out", type=Path, required=True, metavar="RUN", help="the run; gzipped where it ends in .gz")
    parser.add_argument(
        "--engine", choices=[*ENGINES, "elasticsearch"], default=DEFAULT_ENGINE, help=f"default: {DEFAULT_ENGINE}"
    )
    parser.add_argument(
        "--address", metavar="URL", help="of the Elasticsearch server: http(s)://[USER:PASSWORD@]HOST:PORT"
    )
    parser.add_argument(
        "--ca-certs", type=Path, metavar="FILE", help="PEM: who signed the certificate of an https --address"
    )
    parser.add_argument(
        "--k1", type=number_between(0, math.inf), default=K1, help=f"saturation of term counts (default: {K1})"
    )
    parser.add_argument("--b", type=number_between(0, 1), default=B, help=f"weight of passage lengths (default: {B})")
    parser.add_argument("--top-k", type=whole_number(1), default=50, metavar="K", help="passages a query (default: 50)")
    parser.add_argument(
        "--max-chars",
        type=whole_number(1),
        metavar="N",
        help="read the first N characters of each passage, as a model reads its first tokens (default: all)",
    )
    parser.add_argument(
        "--threads",
        type=whole_number(1),
        default=usable_cores(),
        metavar="N",
        help="default: all cores of this process",
    )
    parser.add_argument(
        "--index", type=Path, default=INDEXES.home(), metavar="DIR", help="the folder that keeps the indexes"
    )


def run(args: argparse.Namespace) -> None:
    check_file(args.out)
    release = open_release(args.release)
    configs = SETS[args.set]
    queries = read_queries(release, args.split, expect_main(args, "--queries", args.queries) or configs.queries)
    if not queries:
        raise InputError(f"has no queries in its split {args.split!r}", path=args.release)
    index = _open(release, args, configs.corpus)
    bar = progress(search(index, queries, args.top_k, args.threads), total=len(queries), unit="query", label="search")
    lines = write_run(args.out, bar, tag="bm25")
    log.info("%s: %d lines for %d queries", args.out, lines, len(queries))


def _open(release: Release, args: argparse.Namespace, corpus: str) -> Index:
    if (args.engine == "elasticsearch") != (args.address is not None):
        raise InputError("--engine elasticsearch and --address URL go together")
    if args.engine == "elasticsearch":
        if args.max_chars is not None or args.sample:
            raise InputError("--max-chars and --sample go with the engines " + ", ".join(ENGINES))
        try:
            from baselines.bm25.engine_elasticsearch import open_remote
        except ImportError as error:
            raise InputError(f"--engine elasticsearch needs its client: {_CLIENT} ({error})") from error

        return open_remote(release, args.address, args.threads, corpus, args.k1, args.b, args.ca_certs)
    return open_index(
        *(release, args.index, args.threads, corpus, args.engine, args.k1, args.b, args.max_chars), sample=args.sample
    )


def search(
    index: Index, queries: Sequence[tuple[str, str]], top_k: int, threads: int
) -> Iterator[tuple[str, list[Hit]]]:
    """(query id, hits) for every (query id, text), in the same order; the same hits for every number of threads.

    At most ``top_k`` hits a query: scores falling, ties by corpus id. A query none of whose tokens is in the corpus
    has no hit. Queries without any token are counted in a warning.
    """
    empty = 0
    batches = (queries[start : start + _QUERIES_PER_TASK] for start in range(0, len(queries), _QUERIES_PER_TASK))

    def search_batch(batch: Sequence[tuple[str, str]]) -> list[tuple[str, list[Hit], bool]]:
        words = [tokens(text) for _, text in batch]
        hits = index.search_many(words, top_k)
        return [(query, found, not have) for (query, _), found, have in zip(batch, hits, words, strict=True)]

    for rows in in_threads(search_batch, batches, threads):
        for query, hits, is_empty in rows:
            empty += is_empty
            yield query, hits
    if empty:
        log.warning("%d of %d queries have no token (%s); nothing is found for them", empty, len(queries), segmenter())
