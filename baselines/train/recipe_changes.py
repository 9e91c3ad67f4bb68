"""Changed values of recipes: values that other recipes inherit, and changes that make a training another experiment."""

from collections.abc import Mapping, Sequence

from baselines.train.recipe import FROM_RECIPE, SCRATCH, read_recipe
from baselines.train.recipe_files import RECIPES, recipe_names
from builders.core.read_files import read_toml

# Recipe keys that may differ in a comparable training: the seed, speed, and the evaluation during the training.
_NEUTRAL_KEYS = {
    "train.seed",
    "train.mini_batch",
    "train.mini_batch_tokens",
    "train.workers",
    "train.compile",
    "train.logs",
    "train.evaluations",
    "train.saves",
    "data.dev_split",
    "data.dev_queries",
    "data.dev_passages",
    "model.revision",
}


def inherit_values(name: str, values_by_recipe: Mapping[str, Sequence[str]]) -> list[str]:
    """Return the ``section.key=value`` texts for a recipe. Later values override earlier ones.

    ``values_by_recipe`` has such texts by the recipes' names. The values for the recipe of ``like`` come first, without
    the keys that the recipe's own file sets. Then come the values for the recipe itself.
    """
    content = {}
    if name in recipe_names():
        content = read_toml(RECIPES / f"{name}.toml")
    values = []
    if "like" in content:
        for value in inherit_values(content["like"], values_by_recipe):
            full_key, _, _ = value.partition("=")
            section, _, key = full_key.partition(".")
            if key not in content.get(section, {}):
                values.append(value)
    values.extend(values_by_recipe.get(name, ()))
    return values


def differences_from_recipe(name: str, changed_values: Sequence[str]) -> list[str]:
    """Describe the changes because of which a training's result is not comparable with that of the recipe ``name``.

    ``changed_values`` are ``section.key=value`` texts. The list is empty if they only change the seed, the speed or the
    evaluation during the training.
    """
    if name.endswith(SCRATCH):
        return ["models from scratch, not from pretrained weights"]
    recipe = read_recipe(name)
    changed_recipe = read_recipe(name, changed_values)
    differences = []
    hidden_keys = set(_NEUTRAL_KEYS)  # keys that are not described
    if changed_recipe.model.start != recipe.model.start:
        recipe_start = recipe.model.start.removeprefix(FROM_RECIPE)
        differences.append(f"{name} starts from {changed_recipe.model.start}, not from {recipe_start}")
        # The other starting checkpoint implies these settings.
        hidden_keys |= {"model.start", "model.pooling", "model.similarity"}
    recipe_values = recipe.values()
    changes = []
    for key, value in changed_recipe.values().items():
        if key not in hidden_keys and value != recipe_values.get(key):
            changes.append(f"{key} = {value}")
    if changes:
        differences.append(f"{name} with {', '.join(changes)}")
    return differences
