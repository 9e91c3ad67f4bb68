"""Models in 16 bits and models computed by OpenVINO return the scores and vectors of PyTorch in 32 bits."""

import itertools
import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from commands import run
from releases import QUESTIONS, TEXTS, make_release
from sentence_transformers import CrossEncoder, MultiVectorEncoder, SentenceTransformer, SparseEncoder
from tiny_kinds import write_language_model, write_multi_vector, write_sparse, write_static
from tiny_models import write_bert, write_cross, write_dual
from training_world import maker
from transformers import AutoConfig, ModernBertConfig, ModernBertForSequenceClassification

from baselines.core.settings import ModelSettings
from baselines.retrieve.devices import Work, dtype_of
from baselines.retrieve.encoder import CrossScorer, TextEncoder, without_weights
from baselines.retrieve.index_files import open_vectors
from baselines.retrieve.models import open_encoder
from baselines.retrieve.multi_vector import TokenSide
from baselines.retrieve.rerankers import open_reranker
from baselines.retrieve.sparse import SparseSide
from baselines.retrieve.vector_index import open_retriever
from builders.core.errors import InputError
from builders.store.reader import open_release

PAIRS = [(question, text[n:]) for n, text in itertools.product(range(4), TEXTS) for question in QUESTIONS["train"]]
SIZES = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 64}
pytestmark = pytest.mark.usefixtures("own_cache")


def write_classifier(folder: Path, config: Any, kind: Any) -> Path:
    bert = write_bert(folder.with_name(f"{folder.name}-bert"))
    words = AutoConfig.from_pretrained(bert).vocab_size
    torch.manual_seed(0)
    kind(config(vocab_size=words, num_labels=1, pad_token_id=0, initializer_range=0.2, **SIZES)).save_pretrained(bert)
    CrossEncoder(str(bert), device="cpu", max_length=64).save_pretrained(str(folder))
    return folder


RERANKERS = {
    "bert": write_cross,
    "modernbert": lambda folder: write_classifier(folder, ModernBertConfig, ModernBertForSequenceClassification),
    "language-model": write_language_model,
}


@pytest.mark.slow
@pytest.mark.parametrize("name", RERANKERS)
@pytest.mark.parametrize("dtype", ["bf16", "fp16"])
def test_a_re_ranker_in_16_bits_gives_scores_of_32_bits(tmp_path: Path, name: str, dtype: str) -> None:
    settings = ModelSettings(str(RERANKERS[name](tmp_path / "model")))
    scored = [open_reranker(settings, Work(("cpu",), each)).score(PAIRS, "cpu") for each in ("fp32", dtype)]
    exact, found = map(np.array, scored)
    assert len(set(exact)) == len(PAIRS) and len(set(found)) > 0.9 * len(PAIRS)  # a tie by chance
    assert np.mean(found == found.astype(np.float16)) < 0.1  # most scores need more than 16 bits
    assert (found != exact).any() and np.corrcoef(exact, found)[0, 1] > 0.9


def test_a_cross_encoder_that_is_trained_in_bf16_gives_scores_of_32_bits(tmp_path: Path) -> None:
    trainer = maker(tmp_path)("cross", "train.precision=bf16")
    trainer.accelerator.prepare_model(trainer.model)  # its forward runs in bf16
    exact = CrossScorer(CrossEncoder(str(tmp_path / "cross-1"), device="cpu", max_length=24)).scores(PAIRS[:24])
    found = np.array(CrossScorer(trainer.model.eval()).scores(PAIRS[:24]))
    assert np.mean(found == found.astype(np.float16)) < 0.1 and (found != exact).any()


