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

# Each training question with each text, and with the text without its first one, two or three characters.
PAIRS: list[tuple[str, str]] = []
for _start, _text in itertools.product(range(4), TEXTS):
    PAIRS += [(question, _text[_start:]) for question in QUESTIONS["train"]]
SIZES = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 64}
pytestmark = pytest.mark.usefixtures("own_cache")


def write_classifier(folder: Path, config_class: Any, model_class: Any) -> Path:
    """Write a cross-encoder of another architecture than BERT."""
    bert = write_bert(folder.with_name(f"{folder.name}-bert"))
    vocabulary_size = AutoConfig.from_pretrained(bert).vocab_size
    torch.manual_seed(0)
    config = config_class(vocab_size=vocabulary_size, num_labels=1, pad_token_id=0, initializer_range=0.2, **SIZES)
    model_class(config).save_pretrained(bert)
    CrossEncoder(str(bert), device="cpu", max_length=64).save_pretrained(str(folder))
    return folder


def needs_32_bits(scores: np.ndarray) -> bool:
    """True if at most a tenth of the scores are numbers of 16 bits by chance."""
    return bool(np.mean(scores == scores.astype(np.float16)) < 0.1)


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
    exact_scores = np.array(open_reranker(settings, Work(("cpu",), "fp32")).score(PAIRS, "cpu"))
    scores = np.array(open_reranker(settings, Work(("cpu",), dtype)).score(PAIRS, "cpu"))
    assert len(set(exact_scores)) == len(PAIRS)
    assert len(set(scores)) > 0.9 * len(PAIRS)  # a tie by chance
    assert needs_32_bits(scores)
    assert (scores != exact_scores).any()
    assert np.corrcoef(exact_scores, scores)[0, 1] > 0.9


def test_a_cross_encoder_that_is_trained_in_bf16_gives_scores_of_32_bits(tmp_path: Path) -> None:
    trainer = maker(tmp_path)("cross", "train.precision=bf16")
    trainer.accelerator.prepare_model(trainer.model)  # its forward runs in bf16
    fp32_model = CrossEncoder(str(tmp_path / "cross-1"), device="cpu", max_length=24)
    exact_scores = CrossScorer(fp32_model).scores(PAIRS[:24])
    scores = np.array(CrossScorer(trainer.model.eval()).scores(PAIRS[:24]))
    assert needs_32_bits(scores)
    assert (scores != exact_scores).any()


@pytest.fixture
def openvino(monkeypatch: pytest.MonkeyPatch) -> None:
    """Skip the test without OpenVINO."""
    pytest.importorskip("nncf", reason="the extra openvino is not installed")
    # OpenVINO gets as many threads as PyTorch has.
    monkeypatch.setattr(torch, "get_num_threads", lambda: 1)


@pytest.mark.slow
@pytest.mark.parametrize("write", [write_dual, write_sparse, write_multi_vector])
@pytest.mark.parametrize("dtype", ["bf16", "openvino-fp32"])
def test_retrievers_agree_with_fp32(tmp_path: Path, write: Any, dtype: str, request: pytest.FixtureRequest) -> None:
    if dtype != "bf16":
        request.getfixturevalue("openvino")
    release = open_release(make_release(tmp_path / "release"))
    settings = ModelSettings(str(write(tmp_path / "model")))
    scores_by_dtype = {}
    for computed_in in ("fp32", dtype):
        retriever = open_retriever(settings, Work(("cpu",), computed_in))
        assert retriever.result_inputs["computed_in"] == computed_in
        index = retriever.index(release, "corpus", tmp_path / computed_in)
        hits = retriever.search(release, "corpus", index, QUESTIONS["dev"], len(TEXTS))
        scores_by_dtype[computed_in] = [dict(query_hits) for query_hits in hits]
    tolerances = {"rel": 0.05, "abs": 0} if dtype == "bf16" else {"rel": 1e-6, "abs": 1e-2}
    for exact_scores, scores in zip(scores_by_dtype["fp32"], scores_by_dtype[dtype], strict=True):
        assert scores == pytest.approx(exact_scores, **tolerances)
    if dtype == "bf16":
        assert scores_by_dtype[dtype] != scores_by_dtype["fp32"]


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
    multiply = Multiply()
    model.append(multiply)
    encoder = side(model, "query")
    plain_vectors = encoder.encode(TEXTS)
    for factor, problem in ((1e-20, "too small for"), (1e20, "too large for|not all finite")):
        multiply.factor = factor
        with pytest.raises(InputError, match=problem):
            encoder.encode(TEXTS)
    multiply.factor = 1.0  # an encoder that refused texts encodes other texts
    for plain, vectors in zip(plain_vectors, encoder.encode(TEXTS), strict=True):
        np.testing.assert_array_equal(plain, vectors)


