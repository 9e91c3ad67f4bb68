"""Embeddings and search equal sentence-transformers' and the model's order; tokens are prefetched; errors."""

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
from baselines.retrieve.encoder import Prefetcher, TextEncoder, batches
from baselines.retrieve.index_files import open_vectors
from baselines.retrieve.models import fingerprint, open_cross, open_encoder
from builders.core.jobs import WorkerDied
from builders.store.runs import read_run

pytestmark = pytest.mark.usefixtures("own_cache")


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    torch.set_num_threads(1)
    folder = tmp_path_factory.mktemp("models")
    write_dual(folder / "dot")
    write_dual(folder / "short", query_length=16)
    write_dual(folder / "other", seed=5)
    write_dual(folder / "router", similarity="cosine", router=True, prompts={"query": "问：", "document": "煮饺子："})
    write_cross(folder / "cross")
    write_cross(folder / "three", labels=3)
    return folder


def texts_of_all_lengths(count: int) -> list[str]:
    rng = random.Random(count)
    characters = "".join(TEXTS)
    texts = {"".join(rng.choices(characters, k=rng.choice([1, 8, 60, 200, 600]))) for _ in range(2 * count)}
    return sorted(texts)[:count]


def release_of(path: Path, texts: list[str]) -> Path:
    return make_release(path, tables([*TEXTS, *texts]), rows_per_shard=50)


def encode(*words: object, code: int = 0) -> Done:
    return run("baselines", "encode", *words, code=code)


@pytest.mark.slow
@pytest.mark.parametrize("model", ["dot", "router"])
def test_rows_are_what_sentence_transformers_gives(tmp_path: Path, models: Path, model: str) -> None:
    texts = [*TEXTS, *texts_of_all_lengths(150)]
    release = release_of(tmp_path / "release", texts[len(TEXTS) :])
    reference = SentenceTransformer(str(models / model), device="cpu")
    cosine = model == "router"
    options = ["--release", release, "--model", models / model]
    encode(*options, "--out", tmp_path / "p", "--shard-rows", "64", "--batch-tokens", "2000")
    passages = open_vectors(tmp_path / "p")
    assert [shard["rows"] for shard in passages.manifest["shards"]] == [64, 64, 28]
    expected = reference.encode_document(texts, normalize_embeddings=cosine, batch_size=1)
    np.testing.assert_allclose(passages.all().astype(np.float32), expected, atol=1e-3, rtol=1e-3)
    encode(*options, "--out", tmp_path / "q", "--queries", "--split", "train")
    expected = reference.encode_query(QUESTIONS["train"], normalize_embeddings=cosine, batch_size=1)
    np.testing.assert_allclose(open_vectors(tmp_path / "q").all().astype(np.float32), expected, atol=1e-3, rtol=1e-3)
    content = (tmp_path / "p" / "manifest.json").read_text()
    assert str(tmp_path) not in content and str(models) not in content
    options += ["--shard-rows", "64", "--batch-tokens", "2000", "--device", "cpu,cpu"]
    encode(*options, "--out", tmp_path / "two")
    for path in (tmp_path / "two").iterdir():
        assert path.read_bytes() == (tmp_path / "p" / path.name).read_bytes()


def test_damaged_embeddings_are_encoded_again(tmp_path: Path, models: Path) -> None:
    release = release_of(tmp_path / "release", [])
    words = ["--release", release, "--model", models / "dot", "--out", tmp_path / "p", "--shard-rows", "4"]
    encode(*words)
    whole = {path.name: path.read_bytes() for path in (tmp_path / "p").iterdir()}
    shard = tmp_path / "p" / "passages-00001-of-00002.npy"
    shard.write_bytes(bytes(reversed(whole[shard.name])))
    assert f"damaged ({shard.name} has the SHA-256" in encode(*words).stderr
    assert {path.name: path.read_bytes() for path in (tmp_path / "p").iterdir()} == whole


def test_passages_cut_at_a_length_are_searched_by_queries_of_the_same_model(tmp_path: Path, models: Path) -> None:
    texts = [*TEXTS, *texts_of_all_lengths(20)]
    options = ["--release", release_of(tmp_path / "release", texts[len(TEXTS) :]), "--model", models / "router"]
    encode(*options, "--out", tmp_path / "p", "--max-length", "20")
    reference = SentenceTransformer(str(models / "router"), device="cpu")
    for tower in reference[0].sub_modules.values():
        tower[0].document_length = 20
    expected = reference.encode_document(texts, normalize_embeddings=True, batch_size=1)
    np.testing.assert_allclose(open_vectors(tmp_path / "p").all().astype(np.float32), expected, atol=1e-3, rtol=1e-3)
    search = ["search", *options, "--split", "dev", "--passages", tmp_path / "p", "--out", tmp_path / "run"]
    run("baselines", *search)


