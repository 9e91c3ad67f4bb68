"""BM25's scores, order and ties, compared with a direct implementation of Lucene's formula."""

import functools
import math
import random
from collections import Counter
from pathlib import Path

import pyarrow as pa
import pytest
from bm25_corpora import WORDS, build, lucene_scores, one_byte, random_corpus
from hypothesis import given, settings
from hypothesis import strategies as st

from baselines.bm25.engine_numba import FILES, NumbaIndex
from baselines.bm25.engine_numba import write_index as write_postings


def check_against_lucene(
    index: NumbaIndex, corpus: dict[str, list[str]], query: list[str], top_k: int, k1: float = 1.2, b: float = 0.75
) -> None:
    """Check scores, order and completeness of the hits. Equal scores must be sorted by id."""
    hits = index.search(query, top_k)
    scores = lucene_scores(corpus, query, k1, b)
    assert len(hits) == min(top_k, len(scores))
    tolerance = 1e-8 * max(scores.values(), default=0)
    expected = [scores[corpus_id] for corpus_id, _ in hits]
    assert [score for _, score in hits] == pytest.approx(expected, rel=1e-5, abs=tolerance)
    rounded = sorted(((-float(f"{score:.5e}"), corpus_id) for corpus_id, score in scores.items()))
    if len({score for score, _ in rounded}) == _distinct(scores):  # rounding does not merge distinct scores
        assert [corpus_id for corpus_id, _ in hits] == [corpus_id for _, corpus_id in rounded[:top_k]]


def _distinct(scores: dict[str, float]) -> int:
    """Count distinct scores. Differences within the rounding error of 64-bit sums are ignored."""
    falling = sorted(scores.values(), reverse=True)
    return sum(
        not place or above - score > 1e-12 * above
        for place, (above, score) in enumerate(zip([math.inf, *falling], falling, strict=False))
    )


@settings(max_examples=40, deadline=None)
@given(
    seed=st.integers(0, 10**6),
    query=st.lists(st.sampled_from([*WORDS, "unknown"]), min_size=1, max_size=6),
    top_k=st.sampled_from([1, 3, 10, 50]),
    longest=st.sampled_from([4, 30, 300]),
)
def test_scores_and_order_are_lucenes(
    tmp_path_factory: pytest.TempPathFactory, seed: int, query: list[str], top_k: int, longest: int
) -> None:
    corpus = random_corpus(seed, 60, longest)
    check_against_lucene(build(tmp_path_factory.mktemp("bm25"), corpus), corpus, query, top_k)


@pytest.mark.parametrize(("k1", "b"), [(1.2, 0.75), (0.9, 0.4), (0, 0.5), (2, 1), (1.6, 0), (50, 0.3)])
def test_any_k1_and_b_from_one_index(tmp_path: Path, k1: float, b: float) -> None:
    corpus = random_corpus(11, 400, 60)
    rng = random.Random(5)
    index = build(tmp_path, corpus, k1=k1, b=b)
    for _ in range(40):
        query = rng.choices([*WORDS, "unknown"], k=rng.randint(1, 9))
        check_against_lucene(index, corpus, query, rng.choice([1, 10, 1_000]), k1, b)


@functools.cache
def zipf_corpus(passages: int) -> dict[str, list[str]]:
    """A corpus with frequent words, thousands of rare words, empty passages, and words repeated hundreds of times."""
    rng = random.Random(passages)
    corpus = {f"d{n:05d}": [f"z{int(rng.paretovariate(0.4)) % 5_000}" for _ in range(n % 40)] for n in range(passages)}
    corpus["many"] = ["z1"] * 300 + ["z2"] * 255 + ["z3"] * 254 + ["z4"] * 70_000
    corpus["more"] = ["z1"] * 301 + ["z2"] * 256
    return dict(rng.sample(list(corpus.items()), len(corpus)))


