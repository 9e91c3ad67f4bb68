"""The verb ``show``; the search behind its page and the page's HTML, without Gradio."""

import argparse
import re
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

import pytest
from commands import Done, run
from pages import Seen
from releases import QUESTIONS, TEXTS, make_release, md5, tables

from baselines.bm25.bm25_index import IndexedTexts
from baselines.bm25.engine_numba import open_index
from baselines.bm25.tokens import DEFAULT
from baselines.core.passages import open_passages
from baselines.look.excerpts import positives_of
from baselines.look.show import show_passages
from baselines.look.shown_answers import PageSearcher
from baselines.measure.qrels import read_queries
from builders.core.command import main
from builders.store.layout import SETS
from builders.store.reader import open_release
from builders.store.runs import write_run

HIT = re.compile(
    r'<div class="hit( positive)?"><div class="head"><span class="rank">(\d+)</span><span>(\S+)</span>'
    r'(?:<span>before: (\d+)</span>)?.*?<div class="id">(\w+)</div>'
)


class ShownHit(NamedTuple):
    passage_id: str
    rank: int
    score: str
    is_positive: bool
    earlier_rank: int


def columns(page: str) -> list[list[ShownHit]]:
    """Return the hits of each column of a page."""
    hits_by_column = []
    for section in page.split("<section>")[1:]:
        hits = []
        for positive, rank, score, earlier_rank, passage_id in HIT.findall(section):
            hits.append(ShownHit(passage_id, int(rank), score, bool(positive), int(earlier_rank or 0)))
        hits_by_column.append(hits)
    return hits_by_column


def reverse_candidates(_: str, passage_ids: Sequence[str]) -> list[tuple[str, float]]:
    """Score candidates by their earlier place, so that the last becomes the first."""
    hits = [(passage_id, float(number)) for number, passage_id in enumerate(passage_ids)]
    return hits[::-1]


@pytest.fixture(scope="module")
def searcher(sample_release: Path) -> PageSearcher:
    """BM25, and a re-ranker that reverses the order of the candidates."""
    release = open_release(sample_release)
    index = open_index(IndexedTexts(release, analyzer=DEFAULT), None, 1)
    return PageSearcher(
        {"BM25": lambda query, top_k: index.search(DEFAULT(query), top_k)},
        open_passages(release),
        read_queries(release, "dev"),
        positives_of(release, SETS["main"], "dev"),
        rerank=("BM25 > turned", reverse_candidates),
        top_k=5,
        candidates=8,
    )


def test_a_column_is_what_the_verb_finds(searcher: PageSearcher, sample_release: Path, tmp_path: Path) -> None:
    run("baselines", "bm25", "--release", sample_release, "--out", tmp_path / "run", "--top-k", 5)
    lines = [line.split() for line in (tmp_path / "run").read_text(encoding="utf-8").splitlines()]
    positives = positives_of(open_release(sample_release), SETS["main"], "dev")
    assert positives
    marked_count = 0
    for query_id, text in searcher.questions:
        page = searcher.page(f" \n{text}\t ")  # whatever its blanks
        assert f"question {query_id}" in page
        assert page.count(f" of {len(positives[query_id])} positive") == 2
        run_hits = []
        for line_query, _, passage_id, rank, score, _ in lines:
            if line_query == query_id:
                run_hits.append((passage_id, int(rank), f"{float(score):.4f}"))
        bm25_hits, reranked_hits = columns(page)
        assert [(hit.passage_id, hit.rank, hit.score) for hit in bm25_hits] == run_hits
        for hit in bm25_hits + reranked_hits:
            assert hit.is_positive == (hit.passage_id in positives[query_id])
            marked_count += hit.is_positive
    assert marked_count > 10


def test_a_re_ranker_orders_the_candidates_of_the_column_before_it(searcher: PageSearcher) -> None:
    page = searcher.page("手机怎么办")
    # The positives of one's own query are unknown.
    assert "its positives are unknown" in page
    assert "hit positive" not in page
    bm25_hits, reranked_hits = columns(page)
    assert [hit.earlier_rank for hit in reranked_hits] == [8, 7, 6, 5, 4]
    # Both columns show ranks 4 and 5 of BM25, in reverse order.
    last_of_bm25 = [hit.passage_id for hit in bm25_hits[3:]]
    last_of_reranked = [hit.passage_id for hit in reranked_hits[3:]]
    assert last_of_bm25 == last_of_reranked[::-1]


