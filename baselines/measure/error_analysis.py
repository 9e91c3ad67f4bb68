"""Analyse the errors of a run as the paper does (Table 10).

A query fails if no positive passage is in its top 5. The verb draws 100 failed queries. All five passages of a failed
query are errors. People assign each error to a category of Section 3.5: entity, numeral, modifier or syntactic
mismatch, typos, mere overlap of terms, false negative, or other.

With RUN, the verb prints the number of failed queries. --round also writes the errors as a round for `annotate` (Label
Studio or sheets, prefill, review, quality control). --tally ROUND prints the share of each category in people's answers
next to Table 10. With --model NAME, the answers of this model are counted instead (`annotate prefill`).

example:
  python -m baselines errors --release build/sample --split dev --round build/errors build/runs/bm25.dev.run.gz
  python -m builders annotate import --round build/errors --annotator anna@example.com dev-001.csv
  python -m baselines errors --tally build/errors
"""

from __future__ import annotations

import argparse
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

from builders.core.command import add_format, whole_number
from builders.core.errors import InputError, log
from builders.core.tables import percent, print_result, text_table
from builders.store.layout import SETS, SPLITS

if TYPE_CHECKING:
    from builders.annotate.rounds import Pair
    from builders.store.reader import Release
    from builders.store.runs import Run

QUERIES, DEPTH = 100, 5  # Section 3.5


def add_arguments(parser: argparse.ArgumentParser) -> None:
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("run", type=Path, nargs="?", metavar="RUN", help="TREC run or official predictions (JSON)")
    what.add_argument("--tally", type=Path, metavar="ROUND", help="count the answers of a round of errors")
    parser.add_argument("--release", type=Path, metavar="DIR", help="release that the run searched")
    parser.add_argument("--split", choices=SPLITS, default="dev", help="split of the queries (default: dev)")
    parser.add_argument(
        "--sample", type=whole_number(1), default=QUERIES, metavar="N", help=f"draw N queries (default: {QUERIES})"
    )
    parser.add_argument(
        "--top-k", type=whole_number(1), default=DEPTH, metavar="K", help=f"passages per query (default: {DEPTH})"
    )
    parser.add_argument("--seed", type=int, default=0, help="seed of the draw (default: 0)")
    parser.add_argument("--round", type=Path, metavar="ROUND", help="write the pairs as a round for `annotate`")
    parser.add_argument("--model", metavar="NAME", help="with --tally: count the answers of this model")
    add_format(parser)
    parser.set_defaults(usage_error=parser.error)


def run(args: argparse.Namespace) -> None:
    if args.run and not args.release:
        args.usage_error("RUN needs --release DIR")
    if (args.round and args.tally) or (args.model and args.run):
        args.usage_error("--round needs RUN, and --model needs --tally")
    if args.tally:
        found = tally(args.tally, args.model)
        print_result(found, _tally_text(found), args.format)
    else:
        _draw(args)


def _draw(args: argparse.Namespace) -> None:
    from builders.annotate.rounds import ERRORS, Rule
    from builders.annotate.tasks import expect_new, make_round
    from builders.store.reader import open_release
    from builders.store.runs import read_run

    if args.round:
        expect_new(args.round)
    release = open_release(args.release)
    pairs, measured, failed = draw_errors(release, args.split, read_run(args.run), args.sample, args.top_k, args.seed)
    counts = {
        **{"run": str(args.run), "top_k": args.top_k, "measured": measured, "failed": failed},
        **{"queries": len({query for query, _ in pairs}), "pairs": len(pairs)},
    }
    text = (
        f"{args.run}: {failed:,} of {measured:,} queries have no positive in their top {args.top_k};"
        f" drawn: {counts['queries']:,} queries, {len(pairs):,} pairs"
    )
    if args.round:
        packages = make_round(args.round, release, args.split, pairs, args.run, Rule(seed=args.seed), question=ERRORS)
        log.info("%d packages; import them into Label Studio, or fill in %s", packages, args.round / "packages")
        text += f"\n{len(pairs):,} pairs to judge: {args.round}"
    print_result(counts, text, args.format)


