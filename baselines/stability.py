"""Delete judgments and see whether the order of systems stays.

A benchmark whose judgments have holes should put systems into the order in which all judgments would put them. Here
judgments are deleted at random, more and more of them (in one trial what is deleted stays deleted), and the systems are
measured again by what is left. Printed: Kendall's tau (b) of that order with the order by all judgments, how often the
best system stays the best, and how the measures move. A query without a positive left is left out, as in `evaluate`;
with --every-query one positive of each stays.

Qrels without negatives have nothing that Bpref and condensed lists ("judged_only") could use: --pool K takes the first
K of every run for judged, as a pool of that depth would have them, and what is no positive there for a negative.

Example:

  python -m baselines stability --release DIR --split dev --pool 10 bm25.dev.run.gz de.dev.run.gz ce.dev.run.gz
"""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from baselines.measure import measures
from baselines.measure.evaluate import expect_queries
from baselines.measure.holes import OFFICIAL, condensed, condensed_name
from baselines.measure.measures import IR_MEASURES, Rankings
from baselines.measure.qrels import Qrels, add_set, read_qrels, release_qrels
from builders.common.command import add_format, number_between, progress, whole_number
from builders.common.tables import percent, text_table
from builders.pool.union import open_runs
from builders.store.reader import open_release

_CONDENSED = condensed_name("RR@10")  # ir-measures has it without a cutoff alone
MEASURES = (*OFFICIAL, *IR_MEASURES, "Bpref", _CONDENSED, *map(condensed_name, IR_MEASURES))
SHOWN = ("MRR@10", "recall@50", "nDCG@10", "Bpref", _CONDENSED)
SHARES = (0.9, 0.7, 0.5, 0.3, 0.1)


class Judgment(NamedTuple):
    """What is deleted: a pair and its grade, 0 for a negative."""

    query: str
    passage: str
    grade: int


class Values(NamedTuple):
    """``means``: by measure, the mean of each system over the ``queries`` that have a positive."""

    queries: int
    means: dict[str, list[float]]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    reference = parser.add_mutually_exclusive_group(required=True)
    reference.add_argument("--release", type=Path, metavar="DIR", help="the release whose judgments are deleted")
    reference.add_argument("--qrels", type=Path, metavar="FILE", help="TREC qrels, BEIR's TSV or an official dev.json")
    parser.add_argument("--split", default="dev", help="the release's split (default: dev)")
    add_set(parser)
    parser.add_argument("--pool", type=whole_number(1), metavar="K", help="the first K of every run are judged")
    parser.add_argument("--every-query", action="store_true", help="leave each query one positive")
    parser.add_argument(
        "--keep", type=number_between(0, 1), nargs="+", default=SHARES, metavar="X", help="shares that are left"
    )
    parser.add_argument("--trials", type=whole_number(1), default=50, metavar="N", help="times of deleting (50)")
    parser.add_argument("--seed", type=whole_number(0), default=0, help="of the draws (0)")
    parser.add_argument(
        "--measures",
        nargs="+",
        choices=MEASURES,
        default=SHOWN,
        metavar="NAME",
        help=f"measures as `evaluate --holes` names them (default: {' '.join(SHOWN)})",
    )
    parser.add_argument("--names", nargs="+", metavar="NAME", help="of the runs (default: their files' to the first .)")
    add_format(parser)
    parser.add_argument("runs", type=Path, nargs="+", metavar="RUN", help="TREC runs or predictions, at least two")
    parser.set_defaults(usage_error=parser.error)


def run(args: argparse.Namespace) -> None:
    if len(args.runs) < 2:
        args.usage_error("expected at least two runs: one system has no order")
    if args.names and len(args.names) != len(args.runs):
        args.usage_error(f"--names: expected {len(args.runs)}, one a run, found {len(args.names)}")
    qrels = release_qrels(open_release(args.release), args.split, args.set) if args.release else read_qrels(args.qrels)
    runs, names = open_runs(args.runs, args.names)
    for each in runs:
        expect_queries(each, qrels)
    systems = {name: each.rankings for name, each in zip(names, runs, strict=True)}
    judgments = judgments_of(qrels, systems.values(), args.pool or 0)
    found = {
        "reference": qrels.name,
        "options": {name: getattr(args, name) for name in ("pool", "every_query", "trials", "seed")},
        **stability(systems, judgments, args),
    }
    print(json.dumps(found, ensure_ascii=False, indent=1) if args.format == "json" else _text(found))


def judgments_of(qrels: Qrels, systems: Iterable[Rankings], pool: int) -> list[Judgment]:
    """Every judgment of the reference, and with a ``pool`` the unjudged among the first ``pool`` of each list as 0."""
    judged = qrels.judged()
    for rankings in systems:
        for query, known in judged.items():
            for passage in rankings.get(query, ())[:pool]:
                known.setdefault(passage, 0)
    return [Judgment(query, passage, grade) for query, known in judged.items() for passage, grade in known.items()]


def kept(judgments: Sequence[Judgment], order: Sequence[int], share: float, every_query: bool) -> list[Judgment]:
    """The share of the judgments that comes first in an order of deleting, where the last is deleted first.

    ``every_query``: and of each query its first positive, wherever it comes.
    """
    number = max(1, round(share * len(judgments)))
    left = [judgments[place] for place in order[:number]]
    if every_query:
        have = {each.query for each in left if each.grade}
        for each in (judgments[place] for place in order[number:]):
            if each.grade and each.query not in have:
                have.add(each.query)
                left.append(each)
    return left


