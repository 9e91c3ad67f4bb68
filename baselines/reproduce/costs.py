"""Estimate the rows, tokens, operations and disk space of each step of a plan, for ``reproduce --dry-run``.

Operations are 6 x parameters x tokens for training and 2 x parameters x tokens for encoding and re-ranking
(:mod:`baselines.train.recipe_costs`). Disk space covers checkpoints and embeddings. The estimate omits attention
scores, the second forward pass of gradient caching, vector search, and static models.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from baselines.reproduce.plan import Step
from baselines.train.recipe import Recipe, read_recipe
from baselines.train.recipe_costs import Sizes, architecture, tokens_of_row, training_rows
from builders.core.errors import InputError
from builders.core.tables import text_table
from builders.store.layout import set_of
from builders.store.reader import Release

_TOP_K = 50  # default of --top-k
_EMBEDDING_BYTES = 2  # of one number of an embedding


class StepCost(NamedTuple):
    """The cost of one step. A value is None if the value is unknown, or if the step runs no model."""

    rows: int
    tokens: int | None = None
    operations: int | None = None
    disk: int | None = None


def step_cost(step: Step, sizes: Sizes, recipes: Mapping[str, Recipe]) -> StepCost:
    """Estimate the cost of one step of a plan.

    Args:
        step: the step.
        sizes: the sizes of the release.
        recipes: the recipes that the plan trains, by their names and by the paths of their checkpoints.

    Raises:
        InputError: the release lacks a config that the step reads.
    """
    arguments = step.arguments
    if step.verb == "train":
        return training_cost(recipes[arguments["out"]], sizes, recipes)
    set_name = arguments.get("set", "main")
    if step.verb == "encode":
        rows = sizes.passages(set_name)
    elif step.verb in ("bm25", "mine", "search", "rerank"):
        rows = sizes.queries(arguments.get("queries", set_of(set_name).queries), arguments["split"])
    else:
        return StepCost(0)
    if step.verb in ("bm25", "mine"):
        return StepCost(rows)
    if step.verb == "rerank":
        rows *= min(arguments.get("top_k", _TOP_K), sizes.passages(set_name))
    recipe = recipes.get(arguments["model"]) or read_recipe(Path(arguments["model"]).name)
    model = architecture(recipe, recipes)
    length = recipe.data.query_length if step.verb == "search" else recipe.data.passage_length
    tokens = rows * arguments.get("max_length", length)
    operations = model and 2 * model.in_layers * tokens
    disk = model and rows * model.hidden * _EMBEDDING_BYTES if step.verb == "encode" else None
    return StepCost(rows, tokens, operations, disk)


def training_cost(recipe: Recipe, sizes: Sizes, recipes: Mapping[str, Recipe]) -> StepCost:
    """Estimate the cost of a training."""
    rows = training_rows(recipe, sizes)
    tokens = rows * tokens_of_row(recipe)
    model = architecture(recipe, recipes)
    if model is None:
        return StepCost(rows, tokens)
    # The checkpoint and two states for resuming. A state also has Adam's two moments. A number takes 4 bytes.
    copies = 1 + 2 * 3 if recipe.train.saves else 1
    disk = recipe.model.towers * model.parameters * 4 * copies
    return StepCost(rows, tokens, 6 * model.in_layers * tokens, disk)


def plan_table(steps: Mapping[str, Step], release: Release | None) -> str:
    """Return the costs of a plan's steps as a table, with the sum of the costs. Unknown costs are dashes."""
    recipes: dict[str, Recipe] = {}
    for step in steps.values():
        if step.verb == "train":
            recipe = step.recipe()
            recipes |= {str(step.output): recipe, recipe.name: recipe}
    costs = {}
    for name, step in steps.items():
        try:
            costs[name] = step_cost(step, Sizes(release), recipes)
        except (InputError, KeyError):  # the release, or the paper's tables, lack the config that the step reads
            costs[name] = StepCost(0)
    operations = sum(cost.operations or 0 for cost in costs.values())
    disk = sum(cost.disk or 0 for cost in costs.values())
    costs["all"] = StepCost(0, None, operations, disk)
    rows = [
        [
            name,
            f"{cost.rows:,}" if cost.rows else "-",
            f"{cost.tokens:,}" if cost.tokens else "-",
            f"{cost.operations:.1e}" if cost.operations else "-",
            f"{cost.disk / 1e9:.3g} GB" if cost.disk else "-",
        ]
        for name, cost in costs.items()
    ]
    return text_table(["step", "rows", "tokens", "operations", "disk"], rows)