def test_any_text_has_an_answer(searcher: PageSearcher) -> None:
    for text in ("\ud800手机", "\x00\x1b[31m", "？！", "zzzzzzzz", "a" * 10_000):
        assert "<h3>BM25</h3>" in searcher.page(text)
    assert "Type a question" in searcher.page("  \n\u3000 ")


def test_fifty_threads_get_the_answers_that_one_gets(searcher: PageSearcher) -> None:
    texts = []
    for number in range(10):
        texts += [f"{text} {number}" for _, text in searcher.questions[:5]]
    alone = list(map(searcher.page, texts))
    searcher._cached_columns.cache_clear()
    with ThreadPoolExecutor(50) as pool:
        assert list(pool.map(searcher.page, texts)) == alone


def test_html_of_queries_passages_and_ids_is_text() -> None:
    markup = '<script>alert(1)</script><img src=x onerror="alert(2)"> 手机'

    class MarkupPassages:
        """Passages whose texts are markup."""

        def rows(self, ids: list[str]) -> argparse.Namespace:
            return argparse.Namespace(tolist=lambda: [0])

        def texts(self, rows: list[int]) -> list[str]:
            return [markup * 20]

    searchers = {"<b>": lambda *_: [(markup, 1.0)]}
    searcher = PageSearcher(searchers, MarkupPassages(), [(markup, markup)], {markup: {markup}})  # type: ignore[arg-type]
    html = searcher.page(markup)
    parsed_page = Seen(html)
    allowed_tags = {"style", "p", "div", "section", "h3", "span", "mark", "details", "summary"}
    attribute_names: set[str] = set()
    for tag, attributes in parsed_page.tags:
        assert tag in allowed_tags
        attribute_names.update(attributes)
    assert attribute_names == {"class"}
    assert parsed_page.text.count("<script>alert(1)</script>") >= 20
    assert "<mark>手机</mark>" in html


TICKET, PHONE = QUESTIONS["dev"]
LONG = f"{'前面的话很多。' * 40}手机进水以后先关机。{'后面的话也很多。' * 40}"


@pytest.fixture
def world(tmp_path: Path) -> Path:
    """A release and two runs. Both runs have the second dev question, and only the first run has the first question."""
    texts = TEXTS.copy()
    texts.append(LONG)
    make_release(tmp_path / "release", tables(texts))
    phone_texts = [TEXTS[0], TEXTS[5], LONG, TEXTS[1]]
    phone_ids = map(md5, phone_texts)
    phone_hits = list(zip(phone_ids, [2.5, 1.25, 0.5, 0.25], strict=True))
    ticket_hits = [(md5(TEXTS[4]), 3.0)]
    write_run(tmp_path / "one.run", [(md5(TICKET), ticket_hits), (md5(PHONE), phone_hits)])
    write_run(tmp_path / "two.run", [(md5(PHONE), phone_hits)])
    return tmp_path


def show(world: Path, *words: str, runs: tuple[str, ...] = ("one.run",), split: str = "dev", code: int = 0) -> Done:
    """Show passages of these runs."""
    paths = [world / run_name for run_name in runs]
    return run("baselines", "show", "--release", world / "release", "--split", split, words, paths, code=code)


def test_a_question_is_shown_with_its_passages_ranked_and_the_positive_marked(world: Path) -> None:
    text = show(world, "--query", PHONE, "--top-k", "2").stdout
    assert text.splitlines() == [
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
        assert show(world, "--query", query, "--top-k", "2").stdout == text


def test_without_a_name_it_is_the_first_question_that_every_run_answers(world: Path) -> None:
    assert f"question {md5(TICKET)} of dev (the first that the run answers;" in show(world).stdout
    out = show(world, runs=("one.run", "two.run")).stdout
    assert f"question {md5(PHONE)} of dev (the first that every run answers;" in out
    assert out.index("one.run: 4 passages") < out.index("two.run: 4 passages")


def test_a_long_passage_is_cut_around_the_terms_in_common(world: Path) -> None:
    excerpt = show(world, "--query", PHONE, "--chars", "30").stdout.splitlines()[-1].strip()
    assert excerpt.startswith("…")
    assert excerpt.endswith("…")
    assert len(excerpt) <= 32
    assert "话很多。手机进水以后先关机。后面的话" in excerpt


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
    printed = show(world, "--query", PHONE, "--top-k", "2").stdout
    assert report is not None
    assert str(report) == printed.rstrip("\n")
    table = report.to_pandas()
    assert table["rank"].tolist() == [1, 2]
    passages = report.value["runs"][0]["passages"]
    assert table["positive"].tolist() == [passage["positive"] for passage in passages]
