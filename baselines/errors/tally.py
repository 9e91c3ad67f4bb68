"""The answers of a round about errors, beside Table 10 of the paper and beside the rules."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np

from baselines.errors.sample import BY_RULES
from baselines.measure.significance import of_means
from builders.annotate.judgments import Pair, read_judgments
from builders.annotate.labels import standings
from builders.annotate.questions import ERRORS
from builders.annotate.rounds import open_round
from builders.common.command import InputError
from builders.common.tables import percent, text_table
from builders.stats.paper import published


def tally(round_: Path) -> dict[str, Any]:
    """How many pairs of a round fall into each category, as JSON.

    What counts of a pair is the adjudicator's answer, else that of most annotators; a pair of which as many say one as
    another is undecided. Every package counts, accepted or not: ``accepted`` says how many are.

    Returns:
        ``categories``: by key the pairs, their share of those that are decided, its 95 % interval under another draw of
        queries, the paper's share (all from 0 to 1), on how many of the decided pairs the rules said it (``by_rule``),
        and on how many of these people did, too (``agreed``).

    Raises:
        InputError: not such a round, or nobody has answered.
    """
    found = open_round(round_, ERRORS.name)
    known = read_judgments(round_)
    every = standings(round_, found)
    labels: dict[Pair, int] = {}
    for standing in every:
        labels |= {pair: label for pair in standing.pairs if (label := standing.label(pair)) is not None}
    pairs = sum(len(standing.pairs) for standing in every)
    missing = sum(len(standing.missing) for standing in every)
    if not labels:
        raise InputError("has no pair that somebody has judged; `annotate import`", path=round_)
    counts = Counter(labels.values())
    rules = {each.pair: each.label for each in known if each.model == BY_RULES and each.pair in labels}
    intervals = _intervals(labels)
    rows = {}
    for choice, (low, high) in zip(ERRORS.choices, intervals, strict=True):
        said = [pair for pair, label in rules.items() if label == choice.label]
        rows[choice.key] = {
            **{"pairs": counts[choice.label], "share": counts[choice.label] / len(labels), "low": low, "high": high},
            "paper": published()["table10"][choice.key],
            **{"by_rule": len(said), "agreed": sum(labels[pair] == choice.label for pair in said)},
        }
    return {
        **{"release": found.release, "split": found.split, "pairs": pairs, "judged": pairs - missing},
        **{"decided": len(labels), "queries": len({query for query, _ in labels}), "packages": len(every)},
        "accepted": sum(standing.package.state == "accepted" for standing in every),
        "categories": rows,
    }


def _intervals(labels: dict[Pair, int]) -> list[tuple[float, float]]:
    """Of each category's share: queries are drawn again, not pairs, as the passages of a query err alike."""
    queries = {query: place for place, query in enumerate(dict.fromkeys(query for query, _ in labels))}
    places = {choice.label: place for place, choice in enumerate(ERRORS.choices)}
    table = np.zeros((len(queries), len(places)))
    for (query, _), label in labels.items():
        table[queries[query], places[label]] += len(queries) / len(labels)  # so that a column's mean is the share
    return of_means(table)


def as_text(found: dict[str, Any]) -> str:
    """A tally as a table; shares in percent."""
    header = ("category", "pairs", "share", "95 % interval", "Table 10", "by rule", "agreed")
    rows = []
    for key, row in found["categories"].items():
        # Drawn again, no queries have what none of them has: that says nothing of how rare it is.
        interval = f"{percent(row['low'])} to {percent(row['high'])}" if row["pairs"] else "-"
        rules = [f"{row[name]:,}" if row["by_rule"] else "-" for name in ("by_rule", "agreed")]
        cells = (f"{row['pairs']:,}", percent(row["share"]), interval, percent(row["paper"]))
        rows.append((key.replace("_", " "), *cells, *rules))
    undecided = found["judged"] - found["decided"]
    return (
        f"{found['judged']:,} of {found['pairs']:,} pairs judged, {undecided:,} of them undecided;"
        f" {found['accepted']} of {found['packages']} packages accepted; percent\n\n{text_table(header, rows)}"
    )
