"""Compare runs: paired tests, groups, what changed, in tables.

Every pair of runs on the same queries: Student's paired t-test and Fisher's randomisation test with Holm's correction
over all pairs, the interval of the difference, win / tie / loss, and the queries that changed most. Of all runs:
superscripts that say who is significantly better than whom, the groups that cannot be told apart, and the smallest
difference that these queries could show. Runs and reference are those of `evaluate`; a query that a run lacks counts 0.

Percent in text, Markdown and LaTeX (the table for a paper), fractions in JSON.

examples:

  python -m baselines compare --release DIR --split dev bm25.dev.run.gz de.dev.run.gz ce.dev.run.gz
  python -m baselines compare --qrels qrels.trec --measure nDCG@10 --test randomisation A.run B.run --format json
  python -m baselines compare --release DIR --name BM25 --name "DE w/ BM25 Neg" bm25.run de.run --format latex
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from pathlib import Path

import pyarrow as pa

from baselines.runs.qrels import Qrels
from baselines.runs.reference import add_reference, reference_qrels, reference_texts
from builders.core.command import number_between, whole_number
from builders.core.errors import InputError

FORMATS = ("text", "json", "markdown", "latex")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_reference(parser)
    parser.add_argument(
        "--measure",
        action="append",
        metavar="NAME",
        help="a measure, once for each: MRR@10, recall@1, recall@50 (these are the default), or a column of `evaluate "
        "--per-query` with or without --holes: nDCG@10, Bpref ... The queries that changed most are those of the first",
    )
    parser.add_argument(
        "--name", action="append", metavar="TEXT", help="a run's name in the tables, once for each (its path)"
    )
    parser.add_argument(
        "--test",
        choices=["t", "randomisation"],
        default="t",
        help="which test decides on superscripts and groups (default: t)",
    )
    parser.add_argument(
        "--alpha",
        type=number_between(0.0001, 0.5),
        default=0.05,
        metavar="P",
        help="level of the tests (default: 0.05)",
    )
    parser.add_argument(
        "--power",
        type=number_between(0.5, 0.99),
        default=0.8,
        metavar="P",
        help="probability that the smallest difference is found with (default: 0.8)",
    )
    parser.add_argument(
        "--resamples", type=whole_number(99), default=9_999, metavar="N", help="of the randomisation test (9,999)"
    )
    parser.add_argument("--seed", type=whole_number(0), default=0, metavar="N", help="of its draws (default: 0)")
    parser.add_argument(
        "--changed", type=whole_number(0), default=3, metavar="N", help="queries shown that changed most, a pair (3)"
    )
    parser.add_argument("--format", choices=FORMATS, default="text", help="how the comparison is printed")
    parser.add_argument("runs", type=Path, nargs="+", metavar="RUN", help="TREC run or official predictions (JSON)")


def run(args: argparse.Namespace) -> None:
    from baselines.compare.comparison import LABELS, MEASURES, Options, compare
    from baselines.compare.latex import as_latex
    from baselines.compare.markdown import as_markdown
    from baselines.compare.text import as_text

    names = args.name or [str(path) for path in args.runs]
    if len(names) != len(args.runs):
        raise InputError(f"expected a --name for each of {len(args.runs)} runs, found {len(names)}")
    if not 2 <= len(args.runs) <= len(LABELS):
        raise InputError(f"expected 2 to {len(LABELS)} runs, found {len(args.runs)}")
    qrels = reference_qrels(args)
    measures = tuple(dict.fromkeys(args.measure or MEASURES))
    tables = [_table(path, qrels, measures) for path in args.runs]
    options = Options(
        measures=measures,
        test=args.test,
        alpha=args.alpha,
        power=args.power,
        resamples=args.resamples,
        seed=args.seed,
        changed=args.changed,
    )
    result = {"reference": qrels.name, **compare(names, tables, reference_texts(args), options)}
    shown = {"text": as_text, "markdown": as_markdown, "latex": as_latex}
    print(json.dumps(result, ensure_ascii=False, indent=1) if args.format == "json" else shown[args.format](result))


def _table(path: Path, qrels: Qrels, measures: Sequence[str]) -> pa.Table:
    """A run's values by query; with those of its holes, where one of the measures is among them."""
    from baselines.runs.evaluate import evaluate, with_columns
    from baselines.runs.holes import holes
    from baselines.runs.values import measured
    from builders.store.runs import read_run

    retrieved = read_run(path)
    result, table = evaluate(retrieved, qrels)
    if {*measures} <= {*measured(table)}:
        return table
    return with_columns(table, holes(retrieved.rankings, qrels, result)[1])
