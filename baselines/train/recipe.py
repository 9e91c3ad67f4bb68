"""Recipes: how one model is trained, as a commented TOML file; read, checked, overridden with ``--set``.

``baselines/recipes/NAME.toml`` holds the paper's values (Appendix A.2), ``NAME-scratch.toml`` those of a machine
without pretrained weights. A name stands for the file in that folder, anything with a dot or a slash for a path.
"""

from __future__ import annotations

import dataclasses
import json
import typing
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from builders.common.command import InputError
from builders.common.files import read_toml
from builders.store.layout import SETS

RECIPES = Path(__file__).parents[1] / "recipes"
SCRATCH = "scratch"
FROM_RECIPE = "recipe:"  # start = "recipe:NAME": the checkpoint that the recipe NAME left


@dataclass(frozen=True)
class Model:
    """What is trained, and from what.

    ``start``: a name on the hub, a directory, ``scratch`` (random weights, own vocabulary), or ``recipe:NAME``.
    ``pooling`` (cls | mean) and ``similarity`` (dot | cos) are for a dual-encoder that starts from no dual-encoder.
    """

    kind: str
    start: str
    pooling: str = "mean"
    similarity: str = "dot"


@dataclass(frozen=True)
class Scratch:
    """The size of a BERT with random weights, and of its WordPiece vocabulary; read where ``model.start = "scratch"``.

    ``vocabulary_passages``: from how many passages, evenly spaced over the collection, the vocabulary is made.
    """

    vocabulary: int = 12_000
    vocabulary_passages: int = 200_000
    layers: int = 6
    hidden: int = 384
    heads: int = 6
    feed_forward: int = 1536
    dropout: float = 0.1


@dataclass(frozen=True)
class Data:
    """What is learned from. Lengths in tokens, special tokens included.

    ``dev_queries`` of ``dev_split`` are ranked during training, among their positives and ``dev_passages`` others.
    """

    set: str = "main"
    split: str = "train"
    dev_split: str = "dev"
    negatives: str = ""
    negatives_per_positive: int = 4
    query_length: int = 32
    passage_length: int = 384
    dev_queries: int = 200
    dev_passages: int = 2_000


@dataclass(frozen=True)
class Train:
    """How it is learned. ``batch`` counts rows over all processes together.

    A row: for the dual-encoder a query with a positive passage and its negatives, for the cross-encoder a (query,
    passage) pair, for the masked language model a passage. ``mini_batch`` rows go through the model at once in the
    dual-encoder's training and in evaluations; no result depends on it. ``max_steps`` ends the training earlier (0:
    after the epochs). ``precision``: auto (bf16 where the device has it), bf16 or fp32. ``workers`` processes join and
    cut texts beside a graphics card (0 on a CPU). ``logs``, ``evaluations`` and ``saves``: how often over the training.
    """

    batch: int
    epochs: float
    learning_rate: float
    warmup: float = 0.0
    weight_decay: float = 0.0
    mini_batch: int = 32
    max_steps: int = 0
    scale: float = 1.0
    mask: float = 0.15
    seed: int = 0
    precision: str = "auto"
    compile: bool = False
    workers: int = 2
    logs: int = 200
    evaluations: int = 10
    saves: int = 10


@dataclass(frozen=True)
class Recipe:
    """A recipe, checked. ``name`` is the file's, without ``.toml``."""

    name: str
    model: Model
    data: Data
    train: Train
    scratch: Scratch = field(default_factory=Scratch)

    def resolved(self) -> dict[str, Any]:
        """Everything, defaults and overrides included, as ``recipe.json`` holds it."""
        content = dataclasses.asdict(self)
        if self.model.start != SCRATCH:
            del content["scratch"]
        return content


_SECTIONS: dict[str, type] = {"model": Model, "scratch": Scratch, "data": Data, "train": Train}
_CHOICES = {
    "model.kind": ("dual", "cross", "mlm"),
    "model.pooling": ("cls", "mean"),
    "model.similarity": ("dot", "cos"),
    "data.set": tuple(SETS),
    "train.precision": ("auto", "bf16", "fp32"),
}
_MAY_BE_ZERO = {
    *("scratch.dropout", "data.negatives_per_positive", "data.dev_queries", "data.dev_passages"),
    *("train.warmup", "train.weight_decay", "train.max_steps", "train.seed", "train.workers"),
    *("train.evaluations", "train.saves"),
}
_BELOW_ONE = {"train.warmup", "train.mask", "scratch.dropout"}


