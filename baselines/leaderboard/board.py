"""Models in order: published figures and own runs, a table for each collection that was searched and each split."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from baselines.leaderboard.published import MEASURES, PASSAGES, Published
from baselines.measure.measures import PAPER
from baselines.measure.significance import Interval, of_means, official_intervals

OTHER = "other"  # neither the whole collection nor MTEB's sample of it
OWN = "own run"
_USUAL = ("nDCG@10", "R@10")
_OTHER_MEASURES = (*PAPER, *_USUAL)
_SAMPLE_QUERIES = 2_000
_HEADS = {
    "whole": "the whole collection, {passages:,} passages",
    "sample": "MTEB's sample of the collection, {passages:,} passages",
    OTHER: "{release}, {passages:,} passages: comparable with nothing above",
}


@dataclass(frozen=True)
class Own:
    """One run of one's own, measured: by measure, percent and its 95 % interval."""

    name: str
    release: str
    passages: int
    queries: int
    split: str
    figures: dict[str, float]
    intervals: dict[str, Interval]

    @property
    def searched(self) -> str:
        """``whole``, ``sample`` or ``other``: by how many passages and questions there were."""
        if self.passages == PASSAGES["whole"]:
            return "whole"
        same = (self.passages, self.queries, self.split) == (PASSAGES["sample"], _SAMPLE_QUERIES, "dev")
        return "sample" if same else OTHER


@dataclass
class Entry:
    """One model of a table: its figures in percent by measure; of one's own run with intervals."""

    model: str
    trained: str
    source: str
    file: str = ""
    figures: dict[str, float] = field(default_factory=dict)
    intervals: dict[str, Interval] = field(default_factory=dict)


def own_of(name: str, release: str, passages: int, split: str, measured: tuple[dict[str, Any], Any]) -> Own:
    """A run of a release's main set, as :func:`baselines.measure.evaluate.evaluate` has measured it."""
    result, by_query = measured
    figures = {shown: 100 * result["official"][key] for shown, key in PAPER.items()}
    figures |= {measure: 100 * result["ir_measures"][measure] for measure in _USUAL}
    sure = official_intervals(by_query)
    intervals = {shown: sure[key] for shown, key in PAPER.items()}
    columns = list(zip(*(by_query[measure].to_pylist() for measure in _USUAL), strict=True))
    intervals |= dict(zip(_USUAL, of_means(columns), strict=True))
    percent = {measure: (100 * low, 100 * high) for measure, (low, high) in intervals.items()}
    return Own(name, release, passages, result["queries"], split, figures, percent)


def board(published: Published, own: Sequence[Own] = ()) -> list[dict[str, Any]]:
    """The tables, as JSON values: whole before sample before others, dev before test; the best first in each.

    A table: ``searched``, ``split``, ``title``, ``passages``, ``measures``, and ``models``: each with ``model``,
    ``trained`` (on data of DuReader, as it declares itself), ``source``, ``file``, ``figures`` and, of own runs,
    ``intervals``.
    """
    places: set[tuple[str, str, str]] = {(figure.searched, figure.split, "") for figure in published.figures}
    places |= {_place(each) for each in own}
    order = ["whole", "sample", OTHER]
    return [
        _table(*place, _entries(published, *place[:2]), [each for each in own if _place(each) == place])
        for place in sorted(places, key=lambda place: (order.index(place[0]), *place[1:]))
    ]


def _place(own: Own) -> tuple[str, str, str]:
    """Which table a run stands in: what was searched, the split, and the release where it is of no known collection."""
    return own.searched, own.split, own.release if own.searched == OTHER else ""


def _table(searched: str, split: str, release: str, entries: list[Entry], own: Sequence[Own]) -> dict[str, Any]:
    measures = MEASURES.get(searched, _OTHER_MEASURES)
    entries = [*entries, *(_own(each, measures) for each in own)]
    entries.sort(key=lambda entry: tuple(-entry.figures.get(measure, -1) for measure in measures))
    passages = PASSAGES[searched] if searched in PASSAGES else own[0].passages
    return {
        "searched": searched,
        "split": split,
        "title": f"{_HEADS[searched].format(passages=passages, release=release)}; {split} questions",
        "passages": passages,
        "measures": list(measures),
        "models": [_shown(entry) for entry in entries],
    }


def _entries(published: Published, searched: str, split: str) -> list[Entry]:
    entries: dict[str, Entry] = {}
    for figure in published.figures:
        if (figure.searched, figure.split) == (searched, split):
            entry = entries.setdefault(figure.model, Entry(figure.model, figure.trained, figure.source, figure.file))
            entry.figures[figure.metric] = figure.value
    return list(entries.values())


def _own(own: Own, measures: Sequence[str]) -> Entry:
    figures = {name: own.figures[name] for name in measures}
    return Entry(own.name, "", OWN, "", figures, {name: own.intervals[name] for name in measures})


def _shown(entry: Entry) -> dict[str, Any]:
    names = ("model", "trained", "source", "file")
    shown: dict[str, Any] = {name: getattr(entry, name) for name in names}
    shown["figures"] = {name: round(value, 2) for name, value in entry.figures.items()}
    if entry.intervals:
        shown["intervals"] = {name: [round(end, 2) for end in ends] for name, ends in entry.intervals.items()}
    return shown
