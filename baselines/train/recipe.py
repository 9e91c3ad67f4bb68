"""Recipes: how one model is trained, as a commented TOML file; read, checked, overridden with ``--set``.

``baselines/recipes/NAME.toml`` holds the paper's values (Appendix A.2), ``NAME-scratch.toml`` those of a machine
without pretrained weights. A name stands for the file in that folder, anything with a dot or a slash for a path.
"""

from __future__ import annotations

from collections.abc import Iterable
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta, Struct

from builders.core.errors import InputError
from builders.core.files import read_toml
from builders.core.typed import typed
from builders.store.layout import SETS, base_set, set_of

RECIPES = Path(__file__).parents[1] / "recipes"
SCRATCH = "scratch"
WORDS = "words"  # start = "words": vectors of words, made from the collection
MADE = (SCRATCH, WORDS)  # starts that are made, from the collection, by the training itself
FROM_RELEASE = "release"  # data.negatives: those that came with the official data
PAIRS = "pairs"  # data.source: labelled pairs of questions, from files
FROM_RECIPE = "recipe:"  # start = "recipe:NAME": the checkpoint that the recipe NAME left

# Far above any use, and far below what the arithmetic of a training can hold.
_MOST, _LARGEST = 1_000_000_000, 1_000_000
Count = Annotated[int, Meta(ge=0, le=_MOST)]
Positive = Annotated[int, Meta(ge=1, le=_MOST)]
Size = Annotated[int, Meta(ge=1, le=10_000)]
Length = Annotated[int, Meta(ge=3, le=_MOST)]  # two special tokens and one of a text
Seed = Annotated[int, Meta(ge=0, lt=1 << 32)]  # as NumPy's
Rate = Annotated[float, Meta(gt=0, le=1)]
Amount = Annotated[float, Meta(ge=0, le=_LARGEST)]
PositiveAmount = Annotated[float, Meta(gt=0, le=_LARGEST)]
Share = Annotated[float, Meta(ge=0, lt=1)]
PositiveShare = Annotated[float, Meta(gt=0, lt=1)]
Name = Annotated[str, Meta(min_length=1)]

_LOGGERS = {"tensorboard", "trackio", "wandb"}

# Keys that only some kinds of model have.
_KINDS = {
    **dict.fromkeys(("model.pooling", "model.similarity", "model.towers", "data.rows", "train.shortest"), ("dual",)),
    **dict.fromkeys(("model.outputs", "data.source", "train.adversarial"), ("cross",)),
    "model.inputs": ("dual", "cross"),
}


class Model(Struct, frozen=True, forbid_unknown_fields=True):
    """The model that is trained, and its start.

    ``start``: a name on the hub, a directory, ``scratch`` (random weights, own vocabulary), ``words`` (a vector a word,
    a dual-encoder's alone: :mod:`baselines.train.models`), or ``recipe:NAME``.
    ``revision``: a commit, tag or branch of a start on the hub; empty: its main branch.

    A dual-encoder's alone: ``pooling`` and ``similarity`` (empty: those of a start that is a SentenceTransformer,
    ``mean`` and ``dot`` where it is none), and ``towers``, one encoder for queries and passages or two that begin
    equal. A cross-encoder's alone: ``outputs``, one logit (binary cross entropy) or two (softmax; the score is
    the second logit less the first). ``inputs``: ``plain`` as the start's tokenizer makes them, or as the ``official``
    code does (:mod:`baselines.retrieve.official_input`): spaces removed, a passage after an empty title.
    """

    kind: Literal["dual", "cross", "mlm"]
    start: Name
    revision: str = ""
    pooling: Literal["", "cls", "mean"] = ""
    similarity: Literal["", "dot", "cos"] = ""
    towers: Literal[1, 2] = 1
    inputs: Literal["plain", "official"] = "plain"
    outputs: Literal[1, 2] = 1

    def __post_init__(self) -> None:
        if self.revision and (self.start in MADE or self.start.startswith(FROM_RECIPE)):
            raise ValueError(f"revision: of a start on the hub; {self.start} is none")
        if self.kind == "dual" and self.inputs == "official" and self.towers == 1:
            raise ValueError("inputs: the official ones differ for queries and passages; expected towers = 2")


class Scratch(Struct, frozen=True, forbid_unknown_fields=True):
    """The size of a BERT with random weights, and of its WordPiece vocabulary; read where ``model.start = "scratch"``.

    ``vocabulary_passages``: from how many passages, evenly spaced over the collection, the vocabulary is made.
    """

    vocabulary: Annotated[int, Meta(ge=10, le=_MOST)] = 12_000  # five are special tokens
    vocabulary_passages: Positive = 200_000
    layers: Size = 6
    hidden: Size = 384
    heads: Size = 6
    feed_forward: Size = 1536
    dropout: Share = 0.1

    def __post_init__(self) -> None:
        if self.hidden % self.heads:
            raise ValueError(f"hidden: expected a multiple of heads ({self.heads}), found {self.hidden}")


