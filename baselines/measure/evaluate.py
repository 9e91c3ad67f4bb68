"""Measure runs by the official measures and by usual measures.

A run is a TREC run (gzipped or not) or the official JSON of predictions. The reference is a split of a release, or a
file: TREC qrels, BEIR's TSV, or an official dev.json. The first table has the four keys of the official script.
recall@k is a hit rate: the share of queries with a positive in the top k. The second table has the usual measures under
ir-measures' names. R@k is the share of all positives in the top k. Figures are percent in text and fractions in JSON.
--queries measures only the questions that are similar to a removed training question, or only the other questions
(Section 2.3, Table 6). --qrels-config qrels-before uses the judgments before people corrected them (Figure 2).
--qrels-config resttest-bucketN with --split interpolation or extrapolation measures a bucket of `add resttest`.
--holes reports the effect of passages that nobody judged: Judged@10, bpref, the measures without these passages, and
the best measures that any labels of these passages give. --duplicates counts near-duplicates (texts that share
--jaccard of their n-grams) as one passage. A copy of a positive is a positive. A later copy is removed or is a miss.

examples:

  python -m baselines evaluate --release build/sample --split dev build/runs/bm25.dev.run.gz --per-query bm25.parquet
  python -m baselines evaluate --release DIR --split dev --queries duplicated RUN
  python -m baselines evaluate --release DIR --split dev --qrels-config qrels-before RUN
  python -m baselines evaluate --release DIR --split dev --holes RUN RUN
  python -m baselines evaluate --release DIR --split dev --duplicates removed RUN
"""

import argparse
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from baselines.measure import holes, measures
from baselines.measure.qrels import Qrels, add_reference, reference_qrels
from builders.core.command import add_format
from builders.core.errors import InputError, log
from builders.core.files import atomic_text, new_file
from builders.core.tables import percent, text_table
from builders.similar import add_ngrams
from builders.store.layout import SETS
from builders.store.reader import open_release
from builders.store.runs import Run, read_run


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_reference(parser)
    parser.add_argument("--holes", action="store_true", help="also report the effect of unjudged passages")
    parser.add_argument(
        "--duplicates",
        choices=["removed", "kept"],
        help="also count near-duplicates as one passage: later copies are removed from the list, or kept as misses",
    )
    add_ngrams(parser)
    parser.add_argument("--list", type=Path, metavar="FILE", help="write every pair of --duplicates, as JSON lines")
    parser.add_argument("--per-query", type=Path, metavar="FILE.parquet", help="write the values of every query")
    add_format(parser)
    parser.add_argument("runs", type=Path, nargs="+", metavar="RUN", help="TREC run or official predictions (JSON)")


def run(args: argparse.Namespace) -> None:
    if args.list and not args.duplicates:
        raise InputError("--list writes the near-duplicates of --duplicates; add --duplicates")
    if args.duplicates and not args.release:
        raise InputError("--duplicates compares the texts of a release; expected --release DIR")
    qrels = reference_qrels(args)
    results, tables, listed = [], [], list[dict[str, Any]]()
    for path in args.runs:
        retrieved = read_run(path)
        result, table = evaluate(retrieved, qrels)
        if args.holes:
            result["holes"], by_query = holes.holes(retrieved.rankings, qrels, result)
            table = with_columns(table, by_query)
        if args.duplicates:
            from baselines.measure import duplicates

            copies = duplicates.find(
                retrieved, qrels, open_release(args.release), SETS[args.set].corpus, args.ngram, args.jaccard
            )
            listed += duplicates.pairs(retrieved, qrels, copies)
            result["duplicates"], by_query = duplicates.duplicates(retrieved, qrels, copies, args.duplicates)
            table = with_columns(table, by_query)
        results.append(result)
        tables.append(table)
    if args.per_query:
        with new_file(args.per_query) as beside:
            pq.write_table(pa.concat_tables(tables), beside, compression="zstd")
    if args.list:
        with atomic_text(args.list) as file:
            file.writelines(json.dumps(pair, ensure_ascii=False) + "\n" for pair in listed)
    print(json.dumps(results, ensure_ascii=False, indent=1) if args.format == "json" else _text(results, qrels))


def evaluate(run: Run, qrels: Qrels) -> tuple[dict[str, Any], pa.Table]:
    """Measure one run. Returns (means, table of the values by query).

    The means have ``run`` (path), ``queries`` (number of reference queries, the denominator of every mean),
    ``official`` and ``ir_measures`` (see :mod:`baselines.measure.measures`). The table has one row per reference query,
    in the reference's order. Raises :class:`InputError` if run and reference share no query.
    """
    rankings = run.rankings
    missing = sum(query not in rankings for query in qrels.positives)
    if missing == len(qrels.positives):
        raise InputError(f"no matching query: the run has none of the {missing} queries of {qrels.name}", path=run.path)
    if missing:
        log.warning("%s: lacks %d of %d queries; they count as 0", run.path, missing, len(qrels.positives))
    if repeats := sum(len(set(ranking)) < len(ranking) for ranking in rankings.values()):
        log.warning("%s: %d queries list a passage more than once", run.path, repeats)
    means, by_query = measures.measure(rankings, qrels)
    columns = {
        "run": pa.array([str(run.path)] * len(qrels.positives), pa.string()),
        "query_id": pa.array(list(qrels.positives), pa.string()),
        **{name: pa.array(values, pa.float64()) for name, values in by_query.items()},
        "positives": pa.array([len(good) for good in qrels.positives.values()], pa.int64()),
        "first_positive_rank": pa.array(measures.first_ranks(rankings, qrels), pa.int64()),
    }
    return {"run": str(run.path), "queries": len(qrels.positives), **means}, pa.table(columns)


def with_columns(table: pa.Table, by_query: Mapping[str, Sequence[float]]) -> pa.Table:
    """Return the table of :func:`evaluate` with further columns, one value per query."""
    for name, values in by_query.items():
        table = table.append_column(name, pa.array(values, pa.float64()))
    return table


def _text(results: Sequence[dict[str, Any]], qrels: Qrels) -> str:
    official, others = [], []
    for result in results:
        values = result["official"]
        shown = [str(values[key]) if key == "QueriesRanked" else percent(values[key]) for key in measures.OFFICIAL]
        official.append([result["run"], *shown])
        others.append([result["run"], *(percent(result["ir_measures"][name]) for name in measures.IR_MEASURES)])
    parts = [
        f"reference: {qrels.name}, {len(qrels.positives)} queries with {qrels.pairs} positive passages",
        "official keys, percent (recall@k here is a hit rate: Success@k)\n"
        + text_table(["run", *measures.OFFICIAL], official),
        "ir-measures, percent (R@k is the share of the positives found)\n"
        + text_table(["run", *measures.IR_MEASURES], others),
    ]
    if "holes" in results[0]:
        parts.append(holes.text(results, qrels))
    if "duplicates" in results[0]:
        from baselines.measure import duplicates

        parts.append(duplicates.text(results, qrels))
    return "\n\n".join(parts)
