"""The Elasticsearch engine with a test server on loopback: the same hits as the numba engine, and every failure."""

import logging
import random
import sys
from pathlib import Path

import pytest
from bm25_corpora import WORDS, hits_of, random_corpus
from commands import Done, run
from elasticsearch_server import Elasticsearch, Fault
from releases import make_release

from baselines.bm25 import engine_elasticsearch as bm25_elasticsearch
from baselines.bm25.bm25_index import IndexedTexts
from baselines.bm25.engine_elasticsearch import ElasticsearchIndex, open_remote
from baselines.bm25.engine_numba import open_index
from builders.core.errors import InputError
from builders.store.reader import Release, open_release
from builders.store.runs import read_run


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    """Repeat refused requests without a pause, and ignore an API key of the machine."""
    monkeypatch.setattr(bm25_elasticsearch, "_PAUSE", 0.001)
    monkeypatch.delenv(bm25_elasticsearch.API_KEY, raising=False)
    caplog.set_level(logging.INFO)


def release_of(folder: Path, corpus: dict[str, list[str]]) -> Release:
    """Write a release with a corpus."""
    rows = [{"_id": corpus_id, "title": "", "text": " ".join(words)} for corpus_id, words in corpus.items()]
    return open_release(make_release(folder, {("corpus", "corpus"): rows}, rows_per_shard=500))


@pytest.fixture()
def release(tmp_path: Path) -> Release:
    return release_of(tmp_path / "release", random_corpus(3, 120, 60))


def hits(index: ElasticsearchIndex) -> list[list[tuple[str, float]]]:
    """Return the hits of 20 queries."""
    rng = random.Random(1)
    queries = [rng.choices(WORDS, k=rng.randint(1, 5)) for _ in range(20)]
    return [index.search(query, 10) for query in queries]


def count_uploads(server: Elasticsearch) -> int:
    """Return the number of requests that have uploaded passages."""
    return len([request for request in server.requests if "_bulk" in request])


@pytest.mark.parametrize(("k1", "b"), [(1.2, 0.75), (0.9, 0.4)])
def test_hits_are_those_of_the_engine_in_this_process(release: Release, tmp_path: Path, k1: float, b: float) -> None:
    local_index = open_index(IndexedTexts(release), tmp_path / "indexes", 1, k1=k1, b=b)
    rng = random.Random(2)
    queries = [("empty", "？")]
    for number in range(100):
        query_words = rng.choices(WORDS, k=rng.randint(1, 6))
        queries.append((str(number), " ".join(query_words)))
    with Elasticsearch() as server:
        remote_hits = hits_of(open_remote(IndexedTexts(release), server.url, 2, k1=k1, b=b), queries, 3)
    for query_id, hits_here in hits_of(local_index, queries, 1).items():
        hits_there = remote_hits[query_id]
        assert [score for _, score in hits_there] == pytest.approx([score for _, score in hits_here], rel=1e-6)
        assert [corpus_id for corpus_id, _ in hits_there] == [corpus_id for corpus_id, _ in hits_here]


