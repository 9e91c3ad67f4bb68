"""The mark of a score: OK, close or off, or "not comparable" if data or models differ."""

from collections.abc import Iterable, Mapping
from typing import Any

from baselines.measure.significance import Interval
from baselines.reproduce.plan import Step
from baselines.reproduce.published_scores import PublishedData
from baselines.reproduce.step_settings import Settings
from baselines.train.recipe import FROM_RECIPE, SCRATCH, Recipe, read_recipe

OK, CLOSE, OFF, NOT = "OK", "close", "off", "not comparable"
# Recipe keys that may differ in a comparable training: the seed, speed, and the evaluation during the training.
_NEUTRAL = {
    *("train.seed", "train.mini_batch", "train.mini_batch_tokens", "train.workers", "train.compile", "train.logs"),
    *("train.evaluations", "train.saves", "data.dev_split", "data.dev_queries", "data.dev_passages", "model.revision"),
}
_NEUTRAL_OPTIONS = {"batch-tokens", "tokenizers", "shard-rows", "threads", "device", "cache"}
_HALF = 0.005  # published scores have two decimals


def nearness(interval: Interval, published: float) -> str:
    """Return OK if the published score lies in our 95 % interval, close if in an interval twice as wide, else off."""
    low, high = interval
    more = (high - low) / 2
    if low - _HALF <= published <= high + _HALF:
        return OK
    return CLOSE if low - more - _HALF <= published <= high + more + _HALF else OFF


def other_data(ours: Mapping[str, int], split: str, published: PublishedData) -> list[str]:
    """Return the differences between our data and the data of the published score. ``ours``: our counts by key."""
    found = []
    if split != published.split:
        found.append(f"measured on {split}, published on {published.split}")
    for key in ("passages", "queries", "positives"):
        theirs = getattr(published, key)
        # Different splits always have different queries, so only their passages are compared.
        if theirs and ours[key] != theirs and (key == "passages" or split == published.split):
            found.append(f"{ours[key]:,} {key}, not {theirs:,}")
    return found


def other_models(steps: Iterable[Step], settings: Settings) -> list[str]:
    """Return the differences between the models that a row's steps use and the models of the recipes."""
    differences: list[str] = []
    for step in steps:
        if step.verb == "train":
            recipe = step.arguments["recipe"]
            differences += _other_training(recipe, settings.of_recipe(recipe))
        differences += settings.describe_options(step.verb, without=_NEUTRAL_OPTIONS)
    return list(dict.fromkeys(differences))


def _other_training(name: str, given: list[str]) -> list[str]:
    if name.endswith(SCRATCH):
        return ["models from scratch, not from pretrained weights"]
    recipe, ours = read_recipe(name), read_recipe(name, given)
    found, hidden = [], _NEUTRAL | {"model.start"}
    if ours.model.start != recipe.model.start:
        theirs = recipe.model.start.removeprefix(FROM_RECIPE)
        found.append(f"{name} starts from {ours.model.start}, not from {theirs}")
        hidden |= {"model.pooling", "model.similarity"}  # the other starting checkpoint implies these settings
    before, now = _flat(recipe), _flat(ours)
    changed = [key for key in now if now[key] != before.get(key) and key not in hidden]
    return found + [f"{name} with {', '.join(f'{key} = {now[key]}' for key in changed)}"] * bool(changed)


def _flat(recipe: Recipe) -> dict[str, Any]:
    """Return every value of a recipe by its ``--set`` key, such as ``train.batch``."""
    sections = {name: values for name, values in recipe.resolved().items() if isinstance(values, dict)}
    return {f"{name}.{key}": value for name, values in sections.items() for key, value in values.items()}