def values(systems: Mapping[str, Rankings], judgments: Iterable[Judgment], names: Sequence[str]) -> Values | None:
    """By measure, each system's mean over the queries with a positive; None where no query has one."""
    qrels = Qrels("")
    for query, passage, grade in judgments:
        if grade:
            qrels.positives.setdefault(query, {})[passage] = grade
        else:
            qrels.negatives.setdefault(query, set()).add(passage)
    if not qrels.positives:
        return None
    judged, by_measure = qrels.judged(), {name: list[float]() for name in names}
    others = [name for name in names if name not in (*OFFICIAL, _CONDENSED)]
    for rankings in systems.values():
        means = dict(measures.official(rankings, qrels))
        if _CONDENSED in names:
            means[_CONDENSED] = measures.official(condensed(rankings, judged), qrels)["MRR@10"]
        if others:
            by_query = measures.per_query(rankings, qrels, others, judged)
            means |= {name: measures.mean(found) for name, found in by_query.items()}
        for name in names:
            by_measure[name].append(means[name])
    return Values(len(qrels.positives), by_measure)


def stability(
    systems: Mapping[str, Rankings], judgments: Sequence[Judgment], args: argparse.Namespace
) -> dict[str, Any]:
    """Delete judgments ``args.trials`` times; what the verb prints as JSON.

    ``judgments``, ``negatives`` (how many of them), ``queries``; ``systems``: by measure, by run, the mean by all
    judgments; ``kept``: for each share the numbers of ``judgments`` and ``queries`` (means over the trials) and by
    measure ``tau``, ``lowest`` (None where no trial has an order), ``best_stays`` (a share of the trials) and ``mean``
    (over systems and trials).
    """
    whole = values(systems, judgments, args.measures)
    assert whole, "a reference has positives"
    shares = sorted(set(args.keep), reverse=True)
    trials: dict[float, list[tuple[int, Values | None]]] = {share: [] for share in shares}
    for trial in progress(range(args.trials), unit="trial", label="delete"):
        order = np.random.default_rng([args.seed, trial]).permutation(len(judgments)).tolist()
        for share in shares:
            left = kept(judgments, order, share, args.every_query)
            trials[share].append((len(left), values(systems, left, args.measures)))
    return {
        "judgments": len(judgments),
        "negatives": sum(not each.grade for each in judgments),
        "queries": whole.queries,
        "systems": {name: dict(zip(systems, whole.means[name], strict=True)) for name in args.measures},
        "kept": [{"share": share, **_moved(whole, found)} for share, found in trials.items()],
    }


def _moved(whole: Values, trials: Sequence[tuple[int, Values | None]]) -> dict[str, Any]:
    found = [values for _, values in trials if values]
    return {
        "judgments": sum(number for number, _ in trials) / len(trials),
        "queries": sum(each.queries for each in found) / len(trials),
        "measures": {
            name: _of_measure(means, [each.means[name] for each in found]) for name, means in whole.means.items()
        },
    }


def _of_measure(whole: Sequence[float], trials: Sequence[Sequence[float]]) -> dict[str, float | None]:
    from scipy.stats import kendalltau

    taus = [float(kendalltau(whole, means).statistic) for means in trials]
    taus = [tau for tau in taus if not math.isnan(tau)]  # all systems are equal: there is no order
    best = whole.index(max(whole))
    return {
        "tau": measures.mean(taus) if taus else None,
        "lowest": min(taus, default=None),
        "best_stays": sum(means[best] == max(means) for means in trials) / len(trials) if trials else None,
        "mean": measures.mean([value for means in trials for value in means]) if trials else None,
    }


def _text(found: dict[str, Any]) -> str:
    names = list(found["systems"])
    runs = list(found["systems"][names[0]])
    systems = [[run, *(percent(found["systems"][name][run]) for name in names)] for run in runs]

    def table(cell: Callable[[dict[str, Any]], str]) -> str:
        rows = [
            [percent(each["share"]), f"{each['judgments']:,.0f}", f"{each['queries']:,.0f}"]
            + [cell(each["measures"][name]) for name in names]
            for each in found["kept"]
        ]
        return text_table(["% kept", "judgments", "queries", *names], rows)

    def number(value: float | None, places: int = 2) -> str:
        return "-" if value is None else f"{value:.{places}f}"

    return "\n".join(
        [
            f"reference: {found['reference']}, {found['queries']:,} queries, {found['judgments']:,} judgments, "
            f"{found['negatives']:,} of them negatives",
            "",
            "by all judgments, percent",
            text_table(["run", *names], systems),
            "",
            f"Kendall's tau with that order, mean of {found['options']['trials']} trials (lowest)",
            table(lambda each: f"{number(each['tau'])} ({number(each['lowest'])})"),
            "",
            "trials in which the best run stays the best, percent",
            table(lambda each: "-" if each["best_stays"] is None else percent(each["best_stays"])),
            "",
            "mean of all runs, percent",
            table(lambda each: "-" if each["mean"] is None else percent(each["mean"])),
        ]
    )