class Words(Struct, frozen=True, forbid_unknown_fields=True):
    """The vectors of words that a static model begins with; read where ``model.start = "words"``.

    ``vocabulary``: the most frequent words of ``vocabulary_passages`` passages, evenly spaced over the collection, and
    every character of them. ``dimensions``: of the vectors. ``characters``: how much of a word's first vector is of its
    characters' vectors, where its own is 1 (0: nothing).
    """

    vocabulary: Positive = 60_000
    vocabulary_passages: Positive = 200_000
    dimensions: Size = 1024
    characters: Amount = 0.5


class Data(Struct, frozen=True, forbid_unknown_fields=True):
    """The training data. Lengths in tokens, special tokens included; a static model reads whole texts.

    ``set``: one of a release's sets, or a config of training questions that `add` drew: then these alone are
    learned from, and main's ``dev_split`` is ranked during training.
    ``source``: a release (queries and their passages), or ``pairs``, a cross-encoder's alone: files of labelled pairs
    of questions (``--pairs``), of which ``passage_length`` cuts both together. ``held_out``: the share of them that is
    measured on where no ``--dev-pairs`` are given.
    ``negatives``: a file that `mine` wrote, or ``release``: the hard negatives that came with the official data.
    ``rows``, a dual-encoder's alone: a positive with k negatives gives k rows of one negative each
    (``one-negative``, as the official code's), or one row of them all (``all-negatives``).
    ``similar``: also the training questions that were removed as similar to a development or test question (config
    ``train-similar``, Section 2.3): to measure what they give away (Table 6), not for use.
    ``dev_queries`` of ``dev_split`` are ranked during training: by a dual-encoder among their positives and
    ``dev_passages`` others, by a cross-encoder among the top 20 of a run (``--dev-run``).
    """

    source: Literal["release", "pairs"] = "release"
    held_out: PositiveShare = 0.1
    set: str = "main"
    split: Name = "train"
    dev_split: Name = "dev"
    negatives: str = ""
    negatives_per_positive: Count = 4
    similar: bool = False
    rows: Literal["one-negative", "all-negatives"] = "one-negative"
    query_length: Length = 32
    passage_length: Length = 384
    dev_queries: Count = 200
    dev_passages: Count = 2_000

    def __post_init__(self) -> None:
        try:
            set_of(self.set)
        except ValueError:
            known = (
                f"{', '.join(SETS)}, restrain-SIZE-interpolation, restrain-SIZE-extrapolation, resttest-bucketNUMBER"
            )
            raise ValueError(f"set: expected one of {known}; found {self.set!r}") from None
        if self.similar and (self.set, self.split) != ("main", "train"):
            raise ValueError(f"similar: of main's train alone, found {self.set}'s {self.split}")
        for name in ("split", "dev_split"):
            if getattr(self, name) == "test":
                raise ValueError(f"{name}: the test split is for the final evaluation alone")


class Train(Struct, frozen=True, forbid_unknown_fields=True):
    """The training itself. ``batch`` counts rows over all processes together; an epoch is all rows once.

    A row: for the dual-encoder what ``data.rows`` says, for the cross-encoder a (query, passage) pair, for the masked
    language model a passage. ``mini_batch`` rows go through the model at once in the dual-encoder's training and in
    evaluations; no result depends on it. ``mini_batch_tokens`` limits the tokens that go through a dual-encoder or a
    cross-encoder at once in training (0: 32,768 on a GPU; on a CPU ``mini_batch`` rows, or a cross-encoder's whole
    batch). ``max_steps`` ends the training earlier (0: after the epochs).
    ``schedule``: after the warm-up the rate falls to 0, or stays. ``clip``: the largest norm of the gradients (0:
    any). ``scale``: what a dual-encoder's similarities are multiplied with in its loss (cosines need more than 1).
    ``adversarial``, a cross-encoder's alone: how far its word embeddings are moved along their gradient for the loss
    that trains (0: not; the official code: 0.01). ``embeddings_gradient``: the factor of these embeddings' gradient in
    such a step (the official code: 2, as docs/train.md says). ``shortest``, a dual-encoder's alone: the loss is also
    that of the first half of each vector's numbers, of the first quarter, and so on down to so many, so that
    ``truncate_dim`` may be one of these (Matryoshka; 0: of whole vectors alone). ``compile``: torch.compile of the
    transformers. ``precision``: auto is bf16 on a GPU that has it, fp32 on every CPU. ``workers`` processes join and
    cut texts beside a GPU (0 on a CPU). ``logs``, ``evaluations`` and ``saves``: how often over the training.
    """

    batch: Positive
    epochs: PositiveAmount
    learning_rate: Rate
    warmup: Share = 0.0
    schedule: Literal["linear", "constant"] = "linear"
    weight_decay: Amount = 0.0
    clip: Amount = 1.0
    adversarial: Amount = 0.0
    embeddings_gradient: PositiveAmount = 1.0
    shortest: Count = 0
    mini_batch: Positive = 32
    mini_batch_tokens: Count = 0
    max_steps: Count = 0
    scale: PositiveAmount = 1.0
    mask: PositiveShare = 0.15
    seed: Seed = 0
    precision: Literal["auto", "bf16", "fp32"] = "auto"
    compile: bool = False
    workers: Annotated[int, Meta(ge=0, le=1_000)] = 2
    logs: Positive = 200
    evaluations: Count = 10
    saves: Count = 10
    report_to: str = "auto"  # loggers, separated by commas; auto: TensorBoard if it is installed

    def __post_init__(self) -> None:
        if self.report_to not in ("auto", "none") and not {*self.report_to.split(",")} <= _LOGGERS:
            known = ", ".join(sorted(_LOGGERS))
            raise ValueError(f"report_to: expected auto, none, or some of {known}; found {self.report_to!r}")

    def loggers(self) -> list[str]:
        """Return the libraries of ``report_to``. Raises :class:`InputError` if a library is not installed."""
        if self.report_to in ("auto", "none"):
            return ["tensorboard"] * (self.report_to == "auto" and _is_installed("tensorboard"))
        if missing := [name for name in self.report_to.split(",") if not _is_installed(name)]:
            raise InputError(f"train.report_to: {missing[0]} is not installed; run `pip install {missing[0]}`")
        return self.report_to.split(",")


