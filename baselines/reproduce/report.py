"""The report of ``reproduce`` as JSON values: our figures beside the published ones, with intervals and marks."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from msgspec import Meta, Struct, to_builtins

from baselines.checkpoint import TRAINING
from baselines.measure.evaluate import evaluate
from baselines.measure.measures import PAPER
from baselines.measure.qrels import Qrels, release_qrels
from baselines.measure.significance import Interval, official_intervals
from baselines.reproduce.leaderboard import Own, own_of
from baselines.reproduce.marks import NOT, mark, nearness, nearness_of_count, other_data, other_models
from baselines.reproduce.matrix import Category, Counted, Matrix, Reference, Row, Step, behind
from baselines.reproduce.settings import Settings
from baselines.reproduce.steps import Stamp, shown
from builders.check.paper import published
from builders.core.errors import InputError, log
from builders.core.typed import Count, read_json
from builders.store.layout import SETS
from builders.store.manifest import STATS, read_stats
from builders.store.reader import Release
from builders.store.runs import read_run

_AS_THEY_ARE = Settings()
TALLY_WANTED = (
    "Table 10 is left out: its errors are told apart by people. `python -m baselines errors` draws them as a round; "
    "--errors FILE takes what its --tally ROUND --format json prints"
)
_Share = Annotated[float, Meta(ge=0, le=1)]


@dataclass(frozen=True)
class Measured:
    """A row with our figures, in percent under the paper's names, their 95 % intervals, and the judgments behind."""

    row: Row
    split: str
    qrels: Qrels
    ours: dict[str, float]
    intervals: dict[str, Interval]

    def counts(self, release: Release) -> dict[str, int]:
        """Numbers of queries, positives and passages that the row was measured on."""
        passages = release.rows(SETS[self.row.set].corpus, "corpus")
        return {"queries": len(self.qrels.positives), "positives": self.qrels.pairs, "passages": passages}


def measure(
    rows: Sequence[Row], plan: Mapping[str, Step], release: Release, split: str
) -> tuple[list[Measured], list[Own]]:
    """Measure each row's run; also return, for the leaderboard, the runs of main's questions by all its judgments."""
    known: dict[Reference, Qrels] = {}
    found: list[Measured] = []
    own: dict[str, Own] = {}
    for row in rows:
        reference = row.reference(split)
        if reference not in known:
            known[reference] = release_qrels(release, reference.split, row.set, row.queries, row.qrels)
        measured = evaluate(read_run(plan[row.step].output), known[reference])
        ours = {name: 100 * measured[0]["official"][key] for name, key in PAPER.items()}
        sure = official_intervals(measured[1])
        intervals = {name: (100 * sure[key][0], 100 * sure[key][1]) for name, key in PAPER.items()}
        found.append(Measured(row, reference.split, known[reference], ours, intervals))
        if row.set == "main" and not (row.queries or row.qrels):
            passages = release.rows(SETS["main"].corpus, "corpus")
            own.setdefault(row.step, own_of(row.title, str(release.path), passages, reference.split, measured))
    return found, list(own.values())


def side_by_side(
    matrix: Matrix,
    release: Release,
    measured: Sequence[Measured],
    plan: Mapping[str, Step],
    done: Mapping[str, Stamp],
    settings: Settings = _AS_THEY_ARE,
) -> dict[str, Any]:
    """The report of some rows.

    Args:
        matrix: what is published.
        release: what the rows were measured on.
        measured: the rows.
        plan: the steps behind the rows.
        done: the stamp of each step.
        settings: what the steps were run with.
    """
    by_reference: dict[Reference, list[Measured]] = {}
    for each in measured:
        by_reference.setdefault(each.row.reference(each.split), []).append(each)
    sets = [_measured_on(matrix, release, key, by_reference[key]) for key in sorted(by_reference)]
    return {
        "release": str(release.path),
        "sets": sets,
        "notes": list(dict.fromkeys(note for each in sets for note in each.pop("notes"))),
        "unit": "percent",
        "predictions": [],
        "images": [],
        "rows": [figure for each in measured for figure in _figures(matrix, release, each, plan, done, settings)],
        "data": [],
        "errors": [],
        "commands": [],
        "trainings": [],
        "steps": {
            name: {
                "command": shown(step.command, done[name].processes),
                "seconds": done[name].seconds,
                "processes": done[name].processes,
            }
            for name, step in plan.items()
        },
    }


def _figures(
    matrix: Matrix,
    release: Release,
    each: Measured,
    plan: Mapping[str, Step],
    done: Mapping[str, Stamp],
    settings: Settings,
) -> Iterator[dict[str, Any]]:
    """The figures of one row."""
    row, steps, counts = each.row, behind(plan, each.row.step), each.counts(release)
    models = other_models(steps.values(), settings)

    def beside(theirs: Row, name: str) -> dict[str, Any]:
        """The published figure of a row, and its mark."""
        on, value = matrix.published(theirs), theirs.published.get(name)
        by = {"published": value, "published_by": f"{on.source}, {on.split}"}
        if value is None:
            return {**by, "mark": None, "why": ["the paper prints no number"]}
        why = [*other_data(counts, each.split, on), *models]
        return {**by, **mark(why, nearness(each.ours[name], each.intervals[name], value))}

    like = next((other for other in matrix.rows if other.name == row.like), None)
    if like and matrix.published(like).split != each.split:
        like = None
    figure = {} if row.figure is None else {"figure": row.figure, "series": row.series}
    for name in row.measures:
        yield {
            "table": row.table,
            **figure,
            "row": row.name,
            "title": f"{row.title}, {row.series}" if row.series else row.title,
            "metric": name,
            "ours": round(each.ours[name], 2),
            "interval": [round(end, 2) for end in each.intervals[name]],
            **beside(row, name),
            "like_for_like": beside(like, name) if like else None,
            "step": row.step,
            "seconds": round(sum(done[step].seconds for step in steps), 1),
        }


