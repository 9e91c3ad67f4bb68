"""Inputs of models: a model's own prompts, room for a text beside a prompt, and equal outputs in every batch."""

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from commands import error_of, run
from releases import QUESTIONS, TEXTS, make_release, md5
from sentence_transformers import SentenceTransformer
from sentence_transformers.base.modules import Transformer
from sentence_transformers.sentence_transformer.modules import Pooling
from tiny_kinds import write_language_model, write_multi_vector, write_sparse, write_static
from tiny_models import write_bert, write_cross, write_dual

from baselines import search
from baselines.core.settings import ModelSettings
from baselines.retrieve.devices import Work
from baselines.retrieve.model_prompts import prompt_of
from baselines.retrieve.models import open_cross, open_encoder, settings_in_use
from baselines.retrieve.rerankers import open_reranker
from baselines.retrieve.vector_index import open_retriever
from baselines.train.recipe import read_recipe
from baselines.train.trained_models import cross_encoder, dual_encoder
from builders.core.errors import InputError

pytestmark = pytest.mark.usefixtures("own_cache")
WORK = Work(("cpu",), "fp32")
LONG_PROMPT = "北京的冬天饺子怎么煮" * 5  # 50 tokens
LENGTHS = ["data.passage_length=64", "data.query_length=16", "model.similarity="]  # settings of recipes


