"""Ours beside the published figures, and what has to be known before the two are compared."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from msgspec import to_builtins

from baselines.reproduce.matrix import Matrix, Published, Reference, Row, Step
from baselines.reproduce.steps import Finished, shown
from baselines.runs.intervals import Interval
from baselines.runs.measures import PAPER
from baselines.runs.qrels import Qrels
from baselines.runs.tables import text_table
from builders.store.layout import SETS
from builders.store.reader import Release

_TITLES = {
    ("table", 4): "retrieval",
    ("table", 5): "re-ranking (A > B: B re-ranks what A ranks first)",
    ("table", 6): "BM25 > CE w/ BM25 Neg, trained with and without the similar training questions",
    ("table", 7): "cMedQA, out of domain",
    ("table", 8): "cCOVID-News, out of domain",
    ("table", 9): "cross-lingual",
    ("figure", 2): "by the judgments before and after people corrected them; the paper draws bars and prints no number",
}


@dataclass(frozen=True)
class Measured:
    """A row with our figures, in percent under the paper's names, their 95 % intervals, and the judgments behind."""

    row: Row
    split: str
    qrels: Qrels
    ours: dict[str, float]
    intervals: dict[str, Interval]


def side_by_side(
    matrix: Matrix,
    release: Release,
    measured: Sequence[Measured],
    plan: Mapping[str, Step],
    done: Mapping[str, Finished],
) -> dict[str, Any]:
    """Ours and published side by side, in percent, and what has to be known before the two are compared.

    ``plan`` and ``done``: the steps behind the rows, and how long each took.
    """
    reference = {each.row.reference(each.split): each.qrels for each in measured}
    published = {
        key: dict.fromkeys(matrix.published(each.row) for each in measured if each.row.reference(each.split) == key)
        for key in sorted(reference)
    }
    sets = [_measured_on(release, key, reference[key], list(those)) for key, those in published.items()]
    return {
        "release": str(release.path),
        "sets": sets,
        "notes": list(dict.fromkeys(note for each in sets for note in each.pop("notes"))),
        "unit": "percent",
        "predictions": [],
        "images": [],
        "rows": [_row(matrix, each, plan, done, name) for each in measured for name in each.row.measures],
        "steps": {
            name: {"command": shown(step.command, done[name].processes), **asdict(done[name])}
            for name, step in plan.items()
        },
    }


def _row(
    matrix: Matrix, each: Measured, plan: Mapping[str, Step], done: Mapping[str, Finished], name: str
) -> dict[str, Any]:
    """One figure of one row."""
    row, on = each.row, matrix.published(each.row)
    like = next((other for other in matrix.rows if other.name == row.like), None)
    same = like is not None and matrix.published(like).split == each.split and matrix.published(like)
    place: dict[str, Any] = {"table": row.table}
    if row.figure is not None:
        place |= {"figure": row.figure, "series": row.series}
    return {
        **place,
        "row": row.name,
        "title": f"{row.title}, {row.series}" if row.series else row.title,
        "metric": name,
        "ours": round(each.ours[name], 2),
        "interval": [round(end, 2) for end in each.intervals[name]],
        "published": row.published.get(name),
        "published_by": f"{on.source}, {on.split}",
        "like_for_like": {"published": like.published[name], "published_by": f"{same.source}, {same.split}"}
        if like and same
        else None,
        "step": row.step,
        "seconds": round(sum(done[step].seconds for step in _behind(plan, row.step)), 1),
    }


def _behind(plan: Mapping[str, Step], step: str) -> set[str]:
    """A step and all those whose output it depends on."""
    return {step}.union(*(_behind(plan, other) for other in plan[step].needs))


