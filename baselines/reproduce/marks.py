"""Whether ours may be compared with what is published, and how near it comes: OK, close, off.

Only where data and starting model are those of the published figure; else "not comparable", and why.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from baselines.measure.significance import Interval
from baselines.reproduce.matrix import Published, Step
from baselines.reproduce.settings import Settings
from baselines.train.recipe import FROM_RECIPE, SCRATCH, Recipe, read_recipe

OK, CLOSE, OFF, NOT = "OK", "close", "off", "not comparable"
# What a training may have otherwise and still be the same training: another draw, other ways to the same result, what
# is measured and kept on the way.
_NEUTRAL = {f"train.{key}" for key in ("seed", "mini_batch", "mini_batch_tokens", "workers", "compile")}
_NEUTRAL |= {f"train.{key}" for key in ("logs", "evaluations", "saves")}
_NEUTRAL |= {"data.dev_split", "data.dev_queries", "data.dev_passages", "model.revision"}
_NEUTRAL_OPTIONS = {"batch-tokens", "tokenizers", "shard-rows", "threads", "device", "cache", "quiet"}
_HALF = 0.005  # of the last digit that is printed


def nearness(ours: float, interval: Interval, published: float) -> str:
    """How near ours is to the published figure, in the unit of the interval, which is our 95 % one.

    OK: the published figure lies in it. close: it lies in one twice as wide. off: further away.
    """
    low, high = interval
    more = (high - low) / 2
    if low - _HALF <= published <= high + _HALF:
        return OK
    return CLOSE if low - more - _HALF <= published <= high + more + _HALF else OFF


def nearness_of_count(ours: float, published: float) -> str:
    """How near a count is, which has no interval. OK: the same as printed. close: within 1 %. off: further away."""
    if abs(ours - published) <= _HALF:
        return OK
    return CLOSE if abs(ours - published) <= published / 100 else OFF


def mark(why: list[str], near: str) -> dict[str, Any]:
    """``{"mark", "why"}`` of a figure: how near it is, or that it cannot be compared for these reasons."""
    return {"mark": NOT if why else near, "why": why}


def other_data(ours: Mapping[str, int], split: str, published: Published) -> list[str]:
    """Why the data are not those of the published figure; empty where they are.

    ``ours``: how many ``queries``, ``positives`` and ``passages``.
    """
    found = []
    if split != published.split:
        found.append(f"measured on {split}, published on {published.split}")
    for key in ("passages", "queries", "positives"):
        theirs = getattr(published, key)
        # Of another split there are others, of course.
        if theirs and ours[key] != theirs and (key == "passages" or split == published.split):
            found.append(f"{ours[key]:,} {key}, not {theirs:,}")
    return found


def other_models(steps: Iterable[Step], settings: Settings) -> list[str]:
    """Why the models behind a row are not those of its recipes; empty where they are.

    ``steps``: the row's and all before it, in their order.
    """
    found: list[str] = []
    for step in steps:
        verb = step.command[1]
        if verb == "train":
            found += _other_training(step.command[2], settings.of_recipe(step.command[2]))
        options = settings.options.get(verb, {})
        changed = {name: value for name, value in options.items() if name not in _NEUTRAL_OPTIONS}
        found += [f"{verb} --{name} {value}".replace(" True", "") for name, value in changed.items()]
    return list(dict.fromkeys(found))


def _other_training(name: str, given: list[str]) -> list[str]:
    if name.endswith(SCRATCH):
        return ["models from scratch, not from pretrained weights"]
    recipe, ours = read_recipe(name), read_recipe(name, given)
    found = []
    if ours.model.start != recipe.model.start:
        theirs = recipe.model.start.removeprefix(FROM_RECIPE)
        found.append(f"{name} starts from {ours.model.start}, not from {theirs}")
    before, now = _flat(recipe), _flat(ours)
    # What a start of another kind brings with it is said by its name.
    hidden = _NEUTRAL | {"model.start", *({"model.pooling", "model.similarity"} if found else ())}
    changed = [key for key in now if now[key] != before.get(key) and key not in hidden]
    return found + [f"{name} with {', '.join(f'{key} = {now[key]}' for key in changed)}"] * bool(changed)


def _flat(recipe: Recipe) -> dict[str, Any]:
    """Every value of a recipe by its key, as ``--set`` has it."""
    sections = {name: values for name, values in recipe.resolved().items() if isinstance(values, dict)}
    return {f"{name}.{key}": value for name, values in sections.items() for key, value in values.items()}
