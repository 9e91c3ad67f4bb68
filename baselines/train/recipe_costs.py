"""The size of a recipe's model, and the costs of its training and of its use, by formula.

Operations are 6 x parameters x tokens for training and 2 x parameters x tokens for encoding and re-ranking. Only the
parameters of the transformer's layers count for operations, because looking up an embedding multiplies nothing. Every
text counts with the recipe's maximum length. Disk space covers checkpoints and embeddings. The estimate omits attention
scores, the second forward pass of gradient caching, vector search, and static models.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow.compute as pc

from baselines.train.recipe import FROM_RECIPE, SCRATCH, Recipe, read_recipe
from builders.store.layout import set_of
from builders.store.published import published
from builders.store.reader import Release

_TOP_K = 50  # default of --top-k
_NUMBER_BYTES = 4  # of one weight of a checkpoint
_EMBEDDING_BYTES = 2  # of one number of an embedding


class ModelCost(NamedTuple):
    """The cost of a training or of a use. A value is None if the value is unknown, or if no model runs."""

    rows: int
    tokens: int | None = None
    operations: int | None = None
    disk: int | None = None


class Architecture(NamedTuple):
    """Sizes of a BERT: vocabulary, positions, layers, hidden width, and width of the feed-forward part."""

    vocabulary: int
    positions: int
    layers: int
    hidden: int
    feed_forward: int

    @property
    def in_layers(self) -> int:
        """Parameters of the layers: four attention matrices, two feed-forward matrices, biases and norms."""
        return self.layers * (
            4 * self.hidden**2 + 2 * self.hidden * self.feed_forward + 9 * self.hidden + self.feed_forward
        )

    @property
    def parameters(self) -> int:
        """All parameters of the layers and the embeddings."""
        return self.in_layers + (self.vocabulary + self.positions + 2) * self.hidden


KNOWN = {
    "nghuyong/ernie-1.0-base-zh": Architecture(18_000, 513, 12, 768, 3072),
    **{
        f"hfl/chinese-{name}": Architecture(21_128, 512, 12, 768, 3072)
        for name in ("bert-wwm-ext", "roberta-wwm-ext", "macbert-base")
    },
    "google-bert/bert-base-multilingual-cased": Architecture(119_547, 512, 12, 768, 3072),
    "intfloat/multilingual-e5-small": Architecture(250_037, 512, 12, 384, 1536),
}


class Sizes(NamedTuple):
    """The sizes of ``release``, or of the paper's data without a release. Raises KeyError if the paper lacks a size."""

    release: Release | None = None

    def passages(self, name: str) -> int:
        if self.release:
            return self.release.rows(set_of(name).corpus, "corpus")
        return int(published()["collections"][set_of(name).corpus]["passages"])

    def queries(self, config: str, split: str) -> int:
        """The number of queries in a config's split."""
        if self.release:
            return self.release.rows(config, split)
        return int(published()["table3"][split if config == "queries" else None]["queries"])

    def pairs(self, name: str, split: str) -> int:
        """The number of (query, positive passage) pairs in a split."""
        if not self.release:
            return int(published()["table3"][split if name == "main" else None]["positive_passages"])
        scores = self.release.table(set_of(name).qrels, split, ["score"])["score"]
        return int(pc.sum(pc.greater(scores, 0)).as_py() or 0)


def architecture(recipe: Recipe, recipes: Mapping[str, Recipe]) -> Architecture | None:
    """Return the architecture of a recipe's starting checkpoint, or None if the architecture is unknown.

    If another recipe trains this checkpoint, that recipe has the architecture.

    ``recipes``: recipes with changed values, by name.
    """
    while recipe.model.start.startswith(FROM_RECIPE):
        name = recipe.model.start.removeprefix(FROM_RECIPE)
        recipe = recipes.get(name) or read_recipe(name)
    if recipe.model.start == SCRATCH:
        own = recipe.scratch
        return Architecture(own.vocabulary, 512, own.layers, own.hidden, own.feed_forward)
    return KNOWN.get(recipe.model.start)


