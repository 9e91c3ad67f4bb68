"""The mark of a score: OK, close or off, or "not comparable" if data or models differ."""

from collections.abc import Iterable, Mapping, Sequence

from baselines.measure.significance import Interval
from baselines.reproduce.published_scores import PublishedData
from baselines.reproduce.step_settings import Settings
from baselines.reproduce.steps import Step
from baselines.train.recipe import FROM_RECIPE, SCRATCH, read_recipe

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
    differences = []
    if split != published.split:
        differences.append(f"measured on {split}, published on {published.split}")
    for key in ("passages", "queries", "positives"):
        theirs = getattr(published, key)
        # Different splits always have different queries, so only their passages are compared.
        if theirs and ours[key] != theirs and (key == "passages" or split == published.split):
            differences.append(f"{ours[key]:,} {key}, not {theirs:,}")
    return differences


def other_models(steps: Iterable[Step], settings: Settings) -> list[str]:
    """Return the differences between the models that a row's steps use and the models of the recipes."""
    differences: list[str] = []
    for step in steps:
        if step.verb == "train":
            recipe = step.arguments["recipe"]
            differences += _other_training(recipe, settings.of_recipe(recipe))
        for option, value in settings.options.get(step.verb, {}).items():
            if option not in _NEUTRAL_OPTIONS:
                differences.append(f"{step.verb} --{option}" + ("" if value is True else f" {value}"))
    return list(dict.fromkeys(differences))


def _other_training(name: str, changed_values: Sequence[str]) -> list[str]:
    """Return the differences between a recipe and the recipe with changed values."""
    if name.endswith(SCRATCH):
        return ["models from scratch, not from pretrained weights"]
    recipe, ours = read_recipe(name), read_recipe(name, changed_values)
    differences, hidden = [], set(_NEUTRAL)
    if ours.model.start != recipe.model.start:
        theirs = recipe.model.start.removeprefix(FROM_RECIPE)
        differences.append(f"{name} starts from {ours.model.start}, not from {theirs}")
        # The other starting checkpoint implies these settings.
        hidden |= {"model.start", "model.pooling", "model.similarity"}
    before = recipe.values()
    changed = []
    for key, value in ours.values().items():
        if key not in hidden and value != before.get(key):
            changed.append(f"{key} = {value}")
    if changed:
        differences.append(f"{name} with {', '.join(changed)}")
    return differences
