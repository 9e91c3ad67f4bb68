"""Starting checkpoints of trainings, and training steps: losses, adversarial step, infinite values."""

import copy
import json
import math
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from commands import run
from official_archives import BOTH, DEV, PASSAGES, TRAIN, md5, write_files
from sentence_transformers import CrossEncoder, SentenceTransformer
from sentence_transformers.sentence_transformer.modules import Normalize, StaticEmbedding
from tiny_models import SAMPLE, write_bert, write_dual
from torch import nn
from training_world import Make, Rows, first_batch, make_synonyms, maker, step, training_of, weights_of

from baselines.core.settings import ModelSettings
from baselines.retrieve.encoder import TextEncoder
from baselines.retrieve.models import open_encoder
from baselines.train import trainers
from baselines.train.recipe import read_recipe
from baselines.train.trained_models import CollectionCounts, dual_encoder, words_tokenizer
from baselines.train.trainers import dual_trainer, training_arguments
from baselines.train.training_rows import TrainingBatches
from builders.core.errors import InputError
from builders.official.assembly import build_from_archives

TEXTS = ["北京 的 冬天 很 冷", "饺子 怎么 煮"]
OWN = ["model.pooling=", "model.similarity="]  # use the settings of the start


def _dual(start: Path, *overrides: str, name: str = "de-bm25-neg") -> SentenceTransformer:
    return dual_encoder(read_recipe(name, overrides), str(start), "cpu")


