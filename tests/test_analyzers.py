"""The analyzers of BM25, its stop words, and k1 and b found on judged questions."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from commands import run
from releases import make_release

from baselines.bm25.engine_numba import open_index
from baselines.bm25.index import Texts
from baselines.bm25.tokens import STOP_WORDS, Analyzer
from baselines.bm25.tune import descend
from builders.core.words import segmenter_version
from builders.store.reader import open_release

TEXT = "北京的冬天，iPhone15怎么卖？〇 A"


@pytest.mark.parametrize(
    ("name", "tokens"),
    [
        ("words", "北京 的 冬天 iphone15 怎么 卖 〇 a"),
        ("characters", "北 京 的 冬 天 iphone15 怎 么 卖 〇 a"),
        ("bigrams", "北京 京的 的冬 冬天 iphone15 怎么 么卖 〇 a"),
        ("both", "北京 的 冬天 iphone15 怎么 卖 〇 a 北京 京的 的冬 冬天 iphone15 怎么 么卖 〇 a"),
    ],
)
def test_a_text_is_words_characters_bigrams_or_words_and_bigrams(name: str, tokens: str) -> None:
    found = Analyzer(name)(TEXT)
    assert [each for each in found if each != "〇"] == [each for each in tokens.split() if each != "〇"]
    without = Analyzer(name, drop_stop_words=True)(TEXT)
    assert without == [each for each in found if each not in STOP_WORDS]
    assert len(without) < len(found)


def test_stop_words_leave_nothing_out_that_turns_a_meaning_round() -> None:
    assert {"的", "怎么", "什么", "為什麼"} <= STOP_WORDS
    assert not {"不", "没", "没有", "无", "别", "未"} & STOP_WORDS
    assert not any(each.isascii() for each in STOP_WORDS)


def test_every_analyzer_has_an_index_of_its_own_and_asks_as_it_was_built(tmp_path: Path) -> None:
    release = open_release(make_release(tmp_path / "release"))
    keys = {json.dumps(Texts(release, analyzer=Analyzer(name, drop)).key("e")) for name, drop in ANALYZERS}
    assert len(keys) == len(ANALYZERS)
    # That of words is what it was before there were others: indexes that are kept go on being used.
    assert Texts(release).key("e")["segmenter"] == f"{segmenter_version()} tokens 1"
    index = open_index(Texts(release, analyzer=Analyzer("characters")), tmp_path / "indexes", 1)
    assert index.analyzer == Analyzer("characters")
    assert index.search(["票"], 1) and not index.search(["高铁"], 1)


ANALYZERS = [(name, drop) for name in ("words", "characters", "bigrams", "both") for drop in (False, True)]


def bm25(folder: Path, out: str, *words: object, code: int = 0) -> str:
    first = ("bm25", "--release", folder / "release", "--out", folder / out, "--index", folder / "indexes")
    done = run("baselines", *first, "--threads", 1, *words, code=code)
    return done.error if code else done.stderr


def test_values_are_moved_one_at_a_time_until_neither_gets_better() -> None:
    assert descend(lambda k1, b: -abs(k1 - 0.6) - abs(b - 0.3)) == (0.6, 0.3)
    assert descend(lambda k1, b: -((k1 - 1.5) ** 2) - (b - k1 / 3) ** 2) == (1.5, 0.5)  # b 0.4, k1 1.5, b 0.5
    assert descend(lambda k1, b: 0.5) == (1.2, 0.75)  # nothing is better: the defaults stay


def test_values_are_not_tuned_on_the_questions_that_are_searched(tmp_path: Path) -> None:
    make_release(tmp_path / "release")
    assert "--tune dev: values tuned on the questions" in bm25(tmp_path, "r.run", "--tune", "dev", code=1)
    assert "--tune, --max-chars and --sample go with --engine numba" in bm25(
        tmp_path, "r.run", "--tune", "train", "--engine", "elasticsearch", code=1
    )