def test_chunks_and_terms_that_are_only_looked_up_leave_nothing_out(tmp_path: Path) -> None:
    corpus = zipf_corpus(70_000)
    postings = tmp_path / "postings"
    postings.mkdir()
    write_postings(postings, (" ".join(words) for words in corpus.values()), [pa.array(list(corpus))], 2)
    index = NumbaIndex(postings, 1.2, 0.75, 2)
    assert index.passages == 70_002
    inverted: dict[str, dict[str, int]] = {}
    for corpus_id, words in corpus.items():
        for word, times in Counter(words).items():
            inverted.setdefault(word, {})[corpus_id] = times
    filled = [words for words in corpus.values() if words]
    average = sum(map(len, filled)) / len(filled)
    norms = {corpus_id: 1.2 * (0.25 + 0.75 * one_byte(len(words)) / average) for corpus_id, words in corpus.items()}
    rng = random.Random(9)
    for _ in range(12):
        query = [f"z{int(rng.paretovariate(0.3)) % 5_000}" for _ in range(rng.randint(1, 8))]
        scores: Counter[str] = Counter()
        for word in query:
            holders = inverted.get(word, {})
            idf = math.log(1 + (len(filled) - len(holders) + 0.5) / (len(holders) + 0.5))
            for corpus_id, tf in holders.items():
                scores[corpus_id] += idf * tf / (tf + norms[corpus_id])  # type: ignore[assignment]
        for top_k in (1, 50, 1_000):
            hits = index.search(query, top_k)
            assert hits == sorted(hits, key=lambda hit: (-hit[1], hit[0]))
            best = sorted(scores.values(), reverse=True)[:top_k]
            assert [score for _, score in hits] == pytest.approx(best, rel=1e-6, abs=1e-7)
            assert [scores[corpus_id] for corpus_id, _ in hits] == pytest.approx(best, rel=1e-6, abs=1e-7)


def test_every_number_of_threads_writes_the_same_postings(tmp_path: Path) -> None:
    corpus = zipf_corpus(70_000)
    texts = [" ".join(words) for words in corpus.values()]
    for threads in (1, 3):
        (tmp_path / str(threads)).mkdir()
        write_postings(tmp_path / str(threads), texts, [pa.array(list(corpus))], threads)
    names = sorted(path.name for path in (tmp_path / "1").iterdir())
    assert names == sorted(path.name for path in (tmp_path / "3").iterdir()) == sorted([*FILES, "ids", "ids.ends"])
    for name in names:
        assert (tmp_path / "1" / name).read_bytes() == (tmp_path / "3" / name).read_bytes()


def test_passages_without_a_token_are_never_found(tmp_path: Path) -> None:
    assert build(tmp_path / "all", {"a": [], "b": []}).search(["x"], 5) == []
    index = build(tmp_path / "some", {"a": [], "b": ["x"], "c": []})
    assert (index.passages, [corpus_id for corpus_id, _ in index.search(["x", "y"], 5)]) == (3, ["b"])


def test_ties_go_by_id_also_where_the_list_is_cut(tmp_path: Path) -> None:
    """500 passages with the same score are written in random order. This is far more than the first fetch."""
    ids = [f"{n:03d}" for n in range(500)]
    random.Random(1).shuffle(ids)
    index = build(tmp_path, {**{i: ["same", "words"] for i in ids}, "best": ["same", "same"], "z": ["rare", "x"]})
    hits = index.search(["same"], 20)
    assert [corpus_id for corpus_id, _ in hits] == ["best", *(f"{n:03d}" for n in range(19))]
    assert len({score for _, score in hits}) == 2
    assert [corpus_id for corpus_id, _ in index.search(["same", "rare"], 2)] == ["z", "best"]


def test_passages_of_the_same_words_tie_whatever_the_order_of_their_words(tmp_path: Path) -> None:
    rng = random.Random(5)
    corpus: dict[str, list[str]] = {}
    for group in range(1_500):
        words = [WORDS[min(29, int(rng.expovariate(1 / 8)))] for _ in range(rng.randint(5, 80))]
        for _ in range(4):
            rng.shuffle(words)
            corpus[f"{rng.getrandbits(40):010x}-{group}"] = words[:]
    # Shuffle the groups, because some engine versions add a query's words in an order set by the preceding passages.
    index = build(tmp_path, dict(rng.sample(list(corpus.items()), len(corpus))))
    for _ in range(100):
        hits = index.search([rng.choice(WORDS) for _ in range(12)], 100)
        by_group: dict[str, set[float]] = {}
        for corpus_id, score in hits:
            by_group.setdefault(corpus_id.split("-")[1], set()).add(score)
        assert all(len(scores) == 1 for scores in by_group.values())
        assert hits == sorted(hits, key=lambda hit: (-hit[1], hit[0]))
