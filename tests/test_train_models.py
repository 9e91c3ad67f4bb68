"""The models that a training makes of its start: towers, inputs, outputs, and what of the start stays."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from commands import run
from official_archives import BOTH, DEV, PASSAGES, TRAIN, md5
from official_release import convert
from sentence_transformers import CrossEncoder, SentenceTransformer
from tiny_models import SAMPLE, write_bert, write_cross, write_dual
from tiny_training import Rows
from training_world import training_of

from baselines.train.data import Batches
from baselines.train.models import cross_encoder, dual_encoder, masked_language_model
from baselines.train.recipe import Recipe, read_recipe
from baselines.train.trainers import arguments, dual_trainer
from builders.core.errors import InputError

TEXTS = ["北京 的 冬天 很 冷", "饺子 怎么 煮"]
OWN = ["model.pooling=", "model.similarity="]  # those of the start


def _dual(start: Path, *overrides: str, name: str = "de-bm25-neg") -> SentenceTransformer:
    return dual_encoder(read_recipe(name, overrides), str(start), "cpu")


@pytest.fixture(scope="module")
def bert(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_bert(tmp_path_factory.mktemp("start") / "bert", TEXTS)


def test_two_towers_begin_equal_and_are_trained_apart(bert: Path, tmp_path: Path) -> None:
    model = _dual(bert, "model.towers=2")
    one = _dual(bert)
    for texts in (model.encode_query(TEXTS), model.encode_document(TEXTS)):
        assert np.allclose(texts, one.encode_document(TEXTS), atol=1e-6)
    assert sum(p.numel() for p in model.parameters()) == 2 * sum(p.numel() for p in one.parameters())
    with torch.no_grad():  # a step of the query's encoder alone
        next(model[0].sub_modules["query"].parameters())[:, 0] += 1
    model.save_pretrained(str(tmp_path / "two"))
    loaded = SentenceTransformer(str(tmp_path / "two"), device="cpu")
    assert np.allclose(loaded.encode_document(TEXTS), one.encode_document(TEXTS), atol=1e-6)
    assert not np.allclose(loaded.encode_query(TEXTS), one.encode_query(TEXTS), atol=1e-3)
    # A plain encode() takes a text for a passage. A start of two towers keeps them.
    assert np.array_equal(loaded.encode(TEXTS), loaded.encode_document(TEXTS))
    again = _dual(tmp_path / "two", "model.towers=2")
    assert np.array_equal(again.encode_query(TEXTS), loaded.encode_query(TEXTS))
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
    with pytest.raises(InputError, match=r"cannot start from the model .*: the name '../evil'"):
        masked_language_model(read_recipe("mlm-scratch"), str(copy))


@pytest.mark.parametrize(
    ("overrides", "said"),
    [
        ([], r"model.pooling = cls: .*/dual is a SentenceTransformer with mean; --set model.pooling= takes its own"),
        (["model.pooling=mean"], r"model.similarity = dot: .* is a SentenceTransformer with cos; --set model.simi"),
        (OWN, r"dual: cosines at train.scale = 1 are too alike to learn from; expected more than 1, as --set train"),
    ],
)
def test_a_recipe_that_contradicts_its_start_is_refused(tmp_path: Path, overrides: list[str], said: str) -> None:
    start = write_dual(tmp_path / "dual", similarity="cosine")
    with pytest.raises(InputError, match=said):
        _dual(start, *overrides)
    with pytest.raises(InputError, match=r"cosines at train.scale = 1 are too alike"):  # of a plain start, too
        _dual(tmp_path / "dual-bert", "model.similarity=cos")


def test_a_start_that_compares_by_cosine_is_trained_on_cosines(tmp_path: Path) -> None:
    start = write_dual(tmp_path / "dual", similarity="cosine")  # whose vectors are not of unit length
    model = _dual(start, *OWN, "train.scale=20")
    found = model.encode_document(TEXTS)
    assert np.allclose(np.linalg.norm(found, axis=1), 1, atol=1e-6)
    own = SentenceTransformer(str(start), device="cpu").encode_document(TEXTS)
    assert np.allclose(found, own / np.linalg.norm(own, axis=1, keepdims=True), atol=1e-6)
    model.save_pretrained(str(tmp_path / "saved"))
    assert np.array_equal(SentenceTransformer(str(tmp_path / "saved"), device="cpu").encode_document(TEXTS), found)


def test_weights_of_16_bits_are_trained_in_32(tmp_path: Path) -> None:
    start = write_dual(tmp_path / "dual")
    SentenceTransformer(str(start), device="cpu").half().save_pretrained(str(tmp_path / "half"))
    assert {p.dtype for p in _dual(tmp_path / "half", *OWN).parameters()} == {torch.float32}


def test_a_cross_encoder_has_the_outputs_of_its_recipe(bert: Path, tmp_path: Path) -> None:
    two = read_recipe("official-ce", ["model.inputs=plain"])
    assert cross_encoder(two, str(bert), "cpu").num_labels == 2
    start = write_cross(tmp_path / "cross")
    with pytest.raises(InputError, match=r"cross is a cross-encoder of 1 outputs; expected model.outputs = 1"):
        cross_encoder(two, str(start), "cpu")
    assert cross_encoder(read_recipe("ce-bm25-neg"), str(start), "cpu").num_labels == 1


def _loss(recipe: Recipe, start: Path, folder: Path) -> tuple[float, dict[str, Any]]:
    """(the loss of a batch of two rows, the batch) as the trainer has them."""
    rows: Any = Rows("dual")
    batches = Batches(rows, 2, 1, 0)
    model = dual_encoder(recipe, str(start), "cpu")
    trainer = dual_trainer(recipe, model, rows, batches, arguments(recipe, folder, batches, "cpu"))
    batch = trainer.data_collator([rows[0], rows[1]])
    model.eval()
    return trainer.compute_loss(model, dict(batch)).item(), batch


def test_a_start_is_trained_with_its_prompts(tmp_path: Path) -> None:
    recipe = read_recipe("de-bm25-neg", [*OWN, "train.evaluations=0"])
    prompts, texts = {"query": "问题 ", "document": "段落 "}, [*SAMPLE, "问题 段落"]
    starts = [write_dual(tmp_path / n, prompts=p, texts=texts) for n, p in (("with", prompts), ("without", None))]
    (loss, batch), (plain, _) = (_loss(recipe, start, tmp_path / "states") for start in starts)
    model = dual_encoder(recipe, str(starts[0]), "cpu")
    assert model.prompts == prompts and abs(plain - loss) > 1e-4  # the same weights without prompts: another loss
    columns = {name: [Rows("dual")[n][name] for n in (0, 1)] for name in ("query", "positive", "negative_1")}
    for name, task in (("query", "query"), ("negative_1", "document")):
        wanted = model.preprocess([prompts[task] + text for text in columns[name]], task=task)["input_ids"]
        assert torch.equal(batch[f"{name}_input_ids"], wanted)
    queries = torch.tensor(model.encode_query(columns["query"]))
    passages = torch.tensor(model.encode_document(columns["positive"] + columns["negative_1"]))
    expected = torch.nn.functional.cross_entropy(queries @ passages.T, torch.tensor([0, 1]))
    assert abs(float(expected) - loss) < 1e-4


@pytest.mark.parametrize(("recipe", "rows"), [("official-de", 16), ("official-ce", 20)])
def test_the_official_models_train_from_the_imported_negatives(tmp_path: Path, recipe: str, rows: int) -> None:
    """4 positives with 4 negatives each are 16 rows, or 20 pairs, all of them in the one batch of an epoch."""
    convert(tmp_path, BOTH)
    out, start = tmp_path / "model", write_bert(tmp_path / "start", [*PASSAGES, *TRAIN])
    ranked = {md5(question): [md5(PASSAGES[n]) for n in (0, *good)] for question, good in DEV.items()}
    (tmp_path / "run.json").write_text(json.dumps(ranked), encoding="utf-8")
    words = ["train", recipe, "--release", tmp_path / "release", "--start", start, "--out", out, "--device", "cpu"]
    words += ["--dev-run", tmp_path / "run.json"] if recipe == "official-ce" else []
    values = ["train.epochs=2", "train.mini_batch=8", "train.evaluations=1", "train.saves=0", "data.passage_length=24"]
    run("baselines", *words, *(word for value in values for word in ("--set", value)))
    training = training_of(out)
    assert "train/train" in training["about"]["data"]
    assert (training["rows"], training["batch"], training["steps"]) == (rows, rows, 2)
    assert [row["step"] for row in training["dev"]] == [2]
    if recipe == "official-ce":
        assert training["dev"][0]["recall@50"] == 1 and training["dev_run"]["name"] == "run.json"
        assert CrossEncoder(str(out), device="cpu").predict([("绿萝", "绿萝")]).shape == (1, 2)
        return
    trained = SentenceTransformer(str(out), device="cpu")
    query, passage = trained.encode_query(["绿萝"]), trained.encode_document(["绿萝"])
    assert len(trained[0].sub_modules) == 2 and not np.allclose(query, passage, atol=1e-4)
