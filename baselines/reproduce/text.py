"""The report of ``reproduce`` as text."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from baselines.measure.measures import PAPER
from baselines.reproduce.data import TITLES as COUNTED
from baselines.reproduce.marks import NOT
from builders.core.tables import text_table

TITLES = {
    ("table", 3): "the data",
    ("table", 4): "retrieval",
    ("table", 5): "re-ranking (A > B: B re-ranks what A ranks first)",
    ("table", 6): "BM25 > CE w/ BM25 Neg, trained with and without the similar training questions",
    ("table", 7): "cMedQA, out of domain",
    ("table", 8): "cCOVID-News, out of domain",
    ("table", 9): "cross-lingual",
    ("table", 10): "why wrong predictions are wrong, by people",
    ("figure", 2): "by the judgments before and after people corrected them; the paper draws bars and prints no number",
}
LEGEND = "percent; Recall@k as the paper and the official script count it: a hit rate; 95 % over queries"
MARKS = "OK: the published figure lies in our 95 % interval; close: in one twice as wide; off: further away"
_COUNTS = "OK: as printed; close: within 1 %; off: further away"


class Reasons:
    """Why figures are not comparable, numbered as they come."""

    def __init__(self) -> None:
        self._numbers: dict[tuple[str, ...], int] = {}

    def mark(self, figures: Sequence[Mapping[str, Any]]) -> str:
        """The marks of the figures of one row: ``OK / close / off``, or ``not comparable (1)``."""
        if figures[0]["mark"] == NOT:
            number = self._numbers.setdefault(tuple(figures[0]["why"]), len(self._numbers) + 1)
            return f"{NOT} ({number})"
        return " / ".join(figure["mark"] or "-" for figure in figures)

    def lines(self) -> list[str]:
        """What the numbers stand for."""
        return [f"({number}) {NOT}: {'; '.join(why)}" for why, number in self._numbers.items()]


def text(report: dict[str, Any]) -> str:
    """The report as tables, under what they were measured on."""
    lines = [measured_on(report, each) for each in report["sets"]]
    lines += report["notes"]
    reasons, places = Reasons(), by_place(report)
    for place, own in places.items():
        lines += [""] * bool(lines) + [f"{place[0].capitalize()} {place[1]}: {TITLES[place]}"]
        lines += _counts(own, reasons) if place == ("table", 3) else [_table(own, reasons)]
    if report["rows"]:
        lines.append(LEGEND)
    if any(figure["mark"] not in (None, NOT) for figure in (*report["rows"], *report["errors"])):
        lines.append(MARKS)
    lines += reasons.lines()
    lines += [f"drawn: {path}" for path in report["images"]]
    if found := report["predictions"]:
        split, files = found[0]["split"], "1 file" if len(found) == 1 else f"{len(found)} files"
        lines += [""] * bool(lines) + [f"predictions of the {split} split, {files}:"]
        lines += [f"Table {each['table']}, {each['row']}: {each['file']}" for each in found]
    return "\n".join(lines)


def measured_on(report: Mapping[str, Any], each: Mapping[str, Any]) -> str:
    """What one of a report's ``sets`` says, as a line."""
    name = "" if each["set"] == "main" else f"{each['set']}, "
    some = "".join(f", {word} {each[word]}" for word in ("of", "by") if word in each)
    return (
        f"measured on: release {report['release']}, {name}split {each['split']}, "
        f"{each['queries']:,} queries with positives, {each['passages']:,} passages{some}"
    )


def by_place(report: Mapping[str, Any]) -> dict[tuple[str, int], list[dict[str, Any]]]:
    """All figures of a report by their table or figure: ``("table", 4)``; tables first."""
    found: dict[tuple[str, int], list[dict[str, Any]]] = {}
    for figure in (*report["data"], *report["rows"], *report["errors"]):
        place = ("figure", figure["figure"]) if "figure" in figure else ("table", figure["table"])
        found.setdefault(place, []).append(figure)
    return dict(sorted(found.items(), key=lambda item: (item[0][0] == "figure", item[0][1])))


def by_row(figures: Sequence[dict[str, Any]]) -> dict[str, dict[str, dict[str, Any]]]:
    """The figures of a table by the title of their row, then by their measure."""
    rows: dict[str, dict[str, dict[str, Any]]] = {}
    for figure in figures:
        rows.setdefault(figure["title"], {})[figure["metric"]] = figure
    return rows


def measures_of(rows: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """What a table's columns measure: the paper's measures in its order, then others as they come."""
    names = list(dict.fromkeys(name for found in rows.values() for name in found))
    return [*(name for name in PAPER if name in names), *(name for name in names if name not in PAPER)]


def alike(rows: Mapping[str, Mapping[str, Any]]) -> list[list[str]]:
    """The rows of Table 3 by what is counted of them: splits, English queries, the collection."""
    groups: dict[tuple[str, ...], list[str]] = {}
    for title, found in rows.items():
        groups.setdefault(tuple(found), []).append(title)
    # A split without labels has fewer counts than the others: it stands with them.
    for names in sorted(groups, key=len):
        wider = next((other for other in groups if set(names) < set(other)), None)
        if wider:
            groups[wider] += groups.pop(names)
    order = list(rows)
    return [sorted(titles, key=order.index) for titles in groups.values()]


def count(figure: Mapping[str, Any] | None, of: str) -> str:
    """``ours`` or ``published`` of a figure of Table 3: a count, or a mean with two decimals."""
    value = figure[of] if figure else None
    return "-" if value is None else f"{value:,.2f}" if isinstance(value, float) else f"{value:,}"


def _counts(figures: Sequence[dict[str, Any]], reasons: Reasons) -> list[str]:
    """Table 3: ours over the paper's."""
    rows, lines = by_row(figures), []
    for titles in alike(rows):
        names = max((list(rows[title]) for title in titles), key=len)
        body = []
        for title in titles:
            own = [rows[title].get(name) for name in names]
            known = [figure for figure in own if figure and figure["mark"]]
            body.append([title, *(count(figure, "ours") for figure in own), ""])
            body.append(["  published", *(count(figure, "published") for figure in own)])
            body[-1].append(reasons.mark(known))
        lines += [text_table(["", *(COUNTED[name] for name in names), ""], body), ""]
    compared = any(figure["mark"] not in (None, NOT) for figure in figures)
    return [*lines[:-1], *[_COUNTS] * compared]


def _table(figures: Sequence[dict[str, Any]], reasons: Reasons) -> str:
    """One table: a row's figures beside the published ones; under it their intervals, and what ours compares with.

    Where nothing is published, ours alone.
    """
    rows = by_row(figures)
    names = measures_of(rows)
    body: list[list[str]] = []
    for title, found in rows.items():
        own = [found[name] for name in names]
        ours = [title, *(f"{f['ours']:.2f}" for f in own)]
        intervals = ["  95 %", *("{:.1f}-{:.1f}".format(*f["interval"]) for f in own)]
        if own[0]["published"] is None:
            body += [ours, intervals]
            continue
        body.append([*ours, "|", *(f"{f['published']:.2f}" for f in own), own[0]["published_by"], reasons.mark(own)])
        body.append([*intervals, "|", *("" for _ in own), "", ""])
        if like := [f["like_for_like"] for f in own if f.get("like_for_like")]:
            body.append(["  like for like", *("" for _ in own), "|", *(f"{f['published']:.2f}" for f in like)])
            body[-1] += [like[0]["published_by"], reasons.mark(like)]
    head = ["|", f"published: {names[0]}", *names[1:], "by, on", ""] if figures[0]["published"] is not None else []
    return text_table(["", *names, *head], body)
