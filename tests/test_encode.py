"""Embeddings and search equal sentence-transformers' and the model's order; tokens are prefetched; errors."""

import itertools
import multiprocessing
import os
import random
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from commands import Done, error_of, run
from hypothesis import given
from hypothesis import strategies as st
from releases import QUESTIONS, TEXTS, make_release, md5, tables
from sentence_transformers import SentenceTransformer
from tiny_models import write_cross, write_dual

from baselines.core.settings import ModelSettings
from baselines.retrieve.encoder import Prefetcher, TextEncoder, batches_by_length
from baselines.retrieve.index_files import open_vectors
from baselines.retrieve.models import model_fingerprint, open_cross, open_encoder
from builders.core.jobs import WorkerDied
from builders.store.runs import read_run

pytestmark = pytest.mark.usefixtures("own_cache")


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with dual-encoders of several settings and weights, and cross-encoders."""
    torch.set_num_threads(1)
    models_folder = tmp_path_factory.mktemp("models")
    write_dual(models_folder / "dot")
    write_dual(models_folder / "short", query_length=16)
    write_dual(models_folder / "other", seed=5)
    write_dual(
        models_folder / "router", similarity="cosine", router=True, prompts={"query": "问：", "document": "煮饺子："}
    )
    write_cross(models_folder / "cross")
    write_cross(models_folder / "three", labels=3)
    return models_folder


def texts_of_all_lengths(count: int) -> list[str]:
    """Return distinct texts of 1 to 600 random characters."""
    rng = random.Random(count)
    characters = "".join(TEXTS)
    texts = set()
    for _ in range(2 * count):  # enough, because few short texts are equal
        length = rng.choice([1, 8, 60, 200, 600])
        texts.add("".join(rng.choices(characters, k=length)))
    return sorted(texts)[:count]


def release_of(path: Path, texts: list[str]) -> Path:
    """Write a release whose corpus has these texts."""
    return make_release(path, tables(texts), rows_per_shard=50)


def assert_vectors_are_close(folder: Path, expected: np.ndarray) -> None:
    """Compare embeddings, which have 16 bits, with vectors of sentence-transformers."""
    np.testing.assert_allclose(open_vectors(folder).all().astype(np.float32), expected, atol=1e-3, rtol=1e-3)


def contents(folder: Path) -> dict[str, bytes]:
    """Return the bytes of each file."""
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def encode(*words: object, code: int = 0) -> Done:
    """Run the verb encode."""
    return run("baselines", "encode", words, code=code)


@pytest.mark.slow
@pytest.mark.parametrize("model", ["dot", "router"])
def test_rows_are_what_sentence_transformers_gives(tmp_path: Path, models: Path, model: str) -> None:
    texts = TEXTS + texts_of_all_lengths(150)
    release = release_of(tmp_path / "release", texts)
    reference = SentenceTransformer(str(models / model), device="cpu")
    cosine = model == "router"
    options = ["--release", release, "--model", models / model, "--shard-rows", "64", "--batch-tokens", "2000"]
    encode(*options, "--out", tmp_path / "p")
    manifest = open_vectors(tmp_path / "p").manifest
    assert [shard["rows"] for shard in manifest["shards"]] == [64, 64, 28]
    passage_vectors = reference.encode_document(texts, normalize_embeddings=cosine, batch_size=1)
    assert_vectors_are_close(tmp_path / "p", passage_vectors)
    content = (tmp_path / "p" / "manifest.json").read_text()
    assert str(tmp_path) not in content and str(models) not in content
    # Two processes write the same bytes.
    encode(*options, "--out", tmp_path / "two", "--device", "cpu,cpu")
    for name, file_bytes in contents(tmp_path / "two").items():
        assert file_bytes == (tmp_path / "p" / name).read_bytes()


@pytest.mark.slow
@pytest.mark.parametrize("model", ["dot", "router"])
def test_vectors_of_queries_are_what_sentence_transformers_gives(tmp_path: Path, models: Path, model: str) -> None:
    release = release_of(tmp_path / "release", TEXTS)
    reference = SentenceTransformer(str(models / model), device="cpu")
    out = tmp_path / "q"
    encode("--release", release, "--model", models / model, "--out", out, "--queries", "--split", "train")
    cosine = model == "router"
    query_vectors = reference.encode_query(QUESTIONS["train"], normalize_embeddings=cosine, batch_size=1)
    assert_vectors_are_close(out, query_vectors)


def test_queries_do_not_replace_passages(tmp_path: Path, models: Path) -> None:
    release = release_of(tmp_path / "release", TEXTS)
    out = tmp_path / "p"
    words = ["--release", release, "--model", models / "dot", "--out", out]
    encode(*words)
    contents_before = contents(out)
    done = run("baselines", "encode", *words, "--device", "cpu", "--queries", "--split", "train", code=1)
    assert f"{out}: has embeddings of passages; choose another directory" in done.stderr
    assert contents(out) == contents_before


def test_damaged_embeddings_are_encoded_again(tmp_path: Path, models: Path) -> None:
    release = release_of(tmp_path / "release", TEXTS)
    out = tmp_path / "p"
    words = ["--release", release, "--model", models / "dot", "--out", out, "--shard-rows", "4"]
    encode(*words)
    contents_before = contents(out)
    shard = out / "passages-00001-of-00002.npy"
    shard.write_bytes(bytes(reversed(shard.read_bytes())))
    assert f"damaged ({shard.name} has the SHA-256" in encode(*words).stderr
    assert contents(out) == contents_before


def test_passages_cut_at_a_length_are_searched_by_queries_of_the_same_model(tmp_path: Path, models: Path) -> None:
    texts = TEXTS + texts_of_all_lengths(20)
    release = release_of(tmp_path / "release", texts)
    model_folder = models / "router"
    encode("--release", release, "--model", model_folder, "--out", tmp_path / "p", "--max-length", "20")
    reference = SentenceTransformer(str(model_folder), device="cpu")
    for tower in reference[0].sub_modules.values():
        tower[0].document_length = 20
    passage_vectors = reference.encode_document(texts, normalize_embeddings=True, batch_size=1)
    assert_vectors_are_close(tmp_path / "p", passage_vectors)
    options = ["--split", "dev", "--passages", tmp_path / "p", "--out", tmp_path / "run"]
    run("baselines", "search", "--release", release, "--model", model_folder, options)


def test_vectors_above_16_bits_are_refused(tmp_path: Path, models: Path) -> None:
    model = SentenceTransformer(str(models / "dot"), device="cpu")
    # The largest number of 16 bits is 65,504.
    with torch.no_grad():
        for layer in model.transformers_model.encoder.layer:
            layer.output.LayerNorm.weight.mul_(1e6)
    model.save_pretrained(str(tmp_path / "large"))
    release = release_of(tmp_path / "release", TEXTS)
    done = encode("--release", release, "--model", tmp_path / "large", "--out", tmp_path / "p", code=1)
    assert "numbers that are too large for 16 bits" in done.stderr


def test_a_fingerprint_changes_with_weights_and_settings_only(tmp_path: Path, models: Path) -> None:
    def encoder_fingerprint(folder: Path) -> str:
        return model_fingerprint(open_encoder(ModelSettings(str(folder))))

    dot_fingerprint = encoder_fingerprint(models / "dot")
    SentenceTransformer(str(models / "dot"), device="cpu").save_pretrained(str(tmp_path / "copy"))
    assert encoder_fingerprint(tmp_path / "copy") == dot_fingerprint
    fingerprints = {dot_fingerprint, model_fingerprint(open_cross(ModelSettings(str(models / "cross"))))}
    for name in ("short", "other", "router"):
        fingerprints.add(encoder_fingerprint(models / name))
    assert len(fingerprints) == 5


@given(
    sizes=st.lists(st.integers(0, 5_000), min_size=1, max_size=300),
    longest=st.integers(3, 512),
    tokens=st.integers(1, 20_000),
)
def test_batches_hold_every_text_once_within_their_tokens(sizes: list[int], longest: int, tokens: int) -> None:
    rows_of_batches = []
    for rows in batches_by_length(np.array(sizes), longest, tokens):
        rows_of_batches += rows.tolist()
        # A text of n bytes has about n / 3 characters, and two special tokens. The longest text pads all others.
        longest_text = max(min(sizes[row] // 3 + 2, longest) for row in rows)
        assert len(rows) == 1 or len(rows) * longest_text <= tokens
    assert sorted(rows_of_batches) == list(range(len(sizes)))
    assert [sizes[row] for row in rows_of_batches] == sorted(sizes, reverse=True)


def passage_texts() -> list[str]:
    """Return 120 texts: those of all releases, and every three of them in a row."""
    triples = itertools.product(TEXTS, TEXTS, TEXTS[:4])
    return (TEXTS + ["".join(triple) for triple in triples])[:120]


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with two releases, two models and embeddings, and with a sample of every fourth passage."""
    torch.set_num_threads(1)
    folder = tmp_path_factory.mktemp("world")
    texts = passage_texts()
    rows = tables(texts)
    rows["sample-30", "corpus"] = [{"_id": md5(text)} for text in texts[1::4]]
    make_release(folder / "release", rows, rows_per_shard=50)
    make_release(folder / "other-release", tables(texts[:50]), rows_per_shard=50)
    write_dual(folder / "model", similarity="cosine")
    write_dual(folder / "other-model", similarity="cosine", seed=1)

    def encode_in_folder(release: str, model: str, out: str, *options: str) -> None:
        encode("--release", folder / release, "--model", folder / model, "--out", folder / out, *options)

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(folder / "cache"))
        encode_in_folder("release", "model", "passages", "--shard-rows", "37")
        encode_in_folder("release", "model", "queries", "--queries", "--split", "train")
        encode_in_folder("release", "other-model", "q-other-model", "--queries", "--split", "train")
        encode_in_folder("other-release", "model", "p-other-release")
    return folder


