"""The verb ``show``; the search behind its page and the page's HTML, without Gradio."""

import argparse
import re
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from commands import Done, run
from pages import Seen
from releases import QUESTIONS, TEXTS, make_release, md5, tables

from baselines.bm25.bm25_index import Texts
from baselines.bm25.engine_numba import open_index
from baselines.core.passages import open_passages
from baselines.look.excerpts import positives_of
from baselines.look.show import show_passages
from baselines.look.shown_answers import Searcher
from baselines.measure.qrels import read_queries
from builders.core.command import main
from builders.core.word_tokens import word_tokens
from builders.store.layout import SETS
from builders.store.reader import open_release
from builders.store.runs import write_run

HIT = re.compile(
    r'<div class="hit( positive)?"><div class="head"><span class="rank">(\d+)</span><span>(\S+)</span>'
    r'(?:<span>before: (\d+)</span>)?.*?<div class="id">(\w+)</div>'
)


def columns(page: str) -> list[list[tuple[str, int, str, bool, int]]]:
    """Return the hits of each column: corpus id, rank, score, True for a positive, earlier rank."""
    return [
        [(corpus, int(rank), score, bool(good), int(before or 0)) for good, rank, score, before, corpus in found]
        for found in map(HIT.findall, page.split("<section>")[1:])
    ]


@pytest.fixture(scope="module")
def searcher(sample_release: Path) -> Searcher:
    release = open_release(sample_release)
    index = open_index(Texts(release), None, 1)
    return Searcher(
        {"BM25": lambda query, top_k: index.search(word_tokens(query), top_k)},
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
    assert "its positives are unknown" in page and "hit positive" not in page  # of one's own query
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


TICKET, PHONE = QUESTIONS["dev"]
LONG = f"{'前面的话很多。' * 40}手机进水以后先关机。{'后面的话也很多。' * 40}"


@pytest.fixture
def world(tmp_path: Path) -> Path:
    """A release and two runs. Both runs have the second dev question, and only the first run has the first question."""
    make_release(tmp_path / "release", tables([*TEXTS, LONG]))
    both = (md5(PHONE), [(md5(TEXTS[0]), 2.5), (md5(TEXTS[5]), 1.25), (md5(LONG), 0.5), (md5(TEXTS[1]), 0.25)])
    write_run(tmp_path / "one.run", [(md5(TICKET), [(md5(TEXTS[4]), 3.0)]), both])
    write_run(tmp_path / "two.run", [both])
    return tmp_path


def show(world: Path, *words: str, runs: tuple[str, ...] = ("one.run",), split: str = "dev", code: int = 0) -> Done:
    paths = [world / run for run in runs]
    return run("baselines", "show", "--release", world / "release", "--split", split, *words, *paths, code=code)


def test_a_question_is_shown_with_its_passages_ranked_and_the_positive_marked(world: Path) -> None:
    shown = show(world, "--query", PHONE, "--top-k", "2").stdout
    assert shown.splitlines() == [
        PHONE,
        f"question {md5(PHONE)} of dev",
        "",
        f"{world / 'one.run'}: 4 passages, 1 of 1 positive, at rank 2",
        f"  1  2.5000  {md5(TEXTS[0])}",
        f"     {TEXTS[0]}",
        f"  2  1.2500  {md5(TEXTS[5])}  positive",
        f"     {TEXTS[5]}",
    ]
    for query in (md5(PHONE), "进水"):  # its id, or a part of its text
        assert show(world, "--query", query, "--top-k", "2").stdout == shown


def test_without_a_name_it_is_the_first_question_that_every_run_answers(world: Path) -> None:
    assert f"question {md5(TICKET)} of dev (the first that the run answers;" in show(world).stdout
    out = show(world, runs=("one.run", "two.run")).stdout
    assert f"question {md5(PHONE)} of dev (the first that every run answers;" in out
    assert out.index("one.run: 4 passages") < out.index("two.run: 4 passages")


def test_a_long_passage_is_cut_around_the_terms_in_common(world: Path) -> None:
    shown = show(world, "--query", PHONE, "--chars", "30").stdout.splitlines()[-1].strip()
    assert shown.startswith("…") and shown.endswith("…") and len(shown) <= 32
    assert "话很多。手机进水以后先关机。后面的话" in shown


def test_terms_have_colors(world: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    words = ["show", "--release", str(world / "release"), "--query", PHONE, str(world / "one.run")]
    outputs = []
    for no_color in ("", "1"):
        monkeypatch.setenv("NO_COLOR", no_color)
        assert main("baselines", "", {"show": "baselines.look.show:show_passages"}, words) == 0
        outputs.append(capsys.readouterr().out)
    assert "\033[1;33m手机\033[0m\033[1;33m进水\033[0m后先关机" in outputs[0]
    assert "\033[1;32mpositive\033[0m" in outputs[0] and "\033" not in outputs[1]


def test_positives_that_the_runs_miss_are_shown(world: Path) -> None:
    lines = show(world, "--query", PHONE, "--top-k", "1").stdout.splitlines()
    missed = [
        "",
        "positive passages that are not shown above: 1",
        f"  -  {md5(TEXTS[5])}  at rank 2",
        f"     {TEXTS[5]}",
    ]
    assert lines[-4:] == missed
    lines = show(world, "--query", TICKET, runs=("two.run",)).stdout.splitlines()
    assert lines[3] == f"{world / 'two.run'}: 0 passages, 0 of 1 positive"
    assert lines[-2:] == [f"  -  {md5(TEXTS[4])}  not in {world / 'two.run'}", f"     {TEXTS[4]}"]


def test_what_cannot_be_shown_is_one_error(world: Path) -> None:
    write_run(world / "bad.run", [(md5(PHONE), [("unknown", 1.0)])])
    error = show(world, runs=("bad.run",), code=1).error
    assert "bad.run: has a passage 'unknown' that the release's corpus lacks" in error


def test_a_call_from_python_returns_the_passages(world: Path) -> None:
    report = show_passages([world / "one.run"], release=world / "release", query=PHONE, top_k=2)
    assert report is not None and str(report) == show(world, "--query", PHONE, "--top-k", "2").stdout.rstrip("\n")
    passages = report.to_pandas()
    assert passages["rank"].tolist() == [1, 2]
    assert passages["positive"].tolist() == [row["positive"] for row in report.value["runs"][0]["passages"]]
