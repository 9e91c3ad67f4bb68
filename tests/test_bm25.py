"""BM25 against a direct implementation of Lucene's formula; analyzers, cached index, run, and tuning of k1 and b."""

import functools
import importlib
import itertools
import json
import logging
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pyarrow as pa
import pytest
from bm25_corpora import WORDS, build, hits_of, lucene_scores, random_corpus
from commands import ROOT, Done, names, run
from hypothesis import given, settings
from hypothesis import strategies as st
from releases import QUESTIONS, make_release, md5, tables

from baselines.bm25 import engine_numba
from baselines.bm25.bm25_index import IndexedTexts, search_columns, segment_batches
from baselines.bm25.engine_numba import FILES, NumbaIndex
from baselines.bm25.engine_numba import write_index as write_postings
from baselines.bm25.tokens import STOP_WORDS, Analyzer
from baselines.bm25.tokens import WORDS as BY_WORDS
from baselines.bm25.tune import climb_by_coordinate
from builders.core.read_files import sha256_of
from builders.core.words import segmenter_version
from builders.store.reader import open_release
from builders.store.runs import read_run


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
    # Compare the order only where rounding to the precision of the index does not merge distinct scores.
    rounded_scores = {corpus_id: float(f"{score:.5e}") for corpus_id, score in scores.items()}
    if len(set(rounded_scores.values())) == count_distinct(scores):
        order = sorted(rounded_scores, key=lambda corpus_id: (-rounded_scores[corpus_id], corpus_id))
        assert hit_ids(hits) == order[:top_k]


def hit_ids(hits: list[tuple[str, float]]) -> list[str]:
    """Return the ids of the passages of hits."""
    return [corpus_id for corpus_id, _ in hits]


def count_distinct(scores: dict[str, float]) -> int:
    """Count distinct scores. Differences within the rounding error of 64-bit sums are ignored."""
    falling_scores = sorted(scores.values(), reverse=True)
    distinct_count = min(1, len(falling_scores))
    for higher_score, score in itertools.pairwise(falling_scores):
        if higher_score - score > 1e-12 * higher_score:
            distinct_count += 1
    return distinct_count


@settings(max_examples=40)
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
    corpus = {}
    for number in range(passages):
        length = number % 40
        corpus[f"d{number:05d}"] = [f"z{int(rng.paretovariate(0.4)) % 5_000}" for _ in range(length)]
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
    rng = random.Random(9)
    for top_k in (1, 50, 1_000):
        query = [f"z{int(rng.paretovariate(0.3)) % 5_000}" for _ in range(rng.randint(2, 8))]
        check_against_lucene(index, corpus, query, top_k)


def test_every_number_of_threads_writes_the_same_postings(tmp_path: Path) -> None:
    corpus = zipf_corpus(70_000)
    texts = [" ".join(words) for words in corpus.values()]
    for threads in (1, 3):
        (tmp_path / str(threads)).mkdir()
        write_postings(tmp_path / str(threads), texts, [pa.array(list(corpus))], threads)
    file_names = names(tmp_path / "1")
    assert file_names == names(tmp_path / "3") == sorted([*FILES, "ids", "ids.ends"])
    for file_name in file_names:
        assert (tmp_path / "1" / file_name).read_bytes() == (tmp_path / "3" / file_name).read_bytes()


@pytest.mark.slow
def test_passages_without_a_token_are_never_found(tmp_path: Path) -> None:
    assert build(tmp_path / "all", {"a": [], "b": []}).search(["x"], 5) == []
    index = build(tmp_path / "some", {"a": [], "b": ["x"], "c": []})
    assert index.passages == 3
    assert hit_ids(index.search(["x", "y"], 5)) == ["b"]


def test_ties_go_by_id_also_where_the_list_is_cut(tmp_path: Path) -> None:
    sorted_ids = [f"{number:03d}" for number in range(500)]
    shuffled_ids = sorted_ids[:]
    random.Random(1).shuffle(shuffled_ids)
    corpus = {corpus_id: ["same", "words"] for corpus_id in shuffled_ids}
    corpus["best"] = ["same", "same"]
    corpus["z"] = ["rare", "x"]
    index = build(tmp_path, corpus)
    hits = index.search(["same"], 20)
    assert hit_ids(hits) == ["best", *sorted_ids[:19]]
    assert len({score for _, score in hits}) == 2
    assert hit_ids(index.search(["same", "rare"], 2)) == ["z", "best"]


