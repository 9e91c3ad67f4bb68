"""The Python API on runs: forms of runs, figures with intervals and values by query, comparison, fusion, and files."""

import inspect
import json
import logging
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from commands import run as run_command
from releases import QUESTIONS, TEXTS, make_release, md5, tables

import baselines
import builders
import dureader_retrieval
from baselines import InputError, Run, compare, evaluate, fuse, open_release, read_run, search, search_bm25, write_run
from builders.core.errors import UsageError, log
from builders.core.version import VERSION

pytestmark = pytest.mark.usefixtures("own_cache")
QUERY = md5(QUESTIONS["dev"][0])
PASSAGES = [md5(text) for text in TEXTS]


@pytest.fixture
def release(tmp_path: Path) -> Path:
    return make_release(tmp_path / "release")


def as_lists(run: dict[str, dict[str, float]]) -> dict[str, list[str]]:
    return {query_id: list(scores) for query_id, scores in run.items()}


def as_pairs(run: dict[str, dict[str, float]]) -> dict[str, list[tuple[str, float]]]:
    return {query_id: list(scores.items()) for query_id, scores in run.items()}


def as_numpy(run: dict[str, dict[str, float]]) -> dict[Any, dict[Any, Any]]:
    """Return a run whose ids and scores are NumPy's."""
    numpy_run: dict[Any, dict[Any, Any]] = {}
    for query_id, scores in run.items():
        numpy_run[np.str_(query_id)] = {np.str_(passage_id): np.float32(score) for passage_id, score in scores.items()}
    return numpy_run


def as_frame(run: dict[str, dict[str, float]]) -> pd.DataFrame:
    """Return a frame whose rows are in another order."""
    rows = []
    for query_id, scores in run.items():
        rows += [(query_id, passage_id, score) for passage_id, score in scores.items()]
    return pd.DataFrame(rows, columns=["qid", "docno", "score"]).sample(frac=1, random_state=1)


def score_by_length(pairs: list[tuple[str, str]]) -> list[int]:
    """Re-rank by the length of the passages."""
    return [len(text) for _, text in pairs]


@pytest.mark.parametrize("form", [as_lists, as_pairs, as_numpy, as_frame, read_run])
def test_a_run_may_have_any_usual_form(form: Callable[[Any], Any], release: Path) -> None:
    run = search("bm25", release, top_k=4)
    assert evaluate(form(run), release) == evaluate(run, release)
    assert search(score_by_length, release, run=form(run)) == search(score_by_length, release, run=run)


def test_ranks_of_a_frame_order_equal_scores_and_contradictions_are_warned_of(caplog: pytest.LogCaptureFixture) -> None:
    rows = [("q", "near", 0.1, "1"), ("q", "far", 0.9, "10"), ("r", "b", 0.5, "10"), ("r", "a", 0.5, "2")]
    frame = pd.DataFrame(rows, columns=["qid", "docno", "score", "rank"])  # ranks are texts, and 10 follows 2
    assert read_run(frame).rankings == {"q": ["far", "near"], "r": ["a", "b"]}
    assert "the ranks of 1 of 2 queries contradict their scores, for example of query 'q'" in caplog.text
    caplog.clear()
    assert read_run(frame[2:]).rankings == {"r": ["a", "b"]}
    assert not caplog.text


@pytest.mark.parametrize("rank", [1, 3, len(PASSAGES)])
def test_equal_scores_keep_their_order_in_a_dictionary_a_frame_and_a_file(
    rank: int, release: Path, tmp_path: Path
) -> None:
    positive_id = next(iter(open_release(release).qrels("dev")[QUERY]))
    ranking = [passage_id for passage_id in PASSAGES if passage_id != positive_id]
    ranking.insert(rank - 1, positive_id)
    as_dictionary = {QUERY: dict.fromkeys(ranking, 0.5)}
    frame_rows = [(QUERY, passage_id, 0.5) for passage_id in ranking]
    frame = pd.DataFrame(frame_rows, columns=["query_id", "passage_id", "score"])
    lines = [f"{QUERY} Q0 {passage_id} {number} 0.5 tied\n" for number, passage_id in enumerate(ranking, start=1)]
    (tmp_path / "tied.run").write_text("".join(lines), encoding="utf-8")
    written_run = write_run(as_dictionary, tmp_path / "written.run.gz")
    for run in (as_dictionary, frame, tmp_path / "tied.run", written_run):
        assert evaluate(run, release).per_query()[QUERY]["AP"] == pytest.approx(1 / rank)
    assert read_run(tmp_path / "written.run.gz").rankings == {QUERY: ranking}