def _measured_on(
    release: Release, reference: Reference, qrels: Qrels, published: Sequence[Published]
) -> dict[str, Any]:
    """What one reference's figures were measured on, and whether that is what the published ones were."""
    name, split = reference.set, reference.split
    some = {key: value for key, value in (("of", reference.queries), ("by", reference.qrels)) if value}
    ours = {
        "queries": len(qrels.positives),
        "positives": qrels.pairs,
        "passages": release.rows(SETS[name].corpus, "corpus"),
    }
    shown_name = "" if name == "main" else f"{name}: "
    shown_name = f"{reference.queries}: " if reference.queries else shown_name
    theirs = {key: getattr(on, key) for on in published for key in ("passages", "positives") if getattr(on, key)}
    notes = []
    if differ := [key for key, value in theirs.items() if ours[key] != value]:
        found = " and ".join(f"{ours[key]:,} {key} against {theirs[key]:,}" for key in differ)
        notes.append(f"{shown_name}not the published collection ({found}): the two columns are not comparable")
    for on in published:
        if split != on.split:
            unlabelled = ", whose labels are unpublished" * (on.split == "test")
            notes.append(f"{shown_name}published: the {on.split} split{unlabelled}; ours: the {split} split")
    return {
        "set": name,
        "split": split,
        **some,
        **ours,
        "published_on": [
            {key: value for key, value in to_builtins(on).items() if value is not None} for on in published
        ],
        "same_collection": not differ,
        "same_split": all(split == on.split for on in published),
        "notes": notes,
    }


def text(report: dict[str, Any]) -> str:
    """The report as tables, under what they were measured on."""
    lines = [
        f"measured on: release {report['release']}, {'' if each['set'] == 'main' else each['set'] + ', '}"
        f"split {each['split']}, {each['queries']:,} queries with positives, {each['passages']:,} passages"
        + "".join(f", {word} {each[word]}" for word in ("of", "by") if word in each)
        for each in report["sets"]
    ]
    lines += report["notes"]
    for place in sorted({_place(row) for row in report["rows"]}, key=lambda place: (place[0] == "figure", place[1])):
        own = [row for row in report["rows"] if _place(row) == place]
        lines += ["", f"{place[0].capitalize()} {place[1]}: {_TITLES[place]}", _table(own)]
    if report["rows"]:
        lines.append("percent; Recall@k as the paper and the official script count it: a hit rate; 95 % over queries")
    lines += [f"drawn: {path}" for path in report["images"]]
    if found := report["predictions"]:
        split, files = found[0]["split"], "1 file" if len(found) == 1 else f"{len(found)} files"
        lines += [""] * bool(lines) + [f"predictions of the {split} split, {files}:"]
        lines += [f"Table {each['table']}, {each['row']}: {each['file']}" for each in found]
    return "\n".join(lines)


def _place(row: Mapping[str, Any]) -> tuple[str, int]:
    """Of a figure of the report: as :attr:`Row.place` has it."""
    return ("figure", row["figure"]) if "figure" in row else ("table", row["table"])


def _table(figures: Sequence[dict[str, Any]]) -> str:
    """One table: a row's figures beside the published ones; under it their intervals, and what ours compares with.

    Where nothing is published, ours alone.
    """
    rows: dict[str, dict[str, dict[str, Any]]] = {}
    for figure in figures:
        rows.setdefault(figure["title"], {})[figure["metric"]] = figure
    names = [name for name in PAPER if any(name in found for found in rows.values())]
    body: list[list[str]] = []
    for title, found in rows.items():
        own = [found[name] for name in names]
        ours = [title, *(f"{f['ours']:.2f}" for f in own)]
        intervals = ["  95 %", *("{:.1f}-{:.1f}".format(*f["interval"]) for f in own)]
        if own[0]["published"] is None:
            body += [ours, intervals]
            continue
        body.append([*ours, "|", *(f"{f['published']:.2f}" for f in own), own[0]["published_by"]])
        body.append([*intervals, "|", *("" for _ in own), ""])
        if like := [f["like_for_like"] for f in own if f["like_for_like"]]:
            body.append(["  like for like", *("" for _ in own), "|", *(f"{f['published']:.2f}" for f in like)])
            body[-1].append(like[0]["published_by"])
    head = ["|", f"published: {names[0]}", *names[1:], "by, on"] if figures[0]["published"] is not None else []
    return text_table(["", *names, *head], body)
