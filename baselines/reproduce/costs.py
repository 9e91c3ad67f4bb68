"""The costs of the steps for ``reproduce --dry-run``, by the formulas of :mod:`baselines.train.recipe_costs`."""

from collections.abc import Mapping
from pathlib import Path

from baselines.reproduce.steps import Step
from baselines.train.recipe import Recipe, read_recipe
from baselines.train.recipe_costs import ModelCost, Sizes, architecture, inference_cost, training_cost
from builders.core.errors import InputError
from builders.core.tables import text_table
from builders.store.layout import set_of
from builders.store.reader import Release

_TOP_K = 50  # default of --top-k


def step_cost(step: Step, sizes: Sizes, recipes: Mapping[str, Recipe]) -> ModelCost:
    """Estimate the cost of one step.

    Args:
        step: the step.
        sizes: the sizes of the release.
        recipes: the recipes that the steps train, by their names and by the paths of their checkpoints.

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
        return ModelCost(0)
    if step.verb in ("bm25", "mine"):
        return ModelCost(rows)
    if step.verb == "rerank":
        rows *= min(arguments.get("top_k", _TOP_K), sizes.passages(set_name))
    recipe = recipes.get(arguments["model"]) or read_recipe(Path(arguments["model"]).name)
    length = recipe.data.query_length if step.verb == "search" else recipe.data.passage_length
    length = arguments.get("max_length", length)
    return inference_cost(architecture(recipe, recipes), rows, length, stores_vectors=step.verb == "encode")


def cost_table(steps: Mapping[str, Step], release: Release | None) -> str:
    """Return the costs of the steps as a table, with the sum of the costs. Unknown costs are dashes."""
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
            costs[name] = ModelCost(0)
    operations = sum(cost.operations or 0 for cost in costs.values())
    disk = sum(cost.disk or 0 for cost in costs.values())
    costs["all"] = ModelCost(0, None, operations, disk)
    lines = []
    for name, cost in costs.items():
        rows, tokens = (f"{count:,}" if count else "-" for count in (cost.rows, cost.tokens))
        operations_text = f"{cost.operations:.1e}" if cost.operations else "-"
        lines.append([name, rows, tokens, operations_text, f"{cost.disk / 1e9:.3g} GB" if cost.disk else "-"])
    return text_table(["step", "rows", "tokens", "operations", "disk"], lines)