@pytest.fixture(scope="module")
def bert(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_bert(tmp_path_factory.mktemp("start") / "bert", TEXTS)


def count_weights(model: SentenceTransformer) -> int:
    """Return the number of weights of a model."""
    return sum(weights.numel() for weights in model.parameters())


def test_two_towers_begin_equal_and_are_trained_apart(bert: Path, tmp_path: Path) -> None:
    model = _dual(bert, "model.towers=2")
    one = _dual(bert)
    for vectors in (model.encode_query(TEXTS), model.encode_document(TEXTS)):
        assert np.allclose(vectors, one.encode_document(TEXTS), atol=1e-6)
    assert count_weights(model) == 2 * count_weights(one)
    with torch.no_grad():  # change only the query encoder
        next(model[0].sub_modules["query"].parameters())[:, 0] += 1
    model.save_pretrained(str(tmp_path / "two"))
    loaded = SentenceTransformer(str(tmp_path / "two"), device="cpu")
    assert np.allclose(loaded.encode_document(TEXTS), one.encode_document(TEXTS), atol=1e-6)
    assert not np.allclose(loaded.encode_query(TEXTS), one.encode_query(TEXTS), atol=1e-3)
    # A start with two towers keeps both.
    assert np.array_equal(_dual(tmp_path / "two", "model.towers=2").encode_query(TEXTS), loaded.encode_query(TEXTS))
    with pytest.raises(InputError, match=r"two has 2 encoders \(towers\); expected model.towers = 2"):
        _dual(tmp_path / "two")


def test_a_start_whose_names_would_lead_out_of_the_checkpoint_is_refused(bert: Path, tmp_path: Path) -> None:
    start = write_dual(tmp_path / "dual", router=True)
    for file, change in (
        ("router_config.json", lambda found: found["structure"].update({"/evil": found["structure"].pop("query")})),
        ("tokenizer_config.json", lambda found: found.update(chat_template=[{"name": "../evil", "template": "x"}])),
    ):
        copy = Path(shutil.copytree(start if "router" in file else bert, tmp_path / file.split("_")[0]))
        content = json.loads((copy / file).read_text())
        change(content)
        (copy / file).write_text(json.dumps(content))
        with pytest.raises(InputError, match=r"cannot start from the model .*: the name '.*evil'"):
            _dual(copy, *(["model.towers=2", *OWN] if "router" in file else []))


@pytest.mark.parametrize(
    ("overrides", "error"),
    [
        ([], r"model.pooling = cls, but .*/dual is a SentenceTransformer with mean; --set model.pooling= uses"),
        (["model.pooling=mean"], r"model.similarity = dot, but .* is a SentenceTransformer with cos; --set model.simi"),
        (OWN, r"dual: cosines with train.scale = 1 differ too little to learn from; expected a scale above 1"),
    ],
)
def test_a_recipe_that_contradicts_its_start_is_refused(tmp_path: Path, overrides: list[str], error: str) -> None:
    start = write_dual(tmp_path / "dual", similarity="cosine")
    with pytest.raises(InputError, match=error):
        _dual(start, *overrides)


def test_a_start_that_compares_by_cosine_is_trained_on_cosines(tmp_path: Path) -> None:
    start = write_dual(tmp_path / "dual", similarity="cosine")  # its vectors are not normalised
    unit_vectors = _dual(start, *OWN, "train.scale=20").encode_document(TEXTS)
    assert np.allclose(np.linalg.norm(unit_vectors, axis=1), 1, atol=1e-6)
    start_vectors = SentenceTransformer(str(start), device="cpu").encode_document(TEXTS)
    lengths = np.linalg.norm(start_vectors, axis=1, keepdims=True)
    assert np.allclose(unit_vectors, start_vectors / lengths, atol=1e-6)


def test_a_start_is_trained_with_its_prompts(tmp_path: Path) -> None:
    recipe = read_recipe("de-bm25-neg", [*OWN, "train.evaluations=0"])
    prompts = {"query": "问题 ", "document": "段落 "}
    start = write_dual(tmp_path / "start", prompts=prompts, texts=[*SAMPLE, "问题 段落"])
    model = dual_encoder(recipe, str(start), "cpu")
    rows = Rows("dual")
    batches = TrainingBatches(rows, 2, 1, 0)
    trainer = dual_trainer(
        recipe, model, rows, batches, training_arguments(recipe, tmp_path / "states", batches, "cpu")
    )
    batch = trainer.data_collator([rows[0], rows[1]])
    assert model.prompts == prompts
    for name, task in (("query", "query"), ("positive", "document"), ("negative_1", "document")):
        texts = [prompts[task] + rows[n][name] for n in (0, 1)]
        assert torch.equal(batch[f"{name}_input_ids"], model.preprocess(texts, task=task)["input_ids"])


@pytest.mark.parametrize(("recipe", "rows"), [("official-de", 16), ("official-ce", 20)])
def test_the_official_models_train_from_the_imported_negatives(tmp_path: Path, recipe: str, rows: int) -> None:
    build_from_archives([write_files(tmp_path / "in", BOTH)], tmp_path / "release")
    out = tmp_path / "model"
    start = write_bert(tmp_path / "start", [*PASSAGES, *TRAIN])
    ranked_passages = {}
    for question, positives in DEV.items():
        ranked_passages[md5(question)] = [md5(PASSAGES[number]) for number in (0, *positives)]
    (tmp_path / "run.json").write_text(json.dumps(ranked_passages), encoding="utf-8")
    words = ["train", recipe, "--release", tmp_path / "release", "--start", start, "--out", out, "--device", "cpu"]
    if recipe == "official-ce":
        words += ["--dev-run", tmp_path / "run.json"]
    values = ["train.epochs=2", "train.mini_batch=8", "train.evaluations=1", "train.saves=0", "data.passage_length=24"]
    for value in values:
        words += ["--set", value]
    run("baselines", words)
    training = training_of(out)
    assert "train/train" in training["about"]["data"]
    assert (training["rows"], training["batch"], training["steps"]) == (rows, rows, 2)
    assert [row["step"] for row in training["dev"]] == [2]
    if recipe == "official-ce":
        assert training["dev"][0]["recall@50"] == 1 and training["dev_run"]["name"] == "run.json"
        assert CrossEncoder(str(out), device="cpu").predict([("绿萝", "绿萝")]).shape == (1, 2)
        return
    trained = SentenceTransformer(str(out), device="cpu")
    assert len(trained[0].sub_modules) == 2
    assert not np.allclose(trained.encode_query(["绿萝"]), trained.encode_document(["绿萝"]), atol=1e-4)


@pytest.fixture
def make(tmp_path: Path) -> Make:
    return maker(tmp_path)


def test_the_recipes_values_reach_the_library(make: Make) -> None:
    values = ["train.learning_rate=1", "train.epochs=3.4", "train.warmup=0.2", "train.weight_decay=0.01"]  # 10 steps
    trainer = make("cross", *values, "train.clip=0.5", "train.schedule=constant")
    trainer.create_optimizer_and_scheduler(10)
    assert [trainer.lr_scheduler.lr_lambdas[0](step) for step in range(10)] == [0, 0.5, *[1.0] * 8]
    group = trainer.optimizer.param_groups[0]
    assert (type(trainer.optimizer), group["betas"], group["eps"]) == (torch.optim.AdamW, (0.9, 0.999), 1e-8)
    assert (group["weight_decay"], trainer.args.max_grad_norm) == (0.01, 0.5)


@pytest.mark.parametrize(("outputs", "factor"), [(1, 1), (2, 1), (2, 2)])
def test_the_adversarial_step_trains_on_moved_embeddings(make: Make, outputs: int, factor: int) -> None:
    trainer = make("cross", "train.adversarial=0.01", f"train.embeddings_gradient={factor}", outputs=outputs)
    batch = first_batch(trainer)
    reference = copy.deepcopy(trainer.model)
    before = trainer.model.model.get_input_embeddings().weight.detach().clone()
    adversarial_loss, gradients = step(trainer, batch)
    assert torch.equal(trainer.model.model.get_input_embeddings().weight, before)

    def loss() -> torch.Tensor:
        logits = reference({name: value for name, value in batch.items() if name != "label"})["scores"]
        if outputs == 1:
            return nn.functional.binary_cross_entropy_with_logits(logits.view(-1), batch["label"])
        return -torch.log_softmax(logits, 1)[torch.arange(4), batch["label"].long()].mean()

    words = reference.model.get_input_embeddings().weight
    reference.eval()
    gradient = torch.autograd.grad(loss(), words)[0]
    words.data = words.data + 0.01 * gradient / gradient.norm()
    reference.train()
    torch.manual_seed(3)
    expected = loss()
    expected.backward()  # type: ignore[no-untyped-call]
    assert adversarial_loss == pytest.approx(expected.item(), rel=1e-5)
    words.grad *= factor
    for name, parameter in reference.named_parameters():
        assert torch.allclose(gradients[name], parameter.grad, rtol=1e-4, atol=1e-7), name


@pytest.mark.parametrize("kind", ["dual", "cross"])
def test_mini_batches_of_tokens_leave_the_gradients_as_they_are(make: Make, kind: str) -> None:
    def gradients_of(tokens: int) -> tuple[float, torch.Tensor, int]:
        trainer = make(kind, f"train.mini_batch_tokens={tokens}")
        for module in trainer.model.modules():
            if isinstance(module, nn.Dropout):
                module.p = 0.0
        forward: list[Any] = []
        trainer.model[0].register_forward_pre_hook(lambda *_: forward.append(1))
        loss, gradients = step(trainer, first_batch(trainer))
        return loss, torch.cat([gradients[name].flatten() for name in sorted(gradients)]), len(forward)

    loss, gradients, forward_count = gradients_of(0)
    split_loss, split_gradients, split_forward_count = gradients_of(50)
    assert split_forward_count > forward_count
    assert split_loss == pytest.approx(loss, rel=1e-5)
    assert (split_gradients - gradients).norm() <= 1e-5 * gradients.norm()


def _infinite_norm(trainer: Any) -> None:
    trainer.model.model.classifier.bias.register_hook(lambda gradient: gradient * 0 + 1e30)  # its square is infinite


def _infinite_weight(trainer: Any) -> None:
    class Overflow(trainers.transformers.TrainerCallback):  # type: ignore[misc]
        def on_optimizer_step(self, args: Any, state: Any, control: Any, model: Any = None, **_: Any) -> None:
            if state.global_step == 1:  # no text reaches this position, so the loss stays finite
                model.model.bert.embeddings.position_embeddings.weight.data[-1] = math.inf

    trainer.add_callback(Overflow())


@pytest.mark.parametrize(
    ("spoil", "error", "states"),
    [
        (_infinite_norm, "step 1: the norm of the gradients is inf, not a finite number; try a lower", []),
        (_infinite_weight, "step 2: the weights have become infinite or NaN; try a lower", ["checkpoint-1"]),
    ],
)
def test_what_is_not_finite_ends_the_training_before_it_is_saved(
    make: Make, tmp_path: Path, spoil: Callable[[Any], None], error: str, states: list[str]
) -> None:
    trainer = make("cross", "train.saves=3", "train.logs=3")  # a state at every step
    spoil(trainer)
    with pytest.raises(InputError, match=error):
        trainer.train()
    assert [path.name for path in (tmp_path / "states").glob("checkpoint-*")] == states


SMALL = ["words.dimensions=128", "train.shortest=64", "train.batch=64", "train.saves=0", "data.dev_passages=50"]


class _Texts(list[str]):
    def texts(self, rows: list[int]) -> list[str]:
        return [self[row] for row in rows]


def test_a_text_is_cut_into_words_and_unknown_words_into_characters() -> None:
    texts: Any = _Texts(["北京大学在北京。", "上海有ABC公司,2016年成立", "北京有公司", "他在上海生活"])
    tokenizer, words = words_tokenizer(CollectionCounts(texts, 10), 100)
    assert words == [tokenizer.id_to_token(number) for number in range(len(words))]
    assert tokenizer.encode("ＡＢＣ公司, 2016年:北京大学").tokens == ["abc", "公司", "2016", "年", "北京大学"]
    assert tokenizer.encode("大海有龙").tokens == ["大", "海", "有", "龙"]
    assert tokenizer.encode("大海有龙").ids[-1] == 0  # 龙 is in no passage


Train = Callable[..., Path]


@pytest.fixture(scope="module")
def train(tmp_path_factory: pytest.TempPathFactory) -> Train:
    """``train(name, *values)`` trains on questions whose answers use synonyms of the questions' words."""
    folder = tmp_path_factory.mktemp("static")
    release, negatives = make_synonyms(folder / "release", questions=300, dev=30)

    def train_model(name: str, *values: str) -> Path:
        words = ["train", "static", "--release", release, "--negatives", negatives, "--device", "cpu"]
        words += ["--out", folder / name, "--cache", folder / "cache"]
        for value in SMALL + list(values):
            words += ["--set", value]
        run("baselines", words)
        return folder / name

    return train_model


@pytest.fixture(scope="module")
def model(train: Train) -> Path:
    return train("model", "train.epochs=20", "train.learning_rate=0.1")


def test_training_teaches_which_words_stand_for_each_other(train: Train, model: Path) -> None:
    untrained = train("untrained", "train.max_steps=1", "train.learning_rate=1e-9", "train.evaluations=1")
    before = training_of(untrained)["dev"][-1]["MRR@10"]
    after = training_of(model)["dev"][-1]["MRR@10"]
    assert before < 0.2 < 0.4 < after
    tuned = train("tuned", "train.max_steps=1", "train.evaluations=0", f"model.start={model}")
    assert weights_of(tuned) != weights_of(model)


def test_the_checkpoint_is_a_plain_sentence_transformer_that_can_be_cut_to_the_trained_dimensions(model: Path) -> None:
    texts = ["saba rabe", "sebi"]
    full_model = SentenceTransformer(str(model), device="cpu")
    assert [type(module) for module in full_model] == [StaticEmbedding, Normalize]
    vectors = full_model.encode(texts)
    assert np.allclose(np.linalg.norm(vectors, axis=1), 1, atol=1e-5)
    encoder = TextEncoder(open_encoder(ModelSettings(str(model))), "document")
    assert np.allclose(encoder.encode(texts), vectors, atol=1e-3)
    short_model = SentenceTransformer(str(model), device="cpu", truncate_dim=64)
    short_vectors = short_model.encode(texts)
    similarities = short_model.similarity(short_vectors, short_vectors).numpy()
    assert short_vectors.shape == (2, 64) and np.allclose(np.diag(similarities), 1, atol=1e-5)
