"""What a training of full size costs, counted on fake tensors: held against formulas, real tensors and a whole step."""

from __future__ import annotations

import importlib
from typing import Any

import pytest
import torch
from commands import ROOT
from sentence_transformers.sentence_transformer.losses import CachedMultipleNegativesRankingLoss
from sentence_transformers.sentence_transformer.modules import Pooling
from sentence_transformers.util import dot_score
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.profiler import ProfilerActivity, profile
from transformers import BertConfig, PretrainedConfig

from baselines.cost.cards import hours
from baselines.cost.fake import config_of, make_model
from baselines.cost.meter import Meter
from baselines.cost.passes import _autocast, measure, sizes, train_pass
from baselines.cost.training import contrast, training_cost
from baselines.reproduce.matrix import read_matrix
from baselines.train.recipe import names, read_recipe

POSITIVES = 222_395  # of the training split (Table 3)
OF_THE_TABLES = [
    name for name in names() if not name.endswith("-scratch") and "question" not in name and name != "static"
]


def small(**other: Any) -> PretrainedConfig:
    values = {"vocab_size": 500, "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2}
    return BertConfig(**{**values, "intermediate_size": 256, **other})


def with_gradients(model: Any) -> Any:
    for parameter in model.parameters():
        parameter.grad = torch.zeros_like(parameter)
    return model.train()


def matrices(config: PretrainedConfig, rows: int, tokens: int) -> int:
    """Operations of a transformer's forward pass, by hand: two a weight and token, four a pair of tokens and number."""
    width, between = config.hidden_size, config.intermediate_size
    weights = 4 * width * width + 2 * width * between
    return config.num_hidden_layers * rows * tokens * (2 * weights + 4 * tokens * width)


@pytest.mark.parametrize(
    ("name", "parameters"),
    [
        # Words, positions, types and their norm; twelve layers; the pooler.
        ("de-bm25-neg", (18_000 + 513 + 2 + 2) * 768 + 12 * 7_087_872 + 590_592),
        ("mbert-zero-shot", 177_853_440),  # bert-base-multilingual-cased, as published
    ],
)
def test_the_papers_models_have_their_sizes(name: str, parameters: int) -> None:
    model = sizes("dual", config_of(read_recipe(name)))
    assert model.parameters == parameters
    assert model.trained == parameters - 590_592  # the pooler is frozen
    assert model.moments == pytest.approx(8 * model.trained, rel=1e-5)


def test_operations_are_those_of_the_formula() -> None:
    config = config_of(read_recipe("de-bm25-neg"))
    found = train_pass("dual", config, 32, 384, "bf16", pooling="cls")
    by_hand = matrices(config, 32, 384)
    assert found.forward == pytest.approx(by_hand, rel=1e-4)
    # Backward: twice the forward pass, and the scores of attention once more, which were not kept.
    scores = 12 * 32 * 2 * 384 * 384 * 768
    assert found.backward == pytest.approx(2 * by_hand + scores, rel=1e-4)


@pytest.mark.parametrize("kind", ["dual", "cross", "mlm"])
@pytest.mark.parametrize("precision", ["bf16", "fp32"])
def test_fake_tensors_count_what_real_ones_do(kind: str, precision: str) -> None:
    given: dict[str, Any] = {"dual": {"pooling": "mean"}, "cross": {"adversarial": 0.01}, "mlm": {"mask": 0.15}}[kind]
    config = small(num_labels=2)

    def count() -> Any:
        model = with_gradients(make_model(kind, config, attention="eager"))
        return measure(model, kind, 4, 16, precision, given)

    with FakeTensorMode():
        fake = count()
    real = count()
    assert (fake.forward, fake.backward) == (real.forward, real.backward)
    assert fake.peak == pytest.approx(real.peak, rel=1e-3)  # a library's asking whether a mask is full takes some bytes


def test_the_peak_is_what_the_profiler_sees_on_real_tensors() -> None:
    """The profiler listens to PyTorch's allocator, of which the meter knows nothing."""
    model = with_gradients(make_model("dual", small(), attention="eager"))
    for parameter in model.parameters():
        parameter.requires_grad_()
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as seen:
        found = measure(model, "dual", 16, 64, "fp32", {"pooling": "cls"})
    live = peak = 0
    for event in seen.profiler.kineto_results.events():
        if event.name() == "[memory]":
            live += event.nbytes()
            peak = max(peak, live)
    assert found.peak == pytest.approx(peak, rel=0.05)


def test_the_tensors_saved_for_the_way_back_are_most_of_the_peak() -> None:
    model = with_gradients(make_model("dual", small(), attention="eager"))
    weights = {parameter.untyped_storage().data_ptr() for parameter in model.parameters()}
    saved: dict[int, torch.Tensor] = {}

    def keep(tensor: torch.Tensor) -> torch.Tensor:
        if tensor.untyped_storage().data_ptr() not in weights:
            saved[tensor.untyped_storage().data_ptr()] = tensor
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        found = measure(model, "dual", 16, 64, "fp32", {"pooling": "cls"})
    kept = sum(tensor.untyped_storage().nbytes() for tensor in saved.values())
    assert 0.8 * found.peak < kept <= found.peak


class Encoder(nn.Module):
    """A model as the first module of a dual-encoder.

    The loss asks fake masks which columns are padding, which they do not know: it gets none, and the model a full one.
    """

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.model = model

    def forward(self, texts: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        ids = texts["input_ids"]
        with _autocast("bf16"):
            states = self.model(input_ids=ids, attention_mask=torch.ones_like(ids)).last_hidden_state
        return {**texts, "token_embeddings": states}


def test_a_training_step_costs_what_its_passes_and_its_loss_do() -> None:
    """The whole step, by the library's loss and modules, against the sum that is made of its parts."""
    config, rows, mini_batch = small(), 24, 8
    with FakeTensorMode():
        model = make_model("dual", config)
        whole = nn.Sequential(Encoder(with_gradients(model)), Pooling(64, "cls"))
        loss = CachedMultipleNegativesRankingLoss(whole, 1.0, dot_score, mini_batch, gather_across_devices=True)
        lengths = (8, 32, 32)  # a query, two passages
        columns = [{"input_ids": torch.zeros((rows, length), dtype=torch.int64)} for length in lengths]
        known = [*model.parameters(), *model.buffers(), *(parameter.grad for parameter in model.parameters())]
        with Meter(known) as meter:
            loss(columns, None).backward()
    passes = [train_pass("dual", config, mini_batch, length, "bf16", pooling="cls") for length in lengths]
    of_loss = contrast(64, rows, 2, mini_batch, 1)
    passed = sum(rows // mini_batch * (2 * each.forward + each.backward) for each in passes)
    assert meter.flops == passed + of_loss.operations
    assert meter.peak == pytest.approx(max(each.peak for each in passes) + of_loss.peak, rel=0.02)


def test_gradient_caching_bounds_the_activations_by_the_mini_batch() -> None:
    recipes = [read_recipe("de-bm25-neg-scratch", [f"train.batch={batch}"]) for batch in (64, 512)]
    costs = [training_cost(recipe, POSITIVES) for recipe in recipes]
    assert costs[0].memory.activations == costs[1].memory.activations
    assert costs[0].memory.embeddings < costs[1].memory.embeddings < 0.1e9
    assert 8 * costs[0].operations == pytest.approx(costs[1].operations, rel=1e-3)
    larger = training_cost(read_recipe("de-bm25-neg-scratch", ["train.mini_batch=64"]), POSITIVES)
    assert larger.memory.activations == pytest.approx(2 * costs[0].memory.activations, rel=0.1)


def test_every_card_holds_the_embeddings_of_all_cards() -> None:
    rows, passages, width = 64, 2, 768
    alone, together = (contrast(width, rows, passages, 32, cards) for cards in (1, 8))
    gathered = 4 * 8 * rows * (1 + passages) * width
    assert together.peak > alone.peak + gathered
    # Similarities of its own queries with everybody's passages, there and back.
    assert together.operations == 8 * alone.operations == 3 * 2 * rows * 8 * rows * passages * width


def test_a_training_has_the_steps_that_the_official_script_counted() -> None:
    """A public script for the full data ends at step 17,370: 1,737 steps of 512 rows an epoch."""
    recipe = read_recipe("de-bm25-neg", ["train.batch=512", "train.epochs=10"])
    assert training_cost(recipe, POSITIVES).steps == 17_370


@pytest.mark.parametrize("cards", [1, 8])
@pytest.mark.parametrize("name", OF_THE_TABLES)
def test_a_recipe_of_full_size_fits_on_cards_of_80_gb(name: str, cards: int) -> None:
    cost = training_cost(read_recipe(name), POSITIVES, cards)
    assert cost.fits("A100"), cost.memory


def test_hours_are_operations_over_a_share_of_the_peak() -> None:
    assert hours(312e12 * 3600, "A100", share=1) == pytest.approx(1)
    assert hours(312e12 * 3600, "A100", "tf32", share=0.5) == pytest.approx(4)


@pytest.fixture(scope="module")
def full_run() -> Any:
    """benchmarks/full_run.py, which is no module of a package."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(ROOT / "benchmarks"))
        return importlib.import_module("full_run")


def test_the_page_of_the_full_run_has_the_commands_and_costs_as_they_are_now(full_run: Any) -> None:
    page = full_run.PAGE.read_text(encoding="utf-8")
    assert page == full_run.written(page, full_run.block()), "python benchmarks/full_run.py --write"


def test_the_full_run_has_every_step_of_tables_4_and_5(full_run: Any) -> None:
    matrix = read_matrix()
    fill = {"release": "RELEASE", "split": "dev", "out": "build/runs", "variant": ""}
    plan = matrix.plan(matrix.select([4, 5], None), fill)
    assert [cost.output for cost in full_run.costs(full_run.commands())] == [step.output for step in plan.values()]


def test_the_embeddings_of_the_collection_take_12_gb(full_run: Any) -> None:
    (cost,) = [
        each for each in full_run.costs(full_run.commands()) if str(each.output).endswith("embeddings/de-bm25-neg")
    ]
    assert cost.kept == 8_096_668 * 768 * 2


@pytest.mark.parametrize("name", ["de-bm25-neg", "ce-bm25-neg"])
def test_the_page_says_what_eight_cards_eat(full_run: Any, name: str) -> None:
    wanted = training_cost(read_recipe(name), POSITIVES, cards=8).rows_a_second("H100")
    assert f"{wanted:,.0f}" in full_run.PAGE.read_text(encoding="utf-8")
