"""The report of ``reproduce`` as tables of strings, and the tables as text."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from baselines.measure.measures import PAPER
from baselines.reproduce.published_scores import read_published_scores
from baselines.reproduce.report import NOT
from builders.core.tables import text_table

TESTS_HEAD = ["", "difference", "95 %", "queries", "p", "Holm"]
LEGEND = "scores in percent; Recall@k: share of queries with a positive in the top k; 95 %: interval over queries"
MARKS = "OK: the published score lies in our 95 % interval; close: in an interval twice as wide; off: outside of both"
# One of the report's "rows": a measure of a row, with our score and the published score.
Score = Mapping[str, Any]


class Section(NamedTuple):
    """A table, a figure, or the tests of a figure.

    If published scores exist, a column of ``|`` separates our scores from them, and the last column has the marks.
    """

    name: str  # table4, figure2, figure2-tests or pool1
    title: str
    head: list[str]
    rows: list[list[str]]


class Reasons:
    """The reasons why scores are not comparable, numbered in order of appearance."""

    def __init__(self) -> None:
        self._numbers: dict[tuple[str, ...], int] = {}

    def mark(self, scores: Sequence[Score]) -> str:
        """Return the marks of one row's scores: ``OK / close / off``, or ``not comparable (1)``."""
        # The reasons are those of the row's data and models, so all scores of the row have the same reasons.
        if scores[0]["mark"] == NOT:
            number = self._numbers.setdefault(tuple(scores[0]["why"]), len(self._numbers) + 1)
            return f"{NOT} ({number})"
        return " / ".join(score["mark"] or "-" for score in scores)

    def lines(self) -> list[str]:
        """Return the footnotes for all marks so far."""
        return [f"({number}) {NOT}: {'; '.join(why)}" for why, number in self._numbers.items()]


def report_text(report: Mapping[str, Any]) -> str:
    """Return the report as text: the measured data, the tables, the footnotes and the files.

    ``report`` is the JSON value of :func:`baselines.reproduce.run_tables.run_tables`.
    """
    lines = measured_on(report)
    reasons = Reasons()
    for section in report_sections(report, reasons):
        lines += ["", section.title, text_table(section.head, section.rows)]
    if report["rows"]:
        lines.append(LEGEND)
    if any(score["mark"] not in (None, NOT) for score in report["rows"]):
        lines.append(MARKS)
    lines += reasons.lines()
    lines += [f"drawn: {path}" for path in report["images"]]
    return "\n".join([*lines, *prediction_lines(report)])


def prediction_lines(report: Mapping[str, Any]) -> list[str]:
    """Return one line for each file of a submission."""
    lines = []
    for file in report["predictions"]:
        # Rows of figures never have predictions, because figures need judgments.
        table_name = "pool" if file["table"] is None else f"Table {file['table']}"
        lines.append(f"predictions of the {file['split']} split, {table_name}, {file['row']}: {file['file']}")
    return lines


def measured_on(report: Mapping[str, Any]) -> list[str]:
    """Return one line for each set of judgments that the report measures on, then the report's notes."""
    lines = []
    for reference in report["sets"]:
        set_name = "" if reference["set"] == "main" else f"{reference['set']}, "
        # Configs that replace the set's: queries ("of") and judgments ("by").
        configs = "".join(f", {word} {reference[word]}" for word in ("of", "by") if reference[word])
        lines.append(
            f"measured on: release {report['release']}, {set_name}split {reference['split']}, "
            f"{reference['queries']:,} queries with positives, {reference['passages']:,} passages{configs}"
        )
    return [*lines, *report["notes"]]


def report_sections(report: Mapping[str, Any], reasons: Reasons) -> Iterator[Section]:
    """Yield the tables of a report, then its figures, each followed by its tests. ``reasons`` collects the footnotes.

    The titles of rows are unique in a table or figure.
    """
    titles = read_published_scores().titles
    # Scores by section, title and metric.
    rows_by_section: dict[str, dict[str, dict[str, Score]]] = {}
    for score in report["rows"]:
        rows = rows_by_section.setdefault(_section_name(score), {})
        rows.setdefault(score["title"], {})[score["metric"]] = score
    for name, rows in rows_by_section.items():
        yield Section(name, titles[name], *_table(rows, reasons))
        tests = [_test_row(test) for test in report["tests"] if f"figure{test['figure']}" == name]
        if tests:
            yield Section(f"{name}-tests", titles[f"{name}-tests"], TESTS_HEAD, tests)


def _section_name(score: Score) -> str:
    """Return the name of a score's table or figure: table4, figure2 or pool1."""
    for section_kind in ("figure", "pool"):
        if section_kind in score:
            # score["pool"] is True, which is written as 1.
            return f"{section_kind}{score[section_kind]:d}"
    return f"table{score['table']:d}"


def _test_row(test: Mapping[str, Any]) -> list[str]:
    """Return the cells of a test of :func:`baselines.reproduce.report.paired_tests`, under ``TESTS_HEAD``."""
    low, high = test["interval"]
    return [
        f"{test['title']}: {test['metric']}",
        f"{test['difference']:+.2f}",
        f"{low:+.2f} to {high:+.2f}",
        f"{test['queries']:,}",
        f"{test['p']:.2g}",
        f"{test['corrected']:.2g}",
    ]


def _table(rows: Mapping[str, Mapping[str, Score]], reasons: Reasons) -> tuple[list[str], list[list[str]]]:
    """Return (head, rows) of a table with our scores and the published scores.

    ``rows`` has the scores by title and metric. All rows of a table have the same metrics.

    Each row is followed by its intervals. A row "like for like" has the published scores of a similar system on the
    same split. Without published scores, a row has only our scores.
    """
    metrics = [metric for metric in PAPER if any(metric in by_metric for by_metric in rows.values())]
    head = ["", *metrics]
    body = []
    for title, by_metric in rows.items():
        scores = [by_metric[metric] for metric in metrics]
        ours = [title] + [f"{score['ours']:.2f}" for score in scores]
        intervals = ["  95 %"] + ["{:.1f}-{:.1f}".format(*score["interval"]) for score in scores]
        if scores[0]["published"] is None:
            body += [ours, intervals]
            continue
        head = ["", *metrics, "|", f"published: {metrics[0]}", *metrics[1:], "by, on", ""]
        no_cells = [""] * len(metrics)
        body.append([*ours, *_published(scores, reasons)])
        body.append([*intervals, "|", *no_cells, "", ""])
        similar_scores = [score["like_for_like"] for score in scores if score["like_for_like"]]
        if similar_scores:
            body.append(["  like for like", *no_cells, *_published(similar_scores, reasons)])
    return head, body


def _published(scores: Sequence[Score], reasons: Reasons) -> list[str]:
    """Return the cells of a row from the ``|`` on: the published scores, their source and split, and the marks."""
    values = [f"{score['published']:.2f}" for score in scores]
    return ["|", *values, scores[0]["published_by"], reasons.mark(scores)]
