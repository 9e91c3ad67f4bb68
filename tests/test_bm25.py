"""BM25 against Lucene's formula written out here; the kept index; order and ties."""

from __future__ import annotations

import logging
import math
import random
import shutil
from collections import Counter
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from releases import QUESTIONS, make_release, md5, tables

from baselines.bm25 import index as bm25_index
from baselines.bm25 import postings as bm25_postings
from baselines.bm25 import read_queries, search
from baselines.bm25.engine_numba import NumbaIndex
from baselines.bm25.engine_tantivy import TantivyIndex
from baselines.bm25.index import KeptIndex, open_index, write_ids
from baselines.bm25.postings import FILES
from baselines.bm25.postings import build as write_postings
from baselines.bm25.tokens import segment_batches, tokens
from baselines.runs.run_file import read_run
from builders.common.command import InputError, main
from builders.store.reader import open_release

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


def lucene_scores(corpus: dict[str, list[str]], query: list[str], k1: float = 1.2, b: float = 0.75) -> dict[str, float]:
    """Lucene's BM25 of the passages with a word of the query."""
    corpus = {corpus_id: words for corpus_id, words in corpus.items() if words}  # Lucene counts those with a word
    average = sum(map(len, corpus.values())) / len(corpus)
    counts = {corpus_id: Counter(words) for corpus_id, words in corpus.items()}
    scores: dict[str, float] = {}
    for word in query:  # a word that comes twice counts twice
        holders = [corpus_id for corpus_id, found in counts.items() if word in found]
        idf = math.log(1 + (len(corpus) - len(holders) + 0.5) / (len(holders) + 0.5))
        for corpus_id in holders:
            tf = counts[corpus_id][word]
            norm = k1 * (1 - b + b * one_byte(len(corpus[corpus_id])) / average)
            scores[corpus_id] = scores.get(corpus_id, 0.0) + idf * tf / (tf + norm)
    return scores


ENGINES = ["numba", "tantivy"]
engines = pytest.mark.parametrize("engine", ENGINES)


def build(
    folder: Path,
    corpus: dict[str, list[str]],
    workers: int = 1,
    engine: str = "numba",
    k1: float = 1.2,
    b: float = 0.75,
) -> KeptIndex:
    rows = {("corpus", "corpus"): [{"_id": i, "title": "", "text": " ".join(w)} for i, w in corpus.items()]}
    release = open_release(make_release(folder / "release", rows, rows_per_shard=500))
    return open_index(release, folder / "indexes", workers, engine=engine, k1=k1, b=b)


def random_corpus(seed: int, passages: int, longest: int) -> dict[str, list[str]]:
    rng = random.Random(seed)
    words = [
        [rng.choice(WORDS[: rng.choice([5, 30])]) for _ in range(rng.randint(1, longest))] for _ in range(passages)
    ]
    return {f"d{rng.getrandbits(40):010x}": found for found in words}


def check_against_lucene(
    index: KeptIndex, corpus: dict[str, list[str]], query: list[str], top_k: int, k1: float = 1.2, b: float = 0.75
) -> None:
    """Right scores, right order, nothing better left out; scores that are equal on paper go by id."""
    hits = index.search(query, top_k)
    factor = 2.2 if isinstance(index, TantivyIndex) else 1.0  # k1 + 1, which Lucene has left out since version 8
    scores = {corpus_id: factor * score for corpus_id, score in lucene_scores(corpus, query, k1, b).items()}
    assert len(hits) == min(top_k, len(scores))
    tolerance = 1e-8 * max(scores.values(), default=0)
    expected = [scores[corpus_id] for corpus_id, _ in hits]
    assert [score for _, score in hits] == pytest.approx(expected, rel=1e-5, abs=tolerance)
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


@settings(max_examples=60, deadline=None)
@given(
    engine=st.sampled_from(ENGINES),
    seed=st.integers(0, 10**6),
    query=st.lists(st.sampled_from([*WORDS, "unknown"]), min_size=1, max_size=6),
    top_k=st.sampled_from([1, 3, 10, 50]),
    longest=st.sampled_from([4, 30, 300]),
)
def test_scores_and_order_are_lucenes(
    tmp_path_factory: pytest.TempPathFactory, engine: str, seed: int, query: list[str], top_k: int, longest: int
) -> None:
    corpus = random_corpus(seed, 60, longest)
    check_against_lucene(build(tmp_path_factory.mktemp("bm25"), corpus, engine=engine), corpus, query, top_k)


