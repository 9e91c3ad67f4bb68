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
from baselines.retrieve.settings import ModelSettings, add_batch_tokens, add_device, add_revision
from builders.core.command import whole_number
from builders.core.errors import InputError
from builders.core.hub import check_models
from builders.store.layout import SETS
from builders.store.reader import open_release


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
        help="rows of a file (default: 131,072 on a GPU, 8,192 on a CPU)",
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
    from baselines.retrieve import devices, embeddings, hub_models, index

    configs, on = SETS[args.set], devices.devices_of(args.device)
    config = configs.queries if args.queries else configs.corpus
    split = (args.split or "dev") if args.queries else "corpus"
    revision = hub_models.commit_of(
        args.model, args.revision
    )  # what is said in seconds comes before the texts are unpacked
    settings = ModelSettings(args.model, revision=revision, max_length=args.max_length)
    work = devices.Work(on, devices.dtype_of(args.dtype, on[0]), args.batch_tokens, args.tokenizers)
    release = open_release(args.release)
    index.check_input(embeddings.Vectors, release, config, split, args.out)
    job = index.job_of(embeddings.__name__, release, config, settings, work, split=split, chunk_rows=args.shard_rows)
    embeddings.encode(job, args.out, on)
