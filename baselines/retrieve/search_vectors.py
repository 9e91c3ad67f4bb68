"""Search by embeddings: write a TREC run of a split's queries.

The search is exact, by FAISS on a CPU and by PyTorch on GPUs. The embeddings that `encode` wrote are memory-mapped and
read block by block, so memory does not grow with the number of passages.

RUN.manifest.json records the model, the precision of passages and queries, and the SHA-256 of the run. Different
precisions of passages and queries cause a warning.

Example:

  python -m baselines search --release build/sample --split dev --model build/models/de-bm25-neg \\
    --passages build/embeddings/passages --out build/runs/de.dev.run.gz
  python -m baselines search --release DIR --split test --queries DIR2 --passages DIR3 --out RUN --engine torch
"""

import argparse
from dataclasses import replace
from pathlib import Path

from baselines.core.passages import add_sample, open_passages, sample_rows
from baselines.core.settings import DEVICE, add_options
from baselines.measure.qrels import add_set, read_queries
from builders.core.errors import InputError, log
from builders.core.files import check_file
from builders.core.hub import check_models
from builders.core.progress import progress
from builders.store.layout import SETS
from builders.store.reader import open_release
from builders.store.runs import write_run

_TAG = "dense-exact"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_options(parser, "--release", "--split", "--out", "--top-k", "--revision")
    add_set(parser)
    parser.add_argument("--passages", type=Path, required=True, metavar="DIR", help="embeddings of the passages")
    add_sample(parser)
    source = parser.add_mutually_exclusive_group(required=True)
    source.add_argument("--model", metavar="M", help="model that encoded the passages, to encode the queries")
    source.add_argument("--queries", type=Path, metavar="DIR", help="embeddings of the queries")
    parser.add_argument(
        "--engine", choices=["faiss", "torch"], help="search library (default: faiss on a CPU, torch on a GPU)"
    )
    add_options(parser, *DEVICE)


def run(args: argparse.Namespace) -> None:
    check_models(args.model)
    from baselines.core import run_manifest
    from baselines.retrieve import dense, devices, encoder, vector_index

    check_file(args.out)
    release, configs = open_release(args.release), SETS[args.set]
    vectors = vector_index.open_vectors(args.passages)
    vectors.check("passages", release, configs.corpus, "corpus")
    on = devices.devices_of(args.device)
    asked = read_queries(release, args.split, configs.queries)
    if not asked:
        raise InputError(f"the split {args.split!r} has no queries", path=args.release)
    if args.queries:
        given = vector_index.open_vectors(args.queries)
        given.check("queries", release, configs.queries, args.split)
        dense.expect_model(vectors, args.queries, given.manifest["model"]["fingerprint"], given.precision)
        queries, queries_in = given.all(), given.precision
    else:  # on one device; `encode --queries` uses all devices
        model = dense.encoding_model(args.model, vectors, on[0], args.dtype, args.revision)
        queries = encoder.Encoder(model, "query").encode([text for _, text in asked])
        queries_in = devices.dtype_of(args.dtype, on[0])
    passages = open_passages(release, configs.corpus)
    if args.sample:
        vectors = replace(vectors, chosen=sample_rows(release, configs.corpus, args.sample))
    hits = vector_index.named(
        dense.nearest(vectors, queries, passages, on, args.top_k, args.engine), passages, args.top_k
    )
    bar = progress(hits, total=len(asked), unit="query", label="search")
    lines = write_run(args.out, zip((query for query, _ in asked), bar, strict=True), tag=_TAG)
    precisions = {"passages": vectors.precision, "queries": queries_in, "search": "fp32"}
    about = {"index": "exact", "sample": args.sample, "precision": precisions}
    search = run_manifest.describe_search(release, kind="dense", set_name=args.set, split=args.split, top_k=args.top_k)
    found = run_manifest.record(vectors.manifest["model"], search | about)
    run_manifest.write_manifest(args.out, found, _TAG, len(asked), lines)
    shown = ", ".join(f"{name} {precision}" for name, precision in precisions.items())
    log.info("%s: %d lines for %d queries; precision: %s", args.out, lines, len(asked), shown)