@pytest.fixture(scope="module")
def release(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A release of the usual texts. Do not change it."""
    torch.set_num_threads(1)
    return make_release(tmp_path_factory.mktemp("inputs") / "release")


def change_json(path: Path, **values: Any) -> None:
    """Change values of a JSON file."""
    content = json.loads(path.read_text(encoding="utf-8"))
    path.write_text(json.dumps(content | values, ensure_ascii=False), encoding="utf-8")


def declare_prompts(folder: Path, **prompts: str) -> Path:
    """Replace the prompts in a model's files."""
    change_json(folder / "config_sentence_transformers.json", prompts=prompts)
    return folder


def used_prompt(folder: Path, **options: Any) -> str:
    """Return the prompt of passages that a model uses with these settings."""
    encoder = open_encoder(ModelSettings(str(folder), **options))
    return str(settings_in_use(encoder)["passage_prompt"])


@pytest.mark.parametrize("name", ["passage", "corpus"])
def test_a_prompt_named_passage_or_corpus_is_used(release: Path, tmp_path: Path, name: str) -> None:
    folder = declare_prompts(write_dual(tmp_path / "dual"), **{"query": "问", name: "饺子"})
    with_prompt = search(folder, release)
    assert search(folder, release, passage_prompt="饺子") == with_prompt
    assert search(SentenceTransformer(str(folder)), release) == with_prompt
    without_prompt = search(folder, release, passage_prompt="")
    assert without_prompt != with_prompt
    # The same weights without the prompt
    plain_folder = declare_prompts(shutil.copytree(folder, tmp_path / "plain"), query="问")
    assert search(plain_folder, release) == without_prompt


def test_the_prompt_of_passages_is_the_first_that_is_not_empty(tmp_path: Path) -> None:
    folder = declare_prompts(write_dual(tmp_path / "dual"), query="", document="", passage="饺子", corpus="水")
    # Empty prompts are skipped, except one that the user sets.
    assert used_prompt(folder) == "饺子"
    assert used_prompt(folder, query_prompt="火") == "饺子"
    assert used_prompt(folder, prompt_name="corpus") == "饺子"
    assert used_prompt(folder, passage_prompt="") == ""
    assert used_prompt(declare_prompts(folder, document="火", passage="饺子")) == "火"


@pytest.mark.parametrize("write_model", [write_static, write_sparse, write_multi_vector])
def test_other_kinds_of_models_have_the_prompt_too(tmp_path: Path, write_model: Any) -> None:
    folder = declare_prompts(write_model(tmp_path / "model"), query="", passage="饺子")
    assert prompt_of(open_retriever(ModelSettings(str(folder)), WORK).open_model(), "document") == "饺子"


def test_a_training_keeps_the_prompt_for_plain_encode(tmp_path: Path) -> None:
    folder = declare_prompts(write_dual(tmp_path / "dual"), query="问", passage="饺子")
    model = dual_encoder(read_recipe("de-bm25-neg-scratch", LENGTHS), str(folder), "cpu")
    assert prompt_of(model, "query") == "问"
    assert prompt_of(model, "document") == "饺子"
    model.save_pretrained(str(tmp_path / "saved"))
    saved_model = SentenceTransformer(str(tmp_path / "saved"), device="cpu")
    expected_vectors = saved_model.encode(TEXTS, prompt="饺子")
    np.testing.assert_allclose(saved_model.encode_document(TEXTS), expected_vectors, atol=1e-5)


def test_a_prompt_that_fills_the_query_is_refused(release: Path, tmp_path: Path) -> None:
    folder = write_dual(tmp_path / "dual")
    out = tmp_path / "a.run"
    words = ["run", folder, "--release", release, "--out", out, "--query-prompt"]
    error_line = error_of(run("baselines", words, LONG_PROMPT, code=1))
    assert error_line == (
        f"error: {folder}: an input has at most 32 tokens, which leave no token of a query after the prompt "
        f"{LONG_PROMPT[:20] + '...'!r}; expected a shorter prompt or a larger length"
    )
    assert not out.exists()
    run("baselines", words, LONG_PROMPT[:29])  # and [CLS], one token of the query, [SEP]
    with pytest.raises(InputError, match="leave no token of a query"):
        search(SentenceTransformer(str(folder)), release, query_prompt=LONG_PROMPT)


def test_a_prompt_that_fills_the_passage_is_refused(release: Path, tmp_path: Path) -> None:
    folder = write_dual(tmp_path / "dual")
    words = ["run", folder, "--release", release, "--out", tmp_path / "a.run"]
    done = run("baselines", words, "--passage-prompt", LONG_PROMPT, "--max-length", 40, code=1)
    assert "an input has at most 40 tokens, which leave no token of a passage" in error_of(done)


@pytest.mark.parametrize("write_model", [write_static, write_sparse, write_multi_vector])
def test_a_prompt_that_fills_an_input_of_another_kind_is_refused(tmp_path: Path, write_model: Any) -> None:
    settings = ModelSettings(str(write_model(tmp_path / "model")), query_prompt=LONG_PROMPT, max_length=20)
    with pytest.raises(InputError, match=r"an input has at most .* tokens, which leave no token of a query"):
        open_retriever(settings, WORK).open_model()


def test_a_prompt_that_fills_the_query_of_a_pair_is_refused(tmp_path: Path) -> None:
    folder = write_cross(tmp_path / "cross")
    with pytest.raises(InputError, match="an input has at most 20 tokens, which leave no token of a query"):
        open_cross(ModelSettings(str(folder), query_prompt=LONG_PROMPT, max_length=20))
    open_cross(ModelSettings(str(folder), query_prompt=LONG_PROMPT[:5], max_length=20))


def test_a_chat_template_that_fills_the_input_is_refused(tmp_path: Path) -> None:
    folder = write_language_model(tmp_path / "llm")
    with pytest.raises(InputError, match=r"an input has at most .* tokens, which leave no token of a query"):
        open_reranker(ModelSettings(str(folder), max_length=64), WORK).result_inputs()


def test_a_training_whose_prompt_fills_the_query_is_refused(tmp_path: Path) -> None:
    folder = declare_prompts(write_dual(tmp_path / "dual"), query=LONG_PROMPT)
    recipe = read_recipe("de-bm25-neg-scratch", LENGTHS)
    with pytest.raises(InputError, match="an input has at most 16 tokens, which leave no token of a query"):
        dual_encoder(recipe, str(folder), "cpu")


def pad_left(folder: Path) -> Path:
    """Let a model's tokenizer add padding before the text."""
    change_json(folder / "tokenizer_config.json", padding_side="left")
    return folder


def write_pooled(folder: Path, pooling: str) -> Path:
    """Write an encoder with this pooling."""
    transformer = Transformer(str(write_bert(folder.with_name("bert"))))
    modules = [transformer, Pooling(transformer.get_embedding_dimension(), pooling)]
    SentenceTransformer(modules=modules, device="cpu").save_pretrained(str(folder))
    return folder


@pytest.mark.parametrize("pooling", ["cls", "mean", "lasttoken"])
def test_a_model_whose_vectors_change_with_the_padding_is_refused(release: Path, tmp_path: Path, pooling: str) -> None:
    folder = write_pooled(tmp_path / "model", pooling)
    open_encoder(ModelSettings(str(folder)))  # with padding on the right, the model is accepted
    pad_left(folder)
    out = tmp_path / "a.run"
    error_line = error_of(run("baselines", "run", folder, "--release", release, "--out", out, code=1))
    assert error_line == (
        f"error: {folder}: its output for a text changes with the padding of the batch, which is on the left; set "
        '"padding_side": "right" in its tokenizer_config.json; expected the same output in every batch'
    )
    assert not out.exists()
    with pytest.raises(InputError, match="changes with the padding"):
        search(SentenceTransformer(str(folder), device="cpu"), release)


@pytest.mark.parametrize("write_model", [write_sparse, write_multi_vector])
def test_a_model_of_another_kind_with_padding_on_the_left_is_refused(tmp_path: Path, write_model: Any) -> None:
    folder = pad_left(write_model(tmp_path / "model"))
    with pytest.raises(InputError, match="changes with the padding"):
        open_retriever(ModelSettings(str(folder)), WORK).open_model()


def test_scores_with_padding_on_the_left_are_refused(release: Path, tmp_path: Path) -> None:
    folder = pad_left(write_cross(tmp_path / "cross"))
    run_path = tmp_path / "first.run"
    run_path.write_text(f"{md5(QUESTIONS['train'][0])} Q0 {md5(TEXTS[0])} 1 1.0 t\n")
    out = tmp_path / "out"
    options = ["--release", release, "--split", "train", "--run", run_path, "--out", out]
    done = run("baselines", "rerank", options, "--model", folder, code=1)
    assert "changes with the padding of the batch" in error_of(done)
    assert not out.exists()
    done = run("baselines", "mine", options, "--cross-encoder", folder, "--margin", 1, code=1)
    assert "changes with the padding of the batch" in error_of(done)
    assert not out.exists()


def test_trainings_with_padding_on_the_left_are_refused(tmp_path: Path) -> None:
    cross_folder = pad_left(write_cross(tmp_path / "cross"))
    with pytest.raises(InputError, match="changes with the padding"):
        cross_encoder(read_recipe("ce-bm25-neg-scratch", LENGTHS), str(cross_folder), "cpu")
    dual_folder = pad_left(write_dual(tmp_path / "dual"))
    with pytest.raises(InputError, match="changes with the padding"):
        dual_encoder(read_recipe("de-bm25-neg-scratch", LENGTHS), str(dual_folder), "cpu")