@pytest.mark.slow
@pytest.mark.parametrize("factor", [1e-30, 1e-9, 1e20])
@pytest.mark.parametrize(
    ("library", "side", "write"),
    [(SentenceTransformer, TextEncoder, write_dual), (SparseEncoder, SparseSide, write_sparse)],
)
def test_a_factor_changes_no_cosine(library: Any, side: Any, write: Any, factor: float, tmp_path: Path) -> None:
    model = library(str(write(tmp_path / "model")), device="cpu")
    model.similarity_fn_name = "cosine"
    plain_vectors = side(model, "query").encode(TEXTS)
    model.append(Multiply())
    model[-1].factor = factor
    scaled_vectors = side(model, "query").encode(TEXTS)
    for plain, scaled in zip(plain_vectors, scaled_vectors, strict=True):
        np.testing.assert_allclose(plain, scaled, rtol=2e-3, atol=1e-6)


def read_manifest(path: Path) -> Any:
    return json.loads(path.read_text(encoding="utf-8"))


def encode_release(release: Path, model: Path, out: Path, *options: object) -> str:
    """Run `encode`. Return its log."""
    return run("baselines", "encode", "--release", release, "--model", model, "--out", out, options).stderr


def test_encode_and_search_say_and_keep_their_precision(tmp_path: Path) -> None:
    release = make_release(tmp_path / "release")
    dual = write_dual(tmp_path / "dual")
    passages = tmp_path / "passages"
    queries = tmp_path / "queries"
    assert "precision: fp32" in encode_release(release, dual, passages)
    assert "precision: bf16" in encode_release(release, dual, queries, "--queries", "--split", "dev", "--dtype", "bf16")
    assert read_manifest(queries / "manifest.json")["model"]["computed_in"] == "bf16"

    warning = "passages are encoded in fp32, queries in bf16"
    run_path = tmp_path / "s.run"
    for option, path, query_dtype in (("--queries", queries, "bf16"), ("--model", dual, "fp32")):
        words = ["search", "--release", release, "--passages", passages, "--out", run_path, option, path]
        done = run("baselines", words)
        assert (warning in done.stderr) == (query_dtype == "bf16")
        precision = read_manifest(tmp_path / "s.run.manifest.json")["precision"]
        assert precision == {"passages": "fp32", "queries": query_dtype, "search": "fp32"}


def test_rerank_says_and_keeps_its_precision(tmp_path: Path) -> None:
    release = make_release(tmp_path / "release")
    first_path = tmp_path / "first.run"
    reranked_path = tmp_path / "r.run.gz"
    run("baselines", "bm25", "--release", release, "--out", first_path)
    words = ["rerank", "--release", release, "--run", first_path, "--model", write_cross(tmp_path / "cross")]
    words += ["--out", reranked_path, "--dtype", "bf16"]
    assert "precision: bf16" in run("baselines", words).stderr
    manifest = read_manifest(tmp_path / "r.run.gz.manifest.json")
    assert manifest["model"]["computed_in"] == "bf16"
    assert manifest["kind"] == "cross"
    assert manifest["reranked"]["file"] == "first.run"
    assert manifest["reranked"]["sha256"] == read_manifest(tmp_path / "first.run.manifest.json")["run"]["sha256"]
    assert str(tmp_path) not in json.dumps(manifest)