def test_figures_by_query_are_those_of_the_command_line(release: Path, tmp_path: Path) -> None:
    figures = evaluate("bm25", release)
    run_path = tmp_path / "bm25.run"
    table_path = tmp_path / "values.parquet"
    run_command("baselines", "bm25", "--release", release, "--out", run_path)
    run_command("baselines", "evaluate", "--release", release, run_path, "--per-query", table_path)
    table = pd.read_parquet(table_path).set_index("query_id")
    for query_id, values in figures.per_query().items():
        # The table has ir-measures' name for it: RR@10.
        assert values["MRR@10"] == table.loc[query_id, "RR@10"]
        assert values["nDCG@10"] == table.loc[query_id, "nDCG@10"]
    assert figures.query_count == len(table)
    assert figures["QueriesRanked"] == len(read_run(run_path).hits)


def test_figures_have_intervals_and_values_by_query(release: Path) -> None:
    figures = evaluate("bm25", release)
    assert figures.to_pandas()["AP"].mean() == pytest.approx(figures["AP"])
    for name, (low, high) in figures.intervals().items():
        assert low <= figures[name] <= high
    assert "| MRR@10 |" in figures.to_markdown()
    assert pickle.loads(pickle.dumps(figures)).per_query() == figures.per_query()
    with pytest.raises(InputError, match="level: expected a number between 0 and 1, found 95"):
        figures.intervals(level=95)


def test_compare_is_the_verb_with_names(release: Path, tmp_path: Path) -> None:
    word_run = search_bm25(release, top_k=4)
    letter_run = search_bm25(release, top_k=4, analyzer="characters")
    report = compare({"words": word_run, "letters": letter_run.to_dict()}, release, measure=["nDCG@10"])
    files = [str(write_run(word_run, tmp_path / "words.run")), str(write_run(letter_run, tmp_path / "letters.run"))]
    options = ["--release", release, "--measure", "nDCG@10", "--name", "words", "--name", "letters"]
    printed = json.loads(run_command("baselines", "compare", files, options, "--format", "json").stdout)
    # The runs from Python have no path.
    for system in printed["systems"] + report.value["systems"]:
        del system["run"]
    assert report.value == printed
    assert compare(files, release).value["systems"][0]["name"] == files[0]


def test_fuse_is_the_verb(release: Path, tmp_path: Path) -> None:
    word_run = search("bm25", release)
    letter_run = search("bm25", release, analyzer="characters")
    files = [str(write_run(word_run, tmp_path / "words.run")), str(write_run(letter_run, tmp_path / "letters.run"))]
    run_command("baselines", "fuse", files, "--out", tmp_path / "fused.run", "--top-k", 3)
    assert fuse([word_run, letter_run], top_k=3) == read_run(tmp_path / "fused.run").to_dict()
    assert fuse({"a": word_run, "b": letter_run}, top_k=3) == fuse(files, top_k=3)


@pytest.mark.parametrize(
    ("run", "problem"),
    [
        ({1: {}}, "expected ids that are texts, found 1"),
        ({QUERY: {7: 1.0}}, "expected ids that are texts, found 7"),
        ({QUERY: {"p\ud800": 1.0}}, r"expected ids without surrogates, found 'p\\ud800'"),
        ({QUERY: ["p\ud800"]}, r"expected ids without surrogates, found 'p\\ud800'"),
        ({"q\ud800": {"p": 1.0}}, r"expected ids without surrogates, found 'q\\ud800'"),
        ({QUERY: ["p", ""]}, "expected ids that are texts, found ''"),
        ({QUERY: {"p": "1.0"}}, "passage 'p': expected a finite number as the score, found '1.0'"),
        ({QUERY: {"p": None}}, "expected a finite number as the score, found None"),
        ({QUERY: {"p": True}}, "expected a finite number as the score, found True"),
        ({QUERY: {"p": 10**400}}, r"expected a finite number as the score, found 10{199}\.\.\."),
        ({QUERY: {"p": float("nan")}}, "expected a finite number as the score, found nan"),
        ({QUERY: 3}, "expected query id -> passage id -> score, .* found int"),
        ({QUERY: ["p", ("p", 1.0)]}, "found 'p' in a list"),
        (pd.DataFrame({"qid": ["q"], "doc": ["p"]}), "found the columns qid, doc"),
    ],
    ids=lambda value: None,
)
def test_an_object_that_is_no_run_is_one_error(run: Any, problem: str, release: Path) -> None:
    for call in (lambda: evaluate(run, release), lambda: fuse([run, run]), lambda: baselines.fuse_runs([run, run])):
        with pytest.raises(InputError, match=problem) as error:
            call()
        assert "\n" not in str(error.value)


