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
from commands import ROOT, run_python, tree
from releases import QUESTIONS, TEXTS, make_release, md5
from scipy import sparse
from sentence_transformers import CrossEncoder, SentenceTransformer, SparseEncoder
from tiny_kinds import write_sparse
from tiny_models import write_cross, write_dual

from baselines import Encoder, InputError, QueryPassageEncoder, Reranker, evaluate, fuse, search
from baselines.retrieve import exact_search
from baselines.retrieve.any_model import run_model
from baselines.retrieve.encoder import TextEncoder
from baselines.retrieve.own_vectors import unit_rows
from builders.core.errors import log
from builders.store.reader import open_release

pytestmark = pytest.mark.usefixtures("own_cache")
QUERY = md5(QUESTIONS["dev"][0])
Run = dict[str, dict[str, float]]


COUNTED_CHARACTERS = "高铁票手机水北京饺子"


def encode(texts: list[str]) -> np.ndarray:
    """Return a vector for each text: 1, and the counts of a few characters."""
    vectors = np.ones((len(texts), 1 + len(COUNTED_CHARACTERS)))
    for row, text in enumerate(texts):
        vectors[row, 1:] = [text.count(character) for character in COUNTED_CHARACTERS]
    return vectors


def score_by_length(pairs: list[tuple[str, str]]) -> list[int]:
    """Re-rank by the length of the passages."""
    return [len(text) for _, text in pairs]


def encode_as_zeros(texts: list[str]) -> np.ndarray:
    return encode(texts) * 0


@pytest.fixture
def release(tmp_path: Path) -> Path:
    return make_release(tmp_path / "release")


def order_of(run: Run) -> dict[str, list[str]]:
    """Return the ranked passage ids of each query."""
    return {query_id: list(scores) for query_id, scores in run.items()}


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64, torch.float32, torch.float64])
def test_an_encoder_may_return_the_same_buffer_at_each_call(dtype: Any, sample_release: Path) -> None:
    is_tensor = isinstance(dtype, torch.dtype)
    buffer = torch.zeros(4_096, 97, dtype=dtype) if is_tensor else np.zeros((4_096, 97), dtype)

    def count_characters(texts: list[str]) -> np.ndarray:
        counts = np.zeros((len(texts), 97), int)
        for row, text in enumerate(texts):
            for character in text:
                counts[row, ord(character) % 97] += 1
        return counts

    def encode_into_the_buffer(texts: list[str]) -> Any:
        counts = count_characters(texts)
        buffer[: len(texts)] = torch.tensor(counts) if is_tensor else counts
        return buffer[: len(texts)]

    run = search(encode_into_the_buffer, sample_release, top_k=50)
    assert run == search(count_characters, sample_release, top_k=50)


def test_engines_reserve_memory_for_the_passages_alone(release: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    hit_counts: list[int] = []

    # An array for 20 million hits a query would need gigabytes.
    class CountingEngine(exact_search.FaissEngine):
        def __init__(self, queries: Any, count: int, device: str = "cpu") -> None:
            hit_counts.append(count)
            super().__init__(queries, count, device)

    monkeypatch.setattr(exact_search, "FaissEngine", CountingEngine)
    run = search(encode, release, top_k=20_000_000)
    assert hit_counts == [len(TEXTS)]
    assert run == search(encode, release, top_k=len(TEXTS))


def test_a_reranker_may_return_the_same_buffer_at_each_call(release: Path) -> None:
    buffer = np.zeros(100)

    def predict(pairs: list[tuple[str, str]]) -> Any:
        buffer[: len(pairs)] = score_by_length(pairs)
        return buffer[: len(pairs)]

    first_run = search("bm25", release)
    expected = search(score_by_length, release, run=first_run)
    assert search(predict, release, run=first_run, batch_size=2) == expected


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64, np.int8])
def test_unit_vectors_have_64_bits_for_any_number_type(dtype: Any) -> None:
    vectors = np.array([[3, 4], [0, 0], [-1, 1]], dtype)
    half_length = np.sqrt(0.5)
    unit_vectors = unit_rows(vectors)
    assert unit_vectors.dtype == np.float64
    assert unit_vectors == pytest.approx(np.array([[0.6, 0.8], [0, 0], [-half_length, half_length]]), rel=1e-15)
    assert vectors.tolist() == [[3, 4], [0, 0], [-1, 1]]