@pytest.mark.parametrize(("k1", "b"), [(1.2, 0.75), (0.9, 0.4), (0, 0.5), (2, 1), (1.6, 0), (50, 0.3)])
def test_any_k1_and_b_from_one_index(tmp_path: Path, k1: float, b: float) -> None:
    corpus = random_corpus(11, 400, 60)
    rng = random.Random(5)
    index = build(tmp_path, corpus, k1=k1, b=b)
    for _ in range(40):
        query = rng.choices([*WORDS, "unknown"], k=rng.randint(1, 9))
        check_against_lucene(index, corpus, query, rng.choice([1, 10, 1_000]), k1, b)


def test_tantivy_says_that_it_has_no_other_k1_and_b(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"k1 = 1\.2 and b = 0\.75 and no other"):
        build(tmp_path, {"a": ["x"]}, engine="tantivy", k1=0.9)


def zipf_corpus(passages: int) -> dict[str, list[str]]:
    """Frequent words in most passages, thousands of rare ones, empty passages, words that come hundreds of times."""
    rng = random.Random(passages)
    corpus = {f"d{n:05d}": [f"z{int(rng.paretovariate(0.4)) % 5_000}" for _ in range(n % 40)] for n in range(passages)}
    corpus["many"] = ["z1"] * 300 + ["z2"] * 255 + ["z3"] * 254 + ["z4"] * 70_000
    corpus["more"] = ["z1"] * 301 + ["z2"] * 256
    return dict(rng.sample(list(corpus.items()), len(corpus)))


def test_chunks_and_terms_that_are_only_looked_up_leave_nothing_out(tmp_path: Path) -> None:
    corpus = zipf_corpus(70_000)
    postings = tmp_path / "postings"
    postings.mkdir()
    write_postings(postings, (" ".join(words) for words in corpus.values()), 2)
    write_ids(postings, [pa.array(list(corpus))])
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
    for _ in range(60):
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
    texts = [" ".join(words) for words in zipf_corpus(70_000).values()]
    for threads in (1, 3):
        (tmp_path / str(threads)).mkdir()
        write_postings(tmp_path / str(threads), texts, threads)
    names = sorted(path.name for path in (tmp_path / "1").iterdir())
    assert names == sorted(path.name for path in (tmp_path / "3").iterdir()) == sorted(FILES)
    for name in names:
        assert (tmp_path / "1" / name).read_bytes() == (tmp_path / "3" / name).read_bytes()


def test_passages_without_a_token_are_never_found(tmp_path: Path) -> None:
    assert build(tmp_path / "all", {"a": [], "b": []}).search(["x"], 5) == []
    index = build(tmp_path / "some", {"a": [], "b": ["x"], "c": []})
    assert (index.passages, [corpus_id for corpus_id, _ in index.search(["x", "y"], 5)]) == (3, ["b"])


def test_more_counts_and_lengths_than_the_files_hold_are_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bm25_postings, "_PAIRS", 2)
    build(tmp_path / "two", {"a": ["x", "x", "y"]})
    with pytest.raises(InputError, match="3 pairs of count and length: too many"):
        build(tmp_path / "three", {"a": ["x", "x", "y"], "b": ["x"]})


def test_lengths_are_rounded_as_lucene_rounds_them() -> None:
    assert [one_byte(n) for n in (0, 39, 40, 41, 42, 56, 59, 60, 1000)] == [0, 39, 40, 40, 42, 56, 56, 60, 984]


@engines
def test_ties_go_by_id_also_where_the_list_is_cut(tmp_path: Path, engine: str) -> None:
    """500 passages with one score, written in a random order, far more than are fetched at first."""
    ids = [f"{n:03d}" for n in range(500)]
    random.Random(1).shuffle(ids)
    index = build(
        tmp_path, {**{i: ["same", "words"] for i in ids}, "best": ["same", "same"], "z": ["rare", "x"]}, engine=engine
    )
    hits = index.search(["same"], 20)
    assert [corpus_id for corpus_id, _ in hits] == ["best", *(f"{n:03d}" for n in range(19))]
    assert len({score for _, score in hits}) == 2
    assert [corpus_id for corpus_id, _ in index.search(["same", "rare"], 2)] == ["z", "best"]


