"""A user's own encoders and re-rankers: outputs of any kind and magnitude, kept vectors, and no PyTorch."""

import logging
import re
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from commands import ROOT, run_python
from releases import QUESTIONS, TEXTS, make_release, md5
from scipy import sparse
from sentence_transformers import CrossEncoder, SentenceTransformer, SparseEncoder
from tiny_kinds import write_sparse
from tiny_models import write_cross, write_dual

from baselines import Encoder, InputError, QueryPassageEncoder, Reranker, evaluate, fuse, search
from baselines.retrieve import exact_search
from baselines.retrieve.any_model import run_model
from builders.core.errors import log
from builders.store.reader import open_release

pytestmark = pytest.mark.usefixtures("own_cache")
QUERY = md5(QUESTIONS["dev"][0])
Run = dict[str, dict[str, float]]


def encode(texts: list[str]) -> np.ndarray:
    """Return a vector for each text: the counts of a few characters, and 1."""
    return np.array([[1.0, *map(text.count, "高铁票手机水北京饺子")] for text in texts])


@pytest.fixture
def release(tmp_path: Path) -> Path:
    return make_release(tmp_path / "release")


def orders(run: Run) -> dict[str, list[str]]:
    return {query_id: list(scores) for query_id, scores in run.items()}


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64, torch.float32, torch.float64])
def test_an_encoder_may_return_the_same_buffer_at_each_call(dtype: Any, sample_release: Path) -> None:
    is_tensor = isinstance(dtype, torch.dtype)
    buffer = torch.zeros(4_096, 97, dtype=dtype) if is_tensor else np.zeros((4_096, 97), dtype)

    def counts(texts: list[str]) -> np.ndarray:
        return np.array([np.bincount([ord(character) % 97 for character in text], minlength=97) for text in texts])

    def into_the_buffer(texts: list[str]) -> Any:
        vectors = counts(texts)
        buffer[: len(texts)] = torch.tensor(vectors) if is_tensor else vectors
        return buffer[: len(texts)]

    assert search(into_the_buffer, sample_release, top_k=50) == search(counts, sample_release, top_k=50)


