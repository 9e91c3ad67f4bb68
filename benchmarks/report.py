"""Reports of `reproduce --format json` as Markdown: a row a system, its figures with their 95 % intervals over queries.

Several reports of one release (trainings of several seeds) are one table: the mean over them, the interval of the
first, and the lowest and highest of what differs. A row may be missing in all but the first.

Example:

  python -m baselines reproduce --release DIR --table 4 5 --settings FILE --format json > seed0.json
  python benchmarks/report.py seed0.json seed1.json seed2.json
"""

from __future__ import annotations

import argparse
import json
import statistics
from pathlib import Path
from typing import Any

METRICS = ("MRR@10", "Recall@1", "Recall@50")
Key = tuple[int | str, str]  # table or figure, title


def figures(report: dict[str, Any]) -> dict[Key, dict[str, tuple[float, list[float]]]]:
    """By row and metric: the figure and its interval, in percent."""
    found: dict[Key, dict[str, tuple[float, list[float]]]] = {}
    for row in report["rows"]:
        place = f"Figure {row['figure']}" if "figure" in row else row["table"]
        found.setdefault((place, row["title"]), {})[row["metric"]] = row["ours"], row["interval"]
    return found


def cell(values: list[tuple[float, list[float]]]) -> str:
    """``mean (interval) [lowest, highest]``; the last where the reports differ."""
    ours = [value for value, _ in values]
    low, high = values[0][1]
    spread = f" [{min(ours):.2f}, {max(ours):.2f}]" if len({*ours}) > 1 else ""
    return f"{statistics.mean(ours):.2f} ({low:.1f} to {high:.1f}){spread}"


def markdown(reports: list[dict[str, Any]]) -> str:
    """The table of reports of one release."""
    every = [figures(report) for report in reports]
    if any(other.keys() - every[0].keys() for other in every):
        raise SystemExit("a report has rows that the first one lacks; expected the one with most rows first")
    lines = [f"| table | | {' | '.join(METRICS)} |", "|---|---|" + "---|" * len(METRICS)]
    for row in every[0]:
        cells = [
            cell([each[row][metric] for each in every if row in each]) if metric in every[0][row] else ""
            for metric in METRICS
        ]
        lines.append(f"| {row[0]} | {row[1]} | {' | '.join(cells)} |")
    return "\n".join(lines)


def times(report: dict[str, Any]) -> str:
    """The seconds and the command of every step of a report."""
    lines = ["| s | command |", "|---:|---|"]
    lines += [f"| {step['seconds']:,.0f} | `{step['command']}` |" for step in report["steps"].values()]
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("reports", type=Path, nargs="+", metavar="JSON")
    parser.add_argument("--times", action="store_true", help="also each step's seconds and command, of the first one")
    args = parser.parse_args()
    reports = [json.loads(path.read_text(encoding="utf-8")) for path in args.reports]
    print(markdown(reports))
    if args.times:
        print(f"\n{times(reports[0])}")


if __name__ == "__main__":
    main()
