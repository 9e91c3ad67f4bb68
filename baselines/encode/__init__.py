"""Embed a release's passages or queries by a dual-encoder.

Written are memory-mapped files of 16-bit floats. Row n is passage n of the release. Each file is sorted by length while
it is encoded, and finished files are kept: the command started again after an interruption goes on where it was. One
process a GPU; memory holds one file's texts and embeddings a process. A finished directory that was made from the
same release, model and options is left as it is. Its manifest.json records the precision that the model computed in.

The passages are unpacked once into $XDG_CACHE_HOME (or ~/.cache)/dureader_retrieval/texts.

Example:

  python -m baselines encode --release build/sample --model build/models/de-bm25-neg --out build/embeddings/passages
  python -m baselines encode --release DIR --model ORG/NAME --queries --split dev --out DIR2
"""

from __future__ import annotations

import argparse
from pathlib import Path

from baselines.measure.qrels import add_set
from baselines.models.options import add_batch_tokens, add_device, add_revision
from builders.core.command import whole_number
from builders.core.errors import InputError
from builders.core.hub import check_models
from builders.store.layout import SETS

# 200 MB at 768 dimensions; on a CPU some minutes. At most that much is encoded again after an interruption.
ROWS_ON_GPU, ROWS_ON_CPU = 1 << 17, 1 << 13


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--release", type=Path, required=True, metavar="DIR", help="the release directory")
    add_set(parser)
    parser.add_argument("--model", required=True, metavar="M", help="a sentence-transformers model: hub name or folder")
    parser.add_argument("--out", type=Path, required=True, metavar="DIR", help="the directory of embeddings")
    parser.add_argument("--queries", action="store_true", help="encode queries instead of passages")
    parser.add_argument("--split", help="whose queries (with --queries; default: dev)")
    parser.add_argument(
        "--shard-rows",
        type=whole_number(1),
        metavar="N",
        help=f"rows of a file (default: {ROWS_ON_GPU:,} on a GPU, {ROWS_ON_CPU:,} on a CPU)",
    )
    parser.add_argument(
        "--max-length", type=whole_number(4), metavar="N", help="tokens of a text at most (default: as the model cuts)"
    )
    add_revision(parser)
    add_batch_tokens(parser)
    add_device(parser)


def run(args: argparse.Namespace) -> None:
    if args.split and not args.queries:
        raise InputError("--split goes with --queries: passages have no split")
    check_models(args.model)
    from baselines.encode.chunks import Job, check_input, encode
    from baselines.models.devices import batch_tokens, devices_of, dtype_of, tokenizers
    from baselines.models.loading import commit_of
    from baselines.models.settings import ModelSettings

    configs, devices = SETS[args.set], devices_of(args.device)
    config = configs.queries if args.queries else configs.corpus
    split = (args.split or "dev") if args.queries else "corpus"
    revision = commit_of(args.model, args.revision)  # what is said in seconds comes before the texts are unpacked
    check_input(args.release, config, split, args.out)
    job = Job(
        release=args.release,
        config=config,
        split=split,
        settings=ModelSettings(args.model, revision=revision, max_length=args.max_length),
        dtype=dtype_of(args.dtype, devices[0]),
        batch_tokens=args.batch_tokens or batch_tokens(devices[0]),
        tokenizers=tokenizers(devices) if args.tokenizers is None else args.tokenizers,
        chunk_rows=args.shard_rows or (ROWS_ON_CPU if devices[0] == "cpu" else ROWS_ON_GPU),
    )
    encode(job, args.out, devices)