def names() -> list[str]:
    """The recipes that come with the project."""
    return sorted(path.stem for path in RECIPES.glob("*.toml"))


def read_recipe(name: str, overrides: Iterable[str] = ()) -> Recipe:
    """The recipe of that name or path, with ``section.key=value`` overrides applied.

    Raises :class:`InputError` naming the file and the key for an unknown recipe, section or key, a missing or wrong
    value, and for dev or training data that would touch the test split.
    """
    path = RECIPES / f"{name}.toml"
    if "/" in name or "." in name:
        path = Path(name)
    elif not path.is_file():
        raise InputError(f"no recipe {name!r}; there are {', '.join(names())}; a path to a .toml file works, too")
    content = read_toml(path)
    for override in overrides:
        _override(content, override)
    sections: dict[str, Any] = {}
    for section, values in content.items():
        if section not in _SECTIONS or not isinstance(values, dict):
            raise InputError(f"unknown section [{section}]; expected {', '.join(_SECTIONS)}", path=path)
        sections[section] = _section(section, values, path)
    for section in ("model", "train"):
        if section not in sections:
            raise InputError(f"has no section [{section}]", path=path)
    recipe = Recipe(path.stem, sections["model"], sections.get("data", Data()), sections["train"])
    if "scratch" in sections:
        recipe = dataclasses.replace(recipe, scratch=sections["scratch"])
    _check(recipe, path)
    return recipe


def _override(content: dict[str, Any], override: str) -> None:
    key, equals, text = override.partition("=")
    section, dot, name = key.partition(".")
    if not (equals and dot and section and name):
        raise InputError(f"--set {override}: expected SECTION.KEY=VALUE, as in train.batch=64")
    try:
        value = json.loads(text)  # numbers, true and false as in TOML; anything else is a string
    except ValueError:
        value = text
    part = content.setdefault(section, {})
    if not isinstance(part, dict):
        raise InputError(f"--set {override}: {section!r} is no section")
    part[name] = str(text) if isinstance(value, (dict, list, type(None))) else value


def _section(section: str, values: dict[str, Any], path: Path) -> Any:
    kind = _SECTIONS[section]
    types = typing.get_type_hints(kind)
    for name, value in values.items():
        key = f"{section}.{name}"
        if name not in types:
            raise InputError(f"unknown key {key!r}; [{section}] has {', '.join(types)}", path=path)
        expected = types[name]
        if expected is float and type(value) is int:
            values[name] = value = float(value)
        if expected is str and type(value) in (int, float):
            values[name] = value = str(value)  # --set data.negatives=2024
        if type(value) is not expected:
            raise InputError(f"{key}: expected {expected.__name__}, found {value!r}", path=path)
        if key in _CHOICES and value not in _CHOICES[key]:
            raise InputError(f"{key}: expected one of {', '.join(_CHOICES[key])}, found {value!r}", path=path)
        if expected in (int, float) and not (value > 0 or (value == 0 and key in _MAY_BE_ZERO)):
            raise InputError(f"{key}: expected a number above zero, found {value!r}", path=path)
        if key in _BELOW_ONE and value >= 1:
            raise InputError(f"{key}: expected a share below 1, found {value!r}", path=path)
    needed = [f.name for f in dataclasses.fields(kind) if f.default is dataclasses.MISSING and f.name not in values]
    if needed:
        raise InputError(f"[{section}] lacks {', '.join(needed)}", path=path)
    return kind(**values)


def _check(recipe: Recipe, path: Path) -> None:
    for key in ("split", "dev_split"):
        if getattr(recipe.data, key) == "test":
            raise InputError(f"data.{key}: the test split is for the final evaluation alone", path=path)
    if recipe.model.start == SCRATCH and recipe.scratch.hidden % recipe.scratch.heads:
        raise InputError("scratch.hidden: expected a multiple of scratch.heads", path=path)