@pytest.mark.parametrize("scale", [1e20, 2.0**60, 1e-8, 1e-20, 1e-300, 1e300])
def test_a_factor_changes_no_ranking(scale: float, sample_release: Path) -> None:
    plain_run = search(encode, sample_release)
    scaled_run = search(lambda texts: encode(texts) * scale, sample_release)
    assert evaluate(scaled_run, sample_release)["MRR@10"] == evaluate(plain_run, sample_release)["MRR@10"]


@pytest.mark.parametrize("scale", [1e20, 2.0**60, 1e-8, 1e-20])  # dot products are stored in 32 bits
def test_a_factor_changes_no_ranking_by_dot_products(scale: float, sample_release: Path) -> None:
    plain_run = search(encode, sample_release, similarity="dot")
    scaled_run = search(lambda texts: encode(texts) * scale, sample_release, similarity="dot")
    plain_figure = evaluate(plain_run, sample_release)["MRR@10"]
    assert evaluate(scaled_run, sample_release)["MRR@10"] == plain_figure > 0
    first_scores = next(iter(scaled_run.values()))
    assert max(first_scores.values()) > 0


def encode_scaled(factor: float) -> Callable[[list[str]], Any]:
    """Return an encoder whose vectors are multiplied by ``factor``. No two dimensions are equal."""
    return lambda texts: (encode(texts) + 1e-3 * np.arange(11)) * factor


@pytest.mark.parametrize(("query_scale", "scale"), [(1e300, 1e30), (1e-300, 1e-29), (1e-300, 1e30)])
def test_dot_products_keep_their_order_beyond_64_bits(query_scale: float, scale: float, sample_release: Path) -> None:
    model = SimpleNamespace(encode_query=encode_scaled(query_scale), encode_document=encode_scaled(scale))
    plain_run = search(encode_scaled(1), sample_release, similarity="dot")
    run = search(model, sample_release, similarity="dot")
    assert [list(scores)[:10] for scores in run.values()] == [list(scores)[:10] for scores in plain_run.values()]


def test_numbers_that_32_bits_hold_with_fewer_digits_are_refused(sample_release: Path) -> None:
    model = SimpleNamespace(encode_query=encode_scaled(1), encode_document=encode_scaled(1e-34))
    with pytest.raises(InputError, match="SimpleNamespace: the vectors have numbers that are too small"):
        search(model, sample_release, similarity="dot")


def test_a_passage_of_large_numbers_takes_no_digits_from_the_others(sample_release: Path) -> None:
    passages = open_release(sample_release).texts("corpus", "corpus")
    outlier = next(iter(passages.values()))

    def encode_passages(texts: list[str]) -> Any:
        vectors = np.zeros((len(texts), 3))
        vectors[:, 0] = [1 + len(text) / 1000 for text in texts]
        # The second dimension of the queries is 0, so that the outlier scores like the other passages.
        vectors[:, 1] = [1e38 if text == outlier else 0 for text in texts]
        return vectors * [1e-5, 1, 1]

    model = SimpleNamespace(encode_query=lambda texts: [[1.0, 0, 0]] * len(texts), encode_document=encode_passages)
    for scores in search(model, sample_release, similarity="dot", top_k=100).values():
        lengths = [len(passages[passage_id]) for passage_id in scores]
        assert lengths == sorted(lengths, reverse=True)
        assert len(set(scores.values())) == len(set(lengths))


def test_zeros_are_not_kept(release: Path, tmp_path: Path) -> None:
    model_is_mended = False

    def zeros_then_vectors(texts: list[str]) -> Any:
        vectors = np.zeros((len(texts), 11))
        vectors[:, 0] = model_is_mended
        return vectors

    with pytest.raises(InputError, match="found only zeros for all passages"):
        search(zeros_then_vectors, release, index=tmp_path / "index", similarity="dot")
    model_is_mended = True
    run = search(zeros_then_vectors, release, index=tmp_path / "index", similarity="dot")
    assert set(run[QUERY].values()) == {1.0}


