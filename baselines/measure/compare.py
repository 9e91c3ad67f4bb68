"""Compare runs: paired tests, groups, changed queries.

Every pair of runs is compared on the same queries by Student's paired t-test and Fisher's randomisation test, with
Holm's correction over all pairs. For each pair, the verb prints the interval of the difference, wins, ties and losses,
the smallest detectable difference, and the queries that changed most. A system's superscripts name the systems that are
significantly worse. A group lists systems without significant differences. Runs and reference have the formats of
`evaluate`. A query that a run lacks counts as 0.

--by also compares every pair in each group of queries, with Holm's correction over all pairs and groups of a measure.

Figures are percent in text, Markdown and LaTeX (a table for a paper). In JSON, figures are fractions.

examples:

  python -m baselines compare --release DIR --split dev bm25.dev.run.gz de.dev.run.gz ce.dev.run.gz
  python -m baselines compare --qrels qrels.trec --measure nDCG@10 --test randomisation A.run B.run --format json
  python -m baselines compare --release DIR --name BM25 --name "DE w/ BM25 Neg" bm25.run de.run --format latex
"""

import argparse
from collections.abc import Mapping, Sequence
from itertools import combinations
from pathlib import Path
from statistics import median
from typing import Any

import pyarrow as pa

from baselines.measure.compare_tables import shown
from baselines.measure.groups import Groups, add_by, groups_of
from baselines.measure.holes import holes
from baselines.measure.measures import LIST_DEPTH, PAPER, Values, mean, measure_run, measured, values_of, with_columns
from baselines.measure.qrels import Qrels, add_reference, read_queries, reference_qrels
from baselines.measure.significance import TEST_RESAMPLES, TESTS, detectable, groups, holm, paired
from builders.core.command import number_between, whole_number
from builders.core.errors import InputError, log
from builders.core.tables import print_result
from builders.store.layout import SETS
from builders.store.reader import open_release
from builders.store.runs import read_run

LABELS = "abcdefghijklmnoprstuvwxyz"  # one per system; q is omitted, because few fonts have a superscript q
MEASURES = tuple(PAPER.values())


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_reference(parser)
    parser.add_argument(
        "--measure",
        action="append",
        metavar="NAME",
        help="measure to compare, repeatable: an official key or a column of `evaluate --per-query --holes`. The first "
        "measure selects the queries that changed most (default: MRR@10, recall@1, recall@50)",
    )
    parser.add_argument(
        "--name", action="append", metavar="TEXT", help="name of a run in the tables, once per run (default: its path)"
    )
    add_by(parser, "also compare the runs on the queries")
    parser.add_argument("--test", choices=TESTS, default=TESTS[0], help="test for superscripts and groups (default: t)")
    parser.add_argument(
        "--alpha", type=number_between(0.0001, 0.5), default=0.05, metavar="P", help="test level (default: 0.05)"
    )
    parser.add_argument(
        "--power",
        type=number_between(0.5, 0.99),
        default=0.8,
        metavar="P",
        help="power for the detectable difference (default: 0.8)",
    )
    parser.add_argument(
        "--resamples", type=whole_number(99), default=TEST_RESAMPLES, metavar="N", help="resamples (default: 9,999)"
    )
    parser.add_argument("--seed", type=whole_number(0), default=0, metavar="N", help="seed of resamples (default: 0)")
    parser.add_argument(
        "--changed", type=whole_number(0), default=3, metavar="N", help="show N changed queries per pair (default: 3)"
    )
    parser.add_argument(
        "--format", choices=["text", "json", "markdown", "latex"], default="text", help="output format (default: text)"
    )
    parser.add_argument("runs", type=Path, nargs="+", metavar="RUN", help="TREC run or official predictions (JSON)")


def run(args: argparse.Namespace) -> None:
    names = args.name or [str(path) for path in args.runs]
    if len(names) != len(args.runs):
        raise InputError(f"expected a --name for each of {len(args.runs)} runs, found {len(names)}")
    if not 2 <= len(args.runs) <= len(LABELS):
        raise InputError(f"expected 2 to {len(LABELS)} runs, found {len(args.runs)}")
    qrels = reference_qrels(args)
    measures = list(dict.fromkeys(args.measure or MEASURES))
    tables = [_table(path, qrels, measures) for path in args.runs]
    result = {"reference": qrels.name, **compare(args, names, tables, measures)}
    print_result(result, "" if args.format == "json" else shown(result, args.format), args.format)


def _table(path: Path, qrels: Qrels, measures: Sequence[str]) -> pa.Table:
    """Return a run's values by query. The columns of ``holes`` are added if ``measures`` names such a column."""
    retrieved = read_run(path)
    result, table = measure_run(retrieved, qrels)
    if {*measures} <= {*measured(table)}:
        return table
    return with_columns(table, holes(retrieved.rankings, qrels, result)[1])