@engines
def test_passages_of_the_same_words_tie_whatever_the_order_of_their_words(tmp_path: Path, engine: str) -> None:
    rng = random.Random(5)
    corpus: dict[str, list[str]] = {}
    for group in range(1_500):
        words = [WORDS[min(29, int(rng.expovariate(1 / 8)))] for _ in range(rng.randint(5, 80))]
        for _ in range(4):
            rng.shuffle(words)
            corpus[f"{rng.getrandbits(40):010x}-{group}"] = words[:]
    # Written apart: some engine versions add a query's words in an order that depends on the passages just before.
    index = build(tmp_path, dict(rng.sample(list(corpus.items()), len(corpus))), engine=engine)
    for _ in range(100):
        hits = index.search([rng.choice(WORDS) for _ in range(12)], 100)
        by_group: dict[str, set[float]] = {}
        for corpus_id, score in hits:
            by_group.setdefault(corpus_id.split("-")[1], set()).add(score)
        assert all(len(scores) == 1 for scores in by_group.values())
        assert hits == sorted(hits, key=lambda hit: (-hit[1], hit[0]))


def test_ids_are_right_over_many_batches_and_shards(tmp_path: Path) -> None:
    index = build(tmp_path, {f"号{n}": [f"word{n}"] for n in range(1_001)})
    assert index.passages == 1_001
    for n in (0, 7, 8, 499, 500, 999, 1_000):
        assert [corpus_id for corpus_id, _ in index.search([f"word{n}"], 5)] == [f"号{n}"]


@engines
def test_every_number_of_threads_gives_the_same_run(tmp_path: Path, engine: str) -> None:
    corpus = random_corpus(7, 2_500, 40)
    rng = random.Random(3)
    queries = [(str(n), " ".join(rng.choices(WORDS, k=rng.randint(1, 6)))) for n in range(300)]
    runs = [
        list(search(build(tmp_path / str(threads), corpus, threads, engine), queries, 10, threads))
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


@engines
def test_the_index_is_kept_until_the_corpus_changes(
    tmp_path: Path, engine: str, log_lines: pytest.LogCaptureFixture
) -> None:
    corpus = random_corpus(1, 20, 10)
    first = build(tmp_path, corpus, engine=engine)
    assert "index built" in log_lines.text
    log_lines.clear()
    assert build(tmp_path, corpus, engine=engine).folder == first.folder
    assert "index reused" in log_lines.text
    log_lines.clear()
    changed = build(tmp_path, {**corpus, "new": ["fresh"]}, engine=engine)
    assert "index built" in log_lines.text
    assert changed.folder != first.folder
    assert [corpus_id for corpus_id, _ in changed.search(["fresh"], 5)] == ["new"]


@engines
@pytest.mark.parametrize("damage", ["missing file", "cut file", "other bytes", "no index.json", "broken index.json"])
def test_a_damaged_index_is_built_again(
    tmp_path: Path, log_lines: pytest.LogCaptureFixture, damage: str, engine: str
) -> None:
    corpus = random_corpus(1, 20, 10)
    index = build(tmp_path, corpus, engine=engine)
    wanted = index.search(["w1", "w2"], 10)
    store = next(index.folder.glob("*.idx" if engine == "tantivy" else "postings"))  # the postings
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
    assert build(tmp_path, corpus, engine=engine).search(["w1", "w2"], 10) == wanted
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


def test_without_an_engine_named_any_k1_and_b_go(tmp_path: Path) -> None:
    make_release(tmp_path / "release")
    argv = ["bm25", "--release", str(tmp_path / "release"), "--out", str(tmp_path / "r"), "--threads", "1"]
    argv += ["--index", str(tmp_path / "indexes"), "--k1", "0.9", "--b", "0.4"]
    assert main("baselines", "", {"bm25": "baselines.bm25"}, argv) == 0
    assert len(read_run(tmp_path / "r").rankings) == 2


def test_engines_give_the_same_passages_in_the_same_order_on_the_sample(tmp_path: Path) -> None:
    """Scores differ by a factor: tantivy's are times k1 + 1."""
    sample = Path(bm25_index.__file__).parent.parent / "builders" / "sample"
    argv = ["release", "--quiet", "--raw", str(sample), "--out", str(tmp_path / "sample")]
    assert main("builders", "", {"release": "builders.release"}, argv) == 0
    release = open_release(tmp_path / "sample")
    queries = read_queries(release, "dev")
    runs = [
        [(query, [corpus_id for corpus_id, _ in hits]) for query, hits in search(index, queries, 50, 1)]
        for index in (open_index(release, tmp_path / "indexes", 1, engine=engine) for engine in ENGINES)
    ]
    assert runs[0] == runs[1]
    assert max(len(hits) for _, hits in runs[0]) == 50


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