def test_vectors_above_16_bits_are_refused(tmp_path: Path, models: Path) -> None:
    model = SentenceTransformer(str(models / "dot"), device="cpu")
    with torch.no_grad():
        for layer in model.transformers_model.encoder.layer:
            layer.output.LayerNorm.weight.mul_(1e6)
    model.save_pretrained(str(tmp_path / "large"))
    release = release_of(tmp_path / "release", [])
    done = encode("--release", release, "--model", tmp_path / "large", "--out", tmp_path / "p", code=1)
    assert "numbers that are too large for 16 bits" in done.stderr


def test_a_fingerprint_changes_with_weights_and_settings_only(tmp_path: Path, models: Path) -> None:
    dot = fingerprint(open_encoder(ModelSettings(str(models / "dot"))))
    SentenceTransformer(str(models / "dot"), device="cpu").save_pretrained(str(tmp_path / "copy"))
    assert fingerprint(open_encoder(ModelSettings(str(tmp_path / "copy")))) == dot
    others = [fingerprint(open_encoder(ModelSettings(str(models / name)))) for name in ("short", "other", "router")]
    others.append(fingerprint(open_cross(ModelSettings(str(models / "cross")))))
    assert len({dot, *others}) == 5


@given(
    sizes=st.lists(st.integers(0, 5_000), min_size=1, max_size=300),
    longest=st.integers(3, 512),
    tokens=st.integers(1, 20_000),
)
def test_batches_hold_every_text_once_within_their_tokens(sizes: list[int], longest: int, tokens: int) -> None:
    found = [places.tolist() for places in batches(np.array(sizes), longest, tokens)]
    assert sorted(place for places in found for place in places) == list(range(len(sizes)))
    expected = [[min(sizes[place] // 3 + 2, longest) for place in places] for places in found]
    assert all(len(each) == 1 or len(each) * max(each) <= tokens for each in expected)
    assert [sizes[place] for places in found for place in places] == sorted(sizes, reverse=True)


def passage_texts() -> list[str]:
    return [*TEXTS, *(f"{one}{two}{three}" for one in TEXTS for two in TEXTS for three in TEXTS[:4])][:120]


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Path:
    torch.set_num_threads(1)
    folder = tmp_path_factory.mktemp("world")
    texts = passage_texts()
    some = {("sample-30", "corpus"): [{"_id": md5(text)} for text in texts[1::4]]}
    make_release(folder / "release", tables(texts) | some, rows_per_shard=50)
    make_release(folder / "other-release", tables(texts[:50]), rows_per_shard=50)
    write_dual(folder / "model", similarity="cosine")
    write_dual(folder / "other-model", similarity="cosine", seed=1)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(folder / "cache"))
        asked = ["--queries", "--split", "train"]
        for words in (
            ["--release", "release", "--model", "model", "--out", "passages", "--shard-rows", "37"],
            ["--release", "release", "--model", "model", "--out", "queries", *asked],
            ["--release", "release", "--model", "other-model", "--out", "q-other-model", *asked],
            ["--release", "other-release", "--model", "model", "--out", "p-other-release"],
        ):
            encode(*(w if w.startswith("--") or w in ("37", "train") else folder / w for w in words))
    return folder


def search(world: Path, out: Path, *words: object, code: int = 0) -> Done:
    first = ["--release", world / "release", "--split", "train", "--passages", world / "passages", "--out", out]
    return run("baselines", "search", *first, *words, code=code)


def test_a_sample_gives_what_the_whole_ranks_but_for_the_other_passages(world: Path, tmp_path: Path) -> None:
    queries = ["--queries", world / "queries"]
    search(world, tmp_path / "all.run", *queries, "--top-k", "120")
    search(world, tmp_path / "some.run", *queries, "--top-k", "7", "--sample", "sample-30")
    chosen = {md5(text) for text in passage_texts()[1::4]}
    every, some = read_run(tmp_path / "all.run").hits, read_run(tmp_path / "some.run").hits
    assert some == {query: [hit for hit in hits if hit[0] in chosen][:7] for query, hits in every.items()}
    search(world, tmp_path / "x.run", *queries, "--sample", "sample-9", code=1)


def test_a_run_is_what_the_model_says(world: Path, tmp_path: Path) -> None:
    search(world, tmp_path / "a.run", "--model", world / "model", "--top-k", "7")
    search(world, tmp_path / "b.run", "--queries", world / "queries", "--top-k", "7", "--engine", "torch")
    assert (tmp_path / "a.run").read_bytes() == (tmp_path / "b.run").read_bytes()
    run = read_run(tmp_path / "a.run")
    assert list(run.hits) == [md5(question) for question in QUESTIONS["train"]]
    model = SentenceTransformer(str(world / "model"), device="cpu")
    texts = passage_texts()
    scores = model.similarity(model.encode_query(QUESTIONS["train"]), model.encode_document(texts)).numpy()
    by_id = {md5(text): place for place, text in enumerate(texts)}
    for row, hits in zip(scores, run.hits.values(), strict=True):
        assert len(hits) == 7
        assert [score for _, score in hits] == pytest.approx(sorted(row, reverse=True)[:7], abs=1e-3)
        assert [row[by_id[corpus]] for corpus, _ in hits] == pytest.approx([score for _, score in hits], abs=1e-3)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--model", "WORLD/other-model"], "is not the model that encoded"),
        (["--queries", "WORLD/passages"], "has the passages of corpus/corpus; expected the queries of queries/train"),
        (["--queries", "WORLD/queries", "--passages", "WORLD/p-other-release"], "was encoded from another release"),
        (["--queries", "WORLD/queries", "--passages", "WORLD/none"], "not a directory of embeddings"),
    ],
)
def test_what_does_not_fit_together_is_one_error(world: Path, tmp_path: Path, words: list[str], message: str) -> None:
    done = search(world, tmp_path / "a.run", *(word.replace("WORLD", str(world)) for word in words), code=1)
    assert message in error_of(done)
    assert not (tmp_path / "a.run").exists()


