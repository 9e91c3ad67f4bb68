"""Ours beside the published figures, and what has to be known before the two are compared."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from msgspec import to_builtins

from baselines.measure.qrels import Qrels
from baselines.measure.significance import Interval
from baselines.reproduce.marks import mark, nearness, other_data, other_models
from baselines.reproduce.matrix import Matrix, Published, Reference, Row, Step
from baselines.reproduce.settings import Settings
from baselines.reproduce.steps import Finished, shown
from builders.store.layout import SETS
from builders.store.reader import Release

_AS_THEY_ARE = Settings()


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
    settings: Settings = _AS_THEY_ARE,
) -> dict[str, Any]:
    """Ours and published side by side, in percent, and what has to be known before the two are compared.

    ``plan`` and ``done``: the steps behind the rows, and how long each took; ``settings``: what they were run with.
    ``rows``: a figure each, with its mark (:mod:`.marks`). ``data`` and ``errors``: those of Tables 3 and 10, which
    come from no run, in the same form.
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
        "rows": [
            figure
            for each in measured
            for figure in _figures(matrix, each, plan, done, _Compared(matrix, each, release, plan, settings))
        ],
        "data": [],
        "errors": [],
        "commands": [],
        "trainings": [],
        "steps": {
            name: {"command": shown(step.command, done[name].processes), **asdict(done[name])}
            for name, step in plan.items()
        },
    }


class _Compared:
    """Why a row's figures are not those of published ones, worked out once for all its measures."""

    def __init__(
        self, matrix: Matrix, each: Measured, release: Release, plan: Mapping[str, Step], settings: Settings
    ) -> None:
        self._matrix, self._split, row = matrix, each.split, each.row
        self._counts = counts_of(release, row.set, each.qrels)
        own = behind(plan, row.step)
        self._models = other_models([step for name, step in plan.items() if name in own], settings)

    def with_those_of(self, row: Row) -> list[str]:
        return [*other_data(self._counts, self._split, self._matrix.published(row)), *self._models]


def _figures(
    matrix: Matrix, each: Measured, plan: Mapping[str, Step], done: Mapping[str, Finished], compared: _Compared
) -> Iterator[dict[str, Any]]:
    """The figures of one row."""
    row, on = each.row, matrix.published(each.row)
    like = next((other for other in matrix.rows if other.name == row.like), None)
    if like and matrix.published(like).split != each.split:
        like = None
    place: dict[str, Any] = {"table": row.table}
    if row.figure is not None:
        place |= {"figure": row.figure, "series": row.series}
    why = compared.with_those_of(row)
    for name in row.measures:
        ours, interval, published = each.ours[name], each.intervals[name], row.published.get(name)
        figure: dict[str, Any] = {
            **place,
            "row": row.name,
            "title": f"{row.title}, {row.series}" if row.series else row.title,
            "metric": name,
            "ours": round(ours, 2),
            "interval": [round(end, 2) for end in interval],
            "published": published,
            "published_by": f"{on.source}, {on.split}",
            "mark": None,
            "why": ["the paper prints no number"],
            "like_for_like": None,
            "step": row.step,
            "seconds": round(sum(done[step].seconds for step in behind(plan, row.step)), 1),
        }
        if published is not None:
            figure |= mark(why, nearness(ours, interval, published))
        if like:
            by = matrix.published(like)
            figure["like_for_like"] = {
                "published": like.published[name],
                "published_by": f"{by.source}, {by.split}",
                **mark(compared.with_those_of(like), nearness(ours, interval, like.published[name])),
            }
        yield figure


def behind(plan: Mapping[str, Step], step: str) -> set[str]:
    """A step and all those whose output it depends on."""
    return {step}.union(*(behind(plan, other) for other in plan[step].needs))


def counts_of(release: Release, set_name: str, qrels: Qrels) -> dict[str, int]:
    """How much a row was measured on: ``queries``, ``positives``, ``passages``."""
    return {
        "queries": len(qrels.positives),
        "positives": qrels.pairs,
        "passages": release.rows(SETS[set_name].corpus, "corpus"),
    }


def _measured_on(
    release: Release, reference: Reference, qrels: Qrels, published: Sequence[Published]
) -> dict[str, Any]:
    """What one reference's figures were measured on, and whether that is what the published ones were."""
    name, split = reference.set, reference.split
    some = {key: value for key, value in (("of", reference.queries), ("by", reference.qrels)) if value}
    ours = counts_of(release, name, qrels)
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
