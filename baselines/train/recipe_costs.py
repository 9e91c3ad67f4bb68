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
from builders.store.published import published_figures
from builders.store.reader import Release

_TOP_K = 50  # default of --top-k
_BYTES_PER_WEIGHT = 4  # of a checkpoint
_BYTES_PER_DIMENSION = 2  # of an embedding
_BERT_POSITIONS = 512
# Operations per parameter and token: a multiplication and an addition in the forward pass, twice as many backward.
_TRAINING_OPERATIONS = 6
_INFERENCE_OPERATIONS = 2
# A state for resuming has the weights and Adam's two moments. Two states are kept.
_WEIGHTS_IN_STATES = 2 * 3


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
        attention_matrices = 4 * self.hidden**2
        feed_forward_matrices = 2 * self.hidden * self.feed_forward
        # Biases: four of attention and two of the feed-forward part. Two norms have a weight and a bias each.
        biases = 5 * self.hidden + self.feed_forward
        norms = 4 * self.hidden
        return self.layers * (attention_matrices + feed_forward_matrices + biases + norms)

    @property
    def parameters(self) -> int:
        """All parameters of the layers and the embeddings."""
        token_types = 2
        embeddings = self.vocabulary + self.positions + token_types
        return self.in_layers + embeddings * self.hidden


_CHINESE_BERT = Architecture(21_128, 512, 12, 768, 3072)
KNOWN = {
    "nghuyong/ernie-1.0-base-zh": Architecture(18_000, 513, 12, 768, 3072),
    "hfl/chinese-bert-wwm-ext": _CHINESE_BERT,
    "hfl/chinese-roberta-wwm-ext": _CHINESE_BERT,
    "hfl/chinese-macbert-base": _CHINESE_BERT,
    "google-bert/bert-base-multilingual-cased": Architecture(119_547, 512, 12, 768, 3072),
    "intfloat/multilingual-e5-small": Architecture(250_037, 512, 12, 384, 1536),
}


class CollectionSizes(NamedTuple):
    """The sizes of ``release``, or of the paper's data without a release. Raises KeyError if the paper lacks a size."""

    release: Release | None = None

    def passages(self, set_name: str) -> int:
        """The number of passages of a set."""
        corpus = set_of(set_name).corpus
        if self.release:
            return self.release.rows(corpus, "corpus")
        return int(published_figures()["collections"][corpus]["passages"])

    def queries(self, config: str, split: str) -> int:
        """The number of queries in a config's split."""
        if self.release:
            return self.release.rows(config, split)
        # The key None raises KeyError: the paper has the sizes of the main queries only.
        table_row = split if config == "queries" else None
        return int(published_figures()["table3"][table_row]["queries"])

    def pairs(self, set_name: str, split: str) -> int:
        """The number of (query, positive passage) pairs in a split."""
        if not self.release:
            table_row = split if set_name == "main" else None  # None raises KeyError, as above
            return int(published_figures()["table3"][table_row]["positive_passages"])
        grades = self.release.table(set_of(set_name).qrels, split, ["score"])["score"]
        return int(pc.sum(pc.greater(grades, 0)).as_py() or 0)


def starting_architecture(recipe: Recipe, recipes: Mapping[str, Recipe]) -> Architecture | None:
    """Return the architecture of a recipe's starting checkpoint, or None if the architecture is unknown.

    If another recipe trains this checkpoint, that recipe has the architecture.

    ``recipes``: recipes with changed values, by name.
    """
    while recipe.model.start.startswith(FROM_RECIPE):
        start_name = recipe.model.start.removeprefix(FROM_RECIPE)
        recipe = recipes.get(start_name) or read_recipe(start_name)
    if recipe.model.start == SCRATCH:
        sizes = recipe.scratch
        return Architecture(sizes.vocabulary, _BERT_POSITIONS, sizes.layers, sizes.hidden, sizes.feed_forward)
    return KNOWN.get(recipe.model.start)


def tokens_of_row(recipe: Recipe) -> int:
    """Return the tokens of a training row. A dual-encoder's row has a query, a positive and its negatives."""
    data = recipe.data
    if recipe.model.kind != "dual":
        # A cross-encoder's (query, passage) pair, or a passage of a masked language model.
        return data.passage_length
    negative_count = data.negatives_per_positive
    if data.rows == "one-negative":
        negative_count = min(1, negative_count)
    return data.query_length + (1 + negative_count) * data.passage_length