@pytest.mark.parametrize("scale", [1e-300, 1e300, 2.0**60, -1e300])
def test_scores_of_a_reranker_keep_64_bits(scale: float, release: Path) -> None:
    first_run = search("bm25", release)
    sign = 1 if scale > 0 else -1

    def predict(pairs: list[tuple[str, str]]) -> list[float]:
        return [scale * len(text) for _, text in pairs]

    def predict_signs(pairs: list[tuple[str, str]]) -> list[int]:
        return [sign * len(text) for _, text in pairs]

    expected = search(predict_signs, release, run=first_run)
    assert order_of(search(predict, release, run=first_run)) == order_of(expected)
    for top_k in (1, 2):  # the passages behind top_k follow in their old order, at any magnitude
        run = search(predict, release, run=first_run, top_k=top_k)
        for query_id, scores in run.items():
            assert list(scores)[top_k:] == list(first_run[query_id])[top_k:]
            assert len(set(scores.values())) == len(scores)


@pytest.mark.parametrize(
    ("offset", "convert"),
    [(2**60, list), (2**60, torch.tensor), (2**63 - 18, list)],  # NumPy has other types from 2**63 on
    ids=["list", "tensor", "list near 2**63"],
)
def test_integers_beyond_a_float_keep_their_order(offset: int, convert: Callable[[Any], Any], release: Path) -> None:
    first_run = {QUERY: list(open_release(release).texts("corpus", "corpus"))}
    expected = search(score_by_length, release, run=first_run)

    def predict(pairs: list[tuple[str, str]]) -> Any:
        return convert([offset + length for length in score_by_length(pairs)])

    assert order_of(search(predict, release, run=first_run, batch_size=1)) == order_of(expected)


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


def test_vectors_of_zeros_are_refused(release: Path) -> None:
    for model in (encode_as_zeros, SimpleNamespace(encode_query=encode, encode=encode_as_zeros)):
        with pytest.raises(InputError, match="expected vectors, found only zeros for all passages"):
            search(model, release)
    with pytest.raises(InputError, match="found only zeros for all queries"):
        search(SimpleNamespace(encode_query=encode_as_zeros, encode_document=encode), release)


def test_some_vectors_of_zeros_are_counted(release: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING, log.name)
    # Only the first passage has a vector of zeros.
    vectors = {text: [1.0, float(len(text))] for text in TEXTS}
    vectors[TEXTS[0]] = [0.0, 0.0]
    search(lambda texts: [vectors.get(text, [1.0, 1.0]) for text in texts], release)
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
    def encode_as_bits(texts: list[str]) -> Any:
        return np.minimum(encode(texts), 1)  # numbers that truth values have, too

    assert search(lambda texts: convert(encode_as_bits(texts)), release) == search(encode_as_bits, release)


HUGE = np.longdouble("1e4000")


async def encode_later(texts: list[str]) -> Any:
    return encode(texts)


def clear_the_texts(texts: list[str]) -> Any:
    """Return too few vectors, and hide that by emptying the list of texts."""
    vectors = encode(texts)[1:]
    texts.clear()
    return vectors


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
        (lambda texts: [[1.0] * len(text) for text in texts], "a list of 2 values that are not all rows of numbers"),
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
        (clear_the_texts, r"expected an array of shape \(2, dimensions\)"),
        (encode_later, "found a coroutine; pass a function that is not async"),
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
    assert isinstance(model, Reranker) and not isinstance(model, Encoder)
    with pytest.raises(InputError, match="CrossEncoder scores pairs; name the run to re-rank by run=RUN"):
        evaluate(model, release)
    first_run = search("bm25", release)
    assert search(model, release, run=first_run).keys() == first_run.keys()


def test_protocols_say_what_a_model_is() -> None:
    both = SimpleNamespace(encode_query=encode, encode_document=encode)
    assert isinstance(both, QueryPassageEncoder) and not isinstance(both, Encoder)
    assert isinstance(SimpleNamespace(encode=encode), Encoder)


def test_an_error_of_the_model_is_passed_on(release: Path) -> None:
    def fail(texts: list[str]) -> Any:
        raise KeyError("the user's own error")

    with pytest.raises(KeyError, match="the user's own error"):
        search(fail, release)


