"""Questions that no release has: files of queries, `search(queries=...)`, and `show --query TEXT`."""

import gzip
import json
from pathlib import Path
from typing import Any

import pytest
from commands import run
from releases import QUESTIONS, TEXTS, make_release, md5

import baselines
from builders.core.errors import InputError
from builders.store.own_queries import convert_queries, open_queries
from builders.store.runs import read_run

ASKED = {"a": "手机进水", "b": "饺子怎么煮"}
LINES = "手机进水\n\n 饺子怎么煮 \n手机进水\n"


def write(path: Path, content: str) -> Path:
    path.write_text(content, encoding="utf-8")
    return path


@pytest.mark.parametrize(
    "content",
    [
        '{"_id": "a", "text": "手机进水", "metadata": {}}\n\n{"_id": "b", "text": "饺子怎么煮"}',
        "\ufeffa\t手机进水\r\nb\t饺子怎么煮\r\n",
    ],
)
def test_the_content_decides_on_the_format(tmp_path: Path, content: str) -> None:
    assert open_queries(write(tmp_path / "f", content)).texts == ASKED
    (tmp_path / "zipped").write_bytes(gzip.compress(content.encode()))
    assert open_queries(tmp_path / "zipped").texts == ASKED


def test_a_line_of_text_has_its_md5_as_the_id(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    queries = open_queries(write(tmp_path / "f", LINES))
    assert queries.rows == [(md5(text), text) for text in ASKED.values()]
    assert "1 lines repeat an earlier query and are skipped" in caplog.text


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("a\tx\na\ty\n", ":2: the id 'a' occurs twice"),
        ("a\tx\nb\n", ":2: expected an id, a tab and a text, as in the first line, found 1 columns"),
        ("x\na\ty\n", ":2: expected a query without a tab"),
        ("a b\tx\n", ":1: expected an id without white space, found 'a b'"),
        ("a\t \n", ":1: the query 'a' has no text"),
        ('{"_id": "a", "text": "x"}\n{"_id": "b"}\n', ":2: lacks text"),
        ('{"_id": "a", "text": "x", "text": "y"}\n', ":1: the key 'text' occurs twice"),
        ("", "is empty"),
    ],
)
def test_a_wrong_line_is_named(tmp_path: Path, content: str, message: str) -> None:
    with pytest.raises(InputError) as error:
        open_queries(write(tmp_path / "f", content))
    assert message in str(error.value) and "\n" not in str(error.value)


@pytest.mark.parametrize("queries", [{}, {"a": 1}, {1: "x"}, {"a b": "x"}, {"a": ""}, {"a": "\ud800"}])
def test_a_wrong_dictionary_is_refused(queries: Any) -> None:
    with pytest.raises(InputError, match="queries: "):
        convert_queries(queries)


@pytest.fixture
def release(tmp_path: Path, own_cache: None) -> Path:
    return make_release(tmp_path / "release")


def test_bm25_searches_by_own_queries(tmp_path: Path, release: Path) -> None:
    queries_path = write(tmp_path / "q.tsv", "a\t手机进水\nb\t饺子怎么煮\n")
    command = ["bm25", "--release", release, "--queries-file", queries_path, "--out", tmp_path / "own.run"]
    run("baselines", command)
    rankings = read_run(tmp_path / "own.run").rankings
    assert {query_id: ranking[0] for query_id, ranking in rankings.items()} == {"a": md5(TEXTS[5]), "b": md5(TEXTS[1])}
    expected = baselines.search("bm25", release, queries=ASKED)
    assert read_run(tmp_path / "own.run").to_dict() == expected
    assert baselines.search("bm25", release, queries=queries_path) == expected
    manifest = json.loads((tmp_path / "own.run.manifest.json").read_text())
    assert (manifest["split"], manifest["own_queries"]["queries"]) == ("", 2)
    # A second call returns the run, and a call with other queries searches again.
    state = (tmp_path / "own.run").stat().st_mtime_ns
    run("baselines", command)
    assert (tmp_path / "own.run").stat().st_mtime_ns == state
    write(queries_path, "c\t手机进水\n")
    run("baselines", command)
    assert read_run(tmp_path / "own.run").rankings == {"c": rankings["a"]}


def test_own_search_engines_search_by_own_queries(tmp_path: Path, release: Path) -> None:
    searched_texts = []

    def search_one(query_text: str, top_k: int) -> list[tuple[str, float]]:
        searched_texts.append(query_text)
        return [(md5(TEXTS[0]), 1.0)]

    engine = baselines.make_searcher(search_one)
    scores = baselines.search(engine, release, queries=ASKED, out=tmp_path / "own.run")
    assert scores == {query_id: {md5(TEXTS[0]): 1.0} for query_id in ASKED}
    assert set(searched_texts) == set(ASKED.values())
    manifest = json.loads((tmp_path / "own.run.manifest.json").read_text())
    assert (manifest["split"], manifest["own_queries"]["queries"]) == ("", 2)


def test_own_models_search_and_rerank_by_own_queries(release: Path) -> None:
    def encode(texts: list[str]) -> list[list[float]]:
        return [[float(text.count(character)) + 0.01 for character in "手机饺子煮"] for text in texts]

    scores = baselines.search(encode, release, queries=ASKED)
    assert {query_id: next(iter(hits)) for query_id, hits in scores.items()} == {"a": md5(TEXTS[5]), "b": md5(TEXTS[1])}

    def score(pairs: list[tuple[str, str]]) -> list[float]:
        assert {query for query, _ in pairs} <= set(ASKED.values())
        return [float(len(passage)) for _, passage in pairs]

    reranked = baselines.search(score, release, queries=ASKED, run=scores)
    assert list(reranked["a"]) == sorted(scores["a"], key=lambda passage_id: -len(TEXT_OF[passage_id]))
    with pytest.raises(InputError, match="has a query 'a' that the split 'dev' lacks"):
        baselines.search(score, release, run=scores)


TEXT_OF = {md5(text): text for text in TEXTS}


def test_show_searches_by_any_text(release: Path, tmp_path: Path) -> None:
    show = ["show", "--release", release, "--top-k", "1"]
    assert "--query: the text is empty" in run("baselines", show, "--query", " ", code=2).stderr
    shown = run("baselines", show, "--query", "手机掉进水里").stdout
    assert shown.startswith(f"手机掉进水里\nquestion {md5('手机掉进水里')}\n")
    assert md5(TEXTS[5]) in shown and "no judgments" in shown
    # A question of the split has its judgments.
    question = QUESTIONS["dev"][1]
    shown = run("baselines", show, "--query", question).stdout
    assert f"question {md5(question)} of dev" in shown and f"{md5(TEXTS[5])}  positive" in shown
    # The queries of a run may be in a file.
    queries_path = write(tmp_path / "q.tsv", "a\t手机进水\nb\t饺子怎么煮\n")
    run("baselines", "bm25", "--release", release, "--queries-file", queries_path, "--out", tmp_path / "own.run")
    shown = run("baselines", show, "--queries-file", queries_path, "--query", "b", tmp_path / "own.run").stdout
    assert shown.startswith("饺子怎么煮\nquestion b of q.tsv\n") and md5(TEXTS[1]) in shown
    assert "no runs given" in run("baselines", "show", "--release", release, code=2).stderr
