"""What it costs to send texts through a trained model: `encode` and `rerank`."""

from __future__ import annotations

import copy
from dataclasses import dataclass

from transformers import PretrainedConfig

from baselines.cost.cards import CARDS, SHARE, hours, needed
from baselines.cost.fake import config_of
from baselines.cost.passes import DTYPES, rank_pass, sizes
from baselines.retrieve.devices import batch_tokens
from baselines.train.recipe import Recipe

DTYPE = "fp16"  # what `--dtype auto` is on a card


@dataclass(frozen=True)
class RankingCost:
    """``texts`` of ``tokens`` tokens each, through a model on a card.

    Attributes:
        operations: of all texts.
        weights, activations: bytes on the card; the latter of a batch as `encode` and `rerank` make them.
        embeddings: bytes on the disk, of 16-bit numbers (`encode`); 0 for `rerank`.
    """

    texts: int
    tokens: int
    operations: int
    weights: int
    activations: int
    embeddings: int

    def fits(self, card: str) -> bool:
        """Whether a card's memory is enough."""
        return needed(self.weights + self.activations) <= CARDS[card].memory

    def hours(self, card: str, share: float = SHARE) -> float:
        """How long one card takes, at a share of its peak."""
        return hours(self.operations, card, DTYPE, share)

    def tokens_a_second(self, card: str, share: float = SHARE) -> float:
        """What tokenising has to keep up with, for one card."""
        return self.texts * self.tokens / (3600 * self.hours(card, share))


def encoding_cost(recipe: Recipe, texts: int, tokens: int, config: PretrainedConfig | None = None) -> RankingCost:
    """What `encode` costs with the model that a dual-encoder's recipe trains (one of its towers).

    ``config``: its architecture, where that is not what the recipe alone says.
    """
    return _cost("dual", recipe, texts, tokens, config)


def reranking_cost(recipe: Recipe, pairs: int, tokens: int, config: PretrainedConfig | None = None) -> RankingCost:
    """What `rerank` costs with the model that a cross-encoder's recipe trains; ``tokens`` of query and passage."""
    return _cost("cross", recipe, pairs, tokens, config)


def _cost(kind: str, recipe: Recipe, texts: int, tokens: int, config: PretrainedConfig | None) -> RankingCost:
    config = copy.deepcopy(config) if config else config_of(recipe)
    if kind == "cross":
        config.num_labels = recipe.model.outputs
    rows = max(1, batch_tokens("cuda") // tokens)
    one, model = rank_pass(kind, config, rows, tokens, DTYPE), sizes(kind, config)
    return RankingCost(
        texts=texts,
        tokens=tokens,
        operations=one.forward * texts // rows,
        weights=model.parameters * DTYPES[DTYPE].itemsize,
        activations=one.peak,
        embeddings=0 if kind == "cross" else texts * model.width * DTYPES[DTYPE].itemsize,
    )
