"""Rows, tokens, operations and disk of each step of a plan, by formula: what ``reproduce --dry-run`` prints.

Operations are 6 x parameters x tokens for training and 2 x parameters x tokens for encoding and re-ranking. The
parameters are those of the transformer's layers, because looking up an embedding multiplies nothing. Every text has as
many tokens as its recipe allows; in `encode`, a token a character. Not counted: attention's products of tokens, the
second forward pass of a dual-encoder's gradient caching, search's products of vectors, and static models.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import pyarrow.compute as pc

from baselines.reproduce.matrix import Step
from baselines.train.recipe import FROM_RECIPE, SCRATCH, Recipe, read_recipe
from builders.check.paper import published
from builders.core.errors import InputError
from builders.core.tables import text_table
from builders.store.layout import REMOVED, base_set, set_of
from builders.store.manifest import read_stats
from builders.store.reader import Release

_TABLE1 = {"cmedqa": (108_000, 203_000), "ccovid": (4_900, 5_000)}  # the paper's rounded questions and documents
_RUN_LINE, _NEGATIVE, _TOP_K = 28, 18, 50  # bytes of a gzipped run's line and of a negative; the commands' default
_SPECIAL = 2  # tokens around a text
_UNITS = ((1e9, "GB"), (1e6, "MB"), (1e3, "kB"), (1, "B"))


class Architecture(NamedTuple):
    """The sizes of a BERT: vocabulary, positions, layers, width, and width of the feed-forward part."""

    vocabulary: int
    positions: int
    layers: int
    hidden: int
    feed_forward: int

    @property
    def in_layers(self) -> int:
        """Parameters of the layers: four products of attention, two of the feed-forward part, biases and norms."""
        return self.layers * (
            4 * self.hidden**2 + 2 * self.hidden * self.feed_forward + 9 * self.hidden + self.feed_forward
        )

    @property
    def parameters(self) -> int:
        """All parameters: the layers' and the embeddings'."""
        return self.in_layers + (self.vocabulary + self.positions + 2) * self.hidden


KNOWN = {
    "nghuyong/ernie-1.0-base-zh": Architecture(18_000, 513, 12, 768, 3072),
    "google-bert/bert-base-multilingual-cased": Architecture(119_547, 512, 12, 768, 3072),
    "intfloat/multilingual-e5-small": Architecture(250_037, 512, 12, 384, 1536),
}


class StepCost(NamedTuple):
    """One step; None: unknown, or no work of a model."""

    rows: int
    tokens: int | None
    operations: int | None
    disk: int | None


@dataclass(frozen=True)
class Sizes:
    """How much there is to read: of ``release``, or of the paper's collection (its Tables 1 and 3) where None."""

    release: Release | None = None

    def passages(self, name: str) -> int:
        if self.release:
            return self.release.rows(set_of(name).corpus, "corpus")
        return _TABLE1[name][1] if name in _TABLE1 else int(published()["collections"]["corpus"]["passages"])

    def characters(self, name: str) -> float:
        """The mean length of a passage."""
        figures = read_stats(self.release.path) if self.release else published()
        if not self.release and name in _TABLE1:
            return float(figures["table3"][name]["chars_per_passage"])
        return float(figures["collections"][set_of(name).corpus]["mean_chars"])

    def queries(self, name: str, split: str, config: str = "") -> int:
        """The queries of a split, or of a ``config`` in the place of the set's."""
        if self.release:
            return self.release.rows(config or set_of(name).queries, split)
        paper, name = published(), base_set(name)
        if config == REMOVED:
            return int(paper["similar"]["removed"])
        if name in _TABLE1:
            tested = int(paper["table3"][name]["queries"])
            return tested if split == "test" else _TABLE1[name][0] - tested
        return int(paper["english" if name == "crosslingual" else "table3"][split]["queries"])

    def pairs(self, name: str, split: str, config: str = "") -> int:
        """The (query, positive passage) pairs of a split; a ``config`` has as many a query as the split."""
        if self.release:
            scores = self.release.table(set_of(name).qrels, split, ["score"])["score"]
            positives, queries = pc.sum(pc.greater(scores, 0)).as_py() or 0, self.queries(name, split)
        else:
            table = published()["table3"][name if name in _TABLE1 else split]
            positives, queries = table["positive_passages"], table["queries"]
        return round(self.queries(name, split, config) * positives / max(1, queries))


def architecture(recipe: Recipe, recipes: Mapping[str, Recipe]) -> Architecture | None:
    """The architecture that a recipe's first start has; None where it is not known.

    ``recipes``: by name, those with values of their own; a start that is another recipe's is looked up in them.
    """
    while recipe.model.start.startswith(FROM_RECIPE):
        name = recipe.model.start.removeprefix(FROM_RECIPE)
        recipe = recipes.get(name) or read_recipe(name)
    if recipe.model.start == SCRATCH:
        own = recipe.scratch
        return Architecture(own.vocabulary, 512, own.layers, own.hidden, own.feed_forward)
    return KNOWN.get(recipe.model.start)


