"""Convert reports of `reproduce --format json` to a Markdown table of systems, with 95 % intervals over queries.

Several reports of one release, for example with different seeds, become one table. A cell shows the mean over the
reports, the interval of the first report, and the lowest and highest value if the reports differ. The first report must
have every row. The other reports may lack rows.

Example:

  python -m baselines reproduce --release DIR --table 4 5 --settings FILE --format json > seed0.json
  python benchmarks/report.py seed0.json seed1.json seed2.json
"""

import json
import statistics
from pathlib import Path
from typing import Any

from common import parser_of

from builders.core.tables import markdown_table

METRICS = ("MRR@10", "Recall@1", "Recall@50")
Key = tuple[int | str, str]  # table or figure, title
Figure = tuple[float, list[float]]  # score, interval


def figures(report: dict[str, Any]) -> dict[Key, dict[str, Figure]]:
    """Return the values and intervals in percent, by row and metric."""
    figures_by_row: dict[Key, dict[str, Figure]] = {}
    for row in report["rows"]:
        table = f"Figure {row['figure']}" if "figure" in row else row["table"]
        row_figures = figures_by_row.setdefault((table, row["title"]), {})
        row_figures[row["metric"]] = (row["ours"], row["interval"])
    return figures_by_row


def cell(values: list[Figure]) -> str:
    """Format a cell as ``mean (interval) [lowest, highest]``. The range is shown only if the reports differ."""
    scores = [score for score, _ in values]
    low, high = values[0][1]
    text = f"{statistics.mean(scores):.2f} ({low:.1f} to {high:.1f})"
    if len(set(scores)) > 1:
        text += f" [{min(scores):.2f}, {max(scores):.2f}]"
    return text


def markdown(reports: list[dict[str, Any]]) -> str:
    """Format the reports of one release as a table."""
    report_figures = [figures(report) for report in reports]
    first_figures = report_figures[0]
    for later_figures in report_figures[1:]:
        if later_figures.keys() - first_figures.keys():
            raise SystemExit("a report has rows that the first report lacks; name the report with the most rows first")
    rows = []
    for key, row_figures in first_figures.items():
        row = [str(part) for part in key]
        for metric in METRICS:
            if metric in row_figures:
                row.append(cell([by_row[key][metric] for by_row in report_figures if key in by_row]))
            else:
                row.append("")
        rows.append(row)
    return markdown_table(["table", "system", *METRICS], rows, left=2)


def times(report: dict[str, Any]) -> str:
    """Format the seconds and the commands of a report's steps as a table."""
    rows = [[f"`{step['command']}`", f"{step['seconds']:,.0f}"] for step in report["steps"].values()]
    return markdown_table(["command", "s"], rows)


def main() -> None:
    parser = parser_of(__doc__)
    parser.add_argument("reports", type=Path, nargs="+", metavar="JSON", help="a report of `reproduce`")
    parser.add_argument("--times", action="store_true", help="also print the seconds of the first report's steps")
    args = parser.parse_args()
    reports = [json.loads(path.read_text(encoding="utf-8")) for path in args.reports]
    print(markdown(reports))
    if args.times:
        print(f"\n{times(reports[0])}")


if __name__ == "__main__":
    main()
