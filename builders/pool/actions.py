"""What the actions of the command do: candidates, select."""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Sequence
from typing import Any

from builders.core.errors import InputError, log
from builders.core.files import check_file
from builders.pool.ensemble import mean_scores, select
from builders.pool.pairs import Pooled, read_pool, write_pool
from builders.pool.report import as_text, report
from builders.pool.union import Union, open_runs, union_of
from builders.store.judged import read_judged
from builders.store.reader import Release, open_release
from builders.store.runs import Run, first_line_with, read_run, write_run

Qrels = dict[str, dict[str, int]]


def candidates(args: argparse.Namespace) -> None:
    """The union of the runs, as a run for the re-rankers."""
    union, new, judged, _ = _read(args)
    # Re-rankers take every candidate; until then, the best rank in any run is a fair order.
    rows = [
        (query, [(passage, 1 / min(filter(None, ranks))) for passage, ranks in passages.items()])
        for query, passages in new.ranks.items()
        if passages
    ]
    lines = write_run(args.out, rows, tag="pool")
    longest = max((len(hits) for _, hits in rows), default=0)
    log.info(
        "%s: %d candidates of %d queries; next: `baselines rerank --top-k %d`", args.out, lines, len(rows), longest
    )
    _print(report(union, new, judged, args.depth, None), args)


def choose(args: argparse.Namespace) -> None:
    """The pool: the ensemble's best candidates of each query."""
    union, new, judged, old = _read(args)
    scores = mean_scores(new, [read_run(path) for path in args.scores], args.scale)
    pairs = list(select(scores, union, judged, args.top, old))
    count = write_pool(args.out, pairs)
    log.info("%s: %d pairs", args.out, count)
    _print(report(union, new, judged, args.depth, pairs), args)


ACTIONS: dict[str, Callable[[argparse.Namespace], None]] = {"candidates": candidates, "select": choose}


def _read(args: argparse.Namespace) -> tuple[Union, Union, Qrels, list[Pooled]]:
    """(the union of the runs, what of it an earlier pool lacks, the judgments of the split, the earlier pool)."""
    check_file(args.out)
    release = open_release(args.release)
    queries = release.table("queries", args.split, ["_id"])["_id"].to_pylist()
    runs, names = open_runs(args.runs, args.names)
    union = union_of(runs, names, queries, args.depth, args.split)
    _expect_passages(release, runs, union)
    old = read_pool(args.pool) if args.pool else []
    known = set(queries)
    if strange := next((pair.query_id for pair in old if pair.query_id not in known), None):
        raise InputError(f"has a query {strange!r} that queries/{args.split} lacks", path=args.pool)
    new = union.without({(pair.query_id, pair.corpus_id) for pair in old}) if old else union
    return union, new, read_judged(release, "qrels", args.split), old


def _expect_passages(release: Release, runs: Sequence[Run], union: Union) -> None:
    """:class:`InputError` for a candidate that the corpus lacks: it has no text to score or judge."""
    missing = set(release.missing("corpus", "corpus", {passage for _, passage, _ in union.pairs()}))
    for run in runs if missing else ():
        if strange := next((each for ids in run.rankings.values() for each in ids if each in missing), None):
            line = first_line_with(run.path, strange)
            raise InputError(f"has a passage {strange!r} that the corpus lacks", path=run.path, line=line)


def _print(found: dict[str, Any], args: argparse.Namespace) -> None:
    print(json.dumps(found, ensure_ascii=False, indent=1) if args.format == "json" else as_text(found))