def _measured_on(matrix: Matrix, release: Release, reference: Reference, rows: Sequence[Measured]) -> dict[str, Any]:
    """The data that the rows of one reference were measured on, and whether the published figures had the same."""
    ours, split = rows[0].counts(release), reference.split
    published = list(dict.fromkeys(matrix.published(each.row) for each in rows))
    some = {key: value for key, value in (("of", reference.queries), ("by", reference.qrels)) if value}
    name = reference.queries or ("" if reference.set == "main" else reference.set)
    shown_name = f"{name}: " if name else ""
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
        "set": reference.set,
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


def data_figures(matrix: Matrix, counts: Sequence[Counted], release: Release) -> list[dict[str, Any]]:
    """Table 3: the counts of a release's stats.json beside the paper's; columns that the release lacks are logged."""
    if not counts:
        return []
    if any(entry.path == STATS for entry in release.manifest.files):
        release.named(STATS)  # verified against the manifest
    stats, paper = read_stats(release.path), published()
    found, lacking = [], []
    for each in counts:
        group, _, column = each.of.partition(".")
        ours, theirs = (content.get(group, {}).get(column) for content in (stats, paper))
        if not ours or not theirs:
            lacking.append(each.title)
            continue
        why = []
        # Other data: another size of the collection; of a set whose collection's size is not printed, of the set.
        if group == "collections" or column in SETS["main"].table3:
            own, their = stats.get("collections", {}).get("corpus", {}), paper["collections"]["corpus"]
            what = "passages"
        else:
            own, their, what = ours, theirs, "queries"
        if own.get(what, 0) != their[what]:
            why = [f"{own.get(what, 0):,} {what}, not {their[what]:,}"]
        for metric, value in theirs.items():
            count = ours.get(metric)
            judged = {"mark": None, "why": ["the release has no labels of this split"]}
            found.append(
                {
                    "table": each.table,
                    "row": each.name,
                    "title": each.title,
                    "metric": metric,
                    "ours": count,
                    "interval": None,
                    "published": value,
                    "published_by": "paper",
                    **(judged if count is None else mark(why, nearness_of_count(count, value))),
                    "command": f"python -m {matrix.made_by['count'].format(release=release.path)}",
                }
            )
    if lacking:
        log.info("Table %d: %s has no %s; left out", counts[0].table, release.path, ", ".join(lacking))
    return found


class _Kind(Struct):
    """The share of a category among the decided pairs, and its 95 % interval."""

    share: _Share
    low: _Share
    high: _Share


class _Tally(Struct):
    """The part of a tally that is read."""

    categories: dict[str, _Kind]
    decided: Count
    release: str = ""
    split: str = ""


def error_figures(matrix: Matrix, categories: Sequence[Category], path: Path) -> list[dict[str, Any]]:
    """Table 10: the share of each category in percent, from a tally of `errors` as JSON, beside the paper's.

    Raises :class:`InputError` where the file is none, or lacks a category.
    """
    try:
        tally = read_json(path, _Tally, any_file=True)
    except (FileNotFoundError, NotADirectoryError):
        raise InputError("no such file; expected what `errors --tally ROUND --format json` prints", path=path) from None
    if lacking := next((each.name for each in categories if each.name not in tally.categories), None):
        raise InputError(f"categories: lacks {lacking}", path=path)
    of = f"{tally.decided:,} pairs of {tally.release or 'a release'}, {tally.split or 'a split'}"
    kinds = [(each, tally.categories[each.name]) for each in categories]
    return [
        {
            "table": each.table,
            "row": each.name,
            "title": each.title,
            "metric": "share",
            "ours": round(100 * kind.share, 2),
            "interval": [round(100 * kind.low, 2), round(100 * kind.high, 2)],
            "published": each.published,
            "published_by": "paper, 500 pairs",
            "mark": NOT,
            "why": [f"{of}: a tally does not say of which models' errors it is"],
            "command": f"python -m {matrix.made_by['category']}",
        }
        for each, kind in kinds
    ]


class _Training(Struct):
    """The part of a ``training.json`` that is shown."""

    losses: list[tuple[int, float]] = []
    dev: list[dict[str, float]] = []
    steps: int = 0
    seconds: float = 0.0
    device: str = ""


def trainings(plan: Mapping[str, Step]) -> list[dict[str, Any]]:
    """The curves of a plan's trainings: ``losses`` as [step, loss], ``dev`` as [step, fraction] of ``measure``.

    A training whose record cannot be read is skipped, with a warning.
    """
    found = []
    for step in (step for step in plan.values() if step.command[1] == "train"):
        try:
            read = read_json(step.output / TRAINING, _Training)
        except (InputError, OSError) as error:
            log.warning("no curve of %s: %s", step.output, error)
            continue
        metric = next((name for row in read.dev for name in row if name != "step"), "")
        dev = [[row["step"], row[metric]] for row in read.dev if "step" in row and metric in row]
        found.append({"recipe": step.command[2], "measure": metric} | to_builtins(read) | {"dev": dev})
    return found