def compare(
    args: argparse.Namespace, names: Sequence[str], tables: Sequence[pa.Table], measures: Sequence[str]
) -> dict[str, Any]:
    """Compare systems by their tables from :func:`baselines.measure.measures.measure_run`, with the same queries.

    Holm's correction is over all pairs of systems under one measure. The difference of a pair is significant if the
    corrected p-value of ``--test`` is at most ``--alpha``. docs/compare.md describes the result. All figures are
    fractions. Raises :class:`InputError` for fewer than two queries, or an unknown measure.
    """
    if len(tables[0]) < 2:
        raise InputError("expected at least two queries with a positive passage, found one")
    pairs, smallest = len(tables) * (len(tables) - 1) // 2, 2 / (args.resamples + 1)
    if args.test == "randomisation" and pairs * smallest > args.alpha:
        log.warning(
            "no difference can be significant: with %d resamples, the smallest p-value is %.2g, and %.2g after the "
            "correction over %d pairs; raise --resamples",
            args.resamples, smallest, pairs * smallest, pairs,
        )  # fmt: skip
    systems = dict(zip(LABELS, tables, strict=False))
    values = {name: {label: values_of(table, name) for label, table in systems.items()} for name in measures}
    compared = {name: _compared(found, args) for name, found in values.items()}
    if args.by:
        members = groups_of(args, tables[0]["query_id"].to_pylist())
        for name, found in compared.items():
            found["by"] = _by_group(values[name], found["pairs"], members, args)
    texts: dict[str, str] = {}  # empty without --release, because a file of judgments has no texts
    if args.changed and args.release:
        texts = dict(read_queries(open_release(args.release), args.split, args.queries or SETS[args.set].queries))
    return {
        "queries": len(tables[0]),
        "pairs": pairs,
        **{name: getattr(args, name) for name in ("test", "alpha", "power", "resamples", "seed")},
        "systems": [
            {
                "label": label,
                "name": name,
                "run": table["run"][0].as_py(),
                "means": {measure: mean(found[label].tolist()) for measure, found in values.items()},
            }
            for name, (label, table) in zip(names, systems.items(), strict=True)
        ],
        "measures": compared,
        "changed": [
            _changed_most(row["better"], row["worse"], systems, values[measures[0]], texts, args.changed)
            for row in compared[measures[0]]["pairs"]
            if args.changed
        ],
    }


def _compared(values: Mapping[str, Values], args: argparse.Namespace) -> dict[str, Any]:
    """Compare all pairs under one measure. In a pair, the better system comes first."""
    ordered = sorted(values, key=lambda label: -mean(values[label].tolist()))  # the sort is stable
    test = {"level": 1 - args.alpha, "resamples": args.resamples, "seed": args.seed}
    rows = [
        {"better": better, "worse": worse, **paired(values[better], values[worse], **test)}
        for better, worse in combinations(ordered, 2)
    ]
    _correct(rows)
    queries, levels = len(values[ordered[0]]), {"alone": args.alpha, "corrected": args.alpha / len(rows)}
    for row in rows:
        row["told_apart"] = row[args.test]["corrected"] <= args.alpha
        # Without a deviation of the differences, no detectable difference can be estimated.
        row["detectable"] = {
            name: detectable(row["deviation"], queries, alpha=alpha, power=args.power) if row["deviation"] else None
            for name, alpha in levels.items()
        }
    apart = [(row["better"], row["worse"]) for row in rows if row["told_apart"]]
    return {
        "pairs": rows,
        "better_than": {
            label: "".join(sorted(worse for better, worse in apart if better == label)) for label in values
        },
        "groups": groups(ordered, apart),
        "detectable": {name: _spread([row["detectable"][name] for row in rows]) for name in levels},
    }


def _by_group(
    values: Mapping[str, Values], pairs: Sequence[Mapping[str, Any]], groups: Groups, args: argparse.Namespace
) -> list[dict[str, Any]]:
    """Compare the pairs in each group of at least two queries. Holm's correction is over all pairs in all groups."""
    test = {"level": 1 - args.alpha, "resamples": args.resamples, "seed": args.seed}
    rows = [
        {
            **{"group": group, "queries": len(members), "better": pair["better"], "worse": pair["worse"]},
            **paired(values[pair["better"]][members], values[pair["worse"]][members], **test),
        }
        for group, members in groups.items()
        for pair in pairs
        if len(members) > 1
    ]
    _correct(rows)
    return rows


def _correct(rows: Sequence[dict[str, Any]]) -> None:
    for name in TESTS:
        for row, corrected in zip(rows, holm([row[name]["p"] for row in rows]), strict=True):
            row[name]["corrected"] = corrected


def _spread(found: Sequence[float | None]) -> dict[str, float] | None:
    known = [value for value in found if value is not None]
    return {"lowest": min(known), "median": median(known), "highest": max(known)} if known else None


def _changed_most(
    better: str,
    worse: str,
    tables: Mapping[str, pa.Table],
    values: Mapping[str, Values],
    texts: Mapping[str, str],
    most: int,
) -> dict[str, Any]:
    """Return up to ``most`` changed queries of a pair, the largest absolute change first.

    Equal changes are sorted by the change of the first positive passage's rank, then by the reference's order.
    ``tables`` and ``values`` are by system. Each query has ``query_id``, ``text`` (None if ``texts`` lacks the query),
    and ``difference`` (a fraction, above 0 if the better system is better on this query). ``rank`` and
    ``rank_of_worse`` are the first positive's ranks under the two systems (None if a list has no positive).
    """
    ids = tables[better]["query_id"].to_pylist()
    ranks, ranks_of_worse = (tables[label]["first_positive_rank"].to_pylist() for label in (better, worse))
    differences = (values[better] - values[worse]).tolist()
    found = [
        {"query_id": id_, "text": texts.get(id_), "difference": difference, "rank": rank, "rank_of_worse": other}
        for id_, difference, rank, other in zip(ids, differences, ranks, ranks_of_worse, strict=True)
        if difference
    ]

    def size(query: dict[str, Any]) -> tuple[float, int]:
        last = LIST_DEPTH + 1
        rank, other = (min(query[key] or last, last) for key in ("rank", "rank_of_worse"))
        return -abs(query["difference"]), -abs(rank - other)

    return {"better": better, "worse": worse, "queries": sorted(found, key=size)[:most]}
