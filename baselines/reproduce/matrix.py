"""``matrix.toml``: the rows of the paper's tables and figures, the steps behind each row, and the published figures."""

from __future__ import annotations

import argparse
import logging
import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, NamedTuple

from msgspec import Meta, Struct, field

from baselines.measure.measures import PAPER
from baselines.reproduce.settings import Settings
from baselines.train.recipe import FROM_RECIPE, read_recipe
from builders.core.errors import InputError, log
from builders.core.files import read_toml
from builders.core.typed import typed
from builders.store.layout import SETS
from builders.store.reader import Release

MATRIX = Path(__file__).parents[1] / "matrix.toml"
SCRATCH = "-scratch"  # the other {variant}
_AS_THEY_ARE = Settings()
_WORD = re.compile(r"\{([^{}]*)\}")
_MADE_BY = "`python -m builders similar` makes train-similar, duplicated and others, `annotate merge` qrels-before"
_Place = tuple[str, int]  # ("table", 4) or ("figure", 2)


class Reference(NamedTuple):
    """The judgments that a row is measured against: those of a set's split.

    ``queries``: measure the questions of this config alone. ``qrels``: take this config's judgments. Empty: the set's.
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
    def place(self) -> _Place:
        """The table or figure that the row stands in."""
        return ("figure", self.figure) if self.figure is not None else ("table", self.table or 0)

    @property
    def measures(self) -> tuple[str, ...]:
        """The measures that the paper prints of the row; all of the paper's where it prints no number."""
        return tuple(self.published) or tuple(PAPER)

    def reference(self, split: str) -> Reference:
        """The judgments of the row where the user's split is ``split``."""
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


class Selection(NamedTuple):
    """The entries of a matrix that were asked for."""

    rows: list[Row]
    counts: list[Counted]
    categories: list[Category]


class Published(Struct, frozen=True, forbid_unknown_fields=True):
    """The data that published figures were measured on, and their source."""

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
        """The data that a row's published figures were measured on."""
        return self.published_on[row.published_on or row.set]

    def select(self, tables: Sequence[int] | None, name: str | None, figures: Sequence[int] | None = None) -> Selection:
        """Select by tables, figures and name; without any of the three, everything.

        Raises :class:`InputError` with the known names where nothing fits, or nothing is of one of the numbers.
        """
        asked: list[_Place] = [*(("table", number) for number in tables or ())]
        asked += [("figure", number) for number in figures or ()]

        def fits(place: _Place, own: str) -> bool:
            return (not asked or place in asked) and name in (None, own)

        others: list[Counted | Category] = [*self.counts, *self.categories]
        every = [
            *((row.place, row.name) for row in self.rows),
            *((("table", each.table), each.name) for each in others),
        ]
        found = {place for place, own in every if fits(place, own)}
        missing = [place for place in asked if place not in found]
        if not found or missing:
            numbers: dict[str, str] = {}
            for kind, number in missing or asked:
                numbers[kind] = f"{numbers.get(kind, f'--{kind}')} {number}"
            wanted = " ".join([*numbers.values(), *[f"--row {name}"] * (name is not None)])
            known = "; ".join("--{} {} --row {}".format(*place, own) for place, own in every)
            raise InputError(f"no row fits {wanted}; known: {known}", path=MATRIX.name)
        return Selection(
            [row for row in self.rows if fits(row.place, row.name)],
            [each for each in self.counts if fits(("table", each.table), each.name)],
            [each for each in self.categories if fits(("table", each.table), each.name)],
        )

    def plan(self, rows: Sequence[Row], fill: Mapping[str, str], settings: Settings = _AS_THEY_ARE) -> dict[str, Step]:
        """Every step that the rows need, each once, in an order in which they can run.

        Args:
            rows: what is to be measured.
            fill: ``release``, ``split``, ``out`` and ``variant``.
            settings: other values for the recipes, other options for the commands.

        Raises:
            InputError: for settings that do not fit.
        """
        planned: dict[str, Step] = {}

        def add(name: str) -> Step:
            base, _, split = name.partition("@")
            name, own = (name, {**fill, "split": split}) if split not in ("", fill["split"]) else (base, fill)
            if name not in planned:
                words = settings.with_options(shlex.split(self.steps[base]))
                needs: list[str] = []
                given = []
                if words[1] == "train":
                    recipe = words[2].replace("{variant}", fill["variant"])
                    given = settings.of_recipe(recipe)
                    needs += self._before(recipe, given)
                needs += [other for word in words for other in _WORD.findall(word) if other not in fill]
                before = {other: add(other) for other in needs}
                values = {**own, **{other: str(step.output) for other, step in before.items()}}
                command = [_WORD.sub(lambda found: values[found[1]], word) for word in words]
                command += [word for each in given for word in ("--set", each)]
                settings.check(command)
                out = Path(command[command.index("--out") + 1])
                planned[name] = Step(name, command, out, tuple(step.name for step in before.values()))
            return planned[name]

        for row in rows:
            add(row.step)
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


