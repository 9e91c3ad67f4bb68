"""Add sets for interpolation and extrapolation.

They measure how a model does on queries like those it was trained on, and on others. After Zhan et al. (arXiv
2204.11447; github.com/jingtaozhan/extrapolate-eval). Queries are compared by the cosine of their embeddings, made by
any model: give files, or name a sentence-transformers model.

  restrain  new training sets for one small test set. SIZE-interpolation: the SIZE training queries most similar to the
            test queries: every test query's nearest, then every one's second nearest, and so on; of the last rank,
            which is cut to the size, the most similar. SIZE-extrapolation: SIZE others, drawn from what is left when
            every test query's K nearest training queries are removed. K is --exclude, or the rank that leaves room for
            the largest sets; it does not depend on the size. So a smaller set is part of a larger one of its kind, and
            no extrapolation set shares a query with an interpolation set, whatever their sizes. Where the test queries
            are many, a warning says so: almost every training query is similar to some test query then.
  resttest  new training and test sets: k-means puts training and test queries together into K buckets (5). For bucket
            N, `train` holds the training queries of the other buckets, `extrapolation` the test queries of bucket N
            and `interpolation` the other test queries. Report the mean over the buckets.
  overlap   test queries that share a positive passage with a training query, from one shared passage on.
  embed     the embeddings of a release's queries by a model, as Parquet, to use in both.

The new sets are added to a copy of the release as configs with the columns of qrels. The same embeddings, seed and
options give the same sets on any number of threads. Printed for every set: the test queries' mean cosine with their
nearest training query, and their label overlap.

Example:

  python -m builders extrapolate embed --release build/release --model BAAI/bge-small-zh-v1.5 \\
    --out build/queries.parquet
  python -m builders extrapolate restrain --release build/release --embeddings build/queries.parquet --size 14K \\
    --out build/extrapolation
  python -m builders extrapolate resttest --release build/extrapolation --embeddings build/queries.parquet \\
    --out build/extrapolation
  python -m builders extrapolate overlap --release build/extrapolation
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from builders.common.command import add_format, whole_number
from builders.common.hub import check_models


def add_arguments(parser: argparse.ArgumentParser) -> None:
    commands = parser.add_subparsers(dest="command", metavar="restrain|resttest|overlap|embed", required=True)
    made = {}
    for name, text in (
        ("restrain", "training sets similar and dissimilar to a test set"),
        ("resttest", "training and test sets by k-means"),
        ("overlap", "label overlap of training and test sets"),
        ("embed", "embed the queries of a release with a model"),
    ):
        made[name] = command = commands.add_parser(name, help=text, description=text, allow_abbrev=False)
        command.add_argument("--quiet", action="store_true", default=argparse.SUPPRESS, help="log warnings only")
        command.add_argument("--release", type=Path, required=True, metavar="DIR", help="the release to start from")
    for name in ("restrain", "resttest"):
        _add_embeddings(made[name])
        made[name].add_argument(
            "--out", type=Path, required=True, metavar="DIR", help="the new release (may be --release)"
        )
        made[name].add_argument("--seed", type=whole_number(0), default=0, metavar="N", help="of what is drawn (0)")
    made["restrain"].add_argument(
        "--size", type=size, nargs="+", required=True, metavar="N", help="training queries a set: 14K, 45K, 200K or any"
    )
    made["restrain"].add_argument(
        "--exclude",
        type=whole_number(1),
        metavar="K",
        help="ranks never in an extrapolation set (default: about half of the training queries are out)",
    )
    made["restrain"].add_argument(
        "--split", nargs="+", default=["dev"], metavar="SPLIT", help="the test queries, labelled or not (dev)"
    )
    made["resttest"].add_argument("--split", default="dev", help="the test queries, labelled (dev)")
    made["resttest"].add_argument("--buckets", type=whole_number(2), default=5, metavar="K", help="of k-means (5)")
    made["overlap"].add_argument("--split", default="dev", help="the test queries, labelled (dev)")
    _add_model(made["embed"], made["embed"], required=True)
    made["embed"].add_argument(
        "--split", nargs="+", default=["train", "dev"], metavar="SPLIT", help="whose queries (train dev)"
    )
    made["embed"].add_argument("--out", type=Path, required=True, metavar="FILE.parquet", help="the file to write")
    for name in ("restrain", "resttest", "overlap"):
        add_format(made[name])


def _add_embeddings(parser: argparse.ArgumentParser) -> None:
    """``--embeddings FILE...`` or ``--model NAME``, and what goes with them."""
    source = parser.add_mutually_exclusive_group(required=True)
    text = "query vectors: NAME.npy (ids, one a line, in NAME.ids.txt), .npz or .parquet; together of every query used"
    source.add_argument("--embeddings", type=Path, nargs="+", metavar="FILE", help=text)
    _add_model(source, parser)
    parser.add_argument("--ids", type=Path, nargs="+", metavar="FILE", help="the ids of each .npy, in their order")


def _add_model(where: Any, parser: argparse.ArgumentParser, required: bool = False) -> None:
    text = "a sentence-transformers model, by name or folder, that embeds the queries"
    where.add_argument("--model", metavar="NAME", help=text, **({"required": True} if required else {}))
    parser.add_argument("--prompt", metavar="TEXT", help="what the model wants before every query (default: nothing)")
    parser.add_argument("--batch-size", type=whole_number(1), default=64, metavar="N", help="queries a batch (64)")


def size(text: str) -> int:
    """An argparse type: a number of queries, ``14K`` for 14,000."""
    value = int(text[:-1]) * 1000 if text[-1:] in ("k", "K") else int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"expected at least one query, found {text}")
    return value


def run(args: argparse.Namespace) -> None:
    from builders.extrapolate.embeddings import write_embeddings
    from builders.extrapolate.figures import table
    from builders.extrapolate.model import encode
    from builders.extrapolate.overlap import overlaps
    from builders.extrapolate.queries import texts
    from builders.extrapolate.restrain import restrain
    from builders.extrapolate.resttest import resttest
    from builders.store.reader import open_release

    check_models(getattr(args, "model", None))
    release = open_release(args.release)
    if args.command == "embed":
        write_embeddings(encode(args.model, texts(release, args.split), args.batch_size, args.prompt), args.out)
        return
    if args.command == "overlap":
        rows = overlaps(release, args.split)
    else:
        rows = (restrain if args.command == "restrain" else resttest)(release, args)
    print(json.dumps(rows, indent=1) if args.format == "json" else table(rows))
