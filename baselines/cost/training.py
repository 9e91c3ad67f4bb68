"""What a training costs: operations and steps, and the memory of each of its cards."""

from __future__ import annotations

import contextlib
import copy
import functools
from collections.abc import Iterator
from dataclasses import asdict, dataclass

import torch
from sentence_transformers.sentence_transformer.losses import CachedMultipleNegativesRankingLoss
from sentence_transformers.util import dot_score
from torch import distributed, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.testing._internal.distributed.fake_pg import FakeStore  # registers the process group "fake"
from transformers import PretrainedConfig

from baselines.cost.cards import CARDS, SHARE, hours, needed
from baselines.cost.fake import config_of
from baselines.cost.meter import Meter
from baselines.cost.passes import sizes, train_pass
from baselines.train.recipe import PAIRS, Recipe

_FP32 = 4  # bytes: weights, gradients and Adam's moments stay in 32 bits under autocast


@dataclass(frozen=True)
class Memory:
    """Bytes of tensors on each card, by kind.

    ``activations``: of the pass that needs most, with what its operations make on the way. ``embeddings``: a
    dual-encoder's of the whole batch, those gathered from other cards included, their gradients and similarities, at
    their peak. ``buckets``: the copy of the gradients that several processes sum up.
    """

    weights: int
    gradients: int
    moments: int
    activations: int
    embeddings: int
    buckets: int

    @property
    def total(self) -> int:
        return sum(asdict(self).values())


@dataclass(frozen=True)
class TrainingCost:
    """One training on ``cards`` equal cards.

    Attributes:
        parameters: numbers that are trained or kept, both towers' where there are two.
        tokens: that one card's rows have in a step, padded to the recipe's lengths.
        operations: of one card in a step; padded tokens count, and the second forward pass of gradient caching.
        steps: over all epochs.
        checkpoint, state: bytes on the disk, of the trained model and of a state to go on from (with Adam's moments).
    """

    recipe: str
    cards: int
    precision: str
    rows: int
    steps: int
    parameters: int
    tokens: int
    operations: int
    memory: Memory

    @property
    def checkpoint(self) -> int:
        return self.memory.weights

    @property
    def state(self) -> int:
        return self.memory.weights + self.memory.moments

    def fits(self, card: str) -> bool:
        """Whether each card's memory is enough, with what CUDA and the allocator take beside the tensors."""
        return needed(self.memory.total) <= CARDS[card].memory

    def hours(self, card: str, share: float = SHARE) -> float:
        """How long it takes at a share of the cards' peak; waiting for data, or for each other, comes on top."""
        return hours(self.steps * self.operations, card, self.precision, share)

    def rows_a_second(self, card: str, share: float = SHARE) -> float:
        """Rows that all cards together train on in a second: what data loading has to keep up with."""
        return self.rows * self.cards / (3600 * hours(self.operations, card, self.precision, share))


def training_cost(
    recipe: Recipe,
    examples: int,
    cards: int = 1,
    start: str | None = None,
    config: PretrainedConfig | None = None,
) -> TrainingCost:
    """What the training of a recipe costs on so many cards.

    Args:
        examples: (query, positive) pairs to train on; a masked language model's passages; labelled pairs of questions.
        start: another start than the recipe's.
        config: the architecture, where that is not what the recipe, or the start, alone says.

    Counted in bf16 unless the recipe says fp32.
    """
    train, kind = recipe.train, recipe.model.kind
    config = copy.deepcopy(config) if config else config_of(recipe, start)
    precision = "tf32" if train.precision == "fp32" else "bf16"  # products of fp32 run as TF32 (train/trainers.py)
    rows = max(1, train.batch // cards)  # of a card in a step
    if kind == "cross":
        config.num_labels = recipe.model.outputs
    model = sizes(kind, config)
    each = 0 if recipe.data.source == PAIRS else recipe.data.negatives_per_positive
    texts = recipe.data.passage_length
    embeddings = Cost(0, 0)
    if kind == "dual":
        columns = 1 + (1 if recipe.data.rows == "one-negative" else each)
        chunk = min(train.mini_batch, rows)
        passes = [
            (count, train_pass(kind, config, chunk, tokens, precision, pooling=recipe.model.pooling or "mean"))
            for count, tokens in ((1, recipe.data.query_length), (columns, texts))
        ]
        # Embedded without gradients first, then once more with them (GradCache): two forward passes and one backward.
        operations = sum(count * rows * (2 * one.forward + one.backward) // chunk for count, one in passes)
        activations = max(one.peak for _, one in passes)
        embeddings = contrast(model.width, rows, columns, chunk, cards)
        tokens = rows * (recipe.data.query_length + columns * texts)
        total = examples * each if recipe.data.rows == "one-negative" and each else examples
    else:
        given = {"adversarial": train.adversarial} if kind == "cross" else {"mask": train.mask}
        one = train_pass(kind, config, rows, texts, precision, **given)
        operations, activations, tokens = one.forward + one.backward, one.peak, rows * texts
        total = examples * (1 + each) if kind == "cross" else examples
    towers = recipe.model.towers
    steps = max(1, round(train.epochs * (total // train.batch)))
    return TrainingCost(
        recipe=recipe.name,
        cards=cards,
        precision=precision,
        rows=rows,
        steps=min(steps, train.max_steps or steps),
        parameters=towers * model.parameters,
        tokens=tokens,
        operations=operations + embeddings.operations,
        memory=Memory(
            weights=towers * model.parameters * _FP32,
            gradients=towers * model.trained * _FP32,
            moments=towers * model.moments,
            activations=activations,
            embeddings=embeddings.peak,
            buckets=towers * model.trained * _FP32 if cards > 1 else 0,
        ),
    )


@dataclass(frozen=True)
class Cost:
    """Operations, and bytes alive at most."""

    operations: int
    peak: int


@functools.cache
def contrast(width: int, rows: int, passages: int, mini_batch: int, cards: int) -> Cost:
    """What the dual-encoder's loss adds to the passes through the model, on one of ``cards`` cards.

    The loss of training itself, over ``rows`` queries with ``passages`` passages each, whose embeddings of ``width``
    numbers come from nowhere; the other cards' are gathered from a process group that only pretends.
    """
    with FakeTensorMode(), _processes(cards):
        loss = CachedMultipleNegativesRankingLoss(
            nn.Sequential(_Embeddings(width)),
            scale=1.0,
            similarity_fct=dot_score,
            mini_batch_size=mini_batch,
            gather_across_devices=True,
        )
        columns = [{"input_ids": torch.zeros((rows, 1), dtype=torch.int64)} for _ in range(1 + passages)]
        with Meter(loss.parameters()) as meter:
            loss(columns, None).backward()
    return Cost(meter.flops, meter.peak)


class _Embeddings(nn.Module):
    """In the place of an encoder: an embedding a row, at no cost."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.one = nn.Parameter(torch.zeros(width))

    def forward(self, texts: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        return {"sentence_embedding": self.one.repeat(len(texts["input_ids"]), 1)}


@contextlib.contextmanager
def _processes(count: int) -> Iterator[None]:
    """This process as the first of ``count`` that are not there."""
    if count == 1:
        yield
        return
    distributed.init_process_group("fake", store=FakeStore(), rank=0, world_size=count)
    try:
        yield
    finally:
        distributed.destroy_process_group()