def search(world: Path, out: Path, *words: object, code: int = 0) -> Done:
    """Search the embeddings of the passages for the training queries."""
    options = ["--release", world / "release", "--split", "train", "--passages", world / "passages", "--out", out]
    return run("baselines", "search", options, words, code=code)


def test_a_sample_gives_what_the_whole_ranks_but_for_the_other_passages(world: Path, tmp_path: Path) -> None:
    search(world, tmp_path / "all.run", "--queries", world / "queries", "--top-k", "120")
    options = ["--queries", world / "queries", "--top-k", "7", "--sample"]
    search(world, tmp_path / "sample.run", *options, "sample-30")
    sample_ids = {md5(text) for text in passage_texts()[1::4]}
    expected_hits = {}
    for query_id, hits in read_run(tmp_path / "all.run").hits.items():
        expected_hits[query_id] = [hit for hit in hits if hit[0] in sample_ids][:7]
    assert read_run(tmp_path / "sample.run").hits == expected_hits
    search(world, tmp_path / "x.run", *options, "sample-9", code=1)


def test_a_run_is_what_the_model_says(world: Path, tmp_path: Path) -> None:
    search(world, tmp_path / "a.run", "--model", world / "model", "--top-k", "7")
    search(world, tmp_path / "b.run", "--queries", world / "queries", "--top-k", "7", "--engine", "torch")
    assert (tmp_path / "a.run").read_bytes() == (tmp_path / "b.run").read_bytes()
    hits_by_query = read_run(tmp_path / "a.run").hits
    assert list(hits_by_query) == [md5(question) for question in QUESTIONS["train"]]
    model = SentenceTransformer(str(world / "model"), device="cpu")
    texts = passage_texts()
    scores = model.similarity(model.encode_query(QUESTIONS["train"]), model.encode_document(texts)).numpy()
    row_of_passage = {md5(text): row for row, text in enumerate(texts)}
    for model_scores, hits in zip(scores, hits_by_query.values(), strict=True):
        assert len(hits) == 7
        assert [score for _, score in hits] == pytest.approx(sorted(model_scores, reverse=True)[:7], abs=1e-3)
        # Passages with nearly equal scores may change places, so their scores are compared and not their ids.
        for passage_id, score in hits:
            assert model_scores[row_of_passage[passage_id]] == pytest.approx(score, abs=1e-3)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"--model": "other-model"}, "is not the model that encoded"),
        ({"--queries": "passages"}, "has the passages of corpus/corpus; expected the queries of queries/train"),
        ({"--queries": "queries", "--passages": "p-other-release"}, "was encoded from another release"),
        ({"--queries": "queries", "--passages": "none"}, "not a directory of embeddings"),
    ],
)
def test_what_does_not_fit_together_is_one_error(
    world: Path, tmp_path: Path, options: dict[str, str], message: str
) -> None:
    words: list[object] = []
    for option, name in options.items():
        words += [option, world / name]
    done = search(world, tmp_path / "a.run", *words, code=1)
    assert message in error_of(done)
    assert not (tmp_path / "a.run").exists()


