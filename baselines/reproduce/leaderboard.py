"""The leaderboard: published scores with their sources, and the user's own runs among them.

``leaderboard.toml`` has the scores. Each combination of a searched collection and a split has its own table.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
from msgspec import Meta, Struct, to_builtins

from baselines.measure.measures import PAPER, measure_run, values_of
from baselines.measure.qrels import release_qrels
from baselines.measure.run_origin import warn_of_origins
from baselines.measure.significance import of_means
from builders.core.errors import InputError, UsageError, visible
from builders.core.files import read_toml
from builders.core.results import Report, Table
from builders.core.tables import as_text, markdown_table, text_table
from builders.core.typed import typed
from builders.store.reader import Release, open_release
from builders.store.runs import Run, read_run

LEADERBOARD = Path(__file__).parents[1] / "leaderboard.toml"
LEGEND = (
    "percent; Recall@k (paper): share of questions with a positive in the top k; R@k (MTEB): share of all positives "
    "in the top k; trained: yes if the model declares training on data of DuReader"
)
OTHER = "other"  # neither the whole collection nor MTEB's sample of it
OWN = "own run"
PASSAGES = {"whole": 8_096_668, "sample": 100_001}
_USUAL = ("nDCG@10", "R@10")
# The measures of each table. The first measure sorts the table. The whole collection has the paper's measures (Recall@k
# is a hit rate). The sample has MTEB's measures (R@k is the share of all positives in the top k).
MEASURES = {"whole": tuple(PAPER), "sample": ("nDCG@10", "MRR@10", "R@10"), OTHER: (*PAPER, *_USUAL)}
_SAMPLE_QUERIES = 2_000
_HEADS = {
    "whole": "the whole collection, {passages:,} passages",
    "sample": "MTEB's sample of the collection, {passages:,} passages",
    OTHER: "{release}, {passages:,} passages: not comparable with the other tables",
}
_Place = tuple[str, str, str]  # the searched collection, the split, and for an unknown collection the release
# An own run has ``model``, ``place`` (a _Place), ``passages``, and ``figures`` and ``intervals`` in percent by measure.
Own = dict[str, Any]
_Text = Annotated[str, Meta(min_length=1)]
_Date = Annotated[str, Meta(pattern=r"\A\d{4}-\d\d(-\d\d)?\Z")]


class Source(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A source of scores: a ``document``, or a ``repository`` at a ``commit``.

    ``date`` is the day of the document or the commit. If this day is unknown, the ``note`` says which day it is.
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
        """Name of the document, or of the repository with its commit."""
        return self.document or f"{self.repository} at {self.commit[:8]}"


class Figure(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """One published score, in percent.

    ``file`` is a table or path in the source. ``trained`` is yes if the model declares training on data of DuReader.
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
    """All published scores, and their sources by name."""

    sources: dict[str, Source]
    figures: list[Figure]


def read_leaderboard(path: Path = LEADERBOARD) -> Published:
    """Read the published scores. Raises :class:`InputError` for a repeated score or an unknown source."""
    found = typed(read_toml(path), Published, path)
    seen = set()
    for figure in found.figures:
        what = f"{figure.model}, {figure.metric}, {figure.searched} ({figure.split})"
        if figure.source not in found.sources:
            raise InputError(f"{what}: the file has no source {figure.source!r}; add it", path=path)
        if what in seen:
            raise InputError(f"{what}: listed twice; remove one of the two", path=path)
        seen.add(what)
    return found


def own_of(name: str, release: Release, split: str, measured: tuple[dict[str, Any], Any]) -> Own:
    """Return the leaderboard's entry of a run, ``measured`` by :func:`baselines.measure.measures.measure_run`."""
    result, by_query = measured
    passages = release.rows("corpus", "corpus")
    figures = {shown: 100 * result["official"][key] for shown, key in PAPER.items()}
    figures |= {measure: 100 * result["ir_measures"][measure] for measure in _USUAL}
    columns = np.column_stack([values_of(by_query, measure) for measure in (*PAPER.values(), *_USUAL)])
    percent = {name: (100 * low, 100 * high) for name, (low, high) in zip(figures, of_means(columns), strict=True)}
    place = place_of(passages, result["queries"], split, str(release.path))
    return {"model": name, "place": place, "passages": passages, "figures": figures, "intervals": percent}


def place_of(passages: int, queries: int, split: str, release: str) -> _Place:
    """Return the table of a run. The numbers of passages and questions identify the searched collection."""
    if passages == PASSAGES["whole"]:
        return "whole", split, ""
    if (passages, queries, split) == (PASSAGES["sample"], _SAMPLE_QUERIES, "dev"):
        return "sample", split, ""
    return OTHER, split, release


