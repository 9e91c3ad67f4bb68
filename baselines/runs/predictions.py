"""Write a run as the official JSON of predictions.

The file is one object ``{query id: [passage ids, best first]}``, which the official script measures and a submission
of the test split, whose labels were never published, consists of: the split's queries in the release's order, at most
50 passages each. Refused are queries that the split lacks, passages that the corpus lacks, and a passage that comes
twice in a list (the official script only warns of it). Queries that the run lacks are named and left out: they count 0.
`evaluate` reads the file as it reads a run, with the same official figures.

Example:

  python -m baselines predictions --release build/sample --split test build/runs/bm25.test.run.gz --out predictions.json
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping, Sequence
from pathlib import Path

from baselines.runs.measures import LIST_DEPTH
from baselines.runs.sets import add_set, read_queries
from builders.core.command import whole_number
from builders.core.errors import InputError, log
from builders.core.files import atomic_text
from builders.store.layout import SETS
from builders.store.reader import Release, open_release
from builders.store.runs import Run, read_run

_NAMED = 3  # queries that a message names


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("run", type=Path, metavar="RUN", help="TREC run, or predictions to be checked")
    parser.add_argument("--release", type=Path, required=True, metavar="DIR", help="the release that was searched")
    parser.add_argument("--split", default="dev", help="the split of the run's queries (default: dev)")
    add_set(parser)
    parser.add_argument("--out", type=Path, required=True, metavar="F.json", help="the predictions")
    parser.add_argument(
        "--top-k",
        type=whole_number(1),
        default=LIST_DEPTH,
        metavar="K",
        help=f"passages a query, {LIST_DEPTH} at most (default: {LIST_DEPTH})",
    )


def run(args: argparse.Namespace) -> None:
    if args.top_k > LIST_DEPTH:
        raise InputError(f"--top-k {args.top_k}: expected {LIST_DEPTH} at most, where the official script cuts lists")
    release, configs = open_release(args.release), SETS[args.set]
    queries = [query for query, _ in read_queries(release, args.split, configs.queries)]
    name = f"{args.split} of {release.path}"
    lists = predictions(read_run(args.run), queries, name, args.top_k)
    _expect_passages(release, configs.corpus, lists, args.run)
    if missing := [query for query in queries if query not in lists]:
        log.warning("%s lacks %s of %d of %s; they count 0", args.run, _named(missing), len(queries), name)
    write_predictions(args.out, lists)
    log.info("%s: %d queries, %d passages", args.out, len(lists), sum(map(len, lists.values())))


def predictions(run: Run, queries: Sequence[str], name: str, top_k: int = LIST_DEPTH) -> dict[str, list[str]]:
    """The lists of a run as the official script wants them, cut at ``top_k``, in the order of ``queries``.

    Queries that the run lacks, or has no passage for, are left out. Raises :class:`InputError` for a query that is not
    among ``queries`` (those of ``name``), and for a passage that comes twice in a list.
    """
    rankings = run.rankings
    if strangers := sorted({*rankings} - {*queries}):
        raise InputError(f"has {_named(strangers)} that {name} lacks; expected a run of that split", path=run.path)
    for query, passages in rankings.items():
        if len({*passages}) < len(passages):
            twice = next(passage for place, passage in enumerate(passages) if passage in passages[:place])
            raise InputError(f"query {query!r} has the passage {twice!r} twice; expected it once", path=run.path)
    return {query: rankings[query][:top_k] for query in queries if rankings.get(query)}


def _named(queries: Sequence[str]) -> str:
    shown = ", ".join(queries[:_NAMED]) + ", ..." * (len(queries) > _NAMED)
    return f"{len(queries)} {'query' if len(queries) == 1 else 'queries'} ({shown})"


def _expect_passages(release: Release, config: str, lists: Mapping[str, Sequence[str]], path: Path) -> None:
    """Raise :class:`InputError` for a listed passage that the corpus lacks."""
    if strangers := release.missing(config, "corpus", {each for passages in lists.values() for each in passages}):
        lacking = f"{config!r} of {release.path}"
        raise InputError(f"has {len(strangers):,} passages that {lacking} lacks, such as {strangers[0]}", path=path)


def write_predictions(path: Path, lists: Mapping[str, Sequence[str]]) -> None:
    """Write ``{query id: [passage ids]}``, a line a query; the file appears when it is whole."""
    with atomic_text(path) as file:
        file.write("{\n")
        for number, (query, passages) in enumerate(lists.items()):
            file.write(",\n" * (number > 0) + f"{json.dumps(query)}: {json.dumps(passages)}")
        file.write("\n}\n")