@pytest.mark.parametrize("has_best_in_one_chunk", [False, True])
def test_every_depth_is_the_beginning_of_the_full_ranking(tmp_path: Path, has_best_in_one_chunk: bool) -> None:
    # Few distinct passages: every depth cuts a group of equal scores. 32 chunks of 16 rows: thresholds are guessed from
    # four chunks. If the best passages are in the first chunks, a guess is too high, and the query is searched again.
    rng = random.Random(3)
    passages = [rng.choices(WORDS[:6], k=rng.randint(1, 3)) for _ in range(500)]
    if has_best_in_one_chunk:
        passages.sort(key=lambda words: -words.count("w1"))
    corpus = {f"d{rng.getrandbits(40):010x}": words for words in passages}
    with mock.patch.object(engine_numba, "CHUNK", 16):
        index = build(tmp_path, corpus)
        for query in (["w1"], ["w1", "w2"], ["w0", "w1", "w1", "w5", "unknown"]):
            scores = lucene_scores(corpus, query)
            full_ranking = index.search(query, len(corpus))
            assert {corpus_id for corpus_id, _ in full_ranking} == scores.keys()
            assert full_ranking == sorted(full_ranking, key=lambda hit: (-hit[1], hit[0]))
            assert [score for _, score in full_ranking] == pytest.approx(sorted(scores.values(), reverse=True))
            for top_k in range(1, len(full_ranking) + 2):
                assert index.search(query, top_k) == full_ranking[:top_k]


@settings(max_examples=200)
@given(values=st.lists(st.integers(0, 2**62), min_size=1, unique=True), data=st.data())
def test_the_smallest_keys_are_selected(values: list[int], data: st.DataObject) -> None:
    smallest_count = data.draw(st.integers(1, len(values)))
    keys = np.array(values, np.int64)
    engine_numba._select_smallest(keys, len(keys), smallest_count)
    assert sorted(keys[:smallest_count].tolist()) == sorted(values)[:smallest_count]
    assert keys[smallest_count - 1] == sorted(values)[smallest_count - 1]


def test_threads_and_empty_queries_change_no_other_hits(tmp_path: Path) -> None:
    corpus = random_corpus(8, 300, 20)
    index = build(tmp_path, corpus)
    queries = [(f"q{number}", " ".join(WORDS[number % 30 : number % 30 + 3])) for number in range(100)]
    queries[40] = ("q40", "")
    queries[41] = ("q41", "unknown")
    hits = hits_of(index, queries, 1)
    assert hits == hits_of(index, queries, 3)
    assert hits["q40"] == hits["q41"] == []
    assert hits["q42"] == index.search(queries[42][1].split(), 10)


def test_passages_of_the_same_words_tie_whatever_the_order_of_their_words(tmp_path: Path) -> None:
    rng = random.Random(5)
    corpus: dict[str, list[str]] = {}
    for group in range(1_500):
        # The first words are the most frequent ones.
        word_numbers = [int(rng.expovariate(1 / 8)) for _ in range(rng.randint(5, 80))]
        words = [WORDS[min(29, number)] for number in word_numbers]
        for _ in range(4):
            rng.shuffle(words)
            corpus[f"{rng.getrandbits(40):010x}-{group}"] = words[:]
    # Shuffle the groups, because some engine versions add a query's words in an order set by the preceding passages.
    index = build(tmp_path, dict(rng.sample(list(corpus.items()), len(corpus))))
    for _ in range(100):
        hits = index.search([rng.choice(WORDS) for _ in range(12)], 100)
        scores_by_group: dict[str, set[float]] = {}
        for corpus_id, score in hits:
            scores_by_group.setdefault(corpus_id.split("-")[1], set()).add(score)
        assert all(len(scores) == 1 for scores in scores_by_group.values())
        assert hits == sorted(hits, key=lambda hit: (-hit[1], hit[0]))


def test_segmentation_in_processes_keeps_the_order() -> None:
    batches = [[f"第{n}次北京的冬天", "，。", "iPhone 手机"] for n in range(40)]
    by_one_process = list(segment_batches(batches, 1, BY_WORDS))
    by_two_processes = list(segment_batches(batches, 2, BY_WORDS))
    assert by_one_process == by_two_processes
    assert by_one_process[3] == ["第 3 次 北京 的 冬天", "", "iphone 手机"]


def test_of_long_passages_the_first_characters_can_be_read_alone(tmp_path: Path) -> None:
    full_index = build(tmp_path, {"a": ["winter", "is", "cold"], "b": ["cold", "is", "the", "winter"]})
    assert set(hit_ids(full_index.search(["winter"], 5))) == {"a", "b"}
    first_characters = IndexedTexts(open_release(tmp_path / "release"), max_chars=8)
    cut_index = engine_numba.open_index(first_characters, tmp_path / "indexes", 1)
    assert hit_ids(cut_index.search(["winter"], 5)) == ["a"]
    assert hit_ids(cut_index.search(["cold"], 5)) == ["b"]


