"""The report of ``reproduce`` as tables of words, and those tables as text."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from baselines.measure.measures import PAPER
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
COUNTED = {
    "queries": "queries",
    "positive_passages": "positive passages",
    "passages_per_query": "passages a query",
    "chars_per_query": "characters a query",
    "chars_per_passage": "characters a passage",
    "words_per_query": "words a query",
    "passages": "passages",
    "mean_chars": "mean characters",
    "median_chars": "median characters",
}
LEGEND = "percent; Recall@k as the paper and the official script count it: a hit rate; 95 % over queries"
MARKS = "OK: the published figure lies in our 95 % interval; close: in one twice as wide; off: further away"
_COUNTS = "OK: as printed; close: within 1 %; off: further away"
Figure = Mapping[str, Any]


class Table(NamedTuple):
    """The cells of a table. ``|`` stands between ours and the published figures; the last column has the marks."""

    head: list[str]
    rows: list[list[str]]


class Section(NamedTuple):
    """A table or figure of the paper. Table 3 is several tables, since its columns have different counts."""

    name: str  # table4
    title: str
    tables: list[Table]


class Reasons:
    """The reasons why figures are not comparable, numbered as they come."""

    def __init__(self) -> None:
        self._numbers: dict[tuple[str, ...], int] = {}

    def mark(self, figures: Sequence[Figure]) -> str:
        """The marks of the figures of one row: ``OK / close / off``, or ``not comparable (1)``."""
        if figures[0]["mark"] == NOT:
            number = self._numbers.setdefault(tuple(figures[0]["why"]), len(self._numbers) + 1)
            return f"{NOT} ({number})"
        return " / ".join(figure["mark"] or "-" for figure in figures)

    def lines(self) -> list[str]:
        """The footnotes."""
        return [f"({number}) {NOT}: {'; '.join(why)}" for why, number in self._numbers.items()]


def text(report: Mapping[str, Any]) -> str:
    """The report as text: what it was measured on, the tables, the footnotes."""
    lines, reasons = measured_on(report), Reasons()
    for section in sections(report, reasons):
        lines += [""] * bool(lines) + [section.title]
        lines += "\n\n".join(text_table(*table) for table in section.tables).splitlines()
        lines += [_COUNTS] * (section.name == "table3" and _is_marked(report["data"]))
    lines += [LEGEND] * bool(report["rows"]) + [MARKS] * _is_marked([*report["rows"], *report["errors"]])
    lines += reasons.lines()
    lines += [f"drawn: {path}" for path in report["images"]]
    if found := report["predictions"]:
        split, files = found[0]["split"], "1 file" if len(found) == 1 else f"{len(found)} files"
        lines += [""] * bool(lines) + [f"predictions of the {split} split, {files}:"]
        lines += [f"Table {each['table']}, {each['row']}: {each['file']}" for each in found]
    return "\n".join(lines)


def measured_on(report: Mapping[str, Any]) -> list[str]:
    """The release, splits and judgments of a report, and its notes, a line each."""
    lines = []
    for each in report["sets"]:
        name = "" if each["set"] == "main" else f"{each['set']}, "
        some = "".join(f", {word} {each[word]}" for word in ("of", "by") if word in each)
        lines.append(
            f"measured on: release {report['release']}, {name}split {each['split']}, "
            f"{each['queries']:,} queries with positives, {each['passages']:,} passages{some}"
        )
    return [*lines, *report["notes"]]


def sections(report: Mapping[str, Any], reasons: Reasons) -> Iterator[Section]:
    """The tables of a report, then its figures, in order; ``reasons`` collects the footnotes."""
    places: dict[tuple[bool, str, int], dict[str, dict[str, Figure]]] = {}
    for each in (*report["data"], *report["rows"], *report["errors"]):
        kind = "figure" if "figure" in each else "table"
        rows = places.setdefault((kind == "figure", kind, each[kind]), {})
        rows.setdefault(each["title"], {})[each["metric"]] = each
    for (_, kind, number), rows in sorted(places.items(), key=lambda item: item[0]):
        if (kind, number) == ("table", 3):
            tables = [_counts({title: rows[title] for title in titles}, reasons) for titles in _alike(rows)]
        else:
            tables = [_measured(rows, reasons)]
        yield Section(f"{kind}{number}", f"{kind.capitalize()} {number}: {TITLES[kind, number]}", tables)


def _is_marked(figures: Sequence[Figure]) -> bool:
    return any(figure["mark"] not in (None, NOT) for figure in figures)


def _alike(rows: Mapping[str, Mapping[str, Figure]]) -> list[list[str]]:
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


def _counts(rows: Mapping[str, Mapping[str, Figure]], reasons: Reasons) -> Table:
    """A part of Table 3: ours over the paper's."""
    names, body = max(map(list, rows.values()), key=len), []
    for title, found in rows.items():
        own = [found.get(name) for name in names]
        body.append([title, *(_count(figure, "ours") for figure in own), ""])
        marks = reasons.mark([figure for figure in own if figure and figure["mark"]])
        body.append(["  published", *(_count(figure, "published") for figure in own), marks])
    return Table(["", *(COUNTED[name] for name in names), ""], body)


def _count(figure: Figure | None, of: str) -> str:
    value = figure[of] if figure else None
    return "-" if value is None else f"{value:,.2f}" if isinstance(value, float) else f"{value:,}"


def _measured(rows: Mapping[str, Mapping[str, Figure]], reasons: Reasons) -> Table:
    """A row's figures beside the published ones; under it their intervals, and what ours compares with.

    Where nothing is published, ours alone.
    """
    every = dict.fromkeys(name for found in rows.values() for name in found)
    names = [*(name for name in PAPER if name in every), *(name for name in every if name not in PAPER)]
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
        if like := [f["like_for_like"] for f in own if f.get("like_for_like")]:
            body.append(["  like for like", *[""] * len(names), *_published(like, reasons)])
    return Table(head, body)


def _published(own: Sequence[Figure], reasons: Reasons) -> list[str]:
    return ["|", *(f"{f['published']:.2f}" for f in own), own[0]["published_by"], reasons.mark(own)]
