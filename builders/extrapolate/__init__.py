"""Add sets for interpolation and extrapolation.

They measure how a model does on queries like those it was trained on, and on others. After Zhan et al. (arXiv
2204.11447; github.com/jingtaozhan/extrapolate-eval). Queries are compared by the cosine of their embeddings, made by
any model: give files, or name a sentence-transformers model.

  restrain  new training sets for one test set. SIZE-interpolation: the SIZE training queries most similar to the test
            queries: every test query's nearest, then every one's second nearest, and so on; of the last rank, which is
            cut to the size, the most similar. SIZE-extrapolation: SIZE others, drawn from what is left when every test
            query's K nearest training queries are removed. K is the rank that the interpolation set reached, or
            --exclude where that is more. The two share no query.
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
import hashlib
import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from builders.common.command import InputError, add_format, whole_number
from builders.extrapolate.embeddings import (
    Blocks,
    add_embedding_arguments,
    add_model_arguments,
    directions,
    encode,
    read_embeddings,
    write_embeddings,
)
from builders.extrapolate.overlap import judged_of, label_overlap, labelled, overlaps
from builders.extrapolate.resample import bucketed, restrained
from builders.extrapolate.similarity import Ints, nearest
from builders.store.draft import Draft, check_release_output, describe_files, draft_release
from builders.store.reader import Release, open_release


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
        add_embedding_arguments(made[name])
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
        default=1,
        metavar="K",
        help="ranks never in an extrapolation set (1)",
    )
    made["restrain"].add_argument(
        "--split", nargs="+", default=["dev"], metavar="SPLIT", help="the test queries, labelled or not (dev)"
    )
    made["resttest"].add_argument("--split", default="dev", help="the test queries, labelled (dev)")
    made["resttest"].add_argument("--buckets", type=whole_number(2), default=5, metavar="K", help="of k-means (5)")
    made["overlap"].add_argument("--split", default="dev", help="the test queries, labelled (dev)")
    add_model_arguments(made["embed"], made["embed"], required=True)
    made["embed"].add_argument(
        "--split", nargs="+", default=["train", "dev"], metavar="SPLIT", help="whose queries (train dev)"
    )
    made["embed"].add_argument("--out", type=Path, required=True, metavar="FILE.parquet", help="the file to write")
    for name in ("restrain", "resttest", "overlap"):
        add_format(made[name])


def size(text: str) -> int:
    """An argparse type: a number of queries, ``14K`` for 14,000."""
    value = int(text[:-1]) * 1000 if text[-1:] in ("k", "K") else int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"expected at least one query, found {text}")
    return value


def size_name(queries: int) -> str:
    """How a size stands in a config's name: ``14K``, ``1500``."""
    return str(queries) if queries % 1000 else f"{queries // 1000}K"


def run(args: argparse.Namespace) -> None:
    release = open_release(args.release)
    if args.command == "embed":
        write_embeddings(encode(args.model, _texts(release, args.split), args.batch_size, args.prompt), args.out)
        return
    if args.command == "overlap":
        rows = overlaps(release, args.split)
    else:
        rows = (restrain if args.command == "restrain" else resttest)(release, args)
    print(json.dumps(rows, indent=1) if args.format == "json" else _text(rows))


def restrain(release: Release, args: argparse.Namespace) -> list[dict[str, Any]]:
    """Write the ``restrain-SIZE-*`` configs into a copy of ``release``; returns a row of figures each."""
    check_release_output(args.out)
    qrels = release.table("qrels", "train")
    trains = labelled(qrels)
    tests = sorted({query for split in args.split for query in _ids(release, split)})
    (train_vectors, test_vectors), described = _embed(release, ["train", *args.split], [trains, tests], args)
    sets = restrained(trains, train_vectors, test_vectors, args.size, args.exclude, args.seed)
    options = {"size": sorted(set(args.size)), "exclude": args.exclude, "split": args.split, "seed": args.seed}
    rows = []
    with draft_release(args.out, _build("restrain", options, described), release) as draft:
        judged = judged_of(release, args.split)
        for chosen in sets:
            name = f"restrain-{size_name(chosen.size)}-{chosen.kind}"
            table = _of(qrels, _at(trains, chosen.rows))
            draft.write(name, "train", [table])
            row = {
                "config": name,
                "test": "+".join(args.split),
                "train_queries": chosen.size,
                "test_queries": len(tests),
                "ranks": chosen.ranks,
                "nearest_cosine": _mean(nearest(test_vectors, train_vectors, chosen.rows)),
                **label_overlap(table, judged),
            }
            rows.append(row)
            _note(draft, name, row)
    return rows


