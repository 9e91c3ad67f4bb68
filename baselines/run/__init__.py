r"""Any model in one command: encode, search, evaluate.

MODEL is a name on the hub or a folder. How it is used (prompts, pooling, lengths) is said by the options; where they
say nothing by the declarations of its family (baselines/models.toml, each value with its source); else by the model's
own files. What was used, and who said it, is printed above the figures, and stands in RUN.manifest.json with the
release's fingerprints; each line of the run names the model, its commit and that manifest (last column). For a model
of no family the defaults are said in a warning.

The index is kept, by default in $XDG_CACHE_HOME/dureader_retrieval/indexes: started again, the command goes on where it
was, and another split needs the queries alone.

--trust-remote-code runs Python code of the model's repository on this machine. Look at it first, and give --revision.

examples:

  python -m baselines run BAAI/bge-small-zh-v1.5 --release build/sample --split dev
  python -m baselines run Qwen/Qwen3-Embedding-0.6B --release DIR --prompt-name duretrieval --out RUN
  python -m baselines run ORG/NAME --release DIR --query-prompt $'Instruct: find passages\nQuery: ' --pooling cls
"""

from __future__ import annotations

import argparse
from pathlib import Path

from baselines.measure.qrels import add_set
from baselines.models.options import add_batch_tokens, add_device, add_revision
from builders.core.command import add_format, whole_number
from builders.core.hub import check_models

POOLINGS = ("cls", "mean", "lasttoken")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("model", metavar="MODEL", help="a name on the hub, or a folder")
    parser.add_argument("--release", type=Path, required=True, metavar="DIR", help="the release directory")
    add_set(parser)
    parser.add_argument("--split", default="dev", help="whose queries (default: dev)")
    parser.add_argument(
        "--out", type=Path, metavar="RUN", help="the run; gzipped where it ends in .gz (default: NAME.SPLIT.run.gz)"
    )
    parser.add_argument("--top-k", type=whole_number(1), default=50, metavar="K", help="passages a query (default: 50)")
    _add_use(parser.add_argument_group("how the model is used"))
    parser.add_argument("--kind", metavar="KIND", help="what the model is (default: as its own files say)")
    parser.add_argument("--index", type=Path, metavar="DIR", help="where its index is kept (default: in the cache)")
    add_batch_tokens(parser)
    add_device(parser)
    add_format(parser)


def _add_use(group: argparse._ArgumentGroup) -> None:
    group.add_argument("--family", metavar="F", help="of models.toml (default: by the model's name; none: no family)")
    group.add_argument("--query-prompt", metavar="TEXT", help="put before every query; '' for nothing")
    group.add_argument("--passage-prompt", metavar="TEXT", help="put before every passage; '' for nothing")
    group.add_argument(
        "--prompt-name", metavar="NAME", help="the query's prompt: one of the family's or the model's own"
    )
    group.add_argument("--pooling", choices=POOLINGS, help="how the vectors of a text's tokens become one")
    group.add_argument("--max-length", type=whole_number(4), metavar="N", help="tokens of a text at most")
    group.add_argument("--truncate-dim", type=whole_number(1), metavar="N", help="the first N dimensions alone")
    group.add_argument(
        "--normalize",
        action=argparse.BooleanOptionalAction,
        help="embeddings of unit length, or as they are (default: unit length where compared by cosine)",
    )
    group.add_argument("--similarity", choices=["cosine", "dot"], help="what embeddings are compared by")
    group.add_argument("--trust-remote-code", action="store_true", help="run code of the model's repository")
    add_revision(group)


def run(args: argparse.Namespace) -> None:
    check_models(args.model)
    from baselines.run.running import run_model

    run_model(args)
