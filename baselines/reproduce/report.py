"""The report of ``reproduce`` as JSON values: our scores, the published scores, intervals and marks."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from msgspec import Struct, to_builtins

from baselines.core.checkpoint import TRAINING
from baselines.measure.measures import PAPER, measure_run
from baselines.measure.qrels import Qrels, release_qrels
from baselines.measure.significance import Interval
from baselines.reproduce.leaderboard import Own, own_of
from baselines.reproduce.marks import NOT, nearness, other_data, other_models
from baselines.reproduce.matrix import Matrix, Reference, Row, Step, behind
from baselines.reproduce.step_settings import Settings
from baselines.reproduce.steps import Stamp, shown
from builders.core.errors import InputError, log
from builders.core.typed import read_json
from builders.store.layout import SETS
from builders.store.reader import Release
from builders.store.runs import read_run


@dataclass(frozen=True)
class Measured:
    """A row with our scores (in percent, under the paper's names), the 95 % intervals, and the judgments."""

    row: Row
    split: str
    qrels: Qrels
    ours: dict[str, float]
    intervals: dict[str, Interval]

    def counts(self, release: Release) -> dict[str, int]:
        """Return the numbers of queries, positives and passages that the row was measured on."""
        return {
            "queries": len(self.qrels.positives),
            "positives": self.qrels.pairs,
            "passages": release.rows(SETS[self.row.set].corpus, "corpus"),
        }


def measure(
    rows: Sequence[Row], plan: Mapping[str, Step], release: Release, split: str
) -> tuple[list[Measured], list[Own]]:
    """Return the measured rows, and leaderboard entries for runs that are measured on the whole split of main."""
    known: dict[Reference, Qrels] = {}
    found: list[Measured] = []
    own: dict[str, Own] = {}
    for row in rows:
        reference = row.reference(split)
        if reference not in known:
            known[reference] = release_qrels(release, reference.split, row.set, row.queries, row.qrels)
        measured = measure_run(read_run(plan[row.step].output), known[reference])
        ours = own_of(row.title, release, reference.split, measured)
        found.append(Measured(row, reference.split, known[reference], ours["figures"], ours["intervals"]))
        if row.set == "main" and not (row.queries or row.qrels):
            own.setdefault(row.step, ours)
    return found, list(own.values())


def side_by_side(
    matrix: Matrix,
    release: Release,
    measured: Sequence[Measured],
    plan: Mapping[str, Step],
    done: Mapping[str, Stamp],
    settings: Settings,
) -> dict[str, Any]:
    """Return the report of the measured rows.

    ``release`` is the release that the rows were measured on. ``plan`` has the steps behind the rows, ``done`` the
    stamps and ``settings`` the settings of these steps. ``matrix`` has the published scores.
    """
    counted = {each.row.reference(each.split): each.counts(release) for each in measured}
    sets = [
        {"set": each.set, "split": each.split, "of": each.queries, "by": each.qrels, **counted[each]}
        for each in sorted(counted)
    ]
    return {
        "release": str(release.path),
        "sets": sets,
        "unit": "percent",
        "rows": [figure for each in measured for figure in _figures(matrix, release, each, plan, done, settings)],
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
    row, steps, counts = each.row, behind(plan, each.row.step), each.counts(release)
    models = other_models(steps.values(), settings)

    def beside(theirs: Row, name: str) -> dict[str, Any]:
        """Return a row's published score, and the mark of our score."""
        on, value = matrix.published(theirs), theirs.published.get(name)
        mark, why = None, ["the paper prints no number"]
        if value is not None:
            why = [*other_data(counts, each.split, on), *models]
            mark = NOT if why else nearness(each.intervals[name], value)
        return {"published": value, "published_by": f"{on.source}, {on.split}", "mark": mark, "why": why}

    like = next((other for other in matrix.rows if other.name == row.like), None)
    if like and matrix.published(like).split != each.split:
        like = None
    for name in row.published or PAPER:  # all measures if the paper prints no number
        yield {
            "table": row.table,
            **({"pool": True} if row.pool else {}),
            **({"figure": row.figure, "series": row.series} if row.figure else {}),
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


class _Training(Struct):
    """The part of a ``training.json`` that the page shows."""

    losses: list[tuple[int, float]] = []
    dev: list[dict[str, float]] = []
    steps: int = 0
    seconds: float = 0.0
    device: str = ""


def trainings(plan: Mapping[str, Step]) -> list[dict[str, Any]]:
    """Return the curves of a plan's trainings: ``losses`` as [step, loss], ``dev`` as [step, fraction] of ``measure``.

    A training with an unreadable record is skipped, with a warning.
    """
    found = []
    for step in (step for step in plan.values() if step.command[1] == "train"):
        try:
            read = read_json(step.output / TRAINING, _Training)
        except (InputError, OSError) as error:
            log.warning("skipping the curve of %s: %s", step.output, error)
            continue
        metric = next((name for row in read.dev for name in row if name != "step"), "")
        dev = [[row["step"], row[metric]] for row in read.dev if "step" in row and metric in row]
        found.append({"recipe": step.command[2], "measure": metric} | to_builtins(read) | {"dev": dev})
    return found
