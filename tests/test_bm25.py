"""BM25 against Lucene's formula written out here; the kept index; order and ties."""

from __future__ import annotations

import logging
import math
import random
import shutil
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from releases import QUESTIONS, make_release, md5, tables

from baselines import bm25_index
from baselines.bm25 import search
from baselines.bm25_index import Bm25Index, open_index
from baselines.runs import read_run
from baselines.segment import segment_batches, tokens
from builders.command import main
from builders.store import open_release

WORDS = [f"w{n}" for n in range(30)]


def one_byte(length: int) -> int:
    """A passage length as Lucene stores it (SmallFloat.intToByte4 and back): exact below 40, then 4 bits."""
    if length < 24:
        return length
    rest = length - 24
    bits = rest.bit_length()
    if bits < 4:
        return length
    return 24 + (rest >> (bits - 4) << (bits - 4))


def lucene_scores(corpus: dict[str, list[str]], query: list[str]) -> dict[str, float]:
    """BM25, k1 = 1.2, b = 0.75, times k1 + 1; only passages with a word of the query."""
    average = sum(map(len, corpus.values())) / len(corpus)
    counts = {corpus_id: Counter(words) for corpus_id, words in corpus.items()}
    scores: dict[str, float] = {}
    for word in query:  # a word that comes twice counts twice
        holders = [corpus_id for corpus_id, found in counts.items() if word in found]
        idf = math.log(1 + (len(corpus) - len(holders) + 0.5) / (len(holders) + 0.5))
        for corpus_id in holders:
            tf = counts[corpus_id][word]
            norm = 1.2 * (1 - 0.75 + 0.75 * one_byte(len(corpus[corpus_id])) / average)
            scores[corpus_id] = scores.get(corpus_id, 0.0) + 2.2 * idf * tf / (tf + norm)
    return scores


def build(folder: Path, corpus: dict[str, list[str]], workers: int = 1) -> Bm25Index:
    rows = {("corpus", "corpus"): [{"_id": i, "title": "", "text": " ".join(w)} for i, w in corpus.items()]}
    release = open_release(make_release(folder / "release", rows, rows_per_shard=500))
    return open_index(release, folder / "indexes", workers)


def random_corpus(seed: int, passages: int, longest: int) -> dict[str, list[str]]:
    rng = random.Random(seed)
    words = [
        [rng.choice(WORDS[: rng.choice([5, 30])]) for _ in range(rng.randint(1, longest))] for _ in range(passages)
    ]
    return {f"d{rng.getrandbits(40):010x}": found for found in words}


def check_against_lucene(index: Bm25Index, corpus: dict[str, list[str]], query: list[str], top_k: int) -> None:
    """Right scores, right order, nothing better left out; scores that are equal on paper go by id."""
    hits = index.search(query, top_k)
    scores = lucene_scores(corpus, query)
    assert len(hits) == min(top_k, len(scores))
    assert [score for _, score in hits] == pytest.approx([scores[corpus_id] for corpus_id, _ in hits], rel=1e-5)
    rounded = sorted(((-float(f"{score:.5e}"), corpus_id) for corpus_id, score in scores.items()))
    if len({score for score, _ in rounded}) == _distinct(scores):  # no two scores that only rounding tells apart
        assert [corpus_id for corpus_id, _ in hits] == [corpus_id for _, corpus_id in rounded[:top_k]]


def _distinct(scores: dict[str, float]) -> int:
    """Scores are the same where they differ by less than what sums of 64-bit floats lose."""
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


def test_lengths_are_rounded_as_lucene_rounds_them() -> None:
    assert [one_byte(n) for n in (0, 39, 40, 41, 42, 56, 59, 60, 1000)] == [0, 39, 40, 40, 42, 56, 56, 60, 984]


def test_ties_go_by_id_also_where_the_list_is_cut(tmp_path: Path) -> None:
    """500 passages with one score, written in a random order, far more than are fetched at first."""
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
    # Written apart: some engine versions add a query's words in an order that depends on the passages just before.
    index = build(tmp_path, dict(rng.sample(list(corpus.items()), len(corpus))))
    for _ in range(100):
        hits = index.search([rng.choice(WORDS) for _ in range(12)], 100)
        by_group: dict[str, set[float]] = {}
        for corpus_id, score in hits:
            by_group.setdefault(corpus_id.split("-")[1], set()).add(score)
        assert all(len(scores) == 1 for scores in by_group.values())
        assert hits == sorted(hits, key=lambda hit: (-hit[1], hit[0]))


def test_ids_are_right_over_many_batches_and_shards(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bm25_index, "_IDS_BITS", 3)
    index = build(tmp_path, {f"id{n}": [f"word{n}"] for n in range(1_001)})
    assert index.passages == 1_001
    for n in (0, 7, 8, 499, 500, 999, 1_000):
        assert [corpus_id for corpus_id, _ in index.search([f"word{n}"], 5)] == [f"id{n}"]


def test_every_number_of_threads_gives_the_same_run(tmp_path: Path) -> None:
    corpus = random_corpus(7, 2_500, 40)
    rng = random.Random(3)
    queries = [(str(n), " ".join(rng.choices(WORDS, k=rng.randint(1, 6)))) for n in range(300)]
    runs = [
        list(search(build(tmp_path / str(threads), corpus, workers=threads), queries, 10, threads))
        for threads in (1, 3)
    ]
    assert [query for query, _ in runs[0]] == [query for query, _ in queries]
    assert runs[0] == runs[1]