def board(published: Published, own: Sequence[Own] = ()) -> list[dict[str, Any]]:
    """Return the tables as JSON values.

    The whole collection comes first, then the sample, then other collections. dev comes before test. A table has
    ``searched``, ``split``, ``title``, ``passages``, ``measures``, ``models`` (the best first) and ``of`` (number of
    models). A model has ``model``, ``trained``, ``source``, ``file``, ``figures``. An own run also has ``intervals``.
    """
    places = {(figure.searched, figure.split, "") for figure in published.figures} | {each["place"] for each in own}
    tables = []
    for searched, split, release in sorted(places, key=lambda place: ([*_HEADS].index(place[0]), *place[1:])):
        measures, models = MEASURES[searched], dict[str, dict[str, Any]]()
        for each in published.figures:
            if (each.searched, each.split) == (searched, split):
                about = {"model": each.model, "trained": each.trained, "source": each.source, "file": each.file}
                models.setdefault(each.model, {**about, "figures": {}})["figures"][each.metric] = each.value
        entries, passages = list(models.values()), PASSAGES.get(searched, 0)
        for run in (each for each in own if each["place"] == (searched, split, release)):
            figures = {name: round(run["figures"][name], 2) for name in measures}
            ends = {name: [round(end, 2) for end in run["intervals"][name]] for name in measures}
            about = {"model": run["model"], "trained": "", "source": OWN, "file": ""}
            entries.append({**about, "figures": figures, "intervals": ends})
            passages = run["passages"]
        tables.append(
            {
                "searched": searched,
                "split": split,
                "title": f"{_HEADS[searched].format(passages=passages, release=release)}; {split} questions",
                "passages": passages,
                "of": len(entries),
                "measures": list(measures),
                "models": sorted(entries, key=lambda entry: [-entry["figures"].get(name, -1) for name in measures]),
            }
        )
    return tables


def report_leaderboard(
    runs: Sequence[Run | Path], release_path: Path | None, *, split: str, searched: str | None, top: int | None
) -> Report:
    """Return the published scores and the scores of ``runs`` on a release.

    Args:
        runs: own runs, which are listed even if they are not among the ``top``.
        release_path: the release of the runs. None without runs.
        split: the split of the runs' queries.
        searched: only the tables of this collection, and those of other collections (None: all tables).
        top: the number of models in a table (None: all).
    """
    if bool(runs) != bool(release_path):
        raise UsageError("runs and their release go together: --release DIR --leaderboard RUN...")
    published, entries = read_leaderboard(), []
    if release_path:
        release = open_release(release_path)
        qrels = release_qrels(release, split)
        opened_runs = [read_run(run) for run in runs]
        warn_of_origins(opened_runs, qrels, release, set_name="main", split=split)
        for run in opened_runs:
            entries.append(own_of(str(run.path), release, split, measure_run(run, qrels)))
    tables = [table for table in board(published, entries) if not searched or table["searched"] in (searched, OTHER)]
    for table in tables:
        best = table["models"][:top]
        table["models"] = best + [model for model in table["models"][len(best) :] if "intervals" in model]
    named = {model["source"] for table in tables for model in table["models"]}
    sources = {name: source for name, source in published.sources.items() if name in named}
    described = {name: to_builtins(source) | {"place": source.place} for name, source in sources.items()}
    return Report(
        {"unit": "percent", "tables": tables, "sources": described},
        lambda: _text(tables, sources),
        lambda: [Table(head, rows, title) for title, head, rows in map(grid_of, tables)],
        extra_formats={"markdown": lambda: _markdown(tables, sources)},
    )


def _text(tables: Sequence[Mapping[str, Any]], sources: Mapping[str, Source]) -> str:
    parts = []
    for title, head, rows in map(grid_of, tables):
        cells = [[visible(cell) for cell in row] for row in rows]
        parts.append(f"{visible(title)}\n{text_table(head, cells)}")
    lines = [LEGEND, *(visible(line) for line in listed_of(sources))]
    return "\n\n".join([*parts, "\n".join(lines)])


def _markdown(tables: Sequence[Mapping[str, Any]], sources: Mapping[str, Source]) -> str:
    parts = []
    for title, head, rows in map(grid_of, tables):
        cells = [[as_text(cell) for cell in row] for row in rows]
        parts += [f"### {as_text(title)}", markdown_table(head, cells)]
    lines = [f"- {as_text(line)}" for line in listed_of(sources)]
    return "\n\n".join([*parts, LEGEND, "\n".join(lines)])


def grid_of(table: Mapping[str, Any]) -> tuple[str, list[str], list[list[str]]]:
    """Return (title, head, rows) of a table of :func:`board` as strings. Intervals of own runs have separate rows."""
    names, rows = table["measures"], []
    for model in table["models"]:
        figures = [f"{model['figures'][name]:.2f}" if name in model["figures"] else "-" for name in names]
        rows.append([model["model"], *figures, model["trained"] or "-", model["source"]])
        if "intervals" in model:
            rows.append(["  95 %", *("{:.1f}-{:.1f}".format(*model["intervals"][name]) for name in names), "", ""])
    some = f", the best {len(table['models'])} of {table['of']}" * (len(table["models"]) < table["of"])
    return f"{table['title']}{some}", ["model", *names, "trained", "source"], rows


def listed_of(sources: Mapping[str, Source]) -> list[str]:
    """Return one line for each source, starting with its name."""
    return [
        f"{name}: {each.title}; {each.place}; {each.date}" + f" ({each.note})" * bool(each.note)
        for name, each in sources.items()
    ]
