"""Measure runs by the official measures and by usual measures.

A run is a TREC run (gzipped or not) or the official JSON of predictions. The reference is a split of a release, or a
file: TREC qrels, BEIR's TSV, or an official dev.json. The first table has the four keys of the official script.
recall@k is a hit rate: the share of queries with a positive in the top k. The second table has the usual measures under
ir-measures' names. R@k is the share of all positives in the top k. Figures are percent in text and fractions in JSON.

--queries measures only the questions that are similar to a removed training question, or only the other questions
(Section 2.3, Table 6). --qrels-config qrels-before uses the judgments before people corrected them (Figure 2). For a
config of `add resttest` (resttest-bucketN), --split interpolation or extrapolation selects the test questions.

--holes reports the effect of passages that nobody judged: Judged@10, bpref, the measures without these passages, and
the highest values that the measures could reach if these passages were judged. --duplicates counts near-duplicates
(texts that share --jaccard of their n-grams) as one passage. A copy of a positive is a positive. A later copy is
removed or is a miss.

--by measures groups of queries: by the type of the question, by fact or opinion, by the service where the question was
asked, or by length. --answers reports how often a passage of the top k contains an answer of people, whether or not the
passage was judged. A passage contains an answer if a span reaches --threshold of span-F1, or if the text contains an
entity of the answer. For several runs, Kendall's tau compares the order of the runs by answers with their order by
judgments. --answers needs the config answers, but no judgments.

examples:

  python -m baselines evaluate --release build/sample --split dev build/runs/bm25.dev.run.gz --per-query bm25.parquet
  python -m baselines evaluate --release DIR --split dev --queries duplicated RUN
  python -m baselines evaluate --release DIR --split dev --qrels-config qrels-before RUN
  python -m baselines evaluate --release DIR --split dev --holes RUN RUN
  python -m baselines evaluate --release DIR --split dev --duplicates removed RUN
  python -m baselines evaluate --release DIR --split dev --by question_type --answers RUN RUN
"""

import argparse
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from baselines.measure import holes, measures
from baselines.measure.answer_recall import Ranks, agreement, answer_recall, first_answers, rank_columns
from baselines.measure.answer_recall import text as answers_text
from baselines.measure.groups import add_by, groups_of, measure_groups
from baselines.measure.groups import text as groups_text
from baselines.measure.qrels import Qrels, add_reference, read_queries, reference_qrels
from builders.core.command import add_format
from builders.core.errors import InputError
from builders.core.files import atomic_text, new_file
from builders.core.tables import percent, print_result, text_table
from builders.store.layout import SETS
from builders.store.reader import open_release
from builders.store.runs import Run, read_run
from builders.store.stored_answers import read_answers
from builders.text.likeness import add_ngrams
from builders.text.span_options import Options, add_rule


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
    add_by(parser, "also measure the queries")
    parser.add_argument("--answers", action="store_true", help="also report the passages that contain people's answers")
    add_rule(parser)
    parser.add_argument("--per-query", type=Path, metavar="FILE.parquet", help="write the values of every query")
    add_format(parser)
    parser.add_argument("runs", type=Path, nargs="+", metavar="RUN", help="TREC run or official predictions (JSON)")


def run(args: argparse.Namespace) -> None:
    if args.list and not args.duplicates:
        raise InputError("--list writes the near-duplicates of --duplicates; add --duplicates")
    if args.duplicates and not args.release:
        raise InputError("--duplicates compares the texts of a release; expected --release DIR")
    runs = [read_run(path) for path in args.runs]
    ranks = _first_answers(args, runs) if args.answers else []
    if args.answers and (SETS[args.set].qrels, args.split) not in open_release(args.release).splits():
        found = [{"run": str(run.path), "answers": answer_recall(own)} for run, own in zip(runs, ranks, strict=True)]
        print_result(found, answers_text(found), args.format)
        return
    qrels = reference_qrels(args)
    groups = groups_of(args, list(qrels.positives)) if args.by else {}
    results, tables, listed = [], [], list[dict[str, Any]]()
    for number, retrieved in enumerate(runs):
        result, table = measures.measure_run(retrieved, qrels)
        if args.by:
            result["by"] = measure_groups(table, groups)
        if args.answers:
            result["answers"] = answer_recall(ranks[number])
            for name, values in rank_columns(ranks[number], list(qrels.positives)).items():
                table = table.append_column(name, values)
        if args.holes:
            result["holes"], by_query = holes.holes(retrieved.rankings, qrels, result)
            table = measures.with_columns(table, by_query)
        if args.duplicates:
            from baselines.measure import duplicates

            copies = duplicates.find(
                retrieved, qrels, open_release(args.release), SETS[args.set].corpus, args.ngram, args.jaccard
            )
            listed += duplicates.pairs(retrieved, qrels, copies)
            result["duplicates"], by_query = duplicates.duplicates(retrieved, qrels, copies, args.duplicates)
            table = measures.with_columns(table, by_query)
        results.append(result)
        tables.append(table)
    if args.answers and (agreed := agreement(tables, ranks)):
        for result in results:
            result["answers"]["agreement"] = agreed
    if args.per_query:
        with new_file(args.per_query) as beside:
            pq.write_table(pa.concat_tables(tables), beside, compression="zstd")
    if args.list:
        with atomic_text(args.list) as file:
            file.writelines(json.dumps(pair, ensure_ascii=False) + "\n" for pair in listed)
    print(json.dumps(results, ensure_ascii=False, indent=1) if args.format == "json" else _text(results, qrels))


def _first_answers(args: argparse.Namespace, runs: Sequence[Run]) -> list[Ranks]:
    if not args.release:
        raise InputError("--answers reads the answers and texts of a release; expected --release DIR")
    release, rule = open_release(args.release), Options(args.unit, args.threshold, segmenter=args.segmenter)
    asked = read_answers(release, args.set, args.split)
    if args.queries:
        asked = {query: asked[query] for query, _ in read_queries(release, args.split, args.queries) if query in asked}
    return first_answers(runs, asked, release, SETS[args.set].corpus, rule)


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
    if "by" in results[0]:
        parts.append(groups_text(results))
    if "answers" in results[0]:
        parts.append(answers_text(results))
    if "holes" in results[0]:
        parts.append(holes.text(results, qrels))
    if "duplicates" in results[0]:
        from baselines.measure import duplicates

        parts.append(duplicates.text(results, qrels))
    return "\n\n".join(parts)