def resttest(release: Release, args: argparse.Namespace) -> list[dict[str, Any]]:
    """Write the ``resttest-bucketN`` configs into a copy of ``release``; returns two rows of figures each."""
    check_release_output(args.out)
    qrels, judged = release.table("qrels", "train"), release.table("qrels", args.split)
    trains, tests = labelled(qrels), labelled(judged)
    (train_vectors, test_vectors), described = _embed(release, ["train", args.split], [trains, tests], args)
    found = bucketed(trains, tests, train_vectors, test_vectors, args.buckets, args.seed)
    options = {"buckets": args.buckets, "split": args.split, "seed": args.seed}
    rows = []
    with draft_release(args.out, _build("resttest", options, described), release) as draft:
        for config in {config for config, _ in release.splits() if config.startswith("resttest-")}:
            draft.drop(config)
            draft.stats.get("extrapolation", {}).pop(config, None)
        for bucket in range(args.buckets):
            name = f"resttest-bucket{bucket + 1}"
            train = _of(qrels, _at(trains, np.flatnonzero(found.trains != bucket)))
            draft.write(name, "train", [train])
            cosines = np.delete(found.nearest, bucket, axis=1).max(axis=1)
            figures = []
            for kind, members in (("interpolation", found.tests != bucket), ("extrapolation", found.tests == bucket)):
                test = _of(judged, _at(tests, np.flatnonzero(members)))
                draft.write(name, kind, [test])
                figures.append(
                    {
                        "config": name,
                        "test": kind,
                        "train_queries": int((found.trains != bucket).sum()),
                        "test_queries": int(members.sum()),
                        "nearest_cosine": _mean(cosines[members]),
                        **label_overlap(train, test),
                    }
                )
            _note(draft, name, figures)
            rows += figures
    return rows


def _of(qrels: pa.Table, queries: list[str]) -> pa.Table:
    return qrels.filter(pc.is_in(qrels["query-id"], pa.array(queries, pa.string())))


def _at(queries: list[str], rows: Ints) -> list[str]:
    return [queries[row] for row in rows]


def _ids(release: Release, split: str) -> list[str]:
    ids: list[str] = release.table("queries", split, ["_id"])["_id"].to_pylist()
    return ids


def _texts(release: Release, splits: Iterable[str]) -> list[tuple[str, str]]:
    """(id, text) of the queries of the splits, each id once."""
    texts: dict[str, str] = {}
    for split in splits:
        table = release.table("queries", split, ["_id", "text"])
        texts.update(zip(table["_id"].to_pylist(), table["text"].to_pylist(), strict=True))
    return list(texts.items())


def _embed(
    release: Release, splits: Sequence[str], groups: Sequence[Sequence[str]], args: argparse.Namespace
) -> tuple[list[Any], dict[str, Any]]:
    """The vectors of the groups of queries, and what the manifest says of them."""
    for name, group in zip(("qrels/train", "/".join(splits[1:])), groups, strict=True):
        if not group:
            raise InputError(f"has no queries in {name}; expected some", path=release.path)
    blocks: Blocks
    if args.embeddings:
        blocks = read_embeddings(args.embeddings, args.ids)
        files = [*args.embeddings, *(args.ids or [])]
        found = directions(blocks, groups)
        return found, {"options": {}, "sources": describe_files((path.name, path) for path in files)}
    if args.ids:
        raise InputError("--ids goes with --embeddings, not with --model")
    found = directions(encode(args.model, _texts(release, splits), args.batch_size, args.prompt), groups)
    # What a model gives depends on its version and machine: the manifest pins the vectors themselves.
    digest = hashlib.sha256()
    for vectors in found:
        digest.update(vectors.data)
    return found, {
        "options": {"model": args.model, "prompt": args.prompt, "vectors": digest.hexdigest()},
        "sources": [],
    }


def _build(command: str, options: dict[str, Any], described: dict[str, Any]) -> dict[str, Any]:
    return {
        "verb": f"extrapolate {command}",
        "options": options | described["options"],
        "sources": described["sources"],
    }


def _note(draft: Draft, config: str, figures: Any) -> None:
    draft.stats.setdefault("extrapolation", {})[config] = figures


def _mean(cosines: Any) -> float | None:
    return round(float(cosines.mean()), 4) if len(cosines) else None


def _text(rows: list[dict[str, Any]]) -> str:
    """The figures as an aligned table."""
    names = list(dict.fromkeys(name for row in rows for name in row))
    cells = [[name.replace("_", " ") for name in names]]
    for row in rows:
        cells.append(["-" if row.get(name) is None else _cell(name, row[name]) for name in names])
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    lines = []
    for line in cells:
        parts = (
            f"{cell:<{w}}" if i < 2 else f"{cell:>{w}}" for i, (cell, w) in enumerate(zip(line, widths, strict=True))
        )
        lines.append("  ".join(parts).rstrip())
    return "\n".join(lines)


def _cell(name: str, value: Any) -> str:
    if name.endswith("share"):
        return f"{100 * value:.2f}%"
    return f"{value:,}" if isinstance(value, int) else str(value)