def tokens_of_row(recipe: Recipe) -> int:
    """The tokens of a training row: of a dual-encoder the query and its passages, else one text."""
    data = recipe.data
    if recipe.model.kind != "dual":
        return data.passage_length
    negatives = min(1, data.negatives_per_positive) if data.rows == "one-negative" else data.negatives_per_positive
    return data.query_length + (1 + negatives) * data.passage_length


def training_rows(recipe: Recipe, sizes: Sizes) -> int:
    """The rows that a training goes through, over all its epochs."""
    data, train = recipe.data, recipe.train
    if recipe.model.kind == "mlm":
        rows = sizes.passages(data.set)
    else:
        rows = sizes.pairs(data.set, data.split) + (sizes.pairs(data.set, data.split, REMOVED) if data.similar else 0)
        if recipe.model.kind == "cross":
            rows *= 1 + data.negatives_per_positive
        elif data.rows == "one-negative":
            rows *= max(1, data.negatives_per_positive)
    steps = max(1, round(train.epochs * (rows // train.batch)))
    return min(steps, train.max_steps or steps) * train.batch


def step_cost(command: Sequence[str], sizes: Sizes, recipes: Mapping[str, Recipe]) -> StepCost:
    """The cost of one command of a plan.

    Args:
        command: the words after ``python -m``.
        sizes: how much there is to read.
        recipes: the recipes that the plan trains, by the name of each and by the checkpoint that it leaves.

    Raises:
        InputError: the release lacks a config that the command reads.
    """
    verb, options = command[1], dict(itertools.pairwise(command))
    name, config = options.get("--set", "main"), options.get("--queries", "")
    split = options.get("--split", "train" if verb == "mine" else "dev")
    if verb == "train":
        recipe = recipes[options["--out"]]
        rows, model = training_rows(recipe, sizes), architecture(recipe, recipes)
        tokens = rows * tokens_of_row(recipe)
        # The checkpoint, and two states to resume from with Adam's two moments; 4 bytes a number.
        disk = model and recipe.model.towers * model.parameters * 4 * (1 + 2 * 3 * bool(recipe.train.saves))
        return StepCost(rows, tokens, model and 6 * model.in_layers * tokens, disk)
    if verb == "mine":
        negatives = sizes.pairs(name, split, config) * int(options.get("--negatives", 4))
        return StepCost(sizes.queries(name, split, config), None, None, negatives * _NEGATIVE)
    passages = sizes.passages(name)
    top_k = min(int(options.get("--top-k", _TOP_K)), passages)
    if verb == "bm25":
        rows = sizes.queries(name, split, config)
        return StepCost(rows, None, None, rows * top_k * _RUN_LINE)
    recipe = recipes.get(options["--model"]) or read_recipe(Path(options["--model"]).name)
    model, length = architecture(recipe, recipes), int(options.get("--max-length", recipe.data.passage_length))
    if verb == "encode":
        rows, tokens = passages, min(length, round(sizes.characters(name)) + _SPECIAL) * passages
        disk = model and rows * model.hidden * 2  # two bytes a number
    elif verb == "search":
        rows = sizes.queries(name, split)
        tokens, disk = rows * recipe.data.query_length, rows * top_k * _RUN_LINE
    else:  # rerank
        rows = sizes.queries(name, split) * top_k
        tokens, disk = rows * length, rows * _RUN_LINE
    return StepCost(rows, tokens, model and 2 * model.in_layers * tokens, disk)


def plan_table(plan: Mapping[str, Step], release: Release | None) -> str:
    """The costs of a plan's steps as a table, with their sum. Steps that cannot be counted have dashes."""
    recipes: dict[str, Recipe] = {}
    for step in plan.values():
        if step.command[1] == "train":
            own = [value for option, value in itertools.pairwise(step.command) if option == "--set"]
            recipe = read_recipe(step.command[2], own)
            recipes[recipe.name] = recipes[str(step.output)] = recipe
    sizes, table, operations, disk = Sizes(release), [], 0, 0
    for name, step in plan.items():
        try:
            cost = step_cost(step.command, sizes, recipes)
        except (InputError, KeyError):  # the release, or the paper's tables, lack what the step reads
            table.append([name, "-", "-", "-", "-"])
            continue
        operations, disk = operations + (cost.operations or 0), disk + (cost.disk or 0)
        shown = [f"{cost.rows:,}", f"{cost.tokens:,}" if cost.tokens else "-"]
        table.append([name, *shown, _operations(cost.operations), _bytes(cost.disk)])
    table.append(["all", "", "", _operations(operations), _bytes(disk)])
    return text_table(["step", "rows", "tokens", "operations", "disk"], table)


def _operations(count: int | None) -> str:
    return f"{count:.1e}" if count else "-"


def _bytes(size: int | None) -> str:
    return next((f"{size / unit:.1f} {name}" for unit, name in _UNITS if size and size >= unit), "-")
