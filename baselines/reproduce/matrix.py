"""``matrix.toml``: every row of the paper's tables and figures that can be run, its steps, what is published of it."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, NamedTuple

from msgspec import Meta, Struct, field

from baselines.measure.measures import PAPER
from baselines.measure.qrels import QRELS, QUERIES
from baselines.reproduce.settings import Settings
from baselines.train.recipe import FROM_RECIPE, read_recipe
from builders.core.errors import InputError
from builders.core.files import read_toml
from builders.core.typed import typed
from builders.store.layout import SETS

MATRIX = Path(__file__).parents[1] / "matrix.toml"
SCRATCH = "-scratch"  # the other {variant}
_AS_THEY_ARE = Settings()
_WORD = re.compile(r"\{([^{}]*)\}")


class Reference(NamedTuple):
    """What a row is measured against: the judgments of a set's split.

    ``queries``: of the questions of this config alone; ``qrels``: by this config's judgments; empty: the set's.
    """

    set: str
    split: str
    queries: str
    qrels: str


class Row(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """One row of one table, or one bar of a figure's panels.

    ``step`` leaves the run that is measured; ``published`` is in percent, measured on ``published_on`` (empty: on what
    the paper's figures of the set were). ``like``: the row whose published figures are those to compare ours with on
    their split. ``official_negatives``: the steps read the hard negatives that come with the official data. ``queries``
    and ``qrels``: see :class:`Reference`. ``needs``: configs without which the row says nothing, beside these two.
    ``series``, a figure's alone: which bars of each system it is one of.
    """

    table: Annotated[int, Meta(ge=1)] | None = None
    figure: Annotated[int, Meta(ge=1)] | None = None
    name: str
    title: str  # as the paper prints it; "A > B": B re-ranks what A ranks first
    step: str
    published: dict[str, Annotated[float, Meta(ge=0, le=100)]]
    set: str = "main"
    split: str = ""  # the user's
    published_on: str = ""
    like: str = ""
    official_negatives: bool = False
    queries: str = ""
    qrels: str = ""
    needs: tuple[str, ...] = ()
    series: str = ""

    def __post_init__(self) -> None:
        if (self.table is None) == (self.figure is None) or bool(self.series) != (self.figure is not None):
            raise ValueError("expected a table, or a figure and a series")

    @property
    def place(self) -> tuple[str, int]:
        """``("table", 4)`` or ``("figure", 2)``."""
        return ("figure", self.figure) if self.figure is not None else ("table", self.table or 0)

    @property
    def measures(self) -> tuple[str, ...]:
        """What is measured: what the paper prints of the row, or all of it where it prints no number."""
        return tuple(self.published) or tuple(PAPER)

    def reference(self, split: str) -> Reference:
        """What it is measured against, where the user's split is this one."""
        return Reference(self.set, self.split or split, self.queries, self.qrels)


class Counted(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A column of Table 3: counted of the release, published in ``builders/check/published.toml``, both at ``of``."""

    table: Annotated[int, Meta(ge=1)]
    name: str
    title: str
    of: Annotated[str, Meta(pattern=r"\A[a-z0-9]+\.[a-z]+\Z")]


class Category(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A row of Table 10: the share of wrong predictions, in percent, that people gave this category."""

    table: Annotated[int, Meta(ge=1)]
    name: str
    title: str
    published: Annotated[float, Meta(ge=0, le=100)]


@dataclass(frozen=True)
class Step:
    """A step filled in: ``command`` as the words after ``python -m``, what it writes, the steps that it reads of."""

    name: str
    command: list[str]
    output: Path
    needs: tuple[str, ...] = ()


class Published(Struct, frozen=True, forbid_unknown_fields=True):
    """What published figures were measured on, and who published them."""

    split: str
    source: str = "paper"
    queries: int | None = None
    positives: int | None = None
    passages: int | None = None


class Matrix(Struct, frozen=True, forbid_unknown_fields=True):
    """All rows and steps, and what the published figures were measured on: by set, or by the name that a row gives.

    ``made_by``: the commands behind ``counts`` and ``categories``, which come from no run.
    """

    published_on: dict[str, Published]
    steps: dict[str, str] = field(name="step")
    rows: list[Row] = field(name="row")
    made_by: dict[str, str] = {}
    counts: list[Counted] = field(name="count", default_factory=list)
    categories: list[Category] = field(name="category", default_factory=list)

    def published(self, row: Row) -> Published:
        """What a row's published figures were measured on."""
        return self.published_on[row.published_on or row.set]

    def select(self, tables: Sequence[int] | None, name: str | None, figures: Sequence[int] | None = None) -> list[Row]:
        """The rows of some tables and figures, of a name, or of all that is given.

        Raises :class:`InputError` with the known ones where none fits, or none is of one of the numbers, be they of
        runs or not.
        """
        asked = _asked(tables, figures)
        every = [(row.place, row.name) for row in self.rows]
        every += [(("table", counted.table), counted.name) for counted in self.counts]
        every += [(("table", category.table), category.name) for category in self.categories]
        found = [place for place, own in every if _fits(place, own, asked, name)]
        missing = [place for place in asked if place not in found]
        if not found or missing:
            numbers = {
                kind: " ".join(str(number) for other, number in missing or asked if other == kind)
                for kind, _ in missing or asked
            }
            words = [f"--{kind} {given}" for kind, given in numbers.items()] + [f"--row {name}"] * (name is not None)
            wanted = " ".join(words)
            known = "; ".join("--{} {} --row {}".format(*place, own) for place, own in every)
            raise InputError(f"no row fits {wanted}; known: {known}", path=MATRIX.name)
        return [row for row in self.rows if _fits(row.place, row.name, asked, name)]

    def select_counts(
        self, tables: Sequence[int] | None, name: str | None, figures: Sequence[int] | None = None
    ) -> list[Counted]:
        """The columns of Table 3 that are chosen, as :meth:`select` chooses rows."""
        return [each for each in self.counts if _fits(("table", each.table), each.name, _asked(tables, figures), name)]

    def select_categories(
        self, tables: Sequence[int] | None, name: str | None, figures: Sequence[int] | None = None
    ) -> list[Category]:
        """The rows of Table 10 that are chosen, as :meth:`select` chooses rows."""
        asked = _asked(tables, figures)
        return [each for each in self.categories if _fits(("table", each.table), each.name, asked, name)]

    def plan(self, rows: Sequence[Row], fill: Mapping[str, str], settings: Settings = _AS_THEY_ARE) -> dict[str, Step]:
        """Every step that the rows need, each once, in an order in which they can run.

        Args:
            rows: what is to be measured.
            fill: ``release``, ``split``, ``out`` and ``variant``.
            settings: other values for the recipes, other options for the commands.

        Raises:
            InputError: for a step that needs itself, or settings that do not fit.
        """
        planned: dict[str, Step] = {}

        def add(name: str, above: tuple[str, ...]) -> Step:
            base, _, split = name.partition("@")
            name, own = (name, {**fill, "split": split}) if split not in ("", fill["split"]) else (base, fill)
            if name in above:
                raise InputError(f"the step {name!r} needs itself", path=MATRIX)
            if name not in planned:
                words = settings.with_options(shlex.split(self.steps[base]))
                needs: list[str] = []
                given = []
                if words[1] == "train":
                    recipe = words[2].replace("{variant}", fill["variant"])
                    given = settings.of_recipe(recipe)
                    needs += self._before(recipe, given)
                needs += [other for word in words for other in _WORD.findall(word) if other not in fill]
                before = {other: add(other, (*above, name)) for other in needs}
                values = {**own, **{other: str(step.output) for other, step in before.items()}}
                command = [_WORD.sub(lambda found: values[found[1]], word) for word in words]
                command += [word for each in given for word in ("--set", each)]
                settings.check(command)
                out = Path(command[command.index("--out") + 1])
                planned[name] = Step(name, command, out, tuple(step.name for step in before.values()))
            return planned[name]

        for row in rows:
            add(row.step, ())
        return planned

    def _before(self, recipe: str, given: Sequence[str]) -> list[str]:
        """The step that trains what a recipe starts from, where that is another recipe's checkpoint."""
        start = read_recipe(recipe, given).model.start
        if not start.startswith(FROM_RECIPE):
            return []
        wanted = start.removeprefix(FROM_RECIPE).removesuffix(SCRATCH)
        for name, text in self.steps.items():
            if text.startswith(f"baselines train {wanted}{{variant}} "):
                return [name]
        raise InputError(f"no step trains {wanted}, from which {recipe} starts", path=MATRIX)


def _asked(tables: Sequence[int] | None, figures: Sequence[int] | None) -> list[tuple[str, int]]:
    return [*(("table", number) for number in tables or ()), *(("figure", number) for number in figures or ())]


def _fits(place: tuple[str, int], own: str, asked: Sequence[tuple[str, int]], name: str | None) -> bool:
    return (not asked or place in asked) and name in (None, own)


def read_matrix(path: Path = MATRIX) -> Matrix:
    """Read the matrix. Raises :class:`InputError` for a row or step that lacks something or names something unknown."""
    matrix = typed(read_toml(path), Matrix, path)
    known = {*matrix.steps, "release", "split", "out", "variant"}
    for name, text in matrix.steps.items():
        if " --out " not in text or (unknown := {word.partition("@")[0] for word in _WORD.findall(text)} - known):
            raise InputError(f"step {name!r}: expected --out and known names in braces", path=path)
    for row in matrix.rows:
        if unknown := set(row.published) - set(PAPER):
            raise InputError(f"row {row.name!r}: unknown measures {sorted(unknown)}", path=path)
        if row.step not in matrix.steps or row.set not in SETS or row.set not in matrix.published_on:
            raise InputError(f"row {row.name!r}: unknown step {row.step!r} or set {row.set!r}", path=path)
        if row.published_on and row.published_on not in matrix.published_on:
            raise InputError(f"row {row.name!r}: unknown published_on {row.published_on!r}", path=path)
        if row.queries not in ("", *QUERIES) or row.qrels not in ("", *QRELS):
            raise InputError(f"row {row.name!r}: unknown queries {row.queries!r} or qrels {row.qrels!r}", path=path)
        if row.like and row.like not in {other.name for other in matrix.rows}:
            raise InputError(f"row {row.name!r}: unknown row {row.like!r} to compare with", path=path)
    return matrix
