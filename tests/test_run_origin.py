"""Warnings of `evaluate`, `compare` and others about runs of another release, set or split."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from commands import run as run_command
from releases import TEXTS, make_release, md5, tables

from baselines import Run, compare, compare_runs, evaluate, evaluate_runs, fuse_runs, open_release, search_bm25
from baselines.hub.pushed_files import score_runs

pytestmark = pytest.mark.usefixtures("own_cache")


@pytest.fixture
def release(tmp_path: Path) -> Path:
    return make_release(tmp_path / "release")


def other_release(path: Path) -> Path:
    """Write a release with the same queries and one more passage."""
    rows = tables()
    rows["corpus", "corpus"].append({"_id": md5("另一段"), "title": "", "text": "另一段"})
    return make_release(path, rows)


def unknown_run(release: Path) -> dict[str, dict[str, float]]:
    """Return a run of the release's dev queries with passage ids that no release has."""
    queries = open_release(release).queries("dev")
    return {query_id: {"12345": 2.0, f"{number}": 1.0} for number, query_id in enumerate(queries)}


@pytest.mark.parametrize(
    "measure",
    [
        lambda run, release: evaluate(run, release),
        lambda run, release: evaluate_runs([run], release=release),
        lambda run, release: compare_runs([run, run], release=release),
        lambda run, release: compare([run, run], release),
    ],
)
def test_passages_that_the_release_lacks_are_counted_in_a_warning(
    measure: Callable[[Any, Path], Any], release: Path, caplog: pytest.LogCaptureFixture
) -> None:
    measure(unknown_run(release), release)
    assert "3 of 3 passages in the top 50 are not in corpus of" in caplog.text
    assert "for example '0'; they count as not relevant" in caplog.text
    caplog.clear()
    partly_known = {query_id: [md5(TEXTS[0]), "12345"] for query_id in unknown_run(release)}
    measure(partly_known, release)
    assert "1 of 2 passages in the top 50 are not in corpus of" in caplog.text and "example '12345'" in caplog.text


def test_a_run_without_a_judged_passage_is_warned_of_if_the_judgments_are_a_file(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "qrels").write_text("q1 0 a 1\nq2 0 b 1\nq2 0 c 0\n")
    evaluate_runs([{"q1": ["x", "y"]}], qrels=tmp_path / "qrels")
    assert "none of 2 passages in the top 50 is judged in" in caplog.text and "for example 'x'" in caplog.text
    caplog.clear()
    evaluate_runs([{"q1": ["x", "c"]}], qrels=tmp_path / "qrels")  # c is judged, although for another query
    assert "is judged in" not in caplog.text


def test_a_run_of_another_release_or_split_is_warned_of(
    release: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    out = tmp_path / "dev.run"
    in_memory = search_bm25(release, top_k=3)
    search_bm25(release, top_k=3, out=out)
    for run in (in_memory, out):
        evaluate(run, release)
        assert not [record for record in caplog.records if record.levelname == "WARNING"]
        evaluate_runs([run], release=other_release(tmp_path / f"other-{bool(run is out)}"))
        assert "the run's manifest names another release than" in caplog.text and "(other corpus)" in caplog.text
        assert "(other corpus, queries)" not in caplog.text
        caplog.clear()


def test_the_manifest_of_an_earlier_file_is_ignored_and_a_damaged_one_is_named(
    release: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    out = tmp_path / "dev.run"
    manifest = tmp_path / "dev.run.manifest.json"
    search_bm25(release, top_k=3, out=out)
    record = json.loads(manifest.read_text())
    manifest.write_text(json.dumps(record | {"split": "train", "set": "cmedqa"}))
    evaluate(out, release)
    assert "names the split train, but dev is measured" in caplog.text
    assert "names the set cmedqa, but main is measured" in caplog.text
    caplog.clear()
    out.write_text(out.read_text() + "\n")  # the manifest no longer describes the file
    evaluate(out, release)
    assert "manifest" not in caplog.text
    manifest.write_text('{"split": 1}')
    evaluate(out, release)
    assert f"{manifest}: " in caplog.text and "the release of the run is not checked" in caplog.text


def test_a_missing_corpus_file_is_a_warning(release: Path, caplog: pytest.LogCaptureFixture) -> None:
    run = Run.in_memory("r", {query_id: [(md5(TEXTS[0]), 1.0)] for query_id in unknown_run(release)})
    for shard in (release / "corpus").iterdir():
        shard.unlink()
    assert evaluate(run, release)["QueriesRanked"] == len(run.hits)
    assert "the passage ids of the runs are not checked" in caplog.text


def test_the_leaderboard_and_a_push_check_passages_too(
    release: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    run = Run.in_memory("r", {query_id: list(hits.items()) for query_id, hits in unknown_run(release).items()})
    path = tmp_path / "r.run"
    lines = []
    for query_id, hits in run.hits.items():
        lines += [f"{query_id} Q0 {passage_id} 1 {score} t\n" for passage_id, score in hits]
    path.write_text("".join(lines))
    words = ("--release", release, "--leaderboard", path)
    assert "3 of 3 passages in the top 50" in run_command("baselines", "reproduce", words).stderr
    score_runs(open_release(release), "dev", "main", [run])
    assert "3 of 3 passages in the top 50" in caplog.text


def test_the_tuning_runs_of_a_fusion_are_checked(release: Path, caplog: pytest.LogCaptureFixture) -> None:
    run_of_unknown_ids = unknown_run(release)
    run_of_known_ids = {query_id: [md5(TEXTS[0])] for query_id in run_of_unknown_ids}
    fuse_runs([run_of_unknown_ids, run_of_known_ids], release=release, tune="dev", tune_on_these=True)
    assert "3 of 3 passages in the top 50 are not in corpus of" in caplog.text
