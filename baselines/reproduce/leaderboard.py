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
from builders.core.errors import InputError, UsageError, make_visible
from builders.core.read_files import read_toml
from builders.core.results import Report, Table
from builders.core.tables import as_text, markdown_table, text_table
from builders.core.typed import convert_to
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
_SAMPLE_QUERIES = 2_000  # the questions of the dev split, which the sample was made for
_HEADS = {
    "whole": "the whole collection, {passages:,} passages",
    "sample": "MTEB's sample of the collection, {passages:,} passages",
    OTHER: "{release}, {passages:,} passages: not comparable with the other tables",
}
# The searched collection, the split, and for an unknown collection the release.
TableKey = tuple[str, str, str]
# An own run has ``model``, ``table_key``, ``passages``, and by measure ``figures`` and ``intervals`` in percent.
Own = dict[str, Any]
_Text = Annotated[str, Meta(min_length=1)]
_Date = Annotated[str, Meta(pattern=r"\A\d{4}-\d\d(-\d\d)?\Z")]


class FigureSource(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
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
    def location(self) -> str:
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

    sources: dict[str, FigureSource]
    figures: list[Figure]


def read_leaderboard(path: Path = LEADERBOARD) -> Published:
    """Read the published scores. Raises :class:`InputError` for a repeated score or an unknown source."""
    published = convert_to(read_toml(path), Published, path)
    figure_names = set()
    for figure in published.figures:
        figure_name = f"{figure.model}, {figure.metric}, {figure.searched} ({figure.split})"
        if figure.source not in published.sources:
            raise InputError(f"{figure_name}: the file has no source {figure.source!r}; add it", path=path)
        if figure_name in figure_names:
            raise InputError(f"{figure_name}: listed twice; remove one of the two", path=path)
        figure_names.add(figure_name)
    return published


def own_of(name: str, release: Release, split: str, measured: tuple[dict[str, Any], Any]) -> Own:
    """Return the leaderboard's entry of a run, ``measured`` by :func:`baselines.measure.measures.measure_run`.

    ``name`` appears in the column of the models. ``figures`` and ``intervals`` have the measures of ``PAPER`` and
    ``_USUAL``.
    """
    means, values_by_query = measured
    passage_count = release.rows("corpus", "corpus")
    figures = {}
    columns = []
    for paper_name, measure in PAPER.items():
        figures[paper_name] = 100 * means["official"][measure]
        columns.append(values_of(values_by_query, measure))
    for measure in _USUAL:
        figures[measure] = 100 * means["ir_measures"][measure]
        columns.append(values_of(values_by_query, measure))
    intervals = {}
    for measure_name, (low, high) in zip(figures, of_means(np.column_stack(columns)), strict=True):
        intervals[measure_name] = (100 * low, 100 * high)
    table_key = table_key_of(passage_count, means["queries"], split, str(release.path))
    return {
        "model": name,
        "table_key": table_key,
        "passages": passage_count,
        "figures": figures,
        "intervals": intervals,
    }


def table_key_of(passage_count: int, query_count: int, split: str, release_path: str) -> TableKey:
    """Return the key of a run's table. The numbers of passages and questions identify the searched collection."""
    if passage_count == PASSAGES["whole"]:
        return "whole", split, ""
    if (passage_count, query_count, split) == (PASSAGES["sample"], _SAMPLE_QUERIES, "dev"):
        return "sample", split, ""
    return OTHER, split, release_path


def leaderboard_values(published: Published, own_runs: Sequence[Own] = ()) -> list[dict[str, Any]]:
    """Return the tables as JSON values.

    The whole collection comes first, then the sample, then other collections. dev comes before test. A table has
    ``searched``, ``split``, ``title``, ``passages``, ``measures``, ``models`` (the best first) and ``of`` (number of
    models). A model has ``model``, ``trained``, ``source``, ``file``, ``figures``. An own run also has ``intervals``.
    """
    table_keys = {(figure.searched, figure.split, "") for figure in published.figures}
    table_keys |= {own_run["table_key"] for own_run in own_runs}
    collections = list(_HEADS)
    tables = []
    for table_key in sorted(table_keys, key=lambda key: (collections.index(key[0]), *key[1:])):
        searched, split, release_path = table_key
        measures = MEASURES[searched]
        passage_count = PASSAGES.get(searched, 0)
        models = _published_models(published, searched, split)
        for own_run in own_runs:
            if own_run["table_key"] == table_key:
                models.append(_own_model(own_run, measures))
                passage_count = own_run["passages"]
        head = _HEADS[searched].format(passages=passage_count, release=release_path)
        tables.append(
            {
                "searched": searched,
                "split": split,
                "title": f"{head}; {split} questions",
                "passages": passage_count,
                "of": len(models),
                "measures": list(measures),
                "models": _best_models_first(models, measures),
            }
        )
    return tables


def _published_models(published: Published, searched: str, split: str) -> list[dict[str, Any]]:
    """Return the models of a table, each with all its published scores."""
    models: dict[str, dict[str, Any]] = {}
    for figure in published.figures:
        if (figure.searched, figure.split) != (searched, split):
            continue
        if figure.model not in models:
            models[figure.model] = {
                "model": figure.model,
                "trained": figure.trained,
                "source": figure.source,
                "file": figure.file,
                "figures": {},
            }
        models[figure.model]["figures"][figure.metric] = figure.value
    return list(models.values())


def _own_model(own_run: Own, measures: Sequence[str]) -> dict[str, Any]:
    """Return an own run as a model of a table."""
    figures = {}
    intervals = {}
    for measure in measures:
        low, high = own_run["intervals"][measure]
        figures[measure] = round(own_run["figures"][measure], 2)
        intervals[measure] = [round(low, 2), round(high, 2)]
    return {
        "model": own_run["model"],
        "trained": "",
        "source": OWN,
        "file": "",
        "figures": figures,
        "intervals": intervals,
    }


def _best_models_first(models: Sequence[dict[str, Any]], measures: Sequence[str]) -> list[dict[str, Any]]:
    """Sort models by the first measure, then by the next measures. A model without a score comes last."""
    # A missing score counts as -1, below every real score.
    return sorted(models, key=lambda model: [-model["figures"].get(measure, -1) for measure in measures])


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
    published = read_leaderboard()
    own_runs = []
    if release_path:
        release = open_release(release_path)
        qrels = release_qrels(release, split)
        opened_runs = [read_run(run) for run in runs]
        warn_of_origins(opened_runs, qrels, release, set_name="main", split=split)
        for run in opened_runs:
            own_runs.append(own_of(str(run.path), release, split, measure_run(run, qrels)))
    tables = []
    for table in leaderboard_values(published, own_runs):
        if searched in (None, table["searched"]) or table["searched"] == OTHER:
            table["models"] = _best_and_own_models(table["models"], top)
            tables.append(table)

    # The report lists only the sources of its tables, in the order of the file.
    source_names = {model["source"] for table in tables for model in table["models"]}
    sources = {name: source for name, source in published.sources.items() if name in source_names}
    described_sources = {}
    for name, source in sources.items():
        described_sources[name] = {**to_builtins(source), "place": source.location}

    def result_tables() -> list[Table]:
        return [Table(head, rows, title) for title, head, rows in map(grid_of, tables)]

    return Report(
        {"unit": "percent", "tables": tables, "sources": described_sources},
        lambda: _text(tables, sources),
        result_tables,
        extra_formats={"markdown": lambda: _markdown(tables, sources)},
    )


def _best_and_own_models(models: Sequence[dict[str, Any]], top: int | None) -> list[dict[str, Any]]:
    """Return the ``top`` best models (None: all), and all own runs among the others."""
    if top is None:
        return list(models)
    own_models = [model for model in models[top:] if "intervals" in model]
    return [*models[:top], *own_models]


def _text(tables: Sequence[Mapping[str, Any]], sources: Mapping[str, FigureSource]) -> str:
    """Return the tables of :func:`leaderboard_values`, the legend and the sources as text."""
    parts = []
    for title, head, rows in map(grid_of, tables):
        cells = [[make_visible(cell) for cell in row] for row in rows]
        parts.append(f"{make_visible(title)}\n{text_table(head, cells)}")
    lines = [LEGEND, *(make_visible(line) for line in listed_of(sources))]
    return "\n\n".join([*parts, "\n".join(lines)])


def _markdown(tables: Sequence[Mapping[str, Any]], sources: Mapping[str, FigureSource]) -> str:
    """Return the content of :func:`_text` as Markdown."""
    parts = []
    for title, head, rows in map(grid_of, tables):
        cells = [[as_text(cell) for cell in row] for row in rows]
        parts += [f"### {as_text(title)}", markdown_table(head, cells)]
    lines = [f"- {as_text(line)}" for line in listed_of(sources)]
    return "\n\n".join([*parts, LEGEND, "\n".join(lines)])


def grid_of(table: Mapping[str, Any]) -> tuple[str, list[str], list[list[str]]]:
    """Return (title, head, rows) of a table of :func:`leaderboard_values` as strings.

    Intervals of own runs have separate rows.
    """
    measures = table["measures"]
    rows = []
    for model in table["models"]:
        scores = [f"{model['figures'][name]:.2f}" if name in model["figures"] else "-" for name in measures]
        rows.append([model["model"], *scores, model["trained"] or "-", model["source"]])
        if "intervals" in model:
            intervals = ["{:.1f}-{:.1f}".format(*model["intervals"][name]) for name in measures]
            rows.append(["  95 %", *intervals, "", ""])
    title = table["title"]
    if len(table["models"]) < table["of"]:
        title += f", the best {len(table['models'])} of {table['of']}"
    return title, ["model", *measures, "trained", "source"], rows


def listed_of(sources: Mapping[str, FigureSource]) -> list[str]:
    """Return one line for each source, starting with its name."""
    lines = []
    for name, source in sources.items():
        note = f" ({source.note})" if source.note else ""
        lines.append(f"{name}: {source.title}; {source.location}; {source.date}{note}")
    return lines