def test_an_unchanged_index_is_reused(release: Release, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with Elasticsearch() as server:
        first_index = open_remote(IndexedTexts(release), server.url, 1)
        upload_count = count_uploads(server)
        assert open_remote(IndexedTexts(release), server.url, 1).name == first_index.name
        assert count_uploads(server) == upload_count
        assert "index reused" in caplog.text
        # Another k1 and another corpus need indexes with other names.
        assert open_remote(IndexedTexts(release), server.url, 1, k1=0.9).name != first_index.name
        second_release = release_of(tmp_path / "other", random_corpus(4, 50, 20))
        assert open_remote(IndexedTexts(second_release), server.url, 1).name != first_index.name


def test_an_index_that_is_not_whole_is_built_again(release: Release, caplog: pytest.LogCaptureFixture) -> None:
    with Elasticsearch() as server:
        server.faults = [Fault("PUT .*_bulk", 400)]
        with pytest.raises(InputError, match="HTTP 400: asked for"):
            open_remote(IndexedTexts(release), server.url, 1)
        for _ in range(2):  # first an incomplete index, then an index that has lost a passage
            caplog.clear()
            index = open_remote(IndexedTexts(release), server.url, 1)
            assert "is incomplete; rebuilding the index" in caplog.text
            assert len(server.indexes[index.name].shown) == 120
            server.indexes[index.name].shown.popitem()


@pytest.mark.parametrize("action", [429, 503, "lose", "items"])
def test_a_busy_server_and_lost_answers_change_nothing(release: Release, action: int | str) -> None:
    with Elasticsearch() as server:
        expected_hits = hits(open_remote(IndexedTexts(release), server.url, 1))
    with Elasticsearch() as server:
        server.faults = [Fault("PUT .*_bulk", action, 3)]
        if action != "items":  # only answers to uploads have items
            server.faults.append(Fault("POST .*_msearch", action, 3))
        index = open_remote(IndexedTexts(release), server.url, 2)
        assert hits(index) == expected_hits
        assert not any(fault.times for fault in server.faults)
        assert len(server.indexes[index.name].shown) == 120


def test_a_server_that_stays_busy_is_given_up(release: Release, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bm25_elasticsearch, "_TRIES", 3)
    with Elasticsearch() as server:
        server.faults = [Fault("PUT .*_bulk", "items", 1_000)]
        with pytest.raises(InputError, match="429: queue is full"):
            open_remote(IndexedTexts(release), server.url, 1)
        server.faults = [Fault("GET /", 503, 1_000)]
        with pytest.raises(InputError, match="HTTP 503"):
            open_remote(IndexedTexts(release), server.url, 1)


def test_a_wrong_server_and_no_server_are_one_line(release: Release) -> None:
    opensearch = {"version": {"number": "2.11.0", "distribution": "opensearch"}}
    with Elasticsearch(opensearch, False) as server, pytest.raises(InputError, match="is not Elasticsearch"):
        open_remote(IndexedTexts(release), server.url, 1)
    with pytest.raises(InputError, match=r"http://127.0.0.1:1: .*refused"):
        open_remote(IndexedTexts(release), "127.0.0.1:1", 1)


def test_credentials_are_sent_and_never_printed(
    release: Release, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    with Elasticsearch() as server:
        server.authorization = "Basic dXNlcjpwQHNz"  # user:p@ss
        with pytest.raises(InputError, match=r"HTTP 401: missing authentication credentials \(USER:PASSWORD@"):
            open_remote(IndexedTexts(release), server.url, 1)
        open_remote(IndexedTexts(release), server.url.replace("//", "//user:p%40ss@"), 1)
        assert "p%40ss" not in caplog.text
        server.authorization = "ApiKey abc"
        monkeypatch.setenv(bm25_elasticsearch.API_KEY, "abc")
        open_remote(IndexedTexts(release), server.url, 1)


def bm25(release: Path, *words: object, code: int = 0) -> Done:
    """Search the dev questions of a release. Write the run ``r.run`` beside the release."""
    options = ["--release", release, "--out", release.parent / "r.run", "--engine", "elasticsearch"]
    return run("baselines", "bm25", options, words, code=code)


def test_the_verb_writes_a_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    release = make_release(tmp_path / "release")
    with Elasticsearch() as server:
        bm25(release, "--address", server.url)
    assert len(read_run(tmp_path / "r.run").rankings) == 2
    assert "--engine elasticsearch needs --address URL" in bm25(release, code=2).stderr
    monkeypatch.setitem(sys.modules, "elasticsearch", None)
    monkeypatch.delitem(sys.modules, "baselines.bm25.engine_elasticsearch")
    assert "elasticsearch is not installed: pip" in bm25(release, "--address", server.url, "--again", code=1).error