def test_wrong_calls_are_one_error(release: Path, tmp_path: Path) -> None:
    run = search("bm25", release)
    calls: list[tuple[Callable[[], Any], str]] = [
        (lambda: evaluate(run, release, top_k=10), "a run has no option top_k"),
        (lambda: evaluate(run, release, per_query=True), "evaluate has no option 'per_query'"),
        (lambda: evaluate("nofile.trec", release), "nofile.trec: no such file; expected a run"),
        (lambda: read_run("nofile.trec"), "nofile.trec: no such file"),
        (lambda: search("bm25", release, topk=10), "search has no option 'topk'; did you mean top_k"),
        (lambda: search("bm25", release, analyzer="ik"), "analyzer: expected one of words, characters"),
        (lambda: search("bm25", release, k1="0.9"), "k1: expected a number of at least 0, found '0.9'"),
        (lambda: search("bm25", release, k1=float("nan")), "k1: expected a number of at least 0, found nan"),
        (lambda: search("bm25", release, 3), "split: expected a text, found 3"),  # type: ignore[arg-type]
        (lambda: search("bm25", None), "release: expected a path or a Release, found None"),  # type: ignore[arg-type]
        (lambda: search("bm25"), r"search: missing a required argument: 'release'"),  # type: ignore[call-arg]
        (lambda: compare(run, release), "expected query id -> passage id -> score"),
        (lambda: compare([run], release), "expected 2 to 25 runs, found 1"),
        (lambda: fuse("runs"), "runs: expected name -> run, or a list of runs, found str"),
        (lambda: write_run(run, tmp_path / "a.run", tag="two words"), "tag: expected a text without blanks"),
        (lambda: write_run({"q": {"a b": 1.0}}, tmp_path / "a.run"), "ids without blanks"),
        (lambda: evaluate(run, tmp_path / "nowhere"), "nowhere: not a release directory"),
    ]
    for call, problem in calls:
        with pytest.raises(InputError, match=problem):
            call()
    assert not (tmp_path / "a.run").exists()


def test_an_open_release_that_was_replaced_is_not_searched(release: Path, tmp_path: Path) -> None:
    # The handle stays open while the directory is replaced.
    opened = open_release(release)
    search("bm25", opened)  # the texts and the index are now in the cache
    rows = tables()
    rows["corpus", "corpus"].append({"_id": md5("另一段文字"), "title": "", "text": "另一段文字"})
    make_release(release, rows)
    for call in (lambda: search("bm25", opened), lambda: evaluate("bm25", opened), lambda: search_bm25(opened)):
        with pytest.raises(InputError, match="was replaced by another release since it was opened; open it again"):
            call()
    assert search("bm25", release)


def test_a_run_in_memory_is_no_file_of_its_name(release: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    run = search_bm25(release, top_k=4)
    Path(str(run.path)).write_text("not a run", encoding="utf-8")
    assert run.is_in_memory
    assert evaluate(run, release) == evaluate(run.to_dict(), release)
    assert search(score_by_length, release, run=run).keys() == run.hits.keys()
    assert run.manifest is not None
    assert run.manifest["kind"] == "bm25"


def test_quiet_turns_off_log_lines_of_one_call(release: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, log.name)
    search_bm25(release, out=release.parent / "loud.run")
    assert "loud.run" in caplog.text
    caplog.clear()
    search_bm25(release, out=release.parent / "still.run", quiet=True)
    evaluate("bm25", release, quiet=True)
    assert not [record for record in caplog.records if record.levelno < logging.WARNING]
    evaluate({QUERY: {"p": 1.0}}, release, quiet=True)
    assert "queries; they count as 0" in caplog.text
    with pytest.raises(UsageError, match="quiet: expected True or False, found 1"):
        evaluate("bm25", release, quiet=1)


def test_names_are_listed_and_signatures_show_options() -> None:
    for module in (baselines, builders, dureader_retrieval):
        assert module.__version__ == VERSION
        assert set(module.__all__) <= set(dir(module))
        for name in module.__all__:
            assert hasattr(module, name)
    for function, option in ((search, "k1"), (search, "pooling"), (evaluate, "batch_size"), (compare, "measure")):
        parameters = list(inspect.signature(function).parameters)
        assert option in parameters
        assert parameters[-1] == "quiet"
        assert "options" not in parameters
    assert inspect.signature(fuse).parameters["top_k"].default == 50


def test_a_release_is_shown_in_one_line(release: Path) -> None:
    assert repr(open_release(release, set="main")) == f"Release({str(release)!r}, set='main')"
    assert repr(Run("a.run")) == "Run('a.run')"
