"""The search behind the page, and the page's HTML, without Gradio; and the folder that is pushed as a Space."""

from __future__ import annotations

import argparse
import re
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from browser import Seen
from commands import ROOT, run
from test_packaging import PROJECT

from baselines.bm25.engine_numba import open_index
from baselines.bm25.index import Texts
from baselines.bm25.tokens import tokens
from baselines.look.answers import Searcher
from baselines.look.show import positives_of
from baselines.look.space.search_page import words
from baselines.measure.qrels import read_queries
from baselines.retrieve.passages import open_passages
from builders.store.layout import SETS
from builders.store.reader import open_release

HIT = re.compile(
    r'<div class="hit( positive)?"><div class="head"><span class="rank">(\d+)</span><span>(\S+)</span>'
    r'(?:<span>before: (\d+)</span>)?.*?<div class="id">(\w+)</div>'
)


def columns(page: str) -> list[list[tuple[str, int, str, bool, int]]]:
    """The hits of each column of a page: corpus id, rank, score, whether it is a positive, the rank before."""
    return [
        [(corpus, int(rank), score, bool(good), int(before or 0)) for good, rank, score, before, corpus in found]
        for found in map(HIT.findall, page.split("<section>")[1:])
    ]


@pytest.fixture(scope="module")
def searcher(sample_release: Path) -> Searcher:
    release = open_release(sample_release)
    index = open_index(Texts(release), None, 1)
    # The re-ranker turns the order around.
    return Searcher(
        {"BM25": lambda query, top_k: index.search(tokens(query), top_k)},
        open_passages(release),
        read_queries(release, "dev"),
        positives_of(release, SETS["main"], "dev"),
        rerank=("BM25 > turned", lambda _, ids: [(each, float(n)) for n, each in reversed(list(enumerate(ids)))]),
        top_k=5,
        candidates=8,
    )


def test_a_column_is_what_the_verb_finds(searcher: Searcher, sample_release: Path, tmp_path: Path) -> None:
    run("baselines", "bm25", "--release", sample_release, "--out", tmp_path / "run", "--top-k", 5)
    lines = [line.split() for line in (tmp_path / "run").read_text(encoding="utf-8").splitlines()]
    judged = positives_of(open_release(sample_release), SETS["main"], "dev")
    assert judged
    marked = 0
    for query, text in searcher.questions:
        page = searcher.page(f" \n{text}\t ")  # whatever its blanks
        assert f"question {query}" in page and page.count(f" of {len(judged[query])} positive") == 2
        found = columns(page)
        ours = [(line[2], int(line[3]), f"{float(line[4]):.4f}") for line in lines if line[0] == query]
        assert [hit[:3] for hit in found[0]] == ours
        assert all(hit[3] == (hit[0] in judged[query]) for column in found for hit in column)
        marked += sum(hit[3] for column in found for hit in column)
    assert marked > 10


def test_a_re_ranker_orders_the_candidates_of_the_column_before_it(searcher: Searcher) -> None:
    first, second = columns(page := searcher.page("手机怎么办"))
    assert "nobody knows its positives" in page and "hit positive" not in page  # of one's own query
    assert [hit[4] for hit in second] == [8, 7, 6, 5, 4]
    assert [hit[0] for hit in first[3:]] == [hit[0] for hit in reversed(second[3:])]


def test_any_text_has_an_answer(searcher: Searcher) -> None:
    for text in ("\ud800手机", "\x00\x1b[31m", "？！", "zzzzzzzz", "a" * 10_000):
        assert "<h3>BM25</h3>" in searcher.page(text)
    assert "Type a question" in searcher.page("  \n\u3000 ")


def test_fifty_threads_get_the_answers_that_one_gets(searcher: Searcher) -> None:
    texts = [f"{text} {number}" for number in range(10) for _, text in searcher.questions[:5]]
    alone = list(map(searcher.page, texts))
    searcher._answer.cache_clear()
    with ThreadPoolExecutor(50) as pool:
        assert list(pool.map(searcher.page, texts)) == alone


def test_html_of_queries_passages_and_ids_is_text() -> None:
    bad = '<script>alert(1)</script><img src=x onerror="alert(2)"> 手机'

    class Bad:
        def rows(self, ids: list[str]) -> argparse.Namespace:
            return argparse.Namespace(tolist=lambda: [0])

        def texts(self, rows: list[int]) -> list[str]:
            return [bad * 20]

    searcher = Searcher({"<b>": lambda *_: [(bad, 1.0)]}, Bad(), [(bad, bad)], {bad: {bad}})  # type: ignore[arg-type]
    found = searcher.page(bad)
    seen = Seen(found)
    tags = {"style", "p", "div", "section", "h3", "span", "mark", "details", "summary"}
    assert {tag for tag, _ in seen.tags} <= tags and {name for _, given in seen.tags for name in given} == {"class"}
    assert seen.text.count("<script>alert(1)</script>") >= 20 and "<mark>手机</mark>" in found


def test_a_space_is_one_folder_with_code_release_and_card(sample_release: Path, tmp_path: Path) -> None:
    out = tmp_path / "space"
    for _ in range(2):  # an earlier one is replaced
        run("baselines", "show", "--release", sample_release, "--assemble", out)
    card = (out / "README.md").read_text(encoding="utf-8")
    front = dict(line.split(": ", 1) for line in card.split("---\n")[1].splitlines())
    assert front["sdk"] == "gradio" and (out / front["app_file"]).is_file()
    assert open_release(out / "release").manifest == open_release(sample_release).manifest
    assert (out / "baselines" / "look" / "page.py").is_file() and not list(out.rglob("__pycache__"))
    assert words(out) == ["show", "--serve", "--host", "0.0.0.0", "--release", str(out / "release")]


def test_a_space_asks_for_what_the_group_does() -> None:
    found = {*PROJECT["project"]["dependencies"]}
    for name in ("builders", "baselines", "models"):
        found |= {each for each in PROJECT["dependency-groups"][name] if isinstance(each, str)}
    lines = (ROOT / "baselines" / "look" / "space" / "requirements.txt").read_text(encoding="utf-8").splitlines()
    wanted = {line for line in lines if not line.startswith("#")}
    assert wanted | {"huggingface-hub>=1.0"} == found  # (the hub's library comes with Gradio and datasets)
    pinned = (ROOT / "tests" / "space-requirements.txt").read_text(encoding="utf-8")
    version = re.search(r"^gradio==(\S+)$", pinned, re.MULTILINE)
    card = (ROOT / "baselines" / "look" / "space" / "README.md").read_text(encoding="utf-8")
    assert version and f"sdk_version: {version[1]}\n" in card
