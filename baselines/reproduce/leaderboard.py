"""The leaderboard: published figures with the place where each is printed, and own runs among them.

``leaderboard.toml`` holds the figures. There is a table for each collection that was searched and each split.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple

from msgspec import Meta, Struct

from baselines.measure.evaluate import evaluate
from baselines.measure.measures import PAPER
from baselines.measure.qrels import release_qrels
from baselines.measure.significance import Interval, of_means, official_intervals
from builders.core.errors import InputError, visible
from builders.core.files import read_toml
from builders.core.tables import as_text as escaped
from builders.core.tables import text_table
from builders.core.typed import typed
from builders.store.reader import open_release
from builders.store.runs import read_run

LEADERBOARD = Path(__file__).parents[1] / "leaderboard.toml"
LEGEND = (
    "percent; Recall@k: the share of questions with a positive in the top k (the paper's); R@k: the share of the "
    "positives found (MTEB's); trained: on data of DuReader, as the model declares"
)
OTHER = "other"  # neither the whole collection nor MTEB's sample of it
OWN = "own run"
PASSAGES = {"whole": 8_096_668, "sample": 100_001}
_USUAL = ("nDCG@10", "R@10")
# The measures of each table; the first orders it. On the whole: as the paper prints them (Recall@k: a hit rate). On the
# sample: MTEB's (R@k: the share of the positives that is found).
MEASURES = {"whole": tuple(PAPER), "sample": ("nDCG@10", "MRR@10", "R@10"), OTHER: (*PAPER, *_USUAL)}
_SAMPLE_QUERIES = 2_000
_HEADS = {
    "whole": "the whole collection, {passages:,} passages",
    "sample": "MTEB's sample of the collection, {passages:,} passages",
    OTHER: "{release}, {passages:,} passages: comparable with nothing above",
}
_Text = Annotated[str, Meta(min_length=1)]
_Date = Annotated[str, Meta(pattern=r"\A\d{4}-\d\d(-\d\d)?\Z")]


class Source(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A source of figures: a ``document``, or a ``repository`` at a ``commit``.

    ``date``: of the document or the commit; where it is another day, ``note`` says which.
    """

    title: _Text
    date: _Date
    document: str = ""
    repository: str = ""
    commit: str = ""
    note: str = ""

    def __post_init__(self) -> None:
        if bool(self.document) == bool(self.repository) or bool(self.repository) != bool(self.commit):
            raise ValueError("expected a document, or a repository and its commit")

    @property
    def place(self) -> str:
        """The document, or the repository with its commit."""
        return self.document or f"{self.repository} at {self.commit[:8]}"