def test_embeddings_are_pytorchs_and_are_not_reused_by_another_backend(openvino: None, tmp_path: Path) -> None:
    model = write_dual(tmp_path / "model")
    release = make_release(tmp_path / "release")
    out = tmp_path / "out"
    encode_release(release, model, out, "--shard-rows", 2)
    torch_vectors = read_vectors(out, "fp32")
    for dtype, tolerance in (("fp32", 5e-3), ("bf16", 0.2), ("int8", 0.2)):
        encode_release(release, model, out, "--shard-rows", 2, "--backend", "openvino", "--dtype", dtype)
        vectors = read_vectors(out, f"openvino-{dtype}")
        np.testing.assert_allclose(vectors, torch_vectors, atol=tolerance)
        if dtype != "fp32":
            assert (vectors != torch_vectors).any()


def read_vectors(index: Path, precision: str) -> np.ndarray:
    """Return the vectors of an index that was computed in ``precision``."""
    vectors = open_vectors(index)
    assert vectors.precision == precision
    return vectors.all().astype(np.float32)


def test_openvino_writes_equal_files_again(openvino: None, tmp_path: Path) -> None:
    model = write_dual(tmp_path / "model")
    release = make_release(tmp_path / "release")
    # The folder of the first call had vectors of another precision.
    encode_release(release, model, tmp_path / "out", "--shard-rows", 2, "--backend", "openvino", "--dtype", "int8")
    for name in ("out", "again"):
        encode_release(release, model, tmp_path / name, "--shard-rows", 2, "--backend", "openvino")
    for path in (tmp_path / "out").iterdir():
        assert path.read_bytes() == (tmp_path / "again" / path.name).read_bytes()


def test_a_copy_for_tokenising_has_no_model(openvino: None, tmp_path: Path) -> None:
    encoder = open_encoder(ModelSettings(str(write_dual(tmp_path / "model"))), "cpu", "openvino-fp32")
    assert without_weights(encoder)[0].model.forward is None


def test_openvino_gives_pytorchs_scores_of_pairs(openvino: None, tmp_path: Path) -> None:
    settings = ModelSettings(str(write_cross(tmp_path / "model")))
    torch_scores = open_reranker(settings, Work(("cpu",), "fp32")).score(PAIRS[:6], "cpu")
    openvino_scores = open_reranker(settings, Work(("cpu",), "openvino-fp32")).score(PAIRS[:6], "cpu")
    np.testing.assert_allclose(openvino_scores, torch_scores, atol=1e-4)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--dtype", "int8"], "--dtype int8 needs --backend openvino"),
        (["--backend", "openvino", "--dtype", "fp16"], "expected --dtype fp32, bf16 or int8"),
        (["--backend", "openvino"], '[openvino]"'),
    ],
)
def test_a_wrong_dtype_is_refused(
    words: list[str], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "openvino", None)  # not installed
    model = write_dual(tmp_path / "model")
    release = make_release(tmp_path / "release")
    done = run("baselines", "run", model, "--release", release, "--out", tmp_path / "out", words, code=None)
    (error_line,) = [line for line in done.stderr.splitlines() if "error" in line]
    assert message in error_line
    assert not (tmp_path / "out").exists()


def test_models_that_openvino_cannot_run_are_refused(openvino: None, tmp_path: Path) -> None:
    assert dtype_of("auto", "cpu", "openvino") == "openvino-fp32"
    with pytest.raises(InputError, match="needs a model with a transformer; use --backend torch"):
        open_encoder(ModelSettings(str(write_static(tmp_path / "static"))), "cpu", "openvino-fp32")
    settings = ModelSettings(str(write_language_model(tmp_path / "llm")))  # pads on the left
    with pytest.raises(InputError, match="use --backend torch"):
        open_reranker(settings, Work(("cpu",), "openvino-fp32")).score(PAIRS[:6], "cpu")