def test_engines_reserve_memory_for_the_passages_alone(release: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    counts: list[int] = []

    class CountingEngine(exact_search.FaissEngine):
        def __init__(self, queries: Any, count: int, device: str = "cpu") -> None:
            counts.append(count)
            super().__init__(queries, count, device)

    monkeypatch.setattr(exact_search, "FaissEngine", CountingEngine)
    found = search(encode, release, top_k=20_000_000)
    assert counts == [len(TEXTS)] and found == search(encode, release, top_k=len(TEXTS))


def test_a_reranker_may_return_the_same_buffer_at_each_call(release: Path) -> None:
    buffer = np.zeros(100)

    def predict(pairs: list[tuple[str, str]]) -> Any:
        buffer[: len(pairs)] = [len(text) for _, text in pairs]
        return buffer[: len(pairs)]

    first = search("bm25", release)
    plain = search(lambda pairs: [len(text) for _, text in pairs], release, run=first)
    assert search(predict, release, run=first, batch_size=2) == plain


@pytest.mark.parametrize("scale", [1e20, 2.0**60, 1e-8, 1e-20, 1e-300, 1e300])
def test_a_factor_changes_no_ranking(scale: float, sample_release: Path) -> None:
    plain = search(encode, sample_release)
    scaled = search(lambda texts: encode(texts) * scale, sample_release)
    assert evaluate(scaled, sample_release)["MRR@10"] == evaluate(plain, sample_release)["MRR@10"]
    if 1e-30 < scale < 1e30:  # dot products are stored in 32 bits
        plain = search(encode, sample_release, similarity="dot")
        scaled = search(lambda texts: encode(texts) * scale, sample_release, similarity="dot")
        figures = [evaluate(run, sample_release)["MRR@10"] for run in (plain, scaled)]
        assert figures[0] == figures[1] > 0
        best = max(scaled[QUERY].values()) if QUERY in scaled else max(next(iter(scaled.values())).values())
        assert best > 0


@pytest.mark.parametrize(("query_scale", "scale"), [(1e300, 1e30), (1e-300, 1e-29), (1e-300, 1e30), (1, 1e-34)])
def test_dot_products_keep_their_order_beyond_64_bits(query_scale: float, scale: float, sample_release: Path) -> None:
    def scaled(factor: float) -> Callable[[list[str]], Any]:
        return lambda texts: (encode(texts) + 1e-3 * np.arange(11)) * factor

    model = SimpleNamespace(encode_query=scaled(query_scale), encode_document=scaled(scale))
    if scale < 1e-31:  # 32 bits hold such numbers, but with fewer digits
        with pytest.raises(InputError, match="SimpleNamespace: the vectors have numbers that are too small"):
            search(model, sample_release, similarity="dot")
        return
    plain = search(scaled(1), sample_release, similarity="dot")
    run = search(model, sample_release, similarity="dot")
    top_ranks = [[*ids][:10] for ids in run.values()]
    assert top_ranks == [[*ids][:10] for ids in plain.values()]


def test_a_passage_of_large_numbers_takes_no_digits_from_the_others(sample_release: Path) -> None:
    rows = open_release(sample_release).texts("corpus", "corpus")
    outlier = next(iter(rows.values()))

    def passages(texts: list[str]) -> Any:
        vectors = np.zeros((len(texts), 3))
        vectors[:, 0] = [1 + len(text) / 1000 for text in texts]
        vectors[:, 1] = [1e38 if text == outlier else 0 for text in texts]
        return vectors * [1e-5, 1, 1]

    model = SimpleNamespace(encode_query=lambda texts: [[1.0, 0, 0]] * len(texts), encode_document=passages)
    for scores in search(model, sample_release, similarity="dot", top_k=100).values():
        lengths = [len(rows[passage_id]) for passage_id in scores]
        assert lengths == sorted(lengths, reverse=True)
        assert len({*scores.values()}) == len({*lengths})


def test_zeros_are_not_kept(release: Path, tmp_path: Path) -> None:
    first = encode(["水"]) > 0  # a constant, and one character

    def zeros_then_vectors(texts: list[str]) -> Any:
        return np.where(first, encode(texts), 0) * [bool(is_mended), *[0] * 10]

    is_mended = list[bool]()
    with pytest.raises(InputError, match="found only zeros for all passages"):
        search(zeros_then_vectors, release, index=tmp_path / "index", similarity="dot")
    is_mended.append(True)
    run = search(zeros_then_vectors, release, index=tmp_path / "index", similarity="dot")
    assert {*run[QUERY].values()} == {1.0}


@pytest.mark.parametrize("scale", [1e-300, 1e300, 2.0**60, -1e300])
def test_scores_of_a_reranker_keep_64_bits(scale: float, release: Path) -> None:
    first = search("bm25", release)

    def predict(pairs: list[tuple[str, str]]) -> list[float]:
        return [scale * len(text) for _, text in pairs]

    def lengths(pairs: list[tuple[str, str]]) -> list[int]:
        return [(1 if scale > 0 else -1) * len(text) for _, text in pairs]

    assert orders(search(predict, release, run=first)) == orders(search(lengths, release, run=first))
    for top_k in (1, 2):  # the passages behind top_k follow in their old order, at any magnitude
        run = search(predict, release, run=first, top_k=top_k)
        for query_id, scores in run.items():
            assert list(scores)[top_k:] == list(first[query_id])[top_k:]
            assert len({*scores.values()}) == len(scores)


def test_integers_beyond_a_float_keep_their_order(release: Path) -> None:
    first = {QUERY: [*open_release(release).texts("corpus", "corpus")]}
    lengths = search(lambda pairs: [len(text) for _, text in pairs], release, run=first)
    models: list[Callable[[Any], Any]] = [
        lambda pairs: [2**60 + len(text) for _, text in pairs],
        lambda pairs: torch.tensor([2**60 + len(text) for _, text in pairs]),
        lambda pairs: [2**63 - 18 + len(text) for _, text in pairs],  # NumPy has other types from 2**63 on
    ]
    for model in models:
        assert orders(search(model, release, run=first, batch_size=1)) == orders(lengths)


@pytest.mark.parametrize("factor", [np.longdouble("1e4000"), np.longdouble("1e-4000")])
def test_scores_beyond_64_bits_are_refused(factor: np.longdouble, release: Path) -> None:
    with pytest.raises(InputError, match="<lambda>: expected numbers that 64 bits can hold"):
        search(lambda pairs: factor * np.ones(len(pairs)), release, run=search("bm25", release))


def test_a_sparse_encoder_is_compared_by_its_own_similarity(release: Path, tmp_path: Path) -> None:
    folder = write_sparse(tmp_path / "sparse")
    run = search(SparseEncoder(str(folder), device="cpu"), release)
    for query_id, hits in search(str(folder), release, device="cpu").items():
        scores = {passage_id: run[query_id][passage_id] for passage_id in hits}
        assert scores == pytest.approx(hits, rel=1e-4)


def test_vectors_of_zeros_are_refused_or_counted(release: Path, caplog: pytest.LogCaptureFixture) -> None:
    for model in (
        lambda texts: encode(texts) * 0,
        SimpleNamespace(encode_query=encode, encode=lambda t: encode(t) * 0),
    ):
        with pytest.raises(InputError, match="expected vectors, found only zeros for all passages"):
            search(model, release)
    with pytest.raises(InputError, match="found only zeros for all queries"):
        search(SimpleNamespace(encode_query=lambda texts: encode(texts) * 0, encode_document=encode), release)
    caplog.set_level(logging.WARNING, log.name)
    without_first = [[0.0, 0.0] if text == TEXTS[0] else [1.0, float(len(text))] for text in TEXTS]
    by_text = dict(zip(TEXTS, without_first, strict=True))
    search(lambda texts: [by_text.get(text, [1.0, 1.0]) for text in texts], release)
    assert f"1 of {len(TEXTS)} passages have a vector of zeros" in caplog.text


class OtherTensor:
    """A tensor of another library, for example Paddle, which has methods of the same names as PyTorch."""

    def __init__(self, numbers: np.ndarray) -> None:
        self._numbers = numbers

    def detach(self) -> "OtherTensor":
        return self

    def __array__(self, dtype: Any = None, copy: Any = None) -> np.ndarray:
        return self._numbers


@pytest.mark.parametrize(
    "convert",
    [
        np.ndarray.tolist,
        list,
        tuple,
        np.asfortranarray,
        sparse.csr_matrix,
        torch.tensor,
        memoryview,
        lambda vectors: vectors > 0,
        lambda vectors: torch.tensor(vectors, requires_grad=True),
        lambda vectors: torch.tensor(vectors, dtype=torch.bfloat16),
        lambda vectors: torch.tensor(vectors).to_sparse(),
        lambda vectors: torch.tensor(vectors).to_sparse_csr(),
        lambda vectors: OtherTensor(vectors),
        np.longdouble,
        lambda vectors: [torch.tensor(row) for row in vectors],
        lambda vectors: np.ma.masked_array(vectors),
    ],
)
def test_usual_arrays_are_accepted(convert: Callable[[Any], Any], release: Path) -> None:
    def whole(texts: list[str]) -> Any:
        return np.minimum(encode(texts), 1)  # numbers that truth values have, too

    assert search(lambda texts: convert(whole(texts)), release) == search(whole, release)


HUGE = np.longdouble("1e4000")


async def not_a_function(texts: list[str]) -> Any:
    return encode(texts)


@pytest.mark.parametrize(
    ("model", "problem"),
    [
        (
            lambda texts: {"dense_vecs": encode(texts)},
            r"expected an array of shape \(2, dimensions\), found .* type dict",
        ),
        (lambda texts: None, "found None"),
        (lambda texts: "vectors", "found a value of type str"),
        (lambda texts: (row for row in encode(texts)), "found a value of type generator"),
        (lambda texts: [[1.0] * len(text) for text in texts], "a list of 2 values that are no rows of numbers"),
        (lambda texts: encode(texts)[:, :0], r"found an array of shape \(2, 0\)"),
        (lambda texts: encode(texts)[:1], r"found an array of shape \(1, 11\)"),
        (lambda texts: encode(texts) + 1j, "dtype complex128"),
        (lambda texts: encode(texts).astype(object), "dtype object"),
        (lambda texts: encode(texts).astype(str), "dtype <U"),
        (lambda texts: np.ma.masked_greater(encode(texts), 0), "found a masked array"),
        (lambda texts: encode(texts) / 0, "expected finite numbers, found NaN or infinity"),
        (lambda texts: torch.tensor(encode(texts) + 1j), r"shape \(2, 11\) and dtype complex128"),
        (lambda texts: encode(texts).astype(np.longdouble) * HUGE, "expected numbers that 64 bits can hold"),
        (lambda texts: encode(texts).astype(np.longdouble) / HUGE, "expected numbers that 64 bits can hold"),
        (lambda texts: (encode(texts)[1:], texts.clear())[0], r"expected an array of shape \(2, dimensions\)"),
        (not_a_function, "found a coroutine; pass a function that is not async"),
        (3, "expected a function of a list of texts, an object with encode, .* found int"),
        ([], "found list"),
        (SimpleNamespace(encode_query=encode), "found SimpleNamespace"),
        (type("Model", (), {"encode": encode}), "found the class Model; pass an instance"),
        (SimpleNamespace(predict=encode), "SimpleNamespace scores pairs; name the run to re-rank by run=RUN"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_what_is_no_encoder_is_one_error(model: Any, problem: str, release: Path) -> None:
    with pytest.raises(InputError, match=problem) as error:
        search(model, release)
    assert "\n" not in str(error.value)


def test_a_cross_encoder_needs_a_run(release: Path, tmp_path: Path) -> None:
    model = CrossEncoder(str(write_cross(tmp_path / "cross")), device="cpu")
    with pytest.raises(InputError, match="CrossEncoder scores pairs; name the run to re-rank by run=RUN"):
        evaluate(model, release)
    assert isinstance(model, Reranker) and not isinstance(model, Encoder)
    assert {*search(model, release, run=search("bm25", release))} == {*search("bm25", release)}


def test_protocols_say_what_a_model_is() -> None:
    both = SimpleNamespace(encode_query=encode, encode_document=encode)
    assert isinstance(both, QueryPassageEncoder) and not isinstance(both, Encoder)
    assert isinstance(SimpleNamespace(encode=encode), Encoder)


def test_an_error_of_the_model_is_passed_on(release: Path) -> None:
    def fails(texts: list[str]) -> Any:
        raise KeyError("the user's own error")

    with pytest.raises(KeyError, match="the user's own error"):
        search(fails, release)


@pytest.mark.parametrize("error", [ConnectionError("429"), None])
def test_a_failure_loses_only_the_texts_of_its_call(
    error: Exception | None, sample_release: Path, tmp_path: Path
) -> None:
    index, encoded = tmp_path / "index", list[str]()
    stop_at = 300  # of 383 passages

    def fails_once(texts: list[str]) -> Any:
        if stop_at < len(encoded) and index not in resumed:
            resumed.append(index)
            if error:
                raise error
            return encode(texts) * np.nan
        encoded.extend(texts)
        return encode(texts)

    resumed: list[Path] = []
    with pytest.raises((ConnectionError, InputError)):
        search(fails_once, sample_release, index=index, batch_size=64)
    before = len(encoded)
    run = search(fails_once, sample_release, index=index, batch_size=64)
    passages = [*open_release(sample_release).texts("corpus", "corpus").values()]
    again = [text for text in encoded[before:] if text in passages]
    assert before > stop_at and len(again) <= len(passages) - 256
    assert run == search(encode, sample_release)
    encoded.clear()
    assert search(fails_once, sample_release, "test", index=index, batch_size=64)
    assert not {*encoded} & {*passages}  # another split encodes only its queries


def test_searches_and_rerankings_share_their_vectors(sample_release: Path, tmp_path: Path) -> None:
    passages = {*open_release(sample_release).texts("corpus", "corpus").values()}
    encoded = list[str]()

    def count(texts: list[str]) -> Any:
        encoded.extend(text for text in texts if text in passages)
        return encode(texts)

    model = SimpleNamespace(encode=count)
    short, long = (search("bm25", sample_release, top_k=top_k) for top_k in (5, 10))
    candidates = [{passage_id for hits in run.values() for passage_id in hits} for run in (short, long)]
    new_counts = [len(candidates[0]), len(candidates[1] - candidates[0]), len(passages) - len(candidates[1]), 0, 0]
    for run, new_count in zip([short, long, None, long, None], new_counts, strict=True):
        encoded.clear()
        hits = search(model, sample_release, run=run, index=tmp_path / "index")
        assert len(encoded) == new_count
        assert hits == search(SimpleNamespace(encode=encode), sample_release, run=run)


def test_an_index_replaces_no_release_and_no_index_of_a_named_model(release: Path, tmp_path: Path) -> None:
    dual = SentenceTransformer(str(write_dual(tmp_path / "model")), device="cpu")
    search(dual, release, index=tmp_path / "index")
    for folder in (release, tmp_path / "index"):
        files = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
        with pytest.raises(InputError, match="exists and is not an index of an own encoder"):
            search(encode, release, index=folder)
        assert files == {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_a_run_reuses_the_vectors_of_a_run_over_candidates(release: Path, tmp_path: Path) -> None:
    model, on_cpu = write_dual(tmp_path / "model"), {"device": "cpu", "dtype": "fp32"}
    fresh = run_model(model, release, index=tmp_path / "fresh", **on_cpu)
    first = search("bm25", release, top_k=2)
    over = run_model(model, release, over=first, index=tmp_path / "index", **on_cpu)
    assert 0 < over.manifest["passages_encoded"] < len(TEXTS)
    encoded: list[int] = []
    from baselines.retrieve.encoder import TextEncoder

    original = TextEncoder.encode

    def count(self: Any, texts: Any) -> Any:
        encoded.append(len(texts))
        return original(self, texts)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(TextEncoder, "encode", count)
        whole = run_model(model, release, index=tmp_path / "index", **on_cpu)
    assert encoded[0] == len(TEXTS) - over.manifest["passages_encoded"]
    assert whole.rankings == fresh.rankings
    for query_id, hits in whole.hits.items():
        assert [score for _, score in hits] == pytest.approx([score for _, score in fresh.hits[query_id]], abs=1e-3)


@pytest.mark.slow
def test_own_models_need_no_pytorch(release: Path, tmp_path: Path) -> None:
    code = f"""
import sys
class Blocked:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ("torch", "transformers", "sentence_transformers", "tokenizers"):
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)
sys.meta_path.insert(0, Blocked())
from types import SimpleNamespace
import numpy as np
from baselines import InputError, compare, evaluate, fuse, search
def encode(texts):
    return np.array([[1.0, *map(text.count, "高铁票手机水北京饺子")] for text in texts])
run = search(encode, {str(release)!r})
words = search("bm25", {str(release)!r})
pairs = search(lambda pairs: [len(text) for _, text in pairs], {str(release)!r}, run=words)
over = search(SimpleNamespace(encode=encode), {str(release)!r}, run=words)
compare({{"a": run, "b": words}}, {str(release)!r})
try:
    search({str(write_dual(tmp_path / "model"))!r}, {str(release)!r})
except InputError as error:
    missing = str(error)
print(json.dumps([run, over, pairs, evaluate(fuse([run, words]), {str(release)!r}), missing]))
"""
    environment = {"PYTHONPATH": str(ROOT), "XDG_CACHE_HOME": str(tmp_path / "cache"), "HF_HUB_OFFLINE": "1"}
    run, over, pairs, figures, missing = run_python(code, tmp_path / "work", environment)
    words = search("bm25", release)
    assert run == search(encode, release) and over == search(SimpleNamespace(encode=encode), release, run=words)
    assert pairs == search(lambda pairs: [len(text) for _, text in pairs], release, run=words)
    assert figures == evaluate(fuse([run, words]), release)
    assert re.fullmatch(r"\w+ is not installed: pip install .*\[models\]\"", missing)