@pytest.mark.parametrize("error", [ConnectionError("429"), None])
def test_a_failure_loses_only_the_texts_of_its_call(
    error: Exception | None, sample_release: Path, tmp_path: Path
) -> None:
    index = tmp_path / "index"
    passages = list(open_release(sample_release).texts("corpus", "corpus").values())
    encoded_texts: list[str] = []
    stop_at = 300  # of 383 passages
    has_failed = False

    def fail_once(texts: list[str]) -> Any:
        nonlocal has_failed
        if len(encoded_texts) > stop_at and not has_failed:
            has_failed = True
            if error:
                raise error
            return encode(texts) * np.nan
        encoded_texts.extend(texts)
        return encode(texts)

    with pytest.raises((ConnectionError, InputError)):
        search(fail_once, sample_release, index=index, batch_size=64)
    count_before = len(encoded_texts)
    run = search(fail_once, sample_release, index=index, batch_size=64)
    encoded_later = [text for text in encoded_texts[count_before:] if text in passages]
    assert count_before > stop_at
    assert len(encoded_later) <= len(passages) - 256
    assert run == search(encode, sample_release)
    # Another split encodes only its queries.
    encoded_texts.clear()
    assert search(fail_once, sample_release, "test", index=index, batch_size=64)
    assert not set(encoded_texts) & set(passages)


def test_searches_and_rerankings_share_their_vectors(sample_release: Path, tmp_path: Path) -> None:
    passages = set(open_release(sample_release).texts("corpus", "corpus").values())
    encoded_passages: list[str] = []

    def encode_and_record(texts: list[str]) -> Any:
        encoded_passages.extend(text for text in texts if text in passages)
        return encode(texts)

    def candidates_of(run: Run) -> set[str]:
        return set().union(*run.values())

    short_run = search("bm25", sample_release, top_k=5)
    long_run = search("bm25", sample_release, top_k=10)
    short_count = len(candidates_of(short_run))
    long_count = len(candidates_of(short_run) | candidates_of(long_run))
    # (the run to re-rank, or None to search; the number of passages that are new)
    calls = [(short_run, short_count), (long_run, long_count - short_count), (None, len(passages) - long_count)]
    calls += [(long_run, 0), (None, 0)]
    for run, new_count in calls:
        encoded_passages.clear()
        hits = search(SimpleNamespace(encode=encode_and_record), sample_release, run=run, index=tmp_path / "index")
        assert len(encoded_passages) == new_count
        assert hits == search(SimpleNamespace(encode=encode), sample_release, run=run)


def test_an_index_replaces_no_release_and_no_index_of_a_named_model(release: Path, tmp_path: Path) -> None:
    dual = SentenceTransformer(str(write_dual(tmp_path / "model")), device="cpu")
    search(dual, release, index=tmp_path / "index")
    for folder in (release, tmp_path / "index"):
        files_before = tree(folder)
        with pytest.raises(InputError, match="exists and is not an index of an own encoder"):
            search(encode, release, index=folder)
        assert tree(folder) == files_before


def test_a_run_reuses_the_vectors_of_a_run_over_candidates(
    release: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = write_dual(tmp_path / "model")
    fresh_run = run_model(model, release, index=tmp_path / "fresh", device="cpu", dtype="fp32")
    candidates = search("bm25", release, top_k=2)
    index = tmp_path / "index"
    over_candidates = run_model(model, release, over=candidates, index=index, device="cpu", dtype="fp32")
    candidate_count = over_candidates.manifest["passages_encoded"]
    assert 0 < candidate_count < len(TEXTS)
    encoded_counts: list[int] = []
    original_encode = TextEncoder.encode

    def count_and_encode(self: Any, texts: Any) -> Any:
        encoded_counts.append(len(texts))
        return original_encode(self, texts)

    monkeypatch.setattr(TextEncoder, "encode", count_and_encode)
    full_run = run_model(model, release, index=index, device="cpu", dtype="fp32")
    assert encoded_counts[0] == len(TEXTS) - candidate_count
    assert full_run.rankings == fresh_run.rankings
    for query_id, hits in full_run.hits.items():
        fresh_scores = [score for _, score in fresh_run.hits[query_id]]
        assert [score for _, score in hits] == pytest.approx(fresh_scores, abs=1e-3)


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
    run, reranked, by_length, figures, error_line = run_python(code, tmp_path / "work", environment)
    bm25_run = search("bm25", release)
    assert run == search(encode, release)
    assert reranked == search(SimpleNamespace(encode=encode), release, run=bm25_run)
    assert by_length == search(score_by_length, release, run=bm25_run)
    assert figures == evaluate(fuse([run, bm25_run]), release)
    assert re.fullmatch(r"\w+ is not installed: pip install .*\[models\]\"", error_line)