def test_without_faiss_exact_search_is_torchs(world: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    search(world, tmp_path / "a.run", "--queries", world / "queries")
    # Neither is faiss found, nor can it be imported.
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    monkeypatch.setitem(sys.modules, "faiss", None)
    search(world, tmp_path / "b.run", "--queries", world / "queries")
    assert (tmp_path / "a.run").read_bytes() == (tmp_path / "b.run").read_bytes()
    done = search(world, tmp_path / "c.run", "--queries", world / "queries", "--engine", "faiss", code=1)
    assert "faiss is not installed: pip install" in done.stderr


@pytest.fixture(scope="module")
def encoder(models: Path) -> TextEncoder:
    """A prefetcher with two processes, which take seconds to start."""
    return TextEncoder(open_encoder(ModelSettings(str(models / "router"))), "document", 300, 2)


@pytest.fixture
def few_texts_use_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Start tokenizing processes for any number of texts. Usually, a thread is enough for few texts."""
    monkeypatch.setattr("baselines.retrieve.encoder.MANY", 1)


def worker_pids() -> set[int | None]:
    """Return the ids of this process's running children."""
    return {process.pid for process in multiprocessing.active_children()}


@pytest.mark.usefixtures("few_texts_use_processes")
def test_processes_give_the_bits_that_a_thread_gives_and_are_kept(encoder: TextEncoder) -> None:
    all_characters = "".join(TEXTS)
    texts = TEXTS + [all_characters[start : start + 90] for start in range(60)]
    expected = TextEncoder(encoder.model, "document", 300).encode(texts)
    assert (encoder.encode(texts) == expected).all()
    running = worker_pids()
    assert (encoder.encode(texts[::-1]) == expected[::-1]).all()  # the next chunk, by the same processes
    assert len(running) >= 2 and worker_pids() == running


@pytest.mark.slow
@pytest.mark.usefixtures("few_texts_use_processes")
@pytest.mark.parametrize(("kind", "most_ahead"), [("thread", 8), ("processes", 5)])
def test_a_bounded_number_of_batches_is_tokenised_ahead(encoder: TextEncoder, kind: str, most_ahead: int) -> None:
    fetched_count = 0

    def text_batches() -> Iterator[list[str]]:
        nonlocal fetched_count
        for number in range(40):
            fetched_count += 1
            yield [TEXTS[number % len(TEXTS)]]

    prefetcher = encoder._prefetcher if kind == "processes" else Prefetcher(encoder.model, {"task": "document"})
    for number, tokens in enumerate(prefetcher(text_batches())):
        assert tokens.keys() == prefetcher.tokens([TEXTS[0]]).keys()
        assert torch.equal(tokens["input_ids"], prefetcher.tokens([TEXTS[number % len(TEXTS)]])["input_ids"])
        assert fetched_count - number <= most_ahead
    assert fetched_count == 40


@pytest.mark.usefixtures("few_texts_use_processes")
def test_a_killed_tokenizer_is_a_worker_that_died(encoder: TextEncoder) -> None:
    token_batches = encoder._prefetcher(iter([text] for text in TEXTS * 50))
    next(token_batches)
    for process_id in list(encoder._prefetcher._pool._processes):  # an idle process would not be noticed
        os.kill(process_id, signal.SIGKILL)
    with pytest.raises(WorkerDied):
        list(token_batches)