@pytest.fixture
def openvino(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("nncf", reason="the extra openvino is not installed")
    monkeypatch.setattr(torch, "get_num_threads", lambda: 1)


@pytest.mark.slow
@pytest.mark.parametrize("write", [write_dual, write_sparse, write_multi_vector])
@pytest.mark.parametrize("dtype", ["bf16", "openvino-fp32"])
def test_retrievers_agree_with_fp32(tmp_path: Path, write: Any, dtype: str, request: pytest.FixtureRequest) -> None:
    if dtype != "bf16":
        request.getfixturevalue("openvino")
    release, settings = open_release(make_release(tmp_path / "release")), ModelSettings(str(write(tmp_path / "model")))
    found = []
    for each in ("fp32", dtype):
        retriever = open_retriever(settings, Work(("cpu",), each))
        assert retriever.about["computed_in"] == each
        index = retriever.index(release, "corpus", tmp_path / each)
        hits = retriever.search(release, "corpus", index, QUESTIONS["dev"], len(TEXTS))
        found.append([dict(own) for own in hits])
    for exact, other in zip(*found, strict=True):
        assert other == pytest.approx(exact, rel=0.05 if dtype == "bf16" else 1e-6, abs=0 if dtype == "bf16" else 1e-2)
    assert (found[0] != found[1]) or dtype != "bf16"


class Multiply(torch.nn.Module):
    """The last module of a model, which multiplies the embeddings by a factor."""

    factor = 1.0

    def forward(self, features: dict[str, Any], **_: Any) -> dict[str, Any]:
        for name in ("sentence_embedding", "token_embeddings"):
            if name in features:
                features[name] = features[name] * self.factor
        return features


@pytest.mark.parametrize(
    ("library", "side", "write"),
    [
        (SentenceTransformer, TextEncoder, write_dual),
        (SentenceTransformer, TextEncoder, write_static),
        (SparseEncoder, SparseSide, write_sparse),
        (MultiVectorEncoder, TokenSide, write_multi_vector),
    ],
)
def test_embeddings_that_vanish_are_refused(library: Any, side: Any, write: Any, tmp_path: Path) -> None:
    model = library(str(write(tmp_path / "model")), device="cpu")
    model.similarity_fn_name = "maxsim" if side is TokenSide else "dot"
    last = Multiply()
    model.append(last)
    encoder = side(model, "query")
    plain = encoder.encode(TEXTS)
    for factor, problem in ((1e-20, "too small for"), (1e20, "too large for|not all finite")):
        last.factor = factor
        with pytest.raises(InputError, match=problem):
            encoder.encode(TEXTS)
    last.factor = 1.0  # an encoder that refused texts encodes other texts
    for vectors, again in zip(plain, encoder.encode(TEXTS), strict=True):
        np.testing.assert_array_equal(vectors, again)


@pytest.mark.slow
@pytest.mark.parametrize("factor", [1e-30, 1e-9, 1e20])
@pytest.mark.parametrize(
    ("library", "side", "write"),
    [(SentenceTransformer, TextEncoder, write_dual), (SparseEncoder, SparseSide, write_sparse)],
)
def test_a_factor_changes_no_cosine(library: Any, side: Any, write: Any, factor: float, tmp_path: Path) -> None:
    model = library(str(write(tmp_path / "model")), device="cpu")
    model.similarity_fn_name = "cosine"
    plain = side(model, "query").encode(TEXTS)
    model.append(Multiply())
    model[-1].factor = factor
    for vectors, scaled in zip(plain, side(model, "query").encode(TEXTS), strict=True):
        np.testing.assert_allclose(vectors, scaled, rtol=2e-3, atol=1e-6)


def test_verbs_say_and_keep_their_precision(tmp_path: Path) -> None:
    release = make_release(tmp_path / "release")
    dual, cross = write_dual(tmp_path / "dual"), write_cross(tmp_path / "cross")

    def call(verb: str, *words: object) -> str:
        return run("baselines", verb, "--release", release, *words).stderr

    def manifest(path: Path) -> Any:
        return json.loads(path.read_text(encoding="utf-8"))

    passages, queries, searched, reranked = (tmp_path / name for name in ("p", "q", "s.run", "r.run.gz"))
    of_queries = ["--queries", "--split", "dev", "--dtype", "bf16"]
    assert "precision: fp32" in call("encode", "--model", dual, "--out", passages)
    assert "precision: bf16" in call("encode", "--model", dual, "--out", queries, *of_queries)
    assert manifest(queries / "manifest.json")["model"]["computed_in"] == "bf16"
    for words, other in ((["--queries", queries], True), (["--model", dual], False)):
        said = call("search", "--passages", passages, "--out", searched, *words)
        assert ("passages are encoded in fp32, queries in bf16" in said) == other
        found = manifest(tmp_path / "s.run.manifest.json")
        assert found["precision"] == {"passages": "fp32", "queries": "bf16" if other else "fp32", "search": "fp32"}
    assert "precision: bf16" in call("rerank", "--run", searched, "--model", cross, "--out", reranked, *of_queries[-2:])
    found = manifest(tmp_path / "r.run.gz.manifest.json")
    assert (found["model"]["computed_in"], found["kind"], found["reranked"]["file"]) == ("bf16", "cross", "s.run")
    assert found["reranked"]["sha256"] == manifest(tmp_path / "s.run.manifest.json")["run"]["sha256"]
    assert str(tmp_path) not in json.dumps(found)


def test_embeddings_are_pytorchs_and_are_not_reused_by_another_backend(openvino: None, tmp_path: Path) -> None:
    model, release = write_dual(tmp_path / "model"), make_release(tmp_path / "release")
    words = ["encode", "--release", release, "--model", model, "--shard-rows", 2, "--out"]
    found = {}
    for name, *more in (["torch"], ["fp32", "openvino"], ["bf16", "openvino"], ["int8", "openvino"]):
        run("baselines", *words, tmp_path / "out", *(["--backend", *more, "--dtype", name] if more else []))
        found[name] = open_vectors(tmp_path / "out")
        assert found[name].precision == (f"openvino-{name}" if more else "fp32")
        found[name] = found[name].all().astype(np.float32)
    np.testing.assert_allclose(found["fp32"], found["torch"], atol=5e-3)
    for name in ("bf16", "int8"):
        np.testing.assert_allclose(found[name], found["torch"], atol=0.2)
        assert (found[name] != found["torch"]).any()
    for out in ("out", "again"):
        run("baselines", *words, tmp_path / out, "--backend", "openvino")
    for path in (tmp_path / "out").iterdir():
        assert path.read_bytes() == (tmp_path / "again" / path.name).read_bytes()
    encoder = open_encoder(ModelSettings(str(model)), "cpu", "openvino-fp32")
    assert without_weights(encoder)[0].model.forward is None  # a copy for tokenising


def test_openvino_gives_pytorchs_scores_of_pairs(openvino: None, tmp_path: Path) -> None:
    settings = ModelSettings(str(write_cross(tmp_path / "model")))
    one, other = (
        open_reranker(settings, Work(("cpu",), dtype)).score(PAIRS[:6], "cpu") for dtype in ("fp32", "openvino-fp32")
    )
    np.testing.assert_allclose(other, one, atol=1e-4)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--dtype", "int8"], "--dtype int8 needs --backend openvino"),
        (["--backend", "openvino", "--dtype", "fp16"], "expected --dtype fp32, bf16 or int8"),
        (["--backend", "openvino"], '[openvino]"'),
    ],
)
def test_a_wrong_dtype_is_refused(words: list[str], said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "openvino", None)  # not installed
    given = ["--release", make_release(tmp_path / "release"), "--out", tmp_path / "out", *words]
    done = run("baselines", "run", write_dual(tmp_path / "model"), *given, code=None)
    (line,) = [line for line in done.stderr.splitlines() if "error" in line]
    assert said in line and not (tmp_path / "out").exists()


def test_models_that_openvino_cannot_run_are_refused(openvino: None, tmp_path: Path) -> None:
    assert dtype_of("auto", "cpu", "openvino") == "openvino-fp32"
    with pytest.raises(InputError, match="needs a model with a transformer; use --backend torch"):
        open_encoder(ModelSettings(str(write_static(tmp_path / "static"))), "cpu", "openvino-fp32")
    settings = ModelSettings(str(write_language_model(tmp_path / "llm")))  # pads on the left
    with pytest.raises(InputError, match="use --backend torch"):
        open_reranker(settings, Work(("cpu",), "openvino-fp32")).score(PAIRS[:6], "cpu")