class Figure(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """One published figure, in percent; ``file``: where in its source it stands (a table, a path).

    ``trained``: yes if the model declares that it was trained on data of DuReader.
    """

    model: _Text
    metric: _Text
    value: Annotated[float, Meta(ge=0, le=100)]
    searched: Literal["whole", "sample"]
    split: Literal["dev", "test"]
    trained: Literal["yes", "no", "undeclared"]
    source: _Text
    file: _Text

    def __post_init__(self) -> None:
        if self.metric not in MEASURES[self.searched]:
            raise ValueError(f"metric: expected one of {', '.join(MEASURES[self.searched])}, found {self.metric!r}")


class Published(Struct, frozen=True, forbid_unknown_fields=True):
    """All figures, and their sources by name."""

    sources: dict[str, Source]
    figures: list[Figure]


class Own(NamedTuple):
    """An own run, measured: percent and 95 % interval by measure."""

    name: str
    release: str
    passages: int
    queries: int
    split: str
    figures: dict[str, float]
    intervals: dict[str, Interval]

    @property
    def place(self) -> tuple[str, str, str]:
        """The table of the run: what was searched, the split, and the release where its collection is not known.

        The numbers of passages and questions tell what was searched.
        """
        if self.passages == PASSAGES["whole"]:
            return "whole", self.split, ""
        if (self.passages, self.queries, self.split) == (PASSAGES["sample"], _SAMPLE_QUERIES, "dev"):
            return "sample", self.split, ""
        return OTHER, self.split, self.release


def read_leaderboard(path: Path = LEADERBOARD) -> Published:
    """Read the figures. :class:`InputError` for one without a source, or that is there twice."""
    found = typed(read_toml(path), Published, path)
    seen = set()
    for figure in found.figures:
        what = f"{figure.model}, {figure.metric}, {figure.searched} ({figure.split})"
        if figure.source not in found.sources:
            raise InputError(f"{what}: has no source {figure.source!r}", path=path)
        if what in seen:
            raise InputError(f"{what}: is there twice", path=path)
        seen.add(what)
    return found


def own_of(name: str, release: str, passages: int, split: str, measured: tuple[dict[str, Any], Any]) -> Own:
    """A run of a release's main set, as :func:`baselines.measure.evaluate.evaluate` has measured it."""
    result, by_query = measured
    figures = {shown: 100 * result["official"][key] for shown, key in PAPER.items()}
    figures |= {measure: 100 * result["ir_measures"][measure] for measure in _USUAL}
    columns = list(zip(*(by_query[measure].to_pylist() for measure in _USUAL), strict=True))
    intervals = [*official_intervals(by_query).values(), *of_means(columns)]
    percent = {measure: (100 * low, 100 * high) for measure, (low, high) in zip(figures, intervals, strict=True)}
    return Own(name, release, passages, result["queries"], split, figures, percent)


def board(published: Published, own: Sequence[Own] = ()) -> list[dict[str, Any]]:
    """The tables, as JSON values: whole before sample before others, dev before test; the best first in each.

    A table: ``searched``, ``split``, ``title``, ``passages``, ``measures``, and ``models``: each with ``model``,
    ``trained`` (on data of DuReader, as it declares itself), ``source``, ``file``, ``figures`` and, of own runs,
    ``intervals``.
    """
    places = {(figure.searched, figure.split, "") for figure in published.figures} | {each.place for each in own}
    order = list(_HEADS)
    return [
        _table(place, published, [each for each in own if each.place == place])
        for place in sorted(places, key=lambda place: (order.index(place[0]), *place[1:]))
    ]


def _table(place: tuple[str, str, str], published: Published, own: Sequence[Own]) -> dict[str, Any]:
    searched, split, release = place
    measures = MEASURES[searched]
    models: dict[str, dict[str, Any]] = {}
    for each in published.figures:
        if (each.searched, each.split) == (searched, split):
            about = {"model": each.model, "trained": each.trained, "source": each.source, "file": each.file}
            models.setdefault(each.model, {**about, "figures": {}})["figures"][each.metric] = each.value
    entries = list(models.values())
    for run in own:
        about = {"model": run.name, "trained": "", "source": OWN, "file": ""}
        ends = {name: [round(end, 2) for end in run.intervals[name]] for name in measures}
        entries.append({**about, "figures": {name: run.figures[name] for name in measures}, "intervals": ends})
    entries.sort(key=lambda entry: tuple(-entry["figures"].get(measure, -1) for measure in measures))
    for entry in entries:
        entry["figures"] = {name: round(value, 2) for name, value in entry["figures"].items()}
    passages = PASSAGES[searched] if searched in PASSAGES else own[0].passages
    return {
        "searched": searched,
        "split": split,
        "title": f"{_HEADS[searched].format(passages=passages, release=release)}; {split} questions",
        "passages": passages,
        "measures": list(measures),
        "models": entries,
    }


def print_leaderboard(args: argparse.Namespace) -> None:
    """Print the tables that the options of `reproduce --leaderboard` ask for."""
    if bool(args.leaderboard) != bool(args.release):
        raise InputError("expected runs with the release that they are of: --release DIR --leaderboard RUN...")
    published, own = read_leaderboard(), []
    if args.leaderboard:
        release = open_release(args.release)
        qrels, passages = release_qrels(release, args.split), release.rows("corpus", "corpus")
        own = [
            own_of(str(path), str(release.path), passages, args.split, evaluate(read_run(path), qrels))
            for path in args.leaderboard
        ]
    tables = board(published, own)
    for table in tables:
        models = table["models"]
        kept = [each for place, each in enumerate(models) if place < (args.top or len(models)) or "intervals" in each]
        table |= {"models": kept, "of": len(models)}
    if args.searched:
        tables = [table for table in tables if table["searched"] in (args.searched, OTHER)]
    named = {model["source"] for table in tables for model in table["models"]}
    sources = {name: source for name, source in published.sources.items() if name in named}
    if args.format == "json":
        keys = ("title", "place", "date", "note")
        listed = {name: {key: getattr(source, key) for key in keys} for name, source in sources.items()}
        print(json.dumps({"unit": "percent", "tables": tables, "sources": listed}, ensure_ascii=False, indent=1))
    else:
        print(_printed(tables, sources, args.format == "markdown"))


def _printed(tables: Sequence[dict[str, Any]], sources: dict[str, Source], mark: bool) -> str:
    """Each table under its title, then the sources by their names."""
    lines = []
    for table in tables:
        some = f", the best {len(table['models'])} of {table['of']}" if len(table["models"]) < table["of"] else ""
        title, names = visible(f"{table['title']}{some}"), table["measures"]
        if mark:
            head = ["model", *names, "trained", "source"]
            lines += [f"### {escaped(title)}", "", f"| {' | '.join(head)} |", "|---" * len(head) + "|"]
            lines += [f"| {' | '.join(row)} |" for model in table["models"] for row in _rows(model, names, mark)]
        else:
            rows = [row for model in table["models"] for row in _rows(model, names, mark)]
            lines += [title, text_table(["", *names, "trained", "source"], rows)]
        lines.append("")
    lines += [LEGEND, *[""] * mark]
    for name, source in sources.items():
        said = f"{source.title}; {source.place}; {source.date}" + f" ({source.note})" * bool(source.note)
        lines.append(f"- {name}: {escaped(said)}" if mark else f"{name}: {said}")
    return "\n".join(lines)


def _rows(model: dict[str, Any], names: Sequence[str], mark: bool) -> list[list[str]]:
    """The cells of a model: its intervals behind the figures in Markdown, in a row of their own in text."""
    figures = [f"{model['figures'][name]:.2f}" if name in model["figures"] else "-" for name in names]
    ends = [model["intervals"][name] for name in names] if "intervals" in model else []
    if not mark:
        row = [visible(model["model"]), *figures, model["trained"] or "-", model["source"]]
        return [row, *[["  95 %", *(f"{low:.1f}-{high:.1f}" for low, high in ends), "", ""]] * bool(ends)]
    if ends:
        figures = [f"{each} ({low:.1f} to {high:.1f})" for each, (low, high) in zip(figures, ends, strict=True)]
    return [[escaped(model["model"]), *figures, model["trained"] or "-", escaped(model["source"])]]