def training_rows(recipe: Recipe, sizes: CollectionSizes) -> int:
    """Return the number of rows that a training reads, over all epochs and at most ``train.max_steps`` steps."""
    data = recipe.data
    train = recipe.train
    if recipe.model.kind == "mlm":
        epoch_rows = sizes.passages(data.set)
    else:
        epoch_rows = sizes.pairs(data.set, data.split)
        if recipe.model.kind == "cross":
            epoch_rows *= 1 + data.negatives_per_positive
        elif data.rows == "one-negative":
            epoch_rows *= max(1, data.negatives_per_positive)
    # A rest of rows that fills no batch is dropped in each epoch.
    step_count = max(1, round(train.epochs * (epoch_rows // train.batch)))
    if train.max_steps:
        step_count = min(step_count, train.max_steps)
    return step_count * train.batch


def training_cost(recipe: Recipe, sizes: CollectionSizes, recipes: Mapping[str, Recipe]) -> ModelCost:
    """Estimate the cost of a training. ``recipes``: the recipes that train starting checkpoints, by name."""
    row_count = training_rows(recipe, sizes)
    token_count = row_count * tokens_of_row(recipe)
    architecture = starting_architecture(recipe, recipes)
    if architecture is None:
        return ModelCost(row_count, token_count)
    saved_copies = 1  # the checkpoint
    if recipe.train.saves:
        saved_copies += _WEIGHTS_IN_STATES
    disk_bytes = recipe.model.towers * architecture.parameters * _BYTES_PER_WEIGHT * saved_copies
    operation_count = _TRAINING_OPERATIONS * architecture.in_layers * token_count
    return ModelCost(row_count, token_count, operation_count, disk_bytes)


def inference_cost(model: Architecture | None, rows: int, length: int, *, stores_vectors: bool = False) -> ModelCost:
    """Estimate the cost of encoding or scoring ``rows`` texts of ``length`` tokens. A ``model`` None is unknown.

    ``stores_vectors``: True if the vectors of the texts are written to disk.
    """
    token_count = rows * length
    if model is None:
        return ModelCost(rows, token_count)
    disk_bytes = None
    if stores_vectors:
        disk_bytes = rows * model.hidden * _BYTES_PER_DIMENSION
    operation_count = _INFERENCE_OPERATIONS * model.in_layers * token_count
    return ModelCost(rows, token_count, operation_count, disk_bytes)


def call_cost(
    verb: str, arguments: Mapping[str, Any], sizes: CollectionSizes, recipes: Mapping[str, Recipe]
) -> ModelCost:
    """Estimate the cost of a call of a verb that searches or trains. Other verbs have no rows.

    Args:
        verb: the verb as on the command line.
        arguments: the arguments of its function, by name. Paths are texts.
        sizes: the sizes of the release.
        recipes: the recipes that this and earlier calls train, by their names and by the paths of their checkpoints.

    Raises:
        InputError: the release lacks a config that the verb reads.
    """
    if verb == "train":
        return training_cost(recipes[arguments["out"]], sizes, recipes)
    # The number of texts or pairs that the verb reads.
    set_name = arguments.get("set", "main")
    if verb == "encode":
        row_count = sizes.passages(set_name)
    elif verb in ("bm25", "mine", "search", "rerank"):
        query_config = arguments.get("queries", set_of(set_name).queries)
        row_count = sizes.queries(query_config, arguments["split"])
    else:
        return ModelCost(0)
    if verb in ("bm25", "mine"):  # no model runs
        return ModelCost(row_count)
    if verb == "rerank":
        row_count *= min(arguments.get("top_k", _TOP_K), sizes.passages(set_name))

    # The model and the length of a text.
    model_path = arguments["model"]
    recipe = recipes.get(model_path) or read_recipe(Path(model_path).name)
    recipe_length = recipe.data.query_length if verb == "search" else recipe.data.passage_length
    text_length = arguments.get("max_length", recipe_length)
    return inference_cost(
        starting_architecture(recipe, recipes), row_count, text_length, stores_vectors=verb == "encode"
    )