def test_more_hits_than_passages_need_no_memory(tmp_path: Path) -> None:
    index = build(tmp_path, {"a": ["x"], "b": ["x"]})
    requested_hits: list[int] = []
    search_passages = index.search_columns

    def note_top_k(ids: Any, queries: Any, top_k: int) -> Any:
        requested_hits.append(top_k)
        return search_passages(ids, queries, top_k)

    with mock.patch.object(index, "search_columns", note_top_k):
        (block,) = search_columns(index, [("q", "x")], 20_000_000, 1)
        assert len(block.hits()["q"]) == 2
        assert len(index.search(["x"], 20_000_000)) == 2
    assert requested_hits == [2, 2]


def change_byte(path: Path) -> None:
    """Change a byte of a file in a new file, so that existing memory maps stay intact."""
    data = bytearray(path.read_bytes())
    data[len(data) // 3] ^= 1
    path.unlink()
    path.write_bytes(data)


DAMAGES: dict[str, Callable[[Path], Any]] = {
    "missing file": lambda folder: (folder / "postings").unlink(),
    "other bytes": lambda folder: change_byte(folder / "postings"),
    "no manifest.json": lambda folder: (folder / "manifest.json").unlink(),
    "broken manifest.json": lambda folder: (folder / "manifest.json").write_text("[]"),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_changed_or_damaged_index_is_rebuilt(tmp_path: Path, caplog: pytest.LogCaptureFixture, damage: str) -> None:
    caplog.set_level(logging.INFO)
    corpus = random_corpus(1, 20, 10)
    first_index = build(tmp_path, corpus)
    hits = first_index.search(["w1", "w2"], 10)
    assert build(tmp_path, corpus).folder == first_index.folder
    DAMAGES[damage](first_index.folder)
    assert build(tmp_path, corpus).search(["w1", "w2"], 10) == hits
    larger_index = build(tmp_path, {**corpus, "new": ["fresh"]})
    assert larger_index.folder != first_index.folder
    assert hit_ids(larger_index.search(["fresh"], 5)) == ["new"]
    logged_actions = [message.split(" ")[2] for message in caplog.messages if message.startswith("BM25 index")]
    assert logged_actions == ["built:", "reused:", "built:", "built:"]
    assert "damaged (" in caplog.text


def bm25(release: Path, *words: object, code: int = 0) -> Done:
    """Search the dev questions of a release. Write the run ``r.run.gz`` beside the release."""
    folder = release.parent
    paths = ["--release", release, "--out", folder / "r.run.gz", "--index", folder / "indexes"]
    return run("baselines", "bm25", paths, "--threads", 2, words, code=code)


def test_the_verb_writes_a_run_and_counts_empty_queries(tmp_path: Path) -> None:
    rows = tables()
    rows["queries", "dev"] += [{"_id": "empty", "text": "？！"}, {"_id": "nowhere", "text": "xylophone"}]
    done = bm25(make_release(tmp_path / "release", rows), "--top-k", 3)
    assert done.stdout == "" and "1 of 4 queries have no token" in done.stderr
    rankings = read_run(tmp_path / "r.run.gz").rankings
    assert list(rankings) == [md5(question) for question in QUESTIONS["dev"]]
    assert [ranking[0] for ranking in rankings.values()] == [row["corpus-id"] for row in rows["qrels", "dev"]]
    assert max(map(len, rankings.values())) <= 3


def test_the_manifest_beside_a_run_says_how_it_was_made(tmp_path: Path) -> None:
    release = make_release(tmp_path / "release")
    bm25(release, "--k1", 0.9, "--analyzer", "bigrams", "--top-k", 3)
    manifest_path = tmp_path / "r.run.gz.manifest.json"
    manifest = json.loads(manifest_path.read_text())
    assert manifest["model"] == {
        "name": "bm25",
        "engine": "numba",
        "k1": 0.9,
        "b": 0.75,
        "analyzer": Analyzer("bigrams", drop_stop_words=True).version,
        "tokenizer": None,
        "max_chars": None,
    }
    assert (manifest["set"], manifest["split"], manifest["top_k"], manifest["sample"]) == ("main", "dev", 3, None)
    opened_release = open_release(release)
    assert manifest["release"] == {
        "corpus": opened_release.fingerprint("corpus", "corpus"),
        "queries": opened_release.fingerprint("queries", "dev"),
    }
    assert manifest["versions"].keys() == {"dureader_retrieval", "numba", "numpy"}
    assert manifest["run"]["sha256"] == sha256_of(tmp_path / "r.run.gz")
    assert manifest["run"]["queries"] == 2
    first_bytes = manifest_path.read_bytes()
    bm25(release, "--k1", 0.9, "--analyzer", "bigrams", "--top-k", 3)
    assert manifest_path.read_bytes() == first_bytes


TEXT = "北京的冬天，iPhone15怎么卖？〇 A"
EXPECTED_TOKENS = {
    "words": "北京 的 冬天 iphone15 怎么 卖 〇 a",
    "characters": "北 京 的 冬 天 iphone15 怎 么 卖 〇 a",
    "bigrams": "北京 京的 的冬 冬天 iphone15 怎么 么卖 〇 a",
    "both": "北京 的 冬天 iphone15 怎么 卖 〇 a 北京 京的 的冬 冬天 iphone15 怎么 么卖 〇 a",
}


@pytest.mark.parametrize(("name", "expected"), EXPECTED_TOKENS.items())
def test_a_text_is_words_characters_bigrams_or_words_and_bigrams(name: str, expected: str) -> None:
    tokens = Analyzer(name)(TEXT)
    assert [token for token in tokens if token != "〇"] == [token for token in expected.split() if token != "〇"]
    tokens_to_index = Analyzer(name, drop_stop_words=True)(TEXT)
    assert tokens_to_index == [token for token in tokens if token not in STOP_WORDS]
    assert len(tokens_to_index) < len(tokens)


def test_every_analyzer_has_an_index_of_its_own_and_asks_as_it_was_built(tmp_path: Path) -> None:
    release = open_release(make_release(tmp_path / "release"))
    analyzers = [Analyzer(name, False) for name in EXPECTED_TOKENS] + [Analyzer(name, True) for name in EXPECTED_TOKENS]
    keys = {json.dumps(IndexedTexts(release, analyzer=analyzer).key("e")) for analyzer in analyzers}
    assert len(keys) == len(analyzers)
    # The version must not change by accident, so that cached indexes of earlier versions remain valid.
    assert IndexedTexts(release).key("e")["segmenter"] == f"{segmenter_version()} tokens 2"
    index = engine_numba.open_index(IndexedTexts(release, analyzer=Analyzer("characters")), tmp_path / "indexes", 1)
    assert index.analyzer == Analyzer("characters")
    assert index.search(["票"], 1) and not index.search(["高铁"], 1)


def test_values_are_moved_one_at_a_time_until_neither_gets_better() -> None:
    def measure_independent_values(k1: float, b: float) -> float:
        return -abs(k1 - 0.6) - abs(b - 0.3)

    def measure_dependent_values(k1: float, b: float) -> float:
        return -((k1 - 1.5) ** 2) - (b - k1 / 3) ** 2

    assert climb_by_coordinate(measure_independent_values) == (0.6, 0.3)
    # The steps are: b 0.4, k1 1.5, b 0.5.
    assert climb_by_coordinate(measure_dependent_values) == (1.5, 0.5)
    # All values are equally good, so the defaults stay.
    assert climb_by_coordinate(lambda k1, b: 0.5) == (1.2, 0.75)


def test_values_are_not_tuned_on_the_questions_that_are_searched(tmp_path: Path) -> None:
    release = make_release(tmp_path / "release")
    assert "--tune dev: tuning on the searched questions" in bm25(release, "--tune", "dev", code=2).stderr
    elasticsearch = ["--engine", "elasticsearch", "--address", "http://a"]
    assert "--tune needs --engine numba" in bm25(release, "--tune", "train", *elasticsearch, code=2).stderr


def test_the_benchmark_names_texts_with_too_few_passages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    write_tokens = importlib.import_module("bm25_tokens").of_texts
    texts = tmp_path / "texts.txt"
    texts.write_text("今天天气很好。\n明天下雨。\n今天天气很好。\n", encoding="utf-8")
    questions = tmp_path / "questions.txt"
    questions.write_text("明天天气\n", encoding="utf-8")
    work = tmp_path / "work"
    work.mkdir()
    with pytest.raises(SystemExit, match=f"{texts}: expected 3 distinct passages, found 2; lower --passages"):
        write_tokens(work, [texts], questions, passages=3, queries=1, workers=1)
    # The folder can be used again, because it has no complete tokens.
    assert not (work / "queries.json").exists()
    write_tokens(work, [texts], questions, passages=2, queries=1, workers=1)
    assert json.loads((work / "queries.json").read_text(encoding="utf-8")) == ["明天 天气"]