def test_segmentation_in_processes_keeps_the_order() -> None:
    batches = [(n, [f"第{n}次北京的冬天", "，。", "iPhone 手机"]) for n in range(40)]
    alone = list(segment_batches(batches, 1))
    assert alone == list(segment_batches(batches, 2))
    assert alone[3] == (3, ["第 3 次 北京 的 冬天", "", "iphone 手机"])


def test_tokens_are_words_in_lower_case_without_punctuation() -> None:
    assert tokens("北京的冬天，iPhone多少钱？！ ——\u3000\n") == ["北京", "的", "冬天", "iphone", "多少", "钱"]
    assert tokens("…… ？") == []


@pytest.fixture()
def log_lines(caplog: pytest.LogCaptureFixture) -> pytest.LogCaptureFixture:
    caplog.set_level(logging.INFO)
    return caplog


def test_the_index_is_kept_until_the_corpus_changes(tmp_path: Path, log_lines: pytest.LogCaptureFixture) -> None:
    corpus = random_corpus(1, 20, 10)
    first = build(tmp_path, corpus)
    assert "index built" in log_lines.text
    log_lines.clear()
    assert build(tmp_path, corpus).folder == first.folder
    assert "index reused" in log_lines.text
    log_lines.clear()
    changed = build(tmp_path, {**corpus, "new": ["fresh"]})
    assert "index built" in log_lines.text
    assert changed.folder != first.folder
    assert [corpus_id for corpus_id, _ in changed.search(["fresh"], 5)] == ["new"]


@pytest.mark.parametrize("damage", ["missing file", "cut file", "other bytes", "no index.json", "broken index.json"])
def test_a_damaged_index_is_built_again(tmp_path: Path, log_lines: pytest.LogCaptureFixture, damage: str) -> None:
    corpus = random_corpus(1, 20, 10)
    index = build(tmp_path, corpus)
    wanted = index.search(["w1", "w2"], 10)
    store = next(index.folder.glob("*.idx"))  # the postings
    if damage == "missing file":
        store.unlink()
    elif damage == "cut file":
        store.write_bytes(store.read_bytes()[:-5])
    elif damage == "other bytes":
        data = bytearray(store.read_bytes())
        data[len(data) // 3] ^= 1
        store.write_bytes(data)
    elif damage == "no index.json":
        (index.folder / "index.json").unlink()
    else:
        (index.folder / "index.json").write_text("[]")
    log_lines.clear()
    assert build(tmp_path, corpus).search(["w1", "w2"], 10) == wanted
    assert "damaged BM25 index" in log_lines.text
    assert "index built" in log_lines.text


def test_a_build_that_was_stopped_leaves_no_index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    corpus = random_corpus(1, 20, 10)

    def stop(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(bm25_index, "segment_batches", stop)
    with pytest.raises(KeyboardInterrupt):
        build(tmp_path, corpus)
    assert [path.suffix for path in (tmp_path / "indexes").iterdir()] == [".lock"]
    monkeypatch.undo()
    assert build(tmp_path, corpus).passages == 20


def test_the_verb_writes_a_run_and_counts_empty_queries(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = tables()
    rows["queries", "dev"].append({"_id": "empty", "text": "？！"})
    rows["queries", "dev"].append({"_id": "nowhere", "text": "xylophone"})
    make_release(tmp_path / "release", rows)
    argv = ["bm25", "--release", str(tmp_path / "release"), "--out", str(tmp_path / "r.run.gz"), "--threads", "2"]
    argv += ["--index", str(tmp_path / "indexes"), "--top-k", "3"]
    assert main("baselines", "", {"bm25": "baselines.bm25"}, argv) == 0
    out, err = capsys.readouterr()
    assert out == ""
    assert "1 of 4 queries have no token" in err
    assert "Building prefix dict" not in err
    rankings = read_run(tmp_path / "r.run.gz").rankings
    assert list(rankings) == [md5(question) for question in QUESTIONS["dev"]]
    assert [ranking[0] for ranking in rankings.values()] == [row["corpus-id"] for row in rows["qrels", "dev"]]
    assert max(map(len, rankings.values())) <= 3


def test_what_is_missing_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    release = make_release(tmp_path / "release")
    for extra, message in (
        (["--split", "nope"], "has no config 'queries' with a split 'nope'"),
        (["--release", str(tmp_path)], "not a release directory"),
    ):
        argv = ["bm25", "--release", str(release), "--out", str(tmp_path / "r"), "--index", str(tmp_path / "i"), *extra]
        assert main("baselines", "", {"bm25": "baselines.bm25"}, argv) == 1
        assert message in capsys.readouterr().err
    shutil.rmtree(release / "corpus")
    argv = ["bm25", "--release", str(release), "--out", str(tmp_path / "r"), "--index", str(tmp_path / "i")]
    assert main("baselines", "", {"bm25": "baselines.bm25"}, argv) == 1
    assert "listed in the manifest but missing" in capsys.readouterr().err
    assert not (tmp_path / "r").exists()
