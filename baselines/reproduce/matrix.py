"""``matrix.toml``: the rows of the paper's tables and figures, the steps behind each row, and the published scores."""

import argparse
import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Annotated, NamedTuple

from msgspec import Meta, Struct, field

from baselines.reproduce.step_settings import Settings
from baselines.train.recipe import FROM_RECIPE, Recipe, read_recipe
from builders.core.errors import InputError, log
from builders.core.files import read_toml
from builders.core.typed import typed
from builders.store.layout import SETS
from builders.store.reader import Release

MATRIX = Path(__file__).with_name("matrix.toml")
SCRATCH = "-scratch"  # {variant} of the recipes without pretrained weights
NO_SETTINGS = Settings()
WORD = re.compile(r"\{([^{}]*)\}")  # a name in braces in a step
_Place = tuple[str, int]  # ("table", 4), ("figure", 2) or ("pool", 1)


class Reference(NamedTuple):
    """The judgments of a set's split that a row is measured against.

    ``queries`` and ``qrels`` name configs that replace the set's questions and judgments (empty: the set's own).
    """

    set: str
    split: str
    queries: str
    qrels: str


class Row(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """One row of a table, or one bar of each panel of a figure.

    Attributes:
        step: the step that writes the measured run.
        published: the published scores in percent.
        published_on: the data of the published scores (empty: the paper's data of the set).
        like: another row. The published scores of that row are also compared with our scores, if the splits agree.
        official_negatives: True if the steps read the hard negatives of the official data.
        queries, qrels: see :class:`Reference`.
        needs: further configs that the release must have.
        series: the series of a figure's bar, such as before or after. Rows of a table have none.
    """

    table: Annotated[int, Meta(ge=1)] | None = None
    figure: Annotated[int, Meta(ge=1)] | None = None
    pool: bool = False
    name: str
    title: str  # as in the paper; "A > B" means that B re-ranks the top passages of A
    step: str
    published: dict[str, Annotated[float, Meta(ge=0, le=100)]]
    set: str = "main"
    split: str = ""  # empty: the user's --split
    published_on: str = ""
    like: str = ""
    official_negatives: bool = False
    queries: str = ""
    qrels: str = ""
    needs: tuple[str, ...] = ()
    series: str = ""

    def __post_init__(self) -> None:
        if [self.table, self.figure, self.pool or None].count(None) != 2 or bool(self.series) != bool(self.figure):
            raise ValueError("expected a table, a figure and a series, or pool = true")

    @property
    def place(self) -> _Place:
        """The table or figure of the row, or the pool."""
        if self.pool:
            return "pool", 1
        return ("figure", self.figure) if self.figure is not None else ("table", self.table or 0)

    def reference(self, split: str) -> Reference:
        """Return the judgments of the row. ``split`` is used if the row has no split."""
        return Reference(self.set, self.split or split, self.queries, self.qrels)


@dataclass(frozen=True)
class Step:
    """A step of a plan: the words after ``python -m``, the output, and the steps whose outputs the command reads."""

    name: str
    command: list[str]
    output: Path
    needs: tuple[str, ...] = ()

    def recipe(self) -> Recipe:
        """Return the recipe of a training, with the values of ``--set``."""
        return read_recipe(self.command[2], [value for key, value in pairwise(self.command) if key == "--set"])


class Published(Struct, frozen=True, forbid_unknown_fields=True):
    """The data that published scores were measured on, and the source of the scores."""

    split: str
    source: str = "paper"
    queries: int | None = None
    positives: int | None = None
    passages: int | None = None


class Matrix(Struct, frozen=True, forbid_unknown_fields=True):
    """All rows, all steps, and the data of published scores by set or by a row's ``published_on``."""

    published_on: dict[str, Published]
    steps: dict[str, str] = field(name="step")
    rows: list[Row] = field(name="row")

    def published(self, row: Row) -> Published:
        """Return the data that a row's published scores were measured on."""
        return self.published_on[row.published_on or row.set]

    def select(
        self,
        tables: Sequence[int] | None,
        name: str | None,
        figures: Sequence[int] | None = None,
        *,
        pool: bool = False,
    ) -> list[Row]:
        """Select rows by tables, figures and name. Without any of the three, select all rows.

        With ``pool``, only the rows of the pool's models are selected, otherwise the others.

        Raises :class:`InputError` with the known rows if no row matches, or if a table or figure has no row.
        """
        asked = asked_places(tables, figures)
        rows = [row for row in self.rows if row.pool is pool]
        found = [row for row in rows if (not asked or row.place in asked) and name in (None, row.name)]
        if not found or {*asked} - {row.place for row in found}:
            wanted = " ".join([*(f"--{kind} {number}" for kind, number in asked), *[f"--row {name}"] * bool(name)])
            places = ("--pool" if row.pool else "--{} {}".format(*row.place) for row in rows)
            known = "; ".join(f"{place} --row {row.name}" for place, row in zip(places, rows, strict=True))
            raise InputError(f"no row matches {wanted}; known rows: {known}", path=MATRIX.name)
        return found

    def plan(self, rows: Sequence[Row], fill: Mapping[str, str], settings: Settings = NO_SETTINGS) -> dict[str, Step]:
        """Return the steps that the rows need. A step comes after the steps whose outputs it reads.

        ``fill``: values of the names in braces that stand for options, as :func:`fill` returns them. ``settings``:
        changed values of recipes and options of commands. Raises :class:`InputError` if a setting does not fit.
        """
        planned: dict[str, Step] = {}

        def add(name: str) -> Step:
            base, _, split = name.partition("@")
            name, own = (name, {**fill, "split": split}) if split not in ("", fill["split"]) else (base, fill)
            if name not in planned:
                words = settings.with_options(shlex.split(self.steps[base]))
                needs, given = list[str](), list[str]()
                if words[1] == "train":
                    recipe = words[2].replace("{variant}", fill["variant"])
                    given = settings.of_recipe(recipe)
                    needs += self._before(recipe, given)
                needs += [other for word in words for other in WORD.findall(word) if other not in fill]
                before = {other: add(other) for other in needs}
                values = {**own, **{other: str(step.output) for other, step in before.items()}}
                command = [WORD.sub(lambda found: values[found[1]], word) for word in words]
                command += [word for each in given for word in ("--set", each)]
                settings.check(command)
                output = Path(command[command.index("--out") + 1])
                planned[name] = Step(name, command, output, tuple(step.name for step in before.values()))
            return planned[name]

        for row in rows:
            add(row.step)
        return planned

    def _before(self, recipe: str, given: Sequence[str]) -> list[str]:
        """Return [the step that trains a recipe's starting checkpoint], or [] if no other recipe trains it."""
        start = read_recipe(recipe, given).model.start
        if not start.startswith(FROM_RECIPE):
            return []
        wanted = start.removeprefix(FROM_RECIPE).removesuffix(SCRATCH)
        for name, text in self.steps.items():
            if text.startswith(f"baselines train {wanted}{{variant}} "):
                return [name]
        raise InputError(f"no step trains {wanted}, the starting checkpoint of {recipe}", path=MATRIX)


def read_matrix(path: Path = MATRIX) -> Matrix:
    """Read the matrix. Raises :class:`InputError` for an incomplete row or step."""
    return typed(read_toml(path), Matrix, path)


def fill(args: argparse.Namespace) -> dict[str, str]:
    """Return the values of the names in braces that stand for options: release, split, out and variant."""
    return {
        "release": str(args.release),
        "split": args.split,
        "out": str(args.out),
        "variant": SCRATCH if args.scratch else "",
    }


def behind(plan: Mapping[str, Step], step: str) -> dict[str, Step]:
    """Return a step and all steps that it depends on, in the plan's order."""
    own, waiting = set[str](), [step]
    while waiting:
        own.add(name := waiting.pop())
        waiting += plan[name].needs
    return {name: each for name, each in plan.items() if name in own}


def asked_places(tables: Sequence[int] | None, figures: Sequence[int] | None) -> list[_Place]:
    """Return the selected tables and figures. An empty list selects all."""
    return [*(("table", number) for number in tables or ()), *(("figure", number) for number in figures or ())]


def runnable(rows: Sequence[Row], release: Release, args: argparse.Namespace) -> list[Row]:
    """Return the rows that can run on a release. Each skipped row is logged with the data that the release lacks.

    Raises :class:`InputError` if a row, table or figure that ``args`` names cannot run.
    """
    kept, lacking = list[Row](), dict[str, list[Row]]()
    negatives = any(row.official_negatives for row in rows) and _has_official_negatives(release)
    for row in rows:
        if found := _lacks(row, release, args, negatives):
            lacking.setdefault(found, []).append(row)
        else:
            kept.append(row)
    unserved = {*asked_places(args.table, args.figure)} - {row.place for row in kept}
    for found, skipped in lacking.items():
        problem = f"{', '.join(dict.fromkeys(row.name for row in skipped))}: {found}"
        if args.row or not kept or any(row.place in unserved for row in skipped):
            raise InputError(problem, path=release.path)
        log.warning("%s: %s; skipped", release.path, problem)
    return kept


def _lacks(row: Row, release: Release, args: argparse.Namespace, negatives: bool) -> str:
    """Return the reason why a row cannot run, or an empty string. ``negatives``: the release has official negatives."""
    split, have = row.split or args.split, release.splits()
    if (SETS[row.set].queries, split) not in have:
        return f"has no {SETS[row.set].queries}/{split} to measure on; `python -m builders add` adds sets"
    missing = {*row.needs} - {config for config, _ in have}
    if row.needs or row.queries or row.qrels:  # configs of the quality strategies (Section 2.3)
        own = (row.queries, row.qrels or SETS[row.set].qrels)
        missing |= {f"{config}/{split}" for config in own if config and (config, split) not in have}
    if missing:
        return f"has no {', '.join(sorted(missing))}; `python -m builders similar` and `annotate merge` make them"
    if row.official_negatives and args.scratch:
        return "has no recipe without pretrained weights (--scratch)"
    if row.official_negatives and not negatives:
        return "has no official hard negatives, which `python -m builders official` imports"
    return ""


def is_labelled(row: Row, release: Release, split: str) -> bool:
    """True if the release has the row's judgments. The official test split has none."""
    return (SETS[row.set].qrels, row.split or split) in release.splits()


def _has_official_negatives(release: Release) -> bool:
    config, split = SETS["main"].joined["train"], "train"
    if (config, split) not in release.splits():
        return False
    batches = release.batches(config, split, ["negative_passages.list.element.docid"])
    return any(len(batch.column(0).flatten()) for batch in batches)