def draw_errors(
    release: Release, split: str, run: Run, queries: int, top_k: int, seed: int
) -> tuple[list[Pair], int, int]:
    """Draw ``queries`` failed queries: queries without a positive among their first ``top_k`` passages.

    Returns:
        (errors, number of the run's queries that have judged positives, number of failed queries). The errors are
        (query, passage) pairs of the drawn queries, in the order of the release's queries, then by passage id.

    Raises:
        InputError: the split has no judgments, no query failed, or the release lacks a passage of the run.
    """
    from baselines.measure.qrels import read_queries, release_qrels
    from builders.core.sampling import draw

    positives, rankings = release_qrels(release, split).positives, run.rankings
    measured = {
        query: list(dict.fromkeys(rankings[query]))[:top_k]
        for query, _ in read_queries(release, split)
        if query in positives and rankings.get(query)
    }
    failed = {query: passages for query, passages in measured.items() if not positives[query].keys() & set(passages)}
    if not failed:
        raise InputError(f"every query of {release.path} {split} has a positive in its top {top_k}", path=run.path)
    chosen = draw(failed, queries, seed)
    if len(chosen) < queries:
        log.warning("only %d queries have no positive in their top %d; all are used", len(chosen), top_k)
    pairs = [(query, passage) for query in failed if query in chosen for passage in sorted(failed[query])]
    known = release.texts(SETS["main"].corpus, "corpus", {passage for _, passage in pairs})
    if unknown := [passage for _, passage in pairs if passage not in known]:
        raise InputError(f"has a passage {unknown[0]!r} that the release's corpus lacks", path=run.path)
    return pairs, len(measured), len(failed)


def tally(round_: Path, model: str | None = None) -> dict[str, Any]:
    """Count the pairs of a round by category, as JSON values.

    The category of a pair is the adjudicator's answer or, without an adjudicator, the answer of most annotators. A tie
    is undecided. All packages count. ``accepted`` is the number of accepted packages. With ``model``, only the last
    answers of this model count.

    ``categories`` has four entries per category: the number of pairs, their share of the decided pairs (0 to 1), the
    share's 95 % interval over queries, and the paper's share. Raises :class:`InputError` if the directory is not a
    round of errors, or the round has no answers.
    """
    from builders.annotate.prefill import grades_by
    from builders.annotate.rounds import ERRORS, open_round, standings
    from builders.store.published import published

    found = open_round(round_, ERRORS.name)
    every = standings(round_, found)
    pairs = sum(len(standing.pairs) for standing in every)
    if model:
        labels = {pair: label for (_, pair), label in grades_by(round_, model).items()}
        judged, step = len(labels), "prefill"
    else:
        decided = ((pair, standing.label(pair)) for standing in every for pair in standing.pairs)
        labels = {pair: label for pair, label in decided if label is not None}
        judged, step = pairs - sum(len(standing.missing) for standing in every), "import"
    if not labels:
        raise InputError(f"has no answers of {model or 'annotators'}; add some by `annotate {step}`", path=round_)
    counts, rows = Counter(labels.values()), {}
    for choice, (low, high) in zip(ERRORS.choices, _intervals(labels), strict=True):
        number = counts[choice.label]
        rows[choice.key] = {
            **{"pairs": number, "share": number / len(labels), "low": low, "high": high},
            "paper": published()["table10"][choice.key],
        }
    return {
        **{"release": found.release, "split": found.split, "pairs": pairs, "judged": judged},
        **{"decided": len(labels), "queries": len({query for query, _ in labels}), "packages": len(every)},
        "accepted": sum(standing.package.state == "accepted" for standing in every),
        "categories": rows,
        **({"model": model} if model else {}),
    }


def _intervals(labels: dict[Pair, int]) -> list[tuple[float, float]]:
    """Return the interval of each category's share. Queries are resampled: passages of a query have similar errors."""
    import numpy as np

    from baselines.measure.significance import of_means
    from builders.annotate.rounds import ERRORS

    queries = {query: place for place, query in enumerate(dict.fromkeys(query for query, _ in labels))}
    places = {choice.label: place for place, choice in enumerate(ERRORS.choices)}
    table = np.zeros((len(queries), len(places)))
    for (query, _), label in labels.items():
        table[queries[query], places[label]] += len(queries) / len(labels)  # the mean over queries is the share
    return of_means(table)


def _tally_text(found: dict[str, Any]) -> str:
    rows = []
    for key, row in found["categories"].items():
        # A category without pairs would always have the interval 0 to 0, so no interval is printed.
        interval = f"{percent(row['low'])} to {percent(row['high'])}" if row["pairs"] else "-"
        shares = [percent(row["share"]), interval, percent(row["paper"])]
        rows.append([key.replace("_", " "), f"{row['pairs']:,}", *shares])
    by = f" by {found['model']} (a model)" if "model" in found else ""
    return (
        f"{found['judged']:,} of {found['pairs']:,} pairs judged{by},"
        f" {found['judged'] - found['decided']:,} of them undecided;"
        f" {found['accepted']} of {found['packages']} packages accepted; percent\n\n"
        + text_table(["category", "pairs", "share", "95 % interval", "Table 10"], rows)
    )