def tokens_of_row(recipe: Recipe) -> int:
    """Return the tokens of a training row. A dual-encoder's row has a query and its passages, other rows one text."""
    data = recipe.data
    if recipe.model.kind != "dual":
        return data.passage_length
    negatives = min(1, data.negatives_per_positive) if data.rows == "one-negative" else data.negatives_per_positive
    return data.query_length + (1 + negatives) * data.passage_length


def training_rows(recipe: Recipe, sizes: Sizes) -> int:
    """Return the number of rows that a training reads, over all epochs."""
    data, train = recipe.data, recipe.train
    if recipe.model.kind == "mlm":
        rows = sizes.passages(data.set)
    else:
        rows = sizes.pairs(data.set, data.split)
        if recipe.model.kind == "cross":
            rows *= 1 + data.negatives_per_positive
        elif data.rows == "one-negative":
            rows *= max(1, data.negatives_per_positive)
    steps = max(1, round(train.epochs * (rows // train.batch)))
    return min(steps, train.max_steps or steps) * train.batch


def training_cost(recipe: Recipe, sizes: Sizes, recipes: Mapping[str, Recipe]) -> ModelCost:
    """Estimate the cost of a training. ``recipes``: as for :func:`architecture`."""
    rows = training_rows(recipe, sizes)
    tokens = rows * tokens_of_row(recipe)
    model = architecture(recipe, recipes)
    if model is None:
        return ModelCost(rows, tokens)
    # The checkpoint and two states for resuming. A state also has Adam's two moments.
    copies = 1 + 2 * 3 if recipe.train.saves else 1
    disk = recipe.model.towers * model.parameters * _NUMBER_BYTES * copies
    return ModelCost(rows, tokens, 6 * model.in_layers * tokens, disk)


def inference_cost(model: Architecture | None, rows: int, length: int, *, stores_vectors: bool = False) -> ModelCost:
    """Estimate the cost of encoding or scoring ``rows`` texts of ``length`` tokens. None is an unknown model."""
    tokens = rows * length
    if model is None:
        return ModelCost(rows, tokens)
    disk = rows * model.hidden * _EMBEDDING_BYTES if stores_vectors else None
    return ModelCost(rows, tokens, 2 * model.in_layers * tokens, disk)


def call_cost(verb: str, arguments: Mapping[str, Any], sizes: Sizes, recipes: Mapping[str, Recipe]) -> ModelCost:
    """Estimate the cost of a call of a verb that searches or trains. Other verbs have no rows.

    Args:
        verb: the verb as on the command line.
        arguments: the arguments of its function, by name. Paths are texts.
        sizes: the sizes of the release.
        recipes: the recipes that earlier calls train, by their names and by the paths of their checkpoints.

    Raises:
        InputError: the release lacks a config that the verb reads.
    """
    if verb == "train":
        return training_cost(recipes[arguments["out"]], sizes, recipes)
    set_name = arguments.get("set", "main")
    if verb == "encode":
        rows = sizes.passages(set_name)
    elif verb in ("bm25", "mine", "search", "rerank"):
        rows = sizes.queries(arguments.get("queries", set_of(set_name).queries), arguments["split"])
    else:
        return ModelCost(0)
    if verb in ("bm25", "mine"):
        return ModelCost(rows)
    if verb == "rerank":
        rows *= min(arguments.get("top_k", _TOP_K), sizes.passages(set_name))
    recipe = recipes.get(arguments["model"]) or read_recipe(Path(arguments["model"]).name)
    length = recipe.data.query_length if verb == "search" else recipe.data.passage_length
    length = arguments.get("max_length", length)
    return inference_cost(architecture(recipe, recipes), rows, length, stores_vectors=verb == "encode")