def read_matrix(path: Path = MATRIX) -> Matrix:
    """Read the matrix. Raises :class:`InputError` for a row or step that lacks something."""
    return typed(read_toml(path), Matrix, path)


def fill(args: argparse.Namespace) -> dict[str, str]:
    """The values of the words in braces of a matrix's steps."""
    variant = SCRATCH if args.scratch else ""
    return {"release": str(args.release), "split": args.split, "out": str(args.out), "variant": variant}


def behind(plan: Mapping[str, Step], step: str) -> dict[str, Step]:
    """A step and all steps whose output it depends on, in the plan's order."""
    own, waiting = set[str](), [step]
    while waiting:
        own.add(name := waiting.pop())
        waiting += plan[name].needs
    return {name: each for name, each in plan.items() if name in own}


def runnable(rows: Sequence[Row], release: Release, args: argparse.Namespace) -> list[Row]:
    """The rows that a release has queries, judgments and negatives for; the others are logged.

    Raises :class:`InputError` where no row is left, or one is skipped that ``args`` asks for: by its table or figure,
    or by its name (``official_negatives``).
    """
    have, kept = release.splits(), list(rows)

    def skip(lacking: Sequence[Row], words: str) -> None:
        kept[:] = [row for row in kept if row not in lacking]
        if not kept or args.table or args.figure or args.row:
            raise InputError(words, path=release.path)
        log.warning("%s %s; those rows are left out", release.path, words)

    if lacking := [row for row in kept if (SETS[row.set].queries, row.split or args.split) not in have]:
        sets = ", ".join(sorted({row.set for row in lacking}))
        skip(lacking, f"has no queries of {sets} to measure on; `python -m builders VERB --release` adds sets")
    if lacking := [row for row in kept if _absent(row, release, args.split)]:
        missing = ", ".join(sorted({each for row in lacking for each in _absent(row, release, args.split)}))
        skip(lacking, f"has no {missing}, without which {_names(lacking)} cannot be measured; {_MADE_BY}")
    official = [row for row in kept if row.official_negatives]
    if official and (args.scratch or not _has_official_negatives(release)):
        words = "has no hard negatives that came with the data (`python -m builders official` brings them)"
        words = f"{release.path}: {_names(official)}: {words}"
        words = f"--scratch: no pretrained weights for {_names(official)}" if args.scratch else words
        if args.row:
            raise InputError(words)
        log.log(logging.INFO if args.scratch else logging.WARNING, "%s; left out", words)
        kept = [row for row in kept if row not in official]
    return kept


def _names(rows: Sequence[Row]) -> str:
    return ", ".join(dict.fromkeys(row.name for row in rows))


def _absent(row: Row, release: Release, split: str) -> list[str]:
    """The configs of the quality strategies (Section 2.3) that a row needs and the release lacks."""
    if not (row.needs or row.queries or row.qrels):
        return []
    split, have = row.split or split, release.splits()
    found = set(row.needs) - {config for config, _ in have}
    own = [config for config in (row.queries, row.qrels or SETS[row.set].qrels) if config]
    return sorted(found | {f"{config}/{split}" for config in own if (config, split) not in have})


def is_labelled(row: Row, release: Release, split: str) -> bool:
    """True if a row can be measured: the labels of the official test split were never published."""
    return (SETS[row.set].qrels, row.split or split) in release.splits()


def _has_official_negatives(release: Release) -> bool:
    config, split = SETS["main"].joined["train"], "train"
    if (config, split) not in release.splits():
        return False
    batches = release.batches(config, split, ["negative_passages.list.element.docid"])
    return any(len(batch.column(0).flatten()) for batch in batches)
