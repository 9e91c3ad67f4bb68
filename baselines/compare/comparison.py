"""Every pair of some systems, under some measures: what `compare` prints, as values that JSON can hold."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from statistics import median
from typing import Any

import pyarrow as pa

from baselines.compare.changes import changed_most
from baselines.compare.detectable import detectable
from baselines.compare.groups import groups
from baselines.compare.paired import RESAMPLES, TESTS, Paired, Values, holm, paired
from baselines.runs.measures import PAPER, mean
from baselines.runs.values import values_of
from builders.core.errors import InputError, log

LABELS = "abcdefghijklmnoprstuvwxyz"  # one a system; Unicode has no superscript q to speak of
MEASURES = tuple(PAPER.values())


@dataclass(frozen=True)
class Options:
    """How to compare.

    ``measures``: names of :func:`baselines.runs.values.values_of`; what changed most is told of the first.
    ``test``: the one of ``TESTS`` that decides. ``alpha``: the level of a false alarm. ``power``: the probability that
    the smallest difference is found with. ``changed``: so many queries a pair.
    """

    measures: Sequence[str] = MEASURES
    test: str = TESTS[0]
    alpha: float = 0.05
    power: float = 0.8
    resamples: int = RESAMPLES
    seed: int = 0
    changed: int = 3


def compare(
    names: Sequence[str], tables: Sequence[pa.Table], texts: Mapping[str, str], options: Options
) -> dict[str, Any]:
    """The comparison of systems by their tables of :func:`baselines.runs.evaluate.evaluate`, all on the same queries.

    Holm's correction is over all pairs of systems under one measure. A pair is told apart where the corrected p-value
    of ``options.test`` is at most ``options.alpha``.

    Args:
        names: of the systems, as they are shown.
        tables: theirs.
        texts: the queries' texts by id, as far as they are known.

    Returns:
        What is described in docs/compare.md. Fractions throughout.

    Raises:
        InputError: fewer than two systems or more than ``LABELS`` has, fewer than two queries, no such measure.
    """
    _expect(tables)
    labels = LABELS[: len(tables)]
    pairs = len(tables) * (len(tables) - 1) // 2
    if options.test == "randomisation" and pairs * 2 / (options.resamples + 1) > options.alpha:
        log.warning(
            "no pair can be told apart: of %d resamples the smallest p-value is %.2g, corrected over %d pairs %.2g; "
            "raise --resamples",
            options.resamples, 2 / (options.resamples + 1), pairs, pairs * 2 / (options.resamples + 1),
        )  # fmt: skip
    measured = {name: [values_of(table, name) for table in tables] for name in options.measures}
    return {
        "queries": len(tables[0]),
        "pairs": pairs,
        "test": options.test,
        "alpha": options.alpha,
        "power": options.power,
        "resamples": options.resamples,
        "seed": options.seed,
        "systems": [
            {
                "label": label,
                "name": names[number],
                "run": tables[number]["run"][0].as_py(),
                "means": {measure: mean(columns[number].tolist()) for measure, columns in measured.items()},
            }
            for number, label in enumerate(labels)
        ],
        "measures": {
            measure: _measure(dict(zip(labels, of, strict=True)), options) for measure, of in measured.items()
        },
        "changed": _changed(labels, tables, measured[options.measures[0]], texts, options),
    }


def _expect(tables: Sequence[pa.Table]) -> None:
    if not 2 <= len(tables) <= len(LABELS):
        raise InputError(f"expected 2 to {len(LABELS)} runs, found {len(tables)}")
    if len(tables[0]) < 2:
        raise InputError("expected at least two queries with a positive passage: of one, nothing can be told")


def _ordered(values: Mapping[str, Values]) -> list[str]:
    """The labels, the highest mean first, equal ones as given."""
    return sorted(values, key=lambda label: -mean(values[label].tolist()))


def _measure(values: Mapping[str, Values], options: Options) -> dict[str, Any]:
    """One measure: its pairs (the better system first), who is better than whom, groups, detectable differences."""
    ordered = _ordered(values)
    rows: list[dict[str, Any]] = []
    for better, worse in combinations(ordered, 2):
        found = paired(
            values[better], values[worse], level=1 - options.alpha, resamples=options.resamples, seed=options.seed
        )
        rows.append({"better": better, "worse": worse, **_row(found)})
    for test in TESTS:
        for row, corrected in zip(rows, holm([row[test]["p"] for row in rows]), strict=True):
            row[test]["corrected"] = corrected
    queries = len(values[ordered[0]])
    for row in rows:
        row["told_apart"] = row[options.test]["corrected"] <= options.alpha
        # Where two systems never differ, nothing says how much others would.
        row["detectable"] = {
            name: detectable(row["deviation"], queries, alpha=alpha, power=options.power) if row["deviation"] else None
            for name, alpha in (("alone", options.alpha), ("corrected", options.alpha / len(rows)))
        }
    return {
        "pairs": rows,
        "better_than": {
            label: "".join(sorted(row["worse"] for row in rows if row["better"] == label and row["told_apart"]))
            for label in sorted(ordered)
        },
        "groups": groups(ordered, [(row["better"], row["worse"]) for row in rows if row["told_apart"]]),
        "detectable": {name: _spread([row["detectable"][name] for row in rows]) for name in ("alone", "corrected")},
    }


def _row(found: Paired) -> dict[str, Any]:
    return {
        "difference": found.difference,
        "interval": list(found.interval),
        "deviation": found.deviation,
        "wins": found.wins,
        "ties": found.ties,
        "losses": found.losses,
        **{test: {"p": found.p[test]} for test in TESTS},
    }


def _spread(found: Sequence[float | None]) -> dict[str, float] | None:
    """Of the pairs: the lowest, the middle one, the highest; None where no two systems differ."""
    known = [each for each in found if each is not None]
    return {"lowest": min(known), "median": median(known), "highest": max(known)} if known else None


def _changed(
    labels: str, tables: Sequence[pa.Table], values: Sequence[Values], texts: Mapping[str, str], options: Options
) -> list[dict[str, Any]]:
    of = {label: (table, column) for label, table, column in zip(labels, tables, values, strict=True)}
    ordered = _ordered({label: column for label, (_, column) in of.items()})
    return [
        {"better": better, "worse": worse, "queries": changed_most(of[better], of[worse], texts, options.changed)}
        for better, worse in combinations(ordered, 2)
        if options.changed
    ]
