"""The report of ``reproduce`` as tables of strings, and the tables as text."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from baselines.measure.measures import PAPER
from baselines.reproduce.marks import NOT
from builders.core.tables import text_table

TITLES = {
    ("table", 4): "retrieval",
    ("table", 5): "re-ranking (A > B: B re-ranks what A ranks first)",
    ("table", 6): "BM25 > CE w/ BM25 Neg, trained with and without the similar training questions",
    ("table", 7): "cMedQA, out of domain",
    ("table", 8): "cCOVID-News, out of domain",
    ("table", 9): "cross-lingual",
    ("pool", 1): "the nine models (Section 2.3, A.1); the re-rankers order the pool's candidates",
    ("figure", 2): "judgments before and after the corrections by people; the paper draws bars and prints no number",
}
TESTS_TITLE = "after minus before, paired t-test over queries, Holm's correction over the rows"
TESTS_HEAD = ["", "difference", "95 %", "queries", "p", "Holm"]
LEGEND = "scores in percent; Recall@k: share of queries with a positive in the top k; 95 %: interval over queries"
MARKS = "OK: the published score lies in our 95 % interval; close: in an interval twice as wide; off: outside of both"
Figure = Mapping[str, Any]


class Section(NamedTuple):
    """A table or figure. ``|`` separates our scores from the published scores. The last column has the marks."""

    name: str  # table4
    title: str
    head: list[str]
    rows: list[list[str]]


class Reasons:
    """The reasons why scores are not comparable, numbered in order of appearance."""

    def __init__(self) -> None:
        self._numbers: dict[tuple[str, ...], int] = {}

    def mark(self, figures: Sequence[Figure]) -> str:
        """Return the marks of one row's scores: ``OK / close / off``, or ``not comparable (1)``."""
        if figures[0]["mark"] == NOT:
            number = self._numbers.setdefault(tuple(figures[0]["why"]), len(self._numbers) + 1)
            return f"{NOT} ({number})"
        return " / ".join(figure["mark"] or "-" for figure in figures)

    def lines(self) -> list[str]:
        """Return the footnotes."""
        return [f"({number}) {NOT}: {'; '.join(why)}" for why, number in self._numbers.items()]


def text(report: Mapping[str, Any]) -> str:
    """Return the report as text: the measured data, the tables and the footnotes."""
    lines, reasons = measured_on(report), Reasons()
    for section in sections(report, reasons):
        lines += ["", section.title, text_table(section.head, section.rows)]
    marked = any(figure["mark"] not in (None, NOT) for figure in report["rows"])
    lines += [LEGEND] * bool(report["rows"]) + [MARKS] * marked + reasons.lines()
    lines += [f"drawn: {path}" for path in report["images"]]
    return "\n".join([*lines, *predictions(report)])


def predictions(report: Mapping[str, Any]) -> list[str]:
    """Return one line for each file of a submission."""
    lines = []
    for file in report["predictions"]:
        place = "pool" if file["table"] is None else f"Table {file['table']}"
        lines.append(f"predictions of the {file['split']} split, {place}, {file['row']}: {file['file']}")
    return lines


def measured_on(report: Mapping[str, Any]) -> list[str]:
    """Return one line for each set of judgments that the report measures on, then the report's notes."""
    lines = []
    for each in report["sets"]:
        name = "" if each["set"] == "main" else f"{each['set']}, "
        some = "".join(f", {word} {each[word]}" for word in ("of", "by") if each[word])
        lines.append(
            f"measured on: release {report['release']}, {name}split {each['split']}, "
            f"{each['queries']:,} queries with positives, {each['passages']:,} passages{some}"
        )
    return [*lines, *report["notes"]]


def sections(report: Mapping[str, Any], reasons: Reasons) -> Iterator[Section]:
    """Yield the tables of a report, then its figures, in order. ``reasons`` collects the footnotes."""
    places: dict[tuple[bool, str, int], dict[str, dict[str, Figure]]] = {}
    for each in report["rows"]:
        kind = next((kind for kind in ("figure", "pool") if kind in each), "table")
        rows = places.setdefault((kind == "figure", kind, each[kind]), {})
        rows.setdefault(each["title"], {})[each["metric"]] = each
    for (_, kind, number), rows in sorted(places.items(), key=lambda item: item[0]):
        name = f"{kind.capitalize()} {number}" if kind != "pool" else "Pool"
        yield Section(f"{kind}{number}", f"{name}: {TITLES[kind, number]}", *_table(rows, reasons))
        tests = [test for test in report["tests"] if kind == "figure" and test["figure"] == number]
        if tests:
            yield Section(f"{kind}{number}-tests", f"{name}: {TESTS_TITLE}", TESTS_HEAD, [_test_row(t) for t in tests])


def _test_row(test: Mapping[str, Any]) -> list[str]:
    low, high = test["interval"]
    return [
        f"{test['title']}: {test['metric']}",
        f"{test['difference']:+.2f}",
        f"{low:+.2f} to {high:+.2f}",
        f"{test['queries']:,}",
        f"{test['p']:.2g}",
        f"{test['corrected']:.2g}",
    ]


def _table(rows: Mapping[str, Mapping[str, Figure]], reasons: Reasons) -> tuple[list[str], list[list[str]]]:
    """Return (head, rows) of a table with our scores and the published scores.

    Each row is followed by its intervals. A row "like for like" has the published scores of a similar system on the
    same split. Without published scores, a row has only our scores.
    """
    names = [name for name in PAPER if any(name in found for found in rows.values())]
    body, head = [], ["", *names]
    for title, found in rows.items():
        own = [found[name] for name in names]
        ours = [title, *(f"{f['ours']:.2f}" for f in own)]
        intervals = ["  95 %", *("{:.1f}-{:.1f}".format(*f["interval"]) for f in own)]
        if own[0]["published"] is None:
            body += [ours, intervals]
            continue
        head[len(names) + 1 :] = ["|", f"published: {names[0]}", *names[1:], "by, on", ""]
        body += [[*ours, *_published(own, reasons)], [*intervals, "|", *[""] * (len(names) + 2)]]
        if like := [f["like_for_like"] for f in own if f["like_for_like"]]:
            body.append(["  like for like", *[""] * len(names), *_published(like, reasons)])
    return head, body


def _published(own: Sequence[Figure], reasons: Reasons) -> list[str]:
    return ["|", *(f"{f['published']:.2f}" for f in own), own[0]["published_by"], reasons.mark(own)]