def test_without_faiss_exact_search_is_torchs(world: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    search(world, tmp_path / "a.run", "--queries", world / "queries")
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
def few_are_many(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("baselines.retrieve.encoder.MANY", 1)


def workers() -> set[int | None]:
    return {worker.pid for worker in multiprocessing.active_children()}


@pytest.mark.usefixtures("few_are_many")
def test_processes_give_the_bits_that_a_thread_gives_and_are_kept(encoder: TextEncoder) -> None:
    texts = [*TEXTS, *("".join(TEXTS)[place : place + 90] for place in range(60))]
    expected = TextEncoder(encoder.model, "document", 300).encode(texts)
    assert (encoder.encode(texts) == expected).all()
    running = workers()
    assert (encoder.encode(texts[::-1]) == expected[::-1]).all()  # the next chunk, by the same processes
    assert len(running) >= 2 and workers() == running


@pytest.mark.slow
@pytest.mark.usefixtures("few_are_many")
@pytest.mark.parametrize(("kind", "most"), [("thread", 8), ("processes", 5)])
def test_a_bounded_number_of_batches_is_tokenised_ahead(encoder: TextEncoder, kind: str, most: int) -> None:
    taken: list[int] = []

    def batches() -> Iterator[list[str]]:
        for number in range(40):
            taken.append(number)
            yield [TEXTS[number % len(TEXTS)]]

    ahead = encoder._prefetcher if kind == "processes" else Prefetcher(encoder.model, {"task": "document"})
    for number, found in enumerate(ahead(batches())):
        assert found.keys() == ahead.tokens([TEXTS[0]]).keys()
        assert torch.equal(found["input_ids"], ahead.tokens([TEXTS[number % len(TEXTS)]])["input_ids"])
        assert len(taken) - number <= most
    assert len(taken) == 40


@pytest.mark.usefixtures("few_are_many")
def test_a_killed_tokenizer_is_a_worker_that_died(encoder: TextEncoder) -> None:
    ahead = encoder._prefetcher(iter([text] for text in TEXTS * 50))
    next(ahead)
    for process in list(encoder._prefetcher._pool._processes):  # an idle process would not be noticed
        os.kill(process, signal.SIGKILL)
    with pytest.raises(WorkerDied):
        list(ahead)
