"""What the formats of `compare` have in common: the cells of their tables, and what is said about them."""

from __future__ import annotations

from typing import Any

from baselines.runs.measures import PAPER
from baselines.runs.tables import percent

_PAPER = {key: name for name, key in PAPER.items()}
TEST_NAMES = {"t": "Student's paired t-test", "randomisation": "Fisher's randomisation test"}
PAIRS_ARE = (
    "Pairs: the better system - the worse one, in percentage points; win, tie, loss: on how many queries it is better,",
    "as good, worse; p of both tests, also with Holm's correction; detectable: the smallest difference, corrected.",
)


def title(measure: str) -> str:
    """A measure's name: the official keys as the paper prints them."""
    return _PAPER.get(measure, measure)


def points(fraction: float) -> str:
    """A difference in percentage points, with its sign."""
    return f"{100 * fraction:+.2f}"


def p_value(value: float) -> str:
    return "<0.0001" if value < 0.00005 else f"{value:.4f}"


def smallest(fraction: float | None) -> str:
    """A difference that can be detected; a measure ends at 100 percent."""
    return "-" if fraction is None else ">100" if fraction > 1 else percent(fraction)


def pair_header(result: dict[str, Any]) -> list[str]:
    level = f"{100 * (1 - result['alpha']):g} % interval"
    return ["pair", "difference", level, "win", "tie", "loss", "t: p", "Holm", "random.: p", "Holm", "detectable"]


def pair_cells(row: dict[str, Any]) -> list[str]:
    """One pair under :func:`pair_header`."""
    return [
        f"{row['better']} - {row['worse']}",
        points(row["difference"]),
        " to ".join(map(points, row["interval"])),
        *(str(row[name]) for name in ("wins", "ties", "losses")),
        *(p_value(row[test][kind]) for test in ("t", "randomisation") for kind in ("p", "corrected")),
        smallest(row["detectable"]["corrected"]),
    ]


def groups(found: dict[str, Any]) -> str:
    """The groups of one measure."""
    return " | ".join(" ".join(group) for group in found["groups"])


def detectable_is(result: dict[str, Any]) -> str:
    """What :func:`detectable_cells` says."""
    return (
        f"smallest difference that these {result['queries']} queries show with a probability of "
        f"{100 * result['power']:g} %: middle of the pairs (lowest to highest)"
    )


def detectable_header(result: dict[str, Any]) -> list[str]:
    """Over :func:`detectable_cells`; corrected is the first and strictest of Holm's steps."""
    levels = (result["alpha"], result["alpha"] / result["pairs"])
    return ["measure", *(f"{name}, p <= {p:.2g}" for name, p in zip(("one pair", "corrected"), levels, strict=True))]


def detectable_cells(found: dict[str, Any]) -> list[str]:
    """Of one measure: for a single comparison, and for one that is corrected."""
    return [_spread(found["detectable"][kind]) for kind in ("alone", "corrected")]


def _spread(spread: dict[str, float] | None) -> str:
    if spread is None:
        return "-"
    low, middle, high = (smallest(spread[name]) for name in ("lowest", "median", "highest"))
    return middle if low == high else f"{middle} ({low} to {high})"


def changed_title(result: dict[str, Any], pair: dict[str, Any]) -> str:
    """What stands above the queries that changed most."""
    measure = title(next(iter(result["measures"])))
    if not pair["queries"]:
        return f"{pair['better']} - {pair['worse']}: {measure} is the same on every query"
    return (
        f"{pair['better']} - {pair['worse']}: queries whose {measure} changed most, and the rank of the first positive "
        f"under {pair['worse']} -> {pair['better']}"
    )


def rank(value: int | None) -> str:
    return "-" if value is None else str(value)


def explanation(result: dict[str, Any]) -> str:
    """What the superscripts of a table say."""
    corrected = f"Holm's correction over {result['pairs']} pairs" if result["pairs"] > 1 else "one pair"
    test = TEST_NAMES[result["test"]]
    return (
        f"superscripts: the systems that this one is significantly better than "
        f"({test}, {corrected}, p <= {result['alpha']:g})"
    )
