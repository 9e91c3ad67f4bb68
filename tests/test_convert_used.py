"""Converted models in the commands that take a model: `encode`, `search`, `rerank`, `push`."""

from __future__ import annotations

import contextlib
import io
import random
import re
import shutil
from pathlib import Path

import numpy as np
import pytest
from checkpoints import Command, files
from commands import run
from hub_server import Hub
from huggingface_hub import ModelCard
from official_parameters import convert, expected, official, parameters  # noqa: F401
from releases import QUESTIONS, make_release, md5, tables
from sentence_transformers import CrossEncoder, SentenceTransformer

from baselines.card import model_card
from baselines.checkpoint import open_checkpoint
from baselines.retrieve.models import fingerprint, open_encoder
from baselines.retrieve.settings import ModelSettings
from baselines.train.models import cross_encoder, dual_encoder
from baselines.train.recipe import read_recipe
from builders.core.errors import InputError
from builders.store.runs import read_run, write_run


@pytest.fixture
def release(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Passages of the characters that the tiny vocabulary has."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return make_release(tmp_path / "release", tables(passages()))


def passages() -> list[str]:
    draw = random.Random(5)
    return ["".join(draw.choices("高铁票可以 提前买水饺子煮，。", k=draw.randint(3, 12))) for _ in range(20)]


def test_search_ranks_by_the_dot_product_of_the_two_towers(official: Path, release: Path, tmp_path: Path) -> None:
    model, out = official / "dual", tmp_path / "p"
    run("baselines", "encode", "--release", release, "--model", model, "--out", out)
    words = ["--release", release, "--split", "train", "--model", model, "--passages", out, "--top-k", 5]
    run("baselines", "search", *words, "--out", tmp_path / "a.run")
    dual = SentenceTransformer(str(model), device="cpu")
    products = dual.encode_query(QUESTIONS["train"]) @ dual.encode_document(passages()).T
    found = read_run(tmp_path / "a.run").hits
    for question, scores in zip(QUESTIONS["train"], products, strict=True):
        by_id = dict(zip(map(md5, passages()), scores.tolist(), strict=True))
        hits = found[md5(question)]
        np.testing.assert_allclose([score for _, score in hits], sorted(scores, reverse=True)[:5], atol=5e-3)
        np.testing.assert_allclose([score for _, score in hits], [by_id[corpus] for corpus, _ in hits], atol=5e-3)


def test_rerank_orders_by_the_probability_of_class_1(official: Path, release: Path, tmp_path: Path) -> None:
    question, texts = QUESTIONS["train"][0], passages()[:8]
    write_run(tmp_path / "first.run", [(md5(question), [(md5(text), 9.0 - n) for n, text in enumerate(texts)])])
    words = ["--model", official / "cross", "--release", release, "--split", "train", "--run", tmp_path / "first.run"]
    run("baselines", "rerank", *words, "--out", tmp_path / "a.run")
    probability = CrossEncoder(str(official / "cross"), device="cpu").predict([(question, text) for text in texts])
    (hits,) = read_run(tmp_path / "a.run").hits.values()
    expected = {md5(text): float(value) for text, value in zip(texts, probability, strict=True)}
    assert [corpus for corpus, _ in hits] == sorted(expected, key=lambda corpus: -expected[corpus])
    np.testing.assert_allclose([1 / (1 + np.exp(-score)) for _, score in hits], sorted(probability)[::-1], atol=1e-5)


def test_a_model_of_the_same_weights_that_reads_otherwise_has_another_fingerprint(parameters: Path) -> None:
    before = fingerprint(open_encoder(ModelSettings(str(parameters / "dual"))))
    assert fingerprint(open_encoder(ModelSettings(str(parameters / "dual")))) == before
    towers = [parameters / "dual" / f"{part}_0_Transformer" / "tokenizer.json" for part in ("query", "document")]
    shutil.copy(*towers)
    with pytest.raises(InputError, match="SHA-256 differs from training"):
        open_encoder(ModelSettings(str(parameters / "dual")))
    (parameters / "dual" / "training.json").unlink()
    assert fingerprint(open_encoder(ModelSettings(str(parameters / "dual")))) != before


def ernie(parameters: Path) -> None:
    for path in (parameters / "cross_params").glob("_cls_out*"):
        path.unlink()
    convert(parameters, "cross_params", parameters / "ernie")


def test_the_official_trainings_start_from_converted_models(parameters: Path) -> None:
    ernie(parameters)
    short = ["data.query_length=8", "data.passage_length=20"]
    for start in ("ernie", "dual"):
        dual = dual_encoder(read_recipe("official-de", short), str(parameters / start), "cpu")
        read = dual.preprocess(["高 铁"], task="document")
        assert read["token_type_ids"].tolist() == [[0, 0, 1, 1, 1]]
        assert dual(read, task="document")["sentence_embedding"].shape == (1, 4)
    cross = cross_encoder(read_recipe("official-ce", short), str(parameters / "ernie"), "cpu")
    assert cross.predict([("高 铁", "票")]).shape == (1, 2)


def test_the_card_of_a_converted_model_says_what_it_is(hub: Hub, call: Command, official: Path) -> None:
    local = (official / "cross" / "README.md").read_text(encoding="utf-8")
    assert "# cross\n" in local and 'CrossEncoder("cross")' in local and "transformers 4.57 or later" in local
    call("push", "--model", official / "dual", "--repo", "org/official-de", "--create")
    pushed = files(hub, "org/official-de")
    text = pushed["README.md"].decode()
    assert "the numbers of a folder `dual_params` of Paddle parameters" in text
    assert "Nothing was trained on the way." in text and "trained with the recipe" not in text
    for what in ("parameters", "configuration", "vocabulary"):
        digest = open_checkpoint(official / "dual").converted["sha256"][what]
        assert f"- {what}: SHA-256 `{digest}`" in text
    card = ModelCard(text).data.to_dict()
    assert (card["library_name"], card["license"]) == ("sentence-transformers", "other") and "base_model" not in card
    assert {"recipe.json", "router_config.json", "query_0_Transformer/model.safetensors"} <= set(pushed)


@pytest.mark.parametrize(
    ("kind", "printed"), [("dual", "tensor([["), ("cross", "corpus_id"), ("ernie", "torch.Size([2,")]
)
def test_the_code_on_the_card_runs(parameters: Path, kind: str, printed: str) -> None:
    if kind == "ernie":
        ernie(parameters)
    card = model_card(open_checkpoint(parameters / kind), str(parameters / kind))
    (code,) = re.findall(r"```python\n(.*?)```", card, re.DOTALL)
    with contextlib.redirect_stdout(io.StringIO()) as out:
        exec(code, {})
    assert printed in out.getvalue()
