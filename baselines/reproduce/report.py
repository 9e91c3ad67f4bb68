"""Ours beside the published figures, and what has to be known before the two are compared."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from baselines.reproduce.matrix import Matrix, Row
from baselines.runs.measures import PAPER
from baselines.runs.qrels import Qrels
from baselines.runs.tables import text_table
from builders.store.layout import SETS
from builders.store.reader import Release

_TITLES = {
    4: "retrieval",
    5: "re-ranking (A > B: B re-ranks the top 50 of A)",
    7: "cMedQA, out of domain",
    8: "cCOVID-News, out of domain",
    9: "cross-lingual",
}


@dataclass(frozen=True)
class Measured:
    """A row with our figures, in percent under the paper's names, and the judgments of the split behind them."""

    row: Row
    split: str
    qrels: Qrels
    ours: dict[str, float]


def side_by_side(
    matrix: Matrix, release: Release, measured: Sequence[Measured], *, sample: bool, scratch: bool
) -> dict[str, Any]:
    """Ours and published side by side, in percent, and what has to be known before the two are compared."""
    reference = {(each.row.set, each.split): each.qrels for each in measured}
    sets = [_measured_on(matrix, release, name, split, reference[name, split]) for name, split in sorted(reference)]
    notes = [note for each in sets for note in each.pop("notes")]
    if sample and not all(each["same_collection"] for each in sets):
        notes.insert(0, "this is the embedded sample, written for this project: it shows that every step runs")
    if scratch:
        notes.append("ours are trained from scratch: small models without pretrained weights, not the paper's models")
    return {
        "release": str(release.path),
        "sets": sets,
        "scratch": scratch,
        "notes": notes,
        "unit": "percent",
        "rows": [
            {
                "table": each.row.table,
                "row": each.row.name,
                "title": each.row.title,
                "metric": name,
                "ours": round(each.ours[name], 2),
                "published": published,
            }
            for each in measured
            for name, published in each.row.published.items()
        ],
    }


def _measured_on(matrix: Matrix, release: Release, name: str, split: str, qrels: Qrels) -> dict[str, Any]:
    """What one set's figures were measured on, and whether that is what the paper's were."""
    paper = matrix.published_on[name]
    ours = {
        "queries": len(qrels.positives),
        "positives": qrels.pairs,
        "passages": release.rows(SETS[name].corpus, "corpus"),
    }
    shown_name = "" if name == "main" else f"{name}: "
    notes = []
    compared = [key for key in ("passages", "positives") if key in paper]
    if differ := [key for key in compared if ours[key] != paper[key]]:
        found = " and ".join(f"{ours[key]:,} {key} against {paper[key]:,}" for key in differ)
        notes.append(f"{shown_name}not the published collection ({found}): the two columns are not comparable")
    if split != paper["split"]:
        notes.append(
            f"{shown_name}published: the {paper['split']} split, whose labels are unpublished; ours: the {split} split"
        )
    return {
        "set": name,
        "split": split,
        **ours,
        "published_on": paper,
        "same_collection": not differ,
        "same_split": split == paper["split"],
        "notes": notes,
    }


def text(report: dict[str, Any]) -> str:
    """The report as tables, under what they were measured on."""
    lines = [
        f"measured on: release {report['release']}, {'' if each['set'] == 'main' else each['set'] + ', '}"
        f"split {each['split']}, {each['queries']:,} queries with positives, {each['passages']:,} passages"
        for each in report["sets"]
    ]
    lines += report["notes"]
    for table in sorted({row["table"] for row in report["rows"]}):
        cells: dict[str, dict[str, tuple[float, float]]] = {}
        for row in report["rows"]:
            if row["table"] == table:
                cells.setdefault(row["title"], {})[row["metric"]] = row["ours"], row["published"]
        names = [name for name in PAPER if any(name in found for found in cells.values())]
        body = [
            [title, *(f"{found[name][0]:.2f}" for name in names), "|", *(f"{found[name][1]:.2f}" for name in names)]
            for title, found in cells.items()
        ]
        head = ["", *names, "|", f"published: {names[0]}", *names[1:]]
        lines += ["", f"Table {table}: {_TITLES[table]}", text_table(head, body)]
    lines.append("percent; Recall@k as the paper and the official script count it: a hit rate")
    return "\n".join(lines)
