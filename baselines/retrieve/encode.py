"""Embed a release's passages or queries by a dual-encoder.

The embeddings are 16-bit floats in NumPy files that can be memory-mapped. Row n is passage n of the release, or query
n of the split. An interrupted command resumes after the last complete file when it is started again. A complete
directory from the same release, model and options is not encoded again. manifest.json records the model's precision.
Each GPU has a process, which holds the texts and embeddings of one file in memory.

The passages are unpacked once into the folder dureader_retrieval/texts in $XDG_CACHE_HOME or ~/.cache.

Example:

  python -m baselines encode --release build/sample --model build/models/de-bm25-neg --out build/embeddings/passages
  python -m baselines encode --release DIR --model ORG/NAME --queries --split dev --out DIR2
"""

import argparse
from pathlib import Path

from baselines.core.settings import DEVICE, PAIRS, ModelSettings, add_options
from baselines.measure.qrels import add_set
from builders.core.command import whole_number
from builders.core.errors import InputError
from builders.core.hub import check_models
from builders.store.layout import SETS
from builders.store.reader import open_release


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_options(parser, "--release")
    add_set(parser)
    parser.add_argument("--model", required=True, metavar="M", help="sentence-transformers model: hub name or folder")
    parser.add_argument("--out", type=Path, required=True, metavar="DIR", help="directory of embeddings to write")
    parser.add_argument("--queries", action="store_true", help="encode queries instead of passages")
    parser.add_argument("--split", help="split of the queries, with --queries (default: dev)")
    parser.add_argument(
        "--shard-rows",
        type=whole_number(1),
        metavar="N",
        help="rows per file (default: 131,072 on a GPU or for static models, else 8,192)",
    )
    add_options(parser, *PAIRS, *DEVICE)


def run(args: argparse.Namespace) -> None:
    if args.split and not args.queries:
        raise InputError("--split needs --queries, because passages have no split")
    check_models(args.model)
    from baselines.retrieve.devices import work_of
    from baselines.retrieve.models import kind_of_model
    from baselines.retrieve.vector_index import open_retriever

    configs, release = SETS[args.set], open_release(args.release)
    work = work_of(args.device, args.dtype, args.batch_tokens, args.tokenizers, args.backend)
    settings = ModelSettings(args.model, revision=args.revision, max_length=args.max_length)
    model = open_retriever(settings, work, "static" if kind_of_model(settings) == "static" else "dense")
    config, split = (configs.queries, args.split or "dev") if args.queries else (configs.corpus, "corpus")
    model.index(release, config, args.out, split, args.shard_rows)
