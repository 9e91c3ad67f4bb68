"""Search by embeddings: a TREC run of a split's queries.

Exact by default: FAISS on a CPU, PyTorch on a GPU, over memory-mapped embeddings (`encode`), so that memory does not
grow with the passages. Faster: --precision bf16 (on processors with bf16 units) chooses candidates in 16 bits;
--index ivf or hnsw asks an approximate index, which is built once, kept with the embeddings, and held in memory. Both
score their candidates again exactly, and the recall of their results against exact search, on --check-queries queries,
is printed.

Example:

  python -m baselines search --release build/sample --split dev --model build/models/de-bm25-neg \\
    --passages build/embeddings/passages --out build/runs/de.dev.run.gz
  python -m baselines search --release DIR --split test --queries DIR2 --passages DIR3 --out RUN --index ivf --probes 64
"""

from __future__ import annotations

import argparse
import importlib.util
import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.compute as pc
import torch

from baselines.models.encoder import Encoder
from baselines.models.loading import DTYPES, add_device, devices_of, dtype_of, fingerprint, open_dual
from baselines.passages import Passages, open_passages
from baselines.runs.run_file import Hit, write_run
from baselines.runs.sets import SETS, add_set, read_queries
from baselines.vectors import ann, scan
from baselines.vectors.embeddings import Vectors, open_vectors, widened
from builders.common.command import InputError, add_format, log, progress, whole_number
from builders.store.reader import Release, open_release


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--release", type=Path, required=True, metavar="DIR", help="the release directory")
    add_set(parser)
    parser.add_argument("--split", default="dev", help="whose queries (default: dev)")
    parser.add_argument("--passages", type=Path, required=True, metavar="DIR", help="the passages' embeddings")
    source = parser.add_mutually_exclusive_group(required=True)
    source.add_argument(
        "--model", metavar="M", help="the model that encoded the passages: encode the queries by it now"
    )
    source.add_argument("--queries", type=Path, metavar="DIR", help="the queries' embeddings")
    parser.add_argument("--out", type=Path, required=True, metavar="RUN", help="the run; gzipped where it ends in .gz")
    parser.add_argument("--top-k", type=whole_number(1), default=50, metavar="K", help="passages a query (default: 50)")
    parser.add_argument(
        "--candidates", type=whole_number(1), metavar="N", help="scored again, a query (default: twice --top-k)"
    )
    parser.add_argument("--index", choices=["exact", "ivf", "hnsw"], default="exact", help="default: exact")
    parser.add_argument("--engine", choices=["faiss", "torch"], help="of exact search (default: faiss on a CPU)")
    parser.add_argument("--precision", choices=["fp32", "bf16"], default="fp32", help="bf16: with --engine torch")
    parser.add_argument("--lists", type=whole_number(1), metavar="N", help="ivf (default: 4 times passages ** 0.5)")
    parser.add_argument("--probes", type=whole_number(1), default=64, metavar="N", help="ivf (default: 64)")
    parser.add_argument("--links", type=whole_number(2), default=32, metavar="N", help="hnsw (default: 32)")
    parser.add_argument("--ef", type=whole_number(1), default=256, metavar="N", help="hnsw (default: 256)")
    parser.add_argument(
        "--check-queries", type=whole_number(0), default=200, metavar="N", help="for the recall (default: 200; 0: none)"
    )
    parser.add_argument("--threads", type=whole_number(1), metavar="N", help="default: the libraries' own choice")
    add_device(parser)
    add_format(parser)


def run(args: argparse.Namespace) -> None:
    release, configs = open_release(args.release), SETS[args.set]
    vectors = open_vectors(args.passages)
    vectors.check("passages", release, configs.corpus, "corpus")
    devices = devices_of(args.device)
    _set_threads(args.threads)
    engine = _engine_name(args, devices[0])
    ids = [query for query, _ in read_queries(release, args.split, configs.queries)]
    if not ids:
        raise InputError(f"has no queries in its split {args.split!r}", path=args.release)
    queries = _queries(args, release, configs.queries, vectors, devices[0])
    passages = open_passages(release, configs.corpus)
    count = max(args.top_k, args.candidates or 2 * args.top_k)

    def exact(some: scan.Halves) -> Iterator[tuple[scan.Rows, scan.Floats]]:
        # An engine of 32 bits whatever --precision says: this is also what other results are compared with.
        chosen = scan.torch_engine(some, devices[0]) if engine == "torch" else scan.faiss_engine(some, devices[0])
        return scan.search(vectors, some, chosen, args.top_k, count, lambda: id_ranks(release, configs.corpus))

    if args.index == "exact" and args.precision == "fp32":
        found, checked = exact(queries), 0
    else:
        found = scan.rescored(queries, vectors, _approximate(args, vectors, queries, devices[0], count), args.top_k)
        checked = min(args.check_queries, len(queries))
    hits = _named(found, passages, args.top_k)
    sample = np.unique(np.linspace(0, len(ids) - 1, checked).astype(np.int64)) if checked else np.array([], np.int64)
    kept: dict[int, set[str]] = {}
    bar = progress(_keeping(hits, kept, sample), total=len(ids), unit="query", label="search")
    lines = write_run(args.out, zip(ids, bar, strict=True), tag=f"dense-{args.index}")
    log.info("%s: %d lines for %d queries", args.out, lines, len(ids))
    if checked:
        best = _named(exact(queries[sample]), passages, args.top_k)
        shares = [
            len({i for i, _ in right} & kept[n]) / len(right) for n, right in zip(sample.tolist(), best, strict=True)
        ]
        _print_recall(args, float(np.mean(shares)), len(shares))


