"""How far a model's judgments (`annotate prefill`) agree with people's.

Counted are the pairs that both have judged; people's label is the adjudicator's, or that of most annotators. Printed:
how often people found the pairs of each grade relevant, Cohen's kappa (grades 2 and 3 count as relevant), and, with
--runs, MRR@10 of each run under people's and under the model's judgments of these pairs, with Kendall's tau of the two
orders: 1 where a model would have put the systems into the order into which people put them.
"""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from builders.core.command import add_format
from builders.core.errors import InputError
from builders.pool import add_names, check_names

if TYPE_CHECKING:
    from builders.annotate.judgments import Pair
    from builders.store.runs import Run

_DEPTH = 10  # of MRR, the benchmark's measure (Section 3.2)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--model", required=True, metavar="NAME", help="whose judgments")
    parser.add_argument("--runs", type=Path, nargs="+", default=[], metavar="RUN", help="systems to put into order")
    add_names(parser)
    parser.add_argument("--rerankers", nargs="+", default=[], metavar="NAME", help="the models that ranked the pool")
    add_format(parser)
    parser.set_defaults(usage_error=parser.error)


def run(args: argparse.Namespace) -> None:
    check_names(args, args.runs)
    from builders.annotate.families import warn_of_kin
    from builders.annotate.labels import standings
    from builders.annotate.rounds import open_round
    from builders.annotate.umbrela import RELEVANT
    from builders.pool.union import open_runs

    grades = grades_by(args.round, args.model)
    people: dict[Pair, int] = {}
    model: dict[Pair, int] = {}
    for standing in standings(args.round, open_round(args.round, "relevance")):
        for pair in standing.pairs:
            label, grade = standing.label(pair), grades.get((standing.package.name, pair))
            if label is not None and grade is not None:
                people[pair], model[pair] = label, grade
    if not people:
        raise InputError(f"has no pair that people and {args.model} have judged; `annotate prefill`", path=args.round)
    runs, names = open_runs(args.runs, args.names) if args.runs else ([], [])
    kin = warn_of_kin(args.model, [*args.rerankers, *names])
    found = compared(people, model, RELEVANT) | {"model": args.model, "same_family": kin}
    if runs:
        found |= _order(names, runs, people, {pair: int(grade >= RELEVANT) for pair, grade in model.items()})
    print(json.dumps(found, ensure_ascii=False, indent=1) if args.format == "json" else _text(found))


def grades_by(round_: Path, model: str) -> dict[tuple[str, Pair], int]:
    """By package and pair: the last grade that a model gave, whatever the package's version was."""
    from builders.annotate.judgments import read_judgments

    judged = (each for each in read_judgments(round_) if each.kind == "model" and each.model == model)
    return {(each.package, each.pair): each.label for each in judged}


def compared(people: Mapping[Pair, int], model: Mapping[Pair, int], relevant: int) -> dict[str, Any]:
    """What both say of the same pairs: ``pairs``, Cohen's ``kappa``, and by grade how people judged the pairs."""
    from builders.annotate.agreement import cohen

    grades = [{"grade": grade, "irrelevant": 0, "relevant": 0} for grade in range(4)]
    for pair, label in people.items():
        grades[model[pair]]["relevant" if label else "irrelevant"] += 1
    kappa = cohen(list(people.values()), [int(model[pair] >= relevant) for pair in people])
    return {"pairs": len(people), "kappa": kappa, "grades": grades}


def _order(
    names: Sequence[str], runs: Sequence[Run], people: Mapping[Pair, int], model: Mapping[Pair, int]
) -> dict[str, Any]:
    """MRR@10 of each run under both, and Kendall's tau of the two orders."""
    rows: list[dict[str, Any]] = [
        {"run": name, "people": mrr(each, people), "model": mrr(each, model)}
        for name, each in zip(names, runs, strict=True)
    ]
    return {"runs": rows, "tau": kendall_tau([row["people"] for row in rows], [row["model"] for row in rows])}


def kendall_tau(first: Sequence[float], second: Sequence[float]) -> float | None:
    """Kendall's tau (b) of two orders of the same systems, given by their values; None where a list is all ties."""
    from scipy.stats import kendalltau

    tau = float(kendalltau(first, second).statistic)
    return None if math.isnan(tau) else tau


def mrr(run: Run, labels: Mapping[Pair, int]) -> float:
    """MRR@10 under the labels of judged pairs, of the queries that have a positive among them (0 where none has)."""
    positives: dict[str, set[str]] = {}
    for (query, passage), label in labels.items():
        if label:
            positives.setdefault(query, set()).add(passage)
    found = 0.0
    for query, good in positives.items():
        ranking = [passage for passage, _ in run.hits.get(query, [])[:_DEPTH]]
        found += next((1 / rank for rank, passage in enumerate(ranking, 1) if passage in good), 0.0)
    return found / max(1, len(positives))


def _text(found: dict[str, Any]) -> str:
    kappa = "-" if found["kappa"] is None else f"{found['kappa']:.3f}"
    lines = [f"{found['model']} (a model) and people, {found['pairs']:,} pairs: Cohen's kappa {kappa}"]
    for row in reversed(found["grades"]):
        lines.append(f"grade {row['grade']}: people found {row['relevant']:,} relevant, {row['irrelevant']:,} not")
    if "runs" in found:
        lines += ["", f"{'MRR@10':<24}{'people':>10}{'model':>10}"]
        lines += [f"{row['run']:<24}{row['people']:>10.4f}{row['model']:>10.4f}" for row in found["runs"]]
        lines.append("Kendall's tau of the two orders: " + ("-" if found["tau"] is None else f"{found['tau']:.3f}"))
    return "\n".join(lines)
