"""Search by embeddings: a TREC run of a split's queries.

Exact: FAISS on a CPU, PyTorch on GPUs, each in turn a block of memory-mapped embeddings (`encode`), so that memory does
not grow with the passages. --precision bf16 (on processors with bf16 units) chooses candidates in 16 bits, which are
scored again exactly; the recall of its results against exact search, on --check-queries queries, is printed.

RUN.manifest.json records the model, the precision of passages, queries and search, and the SHA-256 of the run. Passages
and queries that were encoded in different precisions cause a warning.

Example:

  python -m baselines search --release build/sample --split dev --model build/models/de-bm25-neg \\
    --passages build/embeddings/passages --out build/runs/de.dev.run.gz
  python -m baselines search --release DIR --split test --queries DIR2 --passages DIR3 --out RUN --engine torch
"""

from __future__ import annotations

import argparse
from pathlib import Path

from baselines.models.options import add_device, add_revision
from baselines.runs.sets import add_set
from baselines.samples import add_sample
from builders.common.command import add_format, whole_number
from builders.common.hub import check_models


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--release", type=Path, required=True, metavar="DIR", help="the release directory")
    add_set(parser)
    parser.add_argument("--split", default="dev", help="whose queries (default: dev)")
    parser.add_argument("--passages", type=Path, required=True, metavar="DIR", help="the passages' embeddings")
    add_sample(parser)
    source = parser.add_mutually_exclusive_group(required=True)
    source.add_argument(
        "--model",
        metavar="M",
        help="the model that encoded the passages: encode the queries by it now",
    )
    source.add_argument("--queries", type=Path, metavar="DIR", help="the queries' embeddings")
    parser.add_argument("--out", type=Path, required=True, metavar="RUN", help="the run; gzipped where it ends in .gz")
    parser.add_argument("--top-k", type=whole_number(1), default=50, metavar="K", help="passages a query (default: 50)")
    parser.add_argument(
        "--candidates", type=whole_number(1), metavar="N", help="scored again, a query (default: twice --top-k)"
    )
    parser.add_argument("--engine", choices=["faiss", "torch"], help="default: faiss on a CPU, torch on a GPU")
    parser.add_argument("--precision", choices=["fp32", "bf16"], default="fp32", help="bf16: with --engine torch")
    parser.add_argument(
        "--check-queries", type=whole_number(0), default=200, metavar="N", help="for the recall (default: 200; 0: none)"
    )
    parser.add_argument("--threads", type=whole_number(1), metavar="N", help="default: the libraries' own choice")
    add_revision(parser)
    add_device(parser)
    add_format(parser)


def run(args: argparse.Namespace) -> None:
    check_models(args.model)
    from baselines.search.retrieve import retrieve

    retrieve(args)