def _set_threads(threads: int | None) -> None:
    if threads is not None:
        torch.set_num_threads(threads)
        if importlib.util.find_spec("faiss"):
            import faiss

            faiss.omp_set_num_threads(threads)


def _engine_name(args: argparse.Namespace, device: str) -> str:
    has_faiss = importlib.util.find_spec("faiss") is not None
    if args.index != "exact" and args.precision != "fp32":
        raise InputError("--precision bf16 goes with --index exact")
    if args.precision == "bf16" and args.engine == "faiss":
        raise InputError("--precision bf16 goes with --engine torch")
    if not has_faiss and (args.index != "exact" or args.engine == "faiss"):
        raise InputError("FAISS is not installed: `pip install faiss-cpu`, or --index exact --engine torch")
    if args.precision == "bf16":
        return "torch"
    return args.engine or ("faiss" if has_faiss and device == "cpu" else "torch")


def _queries(args: argparse.Namespace, release: Release, config: str, vectors: Vectors, device: str) -> scan.Halves:
    """The queries' embeddings, by the model that the passages were encoded by, or an :class:`InputError`."""
    wanted = vectors.manifest["model"]
    if args.queries:
        given = open_vectors(args.queries)
        given.check("queries", release, config, args.split)
        if given.dim != vectors.dim:
            raise InputError(f"has {given.dim} dimensions, {vectors.path} has {vectors.dim}", path=given.path)
        if given.manifest["model"]["fingerprint"] != wanted["fingerprint"]:
            raise InputError(
                f"was encoded by another model ({given.manifest['model']['name']!r}) than {vectors.path} "
                f"({wanted['name']!r})",
                path=given.path,
            )
        return given.all()
    model = open_dual(args.model)
    if fingerprint(model) != wanted["fingerprint"]:
        raise InputError(
            f"is not the model that encoded {vectors.path} ({wanted['name']!r}): weights or settings differ",
            path=args.model,
        )
    model = model.to(device=device, dtype=DTYPES[dtype_of(args.dtype, device)])
    return Encoder(model, "query").encode([text for _, text in read_queries(release, args.split, config)])


def _approximate(
    args: argparse.Namespace, vectors: Vectors, queries: scan.Halves, device: str, count: int
) -> scan.Rows:
    """The candidates of an approximate index or of 16-bit arithmetic."""
    if args.index == "exact":
        return scan.candidates(vectors, scan.torch_engine(queries, device, "bf16"), len(queries), count)[1]
    if args.index == "ivf":
        index = ann.open_ivf(vectors, args.lists or ann.ivf_lists(vectors.rows), args.probes)
    else:
        index = ann.open_hnsw(vectors, args.links, max(args.ef, count))
    rows: scan.Rows = index.search(widened(queries), min(count, vectors.rows))[1]
    return rows


def id_ranks(release: Release, config: str) -> scan.Rows:
    """Each passage's place in the order of the corpus ids, shape (passages,)."""
    ids = release.table(config, "corpus", ["_id"]).column("_id")
    ranks = np.empty(len(ids), np.int64)
    ranks[pc.sort_indices(ids).to_numpy()] = np.arange(len(ids))
    return ranks


def _named(found: Iterable[tuple[scan.Rows, scan.Floats]], passages: Passages, top_k: int) -> Iterator[list[Hit]]:
    """The ``top_k`` best of each query: scores falling, ties by corpus id."""
    for rows, scores in found:
        # The shortest digits that tell 32-bit numbers apart.
        hits = zip(passages.ids(rows.tolist()), (float(str(score)) for score in scores), strict=True)
        yield sorted(hits, key=lambda hit: (-hit[1], hit[0]))[:top_k]


def _keeping(hits: Iterable[list[Hit]], kept: dict[int, set[str]], sample: scan.Rows) -> Iterator[list[Hit]]:
    wanted = set(sample.tolist())
    for number, each in enumerate(hits):
        if number in wanted:
            kept[number] = {corpus for corpus, _ in each}
        yield each


def _print_recall(args: argparse.Namespace, recall: float, queries: int) -> None:
    result: dict[str, Any] = {"index": args.index, "precision": args.precision, "top_k": args.top_k}
    if args.index == "ivf":
        result |= {"probes": args.probes}
    elif args.index == "hnsw":
        result |= {"links": args.links, "ef": args.ef}
    result |= {"queries": queries, "recall_against_exact": recall}
    if args.format == "json":
        print(json.dumps(result))
    else:
        print(f"recall of the top {args.top_k} against exact search, {queries} queries: {recall:.4f}")
