"""The verb ``bm25``: analyzers, cached index, run, and tuning of k1 and b."""

import json
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from bm25_corpora import build, random_corpus
from commands import Done, run
from releases import QUESTIONS, make_release, md5, tables

from baselines.bm25 import engine_numba
from baselines.bm25.index import Texts, segment_batches
from baselines.bm25.tokens import STOP_WORDS, WORDS, Analyzer
from baselines.bm25.tune import descend
from builders.core.files import sha256_of
from builders.core.words import segmenter_version
from builders.store.reader import open_release
from builders.store.runs import read_run


def test_segmentation_in_processes_keeps_the_order() -> None:
    batches = [[f"第{n}次北京的冬天", "，。", "iPhone 手机"] for n in range(40)]
    alone = list(segment_batches(batches, 1, WORDS))
    assert alone == list(segment_batches(batches, 2, WORDS))
    assert alone[3] == ["第 3 次 北京 的 冬天", "", "iphone 手机"]


def test_of_long_passages_the_first_characters_can_be_read_alone(tmp_path: Path) -> None:
    corpus = {"a": ["winter", "is", "cold"], "b": ["cold", "is", "the", "winter"]}
    whole = build(tmp_path, corpus)
    assert {found for found, _ in whole.search(["winter"], 5)} == {"a", "b"}
    first = engine_numba.open_index(Texts(open_release(tmp_path / "release"), max_chars=8), tmp_path / "indexes", 1)
    assert [found for found, _ in first.search(["winter"], 5)] == ["a"]
    assert [found for found, _ in first.search(["cold"], 5)] == ["b"]


def _flip(path: Path) -> None:
    """Change a byte of a file in a new file, so that existing memory maps stay intact."""
    data = bytearray(path.read_bytes())
    data[len(data) // 3] ^= 1
    path.unlink()
    path.write_bytes(data)


DAMAGES: dict[str, Callable[[Path], Any]] = {
    "missing file": lambda folder: (folder / "postings").unlink(),
    "other bytes": lambda folder: _flip(folder / "postings"),
    "no manifest.json": lambda folder: (folder / "manifest.json").unlink(),
    "broken manifest.json": lambda folder: (folder / "manifest.json").write_text("[]"),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_the_index_is_kept_until_the_corpus_changes_or_it_is_damaged(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, damage: str
) -> None:
    caplog.set_level(logging.INFO)
    corpus = random_corpus(1, 20, 10)
    first = build(tmp_path, corpus)
    wanted = first.search(["w1", "w2"], 10)
    assert build(tmp_path, corpus).folder == first.folder
    DAMAGES[damage](first.folder)
    assert build(tmp_path, corpus).search(["w1", "w2"], 10) == wanted
    changed = build(tmp_path, {**corpus, "new": ["fresh"]})
    assert changed.folder != first.folder
    assert [corpus_id for corpus_id, _ in changed.search(["fresh"], 5)] == ["new"]
    said = [message.split(" ")[2] for message in caplog.messages if message.startswith("BM25 index")]
    assert said == ["built:", "reused:", "built:", "built:"] and "damaged (" in caplog.text


def bm25(release: Path, *words: object, code: int = 0) -> Done:
    folder = release.parent
    first = ("bm25", "--release", release, "--out", folder / "r.run.gz", "--index", folder / "indexes")
    return run("baselines", *first, "--threads", 2, *words, code=code)


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
    found = json.loads((tmp_path / "r.run.gz.manifest.json").read_text())
    model = {"name": "bm25", "engine": "numba", "k1": 0.9, "b": 0.75}
    assert found["model"] == {**model, "analyzer": Analyzer("bigrams").version, "max_chars": None}
    assert (found["set"], found["split"], found["top_k"], found["sample"]) == ("main", "dev", 3, None)
    opened, read = open_release(release), {"corpus": "corpus", "queries": "dev"}
    assert found["release"] == {name: opened.fingerprint(name, split) for name, split in read.items()}
    assert found["versions"].keys() == {"dureader_retrieval", "numba", "numpy"}
    assert found["run"]["sha256"] == sha256_of(tmp_path / "r.run.gz") and found["run"]["queries"] == 2
    first = (tmp_path / "r.run.gz.manifest.json").read_bytes()
    bm25(release, "--k1", 0.9, "--analyzer", "bigrams", "--top-k", 3)
    assert (tmp_path / "r.run.gz.manifest.json").read_bytes() == first


TEXT = "北京的冬天，iPhone15怎么卖？〇 A"


WANTED = {
    "words": "北京 的 冬天 iphone15 怎么 卖 〇 a",
    "characters": "北 京 的 冬 天 iphone15 怎 么 卖 〇 a",
    "bigrams": "北京 京的 的冬 冬天 iphone15 怎么 么卖 〇 a",
    "both": "北京 的 冬天 iphone15 怎么 卖 〇 a 北京 京的 的冬 冬天 iphone15 怎么 么卖 〇 a",
}


@pytest.mark.parametrize(("name", "wanted"), WANTED.items())
def test_a_text_is_words_characters_bigrams_or_words_and_bigrams(name: str, wanted: str) -> None:
    found = Analyzer(name)(TEXT)
    assert [each for each in found if each != "〇"] == [each for each in wanted.split() if each != "〇"]
    without = Analyzer(name, drop_stop_words=True)(TEXT)
    assert without == [each for each in found if each not in STOP_WORDS]
    assert len(without) < len(found)


def test_every_analyzer_has_an_index_of_its_own_and_asks_as_it_was_built(tmp_path: Path) -> None:
    release = open_release(make_release(tmp_path / "release"))
    analyzers = [Analyzer(name, drop) for name in WANTED for drop in (False, True)]
    assert len({json.dumps(Texts(release, analyzer=each).key("e")) for each in analyzers}) == len(analyzers)
    # The version of words must not change, so that cached indexes of earlier versions remain valid.
    assert Texts(release).key("e")["segmenter"] == f"{segmenter_version()} tokens 1"
    index = engine_numba.open_index(Texts(release, analyzer=Analyzer("characters")), tmp_path / "indexes", 1)
    assert index.analyzer == Analyzer("characters")
    assert index.search(["票"], 1) and not index.search(["高铁"], 1)


def test_values_are_moved_one_at_a_time_until_neither_gets_better() -> None:
    assert descend(lambda k1, b: -abs(k1 - 0.6) - abs(b - 0.3)) == (0.6, 0.3)
    assert descend(lambda k1, b: -((k1 - 1.5) ** 2) - (b - k1 / 3) ** 2) == (1.5, 0.5)  # b 0.4, k1 1.5, b 0.5
    assert descend(lambda k1, b: 0.5) == (1.2, 0.75)  # all values are equally good, so the defaults stay


def test_values_are_not_tuned_on_the_questions_that_are_searched(tmp_path: Path) -> None:
    release = make_release(tmp_path / "release")
    assert "--tune dev: tuning on the searched questions" in bm25(release, "--tune", "dev", code=1).error
    found = bm25(release, "--tune", "train", "--engine", "elasticsearch", code=1).error
    assert "--tune, --max-chars and --sample need --engine numba" in found