def _is_installed(logger: str) -> bool:
    return any(map(find_spec, (logger, "tensorboardX") if logger == "tensorboard" else (logger,)))


class Sections(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The sections of a recipe's file."""

    model: Model
    data: Data = Data()
    train: Train
    scratch: Scratch = Scratch()
    words: Words = Words()

    def __post_init__(self) -> None:
        for key, kinds in _KINDS.items():
            section, name = key.split(".")
            value = getattr(getattr(self, section), name)
            default = next(each.default for each in msgspec.structs.fields(getattr(self, section)) if each.name == name)
            if value != default and self.model.kind not in kinds:
                raise ValueError(f"{key}: for kind = {' or '.join(kinds)} alone, found kind = {self.model.kind}")
        if self.train.embeddings_gradient != 1 and not self.train.adversarial:
            raise ValueError("train.embeddings_gradient: of an adversarial step alone; expected train.adversarial too")
        if self.data.negatives == FROM_RELEASE and base_set(self.data.set) != "main":
            raise ValueError(f"data.negatives: the official negatives are those of main, not of {self.data.set}")


class Recipe(Sections, frozen=True, kw_only=True):
    """A recipe, checked. ``name`` is the file's, without ``.toml``."""

    name: str

    @property
    def negatives(self) -> int:
        """Hard negatives that a training reads for each positive."""
        return 0 if self.model.kind == "mlm" or self.data.source == PAIRS else self.data.negatives_per_positive

    def resolved(self) -> dict[str, Any]:
        """Everything, defaults and overrides included, as ``recipe.json`` holds it."""
        content: dict[str, Any] = msgspec.to_builtins(self)
        for start in MADE:
            if self.model.start != start:
                del content[start]
        # Not where they change nothing, so that trainings of versions that did not know them are still done.
        for key, neutral in (("mini_batch_tokens", 0), ("shortest", 0), ("embeddings_gradient", 1)):
            if getattr(self.train, key) == neutral:
                del content["train"][key]
        del content["train"]["report_to"]
        if not self.data.similar:
            del content["data"]["similar"]
        return {"name": content.pop("name"), **content}


def names() -> list[str]:
    """The recipes that come with the project."""
    return sorted(path.stem for path in RECIPES.glob("*.toml"))


def read_recipe(name: str, overrides: Iterable[str] = ()) -> Recipe:
    """The recipe of that name or path, with ``section.key=value`` overrides applied.

    Raises :class:`InputError` naming the file (or the override) and the key for an unknown recipe, section or key, a
    missing or wrong value, and for dev or training data that would touch the test split.
    """
    path = RECIPES / f"{name}.toml"
    if "/" in name or "." in name:
        path = Path(name)
    elif name not in names():
        raise InputError(f"no recipe {name!r}; there are {', '.join(names())}; a path to a .toml file works, too")
    content = read_toml(path)
    for override in overrides:
        _override(content, override)
    sections = typed(content, Sections, path)
    return Recipe(name=path.stem, **{field: getattr(sections, field) for field in sections.__struct_fields__})


def _override(content: dict[str, Any], override: str) -> None:
    """Put one ``section.key=value`` into the content of a recipe's file."""
    key, equals, text = override.partition("=")
    section, dot, name = key.partition(".")
    if not (equals and dot and section and name):
        raise InputError(f"--set {override}: expected SECTION.KEY=VALUE, as in train.batch=64")
    value = typed(
        text, _type_of(name, _type_of(section, Sections, override), override), f"--set {override}", from_text=True
    )
    table = content.setdefault(section, {})
    if isinstance(table, dict):  # else the file is wrong, and is told so
        table[name] = value


def _type_of(key: str, table: Any, override: str) -> Any:
    types = {field.name: field.type for field in msgspec.structs.fields(table)}
    if key not in types:
        raise InputError(f"unknown key {key!r}; expected {', '.join(types)}", path=f"--set {override}")
    return types[key]
